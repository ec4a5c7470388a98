"""The page of a comparison: losses at equal tokens, and speedups to equal loss."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unitsphere.report.document import (
    Block,
    Figure,
    Figures,
    Mark,
    Page,
    Section,
    Series,
    Table,
    Text,
    banded,
)
from unitsphere.report.numbers import known, short
from unitsphere.report.runs import Json, Run, by_arm, data_facts, found_in, lost_text
from unitsphere.report.sections.accuracy import accuracy_sections
from unitsphere.report.sections.curves import unfinished
from unitsphere.report.sections.probes import probe_sections
from unitsphere.report.sections.settings import (
    flag_lines,
    study_command,
    study_details,
    tuning_section,
)

LOSSES = ("arm", "tokens", "rate", "loss", "±", "bits/byte")
SPEEDUPS = ("arm", "tokens", "steps", "FLOPs", "time")
MEASURES = ("tokens", "steps", "flops", "time")
HOW = (
    "Each budget is a separate run, annealed over it. All arms see the same tokens, and for a "
    "seed in the same order. Losses are in nats per token on the validation split: mean and "
    "standard error over the seeds."
)
SPEEDUP = (
    "Speedup: how many times fewer tokens, steps, operations and seconds an arm needs to reach the "
    "baseline's last loss."
)


def compare_page(found: Json, folder: Path) -> Page:
    """What a comparison found, with the curves of its largest budget."""
    last = study_runs(folder, found, largest=True)
    return Page(
        title=folder.resolve().name,
        kind="Comparison",
        answer=answer(found),
        facts=[*data_facts(last), *facts(found)],
        caveats=[*flag_lines(found), *lost_text(last)],
        unfinished=unfinished(last),
        sections=[
            Section("results", "Results", results(found)),
            tuning_section(found),
            *study_details(
                last,
                found,
                folder,
                "The runs of the largest budget, one line per seed.",
                [
                    *accuracy_sections(study_runs(folder, found, largest=False), by_arm),
                    *probe_sections(last),
                ],
            ),
        ],
        provenance=found["provenance"],
    )


def results(found: Json) -> list[Block]:
    """The picture, the two tables, and what they do not say."""
    head = [*LOSSES, f"against {found['baseline']}"]
    said = notes(found)
    figure = budget_figure(found)
    return [
        *([Figures([figure], files=["loss.png"])] if figure.series else []),
        Table("Loss at equal tokens", head, loss_rows(found)),
        Table("Speedup to equal loss", SPEEDUPS, speedup_rows(found)),
        *([Text(said, listed=True)] if said else []),
        Text([HOW, SPEEDUP]),
    ]


def loss_rows(found: Json) -> list[list[str]]:
    """Each arm at each budget: rate, mean loss, its standard error, bits per byte, difference."""
    gaps = {(row["arm"], row["budget"]): row["loss"] for row in found["differences"]}
    rows = []
    for name, arm in found["arms"].items():
        for budget in arm["budgets"]:
            gap = gaps.get((name, budget["budget"]))
            figures = [budget[key] for key in ("loss", "standard_error", "bits_per_byte")]
            rows.append(
                [
                    name,
                    f"{budget['tokens']:,}",
                    known(budget["lr"], "g"),
                    *(known(figure, ".4f") for figure in figures),
                    "" if gap is None else f"{gap['mean']:+.4f}",
                ]
            )
    return rows


def speedup_rows(found: Json) -> list[list[str]]:
    """Each arm's speedups with their intervals."""
    return [[row["arm"], *(ratio(row[key]) for key in MEASURES)] for row in found["speedups"]]


def ratio(found: Mapping[str, Any]) -> str:
    """A speedup: "1.42 (1.31–1.55)", "1.42 (≥ 1.31)" if one end is known, or why there is none."""
    if found["median"] is None:
        return "not reached" if "not reached" in found["reason"] else "–"
    low, high = (known(found[end], ".2f") for end in ("low", "high"))
    span = f"{low}–{high}"
    if found["low"] is None:
        span = "no interval" if found["high"] is None else f"≤ {high}"
    elif found["high"] is None:
        span = f"≥ {low}"
    return f"{found['median']:.2f} ({span})"


def notes(found: Json) -> list[str]:
    """What the tables do not say: targets, reasons and statements, one line each."""
    lines = []
    for row in found["speedups"]:
        to = row.get("to")
        if to:
            line = (
                f"{row['arm']}: speedup to {row['baseline']}'s loss {to['loss']:.4f} at "
                f"{to['tokens']:,} tokens"
            )
            if row["seeds"] > 1:
                line += f"; median and 95% interval, bootstrap over {seeds(row)}"
            lines.append(line)
        lines += [f"{row['arm']}, {why}" for why in reasons(row)]
        if "behind" in row:
            behind, base = row["behind"], f"{row['arm']}: {row['baseline']}"
            lines.append(
                f"{base} reaches its last loss before the smallest budget"
                if behind["median"] is None
                else f"{base} reaches its last loss × {ratio(behind)} sooner"
            )
    last = found["budgets"][-1]
    return lines + [row["statement"] for row in found["differences"] if row["budget"] == last]


def seeds(row: Json) -> str:
    """The number of seeds of a row."""
    return f"{row['seeds']} seed{'s' * (row['seeds'] != 1)}"


def reasons(row: Mapping[str, Any]) -> list[str]:
    """Why an arm has no speedup in a measure, each reason once."""
    said: dict[str, list[str]] = {}
    for key in MEASURES:
        if "reason" in row[key]:
            said.setdefault(row[key]["reason"], []).append(key)
    return [f"{', '.join(keys)}: {reason}" for reason, keys in said.items()]


def answer(found: Json) -> str:
    """The best speedup with its interval, and whether the seeds explain it.

    The bootstrap's interval of few seeds is too narrow, so the test of the losses at the largest
    budget stands beside it. If no arm has a speedup, only the first arm's test. An arm that is
    there before its smallest budget comes first: its speedup is larger than any that is known. Of
    several the one with the lowest loss at the largest budget is named.
    """
    best = min(
        (row for row in found["speedups"] if row["tokens"]["median"] is not None),
        key=lambda row: -row["tokens"]["median"],
        default=None,
    )
    last = {r["arm"]: r for r in found["differences"] if r["budget"] == found["budgets"][-1]}
    said = {arm: row["statement"] for arm, row in last.items()}
    loss = {arm: row["loss"]["mean"] if row["loss"] else math.inf for arm, row in last.items()}
    early = min(
        (r["arm"] for r in found["speedups"] if is_early(r)), key=loss.__getitem__, default=None
    )
    if early is not None:
        reached = f"{early} reaches {found['baseline']}'s loss before its smallest budget"
        return f"{reached}, so how many times fewer tokens it needs is not known. {said[early]}."
    if best is not None:
        return f"{speedup(best)} {said[best['arm']]}."
    first = next(iter(said.values()), "No arm but the baseline finished: nothing can be said")
    return f"{first}."


def is_early(row: Json) -> bool:
    """Whether an arm comes to the baseline's loss before its smallest budget."""
    reason = row["tokens"].get("reason", "")
    return row["tokens"]["median"] is None and "before the smallest budget" in reason


def speedup(row: Json) -> str:
    """How many times fewer (or more) tokens an arm needs, with the interval."""
    gain = row["tokens"]
    more = gain["median"] < 1
    low, times, high = (
        1 / end if more and end is not None else end
        for end in (gain["low"], gain["median"], gain["high"])
    )
    return (
        f"{row['arm']} needs {times:.2f} times {'more' if more else 'fewer'} tokens than "
        f"{row['baseline']} to reach its loss "
        f"({spread(*((high, low) if more else (low, high)))}, {seeds(row)})."
    )


def spread(low: float | None, high: float | None) -> str:
    """An interval of which an end may not be known, in words."""
    if low is None:
        return "no interval" if high is None else f"95% interval up to {high:.2f}"
    return f"95% interval {low:.2f} " + ("or more" if high is None else f"to {high:.2f}")


def facts(found: Json) -> list[tuple[str, str]]:
    """Each arm's loss at the largest budget."""
    return [
        (f"{name}, loss", known(arm["budgets"][-1]["loss"], ".4f"))
        for name, arm in found["arms"].items()
    ]


def budget_figure(found: Json) -> Figure:
    """Loss over budgets; each point is a separate run, annealed over its tokens."""
    lines = [
        line
        for colour, (name, arm) in enumerate(found["arms"].items())
        for line in arm_lines(name, arm["budgets"], colour)
    ]
    return Figure(
        name="loss-by-budget",
        title="Loss against training tokens",
        y="validation loss, nats per token",
        xs={"tokens": "training tokens"},
        series=lines,
        caption="Each point: runs annealed over those tokens. The line is the mean over seeds, and "
        "the band is from the lowest seed to the highest. An arrow: how many times fewer tokens "
        f"an arm needs to reach the last loss of {found.get('baseline', 'the baseline')}.",
        log_x=True,
        places={"tokens": sorted({int(x) for line in lines for x in line.x["tokens"]})},
        marks=speedup_marks(found),
        data=study_command(found),
        ends=True,
    )


def arm_lines(name: str, budgets: Sequence[Json], colour: int) -> list[Series]:
    """The means of an arm's finished seeds with their range, and each seed as a point."""
    told = [(b["tokens"], {s["seed"]: s["loss"] for s in b["seeds"]}) for b in budgets]
    losses = [(x, [loss for loss in at.values() if loss is not None]) for x, at in told]
    points = [(x, values) for x, values in losses if values]
    if not points:
        return []
    xs = [x for x, _ in points]
    means = [sum(values) / len(values) for _, values in points]
    lows, highs = ([end(values) for _, values in points] for end in (min, max))
    found = [banded(name, "tokens", xs, means, colour, lows, highs)]
    each = dict.fromkeys(seed for _, at in told for seed in at)
    for seed in each if len(each) > 1 else ():
        y = [at.get(seed) for _, at in told]
        label = f"{name}, seed {seed}"
        places = [x for x, _ in told]
        found.append(banded(label, "tokens", places, y, colour, style="dots", group=name))
    return found


def speedup_marks(found: Json) -> list[Mark]:
    """An arrow for each speedup, from the baseline's last point to where the arm is as low."""
    order = list(found["arms"])
    marks = []
    for row in found["speedups"]:
        factor = row["tokens"]["median"]
        if factor is not None and row.get("to"):
            last = row["to"]["tokens"]
            ends = {"tokens": (float(last), last / factor)}
            name = row["arm"]
            text = f"{name} ×{factor:.2f}"
            marks.append(Mark(ends, row["to"]["loss"], text, name, order.index(name)))
    return marks


def study_runs(folder: Path, found: Json, largest: bool) -> list[Run]:
    """The runs of all budgets, or of the largest, wherever the study is now."""
    runs = []
    for name, arm in found["arms"].items():
        for budget in arm["budgets"][-1:] if largest else arm["budgets"]:
            size = "" if largest else f" {short(budget['tokens'])}"
            for seed in budget["seeds"]:
                place = found_in(folder, seed["run"])
                if place is not None:
                    runs.append(Run(f"{name}{size} #{seed['seed']}", name, place))
    return runs
