"""`unitsphere bench kernels`, `bench loss`, `bench generate` and `bench data`."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from unitsphere.cli.output import print_json, print_table
from unitsphere.cli.parse import check_positive, parse

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True)
class BenchKernels:
    """Bytes a second of each kernel and of its plain function, as a share of a measured copy.

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
    threads: int = 1
    """CPU threads"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""
    json: bool = False
    """print one JSON document"""


@dataclasses.dataclass(frozen=True)
class BenchLoss:
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
    """turns of each way"""
    threads: int = 1
    """CPU threads"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""
    json: bool = False
    """print one JSON document"""


@dataclasses.dataclass(frozen=True)
class BenchGenerate:
    """What a token costs in generation with the KV cache, by batch and context.

    The arm llama is transformers' own LlamaForCausalLM of the same shape.
    ARM:train.compile=true decodes by a compiled graph.

    example: unitsphere bench generate --arms llama ngpt --batch 1 16 --json
    """

    arms: Annotated[tuple[str, ...], arg(metavar="ARM [ARM …]")] = ("gpt-plus", "ngpt", "angpt")
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
    threads: int = 1
    """CPU threads"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""
    json: bool = False
    """print one JSON document"""


@dataclasses.dataclass(frozen=True)
class BenchData:
    """How fast text is prepared, and the loader's part of a training step.

    example: unitsphere bench data --source wiki.jsonl --tokenizer bpe:32000
    """

    source: str = "stdlib"
    """a file, a quoted glob, a folder, or stdlib (Python's own source)"""
    tokenizer: Annotated[str, arg(metavar="T")] = "bpe:1024"
    """bytes, bpe:N, or a tokenizer.json"""
    arm: str = "gpt-plus"
    """whose step is the measure"""
    context: int | None = None
    """tokens of a sequence"""
    tokens: int | None = None
    """tokens a step"""
    batches: int = 50
    """batches to load"""
    steps: int = 5
    """training steps to compare with"""
    threads: int = 1
    """CPU threads of the training step"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""
    json: bool = False
    """print one JSON document"""


def use(device: str, threads: int) -> "torch.device":
    """The device of that name, made torch's current one; with so many CPU threads."""
    import torch

    from unitsphere.training.device import pick_device

    torch.set_num_threads(threads)
    found = pick_device(device)
    if found.index is not None and found.type == "cuda":
        torch.cuda.set_device(found)
    return found


def run_kernels(argv: list[str]) -> int:
    """Time the kernels and print."""
    args = parse(BenchKernels, argv, "bench kernels")
    check_positive(tokens=args.tokens, d_model=args.d_model, d_k=args.d_k, rounds=args.rounds)
    check_positive(threads=args.threads)
    import torch

    from unitsphere.bench.arms import sizes_for
    from unitsphere.bench.kernels import Shape, bench_kernels
    from unitsphere.bench.show import KERNEL_COLUMNS, kernel_notes, kernel_rows
    from unitsphere.training.device import computes_in_bf16

    device = use(args.device, args.threads)
    changes = {"tokens": args.tokens, "d_model": args.d_model, "context": 1, "n_heads": 1}
    sizes = sizes_for(device, changes)
    dtype = torch.bfloat16 if computes_in_bf16(device) else torch.float32
    shape = Shape(sizes.tokens, sizes.d_model, args.d_k, dtype, device)
    report = bench_kernels(shape, args.rounds)
    return tell(report, args.json, KERNEL_COLUMNS, kernel_rows(report), kernel_notes(report))


def run_loss(argv: list[str]) -> int:
    """Time the losses and print."""
    args = parse(BenchLoss, argv, "bench loss")
    check_positive(tokens=args.tokens, d_model=args.d_model, vocab=args.vocab)
    check_positive(rounds=args.rounds, threads=args.threads)
    from unitsphere.bench.arms import sizes_for
    from unitsphere.bench.loss import Head, bench_loss
    from unitsphere.bench.show import LOSS_COLUMNS, loss_notes, loss_rows

    device = use(args.device, args.threads)
    sizes = sizes_for(device, {"d_model": args.d_model})
    head = Head(args.tokens, sizes.d_model, args.vocab, args.bf16, device)
    report = bench_loss(head, args.rounds)
    return tell(report, args.json, LOSS_COLUMNS, loss_rows(report), loss_notes(report))


def run_generate(argv: list[str]) -> int:
    """Time generation and print."""
    args = parse(BenchGenerate, argv, "bench generate")
    check_positive(new=args.new, rounds=args.rounds, threads=args.threads)
    check_positive(batch=min(args.batch), context=min(args.context))
    from unitsphere.bench.arms import sizes_for
    from unitsphere.bench.generate import Load, bench_generation
    from unitsphere.bench.show import GENERATE_COLUMNS, generate_notes, generate_rows

    changes = {
        "d_model": args.d_model,
        "n_layers": args.layers,
        "n_heads": args.heads,
        "vocab_size": args.vocab,
    }
    sizes = sizes_for(use(args.device, args.threads), changes)
    loads = [Load(batch, context) for batch in args.batch for context in args.context]
    report = bench_generation(args.arms, sizes, loads, args.new, args.rounds)
    return tell(report, args.json, GENERATE_COLUMNS, generate_rows(report), generate_notes(report))


def run_data(argv: list[str]) -> int:
    """Time preparing and loading, and print."""
    args = parse(BenchData, argv, "bench data")
    check_positive(batches=args.batches, steps=args.steps, threads=args.threads)
    from unitsphere.bench.arms import sizes_for
    from unitsphere.bench.data import bench_data
    from unitsphere.bench.show import DATA_COLUMNS, data_rows

    sizes = sizes_for(
        use(args.device, args.threads), {"context": args.context, "tokens": args.tokens}
    )
    report = bench_data(args.source, args.tokenizer, args.arm, sizes, args.batches, args.steps)
    return tell(report, args.json, DATA_COLUMNS, data_rows(report), [])


def tell(
    report: dict[str, Any],
    as_json: bool,
    columns: tuple[str, ...],
    rows: list[list[str]],
    notes: list[str],
) -> int:
    """Print a report as JSON, or as its table and notes."""
    if as_json:
        print_json(report)
        return 0
    print_table(columns, rows)
    for line in notes:
        print(line)
    return 0
