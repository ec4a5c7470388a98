"""`kill_runs.py CONFIG FOLDER SEED KILLS`: train, killed at random moments, until it is done.

Prints one JSON document: the kills, and how many bytes of the results are not those of a run that
nobody disturbed. Every run that comes to its end is compared; further kills begin a new one.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from children import DONE, PREEMPTED, fork, status_of
from safetensors.torch import load_file

from unitsphere.training import checkpoint
from unitsphere.training.log import read_metrics
from unitsphere.training.recipes import load_recipe
from unitsphere.training.run import train

CLOCK = ("time", "tokens_per_second")


def session(config: Path, out: Path) -> int:
    """A child that trains in `out`, from wherever that is."""
    return fork(
        lambda: train(load_recipe(config), out, sampler=lambda *_: "text"), out.with_suffix(".said")
    )


def content(out: Path) -> dict[str, bytes]:
    """What a finished run amounts to: tensors, records without the clock, samples."""
    newest, damaged = checkpoint.newest(out / "checkpoints")
    assert newest is not None, damaged
    found = {
        name: tensor.numpy().tobytes()
        for path in newest.glob("*.safetensors")
        for name, tensor in load_file(path).items()
    }
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


def main() -> None:
    config, folder = Path(sys.argv[1]), Path(sys.argv[2])
    chance, kills = random.Random(int(sys.argv[3])), int(sys.argv[4])
    began = time.monotonic()
    assert status_of(session(config, folder / "whole")) == DONE
    span = time.monotonic() - began
    expected = content(folder / "whole")
    counts = {"SIGKILL": 0, "SIGTERM": 0, "runs": 0, "lost": 0, "slowest_stop": 0.0}
    while True:
        out = folder / f"run-{counts['runs']}"
        child = session(config, out)
        if counts["SIGKILL"] < kills:
            time.sleep(chance.uniform(0, span))
            number = signal.SIGTERM if chance.random() < 0.15 else signal.SIGKILL
            os.kill(child, number)
        asked = time.monotonic()
        status = status_of(child)
        if status == -signal.SIGKILL:
            counts["SIGKILL"] += 1
        elif status in (PREEMPTED, -signal.SIGTERM):  # the latter before training began
            counts["SIGTERM"] += 1
            counts["slowest_stop"] = max(counts["slowest_stop"], time.monotonic() - asked)
        elif status == DONE:
            counts["runs"] += 1
            counts["lost"] += lost(content(out), expected)
            if counts["SIGKILL"] >= kills:
                break
        else:
            sys.exit(f"status {status}:\n{out.with_suffix('.said').read_text()}")
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
