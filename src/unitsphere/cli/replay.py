"""`unitsphere replay`: the batch of a step, row by row."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from unitsphere.cli.output import print_json, print_table
from unitsphere.cli.parse import parse

WIDTH = 60


@dataclasses.dataclass(frozen=True)
class Replay:
    """Show the batch of a training step, and each row's loss by the last checkpoint.

    For a step whose loss was a spike (train.on_spike): metrics.jsonl names it.

    example: unitsphere replay runs/mine --step 4711 --json
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """the run folder"""
    step: int
    """number of the update, as in metrics.jsonl"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""
    json: bool = False
    """print one JSON document instead of a table"""


def run(argv: list[str]) -> int:
    """Compute and print."""
    args = parse(Replay, argv, "replay")
    from unitsphere.training.corpus import replay

    rows = replay(args.run, args.step, args.device)
    if args.json:
        print_json({"step": args.step, "rows": [dataclasses.asdict(row) for row in rows]})
        return 0
    shown = [
        [str(row.row), str(row.targets), f"{row.loss:.4f}", repr(row.text[:WIDTH])] for row in rows
    ]
    print_table(("row", "targets", "loss", "begins with"), shown)
    return 0
