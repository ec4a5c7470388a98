"""Whatever lies in a source: `prepare` ends with a result or with one line, and leaves no text out
in silence.
"""

import contextlib
import io
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from unitsphere.cli import main
from unitsphere.data import DataConfig, Shards, encode, prepare
from unitsphere.data.config import MOST_AHEAD
from unitsphere.data.prepare import check_scored
from unitsphere.data.sources import find_files
from unitsphere.data.tokenizer import LARGEST_BPE, bpe_size, vocab_size_of
from unitsphere.errors import UserError


def line_of(source: object, out: Path, **settings: object) -> str:
    """The one line with which `prepare` refuses a source; nothing is left of the output."""
    with pytest.raises(UserError) as error:
        prepare(str(source), "bytes", out, progress=False, **settings)  # type: ignore
    assert "\n" not in str(error.value)
    assert not out.exists()
    return str(error.value)


def texts(out: Path) -> str:
    splits = (Shards.open(out, split) for split in ("train", "val"))
    return "".join(shards.tokenizer().decode(shards[:].tolist()) for shards in splits)


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that every user may read, with a file in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "a.txt").write_text("one")
        (folder / "b.txt").write_text("two")
        yield folder


@pytest.fixture
def plain_user() -> Iterator[None]:
    """Without root's right to read what nobody may."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
@pytest.mark.parametrize("pattern", ["", "/*/*.txt", "/**/*.txt"])
def test_a_folder_that_may_not_be_read_is_named(
    common: Path, mode: int, pattern: str, plain_user: None
) -> None:
    os.seteuid(os.getuid())
    (common / "secret").mkdir()
    (common / "secret" / "c.txt").write_text("three")
    (common / "secret").chmod(mode)
    if os.getuid() == 0:
        os.seteuid(65534)
    with pytest.raises(UserError, match=r"cannot read .*secret.*: Permission denied") as error:
        find_files(f"{common}{pattern}")
    assert "\n" not in str(error.value)
    os.seteuid(os.getuid())
    (common / "secret").chmod(0o755)
    assert len(find_files(f"{common}{pattern}")) == (1 if pattern == "/*/*.txt" else 3)


def test_a_file_that_may_not_be_read_is_named(common: Path, plain_user: None) -> None:
    os.seteuid(os.getuid())
    (common / "b.txt").chmod(0)
    if os.getuid() == 0:
        os.seteuid(65534)
    with pytest.raises(UserError, match=r"cannot read .*b.txt: Permission denied"):
        find_files(str(common))
    assert find_files(f"{common}/a*") == [common / "a.txt"]


@pytest.mark.parametrize("name", ["a.json", "A.JSON", "a.csv", "a.tsv", "a.parquet"])
def test_tables_and_json_are_refused_by_name(name: str, tmp_path: Path) -> None:
    """Alone, in a folder of texts, in a glob, and as validation; a glob of the texts is fine."""
    books, out = tmp_path / "books", tmp_path / "out"
    books.mkdir()
    (books / "b.txt").write_text("some text")
    (books / name).write_text('["a", "b"]')
    alone = line_of(books / name, out)
    assert "not text: write its texts to a .jsonl file, a JSON object a line" in alone
    assert "to leave it out" not in alone
    for source in (books, books / "*"):
        assert f"{books / name} is " in line_of(source, out)
        assert "name the others by a glob, such as '*.txt'" in line_of(source, out)
    assert name in line_of(books / "b.txt", out, validation=str(books / name))
    assert texts(prepare(f"{books}/*.txt", "bytes", out, progress=False)) == "some text"


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSONL", "a.ndjson", "a.NDJson"])
def test_json_lines_by_any_spelling(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"text": "one"}\n{"text": "two"}\n')
    out = prepare(str(tmp_path / name), "bytes", tmp_path / "out", progress=False)
    assert texts(out) == "onetwo"


def test_links_to_files_are_files_and_to_other_folders_are_named(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    (source / "in").mkdir(parents=True)
    (source / "in" / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    (source / "b.txt").symlink_to(tmp_path / "b.txt")
    (source / "same").symlink_to("in")  # what is there is read where it is
    (source / "loop").symlink_to(".")
    assert texts(prepare(str(source), "bytes", out, progress=False)) == "ba"
    (tmp_path / "far").mkdir()
    (source / "far").symlink_to(tmp_path / "far")
    assert f"{source / 'far'} is a link to another folder" in line_of(source, tmp_path / "new")


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.txt").write_text("a")
    (tmp_path / "source" / "b.txt").symlink_to("gone")
    assert "b.txt: No such file" in line_of(tmp_path / "source", tmp_path / "out")


def test_a_validation_file_that_is_trained_on_is_named(tmp_path: Path) -> None:
    """In the folder of the source, under its own name or by a link; a glob can leave it out."""
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    for name in ("a", "b", "valid"):
        (source / f"{name}.txt").write_text(f"some text of {name}\n" * 9)
    (tmp_path / "link.txt").symlink_to(source / "valid.txt")
    for held_out in (source / "valid.txt", tmp_path / "link.txt", source):
        said = line_of(source, out, validation=str(held_out))
        assert "is in the source too: it would be scored on what it was trained on" in said
    prepare(f"{source}/?.txt", "bytes", out, progress=False, validation=f"{source}/valid.txt")
    assert texts(out).count("of valid") == 9


@pytest.mark.parametrize("kept_time", [False, True])
def test_an_edit_of_the_same_size_is_noticed(
    kept_time: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the source or of the validation, even with the time of writing set back."""
    files = [tmp_path / name for name in ("a.txt", "held-out.txt")]
    encoded = encode._encoded
    for edited in files:
        for path in files:
            path.write_text("some words\n" * 10)

        def meddle(*arguments, edited=edited):
            before = edited.stat()
            edited.write_text("else words\n" * 10)
            if kept_time:
                os.utime(edited, ns=(before.st_atime_ns, before.st_mtime_ns))
            return encoded(*arguments)

        monkeypatch.setattr(encode, "_encoded", meddle)
        said = line_of(files[0], tmp_path / "out", validation=str(files[1]))
        assert said.startswith(f"{edited} changed while it was read")


def test_the_second_time_sees_any_edit(tmp_path: Path) -> None:
    """Of the same size: of the source, and of the shards in their middle."""
    source, out = tmp_path / "a.txt", tmp_path / "out"
    source.write_text("some words\n" * 30_000)
    prepare(str(source), "bytes", out, progress=False)
    shard = out / "train-00000.bin"
    content = shard.read_bytes()
    middle = len(content) // 2
    shard.write_bytes(content[:middle] + b"XX" + content[middle + 2 :])
    with pytest.raises(UserError, match=r"train-00000\.bin was changed since it was prepared"):
        prepare(str(source), "bytes", out, progress=False)
    shard.write_bytes(content)
    prepare(str(source), "bytes", out, progress=False)
    before = source.stat()
    source.write_text("else words\n" * 30_000)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UserError, match="holds other data"):
        prepare(str(source), "bytes", out, progress=False)


def test_a_full_folder_for_temporary_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"text")))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    status = main(["prepare", "-", "--tokenizer", "bytes", "--out", str(tmp_path / "out")])
    said = capfd.readouterr().err
    assert status == 2
    assert f"cannot keep standard input in {tmp_path / 'gone'}: No such file" in said
    assert "set TMPDIR" in said

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr("unitsphere.data.sources._read_standard_input", full)
    assert "No space left on device; set TMPDIR" in line_of("-", tmp_path / "out")


def test_closed_and_broken_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in line_of("-", tmp_path / "out")

    class Folder(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            raise IsADirectoryError(21, "Is a directory")

    stdin = io.TextIOWrapper(io.BufferedReader(Folder()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert "cannot read standard input: Is a directory" in line_of("-", tmp_path / "out")


def test_an_output_that_links_to_itself_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.txt").write_text("text")
    (tmp_path / "out").symlink_to("out")
    assert "out is a link" in line_of(tmp_path / "source", tmp_path / "out")


def test_a_workspace_with_anothers_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    mine = tmp_path / ".out.partial" / "mine" / "thesis.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert "move" in line_of(tmp_path / "a.txt", tmp_path / "out")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("size", ["99999999999", "1000001", "256", "9" * 5000, "-300", "x", ""])
def test_a_bpe_of_a_size_that_cannot_be_is_one_line(size: str) -> None:
    for read in (bpe_size, vocab_size_of):
        with pytest.raises(UserError, match="N in bpe:N is a number from 257") as error:
            read(f"bpe:{size}")
        assert len(str(error.value)) < 200
    assert bpe_size(f"bpe:{LARGEST_BPE}") == LARGEST_BPE


def test_the_largest_bpe_is_trained() -> None:
    from unitsphere.data.tokenizer import train_bpe

    assert train_bpe(["some words and words"], LARGEST_BPE).vocab_size < 300


@pytest.mark.parametrize("ahead", [-1, MOST_AHEAD + 1, 10**12])
def test_batches_ahead_are_bounded(ahead: int) -> None:
    with pytest.raises(UserError, match=f"data.prefetch must be from 0 to {MOST_AHEAD}"):
        DataConfig(prefetch=ahead)


# What can lie in a folder: a name, and how it is made.
NAMES = st.one_of(
    st.sampled_from(
        [
            "a.txt",
            "b.jsonl",
            "c.CSV",
            ".hidden",
            "-",
            "*.txt",
            "[a]",
            "é.txt",
            "\u202e.txt",
            "x\n.txt",
        ]
    ),
    st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1),
    st.integers(1, 251).map(lambda n: "n" * n + ".txt"),
    st.binary(min_size=1, max_size=8).map(os.fsdecode),
).filter(lambda name: name not in (".", "..") and not {"/", "\0"} & set(name))
KINDS = st.sampled_from(
    ["text", "lines", "binary", "empty", "folder", "fifo", "link", "link out", "dangling", "loop",
     "up", "unreadable"]
)  # fmt: skip
TEXT = "some text\n"


def put(path: Path, kind: str, outside: Path) -> None:
    """One thing of a kind at `path`."""
    contents = {"text": TEXT, "unreadable": TEXT, "lines": '{"text": "a line"}\n', "empty": ""}
    targets = {
        "link": "a.txt", "link out": str(outside), "dangling": "gone", "loop": path.name, "up": ".."
    }  # fmt: skip
    if os.path.lexists(path):
        return
    if kind in contents:
        path.write_text(contents[kind])
        if kind == "unreadable":
            path.chmod(0)
    elif kind in targets:
        path.symlink_to(targets[kind])
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "binary":
        path.write_bytes(b"\xff\0")
    else:
        path.mkdir()
        (path / "inner.txt").write_text(TEXT)


@settings(max_examples=60, deadline=None)
@example([("a.txt", "fifo")], "")
@example([("b.jsonl", "text")], "/*")
@example([("a.txt", "text"), ("x", "loop")], "/**")
@example([("a.txt", "text"), ("x", "up"), ("y", "up"), ("z", "up")], "/**")  # 3^40 paths
@given(
    st.lists(st.tuples(NAMES, KINDS), max_size=5), st.sampled_from(["", "/", "/*", "/**", "/?*"])
)
def test_whatever_a_folder_holds(entries: list[tuple[str, str]], how: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        (top / "outside.txt").write_text("outside")
        source, out = top / "source", top / "out"
        source.mkdir()
        for entry, kind in entries:
            try:
                put(source / entry, kind, top / "outside.txt")
            except OSError:  # a name that the file system refuses
                continue
        before = tree(source)
        with contextlib.suppress(UserError):
            prepare(f"{source}{how}", "bytes", out, progress=False)
        if out.exists():
            for split in ("train", "val"):
                Shards.open(out, split).verify()
        assert tree(source) == before
        assert {path.name for path in top.iterdir()} <= {"outside.txt", "source", "out"}


def tree(folder: Path) -> set[tuple[str, int, int]]:
    """Every name below a folder, with its kind and its time of writing."""
    found = ((path, path.lstat()) for path in folder.rglob("*"))
    return {(str(path), stat.S_IFMT(s.st_mode), s.st_mtime_ns) for path, s in found}


@settings(max_examples=25, deadline=None)
@example("\0", "bytes")
@example("n" * 300, "bytes")
@example("[", "bytes")
@example("~nobody-of-this-name/x", "bpe:300")
@given(st.text(max_size=20), st.one_of(st.text(max_size=10), st.just("bytes")))
def test_whatever_is_named(source: str, tokenizer: str) -> None:
    """As source, as validation, as tokenizer and as output."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        (top / "good").write_text(TEXT)
        named = f"{top}/{source.lstrip('/').replace('..', '')}"
        for arguments in (
            (named, "bytes", top / "out", None),
            (str(top / "good"), "bytes", top / "out", named),
            (str(top / "good"), tokenizer.lstrip("/~."), top / "out", None),
            (str(top / "good"), "bytes", Path(named), None),
        ):
            given_source, spec, out, validation = arguments
            with contextlib.suppress(UserError):  # any other error is a traceback
                prepare(given_source, spec, out, validation=validation, progress=False)


@pytest.mark.parametrize("name", ["source", "validation", "tokenizer", "cache"])
def test_an_empty_name_is_not_the_working_directory(name: str) -> None:
    with pytest.raises(UserError, match=rf"^data\.{name} is empty"):
        DataConfig(**{name: ""})
    with pytest.raises(UserError, match="is empty: give a file"):
        check_scored("")
