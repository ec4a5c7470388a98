"""`unitsphere sweep`: search over any config keys, from one file."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from unitsphere.cli.output import print_json
from unitsphere.cli.parse import check_positive, parse
from unitsphere.cli.study import show_study, with_workers


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Search config keys by grid, at random or by Optuna, and report the best.

    Trials are judged, and hopeless ones stopped, on documents held out of the
    training split. Only the best point is then trained on all of it, beside the
    recipe as it is, and reported. The same command goes on where it was stopped.

    a study is a file like this (docs/how-to/sweep.md explains each key):
      tokens = 500_000
      method = "random"                    # or "grid", "optuna"
      trials = 12
      arms.ngpt = "quickstart/ngpt"
      [search]
      "optim.lr" = { low = 5e-3, high = 8e-2, log = true }
      "model.alpha.init" = [0.05, 0.25, 0.5]

    examples:
      unitsphere sweep my-sweep.toml
      unitsphere sweep my-sweep.toml --out runs/mine --workers 2 --json
    """

    study: Annotated[Positional[Path], arg(metavar="STUDY")]
    """a TOML file"""
    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """the study's folder; runs/NAME by default"""
    workers: int | None = None
    """runs at a time, in place of the file's"""
    dry_run: bool = False
    """say how many runs, hours and how much disk it would take, and train nothing"""
    json: bool = False
    """print one JSON document instead of tables"""


def run(argv: list[str]) -> int:
    """Train what is missing and report."""
    args = parse(Sweep, argv, "sweep")
    check_positive(workers=args.workers)
    from unitsphere.studies.core.results import provenance
    from unitsphere.studies.core.spec import load_study
    from unitsphere.studies.sweep import SweepStudy, sweep
    from unitsphere.studies.sweep_results import document, failures, write_sweep

    study = with_workers(load_study(SweepStudy, args.study), args.workers)
    out = args.out or Path("runs") / args.study.stem
    if args.dry_run:
        return show_study(study, out, args.json)
    found = sweep(study, out)
    results = document(study, found, provenance())
    files = write_sweep(study, found, results, out)
    if args.json:
        print_json(results)
    else:
        show(results)
        for path in files:
            print(path)
    failed = failures(found)
    for record in failed:
        print(f"{record.planned.name} failed: {record.error}", file=sys.stderr)
    return 1 if failed else 0


def show(found: dict[str, Any]) -> None:
    """Tables, and what is to be known of them."""
    from rich.console import Console

    from unitsphere.report.sweep import findings, trials_table, trials_title

    console = Console(highlight=False, width=80)
    with console.capture() as rendered:
        for name, arm in found["arms"].items():
            console.print(trials_title(name, arm), markup=False)
            console.print(trials_table(arm))
            console.print()
            for line in findings(name, arm):
                console.print(line, markup=False)
    print(rendered.get())
