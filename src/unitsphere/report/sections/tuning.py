"""How each arm of a comparison was tuned: its rate, or its points of several keys."""

from collections.abc import Mapping
from typing import Any

from unitsphere.report.document import Folded, Section, Table, Text
from unitsphere.report.numbers import known
from unitsphere.report.runs import Json

TUNED = ("arm", "tokens", "points", "loss", "best point")


def tuning_lines(found: Json) -> list[str]:
    """The rates that were tried for each arm and budget."""
    lines = []
    for name, arm in found["arms"].items():
        for budget in arm["budgets"]:
            tuned = budget["tuned"]
            tried = ", ".join(f"{r['lr']:g}: {known(r['loss'], '.4f')}" for r in tuned["rates"])
            if tried:
                lines.append(f"{name} at {tuned['tokens']:,}: {tried}")
    return list(dict.fromkeys(lines))


def tuning_section(found: Json) -> Section:
    """The rates, or the points of several keys, that were tried for each arm."""
    if "tuning" not in found:
        rates = tuning_lines(found) or ["not tuned"]
        tuned = "Rates that were tried on documents that are not reported (loss there)"
        return Section("rates", "Rates", [Folded(tuned, [Text(rates, listed=True)])])
    tuning = found["tuning"]
    said = (
        f"Each arm was tuned by {tuning['trials']} points at most at each budget tuned at, "
        f"{len(tuning['seeds'])} run{'s' * (len(tuning['seeds']) > 1)} each, on documents that are "
        f"not reported ({tuning['method']}). Losses are of those documents."
    )
    searched = {
        (name, budget["tuned"]["tokens"]): budget["tuned"]
        for name, arm in found["arms"].items()
        for budget in arm["budgets"]
        if "trials" in budget["tuned"]
    }
    rows = [
        [name, f"{tokens:,}", str(one["tried"]), *best_cells(one["best"])]
        for (name, tokens), one in searched.items()
    ]
    flat = [
        f"{name} at {tokens:,}, its neighbours: {near}"
        for (name, tokens), one in searched.items()
        if (near := neighbours(one))
    ]
    every = [
        f"{name} at {tokens:,}: {values(trial['params'])}: {known(trial['loss'], '.4f')}"
        for (name, tokens), one in searched.items()
        for trial in sorted(one["trials"], key=lambda t: (t["loss"] is None, t["loss"] or 0.0))
    ]
    return Section(
        "tuning",
        "Tuning",
        [
            Text([said]),
            Table("Best point of each arm", TUNED, rows),
            *([Text(flat, listed=True)] if flat else []),
            Folded("All points, the best first", [Text(every, listed=True)]),
        ],
    )


def best_cells(best: Mapping[str, Any] | None) -> list[str]:
    """The loss of the best point, and what it sets."""
    return (
        ["–", "none trained"] if best is None else [f"{best['loss']:.4f}", values(best["params"])]
    )


def neighbours(one: Mapping[str, Any]) -> str:
    """How much higher the loss is at each neighbour of the best point."""
    return ", ".join(
        f"{short_key(n['key'])} {n['value']} "
        + ("not tried" if n["loss"] is None else f"{n['loss'] - one['best']['loss']:+.4f}")
        for n in one["neighbours"]
    )


def values(params: Mapping[str, Any]) -> str:
    """The values of a point, each key without its section."""
    return ", ".join(f"{short_key(key)} {value}" for key, value in params.items())


def short_key(key: str) -> str:
    """A key without its section."""
    return key.partition(".")[2] or key
