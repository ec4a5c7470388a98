"""`unitsphere bench`: how fast, in ratios that can be trusted."""

import dataclasses
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from unitsphere.cli.checks import check_positive
from unitsphere.cli.output import print_json, print_table
from unitsphere.cli.parse import parse
from unitsphere.config import did_you_mean
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.bench.arms import Sizes

ARMS = ("gpt-plus", "ngpt", "angpt")


@dataclasses.dataclass(frozen=True)
class Measured:
    """The options that all benches have."""

    threads: int = 1
    """CPU threads"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""
    json: bool = False
    """print one JSON document"""


@dataclasses.dataclass(frozen=True)
class Bench(Measured):
    """Compare the training step of several architectures in time and memory.

    Arms take turns in one process. First each arm must give the losses and gradient
    norms of its reference, or it is left out, and the exit status is 1. The first
    arm is the baseline and runs twice, which shows the noise.
    Sizes default to 4 layers of 256 on a CPU, to the 0.5B model in 4k context on
    a GPU.

    more benches, each with its --help:
      unitsphere bench kernels    bytes per second of each, as a share of a copy
      unitsphere bench loss       cross-entropy with and without logits in memory
      unitsphere bench generate   tokens per second and latency with the KV cache
      unitsphere bench data       prepare, and the loader as a share of a step
      unitsphere bench optimizers  a step of each, and AdamW's

    examples:
      unitsphere bench
      unitsphere bench --compile --arms gpt-plus ngpt ngpt:train.compile=false
      unitsphere bench --d_model 128 --rounds 4 --json
    """

    arms: Annotated[tuple[str, ...], arg(metavar="ARM [ARM …]")] = ARMS
    """baseline first: gpt-plus, ngpt, angpt, gpt, normformer or any recipe, with
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
    """tokens per step"""
    vocab: int | None = None
    """entries of the vocabulary"""
    micro_batch: int | None = None
    """sequences that go through the model at once"""
    compile: bool = False
    """compile every arm on a CPU too (on a GPU they are, except with train.compile=false)"""
    precision: Literal["auto", "fp32", "bf16", "fp8", "bf16-storage"] = "auto"
    """auto: bf16 where the device computes in it, else fp32"""
    warmup: int | None = None
    """steps of each arm before the first round, after the 2 of the gate"""
    rounds: int = 8
    """rounds; every arm takes its turn in each"""
    steps: int | None = None
    """steps of an arm in a round"""
    minutes: float | None = None
    """start neither an arm nor a round after so many, so that a slow bench ends with what it has"""
    figure: Annotated[Path | None, arg(metavar="FILE")] = None
    """draw the result too: .png, .svg or .pdf"""


@dataclasses.dataclass(frozen=True)
class BenchKernels(Measured):
    """Bytes per second of each kernel and of its plain function, as a share of a measured copy.

    example: unitsphere bench kernels --tokens 16384 --d_model 2048
    """

    tokens: int | None = None
    """tokens; 4,096 on a CPU, 65,536 on a GPU"""
    d_model: int | None = None
    """width; 256 on a CPU, 1,024 on a GPU"""
    d_k: int = 64
    """width of a head"""
    rounds: int = 8
    """turns of each function"""


@dataclasses.dataclass(frozen=True)
class BenchLoss(Measured):
    """Time and memory of the ways to a linear head's cross-entropy, forward and backward.

    example: unitsphere bench loss --vocab 32000 --tokens 4096
    """

    tokens: int = 2048
    """tokens at once"""
    d_model: int | None = None
    """width; 256 on a CPU, 1,024 on a GPU"""
    vocab: int = 50304
    """entries of the vocabulary"""
    bf16: bool = False
    """under bf16 autocast"""
    rounds: int = 8
    """rounds; every way takes its turn in each"""


@dataclasses.dataclass(frozen=True)
class BenchGenerate(Measured):
    """The cost of a token in generation with the KV cache, by batch and context.

    The arm llama is transformers' own LlamaForCausalLM of the same shape.
    ARM:train.compile=true decodes by a compiled graph.

    example: unitsphere bench generate --arms llama ngpt --batch 1 16 --json
    """

    arms: Annotated[tuple[str, ...], arg(metavar="ARM [ARM …]")] = ARMS
    """baseline first; see `unitsphere bench --help`"""
    batch: Annotated[tuple[int, ...], arg(metavar="N [N …]")] = (1, 16)
    """prompts at once"""
    context: Annotated[tuple[int, ...], arg(metavar="N [N …]")] = (256,)
    """tokens of a prompt"""
    new: int = 32
    """tokens to add, after the first"""
    d_model: int | None = None
    """width"""
    layers: int | None = None
    """blocks"""
    heads: int | None = None
    """attention heads"""
    vocab: int | None = None
    """entries of the vocabulary"""
    rounds: int = 8
    """turns of each arm"""


@dataclasses.dataclass(frozen=True)
class BenchOptimizers(Measured):
    """What a step of each optimizer costs next to the first, on one model with the same gradients.

    Only the step: neither the forward nor the backward pass. muon:muon.batched=true
    is Muon with all equal matrices in one batched call, which it always is on a GPU.

    example: unitsphere bench optimizers --optimizers adamw muon soap --d_model 512
    """

    optimizers: Annotated[tuple[str, ...], arg(metavar="NAME [NAME …]")] = ()
    """baseline first, values of optim.name, with :KEY=VALUE,… for keys of optim; none: all"""
    arm: str = "gpt-plus"
    """whose model is stepped; see `unitsphere bench --help`"""
    d_model: int | None = None
    """width"""
    layers: int | None = None
    """blocks, by default 4"""
    heads: int | None = None
    """attention heads"""
    vocab: int | None = None
    """entries of the vocabulary"""
    rounds: int = 8
    """turns of each optimizer"""
    steps: int = 10
    """steps of a turn: SOAP's bases are refreshed every 10"""


@dataclasses.dataclass(frozen=True)
class BenchData(Measured):
    """How fast text is prepared, and the loader's part of a training step.

    example: unitsphere bench data --source wiki.jsonl --tokenizer bpe:32000
    """

    source: str = "stdlib"
    """a file, a quoted glob, a folder, or stdlib (Python's own source)"""
    tokenizer: Annotated[str, arg(metavar="T")] = "bpe:1024"
    """bytes, bpe:N, or a tokenizer.json"""
    arm: str = "gpt-plus"
    """the arm whose training step is the measure"""
    context: int | None = None
    """tokens of a sequence"""
    tokens: int | None = None
    """tokens per step"""
    batches: int = 50
    """batches to load"""
    steps: int = 5
    """training steps to compare with"""


def run(argv: list[str]) -> int:
    """Measure and print: a training step, or what the first word names; 1 if an arm is left out."""
    parts = {
        "kernels": (BenchKernels, run_kernels),
        "loss": (BenchLoss, run_loss),
        "generate": (BenchGenerate, run_generate),
        "data": (BenchData, run_data),
        "optimizers": (BenchOptimizers, run_optimizers),
    }
    part = argv[0] if argv and not argv[0].startswith("-") else None
    if part is not None and part not in parts:
        raise UserError(f"unknown bench '{part}'{did_you_mean(part, parts)}")
    options, measure = parts[part] if part else (Bench, run_training)
    args: Any = parse(options, argv[1:] if part else argv, f"bench {part}" if part else "bench")
    check_positive(**{name: n for name, n in vars(args).items() if type(n) is int})
    bench, report = measure(args)
    if args.json:
        print_json(report)
    else:
        print_table(bench.COLUMNS, bench.rows(report))
        for line in bench.notes(report):
            print(line)
    return 1 if report.get("left") else 0


def sizes_of(args: Any, **changes: Any) -> "Sizes":
    """The device's default sizes with those that the options name, and `changes`.

    Makes that device torch's current one, and sets the number of CPU threads.
    """
    import torch

    from unitsphere.bench.arms import sizes_for
    from unitsphere.training.device import pick_device

    torch.set_num_threads(args.threads)
    device = pick_device(args.device)
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)
    names = {"layers": "n_layers", "heads": "n_heads", "vocab": "vocab_size"}
    names |= {key: key for key in ("d_model", "context", "tokens", "micro_batch", "precision")}
    given = {key: getattr(args, option, None) for option, key in names.items()}
    return sizes_for(device, given | changes)


def run_training(args: Bench) -> tuple[ModuleType, dict[str, Any]]:
    """Time training steps."""
    from torch import OutOfMemoryError

    from unitsphere.bench import train

    if args.figure is not None:
        train.check_figure(args.figure)
    sizes = sizes_of(args, compile=args.compile or None)
    steps, warmup = (8, 10) if sizes.device.startswith("cuda") else (2, 1)
    protocol = train.Protocol(args.warmup or warmup, args.rounds, args.steps or steps, args.minutes)
    try:
        report = train.bench_training(args.arms, sizes, protocol)
    except OutOfMemoryError as error:
        raise UserError("out of GPU memory: give --micro_batch a lower value") from error
    if args.figure is not None:
        print(f"drawn: {train.draw(report, args.figure)}", file=sys.stderr)
    return train, report


def run_kernels(args: BenchKernels) -> tuple[ModuleType, dict[str, Any]]:
    """Time the kernels."""
    import torch

    from unitsphere.bench import kernels
    from unitsphere.training.device import computes_in_bf16

    sizes = sizes_of(args, context=1, n_heads=1)
    device = torch.device(sizes.device)
    dtype = torch.bfloat16 if computes_in_bf16(device) else torch.float32
    shape = kernels.Shape(sizes.tokens, sizes.d_model, args.d_k, dtype, device)
    return kernels, kernels.bench_kernels(shape, args.rounds)


def run_loss(args: BenchLoss) -> tuple[ModuleType, dict[str, Any]]:
    """Time the losses."""
    import torch

    from unitsphere.bench import loss

    sizes = sizes_of(args, tokens=None)
    device = torch.device(sizes.device)
    head = loss.Head(args.tokens, sizes.d_model, args.vocab, args.bf16, device)
    return loss, loss.bench_loss(head, args.rounds)


def run_generate(args: BenchGenerate) -> tuple[ModuleType, dict[str, Any]]:
    """Time generation."""
    from unitsphere.bench import generate

    check_positive(batch=min(args.batch), context=min(args.context))
    loads = [generate.Load(batch, context) for batch in args.batch for context in args.context]
    sizes = sizes_of(args, context=None)
    return generate, generate.bench_generation(args.arms, sizes, loads, args.new, args.rounds)


def run_optimizers(args: BenchOptimizers) -> tuple[ModuleType, dict[str, Any]]:
    """Time the optimizers' steps."""
    from unitsphere.bench import optimizers

    sizes = sizes_of(args, n_layers=args.layers or optimizers.LAYERS)
    arms = args.optimizers or optimizers.default_arms(sizes.device)
    report = optimizers.bench_optimizers(arms, args.arm, sizes, args.rounds, args.steps)
    return optimizers, report


def run_data(args: BenchData) -> tuple[ModuleType, dict[str, Any]]:
    """Time preparing and loading."""
    from unitsphere.bench import data

    sizes = sizes_of(args)
    report = data.bench_data(args.source, args.tokenizer, args.arm, sizes, args.batches, args.steps)
    return data, report
