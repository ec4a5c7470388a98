"""The sweep behind the quickstart's learning rates: arms × rates × seeds, on a split of its own.

    .venv/bin/python benchmarks/quickstart_sweep.py

Rates are tuned on documents that the quickstart never reports: its validation documents are taken
out of the source first, and what is left is split anew into training and tuning documents. Each
arm's rates are a geometric grid around its recipe's; while the best mean lies at an edge, the
grid grows there. Every run is a whole run, annealed to its end. Finished runs are reused, so the
same command goes on after an interruption.

A change to be tried on an arm: --set ngpt:model.alpha.init=0.05 (its runs lie apart).
Writes docs/results/quickstart-sweep.json and .md.
"""

import argparse
import hashlib
import itertools
import json
import math
import os
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unitsphere.data.encode import Job as Preparation
from unitsphere.data.prepare import prepared, tokenizer_spec
from unitsphere.data.sources import find_files, read_documents
from unitsphere.errors import UserError
from unitsphere.report.table import markdown
from unitsphere.studies.executor import Interrupted, Job, run_jobs
from unitsphere.studies.progress import display
from unitsphere.studies.runs import is_finished, train_job, wanted
from unitsphere.training.config import RunConfig
from unitsphere.training.environment import commit, cpu_model, package_version
from unitsphere.training.log import read_metrics
from unitsphere.training.recipes import load_recipe

ARMS = ("gpt-plus", "ngpt", "angpt", "normformer")
GRID_RATIO = math.sqrt(2)
GROWTHS = 6
DIVERGED = "gradient norm"
"""what the last line of a run says that ended because its loss or gradient was not finite"""


@dataclass
class Arm:
    """One architecture with its settings; `results` maps rate -> seed -> bits per byte or None."""

    name: str
    overrides: dict[str, Any]
    rates: list[float]
    results: dict[float, dict[int, float | None]] = field(default_factory=dict)

    @property
    def recipe(self) -> str:
        """The recipe it starts from."""
        return f"quickstart/{self.name}"

    @property
    def folder(self) -> str:
        """Name of the folder of its runs; other settings, another folder."""
        if not self.overrides:
            return self.name
        digest = hashlib.sha256(json.dumps(self.overrides, sort_keys=True).encode()).hexdigest()
        return f"{self.name}-{digest[:8]}"

    def mean(self, rate: float) -> float:
        """Mean bits per byte over the seeds; infinite if one of them diverged."""
        values = list(self.results[rate].values())
        known = [value for value in values if value is not None]
        return statistics.mean(known) if len(known) == len(values) else math.inf

    def error(self, rate: float) -> float | None:
        """Standard error of that mean, from two seeds on."""
        known = [value for value in self.results[rate].values() if value is not None]
        return statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None

    def best(self) -> float:
        """The rate of the lowest mean."""
        return min(self.results, key=self.mean)


def grid(centre: float, points: int) -> list[float]:
    """`points` rates around `centre`, each √2 times the one before, to three digits."""
    return [rounded(centre * GRID_RATIO ** (i - points // 2)) for i in range(points)]


def rounded(rate: float) -> float:
    """Three significant digits."""
    return float(f"{rate:.3g}")


def grown(rates: Sequence[float], best: float, ratio: float = GRID_RATIO) -> float | None:
    """The rate to add when the best lies at an edge of the grid; None when it is bracketed."""
    ordered = sorted(rates)
    if best == ordered[-1]:
        return rounded(best * ratio)
    return rounded(best / ratio) if best == ordered[0] else None


def tuning_source(config: RunConfig, folder: Path) -> Path:
    """A JSONL file of the source's documents without those that the quickstart validates on."""
    path = folder / "tuning.jsonl"
    data = config.data
    files = find_files(data.source)
    tokenizer = tokenizer_spec(data)
    reported = Preparation(data.source, files, data.field, tokenizer, data.val_fraction)
    folder.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".writing")
    with aside.open("w", encoding="utf-8") as out:
        pieces = read_documents(files, data.field)
        for document, group in itertools.groupby(pieces, key=lambda piece: piece.document):
            if not reported.holds_out(document):
                text = "".join(piece.text for piece in group)
                out.write(json.dumps({"text": text}) + "\n")
    os.replace(aside, path)
    return path


def common_overrides(source: Path, steps: int | None) -> dict[str, Any]:
    """What every run of the sweep is given: the tuning documents, one evaluation at its end."""
    found: dict[str, Any] = {
        "data.source": str(source),
        "data.field": "text",
        "data.cache": str(source.parent / "data"),
        "train.eval_every": 0,
        "train.eval_tokens": None,
        "train.save_every": 0,
    }
    return found | ({"train.steps": steps} if steps else {})


def run_missing(
    arms: Sequence[Arm], seeds: Sequence[int], out: Path, common: Mapping[str, Any], workers: int
) -> None:
    """Train every run of the arms' grids that is not finished, and read all results."""
    runs: dict[tuple[str, float, int], Path] = {}
    jobs = []
    for arm in arms:
        for rate, seed in itertools.product(sorted(arm.rates), seeds):
            run = out / arm.folder / f"lr-{rate:g}-seed-{seed}"
            runs[arm.folder, rate, seed] = run
            keys = {**common, **arm.overrides, "optim.lr": rate, "train.seed": seed}
            config = wanted(arm.recipe, keys, run)
            if not is_finished(run):
                prepared(config.data)
                name = f"{arm.folder} {rate:g} #{seed}"
                jobs.append(train_job(name, arm.recipe, keys, run, config.train.steps))
    print(f"{len(jobs)} of {len(runs)} runs to train", file=sys.stderr, flush=True)
    train_all(jobs, workers)
    for arm in arms:
        for rate in arm.rates:
            arm.results[rate] = {s: bits_of(runs[arm.folder, rate, s]) for s in seeds}


def train_all(jobs: Sequence[Job], workers: int) -> None:
    """Run the jobs; one may diverge, any other failure is a UserError."""
    if not jobs:
        return
    with display(workers, sys.stderr) as show:
        states = run_jobs(jobs, workers, show)
    for state in states:
        if state.status == "failed" and DIVERGED not in (state.error or ""):
            raise UserError(f"{state.job.name} failed: {state.error} (log: {state.job.log})")


def bits_of(run: Path) -> float | None:
    """Bits per byte on the tuning documents after the last step; None if the run diverged."""
    return read_metrics(run)[-1]["val_bits_per_byte"] if is_finished(run) else None


def sweep(
    arms: Sequence[Arm], seeds: Sequence[int], out: Path, common: Mapping[str, Any], workers: int
) -> None:
    """Run the grids, and grow each while its best rate lies at an edge."""
    for _ in range(GROWTHS + 1):
        run_missing(arms, seeds, out, common, workers)
        edges = {arm.folder: grown(arm.rates, arm.best()) for arm in arms}
        for arm in arms:
            new = edges[arm.folder]
            if new is not None:
                print(f"{arm.folder}: best at the edge of its grid, adds {new:g}", file=sys.stderr)
                arm.rates.append(new)
        if not any(edges.values()):
            return
    raise UserError(f"after {GROWTHS} growths a best rate is still at its grid's edge: see {out}")


def document(arms: Sequence[Arm], seeds: Sequence[int], config: RunConfig) -> dict[str, Any]:
    """Everything that was found, and how to find it again."""
    return {
        **provenance(),
        "steps": config.train.steps,
        "tokens": config.train.steps * config.train.batch_tokens,
        "seeds": list(seeds),
        "arms": [
            {
                "name": arm.name,
                "overrides": arm.overrides,
                "best": arm.best(),
                "rates": [
                    {
                        "lr": rate,
                        "mean": None if math.isinf(arm.mean(rate)) else arm.mean(rate),
                        "standard_error": arm.error(rate),
                        "bits_per_byte": arm.results[rate],
                    }
                    for rate in sorted(arm.rates)
                ],
            }
            for arm in arms
        ],
    }


def provenance() -> dict[str, Any]:
    """The command line, and what it ran on."""
    return {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(),
        "machine": f"{cpu_model()}, {os.cpu_count()} cores, one thread a run",
        "python": sys.version.split()[0],
        "torch": package_version("torch"),
    }


def page(found: Mapping[str, Any]) -> str:
    """The same as Markdown, for people."""
    seeds, budget = len(found["seeds"]), f"{found['steps']} steps, {found['tokens']:,} tokens"
    parts = [
        "# The quickstart's learning rates\n",
        f"Validation bits per byte after whole runs of {budget} on the standard library of Python "
        f"{found['python']}: mean ± standard error over {seeds} seeds. The documents that the "
        "quickstart validates on were taken out first; these figures are from a split of the "
        "rest. A grid grows until its best rate is no longer at its edge.\n",
        f"Command: `{found['command']}`  \nCommit: {found['commit']}  \n"
        f"Machine: {found['machine']}, torch {found['torch']}\n",
    ]
    for arm in found["arms"]:
        changes = ", ".join(f"{key} = {value}" for key, value in arm["overrides"].items())
        parts.append(f"## {arm['name']}{f' with {changes}' if changes else ''}\n")
        rows = [[rate_cell(r, arm["best"]), mean_cell(r), seeds_cell(r)] for r in arm["rates"]]
        parts.append(markdown(["learning rate", "bits per byte", "each seed"], rows))
    return "\n".join(parts)


def rate_cell(rate: Mapping[str, Any], best: float) -> str:
    """The rate, in bold if it is the best."""
    return f"**{rate['lr']:g}**" if rate["lr"] == best else f"{rate['lr']:g}"


def mean_cell(rate: Mapping[str, Any]) -> str:
    """Mean ± standard error."""
    if rate["mean"] is None:
        return "diverged"
    error = rate["standard_error"]
    return f"{rate['mean']:.4f}" + ("" if error is None else f" ± {error:.4f}")


def seeds_cell(rate: Mapping[str, Any]) -> str:
    """Every seed's figure."""
    values = rate["bits_per_byte"].values()
    return ", ".join("diverged" if value is None else f"{value:.4f}" for value in values)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--seeds", type=int, default=3, help="seeds a rate (default 3)")
    parser.add_argument("--points", type=int, default=5, help="rates to begin with (default 5)")
    parser.add_argument("--steps", type=int, help="steps a run (default: the recipe's)")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="ARM:KEY=VALUE", help="change an arm's config"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart-sweep"))
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("docs/results/quickstart-sweep"),
        help="where to write the figures, without the ending",
    )
    return parser.parse_args(argv)


def overrides_of(arm: str, settings: Sequence[str]) -> dict[str, Any]:
    """The `--set` options that concern an arm, their values read as JSON where they are."""
    found: dict[str, Any] = {}
    for setting in settings:
        name, colon, rest = setting.partition(":")
        key, equals, value = rest.partition("=")
        if not (colon and equals and name in ARMS):
            raise UserError(f"--set {setting!r} is no ARM:KEY=VALUE with ARM one of {ARMS}")
        if name == arm:
            try:
                found[key] = json.loads(value)
            except json.JSONDecodeError:  # a word, such as cosine
                found[key] = value
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Sweep, write the results, print the best rates."""
    args = arguments(argv)
    try:
        first = load_recipe(f"quickstart/{args.arms[0]}")
        common = common_overrides(tuning_source(first, args.out), args.steps)
        arms = []
        for name in args.arms:
            overrides = overrides_of(name, args.set)
            centre = overrides.pop("optim.lr", load_recipe(f"quickstart/{name}").optim.lr)
            arms.append(Arm(name, overrides, grid(centre, args.points)))
        sweep(arms, range(args.seeds), args.out, common, args.workers)
    except UserError as error:
        print(f"quickstart_sweep: error: {error}", file=sys.stderr)
        return 2
    except Interrupted:
        print("stopped and saved: the same command goes on from there", file=sys.stderr)
        return 75
    config = wanted(arms[0].recipe, {**common, **arms[0].overrides}, args.out / "none")
    found = document(arms, range(args.seeds), config)
    for arm in arms:
        print(f"{arm.folder}: {arm.best():g} -> {arm.mean(arm.best()):.4f} bits per byte")
    write(found, page(found), args.results)
    return 0


def write(found: Mapping[str, Any], text: str, results: Path) -> None:
    """The figures as JSON and as a page, at `results` with the two endings."""
    results.parent.mkdir(parents=True, exist_ok=True)
    json_path, page_path = (results.with_suffix(ending) for ending in (".json", ".md"))
    json_path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    page_path.write_text(text, encoding="utf-8")
    print(f"{json_path}, {page_path}")


if __name__ == "__main__":
    sys.exit(main())
