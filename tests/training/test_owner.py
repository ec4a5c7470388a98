"""Whose run it is: a config of somebody else's reads and writes nothing outside of its folder."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from typed import printed, refused

from unitsphere.cli import main
from unitsphere.data.config import DataConfig
from unitsphere.training.folder import ENVIRONMENT, is_everybodys, key_file


@pytest.fixture
def place(trained, tmp_path, monkeypatch, capsys) -> Path:
    """A copy, in which `run` was made by somebody else: another key has signed it."""
    folder = tmp_path / "place"
    shutil.copytree(trained, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    capsys.readouterr()
    return folder


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


ASKING = (
    ("eval", "run"),
    ("eval", "run/checkpoints/step-00000006"),
    ("eval", "run", "--by-position"),
    ("inspect", "run", "--probes", "attention_entropy"),
    ("context", "run", "--out", "out"),
    ("quantize", "run", "--out", "out", "--formats", "int8"),
)


@pytest.mark.parametrize("argv", [*ASKING, ("replay", "run", "--step", "1")])
def test_a_run_of_somebody_else_asks_for_data_and_touches_nothing(place, capsys, argv):
    shutil.rmtree("cache")
    before = contents(place)
    message = refused(capsys, *argv, "--device", "cpu")
    assert "is not a run that you made on this computer" in message
    assert ("--data" in message) == (argv[0] != "replay")  # which has no such option
    assert contents(place) == before


@pytest.mark.parametrize("argv", ASKING)
def test_with_data_it_reads_those_alone(place, capsys, argv):
    shutil.rmtree("cache")
    Path("text.txt").unlink()
    Path("mine.txt").write_text("A dog ran away, and that was that.\n" * 40)
    assert main([*argv, "--data", "mine.txt", "--device", "cpu", "--json"]) == 0
    assert not Path("cache").exists()


def test_inspect_looks_at_a_prepared_split(place, capsys):
    assert main(["prepare", "text.txt", "--tokenizer", "bytes", "--out", "own"]) == 0
    capsys.readouterr()
    found = printed(capsys, "inspect", "run", "--data", "own", "--probes", "attention_entropy")
    assert found["batch"]["tokens"] > 0


def test_a_run_made_here_needs_no_data_wherever_it_lies(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    shutil.copytree("run", tmp_path / "moved")
    assert printed(capsys, "eval", str(tmp_path / "moved"))["loss"] > 0
    assert "attention_entropy" in printed(capsys, *ASKING[3])["probes"]
    assert printed(capsys, "replay", "run", "--step", "1")["rows"]


def answer(capsys, *argv: str) -> str:
    """What a verb says, refused or not: `inspect` still looks at what needs no data."""
    return str(printed(capsys, *argv)) if argv[0] == "inspect" else refused(capsys, *argv)


@pytest.mark.parametrize("argv", [*ASKING, ("replay", "run", "--step", "1")])
def test_data_that_were_changed_are_not_those_of_the_run(trained, monkeypatch, capsys, argv):
    """Its validation split would be another, perhaps with documents that it is trained on."""
    monkeypatch.chdir(trained)
    source = Path("text.txt")
    before = source.read_text()
    source.write_text("Something new. " + before)
    capsys.readouterr()
    try:
        said = answer(capsys, *argv, "--device", "cpu")
    finally:
        source.write_text(before)
    assert "were changed since it read them: restore them" in said


def test_a_signature_is_of_the_data_settings_alone(place, trained, monkeypatch, capsys):
    """Somebody who has got a run of mine cannot make another of it that reads what they like."""
    monkeypatch.undo()
    monkeypatch.chdir(place)
    config = json.loads(Path("run/config.json").read_text())
    config["data"]["source"] = "secret.txt"
    Path("run/config.json").write_text(json.dumps(config))
    assert "is not a run that you made on this computer" in refused(capsys, "eval", "run")


def test_resuming_a_run_makes_it_one_s_own(place, capsys):
    shutil.rmtree("run/checkpoints/step-00000006")
    assert main(["train", "run"]) == 0
    capsys.readouterr()
    assert printed(capsys, "eval", "run")["loss"] > 0


def test_a_run_that_holds_its_data_needs_none(place, capsys):
    assert main(["prepare", "text.txt", "--tokenizer", "bytes", "--out", "run/shards"]) == 0
    config = json.loads(Path("run/config.json").read_text())
    config["data"] |= {"source": "run/shards", "tokenizer": None}
    Path("run/config.json").write_text(json.dumps(config))
    capsys.readouterr()
    assert printed(capsys, "eval", "run")["loss"] > 0
    tokens = next(Path("run/shards").glob("val-*.bin"))
    tokens.rename("elsewhere.bin")
    tokens.symlink_to(Path("elsewhere.bin").absolute())
    assert "is not a run that you made on this computer" in refused(capsys, "eval", "run")


@pytest.mark.parametrize("content", ["[]", "{}", '{"signature": 5, "resumed": 7}', "{"])
def test_any_environment_json_is_read_or_refused(place, capsys, content):
    Path("run", ENVIRONMENT).write_text(content)
    key_file().parent.mkdir(parents=True)
    key_file().write_bytes(b"k" * 32)
    refused(capsys, "eval", "run")


def test_the_key_is_the_user_s_alone_and_what_is_none_is_refused(place, capsys):
    assert main(["train", "tiny.toml", "--out", "new"]) == 0
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    assert os.listdir(key_file().parent) == ["key"]
    capsys.readouterr()
    assert printed(capsys, "eval", "new")["loss"] > 0
    key_file().write_bytes(b"short")
    assert "is not a key" in refused(capsys, "eval", "new")


def test_the_key_is_the_same_from_every_folder(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert key_file() == Path.home() / ".local/state/unitsphere/key"


def test_a_home_that_cannot_be_written_is_said(place, capsys, monkeypatch):
    Path("file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "file"))
    assert main(["train", "tiny.toml", "--out", "new"]) == 0
    assert "cannot keep a key" in capsys.readouterr().err
    assert "is not a run that you made on this computer" in refused(capsys, "eval", "new")


def test_the_standard_library_is_everybody_s_where_the_user_s_own_runs_keep_it():
    assert is_everybodys(DataConfig())
    for odd in ({"source": "text.txt"}, {"cache": "/elsewhere"}, {"tokenizer": "tokenizer.json"}):
        assert not is_everybodys(DataConfig(**odd))
    assert not is_everybodys(DataConfig(validation="text.txt"))
