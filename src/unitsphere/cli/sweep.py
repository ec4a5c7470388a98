"""`unitsphere sweep`: search over any config keys, from one file."""

import dataclasses

from unitsphere.cli.parse import parse
from unitsphere.cli.study import StudyFile, run_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep(StudyFile):
    """Search config keys by grid, at random or by Optuna, and report the best.

    Trials are judged, and hopeless ones stopped, on documents held out of the
    training split. Only the best point is then trained on all of it, with the
    recipe as it is, and reported. The same command resumes.

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


def run(argv: list[str]) -> int:
    """Train what is missing and report."""
    args = parse(Sweep, argv, "sweep")
    from unitsphere.studies.sweep import KIND

    return run_file(KIND, args)
