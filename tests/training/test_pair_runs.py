"""Runs on pairs: what is scored, what is left out or cut, and that it is said."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from run_folders import KilledError, die, figures, weights

from unitsphere.data.batch import IGNORED
from unitsphere.data.config import DataConfig
from unitsphere.data.documents import TextPair
from unitsphere.data.pairs import Pair, Pairs
from unitsphere.data.prepare import prepared
from unitsphere.data.shards import Shards
from unitsphere.data.tokenizer import ByteTokenizer
from unitsphere.errors import UserError
from unitsphere.inference.samples import write_sample
from unitsphere.models.registry import build
from unitsphere.training.config import RunConfig
from unitsphere.training.corpus import open_corpus
from unitsphere.training.evaluate.pairs import evaluate_pair_split, evaluate_pairs, text_pairs
from unitsphere.training.log import read_metrics
from unitsphere.training.resolve import resolve
from unitsphere.training.run import train

TEXTS = [TextPair(f"größe {i}", "ab" * (i % 11 + 1)) for i in range(40)]


class Uniform(torch.nn.Module):
    """Every byte is as likely as any other."""

    device = torch.device("cpu")
    objective = "seq2seq"
    config = SimpleNamespace(vocab_size=256)

    def loss(self, tokens, targets, reduction, source, source_mask):
        return (targets != IGNORED).sum() * math.log(256)


@pytest.fixture(scope="session")
def pairs_of(tiny: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory):
    """`pairs_of("ngpt", context=32, steps=8)`: a config that trains on TEXTS."""
    folder = tmp_path_factory.mktemp("pairs")
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair._asdict()) + "\n" for pair in TEXTS))

    def make(architecture: str = "ngpt", context: int = 32, **settings) -> RunConfig:
        config = tiny(architecture, "seq2seq", **({"batch_tokens": context * 4} | settings))
        data = DataConfig(
            source=str(path),
            tokenizer="bytes",
            context=context,
            val_fraction=0.2,
            cache=str(folder / "cache"),
        )
        return dataclasses.replace(config, data=data)

    return make


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_a_target_is_scored_with_its_end(rows):
    found = evaluate_pairs(Uniform(), text_pairs(TEXTS, ByteTokenizer()), 0, 64, rows)
    size = sum(len(target) for _, target in TEXTS)
    assert (found.pairs, found.bytes, found.tokens) == (40, size, size + 40)
    assert (found.cut_sources, found.cut_targets) == (0, 0)
    assert found.loss == pytest.approx(math.log(256))
    assert found.perplexity == pytest.approx(256)
    assert found.bits_per_byte == pytest.approx(8 * (size + 40) / size)


def test_what_is_too_long_is_cut_and_counted():
    pairs = [
        Pair(np.arange(1, 11), np.arange(1, 21), 20.0),
        Pair(np.arange(1, 5), np.arange(1, 3), 2.0),
        Pair(np.arange(1, 9), np.arange(1, 9), 8.0),
    ]
    found = evaluate_pairs(Uniform(), pairs, 0, 8, 2)
    assert (found.pairs, found.cut_sources, found.cut_targets) == (3, 2, 2)
    assert (found.tokens, found.bytes) == (8 + 3 + 8, 8 + 2 + 8)


def test_no_pairs_is_one_line():
    with pytest.raises(UserError, match="no pairs to evaluate"):
        evaluate_pairs(Uniform(), [], 0, 8, 2)


def test_rows_and_padding_do_not_change_what_is_scored():
    model = build(
        "angpt", objective="seq2seq", vocab_size=256, d_model=32, n_layers=2, n_heads=2
    ).double()
    one, many = (
        evaluate_pairs(model, text_pairs(TEXTS, ByteTokenizer()), 0, 64, rows) for rows in (1, 16)
    )
    assert many.loss == pytest.approx(one.loss, rel=1e-9)
    assert (many.tokens, many.bytes) == (one.tokens, one.bytes)


def test_a_split_is_scored_as_its_texts_are(pairs_of):
    config = pairs_of()
    shards = Shards.open(prepared(config.data, progress=False, pairs=True), "val")
    pairs, decode = Pairs(shards), shards.tokenizer().decode
    texts = [TextPair(decode(p.source.tolist()), decode(p.target.tolist())) for p in pairs]
    assert set(texts) < set(TEXTS)
    model = build("gpt", objective="seq2seq", vocab_size=256, d_model=32, n_layers=2, n_heads=2)
    whole = evaluate_pair_split(model, pairs, 32, 4)
    expected = evaluate_pairs(model, text_pairs(texts, ByteTokenizer()), 0, 32, 4)
    assert (whole.tokens, whole.bytes, whole.pairs) == (
        expected.tokens,
        expected.bytes,
        len(texts),
    )
    assert whole.loss == pytest.approx(expected.loss, rel=1e-6)
    part = evaluate_pair_split(model, pairs, 32, 4, max_tokens=pairs.n_target_tokens // 2)
    assert part.pairs == len(texts) // 2
    assert evaluate_pair_split(model, pairs, 32, 4, max_tokens=1).pairs == 1


def test_training_learns_and_validates(pairs_of, tmp_path):
    train(pairs_of("gpt", steps=30, eval_every=0, save_every=0), tmp_path / "run")
    records = read_metrics(tmp_path / "run")
    first, last = records[0], records[-1]
    assert last["val_loss"] < first["loss"] - 1.5
    assert last["val_bits_per_byte"] > last["val_loss"] / math.log(2)  # ends cost bits, not bytes


def test_label_smoothing_is_learnt_from_and_not_validated_with(pairs_of, tmp_path):
    config = pairs_of(steps=1, label_smoothing=0.5, log_every=1)
    plain = pairs_of(steps=1, log_every=1)
    train(config, tmp_path / "smoothed")
    train(plain, tmp_path / "plain")
    (smoothed,), (usual,) = read_metrics(tmp_path / "smoothed"), read_metrics(tmp_path / "plain")
    assert smoothed["loss"] != usual["loss"]

    model = build("gpt", objective="seq2seq", vocab_size=256, d_model=32, n_layers=1, n_heads=2)
    corpus = open_corpus(resolve(config, None))
    folder = prepared(config.data, progress=False, pairs=True)
    pairs = Pairs(Shards.open(folder, "val"))
    found = corpus.validate(model, precision="fp32")
    assert found.loss == pytest.approx(evaluate_pairs(model, pairs, 0, 32, 4).loss, rel=1e-6)


def test_pairs_that_do_not_fit_are_left_out_and_that_is_said_once(pairs_of, tmp_path, capsys):
    train(pairs_of(context=16, steps=3, eval_every=1), tmp_path / "run")
    said = [line for line in capsys.readouterr().err.splitlines() if "longer than" in line]
    assert len(said) == 1
    long = sum(len(target) + 1 > 16 for _, target in TEXTS)
    assert "longer than data.context 16: " in said[0]
    numbers = [int(word) for word in said[0].replace(",", "").split() if word.isdecimal()]
    assert numbers[0] + numbers[2] == long
    assert numbers[1] + numbers[3] == len(TEXTS)


def test_nothing_is_said_where_all_pairs_fit(pairs_of, capsys):
    open_corpus(resolve(pairs_of(context=64), None))
    assert "longer" not in capsys.readouterr().err


def test_data_that_cannot_be_used_are_one_line(pairs_of, tmp_path: Path):
    config = pairs_of()
    one = tmp_path / "one.jsonl"
    one.write_text('{"source": "a", "target": "b"}\n')
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "a"}\n')
    for changes, said in [
        ({"source": str(one)}, "has no pairs for validation"),
        ({"source": str(text)}, "line 1 of .* has no field 'source'"),
        ({"context": 2}, r"none of the \d+ pairs for training fits data\.context 2"),
    ]:
        data = dataclasses.replace(config.data, **changes)
        with pytest.raises(UserError, match=said):
            open_corpus(resolve(dataclasses.replace(config, data=data), None))


@pytest.mark.parametrize("architecture", ["gpt", "ngpt", "angpt"])
def test_resuming_is_bitwise_the_uninterrupted_run(architecture, pairs_of, tmp_path):
    config = pairs_of(architecture, sample_every=5, label_smoothing=0.1)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(config, whole, sampler=write_sample)
    with pytest.raises(KilledError):  # at step 5, the checkpoint is that of step 3
        train(config, broken, sampler=die)
    train(config, broken, sampler=write_sample)

    assert figures(broken) == figures(whole)
    assert (broken / "samples.txt").read_text() == (whole / "samples.txt").read_text()
    expected, found = weights(whole), weights(broken)
    assert expected.keys() == found.keys()
    assert any("encoder." in name for name in expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_other_pairs_are_refused_at_a_resume(pairs_of, tmp_path):
    config = pairs_of(sample_every=5)
    with pytest.raises(KilledError):
        train(config, tmp_path / "run", sampler=die)
    path = tmp_path / "other.jsonl"
    pairs = [json.loads(line) for line in Path(config.data.source).read_text().splitlines()]
    pairs[0]["target"] += "!"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    data = dataclasses.replace(config.data, source=str(path))
    with pytest.raises(UserError, match=r"data\.source: "):
        train(dataclasses.replace(config, data=data), tmp_path / "run")


def test_samples_show_source_hypothesis_and_reference(pairs_of, tmp_path):
    train(pairs_of(steps=1), tmp_path / "run", sampler=write_sample)
    lines = (tmp_path / "run" / "samples.txt").read_text().splitlines()
    shown = [line.partition(": ") for line in lines if ": " in line]
    assert [name for name, _, _ in shown] == ["source", "hypothesis", "reference"] * 3
    sides = [text.strip() for _, _, text in shown]
    assert {TextPair(*pair) for pair in zip(sides[::3], sides[2::3], strict=True)} < set(TEXTS)
