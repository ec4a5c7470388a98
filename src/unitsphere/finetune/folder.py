"""A fine-tuning's folder.

config.json         what was trained, on what: all that another call must share to resume
tokenizer.json      the run's
model.safetensors   the classifier at the best rate, with the first seed
results.json        every score (results.py)
parts/              a rate and seed each: tune scores, test scores; weights while needed
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from unitsphere.config import read_json, to_dict
from unitsphere.data.tasks import Fields
from unitsphere.errors import UserError
from unitsphere.files import aside, check_given
from unitsphere.finetune.data import FinetuneConfig, Parts, fingerprint
from unitsphere.models.classifier import Classifier, Pool
from unitsphere.training.checkpoint.tensors import check_tensors, model_tensors
from unitsphere.training.load import LoadedRun

CONFIG, RESULTS = "config.json", "results.json"
MODEL, TOKENIZER = "model.safetensors", "tokenizer.json"
TOLD = ("run", "data", "test")
"""Keys of config.json that are not compared: paths, whose contents are compared instead."""
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Kinds of numbers in a safetensors file that are floats, as its header calls them."""
READING = ("unlabelled", "ragged", "reshape")
"""Keys of the fields that the task's name decides."""


def save_weights(path: Path, model: Classifier, tag: str) -> None:
    """Write every tensor once, and what the file holds; it is complete or absent."""
    with aside(path) as temporary:
        save_file(model_tensors(model), temporary, metadata={"trained": tag})


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A file of weights, opened for reading parts; UserError if it cannot be read."""
    try:
        with safe_open(check_given(path, path.parent), framework="pt") as file:
            yield file
    except (SafetensorError, MemoryError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def weights_of(path: Path) -> str | None:
    """What a file of weights holds, or None if there is no file."""
    if not path.is_file():
        return None
    with opened(path) as file:
        return (file.metadata() or {}).get("trained")


def header(path: Path) -> dict[str, Tensor]:
    """Name -> an empty tensor of the shape and dtype that a file of weights holds of it."""
    found = {}
    with opened(path) as file:
        names = file.keys()
        for name in names:
            view = file.get_slice(name)
            dtype = FLOATS.get(view.get_dtype(), torch.int8)
            found[name] = torch.empty(view.get_shape(), dtype=dtype, device="meta")
    return found


def load_weights(path: Path, model: Classifier) -> None:
    """Fill the model in place; UserError unless the file holds its tensors."""
    tensors = model_tensors(model)
    check_tensors(tensors, header(path), str(path))
    with torch.no_grad(), opened(path) as file:
        for name, tensor in tensors.items():
            tensor.copy_(file.get_tensor(name))


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
            f"{out} holds a fine-tuning with another {', '.join(odd)}: repeat its own settings to "
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
