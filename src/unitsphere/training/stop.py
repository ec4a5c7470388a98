"""A signal or a time limit saves a run and stops it, to be resumed later. And a watchdog."""

import faulthandler
import math
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.training.distributed.layout import Layout

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str, name: str = "train.time_limit") -> float:
    """Seconds of "90", "90s", "1.5h", "2h30m", "1d"; a `UserError` on `name` for anything else."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([dhms]?)", text)
    found = math.fsum(float(number) * UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not 0 < found < math.inf:
        raise UserError(
            f"{name} must be a time such as 90m, 2h30m or a number of seconds: {text!r}"
        )
    return found


class Stop:
    """Whether a run is to save and stop: after a signal while entered, or when time is up.

    A second Ctrl-C stops at once. Python delivers signals only to the main thread: elsewhere
    there is only the limit. The clock starts with the object; saving begins early enough that a
    checkpoint as slow as twice the slowest so far, `saving` seconds, is done in time.
    """

    def __init__(self, limit: float | None = None, layout: "Layout | None" = None) -> None:
        self.limit, self.layout, self.began = limit, layout, time.monotonic()
        self.asked, self.longest, self.saving = math.inf, 0.0, 0.0
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # nohup ignores SIGHUP so that a run outlives its terminal.
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def due(self) -> bool:
        """Whether to save and stop now, on all ranks if on any; all of them ask equally often.

        Asked between steps, micro-batches and batches of a validation; the longest time between
        two questions is part of what is kept free before the limit.
        """
        now = time.monotonic()
        self.longest = max(self.longest, now - self.asked)
        self.asked = now
        if self.limit is not None and not self.requested:
            left = self.began + self.limit - now
            if left <= self.longest + 2 * self.saving:
                self.requested = True
                print(
                    f"train.time_limit: {max(left, 0):.0f} of {self.limit:.0f} seconds are left: "
                    "saving",
                    file=sys.stderr,
                    flush=True,
                )
        return self.requested if self.layout is None else self.layout.any(self.requested)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
        # What reads stderr may be slow: a line that waits for it is refused another one within.
        with suppress(RuntimeError):
            print(
                f"\n{signal.Signals(number).name}: saving; Ctrl-C stops at once",
                file=sys.stderr,
                flush=True,
            )


STDERR = 2


class Watchdog:
    """A thread that waits for `beat`; after `timeout` seconds without one it prints every thread's
    stack on stderr, once until the next. No timeout: no thread.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout, self.last, self.told = timeout, time.monotonic(), False
        self.over = threading.Event()

    def __enter__(self) -> "Watchdog":
        if self.timeout is not None:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.over.set()

    def beat(self) -> None:
        """A step, a micro-batch or a batch of a validation is done."""
        now = time.monotonic()
        if self.told:
            print(f"it continued after {now - self.last:.0f} s", file=sys.stderr, flush=True)
        self.last, self.told = now, False

    def _watch(self) -> None:
        assert self.timeout is not None
        while not self.over.wait(self.timeout / 4):
            still = time.monotonic() - self.last
            if still > self.timeout and not self.told:
                self.told = True
                print(
                    f"no progress for {still:.0f} s (train.hang_timeout); this process is at:",
                    file=sys.stderr,
                    flush=True,
                )
                faulthandler.dump_traceback(STDERR, all_threads=True)
