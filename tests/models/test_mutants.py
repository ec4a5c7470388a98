"""The mutation check's list still fits the source (running it takes minutes, so by hand)."""

import ast
import builtins
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


def test_no_mutant_uses_a_name_that_its_file_lacks(mutations):
    """A NameError would kill it, whatever the tests compare."""
    for m in mutations.mutants():
        tree = ast.parse((mutations.SOURCE / m.file).read_text("utf-8").replace(m.old, m.new))
        assert not used(tree) - bound(tree) - set(dir(builtins)), m.what


def used(tree: ast.AST) -> set[str]:
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Load)} - {"__file__"}


def bound(tree: ast.AST) -> set[str]:
    """In any scope."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found


def test_a_survivor_shows_in_the_report(mutations):
    first, second = mutations.mutants()[:2]
    same = replace(second, equivalent="it says the same")
    page = mutations.report([(first, ""), (same, ""), (second, "a.py::test")], 60)
    assert "Of 3 mutants the tests kill 1. Equivalent: 1. Survivors: 1." in page
    assert "**survived**" in page
    assert "it says the same" in page
    assert "`a.py::test`" in page
