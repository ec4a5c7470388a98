"""`unitsphere transfer`: how far the rates of optim.transfer are from each size's best."""

import dataclasses

from unitsphere.cli.parse import parse
from unitsphere.cli.study import StudyFile, run_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transfer(StudyFile):
    """Train widths × depths × horizons at the transferred rate and at rates around it.

    The report gives each cell's gap to its best rate, and the exponents that fit
    the best rates next to the law's. The same command resumes.

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


def run(argv: list[str]) -> int:
    """Train what is missing and report."""
    args = parse(Transfer, argv, "transfer")
    from unitsphere.studies.transfer import KIND

    return run_file(KIND, args)
