"""The page of one training run."""

from collections.abc import Sequence
from pathlib import Path

from unitsphere.report.document import Block, Page, Section, Text
from unitsphere.report.runs import Run, data_facts, lost_text
from unitsphere.report.sections.accuracy import accuracy_sections
from unitsphere.report.sections.curves import curves
from unitsphere.report.sections.probes import probe_sections
from unitsphere.report.sections.settings import environment_section, run_commands, settings_section
from unitsphere.report.sections.texts import sample_sections
from unitsphere.report.table import duration


def name_of(folder: Path) -> str:
    """The folder's name; of a study's run what tells it from the others: arm, budget, folder."""
    for study in folder.parents:
        if (study / "study.toml").is_file() and folder.is_relative_to(study / "runs"):
            return " ".join(folder.relative_to(study / "runs").parts)
    return folder.name


def run_page(folder: Path) -> Page:
    """What one run folder says."""
    name = name_of(folder.resolve())
    run = Run(name, name, folder)
    architecture = run.settings.get("architecture", "")
    return Page(
        title=name,
        kind=f"Training run · {architecture}" if architecture else "Training run",
        answer=answer(run),
        facts=[*data_facts([run]), *facts(run)],
        caveats=caveats(run),
        unfinished=unfinished([run]),
        sections=[
            *curve_sections([run]),
            *accuracy_sections([run]),
            *probe_sections([run]),
            *sample_sections([run]),
            settings_section([run]),
            environment_section([run], run_commands([run], str(folder)), {}),
        ],
    )


def answer(run: Run) -> str:
    """How far the model came, in a sentence; a single run has no interval, and that is said."""
    if not run.records:
        return f"{run.name} has no record yet: its first step is still to come."
    after = f"after {run.records[-1]['tokens']:,} training tokens" if run.last("tokens") else ""
    after = after or f"after {run.step:,} steps"
    bits, loss = run.last("val_bits_per_byte"), run.last("val_loss")
    if run.diverged:
        return f"{run.name} ended at step {run.step:,}: its loss diverged."
    if bits is not None:
        reached = f"{bits:.3f} bits per byte of text that it was not trained on"
    elif loss is not None:
        reached = f"a validation loss of {loss:.4f} nats a token"
    elif (trained := run.last("loss")) is not None:
        reached = f"a training loss of {trained:.4f} nats a token; it has not been validated yet"
    else:
        return f"{run.name} is at step {run.step:,}; no loss is on record."
    verb = "reached" if run.done else "is at"
    return f"{run.name} {verb} {reached}, {after}."


def caveats(run: Run) -> list[str]:
    """What the answer does not say."""
    if not run.records:
        return []
    lines = ["One run of one seed, so there is no interval: another seed would end elsewhere."]
    spikes = sum("spike" in record for record in run.records)
    if spikes:
        lines.append(f"{spikes} spike{'s' * (spikes != 1)} of the loss on record.")
    return lines + lost_text([run])


def facts(run: Run) -> list[tuple[str, str]]:
    """Short figures."""
    found = []
    if run.size is not None:
        found.append(("parameters", f"{run.size.parameters:,}"))
    if run.records:
        of = f" of {run.steps:,}" if run.steps else ""
        found.append(("steps", f"{run.step:,}{of}"))
    for key, name, form in FACTS:
        value = run.last(key)
        if value is not None:
            found.append((name, duration(value) if key == "time" else form.format(value)))
    return found


FACTS = (
    ("tokens", "training tokens", "{:,.0f}"),
    ("val_bits_per_byte", "bits per byte", "{:.4f}"),
    ("val_loss", "validation loss", "{:.4f}"),
    ("time", "training time", ""),
    ("tokens_per_second", "tokens a second", "{:,.0f}"),
    ("mfu", "of the device's peak", "{:.1%}"),
)


def unfinished(runs: Sequence[Run]) -> str:
    """How far those runs are that have not come to their end; empty if all have."""
    going = [run for run in runs if not run.done]
    if not going:
        return ""
    parts = []
    for run in going[:4]:
        of = f" of {run.steps:,}" if run.steps else ""
        parts.append(f"{run.name} at step {run.step:,}{of}")
    more = f" and {len(going) - 4} more" if len(going) > 4 else ""
    return f"Not finished: {', '.join(parts)}{more}"


def curve_sections(
    runs: Sequence[Run], intro: str = "", baseline: str | None = None
) -> list[Section]:
    """The curves, if there is any; `baseline` is the arm whose last loss the others come to."""
    found = curves(runs, baseline)
    if found is None:
        lines: list[Block] = [Text(["No record of a step is there yet."])]
        return [Section("curves", "Curves", lines)] if runs else []
    return [Section("curves", "Curves", [found], intro)]
