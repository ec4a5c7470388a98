import errno

import pytest

from unitsphere.training.distributed import processes
from unitsphere.training.distributed.layout import Layout


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
