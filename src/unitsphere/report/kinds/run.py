"""The page of one training run, and of several runs side by side."""

from collections.abc import Sequence
from pathlib import Path

from unitsphere.config import flatten, to_dict
from unitsphere.errors import UserError
from unitsphere.report.document import Page, Section, Table
from unitsphere.report.numbers import duration, figure, known
from unitsphere.report.runs import (
    Run,
    by_arm,
    data_facts,
    in_arms,
    is_run,
    lost_text,
    name_in,
    name_of,
    runs_below,
    tokenizer_of,
)
from unitsphere.report.sections.accuracy import accuracy_sections
from unitsphere.report.sections.curves import curve_sections, unfinished
from unitsphere.report.sections.probes import probe_sections
from unitsphere.report.sections.settings import (
    differing_keys,
    environment_section,
    run_commands,
    settings_section,
)
from unitsphere.report.sections.texts import sample_sections

MOST_RUNS = 24
"""The most runs whose curves are drawn."""
KEYS_NAMED = 6
"""The most keys in which runs differ that the first screen names."""
SCORED = ("data.field", "data.source_field", "data.target_field", "train.eval_tokens")
SCORED += ("data.mask.fraction", "data.mask.masked", "data.mask.random")
"""Keys of what is scored of a text."""
OTHER_DATA = ("data.source", "data.tokenizer", "data.validation", "data.val_fraction", *SCORED)
"""Keys of the text on which the loss is measured."""
OTHER_LENGTH = ("train.steps", "train.batch_tokens")


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


REACHED = {
    "val_bits_per_byte": (".3f", "{} bits per byte of text that it was not trained on"),
    "val_loss": (".4f", "a validation loss of {} nats per token"),
    "loss": (".4f", "a training loss of {} nats per token; it has not been validated yet"),
}
"""How far a model came, by the first of these keys that is on record, in this form."""


def answer(run: Run) -> str:
    """How far the model came, in a sentence."""
    if not run.records:
        return f"{run.name} has no record yet: its first step is not finished."
    if run.diverged:
        return f"{run.name} ended at step {run.step:,}: its loss diverged."
    for key, (form, reached) in REACHED.items():
        told = run.last_with(key)
        if told:
            tokens, verb = told.get("tokens"), "reached" if run.done else "is at"
            after = f"{tokens:,} training tokens" if tokens else f"{told['step']:,} steps"
            far = reached.format(figure(told[key], form))
            return f"{run.name} {verb} {far}, after {after}."
    return f"{run.name} is at step {run.step:,}; no loss is on record."


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
            found.append((name, form(value)))
    return found


FACTS = (
    ("tokens", "training tokens", "{:,.0f}".format),
    ("val_bits_per_byte", "bits per byte", lambda value: figure(value, ".4f")),
    ("val_loss", "validation loss", lambda value: figure(value, ".4f")),
    ("time", "training time", duration),
    ("tokens_per_second", "tokens per second", "{:,.0f}".format),
    ("mfu", "of the device's peak", "{:.1%}".format),
)


def several_page(folder: Path) -> Page:
    """The runs of a folder without results: a study that still trains, or one that was stopped."""
    runs = in_arms([(name_in(folder, path), path) for path in runs_below(folder)])
    done = sum(run.done for run in runs)
    answer = f"{done} of {len(runs)} runs that have started are finished; there is no result yet."
    return page_of_runs(folder.resolve().name, answer, runs, str(folder))


def chosen_page(folders: Sequence[Path]) -> Page:
    """The runs that the user names, side by side; of a folder of runs all of them.

    If that is one run, this is its page.
    Raises UserError for a folder without a run.
    """
    paths = list(dict.fromkeys(path for folder in folders for path in runs_of(folder)))
    if len(paths) == 1:
        return run_page(paths[0])
    names = [name_of(path.resolve()) for path in paths]
    named = [
        (name if names.count(name) == 1 else str(path), path)
        for name, path in zip(names, paths, strict=True)
    ]
    runs = in_arms(named)
    title = ", ".join(folder.resolve().name for folder in folders)
    return page_of_runs(title, lowest(runs), runs, *map(str, folders))


def runs_of(folder: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs below it; UserError if there is none."""
    found = [folder] if is_run(folder) else runs_below(folder)
    if not found:
        raise UserError(f"{folder} holds no run: give run folders")
    return found


def page_of_runs(title: str, answer: str, runs: Sequence[Run], *folders: str) -> Page:
    """The runs in their order; curves and probes of the first MOST_RUNS."""
    shown = runs[:MOST_RUNS]
    head = ["run", "step", "of", "training loss", "validation loss", "bits/byte", "time"]
    more = f"Curves of the first {MOST_RUNS} runs." if len(runs) > MOST_RUNS else ""
    return Page(
        title=title,
        kind="Runs",
        answer=answer,
        facts=data_facts(runs),
        caveats=[*differences(runs), *lost_text(runs)],
        unfinished=unfinished(runs),
        sections=[
            Section("runs", "Runs", [Table("How far the runs are", head, [row(r) for r in runs])]),
            *curve_sections(shown, more),
            *accuracy_sections(runs),
            *probe_sections(shown),
            *sample_sections(shown, each=1),
            settings_section(runs),
            environment_section(runs, run_commands(shown, *folders), {}),
        ],
    )


def lowest(runs: Sequence[Run]) -> str:
    """Which run has the lowest validation loss, in a sentence."""
    if lost_text(runs) and len({run.last("val_text_lost") for run in runs}) > 1:
        return f"{len(runs)} runs, which cannot be compared: a tokenizer of theirs loses text."
    if len({scored_text(run) for run in runs if run.settings}) > 1:
        return f"{len(runs)} runs, which cannot be compared: they are validated on different texts."
    if len({run.settings.get("objective") for run in runs if run.settings}) > 1:
        return f"{len(runs)} runs, which cannot be compared: they have different objectives."
    kept = [run for run in runs if not run.diverged]
    if not kept:
        return f"{len(runs)} runs, all of which diverged."
    for key, said in (("val_bits_per_byte", "bits per byte"), ("val_loss", "nats per token")):
        told = [(value, run) for run in kept if (value := run.last(key)) is not None]
        if len(told) == len(kept):
            if key == "val_loss" and len({tokenizer_of(run) for run in kept if run.settings}) > 1:
                return f"{len(runs)} runs, which cannot be compared: their tokenizers differ."
            value, best = min(told, key=lambda pair: pair[0])
            after = best.last_with(key).get("tokens")
            tokens = "" if after is None else f" after {after:,.0f} training tokens"
            low = figure(value, ".4f")
            return f"Of {len(runs)} runs {best.name} is lowest: {low} {said}{tokens}."
    return f"{len(runs)} runs; not all of them have been validated yet."


def scored_text(run: Run) -> tuple[object, ...]:
    """What decides on which text a run is validated: its own source's or another, and how much."""
    keys = flatten(run.settings if run.config is None else to_dict(run.config))
    other = keys.get("data.validation") is not None
    text = ("data.validation",) if other else ("data.source", "data.val_fraction")
    return tuple(keys.get(key) for key in (*text, *SCORED))


def differences(runs: Sequence[Run]) -> list[str]:
    """What differs between the runs, and which comparisons that rules out."""
    arms = by_arm(runs)
    keys = differing_keys(runs)
    if len(arms) < 2 or not keys:
        return []
    more = len(keys) - KEYS_NAMED
    others = f" and {more} more keys" if more > 0 else ""
    lines = [f"The runs differ in {', '.join(keys[:KEYS_NAMED])}{others} (see Settings)."]
    if data := [key for key in OTHER_DATA if key in keys]:
        differ = "differs" if len(data) == 1 else "differ"
        lines.append(f"Their losses are of other text or tokens: {', '.join(data)} {differ}.")
    if any(key in keys for key in OTHER_LENGTH):
        lines.append("They were trained on different numbers of tokens.")
    if any(len(of) > 1 for of in arms.values()):
        lines.append("Runs that differ only in the seed share a line of the legend.")
    return lines


def row(run: Run) -> list[str]:
    """How far a run is."""
    loss, val, bits = run.last("loss"), run.last("val_loss"), run.last("val_bits_per_byte")
    time = run.last("time")
    return [
        run.name,
        f"{run.step:,}",
        f"{run.steps:,}" if run.steps else "–",
        known(loss, ".4f"),
        "diverged" if run.diverged else known(val, ".4f"),
        known(bits, ".4f"),
        "–" if time is None else duration(time),
    ]
