"""Says where a run stands that makes no headway: a hung disk, a lock, a collective without an end.

It ends nothing: a process group's own time-out does that, or who reads it.
"""

import faulthandler
import sys
import threading
import time
from types import TracebackType

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.over.set()

    def beat(self) -> None:
        """A step, a micro-batch or a batch of a validation is done."""
        now = time.monotonic()
        if self.told:
            print(f"it went on after {now - self.last:.0f} s", file=sys.stderr, flush=True)
        self.last, self.told = now, False

    def _watch(self) -> None:
        assert self.timeout is not None
        while not self.over.wait(self.timeout / 4):
            still = time.monotonic() - self.last
            if still > self.timeout and not self.told:
                self.told = True
                print(
                    f"no headway for {still:.0f} s (train.hang_timeout); this process stands at:",
                    file=sys.stderr,
                    flush=True,
                )
                faulthandler.dump_traceback(STDERR, all_threads=True)
