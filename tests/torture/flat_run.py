"""`flat_run.py CONFIG FOLDER STEPS`: train with records, validations, samples and checkpoints.

Prints one JSON document: memory and open files at every tenth of the run.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

from unitsphere.training.recipes import load_recipe
from unitsphere.training.run import train


def main() -> None:
    config, out, steps = load_recipe(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    seen = []

    def look(*_: object) -> str:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        seen.append([pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))])
        return ""

    often = {"save_every": 25, "eval_every": 25, "eval_tokens": 64, "log_every": 5}
    settings = {"steps": steps, "micro_batch": None, "sample_every": steps // 10}
    settings |= {"on_spike": "skip", "spike_sigma": 50.0}
    train_config = dataclasses.replace(config.train, **often, **settings)
    train(dataclasses.replace(config, train=train_config), out, sampler=look)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
