"""benchmarks/versus: the batches that nanochat gets instead of its own loader's."""

import importlib
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[2] / "benchmarks" / "versus"


def test_nanochat_reads_every_window_once_an_epoch(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    peer = importlib.import_module("nanochat_peer")
    np.arange(27, dtype=np.uint16).tofile(tmp_path / "train.bin")
    rows = peer.windows(tmp_path / "train.bin", 4)
    assert rows[:, 0].tolist() == [0, 4, 8, 12, 16, 20]
    batches = peer.batches(rows, 3)
    seen = [next(batches) for _ in range(2)]
    assert sorted(int(x) for inputs, _, _ in seen for x in inputs[:, 0]) == rows[:, 0].tolist()
    for inputs, targets, state in seen:
        assert (targets == inputs + 1).all()
        assert state["epoch"] == 1
    assert next(batches)[2]["epoch"] == 2
