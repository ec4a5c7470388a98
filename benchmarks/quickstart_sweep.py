"""The sweep behind the quickstart's learning rates: arms × rates × seeds, on a separate split.

    .venv/bin/python benchmarks/quickstart_sweep.py

Rates are tuned on documents that the quickstart never reports: a split of the training documents
(studies.core.tune). Each arm's rates are a geometric grid around its recipe's rate. While
the best mean is at an edge, the grid grows there. Every run is annealed to its end. Finished runs
are reused, so the same command resumes after an interruption.

To change an arm: --set ngpt:model.alpha.init=0.05 (its runs get separate folders).
Writes docs/results/quickstart-sweep.json and .md.
"""

import argparse
import hashlib
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unitsphere.errors import Preempted, UserError
from unitsphere.report.render.markdown import markdown_table
from unitsphere.studies.core.execute import Local, Record
from unitsphere.studies.core.kind import provenance, study_folder
from unitsphere.studies.core.plan import arm_config
from unitsphere.studies.core.spec import ArmSpec, Study, Tune
from unitsphere.studies.core.tune import Search, arm_search, mean_loss, search

ARMS = ("gpt-plus", "ngpt", "angpt", "normformer")
GROWTHS = 6


def study_of(args: argparse.Namespace) -> Study:
    """The arms with their changes, and how they are tuned."""
    arms = {}
    for name in args.arms:
        changes = overrides_of(name, args.set)
        lr = changes.pop("optim.lr", None)
        arms[folder_name(name, changes)] = ArmSpec(f"quickstart/{name}", changes, lr)
    tune = Tune(math.sqrt(2), args.points, GROWTHS, list(range(args.seeds)), fraction=0.02)
    # The quickstart validates on a part of its split; a sweep on the whole.
    return Study(arms=arms, set={"train.eval_tokens": 10**9}, tune=tune)


def folder_name(name: str, changes: Mapping[str, object]) -> str:
    """Name of an arm, and of the folder of its runs; other settings, another name."""
    if not changes:
        return name
    digest = hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()
    return f"{name}-{digest[:8]}"


def sweep(study: Study, out: Path, steps: int | None, workers: int) -> dict[str, Search]:
    """Search the rate of each arm; a UserError if one stays at the edge of its grid."""
    searches = {}
    for arm in study.arms:
        train = arm_config(study, arm).train
        searches[arm] = arm_search(out, study, arm, (steps or train.steps) * train.batch_tokens)
    search(list(searches.values()), Local(workers), study.tune.ratio, study.tune.growths)
    for arm, found in searches.items():
        broken = [r for records in found.found.values() for r in records if r.status == "failed"]
        if broken:
            raise UserError(f"{broken[0].planned.name} failed: {broken[0].error}")
        if found.at_edge():
            raise UserError(
                f"{arm}: after {GROWTHS} growths the best rate is still at its "
                f"grid's edge: see {out}"
            )
    return searches


def document(study: Study, searches: Mapping[str, Search]) -> dict[str, Any]:
    """Everything that was found, and how to find it again."""
    first = next(iter(next(iter(searches.values())).found.values()))[0].planned
    return {
        **provenance("python benchmarks/quickstart_sweep.py"),
        "steps": first.config.train.steps,
        "tokens": first.tokens,
        "seeds": study.tune.seeds,
        "arms": [
            {
                "name": study.arms[arm].recipe.rpartition("/")[2],
                "overrides": study.arms[arm].set,
                "best": found.best(),
                "rates": [rate_figures(lr, found.found[lr]) for lr in sorted(found.found)],
            }
            for arm, found in searches.items()
        ],
    }


def rate_figures(lr: float, records: Sequence[Record]) -> dict[str, Any]:
    """The results of a rate, in bits per byte."""
    bits = {record.planned.seed: record.bits_per_byte for record in records}
    known = [value for value in bits.values() if value is not None]
    many = len(known) > 1
    return {
        "lr": lr,
        "mean": statistics.mean(known) if math.isfinite(mean_loss(records)) else None,
        "standard_error": statistics.stdev(known) / math.sqrt(len(known)) if many else None,
        "bits_per_byte": bits,
    }


def page(found: Mapping[str, Any]) -> str:
    """The same as Markdown, for people."""
    seeds = f"{len(found['seeds'])} seed{'s' * (len(found['seeds']) != 1)}"
    budget = f"{found['steps']} steps, {found['tokens']:,} tokens"
    best = ", ".join(f"{arm['best']:g} for {arm['name']}" for arm in found["arms"])
    parts = ["# The quickstart's learning rates\n", f"**The best rates are {best}.**\n"]
    for arm in found["arms"]:
        changes = ", ".join(f"{key} = {value}" for key, value in arm["overrides"].items())
        parts.append(f"## {arm['name']}{f' with {changes}' if changes else ''}\n")
        rows = [[rate_cell(r, arm["best"]), mean_cell(r), seeds_cell(r)] for r in arm["rates"]]
        parts.append(markdown_table(["learning rate", "bits per byte", "each seed"], rows))
    parts += [
        "## How it was measured\n",
        f"Validation bits per byte after whole runs of {budget} on the standard library of Python "
        f"{found['python']}: mean ± standard error over {seeds}. The documents that the "
        "quickstart validates on were taken out first; these figures are from a split of the "
        "rest. A grid grows until its best rate is no longer at its edge.\n",
        f"Command: `{found['command']}`  \nCommit: {found['commit']}  \n"
        f"Machine: {found['machine']}, torch {found['torch']}\n",
    ]
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
            raise UserError(f"--set {setting!r} is not ARM:KEY=VALUE with ARM one of {ARMS}")
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
        study = study_of(args)
        with study_folder(args.out, study):
            searches = sweep(study, args.out, args.steps, args.workers)
    except UserError as error:
        print(f"quickstart_sweep: error: {error}", file=sys.stderr)
        return 2
    except Preempted as stopped:
        print(stopped, file=sys.stderr)
        return 75
    found = document(study, searches)
    for arm in found["arms"]:
        means = {rate["lr"]: rate["mean"] for rate in arm["rates"]}
        print(f"{arm['name']}: {arm['best']:g} -> {means[arm['best']]:.4f} bits per byte")
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
