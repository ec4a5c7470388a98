"""An executor that trains in this very process: a study of tiny runs takes a second or two."""

import contextlib
from collections.abc import Iterator, Sequence

import pytest

from unitsphere.cli import main
from unitsphere.studies.core.local import Job, State


class InProcess:
    """Runs jobs one after the other; `ran` has their names. Jobs with a name of `broken` fail.

    Before job number `stop` of all it is stopped, as by Ctrl-C.
    """

    workers, poll_seconds = 1, 0.0

    def __init__(self, broken: Sequence[str] = (), stop: int | None = None) -> None:
        self.broken, self.stop = broken, stop
        self.ran: list[str] = []

    def __call__(self, jobs: Sequence[Job]) -> "InProcess":
        return self

    def begin(self, states: Sequence[State]) -> None:
        self.waiting = list(states)

    def poll(self) -> bool:
        if len(self.ran) == self.stop:
            raise KeyboardInterrupt
        if self.waiting:
            self.run(self.waiting.pop(0))
        return bool(self.waiting)

    def interrupt(self) -> str:
        return "stopped and saved: the same command resumes there"

    def close(self) -> None:
        pass

    def run(self, state: State) -> None:
        job = state.job
        assert job.argv[1:3] == ["-m", "unitsphere"]
        self.ran.append(job.name)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        if any(name in job.name for name in self.broken):
            state.status, state.error = "failed", "the disk is full"
            return
        with job.log.open("a") as log, contextlib.redirect_stderr(log):
            code = main(list(job.argv[3:]))
        state.end(code)


@contextlib.contextmanager
def trained_here() -> Iterator[None]:
    """Within, studies train their runs in this process; test_execute.py has real processes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("execute", "local"):
            patch.setattr(f"unitsphere.studies.core.{module}.here", lambda *_: InProcess())
        yield
