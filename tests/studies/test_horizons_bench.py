"""The ladder of horizons: speedups over each GPT at each horizon, from the studies' JSON."""

import json
import math
import re

import pytest
from scripts import load_script

TOKENS = (1000, 4000, 16000)
CELLS = (("speedup", 1), ("speedup", 5), ("speedup", 20), ("time", 1), ("time", 5))
"""The columns of the table over the strongest baseline."""


@pytest.fixture(scope="module")
def horizons():
    return load_script("horizons")


def arm(architecture, faster, slower, tokens=TOKENS, seeds=(0, 1)):
    """An arm that has the baseline's loss after `faster` times fewer tokens; steps take longer."""

    def run(t, seed):
        loss = 9 - math.log(t * faster) + 0.01 * seed
        figures = {"loss": loss, "tokens_per_second": 100 / slower}
        return {"seed": seed, "status": "finished"} | figures

    budgets = [{"tokens": t, "lr": 0.01, "seeds": [run(t, s) for s in seeds]} for t in tokens]
    return {"architecture": architecture, "parameters": 1000, "budgets": budgets}


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "horizons" / "wiki-tiny"
    folder.mkdir(parents=True)
    arms = {"adamw": arm("gpt", 1, 1), "muon": arm("gpt", 1.5, 1.2), "sphere": arm("ngpt", 2, 1.6)}
    early = {name: found | {"budgets": found["budgets"][:2]} for name, found in arms.items()}
    late = {name: found | {"budgets": found["budgets"][2:]} for name, found in arms.items()}
    (folder / "early.json").write_text(json.dumps({"arms": early}))
    (folder / "late.json").write_text(json.dumps({"arms": late}))
    return tmp_path


def rows(results):
    found = json.loads((results / "horizons.json").read_text())["rows"]
    return {(row["arm"], row["baseline"], row["tokens_per_parameter"]): row for row in found}


def test_speedups_in_tokens_and_in_time_over_every_gpt_at_every_horizon(horizons, results, capsys):
    assert horizons.main(["--results", str(results)]) == 0
    found = rows(results)
    pairs = {("muon", "adamw"), ("sphere", "adamw"), ("adamw", "muon"), ("sphere", "muon")}
    assert set(found) == {(*pair, horizon) for pair in pairs for horizon in (1.0, 4.0, 16.0)}
    last = found["sphere", "adamw", 16.0]
    assert last["speedup"]["median"] == pytest.approx(2, rel=1e-6)
    assert last["time"]["median"] == pytest.approx(2 / 1.6, rel=1e-6)
    assert last["loss"] == pytest.approx(9 - math.log(32000) + 0.005)
    assert last["standard_error"] == pytest.approx(0.005)
    assert found["sphere", "muon", 4.0]["speedup"]["median"] == pytest.approx(4 / 3, rel=1e-6)
    assert (results / "horizons" / "wiki-tiny.png").stat().st_size > 1000
    table = capsys.readouterr().out
    assert f"**{9 - math.log(2000) + 0.005:.3f}** ± 0.005" in table


def test_nothing_is_extrapolated_beyond_the_horizons(horizons, results):
    horizons.main(["--results", str(results)])
    found = rows(results)
    ahead, behind = found["sphere", "adamw", 1.0], found["adamw", "muon", 16.0]
    assert (ahead["speedup"]["median"], behind["speedup"]["median"]) == (None, None)
    assert "before the smallest budget" in ahead["speedup"]["reason"]
    assert "not reached" in behind["speedup"]["reason"]


def test_an_arm_of_another_machine_has_no_speedup_in_time(horizons, results, capsys):
    path = results / "horizons" / "wiki-tiny" / "other.json"
    other = arm("gpt", 3, 1)
    for budget in other["budgets"]:
        for seed in budget["seeds"]:
            del seed["tokens_per_second"]
    path.write_text(json.dumps({"arms": {"other": other}}))
    horizons.main(["--results", str(results)])
    for pair in (("other", "adamw", 16.0), ("sphere", "other", 1.0)):
        assert rows(results)[pair]["time"]["median"] is None
        assert "different machines" in rows(results)[pair]["time"]["reason"]
    assert rows(results)["other", "adamw", 16.0]["speedup"]["median"] == pytest.approx(3, rel=1e-6)
    assert re.search(r"\| other \| ahead \| 3.00 .*\| – \| – \| – \|", capsys.readouterr().out)


def test_a_run_that_two_files_have_is_told(horizons, results):
    again = {"muon": arm("gpt", 1, 1, tokens=TOKENS[:1], seeds=(1, 2))}
    (results / "horizons" / "wiki-tiny" / "more.json").write_text(json.dumps({"arms": again}))
    line = r"more.json: another file has seed 1 of muon at 1,000 tokens too: keep one"
    with pytest.raises(SystemExit, match=line):
        horizons.main(["--results", str(results)])


def test_arms_are_compared_on_the_seeds_that_both_have(horizons, results):
    path = results / "horizons" / "wiki-tiny" / "late.json"
    found = json.loads(path.read_text())
    found["arms"]["sphere"]["budgets"][0]["seeds"].pop()
    path.write_text(json.dumps(found))
    horizons.main(["--results", str(results)])
    assert rows(results)["sphere", "adamw", 16.0]["seeds"] == 1
    assert rows(results)["muon", "adamw", 16.0]["seeds"] == 2


def test_where_a_horizon_has_one_seed_there_is_no_interval(horizons, results, capsys):
    path = results / "horizons" / "wiki-tiny" / "late.json"
    found = json.loads(path.read_text())
    found["arms"]["sphere"]["budgets"][0]["seeds"].pop()
    path.write_text(json.dumps(found))
    horizons.main(["--results", str(results)])
    for horizon in (4.0, 16.0):  # the curve of both goes through the horizon of one seed
        row = rows(results)["sphere", "adamw", horizon]
        for gain in (row["speedup"], row["time"]):
            assert (gain["low"], gain["high"]) == (None, None)
            assert gain["median"] is not None
            assert "one seed" in gain["reason"]
    assert rows(results)["muon", "adamw", 16.0]["speedup"]["low"] is not None
    shown = re.findall(r"\| sphere \| ahead \|.*", capsys.readouterr().out)
    assert [line.count("(") for line in shown] == [0, 0]
    line = horizons.gain_line("a", [{"tokens_per_parameter": 1, "speedup": row["speedup"]}], 0)
    assert list(line.low) == list(line.high) == list(line.y)


def test_the_published_rows_are_those_of_the_published_ladders(horizons):
    published = json.loads((horizons.RESULTS / "horizons.json").read_text())["rows"]
    losses = {(r["ladder"], r["arm"], r["tokens"]): r["loss"] for r in published}
    folders = [path for path in (horizons.RESULTS / "horizons").iterdir() if path.is_dir()]
    read = {folder.name: horizons.read(folder) for folder in folders}
    found = {
        (ladder, arm.name, tokens): arm.loss(tokens)
        for ladder, arms in read.items()
        for arm in arms
        for tokens in arm.seeds
    }
    assert {key: found[key] for key in losses} == pytest.approx(losses)


def test_the_tables_of_the_page_are_those_of_the_studies(horizons):
    page = (horizons.RESULTS / "horizons.md").read_text()
    arms = horizons.read(horizons.RESULTS / "horizons" / "wiki-64")
    assert horizons.loss_table(arms) in page
    assert all(table in page for table in horizons.gain_tables(list(horizons.rows_of(arms))))


ARMS = {
    "`best`": "best",
    "nGPT with Muon": "ngpt-muon",
    "nGPT with Adam": "ngpt-adam",
    "anGPT with Adam": "angpt",
    "GPT+ with Muon and Peri-LN's norms": "gpt-plus-peri",
    "GPT+ with Muon": ("gpt-plus-head", "gpt-plus-muon"),
    "GPT+ with AdamW, Peri-LN's norms and less decay": "gpt-plus-adamw-peri",
    "GPT+ with Muon, without the norms": ("gpt-plus-head", "gpt-plus-muon"),
}
"""The arms of the tables of speedups; at 0.4M GPT+ with Muon has the head of `best`."""


SIZES = {"0.4M": "wiki-64-offset", "1.3M": "wiki-1m-offset"}
"""The ladder of each size in these tables."""


ADAMW = "\n**Over GPT+ with AdamW**"
"""How the second of these tables starts."""


def over(horizons, row, key):
    """A cell of these tables: a speedup, or by how many nats the arm is ahead or behind."""
    behind = row["loss"] - row["baseline_loss"]
    reason = row[key].get("reason", "")
    if "not reached" in reason:
        return f"behind, by {behind:.3f}"
    if row[key]["median"] is None:
        return f"ahead, by {-behind:.3f}"
    return horizons.speedup_cell(row[key])


@pytest.mark.parametrize(
    ("heading", "end", "baseline", "lines", "cells"),
    [
        ("### Over the strongest", ADAMW, "gpt-plus-peri", 6, CELLS),
        (ADAMW, "\n## ", "gpt-plus-adamw", 14, CELLS[:3]),
    ],
)
def test_the_tables_of_speedups_are_those_of_the_rows(
    horizons, heading, end, baseline, lines, cells
):
    rows = json.loads((horizons.RESULTS / "horizons.json").read_text())["rows"]
    own = {
        (row["ladder"], row["arm"], row["tokens_per_parameter"]): row
        for row in rows
        if row["baseline"] == baseline
    }
    page = (horizons.RESULTS / "horizons.md").read_text()
    section = page.partition(heading)[2].partition(end)[0]
    body = [line[1:-1].split("|") for line in section.splitlines() if re.match(r"\| [`naG]", line)]
    body = [[cell.strip() for cell in line] for line in body if line[1].strip() in SIZES]
    assert len(body) == lines
    for name, size, *shown in body:
        names = ARMS[name.rstrip("*")]  # a footnote
        arm = names if isinstance(names, str) else names[size == "1.3M"]
        ladder = SIZES[size]
        for cell, (key, horizon) in zip(shown, cells, strict=True):
            if cell not in ("", "not run"):
                assert cell.startswith(over(horizons, own[ladder, arm, horizon], key)), (
                    name,
                    size,
                    horizon,
                )


def test_only_arms_of_every_horizon_are_drawn(horizons, results):
    late = results / "horizons" / "wiki-tiny" / "late.json"
    arms = json.loads(late.read_text())["arms"]
    del arms["muon"]
    late.write_text(json.dumps({"arms": arms}))
    found = horizons.read(late.parent)
    loss, *gains = horizons.figures(found, list(horizons.rows_of(found)))
    assert [line.name for line in loss.series] == ["adamw", "sphere"]
    assert [gain.name for gain in gains] == ["speedup-adamw"]
    assert [line.name for line in gains[0].series] == ["sphere"]


def test_an_end_that_no_horizon_reached_is_drawn_where_the_horizons_end(horizons):
    def row(horizon, median, low, high):
        speedup = {"median": median, "low": low, "high": high}
        return {"tokens_per_parameter": horizon, "speedup": speedup}

    rows = [row(1, 0.9, 0.8, None), row(5, None, None, None), row(20, 1.2, None, 1.4)]
    line = horizons.gain_line("arm", rows, 0)
    assert (line.y, line.low, line.high) == ([0.9, 1.2], [0.8, 1.0], [1.0, 1.4])
