"""`unitsphere sweep`: search over any config keys, from one file."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from unitsphere.cli.parse import parse
from unitsphere.cli.study import StudyOptions, run_verb


@dataclasses.dataclass(frozen=True)
class Sweep(StudyOptions):
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

    study: Annotated[Positional[Path], arg(metavar="STUDY")]
    """a TOML file"""


def run(argv: list[str]) -> int:
    """Train what is missing and report."""
    args = parse(Sweep, argv, "sweep")
    from unitsphere.studies.core.spec import load_study
    from unitsphere.studies.sweep import KIND

    study = load_study(KIND.spec, args.study)
    return run_verb(KIND, study, args, Path("runs") / args.study.stem)
