"""Fine-tuning for classification: rates chosen on a tune part, scores reported on a test part.

Every rate is trained with every seed on the train part and scored on the tune part. The rate with
the best mean score there (a tie: the lower mean loss there) is the one reported, and only its
models ever see the test part. What is finished is kept: the same command trains the rest.

config.json         what was trained, on what: all that another call must share to resume
tokenizer.json      the run's
model.safetensors   the classifier at the best rate, with the first seed
results.json        every score (results.py)
parts/              a rate and seed each: tune scores, test scores; weights while needed
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from torch import nn

from unitsphere.config import read_json, to_dict
from unitsphere.data.tasks import Fields, fields_of
from unitsphere.errors import UserError
from unitsphere.files import write_text
from unitsphere.finetune.classify import CONFIG, TOKENIZER
from unitsphere.finetune.data import FinetuneConfig, Parts, fingerprint, open_parts
from unitsphere.finetune.fit import Fit, Trials
from unitsphere.finetune.results import Tuned, best_rate, document
from unitsphere.models.classifier import Pool
from unitsphere.training.device import environment
from unitsphere.training.folder import disk_errors, locked
from unitsphere.training.load import LoadedRun, load_run

POOLS: dict[str, Pool] = {"mlm": "mean", "clm": "last"}
"""How a body's features are pooled unless asked otherwise: a causal one has seen all at its last
token; in masked pre-training no token of an encoder learns to stand for the whole text."""

TOLD = ("run", "data", "test")
"""Keys of config.json that are not compared: paths, whose contents are compared instead."""
READING = ("unlabelled", "ragged", "reshape")
"""Keys of the fields that the task's name decides."""


def finetune(config: FinetuneConfig, out: Path | str) -> dict[str, Any]:
    """Fine-tune into the folder `out`, or resume there; returns the document of its results.json.

    Raises UserError for a run, files or settings that cannot be used.
    """
    out = Path(out)
    fields = fields_of(config.task, config.text, config.text2, config.label)
    with locked(out), disk_errors(out):
        run = load_run(config.run, config.device, trainable=True)  # an exported folder is not
        pool, context = pooling(config, run), run.config.data.context
        length = min(context, run.model.max_length or context)  # as the run was trained
        parts = open_parts(config.data, config.test, fields, run.tokenizer, length)
        settings = settings_of(config, run, fields, parts, pool, length)
        check_settings(out, settings)
        write_text(out / CONFIG, json.dumps(settings, indent=2) + "\n")
        run.tokenizer.save(out / TOKENIZER)
        say(config, parts, length)
        how = Fit(run.config.optim, config.epochs, config.batch, run.tokenizer.separator)
        trials = Trials(out, run, parts, how, pool, config.scratch)
        tuned = tune(trials, config)
        best = best_rate(tuned, config.metric)
        tests = {seed: trials.tested(best, seed) for seed in config.seed}
        trials.keep(best, config.seed[0])
        results = document(config, parts, tuned, best, tests)
        results |= {"pool": pool, "environment": environment(run.model.device)}
        write_text(out / "results.json", json.dumps(results, indent=2) + "\n")
    return results


def pooling(config: FinetuneConfig, run: LoadedRun) -> Pool:
    """How features are pooled: as asked, else by the run's objective."""
    objective = run.model.objective
    if objective not in POOLS:
        raise UserError(
            f"{config.run} was trained as {objective}: fine-tune a masked (mlm) or causal (clm) "
            "language model"
        )
    return config.pool or POOLS[objective]


def say(config: FinetuneConfig, parts: Parts, length: int) -> None:
    """Prints on stderr what will be trained, and what was cut off."""
    sizes = ", ".join(f"{n:,} to {part}" for part, n in parts.sizes().items())
    what = "random weights" if config.scratch else config.run
    print(f"{what}: {len(parts.classes)} classes; examples: {sizes}", file=sys.stderr)
    if parts.truncated:
        print(
            f"{parts.truncated:,} examples are longer than the run's {length} tokens: truncated",
            file=sys.stderr,
        )
    if parts.overlap():
        print(
            f"{parts.overlap():,} test examples are word for word in the training data",
            file=sys.stderr,
        )


def tune(trials: Trials, config: FinetuneConfig) -> dict[float, list[Tuned]]:
    """Rate -> how each seed does on the tune part; keeps weights of the best rate so far."""
    tuned: dict[float, list[Tuned]] = {}
    for lr in config.lr:
        tuned[lr] = [trials.tuned(lr, seed) for seed in config.seed]
        usable = {rate: found for rate, found in tuned.items() if all(t.tune for t in found)}
        best = best_rate(usable, config.metric) if usable else None
        for rate in tuned:
            if rate != best:
                trials.forget(rate)
    return tuned


def check_settings(out: Path, settings: dict[str, Any]) -> None:
    """Raise UserError unless `out` is empty, or holds a fine-tuning with these settings."""
    if not any(not path.name.startswith(".") for path in out.iterdir()):
        return
    saved = read_json(out / CONFIG) if (out / CONFIG).is_file() else None
    if not isinstance(saved, dict) or "data_sha256" not in saved:
        raise UserError(f"{out} is not empty and does not hold a fine-tuning: give another --out")
    odd = [key for key in settings if key not in TOLD and saved.get(key) != settings[key]]
    if odd:
        raise UserError(
            f"{out} holds a fine-tuning with other settings ({', '.join(odd)}): repeat its own to "
            "resume it, or give another --out"
        )


def settings_of(
    config: FinetuneConfig, run: LoadedRun, fields: Fields, parts: Parts, pool: Pool, length: int
) -> dict[str, Any]:
    """config.json: all that decides the results, except the rates and seeds."""
    test = config.test and fingerprint(config.test)
    settings = {
        "run": config.run,
        "data": config.data,
        "test": config.test,
        "start": "random" if config.scratch else weights_fingerprint(run.model),
        "data_sha256": fingerprint(config.data),
        "test_sha256": test,
        "task": config.task,
        "fields": {k: v for k, v in to_dict(fields).items() if k not in READING},
        "classes": parts.classes,
        "pool": pool,
        "length": length,
        "epochs": config.epochs,
        "batch": config.batch,
        "objective": run.model.objective,
        "model": to_dict(run.config),
    }
    return json.loads(json.dumps(settings))  # tuples as the lists that a file gives back


def weights_fingerprint(model: nn.Module) -> str:
    """sha256 over the model's tensors."""
    whole = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        whole.update(name.encode())
        whole.update(tensor.float().cpu().numpy().tobytes())
    return whole.hexdigest()
