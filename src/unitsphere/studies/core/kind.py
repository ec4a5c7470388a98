"""What a kind of study is, and the one way in which every kind is run.

A kind is one object, `KIND` in the study's file. The command line and `run_study` take the same
steps for all kinds:

    parts     what would be trained, for `--dry_run`
    train     plan the runs, execute those that are missing, read the results of all of them
    document  the figures of that as plain values: results.json
    write     results.json, results.md and the pictures, from the page of that kind

results.json says under `kind` which kind it is, so that nobody has to guess it. To add a kind,
write its file, and add its page to `unitsphere.report.registry.KINDS`, one line.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from unitsphere.report.document import Page
from unitsphere.report.write import write_results
from unitsphere.studies.core.execute import Executor
from unitsphere.studies.core.forecast import Part

S = TypeVar("S")
"""what a study asks"""
F = TypeVar("F")
"""what was found, before it becomes plain values"""


@dataclass(frozen=True)
class Kind(Generic[S, F]):
    """A kind of study: the class of what it asks, and a function for each step."""

    name: str
    spec: type[S]
    train: Callable[[S, Path, Executor | None], F]
    """trains what is missing in a folder; a UserError for a mistake comes before it writes"""
    document: Callable[[S, F], dict[str, Any]]
    """plain values; every null has its reason beside it or among the flags"""
    failures: Callable[[F], Sequence[str]] = lambda found: ()
    """a line for each run that failed; a run that diverged has a result"""
    parts: Callable[[S], Sequence[Part]] | None = None
    """what would be trained; a UserError for a mistake; None: no dry run"""
    write: Callable[[dict[str, Any], Path], tuple[Page, Sequence[Path]]] = write_results
    """writes the document, its page and pictures into the folder; the page, and the paths"""
    more: Callable[[S, F, Path], Sequence[Path]] = lambda study, found, out: ()
    """writes files beside those; their paths"""


@dataclass(frozen=True)
class Outcome:
    """What a study came to: its document and page, the files, a line for each failed run."""

    document: dict[str, Any]
    page: Page
    files: Sequence[Path]
    failures: Sequence[str]


def run_study(kind: Kind[S, F], study: S, out: Path, executor: Executor | None = None) -> Outcome:
    """Train what is missing of a study in the folder `out`, and write its results there.

    Raises UserError for a mistake in the study or unusable data, and `Preempted` when stopped; the
    same call then resumes.
    """
    return write_study(kind, study, kind.train(study, out, executor), out)


def write_study(kind: Kind[S, F], study: S, found: F, out: Path) -> Outcome:
    """Write what was found into the study's folder."""
    document = {"kind": kind.name, **kind.document(study, found)}
    page, files = kind.write(document, out)
    return Outcome(document, page, [*files, *kind.more(study, found, out)], kind.failures(found))
