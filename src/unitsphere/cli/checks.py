"""Checks of numbers that several verbs take."""

from collections.abc import Sequence

from unitsphere.errors import UserError

MOST_CONTEXT = 1 << 20


def check_contexts(contexts: Sequence[int]) -> None:
    """Raise UserError unless each --context is from 1 to MOST_CONTEXT: rows are as long as that."""
    for context in contexts:
        if context < 1:
            raise UserError(f"--context must be at least 1: {context}")
        if context > MOST_CONTEXT:
            raise UserError(f"--context must be at most {MOST_CONTEXT:,}: {context:,}")


def check_positive(**counts: int | None) -> None:
    """Raise UserError unless each count that is given is 1 or more."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UserError(f"--{name} must be at least 1: {count}")
