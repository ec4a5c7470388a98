"""The page of a ladder: optima by size, laws of size and compute, and the grids behind them."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unitsphere.report.document import (
    Block,
    Figure,
    Figures,
    Folded,
    Page,
    Section,
    Series,
    Style,
    Table,
    banded,
)
from unitsphere.report.numbers import known, within
from unitsphere.report.runs import Json, data_facts, runs_of_arms
from unitsphere.report.sections.settings import flag_lines, study_command, study_details

NAMES = {
    "lr": "rate(N)",
    "batch": "batch(N)",
    "loss": "loss(C)",
    "parameters": "N_opt(C)",
    "tokens": "D_opt(C)",
}
"""The laws, of parameters N and of compute C = 6·N·D."""
BY_SIZE = ("batch", "lr")
"""The laws of size; the others are of compute."""
LAWS = {
    "batch": ("Best batch by size", "tokens per step"),
    "lr": ("Best rate by size", "learning rate"),
    "loss": ("Loss by compute", "loss, nats per token"),
    "parameters": ("Best size by compute", "parameters"),
    "tokens": ("Best data by compute", "training tokens"),
}
"""The title of a law's figure, and its vertical axis."""
WORDS = {"loss": "lowest loss", "lr": "best rate", "batch": "best batch"}
LARGEST_LOG = 300.0
"""Of a law in a figure: beyond it neither the law nor its interval is within a float."""
AHEAD = 4.0
"""How far beyond its last point a law is drawn, as a ratio."""


def ladder_page(found: Json, folder: Path) -> Page:
    """What a ladder found: laws, optima, and the grids behind them."""
    runs = runs_of_arms(found["arms"], folder, words=2)  # size and batch
    grids = grid_figures(found)
    columns = max((len(arm["sizes"]) for arm in found["arms"].values()), default=1)
    grid = Figures(grids, files=["grid.png"], columns=columns)
    title = f"The loss of every batch and rate ({len(grids)} sizes)"
    return Page(
        title=folder.resolve().name,
        kind="Ladder",
        answer=answer(found),
        facts=data_facts(runs),
        caveats=flag_lines(found),
        sections=[
            Section("results", "Results", results(found)),
            *([Section("grids", "Grids", [Folded(title, [grid])])] if grids else []),
            *study_details(runs, found, folder, curves=False),
        ],
        provenance=found["provenance"],
    )


def results(found: Json) -> list[Block]:
    """The laws by size, those by compute, and the tables that have rows."""
    scaling = ["loss", "parameters", "tokens"] if found["computes"] else ["loss"]
    blocks: list[Block] = []
    for keys, file in ((BY_SIZE, "optima.png"), (scaling, "scaling.png")):
        figures = [figure for key in keys if (figure := law_figure(found, key)).series]
        if figures:
            blocks.append(Figures(figures, files=[file]))
    return [*blocks, *ladder_tables(found)]


def ladder_tables(found: Json) -> list[Table]:
    """The tables that have rows."""
    sizes = ("arm", "size", "parameters", "tokens", "batch", "rate", "loss", "at edge")
    best = ("arm", "compute", "N_opt", "D_opt", "loss", "at edge")
    laws = ("arm", "law", "points", "coefficient", "exponent")
    tests = ("arms", "law", "difference", "z", "p")
    tables = [
        Table("Best batch and rate", sizes, size_rows(found)),
        Table("Best size at a compute", best, best_rows(found)),
        Table("Laws: coefficient · x^exponent, 95% intervals", laws, law_rows(found)),
        Table("Exponents against the first arm's (Z-test)", tests, test_rows(found)),
        Table(
            "Suggested by the laws, 95% intervals",
            ("arm", "parameters", "batch", "rate"),
            suggestion_rows(found),
        ),
    ]
    return [table for table in tables if table.rows]


def size_rows(found: Json) -> list[list[str]]:
    """Each size's optimum."""
    return [
        [
            name,
            size["size"],
            f"{size['parameters']:,}",
            f"{size['tokens']:,}",
            known(size["batch"], ",.0f"),
            known(size["lr"], ".3g"),
            known(size["loss"], ".4f"),
            ", ".join(key for key in ("batch", "lr") if size[f"{key}_edge"]).replace("lr", "rate"),
        ]
        for name, arm in found["arms"].items()
        for size in arm["sizes"]
    ]


def best_rows(found: Json) -> list[list[str]]:
    """The best size at each compute."""
    return [
        [
            name,
            f"{best['compute']:.3g}",
            f"{best['parameters']:,.0f}",
            f"{best['tokens']:,.0f}",
            f"{best['loss']:.4f}",
            best["edge"] or "",
        ]
        for name, arm in found["arms"].items()
        for best in arm["allocations"]
    ]


def law_rows(found: Json) -> list[list[str]]:
    """Each law."""
    return [
        [
            name,
            NAMES[key],
            str(law["points"]),
            within(law["coefficient"], law["coefficient_interval"], ".3g"),
            within(law["exponent"], law["exponent_interval"], ".3f"),
        ]
        for name, arm in found["arms"].items()
        for key, law in arm["laws"].items()
        if law
    ]


def test_rows(found: Json) -> list[list[str]]:
    """Each test of two exponents."""
    return [
        [
            " − ".join(test["arms"]),
            NAMES[test["law"]],
            f"{test['difference']:+.4f}",
            known(test["z"], ".2f"),  # none where the errors are 0
            f"{test['p']:.3g}",
        ]
        for test in found["tests"]
    ]


def suggestion_rows(found: Json) -> list[list[str]]:
    """The suggestion for each size that the study asks for."""
    return [
        [
            name,
            f"{each['parameters']:,}",
            within(each["batch"], each["batch_interval"], ",.0f"),
            within(each["lr"], each["lr_interval"], ".3g"),
        ]
        for name, arm in found["arms"].items()
        for each in arm["suggestions"]
    ]


def answer(found: Json) -> str:
    """How the loss or the best rate changes with size, with the exponents' intervals."""
    said = []
    for name, arm in found["arms"].items():
        key = next((key for key in WORDS if arm["laws"].get(key)), None)
        if key is None:
            said.append(f"{name} has no law yet")
            continue
        law = arm["laws"][key]
        exponent = within(law["exponent"], law["exponent_interval"], ".3f")
        x = "compute" if key == "loss" else "size"
        said.append(f"{name}'s {WORDS[key]} scales as {x} to the power {exponent}")
    tests = [
        f"the exponents of {NAMES[t['law']]} of {' and '.join(t['arms'])} differ by "
        f"{abs(t['difference']):.4f} (p = {t['p']:.2g})"
        for t in found["tests"]
    ]
    brackets = " Brackets are 95% intervals." if any("[" in each for each in said) else ""
    return f"{'; '.join([*said, *tests[:1]])}.{brackets}"


def law_figure(found: Json, key: str) -> Figure:
    """The arms' points, and the law through them with its 95% interval."""
    title, label = LAWS[key]
    lines = [
        line
        for index, (name, arm) in enumerate(found["arms"].items())
        for line in law_lines(name, law_points(arm, key, found), arm["laws"].get(key), index)
    ]
    return Figure(
        name=f"law-{key}",
        title=title,
        y=label,
        xs={"x": "parameters" if key in BY_SIZE else "compute (operations)"},
        series=lines,
        caption="Points: what was found, hollow where the law leaves them out. Dashed: the law "
        "through the points, and its 95% interval.",
        log_x=True,
        log_y=True,
        data=study_command(found),
    )


Point = tuple[float, float, bool]
"""x, y, and whether the law rests on it."""


def law_points(arm: Json, key: str, found: Json) -> list[Point]:
    """What a law rests on: the best sizes at the computes, or the sizes' optima."""
    if found["computes"] and key not in BY_SIZE:
        return [(best["compute"], best[key], best["edge"] is None) for best in arm["allocations"]]
    x = "parameters" if key in BY_SIZE else "compute"
    return [
        (size[x], size[key], size["batch_edge"] is None and size["lr_edge"] is None)
        for size in arm["sizes"]
        if size[key] is not None
    ]


def law_lines(name: str, points: Sequence[Point], law: Json | None, colour: int) -> list[Series]:
    """An arm's points, those that its law leaves out, and the law to beyond the last point.

    A fitted law goes through the mean of its points' logarithms. Drawn from there it does not need
    the value at 1, which a float may not hold.
    """
    lines = []
    styles: dict[bool, Style] = {True: "points", False: "hollow"}
    for kept, style in styles.items():
        told = [(x, y) for x, y, rests in points if rests == kept]
        if told:
            xs, ys = zip(*told, strict=True)
            label = name if kept else f"{name}, left out"
            lines.append(banded(label, "x", xs, ys, colour, style=style, group=name))
    xs = [x for x, _, rests in points if rests]
    if law is None or not xs:
        return lines
    ends = np.geomspace(min(xs), AHEAD * max(xs), 40).tolist()
    centre = statistics.fmean(math.log(x) for x in xs)
    height = statistics.fmean(math.log(y) for _, y, rests in points if rests)
    heights = [bounded_exp(height + law["exponent"] * (math.log(x) - centre)) for x in ends]
    factors = [interval_factor(law, xs, x) for x in ends]
    lows, highs = (
        [None if f is None else y * f**sign for y, f in zip(heights, factors, strict=True)]
        for sign in (-1, 1)
    )
    drawn = banded(f"{name}, law", "x", ends, heights, colour, lows, highs, "dashed", name)
    return [*lines, drawn]


def interval_factor(law: Json, xs: Sequence[float], x: float) -> float | None:
    """The end of a law's 95% interval at x over the law itself; None where there is no interval.

    From the standard error of a straight line through logarithms: the variance of its height at
    the points' mean, and that of its slope times the squared distance from the mean.
    """
    if not law["exponent_interval"] or not law["exponent_variance"] or len(xs) != law["points"]:
        return None
    logs = [math.log(each) for each in xs]
    centre = statistics.fmean(logs)
    spread = sum((each - centre) ** 2 for each in logs)
    quantile = (law["exponent_interval"][1] - law["exponent"]) / law["exponent_variance"] ** 0.5
    variance = law["exponent_variance"] * (spread / len(xs) + (math.log(x) - centre) ** 2)
    return bounded_exp(quantile * variance**0.5)


def bounded_exp(logarithm: float) -> float:
    """e to a power, of at most LARGEST_LOG either way."""
    return math.exp(min(max(logarithm, -LARGEST_LOG), LARGEST_LOG))


def grid_figures(found: Json) -> list[Figure]:
    """A plot for each arm and size: the loss of each batch over its rates."""
    return [
        Figure(
            name=f"grid-{name}.{size['size']}",  # neither has a point
            title=f"{name} {size['size']}: {size['parameters']:,} parameters",
            y="loss, nats per token",
            xs={"lr": "learning rate"},
            series=[
                line
                for place, batch in enumerate(size["batches"])
                for line in batch_lines(batch, place)
            ],
            caption="A star: the lowest point of the curve through a batch's losses.",
            log_x=True,
            data=study_command(found),
        )
        for name, arm in found["arms"].items()
        for size in arm["sizes"]
    ]


def batch_lines(batch: Json, colour: int) -> list[Series]:
    """A batch's losses over its rates, and its best rate as a star."""
    name = f"{batch['batch']:,} tokens per step"
    rates, losses = ([rate[key] for rate in batch["rates"]] for key in ("lr", "loss"))
    lines = [banded(name, "lr", rates, losses, colour)]
    if batch["lr"] is not None:
        best = banded("best", "lr", [batch["lr"]], [batch["loss"]], colour, style="star")
        lines.append(dataclasses.replace(best, name=f"{name}, best", group=name))
    return lines
