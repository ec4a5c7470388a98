"""`unitsphere ladder`: best batch and rate by size, and the scaling laws that follow."""

import dataclasses

from unitsphere.cli.parse import parse
from unitsphere.cli.study import StudyFile, run_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ladder(StudyFile):
    """Train sizes × batches × rates, fit scaling laws, suggest rate and batch.

    It finds the best batch and rate of each size by interpolation within the grid,
    power laws of both, and loss against compute; with `computes` also the best size
    and data for a compute (anGPT's Appendices G and I). The same command resumes.

    a study is a file like this (docs/how-to/ladder.md explains each key):
      batches = [1024, 2048, 4096]          # tokens per step
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


def run(argv: list[str]) -> int:
    """Train what is missing and report."""
    args = parse(Ladder, argv, "ladder")
    from unitsphere.studies.ladder_results import KIND

    return run_file(KIND, args)
