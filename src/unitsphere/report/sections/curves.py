"""Curves of training: what the records of some runs say, by step, tokens, time and operations."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from unitsphere.report.document import Block, Figure, Figures, Mark, Number, Section, Series, Text
from unitsphere.report.numbers import round_off
from unitsphere.report.runs import Json, Run, by_arm, is_number

POINTS = 4000
"""Points of a figure, all its lines together."""
LEAST = 120
"""Points that a line keeps, however many lines there are."""

MOST_TOLD = 8
"""Last values that a caption names."""
TIMES = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))

Axes = Mapping[str, tuple[str, Callable[[Run, Json], float]]]
"""Choice of the horizontal axis -> its label, and where a run's record is on it."""


class Measure(NamedTuple):
    """A key of the records, and how it is drawn."""

    key: str
    title: str
    unit: str
    smooth: bool


MEASURES = (
    Measure("val_bits_per_byte", "Validation", "bits per byte", smooth=False),
    Measure("val_loss", "Validation loss", "nats per token", smooth=False),
    Measure(
        "val_loss_average", "Validation loss, averaged weights", "nats per token", smooth=False
    ),
    Measure("loss", "Training loss", "nats per token", smooth=True),
    Measure("val_accuracy", "Masked tokens that are right", "share", smooth=False),
    Measure("grad_norm", "Norm of the gradient", "norm", smooth=True),
    Measure("lr", "Learning rate", "rate", smooth=False),
    Measure("tokens_per_second", "Speed", "tokens per second", smooth=True),
    Measure("mfu", "Share of the device's peak", "model FLOPs utilisation", smooth=True),
)


ARROW = " An arrow: how many times fewer steps an arm needs to come to the last loss of {}."
VALIDATED = ("val_bits_per_byte", "val_loss")
"""Measures between whose lines speedups are drawn."""


def curves(runs: Sequence[Run], baseline: str | None = None) -> Figures | None:
    """The figures of what the runs have on record; None if that is nothing.

    The colour of a run is its arm's. The loss in nats is left out where bits per byte say the
    same of all runs.
    baseline: the arm to whose last validation loss arrows lead from the others.
    """
    arms = list(by_arm(runs))
    records = [record for run in runs for record in run.records]
    told = {key for record in records for key in record}
    shown = [m for m in MEASURES if m.key in told]
    if all("val_bits_per_byte" in record for record in records if "val_loss" in record):
        shown = [m for m in shown if m.key != "val_loss"]
    axes = axis_labels(runs)
    figures = [
        Figure(
            name=measure.key.replace("_", "-"),
            title=measure.title,
            y=measure.unit,
            xs={key: label for key, (label, _) in axes.items()},
            series=lines,
            caption=last_values(runs, measure.key) + (ARROW.format(baseline) if marks else ""),
            marks=marks,
            data=data_command(runs),
        )
        for measure in shown
        if (lines := lines_of(runs, measure, arms, axes))
        for marks in [speedup_marks(lines, baseline) if measure.key in VALIDATED else []]
    ]
    return Figures(figures) if figures else None


def lines_of(
    runs: Sequence[Run], measure: Measure, arms: Sequence[str], axes: Axes
) -> list[Series]:
    """A line for each run that has the measure; none if no line has two points."""
    most = max(LEAST, POINTS // max(len(runs), 1))
    found = []
    for run in runs:
        told = [r for r in run.records if is_number(r.get(measure.key)) and is_number(r["step"])]
        y = [round_off(record[measure.key]) for record in told]
        kept = places(y, most)
        if y:
            found.append(
                Series(
                    name=run.name,
                    x=places_on(axes, run, [told[place] for place in kept]),
                    y=[y[place] for place in kept],
                    colour=arms.index(run.arm),
                    smooth=measure.smooth,
                    means=means(y, kept, most) if measure.smooth else None,
                    group=run.arm if len(arms) > 1 else "",
                )
            )
    return found if any(len(line.y) > 1 for line in found) else []


def speedup_marks(lines: Sequence[Series], baseline: str | None) -> list[Mark]:
    """From the baseline's last point to where each other line is first as low; of one seed each.

    The factor is that of steps, of places on record: nothing is interpolated.
    """
    base = [line for line in lines if line.legend == baseline]
    if len(base) != 1 or (last := base[0].y[-1]) is None:
        return []
    marks = []
    for line in lines:
        reached = [i for i, y in enumerate(line.y) if y is not None and y <= last]
        own = [other for other in lines if other.legend == line.legend]
        if line is base[0] or not reached or len(own) > 1:
            continue
        ends = {key: (base[0].x[key][-1], line.x[key][reached[0]]) for key in line.x}
        factor = ends["step"][0] / ends["step"][1]
        marks.append(Mark(ends, last, f"{line.legend} ×{factor:.2f}", line.legend, line.colour))
    return marks


def axis_labels(runs: Sequence[Run]) -> Axes:
    """The choices of the axis that all the records can be read by, with their labels."""
    every = [record for run in runs for record in run.records]
    axes: dict[str, tuple[str, Callable[[Run, Json], float]]] = {
        "step": ("optimizer steps", lambda run, record: record["step"])
    }
    if all(is_number(record.get("tokens")) for record in every):
        axes["tokens"] = ("training tokens", lambda run, record: record["tokens"])
    if all(is_number(record.get("time")) for record in every):
        longest = max((record["time"] for record in every), default=0.0)
        name, unit = next(pair for pair in TIMES if longest >= pair[1] or pair[1] == 1)
        axes["time"] = (f"{name} of training", lambda run, record: record["time"] / unit)
    if "tokens" in axes and all(run.size for run in runs):
        axes["flops"] = ("training operations (FLOPs)", operations)
    return axes


def operations(run: Run, record: Json) -> float:
    """The operations of a run up to a record, by those of its model for each token."""
    assert run.size is not None  # else there is no such axis
    return record["tokens"] * run.size.flops_per_token


def places_on(axes: Axes, run: Run, records: Sequence[Json]) -> dict[str, list[float]]:
    """Where a run's records are on each axis."""
    return {
        key: [round_off(place(run, record)) or 0.0 for record in records]
        for key, (_, place) in axes.items()
    }


def last_values(runs: Sequence[Run], key: str) -> str:
    """The last value of each line, or the mean of an arm's: for readers who cannot see them.

    Of the records: the lines are rounded already, and rounding twice may change the last digit.
    """
    several = len(by_arm(runs)) > 1
    ends: dict[str, list[float]] = {}
    for run in runs:
        if (last := run.last(key)) is not None:
            ends.setdefault(run.arm if several else run.name, []).append(last)
    told = [f"{name} {statistics.fmean(values):.4g}" for name, values in ends.items()]
    more = f" and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
    means = ", means" if any(len(values) > 1 for values in ends.values()) else ""
    return f"Last{means}: {', '.join(told[:MOST_TOLD])}{more}."


def data_command(runs: Sequence[Run]) -> str:
    """The command that trained the first run that has one on record; empty without any."""
    return next((run.command for run in runs if run.command), "")


def places(y: Sequence[Number], most: int) -> list[int]:
    """The places of at most `most` points (4 or more) that show the same line.

    The first and the last, and of each of equal pieces its lowest and highest.
    """
    if len(y) <= most:
        return list(range(len(y)))
    values = np.array(y, np.float64)  # NaN in the place of None
    kept = {0, len(y) - 1}
    for piece in pieces(len(y), most):
        known = piece[np.isfinite(values[piece])]
        if len(known):
            kept |= {int(known[np.argmin(values[known])]), int(known[np.argmax(values[known])])}
    return sorted(kept)


def means(y: Sequence[Number], kept: Sequence[int], most: int) -> list[Number] | None:
    """The mean of the piece of each of the kept `places`, for a smoothed line.

    A mean of only the lowest and highest would be too high where there are spikes. None if all
    places are kept.
    """
    if len(kept) == len(y):
        return None
    values = np.array(y, np.float64)
    found = {0: y[0], len(y) - 1: y[-1]}
    for piece in pieces(len(y), most):
        known = values[piece][np.isfinite(values[piece])]
        if len(known):
            found |= dict.fromkeys(piece.tolist(), round_off(float(known.mean())))
    return [found[place] for place in kept]


def pieces(count: int, most: int) -> list[np.ndarray]:
    """The places of equal pieces of a line of `count` points, without its ends."""
    return np.array_split(np.arange(1, count - 1), most // 2 - 1)


def unfinished(runs: Sequence[Run]) -> str:
    """How far the unfinished runs are; empty if all are finished."""
    going = [run for run in runs if not run.done]
    if not going:
        return ""
    parts = []
    for run in going[:4]:
        of = f" of {run.steps:,}" if run.steps else ""
        parts.append(f"{run.name} at step {run.step:,}{of}")
    more = f" and {len(going) - 4} more" if len(going) > 4 else ""
    return f"Not finished: {', '.join(parts)}{more}"


def curve_sections(
    runs: Sequence[Run], intro: str = "", baseline: str | None = None
) -> list[Section]:
    """The curves, if there is any; `baseline` is the arm whose last loss the others come to."""
    found = curves(runs, baseline)
    if found is None:
        lines: list[Block] = [Text(["There is no record of a step yet."])]
        return [Section("curves", "Curves", lines, detail=True)] if runs else []
    return [Section("curves", "Curves", [found], intro, detail=True)]
