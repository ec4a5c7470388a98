"""`unitsphere finetune`: a classification head on a run, and its scores on labelled text."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from unitsphere.cli.output import print_json
from unitsphere.cli.parse import parse
from unitsphere.data.tasks import TaskName
from unitsphere.errors import UserError


@dataclasses.dataclass(frozen=True)
class Finetune:
    """Train a run's model as a classifier, on GLUE-format TSV or JSONL.

    A fifth of the data chooses the learning rate. The scores are a mean over seeds
    on --test, which is used for nothing else. The same command resumes.

    examples:
      unitsphere finetune runs/mlm --task sst2 --data train.tsv --test dev.tsv
      unitsphere finetune runs/mlm --task cola --data train.tsv --scratch
      unitsphere finetune runs/mlm --data my.jsonl --text body --label topic
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """run folder of the pre-trained model"""
    data: Annotated[Path, arg(metavar="FILE")]
    """labelled examples to train on: .jsonl, or TSV"""
    test: Annotated[Path | None, arg(metavar="FILE")] = None
    """examples to report on; by default a fifth of --data, held out"""
    task: TaskName | None = None
    """names the fields, labels and deciding score of GLUE's and SuperGLUE's files"""
    text: Annotated[str | None, arg(metavar="FIELD")] = None
    """field of the text; for TSV without a header give all fields as column numbers, from 1"""
    text2: Annotated[str | None, arg(metavar="FIELD")] = None
    """field of the second text of a pair"""
    label: Annotated[str | None, arg(metavar="FIELD")] = None
    """field of the label: whole numbers or names"""
    lr: Annotated[tuple[float, ...], arg(metavar="X [X …]")] = (3e-4, 1e-3, 3e-3)
    """peak learning rates to choose from"""
    epochs: int = 3
    """times that each example is trained on"""
    batch: int = 32
    """examples per step"""
    seed: Annotated[tuple[int, ...], arg(metavar="N [N …]")] = (0, 1, 2)
    """seeds of the head and of the order of the examples"""
    pool: Literal["first", "mean", "last"] | None = None
    """what the head sees of the tokens' features; by default mean, or last for a causal model"""
    scratch: bool = False
    """train the same model from random weights instead, to compare with"""
    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """folder to write; by default RUN/finetune/, by the task's or the file's name"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""
    json: bool = False
    """print one JSON document"""


def run(argv: list[str]) -> int:
    """Fine-tune and print the scores."""
    args = parse(Finetune, argv, "finetune")
    from torch import OutOfMemoryError

    from unitsphere.finetune import FinetuneConfig, finetune
    from unitsphere.report.kinds.finetune import finetune_page
    from unitsphere.report.render.text import print_page

    given = {f.name: getattr(args, f.name) for f in dataclasses.fields(FinetuneConfig)}
    for name in ("run", "data", "test"):
        given[name] = given[name] and str(given[name])
    out = args.out or default_out(args)
    try:
        results = finetune(FinetuneConfig(**given), out)
    except OutOfMemoryError as error:
        raise UserError(
            f"out of GPU memory: give --batch (examples per step, now {args.batch}) a lower value"
        ) from error
    if args.json:
        print_json(results)
    else:
        print_page(finetune_page(results, out))
        print(f"\nin {out}")
    return 0


def default_out(args: Finetune) -> Path:
    """`RUN/finetune/NAME`, and the control's; of the run if a checkpoint is given."""
    from unitsphere.training.folder import run_and_checkpoint

    name = args.task or args.data.stem
    folder, _ = run_and_checkpoint(args.run)
    return folder / "finetune" / (f"{name}-scratch" if args.scratch else name)
