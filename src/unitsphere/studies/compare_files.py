"""What a comparison leaves in its folder: results.json, results.md and a picture."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unitsphere.files import write_text
from unitsphere.report.budgets import budget_curves, curves_of
from unitsphere.report.comparison import comparison_page

PICTURE = "loss.png"


def write_comparison(found: Mapping[str, Any], out: Path) -> list[Path]:
    """Write the three files; their paths."""
    document, page, picture = out / "results.json", out / "results.md", out / PICTURE
    write_text(document, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    curves = curves_of(found["arms"])
    budget_curves(curves, "Loss against training tokens", picture)
    write_text(page, comparison_page(found, PICTURE))
    return [document, page, picture]


def any_failed(found: Mapping[str, Any]) -> bool:
    """Whether a reported run failed (one that diverged has a result)."""
    return any(flag["name"] == "failed" for flag in found["flags"])
