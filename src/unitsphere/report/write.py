"""A folder's page as text, and written beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from unitsphere.errors import UserError
from unitsphere.files import write_text
from unitsphere.report.document import Page
from unitsphere.report.registry import page_of, retold_shapes
from unitsphere.report.render.html import render
from unitsphere.report.render.picture import still, write_stills
from unitsphere.report.runs import Folders, listed
from unitsphere.report.sections.settings import report_command
from unitsphere.report.sections.texts import fresh_samples, with_samples

FILE = "report.html"


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

    live: the version of the page that a server serves; then nothing is drawn for print, so that
    it is quick. Raises UserError for a folder that is neither.
    """
    return document(page_of(folders), folders, live)


def document(page: Page, folders: Folders, live: str = "") -> str:
    """A page as HTML, with the time of now at its foot."""
    written = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    with retold_shapes(folders):
        stills = {} if live else {f.name: still(f) for f in page.figures() if f.drawn}
        return render(page, report_command(*map(str, listed(folders))), stills, live, written)


def write_page(
    folders: Folders,
    out: Path | None = None,
    figures: Path | None = None,
    samples: int = 0,
) -> Written:
    """Write the page of a run or a study, or of several runs, and if asked its figures.

    Args:
        folders: a run's, a study's, or one that holds runs; or several runs' folders.
        out: the file; by default report.html in the folder, of several in the working folder.
        figures: a folder for NAME.svg and NAME.png of every figure.
        samples: texts that the last checkpoint of a run writes for the page.

    Raises:
        UserError: for a folder that holds no run and no study, or for samples of one that holds
            no run with a checkpoint, or of several.
    """
    page = page_of(folders)
    first, *others = listed(folders)
    if samples:
        if others:
            raise UserError("--samples writes texts of one run: give one folder")
        page = with_samples(page, fresh_samples(first, samples))
    path = out or (Path(FILE) if others else first / FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, document(page, folders))
    drawn = {} if figures is None else write_stills(page.figures(), figures)
    return Written(page, path, drawn)
