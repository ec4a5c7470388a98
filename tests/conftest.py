"""The suite begins with the signals' own meanings: nohup and some CI runners ignore a few.

Without a GPU Triton interprets kernels. It reads that when it is imported, which the compiler does.
"""

import os
import signal
import tempfile

import torch
from hypothesis import settings

# The key with which runs are signed: not the user's own.
state = tempfile.TemporaryDirectory(prefix="unitsphere-state-")
os.environ["XDG_STATE_HOME"] = state.name

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        ignored_by_default = number != signal.SIGINT
        signal.signal(number, signal.SIG_DFL if ignored_by_default else signal.default_int_handler)

settings.register_profile("no clock", deadline=None)  # a busy machine is no failure
settings.load_profile("no clock")
