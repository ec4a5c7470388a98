"""`unitsphere ladder`: best batch and rate by size, and the scaling laws that follow."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from unitsphere.cli.output import print_json, print_table
from unitsphere.cli.parse import check_positive, parse
from unitsphere.cli.study import show_study, with_workers


@dataclasses.dataclass(frozen=True)
class Ladder:
    """Train sizes × batches × rates, fit scaling laws, suggest rate and batch.

    Best batch and rate of each size by interpolation within the grid, power laws
    of both, loss against compute; with `computes` best size and data for a compute
    (anGPT's Appendices G and I). The same command goes on where it was stopped.

    a study is a file like this (docs/how-to/ladder.md explains each key):
      batches = [1024, 2048, 4096]          # tokens an update
      [sizes]
      s = { model = { d_model = 64, n_layers = 2, n_heads = 1 } }
      m = { model = { d_model = 96, n_layers = 3, n_heads = 2 } }
      l = { model = { d_model = 128, n_layers = 4, n_heads = 2 } }
      [arms]
      gpt-plus = "quickstart/gpt-plus"

    examples:
      unitsphere ladder my-ladder.toml
      unitsphere ladder my-ladder.toml --workers 2 --json
    """

    study: Annotated[Positional[Path], arg(metavar="STUDY")]
    """a TOML file"""
    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """the study's folder; runs/NAME of the file by default"""
    workers: int | None = None
    """runs at a time, in place of the file's"""
    dry_run: bool = False
    """say how many runs, hours and how much disk it would take, and train nothing"""
    json: bool = False
    """print one JSON document instead of tables"""


def run(argv: list[str]) -> int:
    """Train what is missing, fit, and report."""
    args = parse(Ladder, argv, "ladder")
    check_positive(workers=args.workers)
    from unitsphere.report.ladder import ladder_tables, notes
    from unitsphere.studies.core.spec import load_study
    from unitsphere.studies.ladder import LadderStudy, ladder
    from unitsphere.studies.ladder_files import write_ladder
    from unitsphere.studies.ladder_results import document, findings

    study = with_workers(load_study(LadderStudy, args.study), args.workers)
    out = args.out or Path("runs") / args.study.stem
    if args.dry_run:
        return show_study(study, out, args.json)
    rungs, spent = ladder(study, out)
    found = findings(study, rungs, spent)
    files, figures = write_ladder(found, out), document(found)
    if args.json:
        print_json(figures)
    else:
        for title, columns, rows in ladder_tables(figures):
            print(title)
            print_table(columns, rows)
            print()
        for line in [*notes(figures), *files]:
            print(line)
    return 1 if any(flag["name"] == "failed" for flag in figures["flags"]) else 0
