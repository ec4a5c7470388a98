"""Every design at one small size on one text: three learning rates each, one seed.

    .venv/bin/python benchmarks/designs.py --extend

The arms share data, budget and schedule; every run is annealed to its end and then validated on
the whole held-out split. Finished runs are reused, so the same command resumes after an
interruption; --no-train writes the table from the existing runs. With --extend an arm whose best
rate is at the edge of its three gets one more beyond it.

design_arms.py has the arms and the sources of their rates. The first look behind some of the rates:

    .venv/bin/python benchmarks/designs.py --arms gpt pre-ln post-ln rezero --steps 100 \\
        --rates 2e-3 4e-3 8e-3 1.6e-2 --out runs/designs-look --results docs/results/designs-look

Writes docs/results/designs.json and .md.
"""

import argparse
import itertools
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from design_arms import DESIGNS, SHARED, SIZE, Design
from design_page import lowest, page
from quickstart_sweep import write

from unitsphere.config import read_json, to_dict
from unitsphere.errors import UserError
from unitsphere.models.registry import count_parameters
from unitsphere.studies.core.execute import Local, Record, execute, read_record
from unitsphere.studies.core.kind import provenance
from unitsphere.studies.core.local import Interrupted
from unitsphere.studies.core.plan import Planned, plan
from unitsphere.studies.core.tune import grown, rounded
from unitsphere.training.recipes import config_from

RATIO = 2.0


@dataclass
class Arm:
    """A design with its rates and runs; `results` maps a rate to bits per byte or a word."""

    name: str
    rates: list[float]
    out: Path
    steps: int
    results: dict[float, float | str] = field(default_factory=dict)

    @property
    def design(self) -> Design:
        """What it trains."""
        return DESIGNS[self.name]

    def run(self, rate: float) -> Path:
        """The run folder of a rate."""
        return self.out / self.name / f"lr-{rate:g}"

    @property
    def recipe(self) -> Path:
        """The file of its config, for `unitsphere train`."""
        return self.out / f"{self.name}.json"

    def write_recipe(self) -> None:
        """Write that file."""
        config = config_from(self.design.table(), self.name)
        self.out.mkdir(parents=True, exist_ok=True)
        self.recipe.write_text(json.dumps(to_dict(config), indent=2) + "\n", encoding="utf-8")

    def planned(self, rate: float) -> Planned:
        """A run; a UserError if its folder holds one of another config."""
        # Beside the study's folder, so that studies share what is prepared.
        cache = str(self.out.parent / "data")
        keys = {"optim.lr": rate, "train.steps": self.steps, "data.cache": cache}
        return plan(f"{self.name} {rate:g}", str(self.recipe), keys, self.run(rate))

    def read(self) -> None:
        """Read what every rate came to."""
        planned = [self.planned(rate) for rate in sorted(self.rates)]
        self.results = {run.lr: outcome(read_record(run)) for run in planned}

    def best(self) -> float | None:
        """The rate of the lowest figure; None while there is none."""
        figures = {rate: v for rate, v in self.results.items() if isinstance(v, float)}
        return min(figures, key=lambda rate: figures[rate]) if figures else None

    def beyond(self) -> float | None:
        """The rate next to a best one at the edge; None if it is bracketed or not known yet."""
        best = self.best()
        if best is None or "not run" in self.results.values():
            return None
        return grown(self.rates, best, RATIO)


def outcome(record: Record) -> float | str:
    """Validation bits per byte after the last step, "diverged" or "not run"."""
    if record.status == "finished":
        assert record.bits_per_byte is not None
        return record.bits_per_byte
    return "diverged" if record.status == "diverged" else "not run"


def train_missing(arms: Sequence[Arm], workers: int) -> None:
    """Train every run that neither finished nor diverged, and read all results.

    First every arm's first rate, then every arm's second, and so on: stopped early, it has
    something of every arm.
    """
    turns = itertools.zip_longest(*([(arm, rate) for rate in arm.rates] for arm in arms))
    runs = [arm.planned(rate) for arm, rate in filter(None, itertools.chain(*turns))]
    try:
        records = execute(runs, Local(workers))
    finally:
        for arm in arms:
            arm.read()
    for record in records:
        if record.status == "failed":
            log = record.planned.job().log
            raise UserError(f"{record.planned.name} failed: {record.error} (log: {log})")


def extend(arms: Sequence[Arm]) -> None:
    """Give each arm whose best rate is at an edge of its rates one more."""
    for arm in arms:
        rate = arm.beyond()
        if rate is not None:
            arm.rates.append(rate)


def document(arms: Sequence[Arm]) -> dict[str, Any]:
    """Everything that was found, and how to find it again."""
    train = config_from(DESIGNS[arms[0].name].table(), "").train
    ran = [read_json(arm.run(rate) / "environment.json") for arm in arms for rate in trained(arm)]
    return {
        **provenance(),
        "command": shlex.join(["python", *(word for word in sys.argv if word != "--no-train")]),
        "commit": ", ".join(sorted({str(found["commit"]) for found in ran})),
        "steps": arms[0].steps,
        "tokens": arms[0].steps * train.batch_tokens,
        "seed": train.seed,
        "shared": SHARED | {"model": SIZE},
        "arms": [record(arm) for arm in arms],
    }


def trained(arm: Arm) -> list[float]:
    """The rates that have a run."""
    return [rate for rate, value in arm.results.items() if value != "not run"]


def record(arm: Arm) -> dict[str, Any]:
    """One arm and its results."""
    config = arm.planned(arm.rates[0]).config
    return {
        "name": arm.name,
        "title": arm.design.title,
        "architecture": arm.design.architecture,
        "model": dict(arm.design.model),
        "optim": dict(arm.design.optim),
        "parameters": sum(count_parameters(config.architecture, config.model).values()),
        "best": arm.best(),
        "rates": [{"lr": rate, "bits_per_byte": value} for rate, value in arm.results.items()],
    }


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arms", nargs="+", default=list(DESIGNS), choices=DESIGNS)
    parser.add_argument("--rates", nargs="+", type=float, help="in place of each arm's own three")
    parser.add_argument("--steps", type=int, default=SHARED["train"]["steps"])
    parser.add_argument("--extend", action="store_true", help="one more rate where best is at edge")
    parser.add_argument("--no-train", action="store_true", help="only write what is finished")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time (default 1)")
    parser.add_argument("--out", type=Path, default=Path("runs/designs"))
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("docs/results/designs"),
        help="where to write the figures, without the ending",
    )
    return parser.parse_args(argv)


def arms_of(args: argparse.Namespace) -> list[Arm]:
    """The arms that were asked for, each with its recipe in a file."""
    arms = []
    for name in args.arms:
        middle = DESIGNS[name].middle
        own = [middle, rounded(middle / RATIO), rounded(middle * RATIO)]
        arms.append(Arm(name, list(args.rates or own), args.out, args.steps))
        arms[-1].write_recipe()
    return arms


def train(arms: Sequence[Arm], args: argparse.Namespace) -> None:
    """Train what is asked for, or read what is there."""
    for extension in [False, True] if args.extend else [False]:
        if extension:
            extend(arms)
        if args.no_train:
            for arm in arms:
                arm.read()
        else:
            train_missing(arms, args.workers)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, write the results, print the best rates."""
    args = arguments(argv)
    arms = arms_of(args)
    status = 0
    try:
        train(arms, args)
    except UserError as error:
        print(f"designs: error: {error}", file=sys.stderr)
        return 2
    except Interrupted:
        print("stopped and saved: the same command resumes", file=sys.stderr)
        status = 75
    found = document(arms)
    for arm in found["arms"]:
        print(f"{arm['name']}: {arm['best']} -> {lowest(arm):.4f} bits per byte")
    write(found, page(found), args.results)
    return status


if __name__ == "__main__":
    sys.exit(main())
