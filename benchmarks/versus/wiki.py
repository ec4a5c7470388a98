"""A language model on Wikipedia: ours against nanoGPT, nanochat, litgpt and the HF Trainer.

    python benchmarks/versus/wiki.py --nanogpt nanoGPT --nanochat nanochat \
        --peer_python peers/bin/python --train wiki_train.jsonl --validation wiki_dev.jsonl \
        --core 1 --minutes 5 15 30

Every contender gets the same tokens (one BPE, prepared by us), one thread and, within 2%, as many
parameters. A contender is first run for a few steps: from its start-up and its time per step
follows how many steps fill the minutes, so that its schedule ends with them. It runs at its
authors' rate, and at the best of its `factors` times that, found by whole runs of the shortest
budget: a rate counts as the best once half of it and twice of it are worse. Scores are of the whole
validation split, outside the clock. Each run is written to OUT at once and not repeated by the next
call; the table is printed at the end. litgpt needs an environment of its own (with
torchmetrics and tensorboard), so it takes a call of its own:
--contenders litgpt, with that --peer_python.

--steps gives the lengths in place of --minutes: then each contender runs once per length, at --rate
or its own, and nothing is tuned. --seed is the seed of ours and nanochat, instead of their own.
--decay is the weight decay of ours:

    python benchmarks/versus/wiki.py --train wiki_train.jsonl --validation wiki_dev.jsonl \
        --contenders gpt-plus-offset gpt-plus-peri --steps 2470 --decay 1.4
"""

import argparse
import json
import math
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from contenders import CONTENDERS, OURS, PEERS
from process import traced

from unitsphere.config import read_json
from unitsphere.data.prepare import prepare
from unitsphere.data.shards import Shards
from unitsphere.files import write_bytes, write_text
from unitsphere.report.render.text import markdown_table

TOKENIZER = "bpe:1024"
CLONED = ("nanogpt", "nanochat")
"""Peers that run from a clone of their repository."""
PROBE = (20, 120)
"""Steps of the two runs whose difference is the time per step."""
KEEP_MEMORY = ("env", f"MALLOC_TRIM_THRESHOLD_={2**40}", f"MALLOC_MMAP_THRESHOLD_={2**25}")
"""Settings of glibc, for all: what tensors free stays in the process, as ours sets for itself."""
TOLERANCE = 0.02
"""By how much a contender's parameters may differ from ours."""


def prepare_tokens(options: argparse.Namespace) -> float:
    """Write shards for ours and uint16 files for the peers; returns validation tokens per byte."""
    shards, flat = options.out / "shards", options.out / "tokens"
    prepare(str(options.train), TOKENIZER, shards, validation=str(options.validation))
    flat.mkdir(exist_ok=True)
    for split in ("train", "val"):
        tokens = Shards.open(shards, split)
        if not (flat / f"{split}.bin").exists():
            write_bytes(flat / f"{split}.bin", tokens[:].astype(np.uint16).tobytes())
    meta = {"vocab_size": tokens.vocab_size}
    write_bytes(flat / "meta.pkl", pickle.dumps(meta))  # the form that nanoGPT reads
    write_text(flat / "meta.json", json.dumps(meta))
    return tokens.n_tokens / tokens.n_bytes


def measured(name: str, options: argparse.Namespace, steps: int, rate: float) -> dict[str, Any]:
    """One run, or what an earlier call found."""
    decay = f"-decay-{options.decay:g}" if options.decay is not None and name not in PEERS else ""
    seed = f"-seed-{options.seed}" if options.seed is not None else ""
    label = f"{name}-{steps}-{rate:.3g}{decay}{seed}"
    path, folder = options.out / f"{label}.json", options.out / label
    if not path.exists():
        contender = CONTENDERS[name]
        folder.mkdir(exist_ok=True)
        command, where = contender.train(options, steps, rate, folder)
        trace = traced([*KEEP_MEMORY, *command], where, options.core, folder / "log")
        found = {
            "steps": steps, "rate": rate, "cpu": trace.cpu, "wall": trace.wall,
            "parameters": contender.parameters(trace, folder),
            "loss": contender.score(options, trace, folder),
        }  # fmt: skip
        write_text(path, json.dumps(found, indent=1) + "\n")
        print(f"{path}: {found['loss']:.4f}", file=sys.stderr, flush=True)
    return read_json(path)


def steps_for(name: str, options: argparse.Namespace, minutes: float) -> int:
    """How many steps fill the minutes of processor time, start-up included."""
    few, more = (measured(name, options, steps, CONTENDERS[name].rate) for steps in PROBE)
    per_step = (more["cpu"] - few["cpu"]) / (PROBE[1] - PROBE[0])
    start_up = few["cpu"] - PROBE[0] * per_step
    steps = int((60 * minutes - start_up) / per_step)
    if steps < 1:
        raise SystemExit(f"wiki.py: {minutes:g} minutes are too few for a step of {name}")
    return steps


def tuned_rate(name: str, options: argparse.Namespace) -> float:
    """The best rate at the shortest budget, with a worse one on either side."""
    steps = steps_for(name, options, options.minutes[0])
    rates = {factor * CONTENDERS[name].rate for factor in CONTENDERS[name].factors}
    while True:
        best = min(rates, key=lambda rate: measured(name, options, steps, rate)["loss"])
        missing = {best / 2, best * 2} - rates
        if not missing:
            return best
        rates |= missing


def check_sizes(options: argparse.Namespace) -> None:
    """Refuse contenders whose numbers of parameters differ from ours by more than TOLERANCE."""
    counts = {
        name: measured(name, options, PROBE[0], CONTENDERS[name].rate)["parameters"]
        for name in dict.fromkeys([OURS, *options.contenders])
    }
    for name, count in counts.items():
        if abs(count / counts[OURS] - 1) > TOLERANCE:
            raise SystemExit(f"wiki.py: {name} has {count:,} parameters, ours {counts[OURS]:,}")


def rows_of(name: str, options: argparse.Namespace, tokens_per_byte: float) -> list[list[str]]:
    """Bits per byte by length: a row for each of a contender's two rates, one where --steps are."""
    own = CONTENDERS[name].rate
    if options.steps:
        lengths, rates = options.steps, {"one run": options.rate or own}
    else:
        rates = {"as shipped": own, "tuned": tuned_rate(name, options)}
        lengths = [steps_for(name, options, minutes) for minutes in options.minutes]
    rows = []
    for kind, rate in rates.items():
        runs = [measured(name, options, steps, rate) for steps in lengths]
        bits = [f"{run['loss'] * tokens_per_byte / math.log(2):.4f}" for run in runs]
        rows.append([name, kind, f"{rate:.3g}", f"{runs[0]['parameters']:,}", *bits])
    return rows


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for peer in CLONED:
        parser.add_argument(f"--{peer}", type=Path, help=f"a clone of {peer}")
    parser.add_argument("--peer_python", default=sys.executable, help="of the peers' environment")
    parser.add_argument("--train", type=Path, required=True, help="JSONL with a key text")
    parser.add_argument("--validation", type=Path, required=True)
    parser.add_argument("--minutes", type=float, nargs="+", default=[5, 15, 30])
    parser.add_argument("--steps", type=int, nargs="+", help="lengths, in place of --minutes")
    parser.add_argument("--rate", type=float, help="of the runs of --steps, in place of their own")
    parser.add_argument(
        "--decay", type=float, help="weight decay of ours, in place of the recipe's"
    )
    parser.add_argument("--seed", type=int, help="of ours and nanochat, in place of their own")
    together = [name for name in CONTENDERS if name != "litgpt"]
    parser.add_argument("--contenders", nargs="+", choices=[*CONTENDERS], default=together)
    parser.add_argument("--out", type=Path, default=Path("runs/versus-wiki"))
    parser.add_argument("--core", type=int, help="the core that all run on")
    options = parser.parse_args(argv)
    if options.rate is not None and not options.steps:
        parser.error("--rate is that of single runs: give --steps too")
    unseeded = set(options.contenders) & set(PEERS) - {"nanochat"}
    if options.seed is not None and unseeded:
        parser.error(f"--seed is of ours and nanochat, not of {', '.join(sorted(unseeded))}")
    for peer in set(CLONED) & set(options.contenders):
        if getattr(options, peer) is None:
            parser.error(f"contender {peer}: give --{peer}, a clone of it")
        setattr(options, peer, getattr(options, peer).resolve())
    options.out = options.out.resolve()
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, and print the table."""
    options = parse(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    tokens_per_byte = prepare_tokens(options)
    check_sizes(options)
    rows = [row for name in options.contenders for row in rows_of(name, options, tokens_per_byte)]
    lengths = [f"{minutes:g} minutes" for minutes in options.minutes]
    lengths = [f"{steps:,} steps" for steps in options.steps or ()] or lengths
    columns = ["", "rate", "", "parameters", *lengths]
    print(markdown_table(columns, rows))


if __name__ == "__main__":
    main()
