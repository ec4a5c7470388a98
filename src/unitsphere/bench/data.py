"""`unitsphere bench data`: how fast text becomes shards, and shards become batches."""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from unitsphere.bench.arms import Sizes, Stepper, arm_config
from unitsphere.bench.measure import clock_name, say, timed
from unitsphere.data.batch import NextToken
from unitsphere.data.batches import Batches
from unitsphere.data.prepare import prepare
from unitsphere.data.shards import Shards
from unitsphere.training.device import environment

COLUMNS = ("what", "figure")


def bench_data(
    source: str, tokenizer: str, arm: str, sizes: Sizes, batches: int, steps: int
) -> dict[str, Any]:
    """Everything that the verb reports, as plain values.

    `prepare` is timed from nothing by the wall's clock, a tokenizer's training included; the
    loader as the time of `batches` batches, of the same size as the `arm`'s steps. Raises
    UserError for a source or tokenizer that cannot be used.
    """
    device = torch.device(sizes.device)
    with tempfile.TemporaryDirectory() as folder:
        say(f"prepare {source}")
        out = Path(folder, "prepared")
        started = time.perf_counter()
        prepare(source, tokenizer, out, progress=False)
        seconds = time.perf_counter() - started
        train, val = Shards.open(out, "train"), Shards.open(out, "val")
        say(f"{batches} batches")
        load = loading(train, sizes, batches)
    say(f"{steps} steps of {arm}")
    step = stepping(arm, sizes, steps, device)
    text = train.n_bytes + val.n_bytes
    return {
        "environment": environment(device)
        | {"sizes": dataclasses.asdict(sizes), "clock": clock_name(device)},
        "prepare": {
            "source": source,
            "tokenizer": tokenizer,
            "seconds": seconds,
            "bytes": text,
            "tokens": train.n_tokens + val.n_tokens,
            "bytes_per_second": text / seconds,
        },
        "loader": {
            "ms": load,
            "batches_per_second": 1e3 / load,
            "tokens_per_second": 1e3 * sizes.tokens / load,
            "arm": arm,
            "step_ms": step,
            "share_of_step": load / step,
        },
    }


def loading(shards: Shards, sizes: Sizes, count: int) -> float:
    """Median ms of a batch from the disk's cache, without the first, which draws the order."""
    form = NextToken(sizes.context, shards.separator, score_separators=True)
    batches = Batches(shards, form, sizes.tokens // sizes.context, seed=0)
    numbers = iter(range(count + 1))
    times = timed(lambda: batches.batch(next(numbers)), count + 1, torch.device("cpu"))
    return statistics.median(times[1:])


def stepping(arm: str, sizes: Sizes, count: int, device: torch.device) -> float:
    """Median ms of a training step of the arm, without the first two."""
    stepper = Stepper(arm_config(arm, sizes))
    timed(stepper.step, 2, device)
    return statistics.median(timed(stepper.step, count, device))


def rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Preparing, then loading."""
    prepare, loader = report["prepare"], report["loader"]
    return [
        ["source", f"{prepare['source']}, {prepare['bytes'] / 1e6:,.1f} MB"],
        ["tokenizer", prepare["tokenizer"]],
        ["prepare", f"{prepare['bytes_per_second'] / 1e6:.2f} MB/s ({prepare['seconds']:.1f} s)"],
        ["loader", f"{loader['batches_per_second']:,.0f} batches/s ({loader['ms']:.2f} ms each)"],
        ["step", f"{loader['step_ms']:,.1f} ms ({loader['arm']})"],
        ["loader ÷ step", f"{loader['share_of_step']:.2%}"],
    ]


def notes(report: Mapping[str, Any]) -> list[str]:
    """Nothing more: the table says all."""
    return []
