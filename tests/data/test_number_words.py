"""The pairs of numbers that benchmarks/number_words.py makes."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "number_words.py"


def made(out: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, list[str]]:
    """The lines of both files."""
    monkeypatch.setattr(sys, "argv", [str(PATH), "--out", str(out), *options])
    runpy.run_path(str(PATH), run_name="__main__")
    return {path.stem: path.read_text().splitlines() for path in out.iterdir()}


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (19, "nineteen"),
        (40, "forty"),
        (41, "forty-one"),
        (100, "one hundred"),
        (712, "seven hundred and twelve"),
        (9000, "nine thousand"),
        (9003, "nine thousand and three"),
        (1241, "one thousand two hundred and forty-one"),
    ],
)
def test_numbers_in_words(number, words):
    assert runpy.run_path(str(PATH))["in_words"](number) == words


def test_every_number_has_its_own_words():
    in_words = runpy.run_path(str(PATH))["in_words"]
    assert len({in_words(number) for number in range(10_000)}) == 10_000


def test_the_files_are_the_same_each_time_and_apart(tmp_path, monkeypatch):
    options = ("--train", "400", "--test", "50", "--most", "2")
    first, second = (made(tmp_path / name, monkeypatch, *options) for name in "ab")
    assert first == second
    assert {name: len(lines) for name, lines in first.items()} == {"train": 400, "test": 50}
    train, test = ([json.loads(line) for line in first[name]] for name in ("train", "test"))
    assert not {pair["source"] for pair in train} & {pair["source"] for pair in test}
    assert all(re.fullmatch(r"\d{1,4} \d{1,4}", pair["target"]) for pair in train + test)
    other = made(tmp_path / "c", monkeypatch, *options, "--seed", "1")
    assert other["train"] != first["train"]
