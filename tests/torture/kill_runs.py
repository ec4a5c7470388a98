"""`kill_runs.py CONFIG FOLDER SEED KILLS PROCESSES`: train, killed at random moments, until done.

Prints one JSON document: the kills, and how many bytes of the results are not those of a run that
nobody disturbed. Every run that comes to its end is compared; further kills begin a new one. Of
several processes all are killed at once, as by a machine that goes down, or one alone is, which
ends the others; SIGTERM goes to torchrun, which passes it on.
"""

import json
import os
import random
import re
import signal
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from children import DONE, LOST, PREEMPTED, fork, status_of
from safetensors import safe_open
from torchruns import adopt_orphans, kill_all, pid_file, reap, torchrun

from unitsphere.training.checkpoint import store as checkpoint
from unitsphere.training.distributed import processes as training_processes
from unitsphere.training.log import read_metrics
from unitsphere.training.recipes import load_recipe
from unitsphere.training.run import train

CLOCK = ("time", "tokens_per_second", "slowest_rank", "slowest_ratio")
TERM, ONE = 0.15, 0.1
"""Shares of the faults that are a SIGTERM, and that hit one process of several."""


def session(config: Path, out: Path, processes: int = 1) -> int:
    """A child that trains in `out`, from wherever that is."""

    def work() -> None:
        train(load_recipe(config), out, sampler=lambda *_: "text")

    said = out.with_suffix(".said")
    return fork(work, said) if processes == 1 else torchrun(work, processes, said)


def content(out: Path) -> dict[str, bytes]:
    """What a finished run amounts to: tensors, records without the clock, samples."""
    newest, damaged = checkpoint.newest(out / "checkpoints")
    assert newest is not None, damaged
    found = {}
    for path in newest.glob("*.safetensors"):  # which process writes what all have is left open
        with safe_open(path, "pt") as file:
            offsets = json.loads((file.metadata() or {}).get("DCP_SHARDING_INFO", "{}"))
            names = file.keys()
            for name in names:
                found[f"{name} at {offsets.get(name)}"] = file.get_tensor(name).numpy().tobytes()
    records = [{k: v for k, v in r.items() if k not in CLOCK} for r in read_metrics(out)]
    found["records"] = json.dumps(records).encode()
    found["samples"] = (out / "samples.txt").read_bytes()
    return found


def lost(found: dict[str, bytes], expected: dict[str, bytes]) -> int:
    """Bytes of `expected` that are not so in `found`."""
    total = 0
    for name in expected:
        a, b = expected[name], found.get(name, b"")
        total += sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b))
    return total


def harm(child: int, out: Path, processes: int, chance: random.Random) -> int | None:
    """Kill the session, or tell it to stop; the rank of the process that was killed alone."""
    dice = chance.random()
    if dice < TERM:
        os.kill(child, signal.SIGTERM)
    elif processes > 1 and dice < TERM + ONE:
        rank = chance.randrange(processes)
        said = pid_file(out.with_suffix(".said"), rank)
        with suppress(FileNotFoundError, ProcessLookupError):  # it has not started, or has ended
            os.kill(int(said.read_text()), signal.SIGKILL)
            return rank
    elif processes > 1:
        kill_all(child)
    else:
        os.kill(child, signal.SIGKILL)
    return None


def wait_for(child: int, seconds: float) -> bool:
    """Wait that long; whether the child still runs then, or it has ended before."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        time.sleep(0.005)
    return True


def ended(child: int, processes: int) -> int:
    """The status of a session when all of its processes are gone."""
    # One that lost its peer may wait for parallel.timeout, 60 seconds, before it ends.
    status = status_of(child, timeout=120.0 if processes > 1 else 60.0)
    if processes > 1:
        reap(child)
    return status


def tells_of(rank: int, said: str) -> bool:
    """Whether torchrun says that this rank was killed, or the other that it lost its peer.

    torchrun looks ten times a second, and names the first rank that it finds dead.
    """
    killed = rf"rank +: {rank} .*\n +exitcode +: -9 "
    return re.search(rf"{killed}|Connection (closed|reset) by peer", said) is not None


def main() -> None:
    config, folder = Path(sys.argv[1]), Path(sys.argv[2])
    chance, kills, processes = random.Random(int(sys.argv[3])), int(sys.argv[4]), int(sys.argv[5])
    adopt_orphans()
    training_processes.GRACE = timedelta(
        seconds=2
    )  # for the processes that are left when one is killed
    began = time.monotonic()
    assert ended(session(config, folder / "whole", processes), processes) == DONE
    span = time.monotonic() - began
    expected = content(folder / "whole")
    counts = {"SIGKILL": 0, "one": 0, "SIGTERM": 0, "runs": 0, "lost": 0, "slowest_stop": 0.0}
    while True:
        out, rank = folder / f"run-{counts['runs']}", None
        said = out.with_suffix(".said")
        for number in range(processes):
            pid_file(said, number).unlink(missing_ok=True)
        child = session(config, out, processes)
        if counts["SIGKILL"] + counts["one"] < kills:
            if wait_for(child, chance.uniform(0, span)):
                rank = harm(child, out, processes, chance)
                span *= 1.05
            else:  # the moments follow the machine, which others may use too
                span *= 0.9
        asked = time.monotonic()
        status = ended(child, processes)
        if status == -signal.SIGKILL:
            counts["SIGKILL"] += 1
        elif status == LOST and rank is not None and tells_of(rank, said.read_text()):
            counts["one"] += 1
        elif status in (PREEMPTED, -signal.SIGTERM):  # the latter before training began
            counts["SIGTERM"] += 1
            counts["slowest_stop"] = max(counts["slowest_stop"], time.monotonic() - asked)
        elif status == DONE:
            counts["runs"] += 1
            counts["lost"] += lost(content(out), expected)
            if counts["SIGKILL"] + counts["one"] >= kills:
                break
        else:
            sys.exit(f"status {status}:\n{said.read_text()}")
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
