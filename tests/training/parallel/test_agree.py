import errno

import pytest

from unitsphere.training.parallel import agree
from unitsphere.training.parallel.layout import Layout


def test_nan_is_the_same_in_all_processes(monkeypatch):
    monkeypatch.setattr(agree, "gather", lambda layout, facts: [facts, {"x": float("nan")}])
    agree.check_alike(Layout(), "config", {"x": float("nan")})
    with pytest.raises(agree.SharedError, match=r"rank 1 has another config .*x: 1.0 -> nan"):
        agree.check_alike(Layout(), "config", {"x": 1.0})


def test_a_file_that_one_process_may_not_read_is_told_in_all(monkeypatch):
    def denied():
        raise PermissionError(errno.EACCES, "Permission denied", "run/config.json")

    monkeypatch.setattr(agree, "gather", lambda layout, said: [None, said])
    with pytest.raises(agree.SharedError, match=r"rank 1 of 2: cannot use run/config.json: Perm"):
        agree.everywhere(Layout(1, 2), denied)
