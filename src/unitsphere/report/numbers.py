"""Numbers as people read them, and read back from a table's cells."""

import math
import re
from collections.abc import Sequence

UNITS = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))
SPELLED = 1e4
"""Numbers below it are written out."""
BEYOND = 1e15
"""Numbers from it on, as a compute in operations, are a power of ten: no unit is large enough."""
MOST_CHARACTERS = 12
"""Characters of a figure in a table: the loss of a run that diverged may have thirty digits."""


def compact(value: float, digits: int = 6) -> str:
    """A number in few characters: 246k, 2.5M, 1,500, 0.02, 3e-5, 2e18.

    >>> compact(245760, 3), compact(1e6), compact(1024, 3), compact(0.02), compact(0.00003)
    ('246k', '1M', '1,024', '0.02', '3e-5')
    """
    size = abs(value)
    if size >= BEYOND:
        return f"{value:.{digits}g}".replace("e+", "e")
    if size >= SPELLED:
        rounded = float(f"{value:.{digits}g}")  # so that 999,999 is 1M
        unit, divisor = next(pair for pair in UNITS if abs(rounded) >= pair[1])
        return f"{rounded / divisor:.{digits}g}{unit}"
    return f"{value:,.{max(digits, len(str(round(size))))}g}".replace("e-0", "e-")


def short(tokens: int) -> str:
    """A number of tokens in few characters: 1,500, 63.5k, 1.5M, 2B."""
    return compact(tokens, 3)


def duration(seconds: float) -> str:
    """Seconds as `42s`, `3m 05s` or `2h 07m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02}m"


def figure(value: float, form: str) -> str:
    """A number in a form, or its first three digits where that is longer than MOST_CHARACTERS.

    >>> figure(2.74449, ".4f"), figure(1.2345e30, ".4f"), figure(-3e9, "+.2f")
    ('2.7445', '1.23e+30', '-3e+09')
    """
    text = format(value, form)
    if len(text) <= MOST_CHARACTERS:
        return text
    return format(value, "+.3g" if form.startswith("+") else ".3g")


def known(value: float | None, form: str) -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None else figure(value, form)


def within(value: float, interval: Sequence[float] | None, form: str) -> str:
    """A figure with its interval in brackets, if there is one."""
    if interval is None:
        return figure(value, form)
    return f"{figure(value, form)} [{', '.join(figure(end, form) for end in interval)}]"


def half_range(values: Sequence[float], form: str) -> str:
    """Half of the distance from the lowest to the highest, as ` ± 0.1`; empty if there is none."""
    half = (max(values) - min(values)) / 2
    return f" ± {figure(half, form)}" if half else ""


def round_off(value: float | None) -> float | None:
    """Six digits, which are enough for a plot; None for what is NaN or infinite."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


NO_NUMBER = ("", "–", "diverged", "failed", "stopped")
"""Cells that say that there is no number, or why a run has none."""
NUMBER = re.compile(r"[+−-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)


def sort_value(cell: str) -> float | None:
    """The number that a cell starts with ("1,311,880", "1.42 (1.31–1.55)", "1m 29s"), or None."""
    spans = re.fullmatch(r"(?:(\d+)h ?)?(?:(\d+)m ?)?(?:(\d+)s)?", cell)
    if cell and spans and any(spans.groups()):
        parts = zip(spans.groups(), (3600, 60, 1), strict=True)
        return sum(int(part or 0) * unit for part, unit in parts)
    found = NUMBER.match(cell)
    return float(found[0].replace(",", "").replace("−", "-")) if found else None
