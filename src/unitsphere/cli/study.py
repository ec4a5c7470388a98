"""What the verbs of studies share: their options and runs, the one runner, `--set`, the dry run."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from tyro.conf import Positional, arg

from unitsphere.cli.checks import check_positive
from unitsphere.cli.output import hours, print_json, print_table
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.studies.core.kind import Kind
    from unitsphere.studies.core.spec import Study

S = TypeVar("S", bound="Study")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options of every verb that trains a study."""

    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """the study's folder; runs/NAME by default"""
    workers: int | None = None
    """runs at a time; by default what the study says, else one per core or GPU"""
    dry_run: bool = False
    """say how many runs, hours and how much disk it would take, and train nothing"""
    json: bool = False
    """print one JSON document instead of tables"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyFile(StudyOptions):
    """The options of a verb that trains the study in a file."""

    study: Annotated[Positional[Path], arg(metavar="STUDY")]
    """a TOML file"""


def read_study(spec: type[S], path: Path) -> tuple[S, Path]:
    """The study in a file, and its usual folder."""
    from unitsphere.studies.core.spec import load_study

    return load_study(spec, path), Path("runs") / path.stem


def run_file(kind: "Kind", args: StudyFile) -> int:
    """`run_verb` for the study in a file."""
    study, usual = read_study(kind.spec, args.study)
    return run_verb(kind, study, args, usual)


def run_verb(kind: "Kind", study: Any, args: StudyOptions, usual: Path) -> int:
    """Do what a study's verb does: forecast it, or train it in `--out`, report it, write it.

    `usual` is its folder without `--out`. Returns the exit status: 1 if a run failed.
    """
    check_positive(workers=args.workers)
    if args.workers is not None:
        run = dataclasses.replace(study.run, workers=args.workers)
        study = dataclasses.replace(study, run=run)
    out = args.out or usual
    if args.dry_run:
        return show_forecast(kind, study, out, args.json)
    return report(kind, study, out, args.json)


def report(kind: "Kind", study: Any, out: Path, json: bool) -> int:
    """Train what is missing of a study, write its results, and print them."""
    from unitsphere.report.render.text import print_page
    from unitsphere.studies.core.kind import run_study

    outcome = run_study(kind, study, out)
    if json:
        print_json(outcome.document)
    else:
        print_page(outcome.page)
        print(*outcome.files, sep="\n")
    for line in outcome.failures:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if outcome.failures else 0


def settings_of(texts: Sequence[str]) -> dict[str, object]:
    """What `--set` asks for; UserError where a key is set twice."""
    found: dict[str, object] = {}
    for key, value in map(setting, texts):
        if key in found:
            raise UserError(f"--set has {key} twice")
        found[key] = value
    return found


def setting(text: str) -> tuple[str, object]:
    """KEY=VALUE, the value as TOML has it, or a text without quotes."""
    import tomllib

    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise UserError(f"--set {text!r} is not KEY=VALUE, such as model.n_layers=3")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def check_alone(file: str, args: object, usual: object, names: Sequence[str]) -> None:
    """Raise UserError for an option that a study's file says itself."""
    for name in names:
        if getattr(args, name) != getattr(usual, name):
            raise UserError(f"{file} says what is trained: leave --{name} out, or edit it")


def show_forecast(kind: "Kind", study: Any, out: Path, json: bool) -> int:
    """Print what training the study in `out` would cost, as tables or one JSON document."""
    from unitsphere.studies.core.kind import forecast_study
    from unitsphere.training.forecast import size

    assert kind.parts is not None
    found = forecast_study(study, kind.parts(study), out)
    if json:
        print_json(found)
        return 0
    columns = ("runs of", "runs", "parameters", "tokens each", "FLOPs", "time", "disk")
    rows = [
        [
            one["name"],
            str(one["runs"]),
            f"{one['parameters']:,}",
            f"{one['tokens'] // one['runs']:,}",
            f"{one['flops']:.2e}",
            hours(one["hours"]),
            size(one["disk"]),
        ]
        for one in found["parts"]
    ]
    print_table(columns, rows)
    finished = f", {found['finished']} of them finished in {out}" if found["finished"] else ""
    print(f"\n{found['runs']} runs{finished}, {found['workers']} at a time")
    if found["may_grow_by"]:
        print(f"up to {found['may_grow_by']} more where a best rate is at an edge of its grid")
    print(f"{hours(found['hours'])} of training, {found['flops']:.3e} FLOPs in all")
    print("  (without the start of each run, which takes seconds)")
    print(f"  ({found['throughput']})")
    print(f"{size(found['disk'])} of checkpoints on the disk, in {out}")
    return 0


def named_runs(words: Sequence[str]) -> dict[str, list[Path]]:
    """Arm -> run folders. A run without a name is an arm by its folder's name.

    Raises UserError for a folder that is given twice, or two folders of one name without another.
    """
    arms: dict[str, list[Path]] = {}
    by_folder: set[str] = set()
    seen: set[Path] = set()
    for word in words:
        name, equals, path = word.partition("=")
        unnamed = not equals or Path(word).exists()
        if unnamed:
            path, name = word, Path(word).name or word
        if not name or not path:
            raise UserError(f"{word!r} is not NAME=RUN, such as ngpt=runs/ngpt-1")
        if Path(path).resolve() in seen:
            raise UserError(f"{path} is given twice: each run counts once")
        if name in by_folder or (unnamed and name in arms):
            raise UserError(
                f"two runs are called {name}: write NAME=RUN, one NAME for the seeds of one arm"
            )
        by_folder |= {name} if unnamed else set()
        seen.add(Path(path).resolve())
        arms.setdefault(name, []).append(Path(path))
    return arms
