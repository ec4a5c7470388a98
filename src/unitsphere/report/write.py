"""What is written: a study's results, and the HTML page of a run or a study."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from unitsphere.config import json_text
from unitsphere.errors import UserError
from unitsphere.files import own_folder, write_text
from unitsphere.report.document import Figures, Page
from unitsphere.report.kinds.inspection import FOLDER, film, inspection_page
from unitsphere.report.registry import RESULTS, as_user_errors, page_of, study_page
from unitsphere.report.render.html import html
from unitsphere.report.render.picture import picture, write_film, write_picture, write_pictures
from unitsphere.report.render.text import markdown
from unitsphere.report.runs import Folders, Json, listed
from unitsphere.report.sections.settings import report_command
from unitsphere.report.sections.texts import fresh_samples, playground_section, with_samples

FILE, MARKDOWN = "report.html", "results.md"


def write_results(found: Json, folder: Path) -> tuple[Page, list[Path]]:
    """Write a study's results.json, results.md and pictures; returns its page and the paths.

    `found` names its kind, which `registry.KINDS` knows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / RESULTS, folder / MARKDOWN]
    # before the page: what fails there must not lose the figures
    write_text(files[0], json_text(found) + "\n")
    page = study_page(found, folder)
    write_text(files[1], markdown(page))
    return page, [*files, *write_page_pictures(page, folder)]


def write_page_pictures(page: Page, folder: Path) -> list[Path]:
    """Write the pictures that the page's figures name (`Figures.files`); returns their paths."""
    written: list[Path] = []
    for block in page.blocks():
        if isinstance(block, Figures) and block.files:
            files = [folder / name for name in block.files]
            write_picture(block.figures, files, block.columns, block.title)
            written += files
    return written


def write_inspection(
    found: Mapping[str, Any], run: Path, moving: bool = False
) -> tuple[Page, list[Path]]:
    """Write what the probes found in a run's folder; returns the page, and what to name of it.

    That is inspect/inspect.json, an SVG and a PNG for each probe, and if `moving` film.gif.
    """
    folder = own_folder(run / FOLDER)
    page, document, moved = inspection_page(found, run.name), folder / "inspect.json", []
    write_text(document, json_text(found, indent=None) + "\n")
    for name, form in itertools.product(found["probes"], ("svg", "png")):
        (folder / f"{name}.{form}").unlink(missing_ok=True)
    write_page_pictures(page, run)
    if moving:
        path = folder / "film.gif"
        path.unlink(missing_ok=True)
        frames = film(found, run.name)
        if frames:
            write_film(frames, path)
            moved.append(path)
    return page, [document, folder / "*.svg, *.png", *moved]


@dataclass(frozen=True)
class Written:
    """What was written: the page, its file, and the figures' files by name."""

    page: Page
    path: Path
    figures: Mapping[str, Mapping[str, str]]

    def record(self) -> dict[str, Any]:
        """As plain values, for `--json`."""
        return {
            "page": str(self.path),
            "bytes": self.path.stat().st_size,
            "title": self.page.title,
            "kind": self.page.kind,
            "answer": self.page.answer,
            "caveats": list(self.page.caveats),
            "unfinished": self.page.unfinished,
            "sections": [section.name for section in self.page.sections],
            "figures": [
                {"name": f.name, "title": f.title, "data": f.data, **self.figures.get(f.name, {})}
                for f in self.page.figures()
            ],
        }


def build(folders: Folders, live: str = "") -> str:
    """The page of a run or a study, or of several runs, as one HTML document.

    live: the version of the page that a server serves; then no pictures are drawn for print, so
    that it is quick. Raises UserError for a folder that is neither.
    """
    return document(page_of(folders), folders, live)


def document(page: Page, folders: Folders, live: str = "") -> str:
    """A page as HTML, with the current time at its foot."""
    written = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    with as_user_errors(folders):
        shown = [] if live else [figure for figure in page.figures() if figure.printed]
        pictures = {figure.name: picture(figure) for figure in shown}
        return html(page, report_command(*map(str, listed(folders))), pictures, live, written)


def write_page(
    folders: Folders,
    out: Path | None = None,
    figures: Path | None = None,
    samples: int = 0,
    playground: bool = False,
) -> Written:
    """Write the page of a run or a study, or of several runs, and if asked its figures.

    Args:
        folders: a run's, a study's, or one with runs below it; or several runs' folders.
        out: the file; by default report.html in the folder, of several in the working folder.
        figures: a folder for NAME.svg and NAME.png of every figure.
        samples: texts that the last checkpoint of a run writes for the page.
        playground: whether the page has the models of the runs, for its reader to write with.

    Raises:
        UserError: for a folder without a run or study, or for samples of several runs, or of a run
            without a checkpoint, or for a model that the page cannot run.
    """
    page = page_of(folders)
    first, *others = listed(folders)
    if samples:
        if others:
            raise UserError("--samples writes texts of one run: give one folder")
        page = with_samples(page, fresh_samples(first, samples))
    if playground:
        page = page.with_section(playground_section(listed(folders)))
    path = out or (Path(FILE) if others else first / FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, document(page, folders))
    drawn = {} if figures is None else write_pictures(page.figures(), figures)
    return Written(page, path, drawn)
