"""Child processes that are forked from one that has imported everything: a kill costs little."""

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from unitsphere.errors import Preempted, UserError

for later in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.nn.functional"):
    importlib.import_module(later)  # what a run imports on its way, here once for all children
DONE, USER_ERROR, LOST, PREEMPTED, CRASHED = 0, 2, 3, 75, 99


def fork(work: Callable[[], object], said: Path) -> int:
    """The id of a child that does `work`, its output in the file `said`."""
    torch.set_num_threads(1)
    child = os.fork()
    if child:
        return child
    status = CRASHED
    try:
        handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        work()
        status = DONE
    except UserError as error:
        print(error, file=sys.stderr)
        status = USER_ERROR
    except Preempted:
        status = PREEMPTED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def status_of(child: int, timeout: float = 60.0) -> int:
    """The exit status of a child, or minus the signal that ended it; killed if it hangs."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise TimeoutError(f"a child hung for {timeout} seconds")
