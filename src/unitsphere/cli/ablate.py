"""`unitsphere ablate`: a paper's ablation table, with the paper's own figures."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from unitsphere.cli.checks import check_positive
from unitsphere.cli.parse import parse
from unitsphere.cli.study import StudyOptions, check_alone, read_study, run_verb, settings_of

if TYPE_CHECKING:
    from unitsphere.studies.ablate import AblationStudy


@dataclasses.dataclass(frozen=True)
class Data:
    """What every row trains on."""

    source: str | None = None
    """a file, a glob, a folder; the running Python's own source text by default"""
    tokenizer: str | None = None
    """bytes, bpe:N or the path of a tokenizer.json; bpe:1024 by default"""


@dataclasses.dataclass(frozen=True)
class Ablate(StudyOptions):
    """Train the rows of a paper's ablation table, and compare with the paper's.

    Each figure is a relative change; ours has a 95% interval over the seeds, and
    says whether its sign is the paper's. At sizes other than the
    paper's, rates are tuned: one for all rows, or each row's, as the table asks.
    The same command resumes; finished runs are kept.

    tables: ngpt-table4, ngpt-table5, ngpt-table6, angpt-figure5, angpt-figureA1,
    normformer-table4, normformer-table5. A study.toml of one also works.

    examples:
      unitsphere ablate ngpt-table6
      unitsphere ablate ngpt-table4 --rows 02 12 --seeds 0 1 --data.source my.jsonl
      unitsphere ablate angpt-figure5 --size tiny --set model.n_layers=3 --json
    """

    table: Annotated[Positional[str], arg(metavar="TABLE")]
    """a table's name, or a study.toml"""
    size: str = "quickstart"
    """tiny, quickstart, or paper: the recipes as they are"""
    tokens: int | None = None
    """training tokens of a run; the size's by default"""
    seeds: tuple[int, ...] = (0, 1, 2)
    """of the initial weights and of the order of the data"""
    rates: Literal["shared", "each", "given"] | None = None
    """tuned once for all rows, tuned for each, or given by the size; the table's way by default"""
    rows: Annotated[tuple[str, ...], arg(metavar="ROW [ROW …]")] = ()
    """only these, by name or number, and the rows that they are compared with"""
    data: Data = dataclasses.field(default_factory=Data)
    set: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE [KEY=VALUE …]")] = ()
    """keys to set in every row, such as model.n_layers=3"""
    allow: Annotated[tuple[str, ...], arg(metavar="NAME [NAME …]")] = ()
    """unfair differences, by name, that are flagged instead of refused"""


def run(argv: list[str]) -> int:
    """Train what is missing and report."""
    args = parse(Ablate, argv, "ablate")
    check_positive(tokens=args.tokens)
    from unitsphere.studies.ablate import KIND

    study, usual = study_of(args)
    return run_verb(KIND, study, args, usual)


def study_of(args: Ablate) -> tuple["AblationStudy", Path]:
    """The study that is asked for, and its usual folder."""
    from unitsphere.studies.ablate import AblationStudy, ablation_study

    if args.table.endswith(".toml"):
        names = ("size", "tokens", "seeds", "rates", "rows", "data", "set", "allow")
        check_alone(args.table, args, Ablate(args.table), names)
        return read_study(AblationStudy, Path(args.table))
    settings = {f"data.{k}": v for k, v in vars(args.data).items() if v is not None}
    settings |= settings_of(args.set)
    study = ablation_study(
        args.table, args.size, args.tokens, args.rates, args.rows, settings, args.seeds
    )
    study = dataclasses.replace(study, allow=list(args.allow))
    return study, Path("runs") / f"{args.table}-{args.size}"
