"""The pages of results: every loss with a standard error is that of a study's runs."""

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unitsphere.studies.league import SHIPPED

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ONE_SEED = re.compile(r"-\d[a-z]?$")
"""The end of a file's name that says which seed of a study it has."""


def parts(value: Any) -> Iterator[Any]:
    """A JSON document, and all dicts and lists inside of it."""
    yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from parts(inner)


def losses(runs: list[Any]) -> list[float]:
    """The runs' losses; none for a list of anything else."""
    return [
        run["loss"] for run in runs if isinstance(run, dict) and isinstance(run.get("loss"), float)
    ]


def shown(values: list[float]) -> str:
    """Mean and standard error, as the pages write them."""
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}"


@pytest.fixture(scope="module")
def measured() -> set[str]:
    """The figures of all runs that differ in their seed only, those in files by seed together."""
    found, apart = set(), defaultdict(list)
    for path in [*RESULTS.rglob("*.json"), SHIPPED / "league" / "rows.json"]:
        document = json.loads(path.read_text())
        for part in parts(document):
            if isinstance(part, list) and len(losses(part)) > 1:
                found.add(shown(losses(part)))
            elif (
                isinstance(part, dict)
                and isinstance(part.get("loss"), float)
                and part.get("standard_error")
            ):
                found.add(f"{part['loss']:.3f} ± {part['standard_error']:.3f}")
        if "budgets" in document and ONE_SEED.search(path.stem):
            for name, arm in document["arms"].items():
                (budget,) = arm["budgets"]
                apart[path.parent, ONE_SEED.sub("", path.stem), name] += losses(budget["seeds"])
    return found | {shown(values) for values in apart.values() if len(values) > 1}


@pytest.mark.parametrize("page", ["horizons", "parts", "baselines"])
def test_losses_are_those_of_the_studies(page, measured):
    figures = re.findall(r"\d\.\d{3}\** ± \d\.\d{3}", (RESULTS / f"{page}.md").read_text())
    assert len(figures) > 10
    assert [figure for figure in figures if figure.replace("*", "") not in measured] == []
