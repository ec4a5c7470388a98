"""Build the HTML page of every study under docs/results from its committed JSON.

    python benchmarks/pages.py [--out build/pages]

`make pages` runs this. A JSON file that is not a study's has no page and is skipped. Only results
are committed, not the runs, so the pages have tables and figures of results but no training curves.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from unitsphere.errors import UserError
from unitsphere.report.write import write_page

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def name_of(path: Path) -> str:
    """compare-1m/results.json -> compare-1m; compare-best/1m.json -> compare-best-1m."""
    parts = path.relative_to(RESULTS).with_suffix("").parts
    return "-".join(part for part in parts if part != "results")


def main() -> None:
    """Write a page for each study, and print its path."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/pages"), help="folder of the pages")
    out = parser.parse_args().out
    for path in sorted(RESULTS.rglob("*.json")):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / name_of(path)
            folder.mkdir()
            shutil.copy(path, folder / "results.json")
            try:
                written = write_page(folder, out / f"{folder.name}.html")
            except UserError:
                continue
            print(written.path)


if __name__ == "__main__":
    main()
