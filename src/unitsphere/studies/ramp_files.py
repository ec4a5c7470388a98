"""What an lr-ramp leaves in its folder: results.json, results.md and a picture."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unitsphere.files import write_text
from unitsphere.report.origin import origin
from unitsphere.report.ramp import COLUMNS, RampCurve, notes, ramp_picture, ramp_rows
from unitsphere.report.table import markdown
from unitsphere.studies.ramp import Climb

PICTURE = "loss.png"


def write_ramp(
    found: Mapping[str, Any], climbs: Mapping[str, Sequence[Climb]], out: Path
) -> list[Path]:
    """Write the three files; their paths."""
    document, page, picture = out / "results.json", out / "results.md", out / PICTURE
    write_text(document, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    curves = {
        name: [RampCurve(run.rates, run.smoothed, run.lr) for run in runs]
        for name, runs in climbs.items()
    }
    ramp_picture(curves, found["start"] > 0, "Loss as the learning rate climbs", picture)
    source = origin(found["provenance"])
    flags = "".join(f"- {note}\n" for note in notes(found))
    table = markdown(COLUMNS, ramp_rows(found))
    write_text(
        page, f"# lr-ramp\n\n{source}\n{table}\n{flags}\n![loss against the rate]({PICTURE})\n"
    )
    return [document, page, picture]
