"""`unitsphere compare`: arms against each other at equal tokens, fairly, from one file."""

import dataclasses
from typing import Annotated

from tyro.conf import Positional, arg

from unitsphere.cli.parse import parse
from unitsphere.cli.study import StudyOptions, run_verb


@dataclasses.dataclass(frozen=True)
class Compare(StudyOptions):
    """Compare arms × token budgets × seeds: equal-token loss, equal-loss speedup.

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
    """

    study: Annotated[Positional[str], arg(metavar="STUDY")]
    """a TOML file, or the name of a study that is shipped: quickstart"""
    baseline: Annotated[str | None, arg(metavar="ARM")] = None
    """the arm to compare with; by default the file's baseline"""


def run(argv: list[str]) -> int:
    """Train what is missing and report."""
    args = parse(Compare, argv, "compare")
    from unitsphere.studies.compare import KIND, find_study
    from unitsphere.studies.core.spec import load_study

    path, usual = find_study(args.study, "compare")
    study = load_study(KIND.spec, path)
    if args.baseline is not None:
        study = dataclasses.replace(study, baseline=args.baseline)
    return run_verb(KIND, study, args, usual)
