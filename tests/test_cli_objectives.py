"""`--objective` at the command line: train, eval and generate on a small masked run."""

import json
import math
from pathlib import Path

import pytest
from tiny_recipe import tiny_recipe
from typed import printed, refused

from unitsphere.cli import main
from unitsphere.training.recipes import load_recipe

RECIPE = tiny_recipe("ngpt", data={"tokenizer": "bpe:300"}, lr=2e-2, steps=20)
TEXT = "The cat sat on the mat, and that was that.\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A text, and a masked run trained on it from a recipe that is a causal one."""
    folder = tmp_path_factory.mktemp("objectives")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("text.txt").write_text(TEXT * 100)
        Path("tiny.toml").write_text(RECIPE)
        assert main(["train", "tiny.toml", "--objective", "mlm", "--out", "run"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _here(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    capsys.readouterr()


def test_the_option_and_the_recipe_s_key_give_the_same_run(capsys):
    saved = load_recipe("run/config.json")
    assert saved.objective == "mlm"
    Path("masked.toml").write_text('objective = "mlm"\n' + RECIPE)
    assert main(["train", "masked.toml", "--out", "run"]) == 0
    assert "finished" in capsys.readouterr().err
    assert "objective: 'mlm' -> 'clm'" in refused(capsys, "train", "tiny.toml", "--out", "run")


def test_an_unknown_objective_is_one_line(capsys):
    message = refused(capsys, "train", "tiny.toml", "--objective", "bert", "--out", "other")
    assert "--objective must be one of clm, mlm, seq2seq, not 'bert'" in message
    Path("odd.toml").write_text('objective = "bert"\n' + RECIPE)
    assert "'objective' must be one of clm, mlm" in refused(capsys, "train", "odd.toml")


def test_eval_reports_loss_and_accuracy_and_no_bits_per_byte(capsys):
    found = printed(capsys, "eval", "run", "--data", "text.txt", "--context", "16", "32")
    assert found["bits_per_byte"] is None
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert 0 < found["accuracy"] <= 1
    assert found["bytes"] == len(TEXT) * 100
    assert list(found["by_context"]) == ["16", "32"]
    again = printed(capsys, "eval", "run", "--data", "text.txt", "--objective", "mlm")
    assert again["loss"] == found["loss"]


def test_eval_without_data_is_of_the_validation_split(capsys):
    found = printed(capsys, "eval", "run")
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert found["loss"] == pytest.approx(last["val_loss"], rel=1e-6)
    assert found["accuracy"] == pytest.approx(last["val_accuracy"], rel=1e-6)


def test_eval_as_a_table_says_what_its_perplexity_is(capsys):
    assert main(["eval", "run", "--data", "text.txt"]) == 0
    head, _, row = capsys.readouterr().out.splitlines()[:3]
    assert head.split() == ["context", "loss", "pseudo-perplexity", "accuracy", "tokens", "bytes"]
    assert row.split()[3].endswith("%")


def test_a_run_is_scored_for_what_it_was_trained_for_alone(capsys):
    for more in ([], ["--tasks", "text", "--task_data", "text.txt"]):
        message = refused(capsys, "eval", "run", "--objective", "clm", *more)
        assert "run was trained with objective mlm and cannot be scored as clm" in message


def test_a_context_without_room_for_a_mask_is_one_line(capsys):
    assert "at least 2" in refused(capsys, "eval", "run", "--context", "1")


def test_generate_wants_a_causal_run(capsys):
    assert "does not continue texts" in refused(capsys, "generate", "run", "--prompt", "The")


def test_params_counts_the_mask_token_s_row(capsys):
    (causal,) = printed(capsys, "params", "tiny.toml")
    Path("masked.toml").write_text('objective = "mlm"\n' + RECIPE.replace("bpe:300", "bytes"))
    (masked,) = printed(capsys, "params", "masked.toml")
    assert (causal["objective"], masked["objective"]) == ("clm", "mlm")
    assert causal["vocab_size"] == masked["vocab_size"] == 320  # 257 ids need as many as 300
