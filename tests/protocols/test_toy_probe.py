"""A probe is one function and one line of the registry: nothing else has to know of it."""

import json
from pathlib import Path

import pytest
from tiny_recipe import TEXT, tiny_recipe

from unitsphere.cli import main
from unitsphere.inspection.probes import PROBES, Probe
from unitsphere.inspection.trace import Subject
from unitsphere.inspection.values import Values, layers
from unitsphere.training.log import read_metrics


def largest_step(subject: Subject) -> Values:
    """By how much an update changes the weight that it changes most."""
    pairs = ((subject.earlier[name], now) for name, now in subject.parameters.items())
    return layers([("step", "", max(float((a - b).abs().max()) for a, b in pairs))])


LINE = Probe(
    "Largest change of a weight", "a test", "change", largest_step, reads="update", live=True
)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys) -> str:
    """A run that takes the toy probe at each of its three steps, and is inspected."""
    monkeypatch.setitem(PROBES, "toy", LINE)
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT * 100)
    Path("tiny.toml").write_text(tiny_recipe(steps=3, log_every=1, save_every=1))
    argv = ["train", "tiny.toml", "--inspect.every", "1", "--inspect.probes", "toy"]
    assert main([*argv, "--out", "run", "--train.keep_every", "1"]) == 0
    capsys.readouterr()
    return "run"


def test_a_probe_of_one_function_and_one_line_is_everywhere(run, capsys):
    # The log of the run, since it is live …
    recorded = [record["probe/toy/step/all"] for record in read_metrics(Path(run))]
    assert len(recorded) == 3
    assert all(value > 0 for value in recorded)

    # … the document of `inspect`, which has the same of the checkpoints …
    assert main(["inspect", run, "--probes", "toy", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (probe,) = document["probes"].values()
    assert (probe["title"], probe["source"]) == (LINE.title, LINE.source)
    assert probe["values"]["unit"] == LINE.unit
    assert probe["values"]["live"]["steps"] == [1, 2, 3]
    found = {
        step: series["step"]["values"][0]
        for step, series in zip(probe["values"]["steps"], probe["values"]["series"], strict=True)
    }
    assert found == pytest.approx({s: recorded[s - 1] for s in found}, rel=1e-4)
    assert list(Path(run, "inspect").glob("toy*"))

    # … the list of probes, and the page of the run.
    assert main(["inspect", "--list"]) == 0
    assert LINE.title in capsys.readouterr().out
    assert main(["report", run, "--out", "page.html"]) == 0
    assert LINE.title in Path("page.html").read_text()
