"""`unitsphere quantize`: what runs lose when their weights are stored in few bits."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from unitsphere.cli.checks import check_positive
from unitsphere.cli.parse import parse
from unitsphere.cli.scores import check_needs
from unitsphere.cli.study import named_runs, report
from unitsphere.errors import UserError

TOKENS = 65536
"""Tokens of the validation split that are scored unless asked otherwise."""


@dataclasses.dataclass(frozen=True)
class Quantize:
    """Loss against bits: the weights rounded to int8, int4, FP8, NVFP4 and back.

    Every run is scored as it is and in every format, on the same tokens, and where
    its vectors are constrained also renormalised after dequantisation. A line names
    runs of other data or tokenizers: their losses do not compare. Runs of one NAME
    are seeds of one arm. Writes results.json, results.md and the picture
    (docs/how-to/quantize.md).

    examples:
      unitsphere quantize runs/quickstart/gpt-plus runs/quickstart/ngpt
      unitsphere quantize gpt-plus=runs/a gpt-plus=runs/b ngpt=runs/c ngpt=runs/d \\
        --formats int8 int4 int4:32 nvfp4 --json
    """

    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="[NAME=]RUN [RUN …]")]
    """run folders, each an arm of its folder's name, or of the name given"""
    formats: Annotated[tuple[str, ...], arg(metavar="F [F …]")] = ()
    """intB (a scale per row; B from 2 to 8), intB:G (a scale per G weights), fp8, nvfp4; by default
    13 of them"""
    data: Annotated[str | None, arg(metavar="FILE")] = None
    """text to score: a file, JSONL, a folder, a quoted glob; by default a run's validation split"""
    field: Annotated[str | None, arg(metavar="STR")] = None
    """the field of a JSONL line that holds the text, by default text"""
    tokens: Annotated[int | None, arg(metavar="N")] = None
    """tokens of the validation split that are scored, spread over it; by default 65536"""
    embeddings: bool = False
    """round the embedding and the output head too"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""
    out: Annotated[Path, arg(metavar="DIR")] = Path("runs/quantize")
    """folder to write the results and the picture to"""
    json: bool = False
    """print one JSON document instead of a table"""


def run(argv: list[str]) -> int:
    """Round, score, write and report."""
    args = parse(Quantize, argv, "quantize")
    check_positive(tokens=args.tokens)
    check_needs(args, "data", "field")
    arms = named_runs(args.runs)
    from unitsphere.data.prepare import check_scored
    from unitsphere.data.shards import is_prepared
    from unitsphere.studies.quantize import FORMATS, KIND

    check_scored(args.data, [args.field])
    if args.tokens is not None and args.data is not None and not is_prepared(args.data):
        raise UserError("--tokens is of a validation split, a text is scored whole: leave it out")
    study = KIND.spec(
        arms,
        args.formats or FORMATS,
        args.data,
        args.field or "text",
        args.tokens or TOKENS,
        args.embeddings,
        args.device,
    )
    return report(KIND, study, args.out, args.json)
