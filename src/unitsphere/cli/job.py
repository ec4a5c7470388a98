"""One task of a submitted job: trains as a process that torchrun started would.

What asks it to stop first decides whether the job goes back into the queue. The end of its time
(SIGUSR2, or train.time_limit) does, whatever comes while it saves. SIGTERM is also what `scancel`
sends: the run saves, and SLURM itself requeues the job if it was preempted.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from unitsphere.cli import main
from unitsphere.cli.app import EXIT_PREEMPTED
from unitsphere.studies.core.cluster import TIME_IS_UP, Resubmitted, torchrun_variables
from unitsphere.studies.core.jobs import nothing_to_save


class TrainTask(Resubmitted):
    """`unitsphere train` with `argv`, as submitit calls it in each task of a job."""

    def __init__(self, argv: list[str]) -> None:
        self.argv = argv

    def __call__(self) -> int:
        """Train, or resume; exits as the command does, unless the job takes another turn."""
        os.environ.update(torchrun_variables())
        requeue = signal.getsignal(TIME_IS_UP)
        with arrived_signals() as arrived:
            for number in (signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, nothing_to_save)
            signal.signal(TIME_IS_UP, ask_to_save)
            status = run_train(self.argv)
            cancelled = is_cancelled(arrived())
        if status == EXIT_PREEMPTED and not cancelled:
            signal.signal(TIME_IS_UP, requeue)
            signal.raise_signal(TIME_IS_UP)  # submitit: the first task requeues, and exits
        elif status:
            sys.exit(status)
        return status


def is_cancelled(arrived: list[int]) -> bool:
    """Whether of the signals, in the order of their coming, SIGTERM came before the notice."""
    asked = [number for number in arrived if number in (signal.SIGTERM, TIME_IS_UP)]
    return asked[:1] == [signal.SIGTERM]


def run_train(argv: list[str]) -> int:
    """The command's exit status, also where a signal ended it before there was a run to save."""
    try:
        return main(["train", *argv])
    except SystemExit as end:
        if end.code != EXIT_PREEMPTED:
            raise
        return EXIT_PREEMPTED


def ask_to_save(number: int, frame: FrameType | None) -> None:
    """Pass SLURM's notice on as a signal that the run knows."""
    signal.raise_signal(signal.SIGUSR1)


@contextmanager
def arrived_signals() -> Iterator[Callable[[], list[int]]]:
    """Within: a function that gives the signals that have come, in order, whoever handled them."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    seen: list[int] = []

    def arrived() -> list[int]:
        with suppress(BlockingIOError):  # none since the last question
            seen.extend(os.read(reader, 65536))
        return seen

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield arrived
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
