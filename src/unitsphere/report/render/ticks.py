"""Ticks that can be read: plain numbers with k, M and B, no powers of ten and no offsets."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

UNITS = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))
SPELLED = 1e4
"""Numbers below it are written out."""


def number(value: float, digits: int = 6) -> str:
    """A number in few characters: 246k, 2.5M, 1,500, 0.02, 3e-5.

    >>> number(245760, 3), number(1e6), number(1500), number(0.02), number(0.00003)
    ('246k', '1M', '1,500', '0.02', '3e-5')
    """
    size = abs(value)
    if size >= SPELLED:
        unit, divisor = next(pair for pair in UNITS if size >= pair[1])
        return f"{value / divisor:.{digits}g}{unit}"
    return f"{value:,.{digits}g}".replace("e-0", "e-")


def plain_ticks(axes: "Axes") -> None:
    """Plain numbers on both axes of a plot whose lines are drawn; ticks that were set stay."""
    for axis in (axes.xaxis, axes.yaxis):
        plain_axis(axis)


def plain_axis(axis: "Axis") -> None:
    """Plain numbers at an axis' ticks; on a logarithmic one at 1, 2 and 5, or at decades."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if isinstance(axis.get_major_locator(), FixedLocator):
        return
    if axis.get_scale() == "log":
        axis.set_major_locator(FixedLocator(log_places(*sorted(axis.get_view_interval()))))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def log_places(low: float, high: float) -> Sequence[float]:
    """Places of the ticks between two numbers above 0: decades, 1, 2 and 5, or equal steps."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    for factors in ((1,), (1, 2, 5)):
        places = LogLocator(subs=factors, numticks=99).tick_values(low, high)
        inside = [float(place) for place in places if low <= place <= high]
        if len(inside) > 2:
            return inside
    places = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(place) for place in places if low <= place <= high]


def set_places(axes: "Axes", places: Sequence[float]) -> None:
    """Ticks of the horizontal axis at these places, each with its number in three digits."""
    axes.set_xticks(list(places), [number(place, 3) for place in places])
    axes.set_xticks([], minor=True)
