"""Data that somebody else made, or a disk damaged: one line says what is wrong, nothing runs."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torture.damage import DEEP, VALUES, damaged, json_files

from unitsphere.data.documents import read_documents
from unitsphere.data.prepare import prepare
from unitsphere.data.shards import Shards, read_manifest
from unitsphere.data.tokenizer import load_tokenizer

TORTURE = settings.get_profile("torture")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A prepared folder."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "text.txt").write_text("".join(f"{n} and {n * n}\n" for n in range(300)))
    return prepare(str(folder / "text.txt"), "bpe:270", folder / "shards", progress=False)


def outside(folder: Path) -> set[Path]:
    """Everything beside a folder."""
    return {p for p in folder.parent.rglob("*") if not p.is_relative_to(folder)}


def test_fuzz_manifests(made, tmp_path, cases):
    folder = tmp_path / "shards"
    shutil.copytree(made, folder)
    valid = json.loads((made / "manifest.json").read_text())

    @settings(TORTURE)
    @given(json_files(valid))
    def check(content: bytes) -> None:
        (folder / "manifest.json").write_bytes(content)
        before = outside(folder)
        with cases:
            for split in ("train", "val"):
                shards = Shards.open(folder, split)
                assert len(shards[0:20]) <= 20
                assert len(shards.document_starts) == shards.n_documents
                for entry in read_manifest(folder).files:
                    assert (folder / entry.name).parent == folder
        assert outside(folder) == before

    check()
    cases.done()


@pytest.mark.parametrize("name", ["train-00000.bin", "train-documents.bin", "tokenizer.json"])
def test_fuzz_shards(name, made, tmp_path, cases):
    folder = tmp_path / "shards"
    shutil.copytree(made, folder)
    valid = (made / name).read_bytes()

    @settings(TORTURE)
    @given(damaged(valid))
    def check(content: bytes) -> None:
        (folder / name).write_bytes(content)
        with cases:
            shards = Shards.open(folder)
            shards.verify()
            assert content == valid

    check()
    cases.done()


LINES = [{"text": "one"}, {"text": "zwei größer", "id": 2}, {"id": 3, "text": "three\n" * 20}]


def test_fuzz_jsonl(tmp_path, cases):
    path = tmp_path / "x.jsonl"
    valid = "".join(json.dumps(line) + "\n" for line in LINES).encode()
    line = st.one_of(VALUES.map(lambda v: json.dumps({"text": v}).encode()), DEEP)

    @settings(TORTURE)
    @given(st.one_of(damaged(valid), st.lists(line, max_size=3).map(b"\n".join)))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        with cases:
            for piece in read_documents([path], "text"):
                piece.text.encode("utf-8")

    check()
    cases.done()


def test_fuzz_tokenizers(made, tmp_path, cases):
    path = tmp_path / "tokenizer.json"
    valid = json.loads((made / "tokenizer.json").read_text())
    valid["model"]["vocab"] = dict(list(valid["model"]["vocab"].items())[:300])
    valid["model"]["merges"] = valid["model"]["merges"][:3]

    @settings(TORTURE)
    @given(json_files(valid))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        with cases:
            tokenizer = load_tokenizer(path)
            tokenizer.decode(tokenizer.encode("3 and 9, größer"))

    check()
    cases.done()
