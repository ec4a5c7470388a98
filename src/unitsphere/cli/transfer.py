"""`unitsphere transfer`: how far the rates of optim.transfer are from each size's best."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from unitsphere.cli.parse import parse
from unitsphere.cli.study import StudyOptions, run_verb


@dataclasses.dataclass(frozen=True)
class Transfer(StudyOptions):
    """Train widths × depths × horizons at the transferred rate and at rates around it.

    Of each cell the gap to its best rate, and the exponents that fit the best rates
    next to the law's. The same command resumes.

    a study is a file like this (docs/how-to/transfer.md explains each key):
      arms.ngpt = "quickstart/ngpt"
      set.optim.transfer = "nu"
      [cells.small]
      width = [64, 128]
      depth = [4, 8]
      tokens = [1_000_000, 4_000_000]

    examples:
      unitsphere transfer my-transfer.toml --dry_run
      unitsphere transfer my-transfer.toml --workers 2 --json
    """

    study: Annotated[Positional[Path], arg(metavar="STUDY")]
    """a TOML file"""


def run(argv: list[str]) -> int:
    """Train what is missing and report."""
    args = parse(Transfer, argv, "transfer")
    from unitsphere.studies.core.spec import load_study
    from unitsphere.studies.transfer import KIND

    study = load_study(KIND.spec, args.study)
    return run_verb(KIND, study, args, Path("runs") / args.study.stem)
