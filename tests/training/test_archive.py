"""Archives of models: they load as their folder does, and nothing else comes out of them."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from tiny_config import tiny_config

import unitsphere
from unitsphere.errors import UserError
from unitsphere.training import archive
from unitsphere.training.run import train


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    (folder / "text.txt").write_text("The cat sat on the mat.\n" * 40)
    train(tiny_config(folder / "text.txt", folder / "cache", steps=1), folder / "run")
    (folder / "run/README.md").write_text("not unpacked")
    return folder / "run"


def tar(path: Path, files: dict[str, bytes], link: tarfile.TarInfo | None = None) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
        if link is not None:
            file.addfile(link)
    return path


@pytest.mark.parametrize("suffix", archive.SUFFIXES)
def test_an_archive_loads_as_its_folder_does(run, tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as file:
            for each in run.rglob("*"):
                file.write(each, each.relative_to(run))
    else:
        archive.pack(run, path)
    expected, loaded = unitsphere.load(run, "cpu"), unitsphere.load(path, "cpu")
    tokens = torch.arange(8)[None]
    assert torch.equal(loaded.model(tokens), expected.model(tokens))
    assert loaded.config == expected.config
    assert loaded.tokenizer.fingerprint == expected.tokenizer.fingerprint


def test_an_error_names_the_archive_and_no_temporary_folder(run, tmp_path):
    path = tmp_path / "model.tar.gz"
    archive.pack(run, path)
    with pytest.raises(UserError, match="has no averaged weights") as said:
        unitsphere.load(path, "cpu", weights="average")
    assert f"checkpoint {path}/checkpoints/step-00000001 has" in str(said.value)


def test_the_same_files_give_the_same_bytes(run, tmp_path):
    for name in ("a.tar.gz", "b.tar.gz"):
        archive.pack(run, tmp_path / name)
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_only_what_a_model_is_read_from_is_unpacked(run, tmp_path):
    archive.pack(run, tmp_path / "model.tar.gz")
    with archive.unpacked(tmp_path / "model.tar.gz") as folder:
        found = {path.name for path in folder.rglob("*") if path.is_file()}
        kept = folder
    assert "config.json" in found
    assert "README.md" not in found
    assert not [name for name in found if not name.endswith((".json", ".safetensors", "COMPLETE"))]
    assert not kept.exists()


@pytest.mark.parametrize("name", ["../config.json", "/tmp/config.json", "a/../../config.json"])
@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
def test_a_member_outside_of_the_folder_is_refused(tmp_path, name, suffix):
    path = tmp_path / f"model{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(name, "{}")
    else:
        tar(path, {name: b"{}"})
    with pytest.raises(UserError, match="outside of its folder"):
        unitsphere.load(path)
    assert not (tmp_path.parent / "config.json").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_a_link_or_a_device_is_refused(tmp_path, kind):
    link = tarfile.TarInfo("config.json")
    link.type, link.linkname = kind, "/etc/passwd"
    with pytest.raises(UserError, match="link or device"):
        unitsphere.load(tar(tmp_path / "model.tar.gz", {}, link))


def test_a_link_in_a_zip_is_refused(tmp_path):
    info = zipfile.ZipInfo("config.json")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as file:
        file.writestr(info, "/etc/passwd")
    with pytest.raises(UserError, match="link or device"):
        unitsphere.load(tmp_path / "model.zip")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_an_archive_that_would_fill_the_disk_is_refused(tmp_path, name):
    path = tar(tmp_path / "model.tgz", {name: bytes(32 << 20)})
    with pytest.raises(UserError, match="far more than a model's"):
        unitsphere.load(path)


@pytest.mark.parametrize(
    ("files", "said"),
    [({"notes.txt": b"x"}, "holds 0 models"), ({"config.json": b"{}"}, "config")],
    ids=["no model", "no weights"],
)
def test_an_archive_without_a_model_is_one_line(tmp_path, files, said):
    with pytest.raises(UserError, match=said) as raised:
        unitsphere.load(tar(tmp_path / "model.tar.gz", files))
    assert "\n" not in str(raised.value)


def test_a_damaged_archive_is_one_line(run, tmp_path):
    archive.pack(run, tmp_path / "model.tar.gz")
    whole = (tmp_path / "model.tar.gz").read_bytes()
    for content in (whole[: len(whole) // 2], b"not an archive", b""):
        (tmp_path / "model.tar.gz").write_bytes(content)
        with pytest.raises(UserError, match=r"model\.tar\.gz"):
            unitsphere.load(tmp_path / "model.tar.gz")


def damaged_zip(path: Path, offset: int, byte: bytes, compression: int) -> Path:
    """A zip whose member says another method, or has another byte where its content begins."""
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("config.json", b'{"a": 1}' * 100)
    content = bytearray(path.read_bytes())
    start = 30 + len("config.json")
    if offset < 0:  # the method, in the member's own head and in the directory
        for place in (8, content.index(b"PK\x01\x02") + 10):
            content[place : place + 2] = byte * 2
    else:
        content[start + offset : start + offset + 20] = byte * 20
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("offset", "byte", "compression"),
    [
        (-1, b"\x63", zipfile.ZIP_DEFLATED),
        (0, b"\xff", zipfile.ZIP_LZMA),
        (9, b"\xff", zipfile.ZIP_LZMA),
        (0, b"\xff", zipfile.ZIP_BZIP2),
        (0, b"\xff", zipfile.ZIP_DEFLATED),
    ],
    ids=["unknown method", "lzma head", "lzma", "bzip2", "deflate"],
)
def test_a_damaged_zip_is_one_line(tmp_path, offset, byte, compression):
    path = damaged_zip(tmp_path / "model.zip", offset, byte, compression)
    with pytest.raises(UserError, match=r"cannot unpack .*model\.zip: .") as raised:
        unitsphere.load(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "header", [b"25 GNU.sparse.map=abc,def\n", b"13 path=\xff\xfe\xfd\n", b"x size=1\n"]
)
def test_an_odd_pax_header_is_one_line(tmp_path, header):
    path = tmp_path / "model.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.USTAR_FORMAT) as file:
        odd = tarfile.TarInfo("head")
        odd.type, odd.size = tarfile.XHDTYPE, len(header)
        file.addfile(odd, io.BytesIO(header))
        file.addfile(tarfile.TarInfo("config.json"))
    with pytest.raises(UserError) as raised:
        unitsphere.load(path)
    assert "\n" not in str(raised.value)


def test_a_zip_name_that_is_no_utf_8_is_one_line(tmp_path):
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("é.json", "{}")
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xff\xff"))
    with pytest.raises(UserError, match="cannot unpack"):
        unitsphere.load(path)
