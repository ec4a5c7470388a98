"""The ladder of horizons: what each arm gains over each GPT, against tokens per parameter.

    python benchmarks/horizons.py

A folder in docs/results/horizons is a ladder: arms of one size on one text. Its files are what
`unitsphere compare benchmarks/horizons-….toml --json` printed, one for some of the horizons or
seeds, or runs of `unitsphere train` in that form. Writes docs/results/horizons.json, a row per
arm, baseline and horizon, and a picture per ladder, and prints the tables of
docs/results/horizons.md.

Speedup: how many times fewer tokens an arm needs to reach the loss that the baseline has at a
horizon, each horizon being runs of their own that are annealed over it; the interval is a
bootstrap over the seeds of each horizon, paired between the arms. Where a horizon has one seed
there is none: it would show the noise of the other horizons only. In time: the same times the
ratio of the median seconds per token. No figure is extrapolated: where an arm is ahead at the
smallest horizon already, or behind at the largest, there is a reason instead; so there is for the
time of an arm whose runs were on another machine, which have no `tokens_per_second`.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unitsphere.files import write_text
from unitsphere.report.document import Figure, Series, banded
from unitsphere.report.numbers import short
from unitsphere.report.render.picture import write_picture
from unitsphere.report.render.text import markdown_table
from unitsphere.studies.core.statistics import LossCurve, known, speedup, why

RESULTS = Path(__file__).parent.parent / "docs" / "results"
GPT = "gpt"
"""The architecture of the baselines."""
DRAWS = 1000
"""Of the bootstrap."""
SINGLE = "no interval: one seed at some horizon"


@dataclass
class Arm:
    """An arm of a ladder. seeds: tokens -> seed -> (nats per token, seconds per token or None)."""

    name: str
    architecture: str
    parameters: int
    rates: dict[int, float] = field(default_factory=dict)
    seeds: dict[int, dict[int, tuple[float, float | None]]] = field(default_factory=dict)

    def loss(self, tokens: int) -> float:
        """Mean over the seeds at a horizon."""
        return statistics.mean(loss for loss, _ in self.seeds[tokens].values())

    def error(self, tokens: int) -> float | None:
        """Standard error of that mean; None for one seed."""
        losses = [loss for loss, _ in self.seeds[tokens].values()]
        return statistics.stdev(losses) / len(losses) ** 0.5 if len(losses) > 1 else None

    def cost(self) -> float | None:
        """Seconds per token: the median run's, because other programs slow some runs down."""
        costs = [cost for runs in self.seeds.values() for _, cost in runs.values() if cost]
        return statistics.median(costs) if costs else None


def read(folder: Path) -> list[Arm]:
    """The arms of a ladder, with the runs of all files of its folder.

    Exits with a line for a run that two files have: one would take the other's place.
    """
    arms: dict[str, Arm] = {}
    for path in sorted(folder.glob("*.json")):
        for name, found in json.loads(path.read_text())["arms"].items():
            arm = arms.setdefault(name, Arm(name, found["architecture"], found["parameters"]))
            for budget in found["budgets"]:
                tokens = budget["tokens"]
                done = [seed for seed in budget["seeds"] if seed["status"] == "finished"]
                runs = {s["seed"]: (s["loss"], cost_of(s)) for s in done}
                held = arm.seeds.setdefault(tokens, {})
                if twice := sorted(held.keys() & runs.keys()):
                    place = f"{name} at {tokens:,} tokens"
                    sys.exit(f"{path}: another file has seed {twice[0]} of {place} too: keep one")
                held.update(runs)
                arm.rates[tokens] = budget["lr"]
    return list(arms.values())


def cost_of(run: dict[str, Any]) -> float | None:
    """A run's seconds per token; None if its speed cannot be compared with the others'."""
    speed = run.get("tokens_per_second")
    return 1 / speed if speed else None


def rows_of(arms: list[Arm]) -> Iterator[dict[str, Any]]:
    """A row for each baseline, other arm, and horizon that both have."""
    for base in (arm for arm in arms if arm.architecture == GPT):
        for arm in arms:
            horizons = sorted(set(arm.seeds) & set(base.seeds))
            if arm is not base and horizons:
                yield from pair_rows(base, arm, horizons)


def pair_rows(base: Arm, arm: Arm, horizons: list[int]) -> Iterator[dict[str, Any]]:
    """The rows of an arm against a baseline."""
    seeds = [sorted(set(base.seeds[tokens]) & set(arm.seeds[tokens])) for tokens in horizons]
    if not all(seeds):
        return
    costs, single = (arm.cost(), base.cost()), min(map(len, seeds)) == 1
    curves = list(drawn(base, arm, horizons, seeds))
    for place, tokens in enumerate(horizons):
        ratio = np.array([speedup(before, after, place) for before, after in curves])
        yield {
            "arm": arm.name,
            "baseline": base.name,
            "parameters": arm.parameters,
            "tokens": tokens,
            "tokens_per_parameter": round(tokens / base.parameters, 1),
            "lr": arm.rates[tokens],
            "loss": arm.loss(tokens),
            "standard_error": arm.error(tokens),
            "baseline_loss": base.loss(tokens),
            "seeds": len(seeds[place]),
            "speedup": figure(ratio, single),
            "time": in_time(ratio, single, *costs),
        }


def drawn(
    base: Arm, arm: Arm, horizons: list[int], seeds: list[list[int]]
) -> Iterator[tuple[LossCurve, LossCurve]]:
    """The curves of both arms for each draw: of each horizon's seeds, the same ones for both."""
    random = np.random.default_rng(0)
    losses = [
        [
            np.array([a.seeds[t][seed][0] for seed in own])
            for t, own in zip(horizons, seeds, strict=True)
        ]
        for a in (base, arm)
    ]
    for _ in range(DRAWS):
        picks = [random.integers(0, len(own), len(own)) for own in seeds]
        before, after = (
            [float(values[pick].mean()) for values, pick in zip(each, picks, strict=True)]
            for each in losses
        )
        yield LossCurve(horizons, before), LossCurve(horizons, after)


def figure(ratio: np.ndarray, single: bool) -> dict[str, Any]:
    """Median and 95% interval of the draws; None where a loss was not reached, and the reason.

    single: some horizon has one seed, so there is no interval.
    """
    low, median, high = np.quantile(ratio, [0.025, 0.5, 0.975], method="inverted_cdf").tolist()
    if known(median) is None:
        return {"median": None, "low": None, "high": None, "reason": why(median, "")}
    if single:
        return {"median": median, "low": None, "high": None, "reason": SINGLE}
    return {"median": median, "low": known(low), "high": known(high)}


def in_time(
    ratio: np.ndarray, single: bool, cost: float | None, base_cost: float | None
) -> dict[str, Any]:
    """The speedup in time, where the seconds per token of both arms can be compared."""
    if cost is None or base_cost is None:
        reason = "not measured: the runs were on different machines"
        return {"median": None, "low": None, "high": None, "reason": reason}
    return figure(ratio / (cost / base_cost), single)


def speedup_cell(figure: dict[str, Any]) -> str:
    """`1.42 (1.31–1.55)`; `ahead` before the first horizon, `behind` at the last; – if unknown."""
    median, low, high = figure["median"], figure["low"], figure["high"]
    if median is None and "not measured" in figure["reason"]:
        return "–"
    if median is None:
        return "behind" if "not reached" in figure["reason"] else "ahead"
    if low is None and high is None:
        return f"{median:.2f}"
    ends = ("…" if end is None else f"{end:.2f}" for end in (low, high))
    return f"{median:.2f} ({'–'.join(ends)})"


def loss_table(arms: list[Arm]) -> str:
    """Losses by arm and horizon, each horizon's lowest in bold."""
    horizons = sorted({tokens for arm in arms for tokens in arm.seeds})
    best = {t: min(arm.loss(t) for arm in arms if t in arm.seeds) for t in horizons}

    def cell(arm: Arm, tokens: int) -> str:
        if tokens not in arm.seeds:
            return "–"
        loss, error = arm.loss(tokens), arm.error(tokens)
        text = f"{loss:.3f}" if loss > best[tokens] else f"**{loss:.3f}**"
        return text if error is None else f"{text} ± {error:.3f}"

    head = ["arm", *(f"{t / arms[0].parameters:.2g} ({short(t)})" for t in horizons)]
    return markdown_table(head, [[arm.name, *(cell(arm, t) for t in horizons)] for arm in arms])


def gain_tables(rows: list[dict[str, Any]]) -> Iterator[str]:
    """For each baseline, the speedups in tokens and in time by arm and horizon."""
    for base in dict.fromkeys(row["baseline"] for row in rows):
        own = [row for row in rows if row["baseline"] == base]
        horizons = sorted({row["tokens_per_parameter"] for row in own})
        head = ["arm", *(f"{unit} at {t:g}" for unit in ("tokens", "time") for t in horizons)]
        body = []
        for arm in dict.fromkeys(row["arm"] for row in own):
            at = {row["tokens_per_parameter"]: row for row in own if row["arm"] == arm}
            cells = [
                speedup_cell(at[t][key]) if t in at else "–"
                for key in ("speedup", "time")
                for t in horizons
            ]
            body.append([arm, *cells])
        yield f"Over `{base}`:\n\n{markdown_table(head, body)}"


def figures(arms: list[Arm], rows: list[dict[str, Any]]) -> list[Figure]:
    """Loss against tokens, and speedup over each baseline against tokens per parameter.

    Only arms that were run at every horizon are drawn.
    """
    horizons = {t for arm in arms for t in arm.seeds}
    arms = [arm for arm in arms if arm.seeds.keys() == horizons]
    names = {arm.name for arm in arms}
    rows = [row for row in rows if {row["arm"], row["baseline"]} <= names]
    colours = {arm.name: place for place, arm in enumerate(arms)}
    found = [
        Figure(
            "loss",
            "Loss against tokens",
            "nats per token",
            {"tokens": "training tokens"},
            [loss_line(arm, colours[arm.name]) for arm in arms],
            log_x=True,
            places={"tokens": sorted(horizons)},
        )
    ]
    for base in dict.fromkeys(row["baseline"] for row in rows):
        own = [row for row in rows if row["baseline"] == base]
        known = [row for row in own if row["speedup"]["median"]]
        lines = [
            gain_line(arm, [row for row in own if row["arm"] == arm], colours[arm])
            for arm in dict.fromkeys(row["arm"] for row in known)
        ]
        if lines:
            places = sorted({row["tokens_per_parameter"] for row in known})
            figure = Figure(
                f"speedup-{base}",
                f"Fewer tokens than {base}",
                "times",
                {"horizon": "tokens per parameter"},
                lines,
                log_x=True,
                places={"horizon": places},
                level=1.0,
            )
            found.append(figure)
    return found


def loss_line(arm: Arm, colour: int) -> Series:
    """An arm's mean loss, with the band of its seeds."""
    tokens = sorted(arm.seeds)
    losses = [[loss for loss, _ in arm.seeds[t].values()] for t in tokens]
    lows, highs = ([end(values) for values in losses] for end in (min, max))
    means = [arm.loss(t) for t in tokens]
    return banded(arm.name, "tokens", tokens, means, colour, lows, highs)


def gain_line(name: str, rows: list[dict[str, Any]], colour: int) -> Series:
    """An arm's speedup over one baseline, with its interval.

    An end of the interval that is not known is drawn where the arm's horizons end: there it would
    need its most tokens (low) or its fewest (high). Where there is no interval there is no band.
    """
    horizons = [row["tokens_per_parameter"] for row in rows]
    known = [row for row in rows if row["speedup"]["median"]]
    xs = [row["tokens_per_parameter"] for row in known]
    found = [row["speedup"] for row in known]
    medians = [gain["median"] for gain in found]
    lows, highs = [], []
    for x, median, gain in zip(xs, medians, found, strict=True):
        single = "reason" in gain
        lows.append(median if single else gain["low"] or min(median, x / max(horizons)))
        highs.append(median if single else gain["high"] or max(median, x / min(horizons)))
    return banded(name, "horizon", xs, medians, colour, lows, highs)


def main(argv: list[str] | None = None) -> int:
    """Write the rows and the pictures, and print the tables."""
    parser = argparse.ArgumentParser(description="Unite the studies of horizons.")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    results = parser.parse_args(argv).results
    rows = []
    for folder in sorted(path for path in (results / "horizons").iterdir() if path.is_dir()):
        arms = read(folder)
        found = list(rows_of(arms))
        write_picture(figures(arms, found), [folder.with_suffix(".png")])
        print(f"## {folder.name}\n", loss_table(arms), *gain_tables(found), sep="\n")
        rows += [{"ladder": folder.name} | row for row in found]
    write_text(results / "horizons.json", json.dumps({"rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
