"""The mutation check's list still fits the source (running it takes minutes, so by hand)."""

from dataclasses import replace

import pytest
from scripts import load_script


@pytest.fixture(scope="module")
def mutations():
    return load_script("mutations")


def test_every_mutant_changes_exactly_one_place(mutations):
    found = mutations.mutants()
    assert len(found) >= 120
    assert sum(m.file.startswith("training/") for m in found) >= 14
    for m in found:
        assert all((mutations.REPOSITORY / test).exists() for test in mutations.suite(m.file))
    assert len({(m.file, m.old, m.new) for m in found}) == len(found)
    assert all(m.old != m.new for m in found)


def test_a_survivor_shows_in_the_report(mutations):
    first, second = mutations.mutants()[:2]
    same = replace(second, equivalent="it says the same")
    page = mutations.report([(first, ""), (same, ""), (second, "a.py::test")], 60)
    assert "Of 3 mutants the tests kill 1. Equivalent: 1. Survivors: 1." in page
    assert "**survived**" in page
    assert "it says the same" in page
    assert "`a.py::test`" in page
