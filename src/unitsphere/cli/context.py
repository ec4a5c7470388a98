"""`unitsphere context`: perplexity of runs, side by side, by context length and position."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from unitsphere.cli.checks import check_contexts, check_positive
from unitsphere.cli.output import progress
from unitsphere.cli.parse import parse
from unitsphere.cli.scores import check_needs
from unitsphere.cli.study import named_runs, report


@dataclasses.dataclass(frozen=True)
class Context:
    """Perplexity by context length and by position in the context, runs side by side.

    The nGPT paper's Figure 14. Every run at every context is scored on the same
    tokens of whole documents. Runs of one NAME are seeds of one arm. Writes
    results.json, context.svg and context.png (docs/how-to/context.md).

    examples:
      unitsphere context runs/gpt runs/ngpt --data books.jsonl
      unitsphere context gpt=runs/gpt-0 gpt=runs/gpt-1 ngpt=runs/ngpt-0 \\
        ngpt=runs/ngpt-1 --data books.jsonl --context 256 1024 8192
    """

    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="[NAME=]RUN [RUN …]")]
    """run folders, each an arm of its folder's name, or of the name given"""
    data: Annotated[str | None, arg(metavar="FILE")] = None
    """whole documents: a file, JSONL, a folder, a quoted glob, or the validation split of a folder
    that prepare made; by default the first run's validation split, if all runs have its data"""
    field: Annotated[str | None, arg(metavar="STR")] = None
    """the field of a JSONL line that holds the text, by default text"""
    context: Annotated[tuple[int, ...], arg(metavar="N [N …]")] = ()
    """tokens of context, each a divisor of the longest; by default as in training, and doubled five
    times"""
    per_document: Annotated[int | None, arg(metavar="N")] = None
    """use only the first N tokens of each document; by default all"""
    chunk: Annotated[int, arg(metavar="N")] = 1024
    """tokens that go through a model at a time; less needs less memory"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""
    out: Annotated[Path, arg(metavar="DIR")] = Path("runs/context")
    """folder to write the results and the picture to"""
    json: bool = False
    """print one JSON document instead of a table"""


def run(argv: list[str]) -> int:
    """Score, write and report."""
    args = parse(Context, argv, "context")
    check_positive(chunk=args.chunk, per_document=args.per_document)
    check_contexts(args.context)
    check_needs(args, "data", "field")
    arms = named_runs(args.runs)
    from unitsphere.data.prepare import check_scored
    from unitsphere.studies.context import KIND

    check_scored(args.data, [args.field])
    study = KIND.spec(
        arms,
        args.data,
        args.field or "text",
        args.context,
        args.per_document,
        args.chunk,
        args.device,
        lambda run: progress(str(run)),
    )
    return report(KIND, study, args.out, args.json)
