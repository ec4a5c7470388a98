"""The page of a context study: perplexity by context length, and by position.

Of several seeds the line is the geometric mean (the mean loss), and the band is from the lowest to
the highest.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unitsphere.report.document import Figure, Figures, Page, Section, Series, Table, banded
from unitsphere.report.numbers import figure, half_range
from unitsphere.report.runs import Json
from unitsphere.report.sections.settings import study_command, study_details
from unitsphere.training.evaluate.text import perplexity

FIRST = 16
"""Positions before it are left out of the picture: few tokens, and the same for every arm."""

Points = list[tuple[float, float, float, float]]
"""(x, mean, lowest, highest) of a line."""


def context_page(found: Json, folder: Path) -> Page:
    """What a context study found."""
    figures = context_figures(found)
    table = Table("Perplexity by context length", columns(found), rows(found))
    files = ["context.svg", "context.png"]
    return Page(
        title="Perplexity by context length and position",
        kind="Context",
        answer=answer(found),
        facts=[("data", str(found["data"] or "the first run's validation split"))],
        sections=[
            Section("results", "Results", [Figures(figures, apart=True, files=files), table]),
            *study_details([], found, folder),
        ],
        provenance=found["provenance"],
    )


def answer(found: Json) -> str:
    """Each arm's perplexity at the context of its training and at the longest."""
    longest = max(map(int, found["contexts"]))
    said = []
    for name, arm in found["arms"].items():
        at = {int(x): mean for x, mean, _, _ in by_context(arm, found["contexts"])}
        start = at.get(arm["trained"])
        at_start = "" if start is None else figure(start, ",.2f")
        before = at_start and f" from {at_start} at {arm['trained']:,} (trained)"
        end = figure(at[longest], ",.2f")
        said.append(f"{name} goes{before} to {end} at {longest:,} tokens of context")
    return f"Perplexity: {'; '.join(said)}."


def columns(found: Json) -> list[str]:
    """Heads of the table: a column per context."""
    return ["arm", "trained at", *(f"{context:,}" for context in found["contexts"])]


def rows(found: Json) -> list[list[str]]:
    """Perplexity at each context, one row per arm; ± half of the seeds' range."""
    cells = []
    for name, arm in found["arms"].items():
        points = by_context(arm, found["contexts"])
        figures = [
            figure(mean, ",.2f") + half_range([low, high], ",.2f") for _, mean, low, high in points
        ]
        cells.append([name, f"{arm['trained']:,}", *figures])
    return cells


def by_context(arm: Mapping[str, Any], contexts: Sequence[int]) -> Points:
    """A line over context lengths."""
    runs = [at_contexts(run) for run in arm["runs"]]
    return [
        point(context, [run[context]["loss"] for run in runs]) for context in map(int, contexts)
    ]


def by_position(arm: Mapping[str, Any]) -> Points:
    """A line over the positions of the longest context; a span stands at its last position."""
    longest = [max(at_contexts(run).items())[1]["by_position"] for run in arm["runs"]]
    return [
        point(spans[0]["last"], [span["loss"] for span in spans])
        for spans in zip(*longest, strict=True)
    ]


def at_contexts(run: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """A run's figures by context; JSON makes strings of the keys."""
    return {int(context): figures for context, figures in run["by_context"].items()}


def point(x: float, losses: Sequence[float]) -> tuple[float, float, float, float]:
    """x, and the perplexity of the mean, of the lowest and of the highest loss."""
    mean = sum(losses) / len(losses)
    return x, perplexity(mean), perplexity(min(losses)), perplexity(max(losses))


def context_figures(found: Json) -> list[Figure]:
    """Perplexity over context lengths, and over positions."""
    contexts = [int(context) for context in found["contexts"]]
    arms = list(found["arms"].items())
    lengths = [line(name, by_context(arm, contexts), i) for i, (name, arm) in enumerate(arms)]
    seen = [line(name, after_first(by_position(arm)), i) for i, (name, arm) in enumerate(arms)]
    places = f"tokens seen, of a context of {max(contexts):,}"
    shared: dict[str, Any] = {
        "log_x": True,
        "log_y": True,
        "guides": sorted({arm["trained"] for _, arm in arms}),
        "data": study_command(found),
    }
    return [
        Figure(
            "context",
            "By context length",
            "perplexity over the whole context",
            {"x": "tokens of context (dotted: in training)"},
            lengths,
            "Dotted vertical lines: the context of the training.",
            places={"x": contexts},
            **shared,
        ),
        Figure(
            "position",
            "By position",
            "perplexity at that position",
            {"x": f"{places} (dotted: in training)"},
            seen,
            "Dotted vertical lines: the context of the training.",
            **shared,
        ),
    ]


def after_first(points: Points) -> Points:
    """What the picture shows of a line over positions: all of it if that is short."""
    return [point for point in points if point[0] >= FIRST] or points


def line(name: str, points: Points, colour: int) -> Series:
    """An arm's line with the seeds' range."""
    x, mean, low, high = (list(part) for part in zip(*points, strict=True))
    return banded(name, "x", x, mean, colour, low, high)
