"""The history of the benches: one form for every entry, appended at the end."""

import json
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HISTORY = ROOT / "docs/results/speed-history.json"
KEYS = {"date", "commit", "command", "device", "cpu", "torch", "noise", "ratios"}


def test_every_entry_has_its_source_and_its_ratios():
    entries = json.loads(HISTORY.read_text(encoding="utf-8"))
    assert entries
    assert [entry["date"] for entry in entries] == sorted(entry["date"] for entry in entries)
    for entry in entries:
        assert entry.keys() == KEYS
        assert entry["commit"]
        for ratio in entry["ratios"].values():
            assert ratio["low"] <= ratio["median"] <= ratio["high"]


def test_a_bench_is_added_at_the_end(tmp_path, monkeypatch, capsys):
    history, bench = tmp_path / "history.json", tmp_path / "bench.json"
    history.write_text("[]")
    environment = {"started": "2026-11-23T08:00:00+00:00", "commit": "abc", "device": "cpu"}
    environment |= {"command": ["x", "bench", "--json"], "cpu": "y", "packages": {"torch": "2.13"}}
    ratios = {"ngpt/gpt-plus": {"median": 1.0, "low": 0.9, "high": 1.1}}
    bench.write_text(
        json.dumps({"environment": environment, "noise": {}, "arms": {}, "ratios": ratios})
    )
    monkeypatch.setattr(sys, "argv", ["history", str(bench), "--history", str(history)])
    runpy.run_path(str(ROOT / "benchmarks/history.py"), run_name="__main__")
    (entry,) = json.loads(history.read_text())
    assert entry.keys() == KEYS
    assert entry["command"] == "unitsphere bench --json"
    assert entry["ratios"] == ratios
