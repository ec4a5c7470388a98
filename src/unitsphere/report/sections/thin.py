"""Fewer points of a long line, its spikes kept."""

import math
from collections.abc import Sequence

import numpy as np

Number = int | float | None


def places(y: Sequence[Number], most: int) -> list[int]:
    """The places of at most `most` points (4 or more) that show the same line.

    The first and the last, and of each of equal pieces its lowest and highest.
    """
    if len(y) <= most:
        return list(range(len(y)))
    values = np.array([math.nan if v is None else v for v in y], np.float64)
    kept = {0, len(y) - 1}
    for piece in np.array_split(np.arange(1, len(y) - 1), most // 2 - 1):
        known = piece[np.isfinite(values[piece])]
        if len(known):
            kept |= {int(known[np.argmin(values[known])]), int(known[np.argmax(values[known])])}
    return sorted(kept)


def smoothed(y: Sequence[Number], weight: float) -> list[Number]:
    """An exponential moving average without the bias of its start; None stays None.

    weight: of what came before, 0 to 1; as Adam's first moment with its correction.
    """
    mean, total = 0.0, 0.0
    found: list[Number] = []
    for value in y:
        if value is None:
            found.append(None)
            continue
        mean = weight * mean + (1 - weight) * value
        total = weight * total + (1 - weight)
        found.append(mean / total)
    return found
