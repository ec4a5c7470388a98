"""`eval --by-position` and `context`, on two small runs through the command line."""

import json
import math
import shutil
from pathlib import Path

import pytest
from tiny_recipe import tiny_recipe
from typed import printed, refused

from unitsphere.cli import main
from unitsphere.report.kinds.context import by_context, by_position, columns, rows

RECIPE = tiny_recipe("ngpt", model={"d_model": 16}, lr=2e-2, steps=4)
TEXT = "The cat sat on the mat, and that was that.\n" * 100
DATA = ["--data", "text.txt", "--context", "16", "64"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A text, two seeds of a run on it, one on a copy, and runs of other data or tokenizers."""
    folder = tmp_path_factory.mktemp("context")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("text.txt").write_text(TEXT)
        Path("tiny.toml").write_text(RECIPE)
        for seed in "12":
            argv = ["train", "tiny.toml", "--train.seed", seed, "--out", f"run-{seed}"]
            assert main(argv) == 0
        Path("copy.txt").write_text(TEXT)
        for name, key, value in (
            ("bpe", "tokenizer", "bpe:300"),
            ("copy", "source", "copy.txt"),
            ("held-out", "val_fraction", "0.3"),
        ):
            assert main(["train", "tiny.toml", f"--data.{key}", value, "--out", name]) == 0
    return folder


@pytest.fixture(autouse=True)
def _here(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    capsys.readouterr()


@pytest.mark.parametrize("verb", ["eval", "context", "quantize"])
def test_a_field_is_refused_where_no_line_of_json_could_have_it(capsys, verb):
    message = refused(capsys, verb, "run-1", *DATA[:2], "--field", "body")
    assert "'body' is of a line of JSON, and text.txt holds no JSON lines: leave it out" in message


def test_eval_by_position(capsys):
    found = printed(capsys, "eval", "run-1", *DATA, "--by-position")
    size = len(TEXT) // 64 * 64
    assert found["by_context"].keys() == {"16", "64"}
    for context, figures in found["by_context"].items():
        assert figures["tokens"] == figures["bytes"] == size
        assert figures["by_position"][-1]["last"] == int(context)
    assert found["loss"] == found["by_context"]["16"]["loss"]


def test_the_chunk_changes_nothing_but_memory(capsys):
    one = printed(capsys, "eval", "run-1", *DATA, "--by-position", "--chunk", "7")
    other = printed(capsys, "eval", "run-1", *DATA, "--by-position")
    assert one["by_context"]["64"]["loss"] == pytest.approx(other["by_context"]["64"]["loss"])


def test_by_position_as_tables(capsys):
    assert main(["eval", "run-1", *DATA, "--by-position", "--per-document", "640"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[-1] == "640"
    head = next(i for i, line in enumerate(lines) if line.startswith("tokens seen"))
    first, last = lines[head + 2].split(), lines[-1].split()
    assert (first[0], len(first)) == ("1–1", 3)
    assert (last[0], len(last)) == ("49–64", 2)  # the shorter context has no such position


def test_context_draws_seeds_of_an_arm_together(capsys):
    found = printed(capsys, "context", "a=run-1", "a=run-2", *DATA, "--out", "out")
    assert json.loads(Path("out/results.json").read_text()) == found
    assert [run["seed"] for run in found["arms"]["a"]["runs"]] == [1, 2]
    alone = printed(capsys, "eval", "run-1", *DATA, "--by-position")
    assert found["arms"]["a"]["runs"][0]["by_context"] == alone["by_context"]
    assert "context.svg" in Path("out/results.md").read_text()
    assert Path("out/context.png").read_bytes().startswith(b"\x89PNG")


def test_seeds_of_an_arm_have_one_context_of_training(capsys, tmp_path):
    longer = shutil.copytree("run-2", tmp_path / "longer")
    settings = json.loads((longer / "config.json").read_text())
    settings["data"]["context"] = 32
    (longer / "config.json").write_text(json.dumps(settings))
    message = refused(capsys, "context", "a=run-1", f"a={longer}", *DATA, "--out", "never")
    assert "the runs of a were trained at contexts of 16, 32" in message
    assert not Path("never").exists()


def test_context_without_data_or_contexts_takes_the_training_s(capsys):
    assert main(["context", "run-1", "--out", "own", "--per-document", "512"]) == 2
    assert "no document has 512 tokens" in capsys.readouterr().err
    assert main(["context", "run-1", "--data", "text.txt", "--out", "own"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = next(n for n, line in enumerate(lines) if line.split()[:2] == ["arm", "trained"])
    assert lines[table].split()[2:] == ["at", "16", "32", "64", "128", "256", "512"]
    assert lines[table + 2].split()[:2] == ["run-1", "16"]


def test_without_data_a_run_of_other_data_is_refused_before_any_is_scored(capsys, monkeypatch):
    argv = ["context", "--context", "16", "--out", "split"]
    assert main([*argv, "run-1", "run-2", "copy"]) == 0
    assert "data: the first run's validation split" in Path("split/results.md").read_text()
    assert main([*argv, "run-1", "held-out", *DATA[:2]]) == 0
    capsys.readouterr()
    monkeypatch.setattr("unitsphere.studies.context.losses_by_position", None)
    message = refused(capsys, *argv, "run-1", "held-out")
    assert "held-out has other data than run-1" in message
    assert "--data" in message


def test_without_a_record_of_the_data_the_settings_decide(capsys, tmp_path):
    for name in ("run-1", "run-2", "held-out"):
        shutil.copytree(name, tmp_path / name)
    paths = [str(tmp_path / name) for name in ("run-1", "run-2", "held-out")]
    environment = tmp_path / "run-1" / "environment.json"
    found = json.loads(environment.read_text())
    del found["data"]
    environment.write_text(json.dumps(found))
    argv = ["context", "--context", "16", "--out", "split"]
    assert main([*argv, *paths[:2]]) == 0
    capsys.readouterr()
    assert "has other data" in refused(capsys, *argv, *paths)


def run_of(losses: tuple[float, float]) -> dict:
    spans = [{"first": 1, "last": 8, "loss": losses[0]}]
    return {"by_context": {"8": {"loss": losses[1], "by_position": spans}}}


def test_a_point_is_the_mean_loss_with_the_lowest_and_highest():
    arm = {"trained": 4, "runs": [run_of((1.0, 2.0)), run_of((3.0, 4.0))]}
    assert by_context(arm, [8]) == [(8, math.exp(3), math.exp(2), math.exp(4))]
    assert by_position(arm) == [(8, math.exp(2), math.exp(1), math.exp(3))]
    found = {"contexts": [8], "arms": {"x": arm}}
    assert columns(found) == ["arm", "trained at", "8"]
    assert rows(found) == [["x", "4", "20.09 ± 23.60"]]


def test_a_loss_whose_perplexity_no_float_holds(capsys, tmp_path):
    huge = ["--model.init_std", "1000", "--train.steps", "1", "--train.batch_tokens", "64"]
    recipe = tiny_recipe("gpt", model={"d_model": 16}, lr=1e-6, steps=1)
    Path("huge.toml").write_text(recipe)
    assert main(["train", "huge.toml", *huge, "--out", "huge"]) == 0
    capsys.readouterr()
    for argv in (
        ["eval", "huge", *DATA, "--by-position"],
        ["context", "huge", *DATA, "--out", str(tmp_path / "out")],
    ):
        assert main(argv) == 0
        assert " inf" in capsys.readouterr().out
        assert main([*argv, "--json"]) == 0
        found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        if argv[0] == "eval":
            assert found["loss"] > 700
            assert found["perplexity"] is None
    assert main(["report", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("verb", ["context", "quantize"])
def test_a_folder_of_something_else_stays_as_it_is(capsys, tmp_path, verb):
    (tmp_path / "study").mkdir()
    results = tmp_path / "study" / "results.json"
    results.write_text('{"kind": "compare"}')
    for out, said in (
        (results, "is a file"),
        (results.parent, "holds no results of"),
        ("run-1", "holds no"),
    ):
        assert said in refused(capsys, verb, "run-1", "--out", str(out))
    assert results.read_text() == '{"kind": "compare"}'
    assert not Path("run-1", "results.json").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["eval", "run-1", "--chunk", "8"], "--chunk needs --by_position"),
        (["eval", "run-1", "--chunk", "8", "--tasks", "text"], "--chunk needs --by_position"),
        (["eval", "run-1", "--field", "body"], "--field needs --data"),
        (["context", "run-1", "--field", "body"], "--field needs --data"),
        (["quantize", "run-1", "--field", "body"], "--field needs --data"),
        (["eval", "run-1", "--per_document", "0"], "--per_document needs --by_position"),
        (["eval", "run-1", "--shots", "0"], "--shots needs --tasks"),
        (["quantize", "run-1", "--tokens", "8", *DATA[:2]], "--tokens is of a validation split"),
        (["eval", "run-1", *DATA, "--by-position", "--chunk", "0"], "--chunk must be at least 1"),
        (["eval", "run-1", "--context", "6", "16", "--by-position"], "6 does not divide 16"),
        (["context", "run-1", "x=run-1"], "run-1 is given twice"),
        (["context", "a/run", "b/run"], "two runs are called run: write NAME=RUN"),
        (["context", "run=a/x", "b/run"], "two runs are called run: write NAME=RUN"),
        (["context", "b/run", "run=a/x"], "two runs are called run: write NAME=RUN"),
        (["context", "=run-1"], "is not NAME=RUN"),
        (["context", "run-1", "bpe", *DATA], "another tokenizer"),
        (["context", "run-1", "--context", "0"], "--context must be at least 1"),
    ],
)
def test_a_mistake_is_one_line(capsys, argv, message):
    assert message in refused(capsys, *argv)
