"""Seconds of the wall clock from a process's start to a run's first step, and to a first token.

    unitsphere prepare stdlib --tokenizer bpe:1024 --out data/code
    python benchmarks/startup.py --data data/code > docs/results/startup.json

The run that the token is sampled from is the recipe's after one step. On a machine that does
something else too the seconds are too high. Files are in the page cache from the second start on.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from unitsphere.data.shards import read_manifest
from unitsphere.training.device import environment

FIRST_STEP = """
import os, sys, time
from unitsphere.cli import main
import unitsphere.training.run as run
from unitsphere.training.step import update

def first(trainer, step, monitor):
    update(trainer, step)
    print(time.time() - float(os.environ["START"]))
    raise SystemExit

run.train_steps = first
main(["train", *sys.argv[1:]])
"""
FIRST_TOKEN = """
import os, sys, time
from unitsphere.cli import main

main(["generate", sys.argv[1], "--prompt", "The", "--max_tokens", "1"])
print(time.time() - float(os.environ["START"]))
"""


def seconds(code: str, *words: str) -> float:
    """What `code` prints last, in a new process with `words` as its arguments."""
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "START": repr(time.time())},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Print one JSON document with the seconds of every start and their median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="a folder of prepared tokens")
    parser.add_argument("--recipe", default="quickstart/ngpt")
    parser.add_argument("--starts", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trained = [options.recipe, "--data.source", options.data, "--train.steps", "1"]
        run = f"{folder}/trained"
        subprocess.run(
            [sys.executable, "-m", "unitsphere", "train", *trained, "--out", run],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        to_step, to_token = [], []
        for start in range(options.starts):
            to_step.append(seconds(FIRST_STEP, *trained, "--out", f"{folder}/{start}"))
            to_token.append(seconds(FIRST_TOKEN, run))
    rows = [
        {"until": until, "seconds": found, "median": statistics.median(found)}
        for until, found in (("first step", to_step), ("first token", to_token))
    ]
    where = environment(torch.device("cpu"))
    tokens = read_manifest(Path(options.data)).train.tokens
    told = {"recipe": options.recipe, "tokens": tokens}
    print(json.dumps({"environment": where, **told, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
