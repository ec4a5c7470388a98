"""`unitsphere compare`: arms against each other at equal tokens, fairly, from one file."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from unitsphere.cli.output import print_json
from unitsphere.cli.parse import check_positive, parse
from unitsphere.cli.study import show_study, with_workers


@dataclasses.dataclass(frozen=True)
class Compare:
    """Compare arms × token budgets × seeds: equal-token loss, equal-loss speedup.

    Each budget is a run of its own, annealed over it; each arm's learning rate is
    tuned on documents that are not reported. Unfair studies are refused by name.
    The same command goes on where it was stopped; finished runs are kept.

    a study is a file like this (docs/how-to/compare.md explains each key):
      budgets = [250_000, 500_000]
      seeds = [0, 1, 2]
      [arms]
      gpt-plus = "quickstart/gpt-plus"     # the first is the baseline
      ngpt = "quickstart/ngpt"

    examples:
      unitsphere compare quickstart
      unitsphere compare my-study.toml --out runs/mine --json
    """

    study: Annotated[Positional[str], arg(metavar="STUDY")]
    """a TOML file, or the name of a study that is shipped: quickstart"""
    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """the study's folder; by default runs/NAME, of a shipped one runs/compare-NAME"""
    baseline: Annotated[str | None, arg(metavar="ARM")] = None
    """measure against this arm, in place of the file's"""
    workers: int | None = None
    """runs at a time, in place of the file's"""
    dry_run: bool = False
    """say how many runs, hours and how much disk it would take, and train nothing"""
    json: bool = False
    """print one JSON document instead of tables"""


def run(argv: list[str]) -> int:
    """Train what is missing and report."""
    args = parse(Compare, argv, "compare")
    check_positive(workers=args.workers)
    from unitsphere.studies.compare import CompareStudy, any_failed, compare, write_comparison
    from unitsphere.studies.core.spec import load_study
    from unitsphere.studies.registry import find_study

    path, usual = find_study(args.study, "compare")
    study = with_workers(load_study(CompareStudy, path), args.workers)
    if args.baseline is not None:
        study = dataclasses.replace(study, baseline=args.baseline)
    out = args.out or usual
    if args.dry_run:
        return show_study(study, out, args.json)
    found = compare(study, out)
    files = write_comparison(found, out)
    if args.json:
        print_json(found)
    else:
        show(found)
        for path in files:
            print(path)
    return 1 if any_failed(found) else 0


def show(found: dict[str, Any]) -> None:
    """Tables, and the notes below them."""
    from rich.console import Console

    from unitsphere.report.comparison import comparison_tables, notes

    console = Console(highlight=False, width=80)
    with console.capture() as rendered:
        for table in comparison_tables(found):
            console.print(table)
        for line in notes(found):
            console.print(line, markup=False)
    print(rendered.get())
