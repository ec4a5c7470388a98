"""Any source becomes its documents' exact text, or one clear line says why not."""

import gzip
import itertools
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unitsphere.data import documents as reading
from unitsphere.data.documents import read_documents
from unitsphere.data.sources import content_fingerprint, find_files
from unitsphere.errors import UserError


def documents(files: list[Path], field: str = "text") -> list[str]:
    texts: dict[int, str] = {}
    for number, text in read_documents(files, field):
        texts[number] = texts.get(number, "") + text
    assert list(texts) == list(range(len(texts)))
    return list(texts.values())


def refusal(path: Path, field: str = "text") -> str:
    with pytest.raises(UserError) as error:
        list(read_documents([path], field))
    message = str(error.value)
    assert "\n" not in message
    return message


def test_files_are_documents_and_empty_ones_none(tmp_path: Path) -> None:
    for name, text in {"b.txt": "two\r\n", "a.txt": "öne", "c.txt": "", "d.jsonl": ""}.items():
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "d.jsonl").write_text('{"text": "3"}\n\n   \n{"text": ""}\n{"text": "fo\\nur"}')
    assert documents(find_files(str(tmp_path))) == ["öne", "two\r\n", "3", "fo\nur"]
    assert documents(find_files(str(tmp_path / "*.txt"))) == ["öne", "two\r\n"]


def test_standard_library_is_sorted_text_without_tests() -> None:
    files = find_files("stdlib")
    assert files == find_files("stdlib")
    names = [path.as_posix() for path in files]
    assert names == sorted(names)
    assert len(files) > 500
    assert sum(path.stat().st_size for path in files) > 8e6
    assert not [n for n in names if re.search(r"/(tests?|idle_test|site-packages|config-.*)/", n)]
    *_, last = read_documents(files)  # Each one is UTF-8.
    assert last.document > 500


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="ab \nß😀", max_size=40), max_size=8))
def test_pieces_are_the_text(chunks: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "PIECE", 7)
        pieces = list(reading._pieces(chunks))
    assert "".join(pieces) == "".join(chunks)
    assert all(0 < len(piece) <= 7 for piece in pieces)


def test_a_long_document_is_cut_where_a_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("".join(f"line {i}\n\n  indented\nplain\n" for i in range(30_000)))
    pieces = [text for _, text in read_documents([path])]
    assert len(pieces) > 5
    assert "".join(pieces) == path.read_text()
    for piece, following in itertools.pairwise(pieces):
        assert reading.PIECE // 2 < len(piece) <= reading.PIECE
        assert re.search(r"\S\n$", piece)
        assert re.match(r"\S", following)


def test_characters_across_chunks_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK", 5)
    path = tmp_path / "wide.txt"
    path.write_text("aß€😀" * 20, encoding="utf-8")
    assert documents([path]) == ["aß€😀" * 20]


def test_every_byte_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("häh\n" * 1000, encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"text": "x"}\n\n')
    files, seen = find_files(str(tmp_path)), []
    list(read_documents(files, on_bytes=seen.append))
    assert sum(seen) == sum(path.stat().st_size for path in files)


def test_fingerprint_follows_contents_not_names(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.txt", "b.txt", "c.jsonl")]
    for path in files:
        path.write_text("same")
    a, b, c = files
    assert content_fingerprint([a]) == content_fingerprint([b])
    assert content_fingerprint([a]) != content_fingerprint([c])
    assert content_fingerprint([a, b]) != content_fingerprint([a])
    b.write_text("other")
    assert content_fingerprint([a, b]) != content_fingerprint([b, a])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("no.txt", "no such file"),
        ("*.none", "no file matches"),
        (".", "holds no files"),
        ("", "is empty: give a file"),
    ],
)
def test_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        find_files(source)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a regular file"):
        find_files(str(tmp_path / "pipe"))


@pytest.mark.parametrize("name", ["bad.txt", "bad.jsonl"])
@pytest.mark.parametrize("head", [b"", b'{"text": "ok \xc3\xa9"}\n'])
def test_invalid_utf8_is_located(tmp_path: Path, name: str, head: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(head + b'{"text": "\xff"}\n')
    assert f"not valid UTF-8 at byte {len(head) + 10}" in refusal(path)
    assert str(path) in refusal(path)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    mark = b"\xef\xbb\xbf"
    contents = {"a.txt": "öne".encode(), "b.jsonl": b'{"text": "two"}', "c.txt": b"ab\xff"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(mark + content)
    assert documents([tmp_path / "a.txt", tmp_path / "b.jsonl"]) == ["öne", "two"]
    assert "not valid UTF-8 at byte 5" in refusal(tmp_path / "c.txt")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_named(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone".encode(encoding))
    assert refusal(tmp_path / "a.txt").endswith("a.txt is UTF-16: convert it to UTF-8 first")


def test_invalid_utf8_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK", 4)
    path = tmp_path / "bad.txt"
    path.write_bytes(b"abc\xe2\x82x")
    assert "not valid UTF-8 at byte 3" in refusal(path)
    path.write_bytes(b"abcdef\xe2\x82")
    assert "not valid UTF-8 at byte 6" in refusal(path)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.zst", "a.jsonl"])
def test_a_compressed_file_is_named(tmp_path: Path, name: str) -> None:
    content = b"\x28\xb5\x2f\xfd..." if name.endswith("zst") else gzip.compress(b"one")
    (tmp_path / name).write_bytes(content)
    assert refusal(tmp_path / name).endswith(f"{name} is compressed: unpack it first")


@pytest.mark.parametrize("name", ["image.png", "bad.jsonl"])
def test_binary_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"PNG\0\0")
    assert "binary file (NUL at byte 3)" in refusal(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": "a"', "line 2 of .* not valid JSON: .*column"),
        ("[" * 100_000, "line 2 of .* not valid JSON"),
        ('["text"]', "line 2 of .* not a JSON object"),
        ('{"txt": "a", "id": 1}', r"line 2 of .* no field 'text' \(did you mean 'txt'\?\).* id$"),
        ('{"id": 1, "body": "b"}', r"line 2 of .* no field 'text' \(known: id, body\)"),
        ('{"text": 5}', "field 'text' is not text but a number"),
        (json.dumps({"text": "a\0b"}), "holds a NUL character"),
        (json.dumps({"text": "\ud800"}), "half a surrogate pair"),
    ],
)
def test_wrong_lines(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text('{"text": "good"}\n' + line + "\n")
    assert re.search(said, refusal(path))


def test_a_giant_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LINE_LIMIT", 1 << 20)
    path = tmp_path / "giant.jsonl"
    path.write_text(json.dumps({"text": "a" * (1 << 20)}))
    assert "line 1" in refusal(path)
    assert "longer than 1 MiB" in refusal(path)


def test_another_field(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text('{"body": "b"}\n')
    assert documents([path], "body") == ["b"]
