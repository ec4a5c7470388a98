"""An executor that trains in this very process: a study of tiny runs takes a second or two."""

import contextlib
import shlex
from collections.abc import Sequence

from unitsphere.cli import main
from unitsphere.studies.executor import Job, State


class InProcess:
    """Runs jobs one after the other; `ran` has their names. Jobs of `broken` names fail."""

    workers = 1

    def __init__(self, broken: Sequence[str] = ()) -> None:
        self.broken = broken
        self.ran: list[str] = []

    def __call__(self, jobs, on_progress) -> list[State]:
        states = [State(job) for job in jobs]
        for state in states:
            self.ran.append(state.job.name)
            self.run(state)
            on_progress(states)
        return states

    def run(self, state: State) -> None:
        job: Job = state.job
        assert job.argv[1:3] == ["-m", "unitsphere"], shlex.join(job.argv)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        if any(name in job.name for name in self.broken):
            state.status, state.error = "failed", "the disk is full"
            return
        with job.log.open("a") as log, contextlib.redirect_stderr(log):
            code = main(list(job.argv[3:]))
        said = [x for x in job.log.read_text().splitlines() if x.startswith("unitsphere: error:")]
        state.status = "failed" if code else "done"
        state.error = said[-1] if code else None
