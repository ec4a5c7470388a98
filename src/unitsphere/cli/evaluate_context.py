"""`unitsphere eval --by_position`: losses by context length and by position in it."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unitsphere.cli.output import print_table
from unitsphere.cli.parse import check_positive
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.cli.evaluate import Eval
    from unitsphere.training.load import LoadedRun

LINE_EVERY = 10.0
"""Seconds between two lines of progress."""


def context_evaluations(
    args: "Eval", run: "LoadedRun", contexts: Sequence[int]
) -> dict[int, dict[str, Any]]:
    """Context -> figures, all on the same tokens, each with its figures by position."""
    from unitsphere.training.by_position import CHUNK, losses_by_position
    from unitsphere.training.evaluate.documents import open_documents

    check_positive(chunk=args.chunk, per_document=args.per_document)
    with open_documents(run, args.data, args.field) as documents:
        found = losses_by_position(
            run.model,
            documents(),
            run.tokenizer.separator,
            contexts,
            args.chunk or CHUNK,
            args.per_document,
            progress(f"{args.run}"),
        )
    return {context: one.record() for context, one in found.items()}


def refuse_position_options(args: "Eval") -> None:
    """Raise UserError for an option that only --by_position has."""
    for name in ("chunk", "per_document"):
        if getattr(args, name) is not None:
            raise UserError(f"--{name} is of --by_position: give both, or leave it out")


def progress(what: str) -> Callable[[int], None]:
    """Says on stderr now and then how many tokens have been scored."""
    last = time.monotonic()

    def say(tokens: int) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY:
            last = time.monotonic()
            print(f"{what}: {tokens:,} tokens at every context", file=sys.stderr, flush=True)

    return say


def print_positions(found: Mapping[int, Mapping[str, Any]]) -> None:
    """A row a span of positions, a column a context."""
    longest = found[max(found)]["by_position"]
    rows = [
        [f"{one['first']:,}–{one['last']:,}", *(cell(found[c], one["last"]) for c in found)]
        for one in longest
    ]
    print()
    print_table(["tokens seen", *(f"context {context:,}" for context in found)], rows)


def cell(figures: Mapping[str, Any], last: int) -> str:
    """The perplexity of the span that ends with `last`, where the context has it."""
    for one in figures["by_position"]:
        if one["last"] == last:
            return f"{one['perplexity']:,.2f}"
    return ""
