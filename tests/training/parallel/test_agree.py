import pytest

from unitsphere.training.parallel import agree
from unitsphere.training.parallel.layout import Layout


def test_nan_is_the_same_in_all_processes(monkeypatch):
    monkeypatch.setattr(agree, "gather", lambda layout, facts: [facts, {"x": float("nan")}])
    agree.check_alike(Layout(), "config", {"x": float("nan")})
    with pytest.raises(agree.SharedError, match=r"rank 1 has another config .*x: 1.0 -> nan"):
        agree.check_alike(Layout(), "config", {"x": 1.0})
