"""Probes on the page: what `unitsphere inspect` left in a run's folder, and the run's live records.

The form of both is described in `unitsphere.inspection`.
"""

from collections.abc import Sequence

from unitsphere.inspection.live import PREFIX
from unitsphere.inspection.probes import PROBES
from unitsphere.report.document import Block, Figure, Figures, Folded, Number, Section, Text
from unitsphere.report.numbers import round_off
from unitsphere.report.runs import Json, Run, by_arm, document, live_values
from unitsphere.report.sections.curves import axis_labels, places_on
from unitsphere.report.sections.probe_figures import (
    RANGE,
    overlay_figures,
    probe_figure,
    step_lines,
    too_many,
)

INSPECTED = "inspect/inspect.json"
"""What `unitsphere inspect` writes into a run's folder."""


def probe_sections(runs: Sequence[Run]) -> list[Section]:
    """The probes of each inspected run and the live ones; no section where there is neither.

    Of several arms first the probes that two or more have, their lines over each other.
    """
    blocks = overlay_blocks(runs)
    for run in runs:
        own = run_blocks(run)
        if len(runs) > 1 and own:
            blocks.append(Folded(f"Probes of {run.name}", own))
        else:
            blocks += own
    intro = "What the weights and activations look like inside: from the checkpoints (unitsphere "
    intro += "inspect), or recorded while training."
    return [Section("probes", "Probes", blocks, intro, detail=True)] if blocks else []


def overlay_blocks(runs: Sequence[Run]) -> list[Block]:
    """Each probe of two or more arms as one figure; an arm is its first inspected run."""
    inspected: dict[str, tuple[Run, dict[str, Json]]] = {}
    for run in runs:
        told = probes_of(run)
        if told and run.arm not in inspected:
            inspected[run.arm] = run, told
    if len(inspected) < 2:
        return []
    colours = {arm: place for place, arm in enumerate(by_arm(runs))}
    names = dict.fromkeys(name for _, told in inspected.values() for name in told)
    over, spread = [], []
    for name in names:
        arms = {
            arm: (run, told[name])
            for arm, (run, told) in inspected.items()
            if name in told and told[name].get("applies")
        }
        over += overlay_figures(name, arms, colours, spread=False)
        spread += overlay_figures(name, arms, colours, spread=True)
    blocks: list[Block] = []
    for title, figures in (
        ("Probes of the arms over each other", over),
        ("Distributions of the arms over each other", spread),
    ):
        if figures:
            blocks.append(Folded(f"{title} ({len(figures)})", [Figures(figures, apart=True)]))
    return blocks


def probes_of(run: Run) -> dict[str, Json]:
    """The probes that `inspect` left in a run's folder."""
    probes = document(run.folder / INSPECTED).get("probes", {})
    return {k: v for k, v in probes.items() if isinstance(v, dict)} if probes else {}


def run_blocks(run: Run) -> list[Block]:
    """A run's probes: over layers, over steps, recorded live; and those that do not apply."""
    told = probes_of(run)
    shown = [(name, probe) for name, probe in told.items() if probe.get("applies")]
    figures = [figure for n, p in shown if (figure := probe_figure(run, n, p))]
    blocks: list[Block] = []
    for axis in ("value", "layer", "step"):
        group = [figure for figure in figures if axis in figure.xs]
        blocks += [Figures(group, apart=axis == "value")] if group else []
    live = live_figures(run)
    blocks += [Figures(live)] if live else []
    without = [
        f"{probe.get('title', name)}: {probe.get('why', '')}"
        for name, probe in told.items()
        if not probe.get("applies")
    ]
    if without:
        are = "probe has" if len(without) == 1 else "probes have"
        title = f"{len(without)} {are} nothing to show of this model"
        blocks.append(Folded(title, [Text(without, listed=True)]))
    return blocks


def live_figures(run: Run) -> list[Figure]:
    """What the run recorded of its probes while it trained, by step, tokens, time, operations."""
    axes = axis_labels([run])
    found: dict[str, dict[tuple[str, str], list[Number]]] = {}
    records = [record for record in run.records if any(k.startswith(PREFIX) for k in record)]
    for place, record in enumerate(records):
        for probe, series, label, value in live_values(record):
            lines = found.setdefault(probe, {})
            lines.setdefault((series, label), [None] * len(records))[place] = round_off(value)
    places = places_on(axes, run, records)
    return [
        Figure(
            name=f"{run.name}-live-{name}",
            title=probe.title if probe else name.replace("_", " ").capitalize(),
            y=probe.unit if probe else "value",
            xs={key: label for key, (label, _) in axes.items()},
            series=step_lines(lines, places),
            caption=f"Recorded while training{RANGE if too_many(lines) else ''}.",
            log_y=bool(probe and probe.log),
            data=run.command,
            printed=False,
        )
        for name, lines in found.items()
        for probe in [PROBES.get(name)]  # none of another version's
        if len(records) > 1
    ]
