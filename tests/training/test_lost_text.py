"""Tokenizers that lose text: their bits per byte are void, in everything that shows some."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_recipe import tiny_recipe
from tokenizers import Tokenizer, models, pre_tokenizers
from typed import printed, refused

from unitsphere.cli import main
from unitsphere.cli.scores import pair_source
from unitsphere.data.config import DataConfig
from unitsphere.data.documents import PairFields
from unitsphere.data.prepare import prepare, source_text_lost
from unitsphere.data.shards import read_manifest
from unitsphere.data.tokenizer import ByteTokenizer, load_tokenizer, text_lost

TEXT = "The cat sat on the mat, and that was that.\n" * 60


def lossy() -> Tokenizer:
    """Knows two words; all else is [UNK]."""
    found = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2, "</s>": 3}, "[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore
    found.add_special_tokens(["</s>"])
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """`lossy`, a run whose tokenizer loses text, and `bytes`, one whose does not."""
    folder = tmp_path_factory.mktemp("lost")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("text.txt").write_text(TEXT)
        lossy().save("lossy.json")
        for name, tokenizer in (("lossy", "lossy.json"), ("bytes", "bytes")):
            Path(f"{name}.toml").write_text(tiny_recipe("gpt", data={"tokenizer": tokenizer}))
            assert main(["train", f"{name}.toml", "--out", name]) == 0
    return folder


@pytest.fixture(autouse=True)
def _here(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    capsys.readouterr()


def test_how_much_is_lost():
    assert text_lost(load_tokenizer("lossy.json"), [TEXT]) == 1
    assert text_lost(load_tokenizer("lossy.json"), ["the", "cat", "sat", "mat"]) == 0.5
    assert text_lost(ByteTokenizer(), [TEXT, "Ünïcode 語 🙂"]) == 0
    assert text_lost(load_tokenizer("lossy.json"), []) == 0


def test_prepared_data_say_so(capsys):
    assert main(["prepare", "text.txt", "--tokenizer", "lossy.json", "--out", "shards"]) == 0
    assert "the tokenizer loses text: 100% of a sample" in capsys.readouterr().err
    assert read_manifest(Path("shards")).text_lost == 1
    assert main(["prepare", "text.txt", "--tokenizer", "bpe:300", "--out", "kept"]) == 0
    assert "loses text" not in capsys.readouterr().err
    assert read_manifest(Path("kept")).text_lost == 0


def test_texts_that_come_late_are_examined_too(capsys):
    lines = ["the cat"] * 100 + ["another language"] * 300
    Path("late.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    assert main(["prepare", "late.jsonl", "--tokenizer", "lossy.json", "--out", "late"]) == 0
    assert read_manifest(Path("late")).text_lost > 0.5
    capsys.readouterr()
    for more in ((), ("--by-position", "--context", "2")):
        found = printed(capsys, "eval", "lossy", "--data", "late.jsonl", *more)
        assert found["text_lost"] > 0.5
        assert found["bits_per_byte"] is None


def test_pairs_are_lost_alike_as_lines_and_prepared():
    """What is lost of their sources counts in both: the model is not given it."""
    pairs = [{"source": "another language", "target": "the cat"}] * 40
    Path("pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    fields = PairFields("source", "target")
    prepare("pairs.jsonl", "lossy.json", "pairs", fields, val_fraction=1.0, progress=False)
    config = SimpleNamespace(data=DataConfig())
    run: Any = SimpleNamespace(tokenizer=load_tokenizer("lossy.json"), config=config)
    for data in ("pairs.jsonl", "pairs"):
        with pair_source(run, data, fields) as source:
            assert source.lost == pytest.approx(0.5, abs=0.1)


def test_a_validation_file_that_is_lost_has_no_bits_per_byte(capsys):
    """Its bytes are those that are counted, however well the tokenizer knows the source."""
    Path("known.txt").write_text("the cat " * 400)
    Path("unknown.txt").write_text("another language " * 50)
    data = {"tokenizer": "lossy.json", "source": "known.txt", "validation": "unknown.txt"}
    config = DataConfig(**data, cache="cache")
    assert source_text_lost(config) == 1
    Path("apart.toml").write_text(tiny_recipe("gpt", data=data))
    assert main(["train", "apart.toml", "--out", "apart"]) == 0
    capsys.readouterr()
    assert printed(capsys, "eval", "apart")["bits_per_byte"] is None


@pytest.mark.parametrize("more", [(), ("--data", "text.txt"), ("--by-position", "--context", "4")])
def test_eval_has_no_bits_per_byte(capsys, more):
    found = printed(capsys, "eval", "lossy", *more)
    assert found["bits_per_byte"] is None
    assert found["text_lost"] == 1
    assert found["loss"] > 0
    assert main(["eval", "lossy", *more]) == 0
    out = capsys.readouterr().out
    assert "void" in out
    assert "the tokenizer loses text" in out
    assert "text_lost" not in printed(capsys, "eval", "bytes", *more)


def test_training_records_none(capsys):
    records = [json.loads(line) for line in Path("lossy/metrics.jsonl").read_text().splitlines()]
    validated = [record for record in records if "val_loss" in record]
    assert validated
    assert all("val_bits_per_byte" not in one and one["val_text_lost"] == 1 for one in validated)
    assert main(["train", "lossy.toml", "--out", "lossy"]) == 0
    assert "loses text" in capsys.readouterr().err


def test_a_report_says_so_and_compares_nothing(capsys):
    page = printed(capsys, "report", "lossy", "--out", "one.html")
    assert any("loses text" in line for line in page["caveats"])
    both = printed(capsys, "report", "lossy", "bytes", "--out", "both.html")
    assert "cannot be compared" in both["answer"]


def test_compare_refuses_it_beside_another_tokenizer(capsys):
    Path("study.toml").write_text(
        'budgets = [128]\nseeds = [0]\nallow = ["tokenizer", "un-annealed", "tied-rates"]\n'
        '[arms.one]\nrecipe = "lossy.toml"\nlr = 1e-3\n'
        '[arms.two]\nrecipe = "bytes.toml"\nlr = 1e-3\n'
    )
    message = refused(capsys, "compare", "study.toml", "--out", "study")
    assert "one: its tokenizer loses text" in message
