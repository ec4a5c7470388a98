"""`unitsphere lr-ramp`: how high the learning rate climbs before the loss diverges."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from unitsphere.cli.parse import parse
from unitsphere.cli.study import StudyOptions, check_alone, read_study, run_verb, settings_of
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.studies.ramp import RampStudy


@dataclasses.dataclass(frozen=True)
class LrRamp(StudyOptions):
    """How high the learning rate climbs, step by step, before the loss diverges.

    NormFormer's Figure 5. Each recipe is an arm; its figure is the median of the
    seeds. Diverged: the loss, averaged over 10 steps, has been 1 nat or more above
    its lowest for 20 steps, or is NaN or infinite (docs/how-to/lr-ramp.md).
    The same command resumes; finished runs are kept.

    examples:
      unitsphere lr-ramp quickstart/gpt-plus quickstart/ngpt --steps 400 \\
        --start 1e-3 --peak 10
      unitsphere lr-ramp normformer2021/gpt-125m normformer2021/normformer-125m
      unitsphere lr-ramp quickstart/ngpt --set model.d_model=64 --json
      unitsphere lr-ramp runs/lr-ramp/study.toml --out runs/again
    """

    recipes: Annotated[Positional[tuple[str, ...]], arg(metavar="RECIPE [RECIPE …]")]
    """recipes, the first is the reference; or a study.toml with its own arms"""
    peak: float = 0.1
    """rate of the last step"""
    steps: int = 2000
    """steps at most; by default the rate rises by 5e-5 at each"""
    start: float = 0.0
    """rate of the first step, to rise by the same ratio at each; 0: by the same amount"""
    seeds: tuple[int, ...] = (0, 1, 2)
    """a run each"""
    set: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE [KEY=VALUE …]")] = ()
    """keys to set in every recipe"""
    allow: Annotated[tuple[str, ...], arg(metavar="NAME [NAME …]")] = ()
    """unfair differences, by name, that are flagged instead of refused"""


def run(argv: list[str]) -> int:
    """Train what is missing and report."""
    args = parse(LrRamp, argv, "lr-ramp")
    from unitsphere.studies.ramp import KIND

    study, usual = study_of(args)
    return run_verb(KIND, study, args, usual)


def study_of(args: LrRamp) -> tuple["RampStudy", Path]:
    """The study that the command line describes or names, and its usual folder."""
    from unitsphere.studies.core.spec import study_from
    from unitsphere.studies.ramp import RampStudy

    if is_study(args.recipes):
        (file,) = args.recipes
        names = ("peak", "steps", "start", "seeds", "set", "allow")
        check_alone(file, args, LrRamp((file,)), names)
        return read_study(RampStudy, Path(file))
    table: dict[str, object] = {
        "arms": arms(args.recipes),
        "set": settings_of(args.set),
        "peak": args.peak,
        "steps": args.steps,
        "start": args.start,
        "seeds": list(args.seeds),
        "allow": list(args.allow),
    }
    return study_from(RampStudy, table), Path("runs/lr-ramp")


def is_study(names: Sequence[str]) -> bool:
    """Whether what is named is a study's file; a recipe's has no arms."""
    from unitsphere.config import read_toml

    return len(names) == 1 and names[0].endswith(".toml") and "arms" in read_toml(Path(names[0]))


def arms(recipes: Sequence[str]) -> dict[str, str]:
    """Arm -> recipe; an arm has the last part of its recipe's name, or all of it to be unique."""
    short = [recipe.rpartition("/")[2].removesuffix(".toml") for recipe in recipes]
    if len(set(recipes)) < len(recipes):
        raise UserError("a recipe is given twice: give each recipe once")
    unique = len(set(short)) == len(short)
    names = short if unique else [r.removesuffix(".toml").replace("/", "-") for r in recipes]
    return dict(zip(names, recipes, strict=True))
