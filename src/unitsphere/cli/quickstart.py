"""`unitsphere quickstart`: five matched models, trained here and now, and what they gain."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from unitsphere.cli.checks import check_positive
from unitsphere.cli.parse import parse
from unitsphere.cli.study import report


@dataclasses.dataclass(frozen=True)
class Changes:
    """Settings of all arms, in place of those of their recipes."""

    steps: int | None = None
    """optimizer updates of every arm"""
    seed: int | None = None
    """seed of the initial weights and of the order of the data"""


@dataclasses.dataclass(frozen=True)
class Quickstart:
    """Train GPT+ by AdamW and Muon, nGPT, anGPT and `best` on Python's source.

    Then compare them. No download, no account, no GPU; four to six minutes on two
    cores. The same command again resumes stopped arms and reuses finished ones.

    examples:
      unitsphere quickstart
      unitsphere quickstart --train.steps 50 --out runs/short
    """

    out: Annotated[Path, arg(metavar="DIR")] = Path("runs/quickstart")
    """folder of the run folders, the summary and the curves"""
    workers: int | None = None
    """arms at a time; one per core by default"""
    train: Changes = dataclasses.field(default_factory=Changes)
    json: bool = False
    """print one JSON document instead of the report"""


def run(argv: list[str]) -> int:
    """Train what is missing and report."""
    args = parse(Quickstart, argv, "quickstart")
    check_positive(workers=args.workers)
    from unitsphere.studies.quickstart import KIND, quickstart_study

    changes = dataclasses.asdict(args.train)
    overrides = {f"train.{key}": value for key, value in changes.items() if value is not None}
    study = quickstart_study(overrides=overrides, workers=args.workers)
    return report(KIND, study, args.out, args.json)
