"""What a kind of study is, and the one way in which every kind is run.

A kind is one object, `KIND` in the study's file. The command line and `run_study` take the same
steps for all kinds:

    parts     what would be trained, for `--dry_run`
    train     plan the runs, execute those that are missing, read the results of all of them
    document  the figures of that as plain values: results.json
    write     results.json, results.md and the pictures, from the page of that kind

results.json says under `kind` which kind it is, so that nobody has to guess it. To add a kind,
write its file, and add its page to `unitsphere.report.registry.KINDS`, one line.

A study's folder, which other studies are kept out by, and in which one call works at a time:

    study.toml              what is asked, every key spelled out; written once
    runs/<arm>/…            the run folders, and their logs
    results.json, …         what was found

The dry run counts runs as the study starts: a grid of rates that grows while its best is at an
edge adds some, and a rule that stops trials early saves time.
"""

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

import unitsphere
from unitsphere.config import differences, read_object, to_dict
from unitsphere.errors import Preempted, UserError
from unitsphere.files import write_text
from unitsphere.report.document import Page
from unitsphere.report.numbers import short
from unitsphere.report.registry import RESULTS
from unitsphere.report.write import write_results
from unitsphere.studies.core.execute import Executor, Record, executor_of, has_ended, runs_commit
from unitsphere.studies.core.local import Interrupted, available_slots
from unitsphere.studies.core.plan import RUNS, at_budget
from unitsphere.studies.core.points import most_points
from unitsphere.studies.core.spec import Study, load_study, toml_text
from unitsphere.training.config import RunConfig
from unitsphere.training.cost import Cost, Speed, cost, planned_device, speed
from unitsphere.training.device import commit, cpu_model, package_version
from unitsphere.training.folder import CONFIG, locked


@dataclass(frozen=True)
class Part:
    """Runs of a study that cost the same."""

    name: str
    runs: int
    config: RunConfig
    """of such a run, with what a study sets by default"""
    growth: int = 0
    """runs that may be added while the best rate is at an edge of its grid"""


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
    """plain values; every null has its reason next to it or among the flags"""
    failures: Callable[[F], Sequence[str]] = lambda found: ()
    """a line for each run that failed; a run that diverged has a result"""
    parts: Callable[[S], Sequence[Part]] | None = None
    """what would be trained; a UserError for a mistake; None: no dry run"""
    write: Callable[[dict[str, Any], Path], tuple[Page, Sequence[Path]]] = write_results
    """writes the document, its page and pictures into the folder; the page, and the paths"""
    more: Callable[[S, F, Path], Sequence[Path]] = lambda study, found, out: ()
    """writes more files; their paths"""


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


def check_results(out: Path, kind: str) -> None:
    """Raise UserError if a study that trains nothing would write into a folder of something else.

    A folder of this kind's earlier results is taken: they are replaced.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file: give --out a folder")
    results = out / RESULTS
    earlier = results.is_file() and read_object(results).get("kind") == kind
    if not earlier and any(out.iterdir()):
        raise UserError(
            f"{out} is not empty and holds no results of {kind}: give --out another folder"
        )


RECORD = "study.toml"


@contextmanager
def study_folder(out: Path, study: Study, executor: Executor | None = None) -> Iterator[Executor]:
    """Hold the folder `out` for `study`, its record written or found to be of this very study.

    Gives what its runs are executed by: `executor`, or without one what its [run] asks for.
    Raises UserError for another study's folder, or one that is in use, and `Preempted` for an
    interruption within it.
    """
    with locked(out):
        write_record(out, study)
        try:
            yield executor or executor_of(study.run, out)
        except Interrupted as stopped:
            raise Preempted(f"{out}: {stopped}") from None
        except UserError:  # such as of a missing source: the corrected study is another one
            if not (out / RUNS).exists():
                (out / RECORD).unlink(missing_ok=True)
            raise


def write_record(out: Path, study: Study) -> None:
    """Write study.toml, or check that it says the same in all that makes its runs."""
    path = out / RECORD
    if not path.exists():
        others = any(not found.name.startswith(".") for found in out.iterdir())
        if others and not (out / RUNS).is_dir():
            raise UserError(f"{out} is not empty and holds no study: give --out another folder")
        write_text(path, toml_text(to_dict(study)))
        return
    odd = [
        line
        for line in differences(load_study(type(study), path), study)
        if not line.startswith(study.CHANGEABLE)
    ]
    if odd:
        raise UserError(
            f"{out} holds another study ({'; '.join(odd)}): give another --out; or delete {path}, "
            "and the finished runs that this study has too are reused"
        )


def provenance(records: Iterable[Record] | None = None) -> dict[str, str | None]:
    """The command line, "unitsphere" in the place of its path, and what it ran on.

    With `records` the commits that these runs were made with, too.
    """
    found = {
        "command": shlex.join(["unitsphere", *sys.argv[1:]]),
        "commit": commit(),
        "machine": f"{cpu_model()}, {os.cpu_count()} cores",
        "python": sys.version.split()[0],
        "torch": package_version("torch"),
        "unitsphere": unitsphere.__version__,
    }
    return found if records is None else found | {"runs_commit": runs_commit(records)}


def tuning(study: Study, budgets: Iterable[int], arms: Iterable[str]) -> list[Part]:
    """The runs that tune the rates of some arms at some budgets; none where rates are given."""
    if study.tune.points == 1:
        return []
    if study.tune.keys:
        seeds = len(study.tune.seeds)
        runs = {arm: most_points(study, arm) * seeds for arm in arms}
        return [
            Part(f"{arm} {short(tokens)} tune", runs[arm], at_budget(study, arm, tokens))
            for tokens in budgets
            for arm in arms
        ]
    return [
        searched(study, f"{arm} {short(tokens)} tune", at_budget(study, arm, tokens))
        for tokens in budgets
        for arm in arms
    ]


def searched(study: Study, name: str, config: RunConfig) -> Part:
    """The runs of one search of a rate."""
    seeds = len(study.tune.seeds)
    return Part(name, study.tune.points * seeds, config, study.tune.growths * seeds)


def forecast_study(study: Study, parts: Iterable[Part], out: Path) -> dict[str, Any]:
    """What training the `parts` of a study in the folder `out` would cost, as one document.

    hours: on as many workers as it would have here, with one thread each. finished: runs that `out`
    holds already; all other figures count them too.
    """
    found = [(part, cost(part.config)) for part in parts]
    total = sum(part.runs for part, _ in found)
    cluster = study.run.executor == "slurm"
    workers = min(study.run.workers or (total if cluster else available_slots()), total)
    rates: dict[object, Speed] = {}
    rows = []
    for part, one in found:
        model = part.config.model
        size = (part.config.architecture, model.d_model, model.n_layers, part.config.data.context)
        if size not in rates:
            with single_thread():
                rates[size] = speed(part.config, planned_device(part.config, 1))
        rows.append(row(part, one, rates[size]))
    return {
        "runs": total,
        "may_grow_by": sum(part.growth for part, _ in found),
        "finished": sum(has_ended(path.parent) for path in (out / RUNS).rglob(CONFIG)),
        **{key: sum(one[key] for one in rows) for key in ("tokens", "flops", "disk")},
        "workers": workers,
        "hours": sum(one["hours"] for one in rows) / workers,
        "throughput": next(iter(rates.values())).how,
        "parts": rows,
    }


def row(part: Part, one: Cost, at: Speed) -> dict[str, Any]:
    """A part's figures over all of its runs; hours on one worker."""
    return {
        "name": part.name,
        "runs": part.runs,
        "parameters": one.parameters,
        "tokens": part.runs * one.tokens,
        "flops": part.runs * one.flops,
        "hours": part.runs * one.hours(at),
        "disk": part.runs * one.disk,
    }


@contextmanager
def single_thread() -> Iterator[None]:
    """Within: torch has one thread, as each run of a study does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
