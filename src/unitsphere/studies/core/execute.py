"""Planned runs -> finished records, by way of an executor.

A finished run is never trained again, nor is one that diverged (divergence is a result) or was
stopped early. What failed for any other reason is tried again by the next call. No failure ends the
other runs.
"""

import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unitsphere.config import read_object
from unitsphere.data.config import DataConfig
from unitsphere.data.prepare import prepared
from unitsphere.errors import UserError
from unitsphere.files import read_text, write_text
from unitsphere.studies.core.jobs import Job, State
from unitsphere.studies.core.local import Interrupted, JobExecutor, here, run_jobs
from unitsphere.studies.core.plan import Planned, is_finished
from unitsphere.studies.core.progress import display
from unitsphere.studies.core.slurm import SlurmExecutor
from unitsphere.studies.core.spec import Execution
from unitsphere.training.folder import ENVIRONMENT
from unitsphere.training.guard import MARGIN, divergence
from unitsphere.training.log import read_metrics
from unitsphere.training.resolve import input_of, last_data
from unitsphere.training.result import result

OnProgress = Callable[[list[State]], None]
Executor = Callable[[Sequence[Job]], JobExecutor]
"""Gives what is to run some jobs: where, and how many at a time."""


def executor_of(run: Execution, folder: Path) -> Executor:
    """The executor that the [run] of the study in `folder` asks for."""
    if run.executor == "slurm":
        return lambda jobs: SlurmExecutor(folder, run.slurm, run.workers)
    return lambda jobs: here(jobs, run.workers)


@dataclass(frozen=True)
class Record:
    """The result of a run.

    `loss` (nats per token) and `bits_per_byte` are those of the validation split after the last
    step; `seconds` is the time of training, without validation; `tokens_per_second` the median of
    the run's records, None where none has it. A run that did not finish has an `error` in their
    place.
    """

    planned: Planned
    status: Literal["finished", "diverged", "stopped", "failed"]
    loss: float | None = None
    bits_per_byte: float | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    environment: dict[str, Any] | None = None
    error: str | None = None


def execute(
    planned: Sequence[Planned],
    executor: Executor,
    watch: OnProgress = lambda states: None,
    later: Sequence[Job] = (),
) -> list[Record]:
    """Train what is neither finished nor diverged, and read the result of each, in their order.

    `watch` sees the states as they are followed, and may set `stop` of one: that run is then never
    trained to its end. `later` are runs that are known to follow these: the time left counts them.

    Progress goes to stderr. Raises UserError for unusable data or data that have changed since
    one of the runs was finished, and whatever the executor does when it is asked to stop.
    """
    for run in planned:
        unmark(run.folder)
    missing = {run.folder: run for run in planned if not has_ended(run.folder)}
    if not missing:
        return [read_record(run) for run in planned]
    for data, objective in {(run.config.data, run.config.objective) for run in missing.values()}:
        prepared(data, pairs=objective == "seq2seq")
    check_one_text([run for run in planned if run.folder not in missing])
    earlier = len({run.folder for run in planned}) - len(missing)
    reused = f" ({earlier} finished earlier)" if earlier else ""
    print(f"runs to train: {len(missing)}{reused}", file=sys.stderr, flush=True)
    jobs = [run.job() for run in missing.values()]
    chosen = executor(jobs)
    with display(chosen.workers, sys.stderr, later) as show:
        states = followed(jobs, chosen, [watch, mark, show])
    errors = {s.job.out: s.error or "" for s in states if s.status != "done"}
    return [read_record(run, errors.get(run.folder)) for run in planned]


def check_one_text(ended: Sequence[Planned]) -> None:
    """Raise UserError for a run whose data have changed since: others would learn other text.

    A run that has not recorded its data, or lost its record, is not known to differ.
    """
    inputs: dict[tuple[DataConfig, str], str] = {}
    for run in ended:
        try:
            recorded = last_data(run.folder)
        except UserError:
            recorded = None
        if recorded is None:
            continue
        key = (run.config.data, run.config.objective)
        if key not in inputs:
            inputs[key] = input_of(run.config)
        if recorded != inputs[key]:
            raise UserError(
                f"{run.config.data.source} has changed since {run.folder} was trained on it, so "
                "the study's other runs would learn other text: restore the data, or give another "
                "--out"
            )


def followed(jobs: list[Job], executor: JobExecutor, each: Sequence[OnProgress]) -> list[State]:
    """The jobs' states at their ends; `each` sees them whenever they are looked at.

    Those that end while the others are interrupted are marked too.
    """

    def look(states: list[State]) -> None:
        for see in each:
            see(states)

    try:
        return run_jobs(jobs, executor, look)
    except Interrupted as stopped:
        mark(stopped.states)
        raise


def mark(states: list[State]) -> None:
    """Write next to a run's folder that it diverged or was stopped early: no call repeats it.

    As soon as it has: who follows the runs may be killed at any moment.
    """
    for state in states:
        path = divergence(state.job.out) if state.diverged else early_stop(state.job.out)
        why = state.error if state.diverged else state.stop
        if (state.diverged or state.stopped_early) and not path.exists():
            write_text(path, f"{why}\n")


def unmark(folder: Path) -> None:
    """Take away the marks of a run that was deleted: another one may come in its place."""
    if not folder.exists():
        for path in (divergence(folder), early_stop(folder)):
            path.unlink(missing_ok=True)


def early_stop(folder: Path) -> Path:
    """The file next to a run folder that says why the run was stopped early."""
    return folder.with_name(folder.name + ".stopped")


def has_ended(folder: Path) -> bool:
    """Whether a run has ended: finished, diverged, or stopped early."""
    given_up = divergence(folder).exists() or early_stop(folder).exists()
    return given_up or is_finished(folder)


def read_record(run: Planned, error: str | None = None) -> Record:
    """The result of a run; `error` is why it failed, if no file next to its folder says it.

    A run with a file that cannot be read is a failed one.
    """
    try:
        return _read_record(run, error)
    except UserError as unreadable:
        return Record(run, "failed", error=error or str(unreadable))


def _read_record(run: Planned, error: str | None) -> Record:
    where = run.folder / ENVIRONMENT
    environment = read_object(where) if where.exists() else None
    if divergence(run.folder).exists():
        why = said(divergence(run.folder))
        return Record(run, "diverged", error=why, environment=environment)
    if early_stop(run.folder).exists():
        return Record(run, "stopped", error=said(early_stop(run.folder)))
    if not is_finished(run.folder):
        return Record(run, "failed", error=error or "it was not run")
    last, steps = result(run.folder, trained=False), run.config.train.steps
    records = read_metrics(run.folder)
    if (step := records[-1].get("diverged")) is not None:
        return Record(run, "diverged", error=f"diverged at step {step}", environment=environment)
    if last.step < steps:
        why = (
            f"its metrics.jsonl ends at step {last.step} of {steps}: delete {run.folder} to repeat"
        )
        return Record(run, "failed", error=why, environment=environment)
    if not math.isfinite(last.val_loss):
        why = "the validation loss is NaN or infinite"
        return Record(run, "diverged", error=why, environment=environment)
    if last.val_loss > (guess := math.log(run.config.model.vocab_size)) + MARGIN:
        why = f"the validation loss is {last.val_loss:.3g}, and {guess:.3g} for a uniform guess"
        return Record(run, "diverged", error=why, environment=environment)
    rates = [r["tokens_per_second"] for r in records if "tokens_per_second" in r]
    return Record(
        run,
        "finished",
        loss=last.val_loss,
        bits_per_byte=last.val_bits_per_byte,
        seconds=last.seconds,
        tokens_per_second=statistics.median(rates) if rates else None,
        environment=environment,
    )


def failure_lines(records: Iterable[Record]) -> list[str]:
    """A line for each run that failed; one that diverged or was stopped has a result."""
    return [f"{r.planned.name}: {r.error}" for r in records if r.status == "failed"]


def said(mark: Path) -> str:
    """What a mark next to a run folder says."""
    return read_text(mark, mark.parent).strip()


MACHINE = ("device", "cpu", "threads")
"""Keys of a run's environment on which its times depend."""


def runs_commit(records: Iterable[Record]) -> str | None:
    """The commits that runs were made with, which need not be the reporter's."""
    known = {place["commit"] for place in places(records) if place.get("commit")}
    return ", ".join(sorted(known)) or None


def timing(records: Iterable[Record]) -> str:
    """Why the runs' times cannot be compared; empty if they can."""
    known = list(records)
    seen = {key: values(known, key) for key in MACHINE}
    odd = [f"{key} {' and '.join(found)}" for key, found in seen.items() if len(found) > 1]
    return f"runs were timed on different hardware: {'; '.join(odd)}" if odd else ""


def values(records: Iterable[Record], key: str) -> list[str]:
    """What the runs' environments say under a key, each once."""
    return sorted({str(place.get(key)) for place in places(records)})


def places(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The environments in which runs started and resumed; what is not one is left out."""
    found = []
    for first in (r.environment for r in records if r.environment is not None):
        resumed = first.get("resumed")
        later = resumed if isinstance(resumed, list) else []
        found += [first, *(place for place in later if isinstance(place, dict))]
    return found
