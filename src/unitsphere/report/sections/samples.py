"""Texts on the page: those that a run wrote in training, and new ones from its last checkpoint."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from unitsphere.errors import UserError
from unitsphere.inference.generate import generate_text
from unitsphere.report.document import Page, Sample, Samples, Section
from unitsphere.report.runs import Run, is_run
from unitsphere.training.load import load_run

MOST = 6
"""Texts of a run that the page shows: its first and its last ones."""

TOKENS = 200
"""Tokens of a new text."""


def sample_sections(runs: Sequence[Run], each: int = MOST) -> list[Section]:
    """What the runs wrote, `each` texts of each; no section if they wrote none."""
    shown = []
    for run in runs:
        texts = run.samples
        kept = texts if len(texts) <= each else [*texts[: each // 2], *texts[-(each - each // 2) :]]
        shown += [Sample(f"{run.name}, step {step:,}", text) for step, text in kept]
    return [samples_section(shown)] if shown else []


def samples_section(samples: Sequence[Sample]) -> Section:
    """The texts under their heading."""
    told = "Written by the model, not chosen."
    return Section("samples", "Samples", [Samples(samples)], told, detail=True)


def fresh_samples(folder: Path, count: int) -> list[Sample]:
    """Texts by the newest checkpoint of a run, at a temperature of 0.8 as those in training.

    Each has another seed.

    Raises UserError for a folder without a run, a run without a checkpoint, or one that writes no
    text from nothing.
    """
    if not is_run(folder):
        raise UserError(f"{folder} holds no run: --samples needs one")
    loaded = load_run(folder)
    if loaded.model.objective != "clm":
        raise UserError(f"the model in {folder} writes no text by itself: leave --samples out")
    write = partial(generate_text, loaded.model, loaded.tokenizer, [""], TOKENS, temperature=0.8)
    return [
        Sample(f"From the last checkpoint, seed {seed}", write(seed=seed)[0].text)
        for seed in range(count)
    ]


def with_samples(page: Page, samples: Sequence[Sample]) -> Page:
    """The page with more texts, at the end of its own or in a new part before the settings."""
    own = [each for b in page.blocks() if isinstance(b, Samples) for each in b.samples]
    return page.with_section(samples_section([*own, *samples]))
