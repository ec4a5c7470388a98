"""`unitsphere ablate`: a paper's ablation table, ours beside the paper's."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from unitsphere.cli.output import print_json
from unitsphere.cli.parse import check_positive, parse
from unitsphere.cli.study import check_alone, settings_of, show_study, with_workers

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
class Ablate:
    """Train the rows of a paper's ablation table, and set ours beside the paper's.

    Each figure is a relative change; ours has a 95% interval over the seeds, and
    says whether its sign is the paper's beyond that. At sizes other than the
    paper's, rates are tuned: one for all rows, or each row's, as the table asks.
    The same command goes on where it was stopped; finished runs are kept.

    tables: ngpt-table4, ngpt-table5, ngpt-table6, angpt-figure5, angpt-figureA1,
    normformer-table4, normformer-table5. A study.toml of one serves as well.

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
    """of the weights' start and of the order of the data"""
    rates: Literal["shared", "each", "given"] | None = None
    """tuned once for all rows, tuned for each, or given by the size; the table's way by default"""
    rows: Annotated[tuple[str, ...], arg(metavar="ROW [ROW …]")] = ()
    """only these, by their names or numbers, and what they are measured against"""
    data: Data = dataclasses.field(default_factory=Data)
    set: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE [KEY=VALUE …]")] = ()
    """keys to set in every row, such as model.n_layers=3"""
    allow: Annotated[tuple[str, ...], arg(metavar="NAME [NAME …]")] = ()
    """names of what would be refused as unfair, to have it flagged"""
    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """the study's folder; runs/TABLE-SIZE by default"""
    workers: int | None = None
    """runs at a time; one a core or GPU by default"""
    dry_run: bool = False
    """say how many runs, hours and how much disk it would take, and train nothing"""
    json: bool = False
    """print one JSON document instead of the table"""


def run(argv: list[str]) -> int:
    """Train what is missing and report."""
    args = parse(Ablate, argv, "ablate")
    check_positive(workers=args.workers, tokens=args.tokens)
    from unitsphere.studies.ablate import ablate
    from unitsphere.studies.ablate_results import document, failed, write_ablation
    from unitsphere.studies.core.results import provenance

    study, out = study_of(args)
    if args.dry_run:
        return show_study(study, out, args.json)
    found = document(study, ablate(study, out), provenance())
    files = write_ablation(found, out)
    if args.json:
        print_json(found)
    else:
        show(found)
        for path in files:
            print(path)
    for line in failed(found):
        print(f"failed: {line}", file=sys.stderr)
    return 1 if failed(found) else 0


def study_of(args: Ablate) -> tuple["AblationStudy", Path]:
    """The study that is asked for, and its folder."""
    from unitsphere.studies.ablate import AblationStudy, ablation_study
    from unitsphere.studies.core.spec import load_study

    if args.table.endswith(".toml"):
        names = ("size", "tokens", "seeds", "rates", "rows", "data", "set", "allow")
        check_alone(args.table, args, Ablate(args.table), names)
        study = load_study(AblationStudy, Path(args.table))
        usual = Path("runs") / Path(args.table).stem
    else:
        settings = {f"data.{k}": v for k, v in vars(args.data).items() if v is not None}
        settings |= settings_of(args.set)
        study = ablation_study(
            args.table, args.size, args.tokens, args.rates, args.rows, settings, args.seeds
        )
        study = dataclasses.replace(study, allow=list(args.allow))
        usual = Path("runs") / f"{args.table}-{args.size}"
    return with_workers(study, args.workers), args.out or usual


def show(found: dict[str, Any]) -> None:
    """The table, and the notes below it."""
    from rich.console import Console

    from unitsphere.report.ablation import ablation_table, notes

    console = Console(highlight=False, width=80)
    with console.capture() as rendered:
        console.print(found["title"], markup=False)
        console.print(found["paper"], markup=False)
        console.print(ablation_table(found))
        console.print()
        for line in notes(found):
            console.print(line, markup=False)
    print(rendered.get())
