"""Records go to Weights & Biases once each, and its failures never reach the run."""

import json
import shutil
import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest

from unitsphere.errors import Preempted, UserError
from unitsphere.training import tracking
from unitsphere.training.log import read_metrics
from unitsphere.training.run import train
from unitsphere.training.stop import Stop


class FakeWandb:
    """What the tracker uses of the package; keeps what was started and logged."""

    Settings = SimpleNamespace

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.runs, self.logged, self.finished = [], [], 0

    def setup(self):
        return SimpleNamespace(settings=SimpleNamespace(mode="online"))

    def login(self, prompt):
        assert not prompt
        return True

    def init(self, **settings):
        self.runs.append(settings)
        return SimpleNamespace(log=self.log, finish=self.finish)

    def log(self, values, step):
        if step == self.fails_at:
            raise ConnectionError("the service\nis gone")
        self.logged.append(step)

    def finish(self):
        self.finished += 1


@pytest.fixture
def fake(monkeypatch):
    made = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.setattr(tracking, "find_spec", lambda name: ModuleSpec(name, None, origin="made"))
    return made


def interrupted(config, out, monkeypatch, asks):
    asked = 0

    def due(self):
        nonlocal asked
        asked += 1
        return asked == asks

    with monkeypatch.context() as patch:
        patch.setattr(Stop, "due", due)
        with pytest.raises(Preempted):
            train(config, out)


def test_a_resume_continues_with_the_same_run_and_sends_no_step_twice(
    fake, tiny, tmp_path, monkeypatch
):
    config = tiny(steps=6, save_every=2, eval_every=0, wandb="trial")
    interrupted(config, tmp_path, monkeypatch, asks=3)
    assert fake.logged == [1, 2, 3]
    shutil.rmtree(tmp_path / "checkpoints/step-00000003")  # as if killed before it was saved
    train(config, tmp_path)
    first, second = fake.runs
    assert first["project"] == second["project"] == "trial"
    assert first["id"] == second["id"]
    assert first["config"]["train"]["steps"] == 6
    assert fake.logged == [1, 2, 3, 4, 5, 6]
    assert fake.finished == 2


def test_what_fails_there_is_one_line_and_the_run_continues(fake, tiny, tmp_path, capsys):
    fake.fails_at = 3
    train(tiny(steps=6, wandb="trial"), tmp_path)
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert fake.logged == [1, 2]
    printed = capsys.readouterr().err
    assert printed.count("W&B: ConnectionError: the service is gone; the run continues") == 1
    assert "Traceback" not in printed


def test_without_a_key_nobody_is_asked(fake, tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fake, "login", lambda prompt: False)
    train(tiny(steps=2, wandb="trial"), tmp_path)
    assert "wandb login" in capsys.readouterr().err
    assert fake.runs == []


def test_a_service_that_hangs_is_left(fake, tiny, tmp_path, capsys, monkeypatch):
    gate = tracking.threading.Event()
    monkeypatch.setattr(tracking, "END", 0.1)
    monkeypatch.setattr(fake, "finish", lambda: gate.wait(60))
    train(tiny(steps=2, wandb="trial"), tmp_path)
    gate.set()
    assert "W&B: not done after" in capsys.readouterr().err


@pytest.mark.parametrize("found", [None, ModuleSpec("wandb", None)])
def test_a_missing_package_is_told_before_anything_is_written(tiny, tmp_path, monkeypatch, found):
    """A folder of W&B's records in the working directory is found too, without an origin."""
    monkeypatch.setattr(tracking, "find_spec", lambda name: found)
    with pytest.raises(UserError, match="pip install 'unitsphere\\[wandb\\]'"):
        train(tiny(wandb="trial"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"id": "../../x", "step": 1}', '{"id": 1}'])
def test_a_changed_place_is_a_line(text, fake, tmp_path, capsys):
    (tmp_path / "wandb.json").write_text(text)
    tracking.Tracker("trial", tmp_path, {}).close()
    assert "wandb.json is not" in capsys.readouterr().err
    assert fake.runs == []


def test_the_package_itself_offline(tiny, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setattr(tracking, "BEGIN", 120.0)  # a busy machine is not what is tested
    monkeypatch.setattr(tracking, "END", 60.0)
    config = tiny(steps=4, wandb="trial")
    interrupted(config, tmp_path, monkeypatch, asks=2)
    train(config, tmp_path)
    saved = json.loads((tmp_path / "wandb.json").read_text())
    assert saved["step"] == 4
    folders = list((tmp_path / "wandb").glob(f"offline-run-*-{saved['id']}"))
    assert folders
    assert all((folder / f"run-{saved['id']}.wandb").stat().st_size for folder in folders)
    assert "W&B:" not in capfd.readouterr().err
