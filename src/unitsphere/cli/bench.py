"""`unitsphere bench`: how fast, in ratios that can be trusted."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from unitsphere.cli.bench_parts import run_data, run_generate, run_kernels, run_loss, tell, use
from unitsphere.cli.parse import check_positive, parse
from unitsphere.errors import UserError


@dataclasses.dataclass(frozen=True)
class Bench:
    """Time a training step of several architectures against each other.

    Arms are interleaved in one process, after a gate on their first losses; the
    first is the baseline and runs twice, which shows the noise. Sizes default to
    4 layers of 256 on a CPU, to the 0.5B model in 4k context on a GPU.

    more benches, each with its --help:
      unitsphere bench kernels    bytes a second of each, as a share of a copy
      unitsphere bench loss       cross-entropy with and without logits in memory
      unitsphere bench generate   tokens a second and latency with the KV cache
      unitsphere bench data       prepare, and the loader as a share of a step

    examples:
      unitsphere bench
      unitsphere bench --compile --arms gpt-plus ngpt ngpt:train.compile=false
      unitsphere bench --d_model 128 --rounds 4 --json
    """

    arms: Annotated[tuple[str, ...], arg(metavar="ARM [ARM …]")] = ("gpt-plus", "ngpt", "angpt")
    """baseline first: gpt-plus, ngpt, angpt, gpt, normformer or any recipe, perhaps with
    :KEY=VALUE,… to change it (kernels=off for the plain functions)"""
    d_model: int | None = None
    """width"""
    layers: int | None = None
    """blocks"""
    heads: int | None = None
    """attention heads"""
    context: int | None = None
    """tokens of a sequence"""
    tokens: int | None = None
    """tokens a step"""
    vocab: int | None = None
    """entries of the vocabulary"""
    micro_batch: int | None = None
    """sequences that go through the model at once"""
    compile: bool = False
    """compile every arm on a CPU too (on a GPU they are, but for train.compile=false)"""
    precision: Literal["auto", "fp32", "bf16", "fp8", "bf16-storage"] = "auto"
    """auto: bf16 where the device computes in it, else fp32"""
    warmup: int | None = None
    """steps of each arm before the first round, after the 5 of the gate"""
    rounds: int = 8
    """rounds, in each of which every arm has its turn"""
    steps: int | None = None
    """steps of an arm in a round"""
    threads: int = 1
    """CPU threads"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""
    figure: Annotated[Path | None, arg(metavar="FILE")] = None
    """draw the result too: .png, .svg or .pdf"""
    json: bool = False
    """print one JSON document"""


PARTS = {
    "kernels": run_kernels,
    "loss": run_loss,
    "generate": run_generate,
    "data": run_data,
}


def run(argv: list[str]) -> int:
    """Measure and print: a training step, or what the first word names."""
    if argv and argv[0] in PARTS:
        return PARTS[argv[0]](argv[1:])
    args = parse(Bench, argv, "bench")
    check_positive(rounds=args.rounds, steps=args.steps, threads=args.threads)
    check_positive(micro_batch=args.micro_batch, warmup=args.warmup)
    import torch

    from unitsphere.bench.arms import sizes_for
    from unitsphere.bench.figure import check_figure, draw_training
    from unitsphere.bench.show import COLUMNS, training_notes, training_rows
    from unitsphere.bench.train import Protocol, bench_training

    if args.figure is not None:
        check_figure(args.figure)
    device = use(args.device, args.threads)
    names = {"layers": "n_layers", "heads": "n_heads", "vocab": "vocab_size"}
    same = ("d_model", "context", "tokens", "micro_batch", "precision")
    changes = {key: getattr(args, key) for key in same}
    changes |= {key: getattr(args, option) for option, key in names.items()}
    sizes = sizes_for(device, changes | {"compile": args.compile or None})
    on_gpu = device.type == "cuda"
    steps, warmup = (8, 10) if on_gpu else (2, 1)
    protocol = Protocol(args.warmup or warmup, args.rounds, args.steps or steps)
    try:
        report = bench_training(args.arms, sizes, protocol)
    except torch.OutOfMemoryError as error:
        raise UserError("out of GPU memory: give --micro_batch a lower value") from error
    if args.figure is not None:
        print(f"drawn: {draw_training(report, args.figure)}", file=sys.stderr)
    return tell(report, args.json, COLUMNS, training_rows(report), training_notes(report))
