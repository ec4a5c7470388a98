"""`unitsphere compare`: arms against each other at equal tokens, fairly, from one file."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from unitsphere.cli.output import print_json
from unitsphere.cli.parse import parse
from unitsphere.cli.study import StudyOptions, run_verb
from unitsphere.errors import UserError


@dataclasses.dataclass(frozen=True)
class Compare(StudyOptions):
    """Compare arms × budgets × seeds: loss at equal tokens, speedup at equal loss.

    Each budget is a separate run, annealed over it; each arm's learning rate is
    tuned on documents that are not reported. Unfair studies are refused by name.
    The same command resumes; finished runs are kept.

    a study is a file like this (docs/how-to/compare.md explains each key):
      budgets = [250_000, 500_000]
      seeds = [0, 1, 2]
      [arms]
      gpt-plus = "quickstart/gpt-plus"     # the first is the baseline
      ngpt = "quickstart/ngpt"

    examples:
      unitsphere compare quickstart
      unitsphere compare my-study.toml --out runs/mine --json
      unitsphere compare league --add my-design.toml
    """

    study: Annotated[Positional[str], arg(metavar="STUDY")]
    """a TOML file; or quickstart, a study that is shipped; or league, the published designs"""
    add: Annotated[tuple[Path, ...], arg(metavar="FILE [FILE …]")] = ()
    """for STUDY league: files of arms to train by its rules and rank with the published designs"""
    baseline: Annotated[str | None, arg(metavar="ARM")] = None
    """the arm to compare with; by default the file's baseline"""


def run(argv: list[str]) -> int:
    """Train what is missing and report."""
    args = parse(Compare, argv, "compare")
    if args.study == "league":
        return run_league(args)
    if args.add:
        raise UserError("--add is for the league: unitsphere compare league --add FILE")
    from unitsphere.studies.compare import KIND, find_study
    from unitsphere.studies.core.spec import load_study

    path, usual = find_study(args.study, "compare")
    study = load_study(KIND.spec, path)
    if args.baseline is not None:
        study = dataclasses.replace(study, baseline=args.baseline)
    return run_verb(KIND, study, args, usual)


def run_league(args: Compare) -> int:
    """Print the published league, or train entries and place them in it."""
    from unitsphere.studies.league import KIND, league_study, published_standings

    if args.baseline is not None:
        raise UserError("the league has no baseline: leave --baseline out")
    usual = Path("runs/compare-league")
    if args.add:
        return run_verb(KIND, league_study(args.add), args, usual)
    for name in ("out", "workers", "dry_run"):
        if getattr(args, name):
            raise UserError(f"--{name} is for entries that are trained: add --add FILE")
    found = published_standings()
    if args.json:
        print_json(found)
        return 0
    from unitsphere.report.kinds.league import league_page
    from unitsphere.report.render.text import print_page

    print_page(league_page(found, usual))
    return 0
