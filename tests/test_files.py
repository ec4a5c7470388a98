"""Whatever a stranger has planted at a path: reading ends, and writing stays where it should."""

import contextlib
import os
import resource
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unitsphere.errors import UserError
from unitsphere.files import (
    append_to,
    aside,
    check_given,
    check_within,
    open_given,
    own_folder,
    read_bytes,
    read_text,
    write_bytes,
    write_tensors,
    write_text,
)

VICTIM, CONTENT = b"mine\n", "what is written\n"
PLANTS = (
    "nothing", "file", "folder", "full folder", "fifo", "zeros", "link out", "link to a folder",
    "link inside", "dangling", "loop", "chain", "link to zeros", "link to a fifo",
)  # fmt: skip
READ = {"file", "link inside"}


@contextlib.contextmanager
def scene() -> Iterator[tuple[Path, Path]]:
    """A folder of a stranger's, and a file outside that must stay as it is."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        (top / "folder").mkdir()
        (top / "victims").mkdir()
        (top / "victims" / "victim").write_bytes(VICTIM)
        yield top / "folder", top / "victims" / "victim"
        assert [path.name for path in (top / "victims").iterdir()] == ["victim"]
        assert (top / "victims" / "victim").read_bytes() == VICTIM


def plant(path: Path, what: str, victim: Path) -> None:
    """Something at `path`."""
    targets = {
        "link out": victim, "link to a folder": victim.parent, "link inside": "inside",
        "dangling": victim.with_name("new"), "loop": path.name, "chain": "second",
        "link to zeros": "/dev/zero", "link to a fifo": "pipe", "zeros": "/dev/zero",
    }  # fmt: skip
    (path.parent / "inside").write_bytes(b"inside")
    (path.parent / "second").symlink_to(victim)
    os.mkfifo(path.parent / "pipe")
    if what == "file":
        path.write_bytes(b"inside")
    elif what.endswith("folder") and what not in targets:
        path.mkdir()
        if what == "full folder":
            (path / "x").touch()
    elif what == "fifo":
        os.mkfifo(path)
    elif what in targets:
        path.symlink_to(targets[what])


@pytest.mark.parametrize("read", [open_given, read_bytes, read_text, check_given])
@pytest.mark.parametrize("what", PLANTS)
def test_only_regular_files_of_the_folder_are_read(read: Callable, what: str) -> None:
    with scene() as (folder, victim):
        plant(folder / "x", what, victim)
        if what in READ:
            found = read(folder / "x", within=folder)
            if read is open_given:
                found.close()
            return
        with pytest.raises(UserError) as error:
            read(folder / "x", within=folder)
        assert str(folder / "x") in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("what", PLANTS)
def test_a_path_that_the_user_names_may_be_a_link(what: str) -> None:
    with scene() as (folder, victim):
        plant(folder / "x", what, victim)
        if what in READ | {"link out", "chain"}:
            expected = b"inside" if what in READ else VICTIM
            assert read_bytes(folder / "x") == expected
        else:
            with pytest.raises(UserError, match="cannot read"):
                read_bytes(folder / "x")


@settings(max_examples=40)
@given(st.binary(max_size=64), st.integers(0, 64))
def test_a_file_is_read_up_to_its_limit(content: bytes, limit: int) -> None:
    with scene() as (folder, _):
        (folder / "x").write_bytes(content)
        if len(content) <= limit:
            assert read_bytes(folder / "x", folder, limit) == content
        else:
            with pytest.raises(UserError, match=f"has {len(content)} bytes, and at most {limit}"):
                read_bytes(folder / "x", folder, limit)


@settings(max_examples=40)
@given(st.binary(max_size=32))
def test_text_is_utf8_or_one_line(content: bytes) -> None:
    with scene() as (folder, _):
        (folder / "x").write_bytes(content)
        try:
            expected = content.decode()
        except UnicodeDecodeError as error:
            with pytest.raises(UserError, match=rf"not UTF-8 \(byte {error.start}\)"):
                read_text(folder / "x")
        else:
            assert read_text(folder / "x") == expected


@settings(max_examples=60)
@given(st.text(max_size=300))
def test_any_name_is_read_or_refused(name: str) -> None:
    with scene() as (folder, _), contextlib.suppress(UserError):
        read_bytes(folder / name.lstrip("/"))


def test_a_name_with_nul_is_refused(tmp_path: Path) -> None:
    for within in (None, tmp_path):
        with pytest.raises(UserError, match="cannot read"):
            read_bytes(tmp_path / "a\0b", within)


def test_a_link_in_the_middle_leads_nowhere(tmp_path: Path) -> None:
    """The folder itself may be behind a link: it is what the user has named."""
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "real" / "deep" / "x").write_text("text")
    (tmp_path / "named").symlink_to("real")
    assert read_text(tmp_path / "named" / "deep" / "x", within=tmp_path / "named") == "text"
    (tmp_path / "real" / "out").symlink_to(tmp_path)
    for path in ("out/secret", "deep/../../secret"):
        with pytest.raises(UserError, match="link out of"):
            check_within(tmp_path / "real" / path, tmp_path / "real")


@pytest.mark.parametrize("write", [write_text, write_bytes])
@pytest.mark.parametrize("what", PLANTS)
def test_what_is_written_replaces_what_is_planted(write: Callable, what: str) -> None:
    """Never what a link points to; a folder is an error. Nothing else is left."""
    with scene() as (folder, victim):
        plant(folder / "x", what, victim)
        before = {path.name for path in folder.iterdir()} | {"x"}
        inside = (folder / "inside").read_bytes()
        content = CONTENT if write is write_text else CONTENT.encode()
        if what in ("folder", "full folder"):
            with pytest.raises(OSError, match="Is a directory"):
                write(folder / "x", content)
        else:
            write(folder / "x", content)
            assert not (folder / "x").is_symlink()
            assert (folder / "x").read_text() == CONTENT
        assert (folder / "inside").read_bytes() == inside
        assert {path.name for path in folder.iterdir()} == before


@pytest.mark.parametrize("what", PLANTS)
def test_lines_are_added_to_regular_files_only(what: str) -> None:
    with scene() as (folder, victim):
        plant(folder / "x", what, victim)
        if what in ("nothing", "file"):
            with append_to(folder / "x") as file:
                file.write(CONTENT)
            assert (folder / "x").read_text().endswith(CONTENT)
        else:
            with pytest.raises((UserError, OSError)):
                append_to(folder / "x")
        assert (folder / "inside").read_bytes() == b"inside"


@pytest.mark.parametrize("what", PLANTS)
def test_a_folder_of_ones_own_is_no_link(what: str) -> None:
    with scene() as (folder, victim):
        plant(folder / "x", what, victim)
        if what in ("nothing", "folder", "full folder"):
            assert own_folder(folder / "x").is_dir()
        else:
            with pytest.raises(UserError):
                own_folder(folder / "x")


def test_a_failure_leaves_the_old_file_and_nothing_aside(tmp_path: Path) -> None:
    write_text(tmp_path / "x", "old")
    with pytest.raises(ZeroDivisionError), aside(tmp_path / "x") as temporary:
        temporary.write_text(f"half {1 / 0}")
    assert (tmp_path / "x").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@contextlib.contextmanager
def small_files(most: int) -> Iterator[None]:
    """No file may have more bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_tensors_on_a_full_disk_are_one_line_and_leave_nothing(tmp_path: Path) -> None:
    """They ended `export` and `finetune` with a traceback."""
    path = tmp_path / "w.safetensors"
    with small_files(1000), pytest.raises(UserError, match=f"cannot write {path}: .*large"):
        write_tensors(path, {"w": torch.zeros(1000)}, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_umask_says_who_may_read_a_file_of_tensors(
    umask: int, mode: int, tmp_path: Path
) -> None:
    before = os.umask(umask)
    try:
        write_tensors(tmp_path / "w.safetensors", {"w": torch.zeros(2)}, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "w.safetensors").stat().st_mode) == mode


def test_an_error_of_a_full_disk_names_the_file(tmp_path: Path) -> None:
    """The command line called it "the output"."""
    with small_files(10), pytest.raises(OSError, match="large") as error:
        write_text(tmp_path / "x", "more than ten bytes")
    assert error.value.filename == str(tmp_path / "x")


@settings(max_examples=30)
@given(st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1))
def test_names_of_any_length_are_written(name: str) -> None:
    """What is added for the file aside fits where the name itself does."""
    with scene() as (folder, _):
        path = folder / name
        if name in (".", "..") or len(os.fsencode(name)) > 255:
            return
        write_text(path, CONTENT)
        assert path.read_text() == CONTENT
