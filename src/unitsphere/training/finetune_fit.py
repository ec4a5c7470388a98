"""One fine-tuning: a classifier trained at one learning rate with one seed, and its predictions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_

from unitsphere.data.labelled import padded_rows, shuffled_batches
from unitsphere.models.classifier import Classifier
from unitsphere.training.constraint import constrain
from unitsphere.training.device import autocast, pick_precision
from unitsphere.training.optim import OptimConfig, build_optimizer
from unitsphere.training.schedule import ScheduleConfig, factor, warmup_steps

SCHEDULE = ScheduleConfig(kind="linear", warmup=0.1)
"""As BERT is fine-tuned (arXiv 1810.04805): warm-up over a tenth of the updates, then linear."""


@dataclass(frozen=True)
class Labelled:
    """Token sequences (int64, each [length]) and the class of each."""

    tokens: list[np.ndarray]
    truth: list[int]

    def __len__(self) -> int:
        return len(self.truth)

    def select(self, indices: Sequence[int]) -> "Labelled":
        """The examples at `indices`."""
        return Labelled([self.tokens[i] for i in indices], [self.truth[i] for i in indices])


@dataclass(frozen=True)
class Fit:
    """How a classifier is trained, but for rate and seed.

    `optim` is the pre-training's, of which head_by_frequency is for its head of tokens alone.
    """

    optim: OptimConfig
    epochs: int
    batch: int
    separator: int

    def optim_at(self, lr: float) -> OptimConfig:
        """The optimizer with another peak rate; Muon's second rate keeps its ratio to the first."""
        second = self.optim.adam_lr
        return replace(
            self.optim, lr=lr, adam_lr=None if second is None else second * lr / self.optim.lr
        )


def fit(classifier: Classifier, train: Labelled, how: Fit, lr: float, seed: int) -> bool:
    """Train in place, under the body's own constraint; False if the loss became no number.

    The head starts from `seed`, which also orders the batches.
    """
    classifier.head.reset(torch.Generator(classifier.device).manual_seed(seed))
    torch.manual_seed(seed)  # dropout, if the body has any
    optim = how.optim_at(lr)
    steps = how.epochs * math.ceil(len(train) / how.batch)
    optimizer = build_optimizer(classifier, optim)
    warmup = warmup_steps(SCHEDULE, steps)
    constrain(classifier.body, optimizer, config=optim.constraint, warmup=warmup)
    precision = pick_precision("auto", classifier.device)
    classifier.train()
    order = shuffled_batches(range(len(train)), how.batch, how.epochs, seed)
    for step, indices in enumerate(order):
        rows = padded_rows([train.tokens[i] for i in indices], how.separator)
        truth = torch.tensor([train.truth[i] for i in indices], device=classifier.device)
        with autocast(classifier.device, precision):
            logits = classifier(*(part.to(classifier.device) for part in rows))
        loss = F.cross_entropy(logits.float(), truth)
        if not math.isfinite(loss.item()):
            return False
        loss.backward()
        clip_grad_norm_(classifier.parameters(), optim.clip or math.inf)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor(SCHEDULE, step, steps)
        optimizer.step()
        optimizer.zero_grad()
    return True


@torch.no_grad()
def class_logits(
    classifier: Classifier, tokens: Sequence[np.ndarray], separator: int, rows: int = 64
) -> torch.Tensor:
    """Logits [examples, classes] on the CPU, in fp32; sequences of like length go together."""
    classifier.eval()
    order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
    found = torch.empty(len(tokens), classifier.head.weight.shape[0])
    for start in range(0, len(order), rows):
        indices = order[start : start + rows]
        batch = padded_rows([tokens[i] for i in indices], separator)
        found[indices] = classifier(*(part.to(classifier.device) for part in batch)).float().cpu()
    return found
