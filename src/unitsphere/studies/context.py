"""Perplexity against context length and position, runs side by side (nGPT A.8, Figure 14)."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from unitsphere.errors import UserError
from unitsphere.studies.core.execute import Executor
from unitsphere.studies.core.kind import Kind, check_results, provenance
from unitsphere.training.by_position import (
    ContextLoss,
    check_contexts,
    losses_by_position,
    open_documents,
)
from unitsphere.training.folder import check_own_data
from unitsphere.training.load import LoadedRun, load_run
from unitsphere.training.resolve import check_same_data, same_data

DOUBLINGS = 5
"""Unless told otherwise, contexts up to 2^5 times the training's are scored."""

Arms = Mapping[str, Sequence[Path]]
After = Callable[[int], object]


@dataclasses.dataclass(frozen=True)
class ContextStudy:
    """What is scored, and how; `contexts` empty: those of the training, doubled DOUBLINGS times.

    The other settings are those of `losses_by_position` and `open_documents`.
    """

    arms: Arms
    data: str | None
    field: str
    contexts: Sequence[int]
    per_document: int | None
    chunk: int
    device: str
    progress: Callable[[Path], After] = lambda run: lambda tokens: None
    """Run -> the figures of the tokens that have been scored."""


def context_study(study: ContextStudy) -> dict[str, Any]:
    """Score every run of every arm; the document that is reported.

    Without `data` the text is the first run's validation split. Raises UserError for runs whose
    tokenizers differ: perplexities are then of other tokens; for runs of one arm that were trained
    at different contexts; and without `data` for runs that have other data than the first.
    """
    whose, *others = chain.from_iterable(study.arms.values())
    first = load_run(whose, study.device)
    if study.data is None:
        check_own_data(whose, first.config)
        check_same_data(whose, first.config)
    contexts = tuple(study.contexts) or doubled(first.config.data.context)
    check_contexts(contexts)
    trained = {whose: first.config.data.context}
    for path in others:
        trained[path] = check_run(path, study, whose, first).config.data.context
    for name, paths in study.arms.items():
        own = sorted({trained[path] for path in paths})
        if len(own) > 1:
            raise UserError(
                f"the runs of {name} were trained at contexts of {', '.join(map(str, own))}, and "
                "runs of one name are seeds of one arm: give them different names"
            )
    arms: dict[str, Any] = {}
    with open_documents(first, study.data, study.field) as documents:
        for name, paths in study.arms.items():
            runs = []
            for path in paths:
                run = load_run(path, study.device)
                losses = losses_by_position(
                    run.model,
                    documents(),
                    run.tokenizer.separator,
                    contexts,
                    study.chunk,
                    study.per_document,
                    study.progress(path),
                )
                runs.append(run_figures(run, path, losses))
            arms[name] = {"trained": trained[paths[0]], "runs": runs}
    return {
        "contexts": list(contexts),
        "data": study.data,
        "per_document": study.per_document,
        "arms": arms,
        "provenance": provenance(),
    }


def doubled(trained: int) -> tuple[int, ...]:
    """The context of the training, and what it is doubled."""
    return tuple(trained * 2**power for power in range(DOUBLINGS + 1))


def check_run(path: Path, study: ContextStudy, whose: Path, first: LoadedRun) -> LoadedRun:
    """The run; UserError if it cannot be compared with the first, of the folder `whose`."""
    run = load_run(path, "cpu")
    check_tokenizer(run, first, path)
    if study.data is None and not same_data(path, run.config, whose, first.config):
        raise UserError(
            f"{path} has other data than {whose}, and may be trained on documents of its "
            "validation split: give --data with a text that no run is trained on"
        )
    return run


def check_tokenizer(run: LoadedRun, first: LoadedRun, path: Path) -> None:
    """Raise UserError unless both runs have one tokenizer."""
    if run.tokenizer.fingerprint != first.tokenizer.fingerprint:
        raise UserError(
            f"{path} has another tokenizer than the first run: perplexities per token compare "
            "only between runs with one tokenizer"
        )


def run_figures(run: LoadedRun, path: Path, losses: Mapping[int, ContextLoss]) -> dict[str, Any]:
    """A run: the context that it was trained with, its seed, and its figures at each context."""
    return {
        "run": str(path),
        "trained": run.config.data.context,
        "seed": run.config.train.seed,
        "by_context": {context: one.record() for context, one in losses.items()},
    }


def train(study: ContextStudy, out: Path, executor: Executor | None = None) -> dict[str, Any]:
    """Score every run; progress goes to stderr."""
    check_results(out, KIND.name)
    return context_study(study)


KIND = Kind("context", ContextStudy, train, lambda study, found: found)
