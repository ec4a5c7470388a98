"""What the pages of all studies share."""

from collections.abc import Sequence

from unitsphere.report.document import Number, Series, Style
from unitsphere.report.runs import Json
from unitsphere.report.sections.curves import round_off


def banded(
    name: str,
    axis: str,
    x: Sequence[float],
    y: Sequence[Number],
    colour: int,
    low: Sequence[Number] | None = None,
    high: Sequence[Number] | None = None,
    style: Style = "both",
) -> Series:
    """A series over one axis, in the order of x, with a band where one is given."""
    order = sorted(range(len(x)), key=lambda place: x[place])

    def sort(values: Sequence[Number]) -> list[Number]:
        return [round_off(values[place]) for place in order]

    xs = [float(x[place]) for place in order]
    lows, highs = (None if each is None else sort(each) for each in (low, high))
    return Series(name, {axis: xs}, sort(y), colour, style, low=lows, high=highs)


def provenance_command(found: Json) -> str:
    """The line that made a study's figures; empty if it does not say."""
    source = found.get("provenance", {})
    return str(source.get("command") or "")
