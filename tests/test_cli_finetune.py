"""`unitsphere finetune` through the command line: its table, its JSON, and its mistakes."""

import json
import shutil
from pathlib import Path

import pytest

from unitsphere.cli import main
from unitsphere.cli.finetune import Finetune, default_out


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory) -> Path:
    """A small run, and labelled texts: pairs and single ones."""
    folder = tmp_path_factory.mktemp("finetune")
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        rows = [f"text number {i}\t{'yes' if i % 3 else 'no'}\n" for i in range(60)]
        Path("mine.tsv").write_text("body\tkind\n" + "".join(rows))
        pairs = (
            {"sentence1": f"a {i}", "sentence2": f"b {i}" * 9, "label": i % 2} for i in range(40)
        )
        Path("rte.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return folder


@pytest.fixture(autouse=True)
def _here(folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    capfd.readouterr()


QUICK = ["--epochs", "1", "--lr", "1e-3", "1e-2", "--seed", "0", "1"]
MINE = ["--data", "mine.tsv", "--text", "body", "--label", "kind"]


def test_the_table_and_the_folder(capfd):
    assert main(["finetune", "run", *MINE, *QUICK]) == 0
    printed = capfd.readouterr()
    for words in ("Tune part, by rate", "12 examples at 0.0", "2 seeds", "majority class"):
        assert words in printed.out
    assert printed.out.startswith("mine: accuracy 0.")  # a task without a name has the file's
    assert "rate tried: a better one may lie beyond" in printed.out
    assert "2 classes; examples: 39 to train, 9 to tune, 12 to test" in printed.err
    assert Path("run/finetune/mine/model.safetensors").is_file()
    assert main(["report", "run/finetune/mine"]) == 0
    assert capfd.readouterr().out.startswith("mine: accuracy")
    page = Path("run/finetune/mine/report.html").read_text()
    assert "always guessing the commonest class" in page


def test_json_is_one_document_and_says_what_was_cut(capfd):
    command = ["finetune", "run", "--task", "rte", "--data", "rte.jsonl", "--out", "rte", "--json"]
    assert main([*command, *QUICK, "--scratch"]) == 0
    printed = capfd.readouterr()
    found = json.loads(printed.out)
    assert printed.err.count("truncated") == 1
    assert found["truncated"] > 0
    assert (found["start"], found["metric"], found["classes"]) == ("random", "accuracy", ["0", "1"])
    assert [rate["lr"] for rate in found["rates"]] == [1e-3, 1e-2]
    assert found["test"]["scores"]["f1"].keys() == {"mean", "standard_error"}
    assert len(found["test"]["seeds"]) == 2


def test_help_has_an_example(capfd):
    with pytest.raises(SystemExit) as stop:
        main(["finetune", "--help"])
    assert not stop.value.code
    assert "unitsphere finetune runs/mlm --task sst2" in capfd.readouterr().out


MISTAKES = {
    "no data": (["run"], "finetune needs --data"),
    "no run": (["none", *MINE], "none is not a run folder"),
    "no file": (["run", "--task", "sst2", "--data", "none.tsv"], "cannot read none.tsv"),
    "no fields": (["run", "--data", "mine.tsv"], "--task"),
    "a wrong field": (["run", "--task", "sst2", "--data", "mine.tsv"], "line 1 of mine.tsv"),
    "a wrong label": (["run", "--task", "rte", *MINE, "--text2", "body"], "line 2 of mine.tsv"),
    "a wrong task": (["run", "--task", "sst3", "--data", "mine.tsv"], "one of sst2"),
    "a rate of nothing": (["run", *MINE, "--lr", "0"], "--lr takes numbers above 0"),
    "a pool that is none": (["run", *MINE, "--pool", "max"], "one of first, mean, last"),
    "the run's own folder": (["run", *MINE, "--out", "run"], "does not hold a fine-tuning"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(mistake, capfd):
    argv, message = MISTAKES[mistake]
    assert main(["finetune", *argv]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    assert line.startswith("unitsphere: error: ")
    assert message in line


def test_the_folder_of_a_checkpoint_is_in_its_run():
    checkpoint = min(Path("run/checkpoints").glob("step-*"))
    args = Finetune(run=checkpoint, data=Path("mine.tsv"))
    assert default_out(args) == Path("run/finetune/mine").absolute()
    assert default_out(Finetune(run=Path("run"), data=Path("x"), task="rte", scratch=True)) == Path(
        "run/finetune/rte-scratch"
    )
