"""One fine-tuning at one learning rate with one seed; and all of them, kept on the disk."""

import copy
import json
import math
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from unitsphere.config import from_dict, read_json, to_dict
from unitsphere.data.labelled import padded_rows, shuffled_batches
from unitsphere.files import own_folder, write_text
from unitsphere.finetune.classify import (
    MODEL,
    class_logits,
    load_weights,
    save_weights,
    weights_of,
)
from unitsphere.finetune.data import Labelled, Parts
from unitsphere.finetune.results import Scored, Tuned, scores
from unitsphere.models.classifier import Classifier, Pool
from unitsphere.models.registry import build_from
from unitsphere.training.device import Precision, autocast, commit, pick_precision
from unitsphere.training.load import LoadedRun
from unitsphere.training.optim import OptimConfig, build_optimizer
from unitsphere.training.optim.constraint import constrain
from unitsphere.training.optim.schedule import ScheduleConfig, factor, warmup_steps
from unitsphere.training.step import train_step

SCHEDULE = ScheduleConfig(kind="linear", warmup=0.1)
"""As BERT is fine-tuned (arXiv 1810.04805): warm-up over a tenth of the updates, then linear."""


@dataclass(frozen=True)
class Fit:
    """How a classifier is trained, except for rate and seed.

    `optim` is the pre-training's; its head_by_frequency is only for a head of tokens.
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
    """Train in place, under the body's own constraint; False if the loss is NaN or infinite.

    Each update is `training.step.train_step`. The head starts from `seed`, which also orders the
    batches.
    """
    classifier.head.reset(torch.Generator(classifier.device).manual_seed(seed))
    torch.manual_seed(seed)  # dropout, if the body has any
    optim = how.optim_at(lr)
    steps = how.epochs * math.ceil(len(train) / how.batch)
    optimizer = build_optimizer(classifier, optim)
    warmup = warmup_steps(SCHEDULE, steps)
    constrain(classifier.body, optimizer, config=optim.constrained, warmup=warmup)
    precision = pick_precision("auto", classifier.device)
    classifier.train()
    order = shuffled_batches(range(len(train)), how.batch, how.epochs, seed)
    for step, indices in enumerate(order):
        part = train.select(indices)
        gradients = partial(backward, classifier, part, how.separator, precision)
        scheduled = factor(SCHEDULE, step, steps)
        try:
            train_step(classifier, optimizer, gradients, step, scheduled, optim.clip or math.inf)
        except NotFinite:
            return False
    return True


class NotFinite(ArithmeticError):
    """The loss is NaN or infinite."""


def backward(
    classifier: Classifier, part: Labelled, separator: int, precision: Precision
) -> torch.Tensor:
    """Gradients of the mean loss over some examples; that loss, detached."""
    rows = padded_rows(part.tokens, separator)
    truth = torch.tensor(part.truth, device=classifier.device)
    with autocast(classifier.device, precision):
        logits = classifier(*(row.to(classifier.device) for row in rows))
    loss = F.cross_entropy(logits.float(), truth)
    if not math.isfinite(loss.item()):
        raise NotFinite
    loss.backward()
    return loss.detach()


class Trials:
    """Trains and scores on demand; what is already on the disk is read from there.

    `body`, the pre-trained model, is copied and stays as it is; with `scratch` a model of the
    same config starts at random from each seed instead.
    """

    def __init__(
        self, out: Path, run: LoadedRun, parts: Parts, how: Fit, pool: Pool, scratch: bool
    ) -> None:
        self.out, self.run, self.parts, self.how = out, run, parts, how
        self.pool: Pool = pool
        self.scratch = scratch
        own_folder(out / "parts")

    def tuned(self, lr: float, seed: int) -> Tuned:
        """Scores on the tune part, after training if that is not done yet."""
        path = self._path(lr, seed, "tune.json")
        if not path.is_file():
            self._train(lr, seed)
        return from_dict(Tuned, read_json(path), f"{path}: ")

    def tested(self, lr: float, seed: int) -> Scored:
        """Scores on the test part. Only the best rate is asked for them."""
        path = self._path(lr, seed, "test.json")
        if not path.is_file():
            scored = self._score(self._trained(lr, seed), self.parts.test)
            write_text(path, json.dumps(to_dict(scored)) + "\n")
        return from_dict(Scored, read_json(path), f"{path}: ")

    def keep(self, lr: float, seed: int) -> None:
        """Make this classifier the folder's model, and delete the weights of all others."""
        final = self.out / MODEL
        if weights_of(final) != weights_tag(lr, seed):
            self._trained(lr, seed)
            self._path(lr, seed, "safetensors").replace(final)
        for path in (self.out / "parts").glob("*.safetensors"):
            path.unlink()

    def forget(self, lr: float) -> None:
        """Delete the weights of a rate that is not the best, of every seed."""
        for path in (self.out / "parts").glob(f"lr-{lr!r}-seed-*.safetensors"):
            path.unlink()

    def _path(self, lr: float, seed: int, ending: str) -> Path:
        return self.out / "parts" / f"lr-{lr!r}-seed-{seed}.{ending}"

    def _trained(self, lr: float, seed: int) -> Classifier:
        """The trained classifier; trained again, to the same weights, if they were dropped."""
        path = self._path(lr, seed, "safetensors")
        if not path.is_file():
            self._train(lr, seed)
        classifier = self._start(seed)
        load_weights(path, classifier)
        return classifier

    def _start(self, seed: int) -> Classifier:
        config, trained = self.run.config, self.run.model
        if self.scratch:
            body = build_from(
                config.architecture,
                config.model,
                trained.device,
                seed,
                objective=trained.objective,
            )
        else:
            body = copy.deepcopy(trained).float().requires_grad_(True)
        return Classifier(body, len(self.parts.classes), self.pool)

    def _train(self, lr: float, seed: int) -> None:
        started = time.perf_counter()
        classifier = self._start(seed)
        finite = fit(classifier, self.parts.train, self.how, lr, seed)
        tune = self._score(classifier, self.parts.tune)
        tune = tune if finite and math.isfinite(tune.loss) else None
        seconds = time.perf_counter() - started
        save_weights(self._path(lr, seed, "safetensors"), classifier, weights_tag(lr, seed))
        result = Tuned(tune, round(seconds, 3), commit())
        write_text(self._path(lr, seed, "tune.json"), json.dumps(to_dict(result)) + "\n")
        said = f"tune loss {tune.loss:.4f}" if tune else "the loss became NaN or infinite"
        print(f"lr {lr:g}, seed {seed}: {said}, {seconds:.0f}s", file=sys.stderr)

    def _score(self, classifier: Classifier, part: Labelled) -> Scored:
        logits = class_logits(classifier, part.tokens, self.how.separator)
        found = scores(part.truth, logits.argmax(-1).tolist(), len(self.parts.classes))
        loss = float(F.cross_entropy(logits, torch.tensor(part.truth)))
        return Scored(**found, loss=loss)


def weights_tag(lr: float, seed: int) -> str:
    """The metadata of a file of weights."""
    return f"lr {lr!r}, seed {seed}"
