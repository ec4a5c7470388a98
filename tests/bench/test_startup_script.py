"""benchmarks/startup.py: seconds until a run's first step and a sample's first token."""

import json
import sys
from pathlib import Path

from scripts import load_script
from tiny_recipe import TEXT, tiny_recipe

from unitsphere.cli import main


def test_every_start_is_timed_and_the_median_told(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT * 200)
    Path("recipe.toml").write_text(tiny_recipe())
    assert main(["prepare", "text.txt", "--tokenizer", "bytes", "--out", "tokens"]) == 0
    capsys.readouterr()
    words = ["--data", "tokens", "--recipe", "recipe.toml", "--starts", "2"]
    monkeypatch.setattr(sys, "argv", ["startup.py", *words])
    load_script("startup").main()
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] > 0
    assert [row["until"] for row in found["rows"]] == ["first step", "first token"]
    for row in found["rows"]:
        low, high = sorted(row["seconds"])
        assert 0 < low <= row["median"] <= high
    assert not Path("trained").exists()
