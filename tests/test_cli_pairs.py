"""Sequence to sequence at the command line: prepare, train, eval and generate on small pairs."""

import json
import math
import sys
from pathlib import Path

import pytest
from tiny_recipe import tiny_recipe
from typed import printed, refused

from unitsphere.cli import main
from unitsphere.cli.scores import bleu
from unitsphere.errors import UserError

RECIPE = tiny_recipe(
    "ngpt",
    data={
        "source": "pairs.jsonl",
        "source_field": "en",
        "target_field": "de",
        "context": 32,
        "val_fraction": 0.3,
    },
    lr=2e-2,
    objective="seq2seq",
    steps=60,
    batch_tokens=256,
    label_smoothing=0.1,
    save_every=0,
)
WORDS = {"one": "eins", "two": "zwei", "three": "drei und", "four": "vier", "five": "fünf"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Pairs of words, a run trained on them, and a text."""
    folder = tmp_path_factory.mktemp("pairs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        lines = [json.dumps({"en": en, "de": de}) for en, de in WORDS.items()] * 8
        Path("pairs.jsonl").write_text("\n".join(lines))
        Path("test.jsonl").write_text('{"given": "one", "wanted": "the house is big"}\n')
        Path("text.txt").write_text("some text\n" * 100)
        Path("tiny.toml").write_text(RECIPE)
        assert main(["train", "tiny.toml", "--out", "run"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _here(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    capsys.readouterr()


@pytest.mark.parametrize("options", [[], ["--beam", "3"], ["--beam", "3", "--length_penalty", "0"]])
def test_the_run_s_own_validation_split_is_scored(capsys, options):
    pytest.importorskip("sacrebleu")
    found = printed(capsys, "eval", "run", *options)
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert found["loss"] == pytest.approx(last["val_loss"], rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(last["val_bits_per_byte"], rel=1e-4)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["tokens"] == found["bytes"] + found["pairs"]
    assert "tok:13a" in found["bleu_signature"]
    assert 0 <= found["bleu"] <= 100
    assert found["beam"] == (3 if options else 1)
    assert found["by_context"] == found["tasks"] == {}


def test_a_file_with_other_fields_is_scored(capsys):
    pytest.importorskip("sacrebleu")
    fields = ["--source_field", "given", "--target_field", "wanted"]
    found = printed(capsys, "eval", "run", "--data", "test.jsonl", *fields)
    assert (found["pairs"], found["bytes"], found["tokens"]) == (1, 16, 17)
    assert found["bleu"] < 50
    assert main(["eval", "run", "--data", "test.jsonl", *fields, "--context", "8", "32"]) == 0
    captured = capsys.readouterr()
    assert "BLEU: nrefs:1" in captured.out
    assert captured.err.count("longer than 8 tokens, and cut there: 0 sources and 1 targets") == 1
    assert "no field 'en'" in refused(capsys, "eval", "run", "--data", "test.jsonl")


def test_without_sacrebleu_there_are_losses(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    message = refused(capsys, "eval", "run")
    assert "pip install 'unitsphere[translate]'" in message
    assert "--beam 0" in message
    found = printed(capsys, "eval", "run", "--beam", "0")
    assert "bleu" not in found
    assert found["loss"] > 0


def test_generate_writes_the_target_of_a_prompt(capsys):
    prompts = ["--prompt", "four", "--prompt", "two"]
    found = printed(capsys, "generate", "run", *prompts)
    assert [one["prompt"] for one in found] == ["four", "two"]
    assert found[0]["text"] in WORDS.values()
    for options in (["--beam", "1"], ["--beam", "4"]):
        assert len(printed(capsys, "generate", "run", *prompts, *options)) == 2
    assert main(["generate", "run", "--prompt", "four"]) == 0
    assert capsys.readouterr().out == found[0]["text"] + "\n"


def test_samples_are_written(capsys):
    samples = Path("run/samples.txt").read_text()
    assert samples.count("source: ") == samples.count("hypothesis: ") == 3


def test_prepared_pairs_are_trained_on(capsys):
    command = ["prepare", "pairs.jsonl", "--pairs", "--tokenizer", "bytes", "--out", "ready"]
    fields = ["--source_field", "en", "--target_field", "de", "--val_fraction", "0.3"]
    found = printed(capsys, *command, *fields)
    assert found["pairs"] is True
    assert found["train"]["documents"] + found["val"]["documents"] == 80
    options = ["--data.source", "ready", "--train.steps", "1"]
    assert main(["train", "tiny.toml", *options, "--out", "other"]) == 0
    capsys.readouterr()
    message = refused(capsys, "train", "tiny.toml", *options, "--objective", "clm", "--out", "x")
    assert "prepared as pairs" in message


def test_options_of_another_objective_are_one_line(capsys):
    assert "--temperature is for sampling" in refused(
        capsys, "generate", "run", "--prompt", "one", "--temperature", "0.5"
    )
    assert "give a prompt" in refused(capsys, "generate", "run")
    assert "must be 0 or more" in refused(capsys, "eval", "run", "--beam", "-1")
    text = ["--data.source", "text.txt", "--train.steps", "1", "--objective", "clm"]
    assert main(["train", "tiny.toml", *text, "--train.label_smoothing", "0", "--out", "clm"]) == 0
    capsys.readouterr()
    assert "for runs with objective seq2seq" in refused(capsys, "eval", "clm", "--beam", "2")
    assert "for runs with objective seq2seq" in refused(capsys, "generate", "clm", "--beam", "2")


@pytest.mark.parametrize("beam", [[], ["--beam", "1"]])
@pytest.mark.parametrize("verb", [["eval", "run"], ["generate", "run", "--prompt", "one"]])
def test_a_length_penalty_without_a_beam_is_refused(capsys, verb, beam):
    message = refused(capsys, *verb, *beam, "--length_penalty", "3")
    assert "--length_penalty needs a --beam of at least 2" in message


def test_the_field_of_a_text_is_refused_for_pairs(capsys):
    message = refused(capsys, "eval", "run", "--data", "pairs.jsonl", "--field", "en")
    assert "--field is for text, and run has objective seq2seq: give --source_field" in message


def test_the_field_of_prepared_pairs_is_refused(capsys):
    command = ["prepare", "pairs.jsonl", "--pairs", "--tokenizer", "bytes", "--out", "shards"]
    assert main([*command, "--source_field", "en", "--target_field", "de"]) == 0
    capsys.readouterr()
    message = refused(capsys, "eval", "run", "--data", "shards", "--source_field", "en")
    assert "'en' is of a line of JSON, and shards holds no JSON lines: leave it out" in message


@pytest.mark.parametrize(
    "argv",
    [
        ["eval", "run", "--by_position"],
        ["eval", "run", "--by_position", "--beam", "4"],
        ["context", "run"],
    ],
)
def test_losses_by_position_are_refused_for_the_objective_and_not_for_the_data(capsys, argv):
    assert "a model with the objective seq2seq has no losses by position" in refused(capsys, *argv)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pairs", "--field", "en"], "--field is for documents"),
        (["--source_field", "en"], "--source_field is for pairs: add --pairs"),
        (["--target_field=de"], "--target_field is for pairs: add --pairs"),
        (["--validation", "text.txt", "--val_fraction", "0.3"], "--validation or --val_fraction"),
    ],
)
def test_prepare_refuses_options_that_it_would_not_use(capsys, options, message):
    command = ["prepare", "pairs.jsonl", "--tokenizer", "bytes", "--out", "unused"]
    assert message in refused(capsys, *command, *options)


@pytest.mark.parametrize("source", ["text.txt", "stdlib", "-"])
def test_prepare_refuses_a_field_where_no_line_is_json(capsys, source):
    command = ["prepare", source, "--tokenizer", "bytes", "--out", "unused", "--field", "body"]
    assert f"'body' is of a line of JSON, and {source} holds no" in refused(capsys, *command)


REFERENCES = ["the cat sat on the mat .", "there is a dog in the big house ."]


def test_the_references_themselves_score_100():
    score, signature = bleu(REFERENCES, REFERENCES)
    assert score == pytest.approx(100)
    assert all(part in signature for part in ("nrefs:1", "tok:13a", "smooth:exp", "version:"))


def test_the_formula():
    # One word of seven wrong: precisions 6/7, 4/6, 2/5 and 0/4, which is smoothed to half a match
    # ("exp" in the signature); no brevity penalty.
    score, _ = bleu(["the cat sat upon the mat ."], REFERENCES[:1])
    expected = 100 * math.prod([6 / 7, 4 / 6, 2 / 5, 0.5 / 4]) ** 0.25
    assert score == pytest.approx(expected)


def test_a_short_hypothesis_pays_for_it():
    score, _ = bleu(["the cat sat on"], REFERENCES[:1])
    assert score == pytest.approx(100 * math.exp(1 - 7 / 4))


def test_as_many_hypotheses_as_references():
    for hypotheses in ([], ["one"]):
        with pytest.raises(ValueError, match="references"):
            bleu(hypotheses, REFERENCES)


def test_without_sacrebleu_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UserError, match=r"pip install 'unitsphere\[translate\]'"):
        bleu(REFERENCES, REFERENCES)
