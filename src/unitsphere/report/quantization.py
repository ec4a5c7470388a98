"""What rounding the weights costs: a table, and the loss against bits as SVG and PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unitsphere.files import aside
from unitsphere.report.curves import COLOURS, MARKERS
from unitsphere.report.render.axes import plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Document = Mapping[str, Any]
Entry = Mapping[str, Any]
COLUMNS = ("arm", "format", "bits", "error", "loss +", "renormalised +")
PANELS = {"integers, one scale a row": False, "one scale a group": True}
LEAST = 1e-4
"""Nats: an increase that is smaller, or none, stands here in the picture."""


def rows(found: Document) -> list[list[str]]:
    """Each arm as it is, then each format: bits, error, and the increase of the loss in nats."""
    cells = []
    for name, arm in found["arms"].items():
        runs = arm["runs"]
        cells.append([name, "fp32", "32", "", f"{mean([run['loss'] for run in runs]):.4f}", ""])
        for form in formats(arm):
            plain, again = (entries(arm, form, renormalized) for renormalized in (False, True))
            cells.append(
                [
                    name,
                    form,
                    f"{plain[0]['bits']:.2f}",
                    f"{mean([entry['error'] for entry in plain]):.4f}",
                    increase(plain),
                    increase(again) if again else "–",
                ]
            )
    return cells


def formats(arm: Mapping[str, Any]) -> list[str]:
    """The formats of an arm, in their order."""
    return list(dict.fromkeys(entry["format"] for entry in arm["runs"][0]["formats"]))


def entries(arm: Mapping[str, Any], form: str, renormalized: bool) -> list[Entry]:
    """A format's figures of every run of an arm."""
    return [
        entry
        for run in arm["runs"]
        for entry in run["formats"]
        if entry["format"] == form and entry["renormalized"] == renormalized
    ]


def increase(found: Sequence[Entry]) -> str:
    """The mean increase, and half of the distance from the lowest to the highest, if there is."""
    values = [entry["increase"] for entry in found]
    half = (max(values) - min(values)) / 2
    return f"{mean(values):+.4f}" + (f" ± {half:.4f}" if len(values) > 1 else "")


def mean(values: Sequence[float]) -> float:
    """The mean."""
    return sum(values) / len(values)


def quantization_figure(found: Document, path: Path) -> list[Path]:
    """Draw the increase of the loss against bits, as `path`.svg and `path`.png.

    Solid as the weights come back, dotted renormalised; left integers with a scale a row, right
    those with a scale a group, NVFP4 (large) and FP8 (small, at 8 bits).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    both = figure.subplots(1, 2, sharey=True)
    for axes, (title, groups) in zip(both, PANELS.items(), strict=True):
        for index, (name, arm) in enumerate(found["arms"].items()):
            draw(axes, arm, groups, index, name)
        axes.set_yscale("log")
        axes.set_xlabel("bits per weight, scales included")
        axes.set_title(title, fontsize=11)
        axes.grid(alpha=0.3, which="both")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in both:
        plain_ticks(axes)
    both[0].set_ylabel("increase of the loss (nats per token)")
    both[0].legend(frameon=False, title="dotted: renormalised", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_suffix(suffix) for suffix in (".svg", ".png")]
    for file in files:
        with aside(file) as drawn:
            figure.savefig(drawn)
    return files


def draw(axes: "Axes", arm: Mapping[str, Any], groups: bool, index: int, name: str) -> None:
    """An arm's lines over integer formats, and its points of FP8 and NVFP4."""
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    for renormalized, style in ((False, "-"), (True, ":")):
        line = sorted(
            point(arm, form, renormalized)
            for form in formats(arm)
            if form.startswith("int") and (":" in form) == groups
            if entries(arm, form, renormalized)
        )
        if line:
            label = None if renormalized else name
            x, y = zip(*line, strict=True)
            axes.plot(x, y, style, color=colour, marker=marker, markersize=4, label=label)
    for form, size in (("nvfp4", 11), ("fp8", 7)):
        if groups and form in formats(arm):
            x, y = point(arm, form, False)
            axes.plot([x], [y], marker, color=colour, markersize=size, fillstyle="none")


def point(arm: Mapping[str, Any], form: str, renormalized: bool) -> tuple[float, float]:
    """Bits, and the mean increase of the loss, at least LEAST."""
    found = entries(arm, form, renormalized)
    return found[0]["bits"], max(mean([entry["increase"] for entry in found]), LEAST)
