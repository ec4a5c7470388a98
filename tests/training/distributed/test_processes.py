"""What ranks know of each other: mistakes of one that made it before it joined, and facts alike."""

import errno
from contextlib import contextmanager

import pytest

from unitsphere.cli import main
from unitsphere.errors import UserError
from unitsphere.training.distributed import processes
from unitsphere.training.distributed.layout import Layout, ParallelConfig
from unitsphere.training.distributed.processes import SharedError


@pytest.fixture
def told(monkeypatch):
    """The mistakes that were told to the others, of two processes that need no torchrun."""
    found = []

    @contextmanager
    def joined(kind, timeout):
        yield Layout()

    def on_all_ranks(layout, action):
        with pytest.raises(UserError) as error:
            action()
        found.append(str(error.value))
        raise SharedError("rank 1 of 2: " + found[-1])

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(processes, "joined", joined)
    monkeypatch.setattr(processes, "on_all_ranks", on_all_ranks)
    return found


@pytest.mark.parametrize(
    "argv", [["quickstart/ngpt", "--optim.lr", "many"], ["no/recipe"], ["quickstart/ngpt", "--x"]]
)
def test_a_mistake_on_the_command_line_is_told_to_the_others(argv, told, capsys):
    assert main(["train", *argv]) == 2
    assert [f"unitsphere: error: {line}" for line in told] == capsys.readouterr().err.splitlines()
    assert len(told) == 1


def test_so_is_a_device_that_is_not_there(told):
    with (
        pytest.raises(UserError, match="mps"),
        processes.processes(ParallelConfig(), "mps"),
    ):
        pass
    assert "the device 'mps' is not supported" in told[0]


def test_a_single_process_tells_nobody(told, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    processes.tell_others(UserError("a mistake"))
    assert not told


def test_nan_is_the_same_in_all_processes(monkeypatch):
    monkeypatch.setattr(processes, "gather", lambda layout, facts: [facts, {"x": float("nan")}])
    processes.check_alike(Layout(), "config", {"x": float("nan")})
    with pytest.raises(processes.SharedError, match=r"rank 1 has another config .*x: 1.0 -> nan"):
        processes.check_alike(Layout(), "config", {"x": 1.0})


def test_a_file_that_one_process_may_not_read_is_told_in_all(monkeypatch):
    def denied():
        raise PermissionError(errno.EACCES, "Permission denied", "run/config.json")

    monkeypatch.setattr(processes, "gather", lambda layout, said: [None, said])
    with pytest.raises(processes.SharedError, match=r"rank 1 of 2: cannot use run/config.json"):
        processes.on_all_ranks(Layout(1, 2), denied)
