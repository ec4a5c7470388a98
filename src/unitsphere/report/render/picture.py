"""Figures as pictures with matplotlib: SVG and PNG for papers and for print, and films as GIF."""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unitsphere.files import write_bytes
from unitsphere.report.document import Figure, Figures, Panel
from unitsphere.report.render.axes import draw_panel, plain_ticks, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

LARGE = 3
"""Up to so many plots side by side are large."""
PER_SECOND = 4
"""Frames of a film."""


def write_pictures(figures: Sequence[Figure], folder: Path) -> dict[str, dict[str, str]]:
    """Draw each figure as FOLDER/NAME.svg and .png; returns the paths by name.

    Names that become the same name of a file are numbered: "a b" is a-b, "a:b" then a-b-2, or
    a-b-3 where a figure before it is called a-b-2.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, dict[str, str]] = {}
    taken: set[str] = set()
    for figure in figures:
        name = file_name(figure)
        numbered = (f"{name}-{number}" for number in count(2))
        name = next(each for each in chain([name], numbered) if each not in taken)
        taken.add(name)
        files = [folder / f"{name}.{form}" for form in ("svg", "png")]
        write_picture([figure], files)
        paths[figure.name] = {path.suffix[1:]: str(path) for path in files}
    return paths


def file_name(figure: Figure) -> str:
    """A figure's name as a file's, so that no part of it leads to another folder."""
    return re.sub(r"[^\w.-]+", "-", figure.name).strip(".-") or "figure"


def write_picture(
    figures: Sequence[Figure], files: Sequence[Path], columns: int = 3, title: str = ""
) -> None:
    """Draw figures side by side into each of the files, an SVG or a PNG by its ending."""
    drawn = pictures(figures, [path.suffix[1:] for path in files], columns, title)
    for path, data in zip(files, drawn, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data)


def picture(figure: Figure, form: str = "svg") -> bytes:
    """A figure as the bytes of an SVG or a PNG, the same for the same figure."""
    return pictures([figure], [form])[0]


def pictures(
    figures: Sequence[Figure], forms: Sequence[str], columns: int = 3, title: str = ""
) -> list[bytes]:
    """Figures side by side, drawn once, as the bytes of each form ("svg" or "png")."""
    found = []
    with style(figures[0].name):
        drawn = draw(figures, columns, title)
        layout = drawn.get_layout_engine()
        assert layout is not None
        layout.execute(drawn)
        drawn.set_layout_engine(None)  # not again for each form: it takes longer than drawing
        for form in forms:
            buffer = io.BytesIO()
            metadata = {"Date": None} if form == "svg" else None
            drawn.savefig(buffer, format=form, metadata=metadata, dpi=200)
            found.append(buffer.getvalue())
    return found


def write_film(frames: Sequence[Figures], path: Path) -> None:
    """Write a film as a GIF, a frame for the plots of each `Figures`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    images = []
    for frame in frames:
        with style("film"):
            canvas = FigureCanvasAgg(draw(frame.figures, frame.columns, frame.title))
            canvas.figure.set_dpi(80)
            canvas.draw()
            images.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    buffer = io.BytesIO()
    first, *others = images
    pause = 1000 // PER_SECOND
    first.save(buffer, "GIF", save_all=True, append_images=others, duration=pause, loop=0)
    write_bytes(path, buffer.getvalue())


@contextlib.contextmanager
def style(salt: str) -> Iterator[None]:
    """Within, matplotlib draws in our style, and the same picture has the same bytes."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in another script
        # Text stays text in an SVG, so that one can search it and set it in a paper's own type.
        matplotlib.rc("svg", fonttype="none", hashsalt=salt)
        matplotlib.rc("font", family="sans-serif", size=10)
        yield


def draw(figures: Sequence[Figure], columns: int = 3, title: str = "") -> "Drawing":
    """Draw the figures over the first choice of their axis: several, or one with its panels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    cells = cells_of(figures)
    columns = max(1, min(columns, len(cells)))
    rows = max(1, -(-len(cells) // columns))
    large = len(cells) <= LARGE
    wide, high = (4.4, 3.6) if large else (2.6, 2.1)
    size = (6.4, 3.8) if len(cells) < 2 else (wide * columns + 0.6, high * rows + 0.8)
    drawn = Drawing(figsize=size, layout="constrained")
    FigureCanvasAgg(drawn)
    alike = figures[0].alike if len(figures) == 1 else all(f.same_axes for f in figures)
    across = alike and len(figures) == 1
    every = drawn.subplots(rows, columns, squeeze=False, sharex=across, sharey=alike)
    grid: list[Axes] = list(every.flat)
    for axes, (figure, panel) in zip(grid, cells, strict=False):
        draw_panel(axes, panel, figure, small=bool(panel.title) and not large)
    shown = grid[: len(cells)]
    for axes in shown:
        plain_ticks(axes)
    for axes in grid[len(cells) :]:
        axes.set_axis_off()
    if len(figures) == 1 and not title:
        title = figures[0].title
    width = 70 if columns == 1 else (45 if large else 32) * columns
    name_axes(drawn, cells, shown, "\n".join(wrapped(line, width) for line in title.split("\n")))
    if not any(figure.ends for figure, _ in cells):
        add_legends(drawn, cells, shown, several=len(figures) > 1)
    return drawn


Cell = tuple[Figure, Panel]


def cells_of(figures: Sequence[Figure]) -> list[Cell]:
    """The plots to draw: a panel for each figure, or all the panels of a single one.

    One panel is enough for a figure whose lines are named at their ends, however many it has: such
    names stay readable where a legend does not.
    """
    if len(figures) == 1 and not figures[0].ends:
        return [(figures[0], panel) for panel in figures[0].panels()]
    titled = len(figures) > 1
    return [(figure, Panel(figure.title * titled, figure.series)) for figure in figures]


def name_axes(drawn: "Drawing", cells: Sequence[Cell], grid: "Sequence[Axes]", title: str) -> None:
    """Write titles and labels, once for all plots where they agree."""
    one, large = len(cells) == 1, len(cells) <= LARGE
    for (_, panel), axes in zip(cells, grid, strict=True):
        axes.set_title(wrapped(panel.title, 40 if large else 32), fontsize=10 if large else 9)
    if one:
        grid[0].set_title(title, fontsize=11, loc="left")
    else:
        drawn.suptitle(title, fontsize=11)
    across = [next(iter(figure.xs.values())) for figure, _ in cells]
    upward = [figure.y for figure, _ in cells]
    for labels, each, whole in (
        (across, "set_xlabel", drawn.supxlabel),
        (upward, "set_ylabel", drawn.supylabel),
    ):
        if not one and len(set(labels)) == 1:
            whole(wrapped(labels[0], 60), fontsize=9)
            continue
        for text, axes in zip(labels, grid, strict=True):
            getattr(axes, each)(wrapped(text, 80 if one else 40), fontsize=10 if one else 8)


def add_legends(
    drawn: "Drawing", cells: Sequence[Cell], grid: "Sequence[Axes]", several: bool
) -> None:
    """Add one legend for panels that show the same lines, or one in each plot with further lines.

    Panels with one line each have none: their titles name it. Neither have plots whose lines are
    all in the first plot's legend.
    """
    shaded = any(series.shade is not None for _, panel in cells for series in panel.series)
    told = []
    for axes in grid:
        handles, names = axes.get_legend_handles_labels()
        told.append(dict(zip(names, handles, strict=True)))
    if shaded or (len(cells) > 1 and not several and any(s.panel for s in cells[0][1].series)):
        together = {name: handle for names in told for name, handle in names.items()}
        place: Any = "outside center right"
        if len(together) > 1:
            drawn.legend(
                together.values(), together, loc=place, frameon=False, fontsize=8, handlelength=3
            )
    elif several or len(cells) == 1:
        looks = [{(s.legend, s.colour) for s in panel.series} for _, panel in cells]
        for number, (axes, names) in enumerate(zip(grid, told, strict=True)):
            if len(names) > 1 and (number == 0 or not looks[number] <= looks[0]):
                axes.legend(frameon=False, handlelength=3, fontsize=8 if len(cells) <= LARGE else 6)
