"""Shards give back the stream that was written, and refuse what was changed since."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from unitsphere.data import Shards, load_tokenizer, prepare
from unitsphere.data.shards import manifest_text, read_manifest
from unitsphere.data.writer import SplitWriter
from unitsphere.errors import UserError


@pytest.fixture
def copy(ready: Path, tmp_path: Path) -> Path:
    return shutil.copytree(ready, tmp_path / "copy")


def test_the_stream_is_the_documents(corpus: list[str], ready: Path) -> None:
    found = []
    for split in ("train", "val"):
        shards = Shards.open(ready, split)
        stream = shards[:].astype(np.uint8).tobytes()
        assert len(stream) == len(shards) == shards.n_tokens
        ends = [*shards.document_starts[1:], shards.n_tokens]
        texts = []
        for start, end in zip(shards.document_starts, ends, strict=True):
            assert stream[start] == shards.separator
            texts.append(stream[start + 1 : end].decode())
        assert sum(len(text.encode()) for text in texts) == shards.n_bytes
        assert len(texts) == shards.n_documents >= 1
        assert texts == [text for text in corpus if text in texts]  # In order.
        found += texts
        shards.verify()
    assert sorted(found) == sorted(corpus)


@settings(max_examples=40, deadline=None)
@example(documents=[[], [], []], limit=3, window=(-1, 1))  # it ends before it begins
@given(
    documents=st.lists(st.lists(st.integers(1, 70_000), max_size=12), min_size=1, max_size=6),
    limit=st.integers(1, 20),
    window=st.tuples(st.integers(-5, 60), st.integers(-5, 60)),
)
def test_any_slice_across_any_shards(
    ready: Path,
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[int]],
    limit: int,
    window: tuple[int, int],
) -> None:
    folder = tmp_path_factory.mktemp("written")
    writer = SplitWriter(folder, "train", "uint32", 0, shard_tokens=limit)
    for document in documents:
        writer.begin_document()
        writer.write(np.array(document, np.int64), 0)
    counts, files = writer.close()
    manifest = dataclasses.replace(
        read_manifest(ready), dtype="uint32", train=counts, files=tuple(files)
    )
    (folder / "manifest.json").write_text(manifest_text(manifest))
    shards = Shards.open(folder)
    stream = [token for document in documents for token in (0, *document)]
    assert shards[:].tolist() == stream
    assert shards[window[0] : window[1]].tolist() == stream[window[0] : window[1]]
    assert len(files) == -(-len(stream) // limit) + 1
    shards.verify()


def test_a_truncated_shard_is_named(copy: Path) -> None:
    path = copy / "train-00000.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UserError, match=r"train-00000.bin is truncated"):
        Shards.open(copy)
    Shards.open(copy, "val").verify()


def test_a_missing_shard_is_named(copy: Path) -> None:
    (copy / "val-documents.bin").unlink()
    with pytest.raises(UserError, match=r"val-documents.bin is missing"):
        Shards.open(copy, "val")


@pytest.mark.parametrize("name", ["train-00000.bin", "train-documents.bin", "tokenizer.json"])
def test_a_tampered_file_is_named(copy: Path, name: str) -> None:
    data = bytearray((copy / name).read_bytes())
    data[5] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(UserError, match=f"{name} was changed"):
        Shards.open(copy).verify()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("version", 99, "format version 99, this unitsphere reads 1"),
        ("version", None, "format version None"),
        ("files", None, "lists no files"),
        ("dtype", "object", "must be one of"),
        ("dtype", "uint32", "contradicts itself|whole number"),
        ("train", {"tokens": 5, "bytes": 3, "documents": 1}, "contradicts itself"),
        ("surprise", 1, "unknown key"),
    ],
)
def test_a_manifest_that_cannot_be_trusted(copy: Path, key: str, value: object, said: str) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {key: value}))
    with pytest.raises(UserError, match=said):
        Shards.open(copy)


@pytest.mark.parametrize("name", ["../secret.bin", "/etc/passwd", "..", "", "a/b.bin"])
def test_names_stay_in_the_folder(copy: Path, name: str) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"][1]["name"] = name
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="outside its folder"):
        Shards.open(copy)


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no prepared data"):
        Shards.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        Shards.open(tmp_path)


def test_another_tokenizer_does_not_match(ready: Path, tmp_path: Path) -> None:
    shards = Shards.open(ready)
    shards.check_tokenizer(load_tokenizer("bytes"))
    assert shards.tokenizer().fingerprint == shards.tokenizer_fingerprint
    other = prepare(__file__, "bpe:300", tmp_path / "bpe", progress=False)
    with pytest.raises(UserError, match="made with another tokenizer"):
        shards.check_tokenizer(load_tokenizer(other))


def test_fingerprint_follows_the_tokens(ready: Path, copy: Path, tmp_path: Path) -> None:
    assert Shards.open(ready).fingerprint == Shards.open(copy).fingerprint
    other = prepare(__file__, "bytes", tmp_path / "other", progress=False)
    assert Shards.open(other).fingerprint != Shards.open(ready).fingerprint
    assert Shards.open(ready, "val").fingerprint != Shards.open(ready).fingerprint


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def rewritten(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("harm", [replaced, cut_short, rewritten, Path.unlink])
def test_a_shard_that_changes_under_a_reader_is_named(copy: Path, harm) -> None:
    shards, val = Shards.open(copy), Shards.open(copy, "val")
    before = shards[3:9].tolist()
    assert shards[3:9].tolist() == before
    harm(copy / "train-00000.bin")
    with pytest.raises(UserError, match=r"train-00000.bin (was changed while|is missing)"):
        shards[3:9]
    assert len(val[3:9]) == 6


def test_a_larger_corpus_than_a_process_may_hold_open(ready: Path, tmp_path: Path) -> None:
    shutil.copytree(ready, tmp_path, dirs_exist_ok=True)
    for file in tmp_path.glob("train-*.bin"):
        file.unlink()
    writer = SplitWriter(tmp_path, "train", "uint16", separator=0, shard_tokens=2)
    writer.begin_document()
    writer.write(np.arange(1, 600), 0)
    counts, files = writer.close()
    manifest = dataclasses.replace(read_manifest(ready), train=counts, files=tuple(files))
    (tmp_path / "manifest.json").write_text(manifest_text(manifest))
    held = len(os.listdir("/proc/self/fd"))
    shards = Shards.open(tmp_path)
    assert shards[:].tolist() == [*range(600)]
    assert len(os.listdir("/proc/self/fd")) == held


def test_a_read_that_the_system_cuts_goes_on(ready: Path, monkeypatch) -> None:
    # Linux reads at most 2 GiB at once; a file of that size would take long to write.
    shards, whole = Shards.open(ready), Shards.open(ready)[:]
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, count, at: pread(file, min(count, 10), at))
    assert shards[:].tolist() == whole.tolist()
    assert Shards.open(ready)[3:50].tolist() == whole[3:50].tolist()


def test_a_file_that_is_cut_while_it_is_read_is_named(copy: Path, monkeypatch) -> None:
    shards = Shards.open(copy)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, count, at: pread(file, min(count, 10 - at), at))
    with pytest.raises(UserError, match="was cut short while it was in use"):
        shards[:]


def test_an_older_manifest_has_no_ends(copy: Path) -> None:
    manifest = read_manifest(copy)
    assert all(len(entry.ends) == 64 for entry in manifest.files)
    files = tuple(dataclasses.replace(entry, ends="") for entry in manifest.files)
    (copy / "manifest.json").write_text(manifest_text(dataclasses.replace(manifest, files=files)))
    assert Shards.open(copy)[:].tolist() == Shards.open(copy)[:].tolist()
