"""Probes on the page: what `unitsphere inspect` left in a run's folder."""

from collections.abc import Sequence

from unitsphere.report.page.parts import Block, Picture, Pictures, Section, Text
from unitsphere.report.page.runs import Run, document

FOLDER, FILE = "inspect", "inspect.json"


def probe_sections(runs: Sequence[Run]) -> list[Section]:
    """The pictures of the probes that apply, and why others do not; none without inspection."""
    pictures: list[Picture] = []
    without: list[str] = []
    for run in runs:
        probes = document(run.folder / FOLDER / FILE).get("probes", {})
        for name, probe in probes.items() if isinstance(probes, dict) else ():
            title, source = str(probe.get("title", name)), str(probe.get("source", ""))
            whose = title if len(runs) == 1 else f"{run.name}: {title}"
            svg = run.folder / FOLDER / f"{name}.svg"
            if not probe.get("applies", True):
                without.append(f"{whose}: {probe.get('why', 'does not apply')}")
            elif svg.is_file():
                pictures.append(Picture(f"{run.name}-{name}", whose, svg.read_bytes(), source))
    blocks: list[Block] = [Pictures(pictures)] if pictures else []
    if without:
        blocks.append(Text(["Probes that do not apply:", *without], listed=True))
    intro = "From the checkpoints, by `unitsphere inspect`."
    return [Section("probes", "Probes", blocks, intro)] if blocks else []
