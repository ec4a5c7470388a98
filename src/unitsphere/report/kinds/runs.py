"""The page of several runs: those that one names, or those of a folder without results."""

from collections.abc import Sequence
from pathlib import Path

from unitsphere.errors import UserError
from unitsphere.report.document import Page, Section, Table
from unitsphere.report.kinds.run import curve_sections, name_of, unfinished
from unitsphere.report.runs import (
    Run,
    by_arm,
    data_facts,
    in_arms,
    is_run,
    lost_text,
    runs_below,
)
from unitsphere.report.sections.accuracy import accuracy_sections
from unitsphere.report.sections.probes import probe_sections
from unitsphere.report.sections.settings import (
    differing_keys,
    environment_section,
    run_commands,
    settings_section,
)
from unitsphere.report.sections.texts import sample_sections
from unitsphere.report.table import duration

MOST_RUNS = 24
"""Runs that curves are drawn of."""
KEYS_NAMED = 6
"""Keys in which runs differ that the first screen names."""
OTHER_DATA = ("data.source", "data.tokenizer", "data.validation", "data.val_fraction")
"""Keys of what the loss is measured on."""
OTHER_LENGTH = ("train.steps", "train.batch_tokens")


def several_page(folder: Path) -> Page:
    """Runs that lie in one folder: a study still at work, or one that left no results."""
    named = [
        (path.relative_to(folder).as_posix().removeprefix("runs/"), path)
        for path in runs_below(folder)
    ]
    runs = in_arms(named)
    done = sum(run.done for run in runs)
    answer = f"{done} of {len(runs)} runs that have started are finished; no result yet."
    return page_of_runs(folder.resolve().name, answer, runs, str(folder))


def chosen_page(folders: Sequence[Path]) -> Page:
    """Runs that one names, beside each other; of a folder of runs all that it holds.

    Raises UserError for a folder without a run.
    """
    paths = list(dict.fromkeys(path for folder in folders for path in runs_of(folder)))
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
    """What all runs say, in their order; curves and probes of the first MOST_RUNS."""
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
            Section("runs", "Runs", [Table("Where the runs stand", head, [row(r) for r in runs])]),
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
    for key, said in (("val_bits_per_byte", "bits per byte"), ("val_loss", "nats per token")):
        known = [(value, run) for run in runs if (value := run.last(key)) is not None]
        if len(known) == len(runs):
            value, best = min(known, key=lambda pair: pair[0])
            after = best.last("tokens")
            tokens = "" if after is None else f" after {after:,.0f} training tokens"
            return f"Of {len(runs)} runs {best.name} is lowest: {value:.4f} {said}{tokens}."
    return f"{len(runs)} runs; not all of them have been validated yet."


def differences(runs: Sequence[Run]) -> list[str]:
    """What differs between the runs, for the first screen, and what that forbids to compare."""
    arms = by_arm(runs)
    keys = differing_keys(runs)
    if len(arms) < 2 or not keys:
        return []
    more = len(keys) - KEYS_NAMED
    others = f" and {more} more keys" if more > 0 else ""
    lines = [f"The runs differ in {', '.join(keys[:KEYS_NAMED])}{others} (see Settings)."]
    if data := [key for key in OTHER_DATA if key in keys]:
        lines.append(f"Their losses are of other text or tokens: {', '.join(data)} differ.")
    if any(key in keys for key in OTHER_LENGTH):
        lines.append("They were trained on different numbers of tokens.")
    if any(len(of) > 1 for of in arms.values()):
        lines.append("Runs that differ only in the seed are one line of the legend.")
    return lines


def row(run: Run) -> list[str]:
    """Where a run stands."""
    loss, val, bits = run.last("loss"), run.last("val_loss"), run.last("val_bits_per_byte")
    time = run.last("time")
    return [
        run.name,
        f"{run.step:,}",
        f"{run.steps:,}" if run.steps else "–",
        "–" if loss is None else f"{loss:.4f}",
        "diverged" if run.diverged else "–" if val is None else f"{val:.4f}",
        "–" if bits is None else f"{bits:.4f}",
        "–" if time is None else duration(time),
    ]
