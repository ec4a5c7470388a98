"""Studies here are about runs and figures: each picture is drawn once, and then given again."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from unitsphere.report import write
from unitsphere.report.document import Figure
from unitsphere.studies import quickstart


@pytest.fixture(autouse=True, scope="session")
def _drawn_once() -> Iterator[None]:
    """Drawing takes longer than the tiny runs: a picture's name decides what it shows.

    tests/report draws every kind of figure.
    """
    draw, draw_files = write.picture, write.write_picture
    drawn: dict[str, bytes] = {}

    def picture(figure: Figure) -> bytes:
        if figure.name not in drawn:
            drawn[figure.name] = draw(figure)
        return drawn[figure.name]

    def write_picture(
        figures: Sequence[Figure], files: Sequence[Path], columns: int = 3, title: str = ""
    ) -> None:
        if not all(path.name in drawn for path in files):
            draw_files(figures, files, columns, title)
            drawn.update({path.name: path.read_bytes() for path in files})
        for path in files:
            path.write_bytes(drawn[path.name])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "picture", picture)
        for module in (write, quickstart):
            patch.setattr(module, "write_picture", write_picture)
        yield
