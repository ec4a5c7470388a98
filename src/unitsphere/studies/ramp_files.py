"""What an lr-ramp leaves in its folder: results.json, results.md and a picture."""

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from unitsphere.report.ramp import COLUMNS, RampCurve, notes, ramp_picture, ramp_rows
from unitsphere.report.table import markdown
from unitsphere.studies.ramp import Climb
from unitsphere.training.divergence import WINDOW
from unitsphere.training.log import replace

PICTURE = "loss.png"


def write_ramp(
    found: Mapping[str, Any], climbs: Mapping[str, Sequence[Climb]], out: Path
) -> list[Path]:
    """Write the three files; their paths."""
    document, page, picture = out / "results.json", out / "results.md", out / PICTURE
    replace(document, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    curves = {name: [smoothed(run) for run in runs] for name, runs in climbs.items()}
    ramp_picture(curves, found["start"] > 0, "Loss as the learning rate climbs", picture)
    flags = "".join(f"- {note}\n" for note in notes(found))
    table = markdown(COLUMNS, ramp_rows(found))
    replace(page, f"# lr-ramp\n\n{table}\n{flags}\n![loss against the rate]({PICTURE})\n")
    return [document, page, picture]


def smoothed(run: Climb) -> RampCurve:
    """A run's curve, each loss the mean of the last WINDOW."""
    sums = [0.0, *accumulate(run.losses)]
    losses = [
        (sums[end] - sums[max(end - WINDOW, 0)]) / min(end, WINDOW) for end in range(1, len(sums))
    ]
    return RampCurve(run.rates, losses, run.lr)
