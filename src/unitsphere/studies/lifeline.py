"""The jobs of a study end with the process that follows them, even if that is killed.

The parent holds one end of a pipe, each job reads the other: when the parent is gone, however it
went, the system closes its end, and the job stops as by SIGTERM, so that a training saves first.
"""

import functools
import os
import signal
import threading

LIFELINE = "UNITSPHERE_LIFELINE"
"""names to a job the descriptor of its end"""


@functools.cache
def lifeline() -> int:
    """The end that is for this process's jobs; the other one is open as long as the process."""
    jobs_end, _ = os.pipe()
    return jobs_end


def end_with_parent() -> None:
    """As the job of a study: stop when the study's process has gone. Else nothing."""
    # Taken out, since the descriptor is not handed on to processes that this one starts.
    named = os.environ.pop(LIFELINE, None)
    if named is None:
        return
    end = int(named)
    os.set_inheritable(end, False)
    threading.Thread(target=_stop_at_end_of, args=[end], name="lifeline", daemon=True).start()


def _stop_at_end_of(end: int) -> None:
    if not os.read(end, 1):
        os.kill(os.getpid(), signal.SIGTERM)
