"""Pairs stay together from their file to the batch, and every batch follows from (seed, step)."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unitsphere.data import DataConfig, Shards, prepare, prepared
from unitsphere.data.batch import IGNORED, Batch
from unitsphere.data.documents import PairFields, TextPair, read_text_pairs
from unitsphere.data.pairs import Pair, PairBatches, Pairs, pair_batch
from unitsphere.data.tokenizer import load_tokenizer
from unitsphere.errors import UserError

FIELDS = PairFields("source", "target")
# Lengths from 1 to 90 bytes, with line ends, quotes and letters of several bytes on both sides.
TEXTS = [TextPair(f"größe {i}\n" * (i % 9 + 1), f'"{i}" \t{"ß" * (i * 7 % 40)}') for i in range(60)]


def written(path: Path, pairs: list[TextPair]) -> Path:
    path.write_text("".join(json.dumps(pair._asdict()) + "\n\n" for pair in pairs))
    return path


@pytest.fixture(scope="session")
def jsonl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("source") / "pairs.jsonl", TEXTS)


@pytest.fixture(scope="session")
def folder(jsonl: Path) -> Path:
    """TEXTS prepared as bytes."""
    out = jsonl.parent / "bytes"
    return prepare(str(jsonl), "bytes", out, field=FIELDS, val_fraction=0.2, progress=False)


def texts(folder: Path, split: str = "train") -> list[TextPair]:
    shards = Shards.open(folder, split)
    decode = shards.tokenizer().decode
    return [TextPair(decode(p.source.tolist()), decode(p.target.tolist())) for p in Pairs(shards)]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:400"])
def test_each_pair_is_in_one_split_and_whole(jsonl: Path, tmp_path: Path, tokenizer: str) -> None:
    out = prepare(str(jsonl), tokenizer, tmp_path / "out", FIELDS, 0.2, progress=False)
    train, val = texts(out), texts(out, "val")
    assert (train[0], val[0]) == (TEXTS[0], TEXTS[1])
    assert 4 < len(val) < 20
    assert sorted(train + val) == sorted(TEXTS)
    assert [p for p in TEXTS if p in val] == val
    for split, expected in (("train", train), ("val", val)):
        shards = Shards.open(out, split)
        size = sum(len(pair.target.encode()) for pair in expected)
        assert (shards.pairs, shards.target_bytes) == (True, size)
        assert sum(pair.target_bytes for pair in Pairs(shards)) == pytest.approx(size)


def test_one_tokenizer_learns_from_both_sides(tmp_path: Path) -> None:
    pairs = [TextPair("abracadabra simsalabim", "hokuspokus fidibus")] * 20
    path = written(tmp_path / "magic.jsonl", pairs)
    out = prepare(str(path), "bpe:300", tmp_path / "out", FIELDS, progress=False)
    tokenizer = load_tokenizer(out)
    assert [len(tokenizer.encode(side)) for side in pairs[0]] == [2, 2]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"source": "a", "target": ""}', "field 'target' is blank"),
        ('{"source": " \\n", "target": "b"}', "field 'source' is blank"),
        ('{"source": "a"}', "no field 'target'"),
        ('{"source": "a", "targt": "b"}', r"no field 'target' \(did you mean 'targt'\?\)"),
        ('{"source": 5, "target": "b"}', "field 'source' is not text but a number"),
        ('{"source": "a", "target": null}', "field 'target' is not text but null"),
        ('["a", "b"]', r'not a JSON object such as \{"source": "...", "target": "..."\}'),
        ('{"source": "a", ', "not valid JSON"),
    ],
)
def test_a_broken_pair_is_one_line_with_its_number(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"source": "a", "target": "b"}\n\n' + line + "\n")
    with pytest.raises(UserError, match=f"line 3 of .*{said}") as caught:
        prepare(str(path), "bytes", tmp_path / "out", FIELDS, progress=False)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_other_fields_and_other_files(jsonl: Path, tmp_path: Path) -> None:
    path = tmp_path / "ende.jsonl"
    path.write_text('{"en": "one", "de": "eins"}\n')
    assert list(read_text_pairs([path], PairFields("de", "en"))) == [("eins", "one")]
    plain = tmp_path / "text.txt"
    plain.write_text("text")
    with pytest.raises(UserError, match=r"not a \.jsonl file: pairs come as lines such as"):
        list(read_text_pairs([plain], FIELDS))


def test_a_file_of_its_own_is_the_validation(jsonl: Path, tmp_path: Path) -> None:
    own = written(tmp_path / "valid.jsonl", [TextPair("x", "y"), TextPair("größe", "z")])
    config = DataConfig(
        source=str(jsonl), validation=str(own), tokenizer="bpe:400", cache=str(tmp_path / "cache")
    )
    out = prepared(config, progress=False, pairs=True)
    assert (texts(out), texts(out, "val")) == (TEXTS, [("x", "y"), ("größe", "z")])
    written(own, [TextPair("x", "other")])
    other = prepared(config, progress=False, pairs=True)
    assert other != out
    assert texts(other, "val") == [("x", "other")]


def test_text_takes_a_file_of_its_own_too(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text(f"{name} text\n" * 30)
    source, validation = (str(tmp_path / f"{name}.txt") for name in ("train", "valid"))
    out = prepare(source, "bytes", tmp_path / "out", progress=False, validation=validation)
    for split, word in (("train", "train"), ("val", "valid")):
        shards = Shards.open(out, split)
        assert shards.tokenizer().decode(shards[:].tolist()) == f"{word} text\n" * 30


def test_pairs_and_documents_are_not_confused(jsonl: Path, folder: Path, tmp_path: Path) -> None:
    config = DataConfig(source=str(folder), cache=str(tmp_path))
    assert prepared(config, pairs=True) == folder
    with pytest.raises(UserError, match=r"prepared as pairs.* needs documents"):
        prepared(config)
    path = tmp_path / "text.txt"
    path.write_text("some text\n" * 100)
    plain = prepare(str(path), "bytes", tmp_path / "plain", progress=False)
    with pytest.raises(UserError, match=r"prepared as documents.* needs pairs"):
        prepared(DataConfig(source=str(plain)), pairs=True)
    with pytest.raises(UserError, match="holds documents, not pairs"):
        Pairs(Shards.open(plain))
    with pytest.raises(UserError, match=r"leave data\.validation out"):
        prepared(DataConfig(source=str(folder), validation=str(path)), pairs=True)


def decoded(batch: Batch, separator: int = 0) -> list[TextPair]:
    """The pairs of a batch of bytes, everything about begin, end and padding checked."""
    assert batch.source is not None
    assert batch.source_mask is not None
    found = []
    for source, real, inputs, targets in zip(
        batch.source, batch.source_mask, batch.inputs, batch.targets, strict=True
    ):
        n, m = int(real.sum()), int((targets != IGNORED).sum())
        assert real.tolist() == [True] * n + [False] * (len(real) - n)
        assert source[n - 1 :].tolist() == [separator] * (len(source) - n + 1)
        assert inputs[0] == separator
        assert torch.equal(inputs[1:m], targets[: m - 1])
        assert inputs[m:].tolist() == [separator] * (len(inputs) - m)
        assert targets[m - 1] == separator
        assert (targets[m:] == IGNORED).all()
        sides = (bytes(source[: n - 1].tolist()), bytes(targets[: m - 1].tolist()))
        found.append(TextPair(*(side.decode() for side in sides)))
    return found


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(12, 100), st.integers(0, 2**32))
def test_each_pair_that_fits_is_there_once_an_epoch(
    folder: Path, rows: int, context: int, seed: int
) -> None:
    batches = PairBatches(Pairs(Shards.open(folder)), rows, context, seed)
    everything = texts(folder)
    fitting = [p for p in everything if max(len(side.encode()) for side in p) < context]
    assert batches.left_out == len(everything) - len(fitting)
    steps = len(fitting)  # So that whole epochs are whole batches: `rows` epochs.
    found = [batches.batch(step) for step in range(steps)]
    counted = Counter(pair for batch in found for pair in decoded(batch))
    assert counted == dict.fromkeys(fitting, rows)
    for batch in found:
        assert batch.source is not None
        assert max(batch.source.shape[1], batch.inputs.shape[1]) <= context


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(0, 60), st.data())
def test_rows_do_not_depend_on_who_asks(
    folder: Path, rows: int, step: int, data: st.DataObject
) -> None:
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows), max_size=4))})
    whole = PairBatches(Pairs(Shards.open(folder)), rows, 80, 3).batch(step)
    mine = PairBatches(Pairs(Shards.open(folder)), rows, 80, 3)
    parts = [mine.rows(step, a, b - a) for a, b in itertools.pairwise(cuts)]
    for name in ("inputs", "targets", "source", "source_mask"):
        together = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(together, getattr(whole, name)), name


def test_the_order_depends_on_seed_and_epoch_alone(folder: Path) -> None:
    pairs = Pairs(Shards.open(folder))

    def order(seed: int, epoch: int) -> list[TextPair]:
        batches, steps = PairBatches(pairs, 1, 100, seed), len(pairs)
        found = [decoded(batches.batch(step)) for step in range(steps * epoch, steps * (epoch + 1))]
        return list(itertools.chain(*found))

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_a_batch_is_as_wide_as_its_longest_pair(folder: Path) -> None:
    pairs = Pairs(Shards.open(folder))
    batch = pair_batch([pairs[0], pairs[5]], separator=0)
    assert batch.source is not None
    longest = [max(len(p[side]) for p in (pairs[0], pairs[5])) + 1 for side in (0, 1)]
    assert [batch.source.shape[1], batch.inputs.shape[1]] == longest
    assert decoded(batch) == [texts(folder)[0], texts(folder)[5]]


def test_a_side_that_is_too_long_is_cut() -> None:
    pair = Pair(np.arange(1, 6), np.arange(11, 16), 5)
    for width, source, inputs, targets in [
        (6, [1, 2, 3, 4, 5, 0], [0, 11, 12, 13, 14, 15], [11, 12, 13, 14, 15, 0]),
        (5, [1, 2, 3, 4, 0], [0, 11, 12, 13, 14], [11, 12, 13, 14, 15]),
        (3, [1, 2, 0], [0, 11, 12], [11, 12, 13]),
        (1, [0], [0], [11]),
    ]:
        batch = pair_batch([pair], 0, width, width)
        assert batch.source is not None
        assert batch.source_mask is not None
        assert batch.source.tolist() == [source]
        assert batch.source_mask.all()
        assert (batch.inputs.tolist(), batch.targets.tolist()) == ([inputs], [targets])


def test_counts_of_what_is_too_long(folder: Path) -> None:
    pairs = Pairs(Shards.open(folder))
    sizes = [max(len(side.encode()) for side in pair) for pair in texts(folder)]
    assert pairs.longer_than(max(sizes) + 1) == 0
    assert pairs.longer_than(max(sizes)) == sizes.count(max(sizes))
    with pytest.raises(UserError, match=re.escape("none of the") + ".* fits data.context 2"):
        PairBatches(pairs, 4, 2, 0)
    with pytest.raises(UserError, match="at least 0"):
        PairBatches(pairs, 4, 20, -1)
