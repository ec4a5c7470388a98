"""What a study of finished runs leaves in its folder: results.json, and results.md to read."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unitsphere.files import write_text
from unitsphere.report.table import markdown


def write_page(
    found: Mapping[str, Any],
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    picture: str,
    out: Path,
) -> list[Path]:
    """Write the document as results.json, and its table and picture as results.md; their paths."""
    out.mkdir(parents=True, exist_ok=True)
    document, page = out / "results.json", out / "results.md"
    write_text(document, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    origin = found["provenance"]
    machine = f"commit {origin['commit']}, {origin['machine']}, torch {origin['torch']}"
    write_text(
        page,
        f"# {title}\n\n{markdown(columns, rows)}\n![{title}]({picture})\n\n"
        f"`{origin['command']}`: {machine}\n",
    )
    return [document, page]
