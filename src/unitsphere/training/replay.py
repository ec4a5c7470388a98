"""The batch of a step once more: what it holds, and what the run's model makes of it now."""

from dataclasses import dataclass
from pathlib import Path

import torch

from unitsphere.data.batch import IGNORED, Batch
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.errors import UserError
from unitsphere.training.corpus import open_corpus
from unitsphere.training.evaluate import evaluating
from unitsphere.training.load import load_run
from unitsphere.training.owner import check_own_data

SHOWN = 100
"""Tokens of a row that are shown."""


@dataclass(frozen=True)
class Row:
    """A row of a batch: its targets that count, their mean loss in nats, and how it begins."""

    row: int
    targets: int
    loss: float
    text: str


@torch.no_grad()
def replay(run: Path | str, step: int, device: str = "auto") -> list[Row]:
    """The rows of the batch that made update number `step` (from 1 on, as in metrics.jsonl).

    The losses are those of the run's newest complete checkpoint, without dropout. Raises UserError
    for a step that the run does not have, or if its data are not to be had.
    """
    model, tokenizer, config = load_run(run, device)
    if not 1 <= step <= config.train.steps:
        raise UserError(f"{run} has no step {step}: give one from 1 to {config.train.steps}")
    check_own_data(Path(run), config)
    batch = open_corpus(config).batches.batch(step - 1)
    rows = []
    with evaluating(model):
        for index, row in enumerate(batch.split(1)):
            here = row.to(model.device)
            loss = model.loss(here.inputs, here.targets, "sum", **here.keywords())
            scored = row.scored
            rows.append(Row(index, scored, float(loss) / max(scored, 1), text_of(row, tokenizer)))
    return rows


def text_of(row: Batch, tokenizer: Tokenizer) -> str:
    """How a batch's one row begins: what is given and, of a pair, what is asked for."""
    sides = [row.inputs] if row.source is None else [row.source, row.targets]
    return " → ".join(beginning(side[0].tolist(), tokenizer) for side in sides)


def beginning(ids: list[int], tokenizer: Tokenizer) -> str:
    """Text of the first tokens; ids that stand for no text, the mask token for one, left out."""
    known = [i for i in ids[:SHOWN] if i != IGNORED and i < tokenizer.vocab_size]
    return tokenizer.decode(known)
