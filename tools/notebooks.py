"""Runs the notebooks of examples/notebooks; the site shows them as pages.

python tools/notebooks.py           # each must run without an error
python tools/notebooks.py --write   # and store its outputs in its file
"""

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "examples/notebooks"


def run(path: Path, write: bool) -> None:
    """Execute a notebook in its folder, with this interpreter."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    start = time.monotonic()
    os.environ["PYTHONPATH"] = str(ROOT / "src")
    folder = {"metadata": {"path": path.parent}}
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=folder, coalesce_streams=True
    )
    client.execute()
    if write:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times, which differ each time
        nbformat.write(notebook, path)
    print(f"{path.relative_to(ROOT)}  {time.monotonic() - start:.0f} s")


def as_markdown(path: Path) -> str:
    """A notebook as a page: its text, its code, and the outputs that it stores."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in cell_parts(cell)) + "\n"


def cell_parts(cell: dict[str, Any]) -> list[str]:
    """The Markdown of one cell."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    parts = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        data = output.get("data", {})
        text = "".join(output.get("text", data.get("text/plain", "")))
        if "image/png" in data:
            encoded = "".join("".join(data["image/png"]).split())
            parts.append(f"![figure](data:image/png;base64,{encoded})")
        elif text.strip():
            plain = re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip()
            parts.append(f"```text\n{plain}\n```")
    return parts


def main() -> None:
    """Run every notebook, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="file names; none: all")
    parser.add_argument("--write", action="store_true", help="store the outputs")
    arguments = parser.parse_args()
    paths = [
        p
        for p in sorted(NOTEBOOKS.glob("*.ipynb"))
        if not arguments.names or p.name in arguments.names
    ]
    if not paths:
        sys.exit("no such notebook")
    for path in paths:
        run(path, arguments.write)


if __name__ == "__main__":
    main()
