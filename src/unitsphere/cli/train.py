"""`unitsphere train`: a recipe's config, changed by `--section.key value`, and its run folder."""

import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from unitsphere.cli.app import EXIT_PREEMPTED, EXIT_USER_ERROR
from unitsphere.cli.checks import check_positive
from unitsphere.cli.output import hours, print_json, print_table
from unitsphere.cli.settings import FORMS, read_settings, split_recipe
from unitsphere.cli.submit import submit, take_submission
from unitsphere.errors import UserError
from unitsphere.studies.core.jobs import handling, nothing_to_save

if TYPE_CHECKING:
    from unitsphere.training.config import RunConfig
    from unitsphere.training.cost import DryRun

USAGE = f"""\
usage: unitsphere train RECIPE [--section.key value …] [--out RUN]

Train a recipe: one that is shipped (unitsphere recipes lists them), or a TOML
file of your own. The same command on the same run folder resumes where it was
stopped, and so does the run folder in place of RECIPE. Ctrl-C saves first.
The run folder is what --out names, or runs/RECIPE; where that holds another
run, runs/RECIPE-2, -3, …

examples:
  unitsphere train quickstart/ngpt
  unitsphere train quickstart/ngpt --train.steps 500 --out runs/long
  unitsphere train angpt2025/ngpt-32m --data.source my.jsonl --data.field text
  unitsphere train quickstart/ngpt --objective mlm --out runs/masked
  unitsphere train runs/long
  unitsphere train runs/long --init runs/long --train.seed 1 --out runs/more

what is set most often (all, with defaults: unitsphere train RECIPE --help);
a key that is True or False is true by its name (--optim.muon_head):
  --objective            clm (next token), mlm (masked tokens, an encoder), or
                         seq2seq (pairs of texts, an encoder and a decoder)
  --data.source          files, a glob, a folder, JSONL, or prepared shards
  --data.tokenizer       bytes, bpe:N, or the path of a tokenizer.json
  --init                 a run folder: start with its newest weights
  --train.steps          optimizer steps; more than a finished run has: train
                         it longer, if its learning rate has not decayed
  --train.tokens         training tokens, in place of steps: 200e6
  --train.batch_tokens   tokens per step
  --train.seed           of the initial weights and of the order of the data
  --train.save_every     steps between checkpoints
  --train.eval_every     steps between validations
  --dry_run              lay the run out without training: shards, memory, FLOPs
                         and hours of --world_size N processes, disk; --json
  --schedule.area        print the mean of the learning rate divided by its peak
  --verify               read all data first and compare their checksums
  --submit slurm         run this command as a SLURM job (extra cluster); local:
                         in the background. --submit.nodes, .gpus (per node, a
                         process each), .tasks, .cpus, .memory (GB), .time,
                         .partition, .account, .qos, .constraint, .name
  --optim.lr             peak learning rate
  --optim.transfer       nu or hyperp: the rates of this size by the recipe's
                         tuned run (docs/how-to/transfer.md)
  --model.d_model        width; also --model.n_layers, --model.n_heads

{FORMS}"""


@dataclasses.dataclass(frozen=True)
class Train:
    """Train RECIPE; the defaults are this recipe's.

    A key that is True or False is true by its name, and takes either value.

    example:
      unitsphere train RECIPE --train.steps 500 --out runs/mine
    """

    out: Annotated[Path | None, arg(metavar="RUN")] = None
    """run folder: a new one, or one with this config to resume; by default runs/RECIPE, or where
    that holds another run the first of RECIPE-2, -3, … that is free or holds this one"""
    dry_run: bool = False
    """lay the run out without training it: shards, memory, FLOPs, hours, disk"""
    world_size: Annotated[int | None, arg(metavar="N")] = None
    """of --dry_run: the number of processes"""
    json: bool = False
    """of --dry_run: print one JSON document"""
    area: bool = False
    """print the mean of the learning rate divided by its peak, and do not train; also
    --schedule.area"""


SHORT = {"--verify": "--data.verify", "--schedule.area": "--area"}
"""An option that USAGE names -> the option that the verb has."""
STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def run(argv: list[str]) -> int:
    """Train, or resume a run; a signal before and after the training ends it with status 75."""
    # Processes of torchrun wait for each other where Python handles no signal: it must end them.
    with handling(() if "RANK" in os.environ else STOPS, nothing_to_save):
        return run_recipe([spelled_out(word) for word in argv])


def spelled_out(word: str) -> str:
    """A word of the command line, with the option's name in full if it is a short one."""
    name, equals, value = word.partition("=")
    return f"{SHORT.get(name, name)}{equals}{value}"


def run_recipe(argv: list[str]) -> int:
    """What the options say: train, lay out, show the schedule's area, or submit."""
    submission, argv = take_submission(argv)
    name, rest = split_recipe(argv, Train)
    if name is None:
        if not {"-h", "--help"} & set(argv):
            raise UserError(
                "train needs a recipe first, such as quickstart/ngpt: "
                "`unitsphere recipes` lists them"
            )
        print(USAGE)
        return 0
    from unitsphere.errors import Preempted
    from unitsphere.inference.samples import write_sample
    from unitsphere.training.distributed.processes import SharedError
    from unitsphere.training.recipes import load_recipe
    from unitsphere.training.resolve import resolve_in
    from unitsphere.training.result import ending
    from unitsphere.training.run import train
    from unitsphere.training.transfer import advice, reason

    with told_to_others():
        config, options, _ = read_settings("train", name, load_recipe(name), rest, Train)
        check_options(options)
    if submission and (options.area or options.dry_run):
        print(f"--{'area' if options.area else 'dry_run'}: nothing is submitted", file=sys.stderr)
    if options.area:
        return show_area(config)
    first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun started
    if first and (why := reason(config) or advice(config)):
        print(why, file=sys.stderr)
    if options.dry_run:
        if options.out is not None:
            resolve_in(options.out, config)
        world = options.world_size or (submission.processes if submission else 1)
        return show_dry_run(config, world, options.json)
    with told_to_others():
        out = options.out or pick_folder(config, name, first)
    if submission:
        return submit(submission, argv if options.out else [*argv, f"--out={out}"], out)
    try:
        with memory_errors(config):
            found = train(config, out, name, sampler=write_sample)
        if first:
            print(ending(found, config), file=sys.stderr)
    except Preempted as stopped:
        if first:
            print(f"unitsphere: {stopped}", file=sys.stderr)
        return EXIT_PREEMPTED
    except SharedError:
        if first:
            raise
        return EXIT_USER_ERROR
    return 0


@contextmanager
def memory_errors(config: "RunConfig") -> Iterator[None]:
    """Raise what a GPU or the CPU says when memory is full as a `UserError` with what to do."""
    from torch import OutOfMemoryError

    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise UserError(
            f"out of memory: give --train.micro_batch (sequences at once, now "
            f"{config.train.micro_batch or 'as many as were predicted to fit'}) a lower value, or "
            "set --train.recompute full, or --parallel.dp_shard for more processes"
        ) from error


@contextmanager
def told_to_others() -> Iterator[None]:
    """Within: a user's mistake in this process also ends the run's others, which wait for it."""
    try:
        yield
    except (UserError, OSError) as error:
        from unitsphere.training.distributed.processes import tell_others

        tell_others(error)
        raise


def pick_folder(config: "RunConfig", name: str, say: bool) -> Path:
    """The folder of a run without --out; a line on stderr where it is not the recipe's usual one.

    A run folder in the place of the recipe is that run's own.
    """
    from unitsphere.training.recipes import is_run
    from unitsphere.training.resolve import default_folder

    usual = default_out(name)
    if is_run(name):
        return usual
    out, why = default_folder(config, usual)
    if say and out != usual:
        print(f"{why}{': ' if why else ''}this run is in {out}", file=sys.stderr)
    return out


def check_options(options: Train) -> None:
    """Raise UserError for options that only a dry run has, and for two things to print."""
    check_positive(world_size=options.world_size)
    if options.area and options.dry_run:
        raise UserError("--area and --dry_run do not go together: give one of them")
    if (options.world_size or options.json) and not options.dry_run:
        raise UserError("--world_size and --json are for --dry_run; torchrun says how many train")


def default_out(recipe: str) -> Path:
    """`runs/<recipe>`; for a file its name without the ending; a run folder itself."""
    from unitsphere.training.recipes import is_run

    if is_run(recipe):
        return Path(recipe)
    return Path("runs") / (Path(recipe).stem if recipe.endswith((".toml", ".json")) else recipe)


def show_area(config: "RunConfig") -> int:
    """Print the mean of the schedule's factors, by which schedules are compared at equal area."""
    from unitsphere.training.optim.schedule import area

    mean, steps = area(config.schedule, config.train.steps), config.train.steps
    rate = f"{mean * config.optim.lr:.4g} of optim.lr {config.optim.lr:g}"
    print(f"schedule.area {mean:.4f}: the mean learning rate of {steps:,} steps is {rate}")
    return 0


def show_dry_run(config: "RunConfig", world: int, json: bool) -> int:
    """Lay the run out over `world` processes and print that, as tables or one JSON document."""
    from unitsphere.training.cost import dry_run
    from unitsphere.training.result import without_effect

    for line in without_effect(config):
        print(line, file=sys.stderr)
    found = dry_run(planned(config, world), world)
    if json:
        print_json(found.record())
    else:
        print_dry_run(found)
    return 0


def planned(config: "RunConfig", world: int) -> "RunConfig":
    """The config resolved; in bf16 on GPUs that are not here, unless it names a precision."""
    from unitsphere.training.cost import planned_device
    from unitsphere.training.resolve import resolve

    if config.train.precision == "auto" and planned_device(config, world).type == "cuda":
        train = dataclasses.replace(config.train, precision="bf16")
        config = dataclasses.replace(config, train=train)
    return resolve(config, None)


def print_dry_run(found: "DryRun") -> None:
    """The tables: degrees, shards of the first process, memory of each process."""
    from unitsphere.training.forecast import size

    degrees = found.degrees
    processes = "process" if found.world == 1 else "processes"
    print(
        f"{found.world} {processes}: dp_replicate {degrees.dp_replicate} · dp_shard "
        f"{degrees.dp_shard} · tp {degrees.tp}; sequences per process: {found.rows} of each batch"
    )
    cost = found.cost
    print(f"{cost.parameters:,} parameters, {found.step_flops:.3e} FLOPs per step")
    print(f"{cost.tokens:,} tokens, {cost.flops:.3e} FLOPs in all")
    print(f"mean learning rate {found.schedule_area:.4f} of its peak (schedule.area)")
    print(f"{hours(found.hours)} of training ({found.speed.how})")
    print(f"{size(cost.disk)} of checkpoints on the disk\n")
    rows = [[s.name, shape(s.whole), shape(s.part), s.placements] for s in found.shards]
    print_table(("parameter (of one block)", "whole", "first rank's shard", "sharded"), rows)
    print()
    memory = found.forecast
    lines = [[name, size(value)] for name, value in vars(memory).items()]
    print_table(("predicted memory", "per process"), [*lines, ["total", size(memory.memory)]])


def shape(sizes: tuple[int, ...]) -> str:
    """A shape such as 1280 × 64; a scalar has none."""
    return " × ".join(map(str, sizes)) or "scalar"
