"""Texts on the page: those that a run wrote in training, and new ones from its last checkpoint."""

from collections.abc import Sequence
from pathlib import Path

from unitsphere.errors import UserError
from unitsphere.inference.generate import generate_text
from unitsphere.report.document import Page, Sample, Samples, Section
from unitsphere.report.runs import Run, is_run
from unitsphere.training.load import LoadedRun, load_run

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
    """Texts by the newest checkpoint of a run, each with another seed.

    Raises UserError for a folder without a run, a run without a checkpoint, or one that writes no
    text from nothing.
    """
    if not is_run(folder):
        raise UserError(f"{folder} holds no run: --samples needs one")
    loaded = load_run(folder)
    if loaded.model.objective != "clm":
        raise UserError(f"the model in {folder} writes no text by itself: leave --samples out")
    return [
        Sample(f"From the last checkpoint, seed {seed}", text_of(loaded, seed))
        for seed in range(count)
    ]


def text_of(run: LoadedRun, seed: int) -> str:
    """A text from nothing at temperature 0.8, as those in training."""
    made = generate_text(run.model, run.tokenizer, [""], TOKENS, temperature=0.8, seed=seed)
    return made[0].text


def with_samples(page: Page, samples: Sequence[Sample]) -> Page:
    """The page with more texts, at the end of its own or in a new part before the settings."""
    own = [s for s in page.sections if s.name == "samples"]
    told = [block.samples for s in own for block in s.blocks if isinstance(block, Samples)]
    return page.with_section(samples_section([*(e for texts in told for e in texts), *samples]))
