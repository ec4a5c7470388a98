"""A model back from a folder that `unitsphere export` wrote, or that transformers saved again.

The logits are those of the exported model, bit for bit. What was folded stays folded: the weights
are no unit vectors, so the model is for inference and evaluation; the run folder alone can be
trained on.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from unitsphere.config import read_json
from unitsphere.data.tokenizer import JsonTokenizer, Tokenizer, load_tokenizer
from unitsphere.errors import UserError
from unitsphere.files import check_given
from unitsphere.models.exported import MASK_TOKEN, OWN_TOKENIZER, load_exported
from unitsphere.models.trunk import Transformer
from unitsphere.training.config import RunConfig
from unitsphere.training.recipes import saved_config

MODEL_TYPE = "unitsphere"


def is_exported(document: Any) -> bool:
    """Whether a config.json is that of an exported folder."""
    return isinstance(document, dict) and document.get("model_type") == MODEL_TYPE


def load_folder(path: Path, device: torch.device) -> tuple[Transformer, Tokenizer, RunConfig]:
    """Model, tokenizer and config of the exported folder `path`; a `UserError` if it is damaged."""
    own = read_json(path / "config.json").get(MODEL_TYPE)
    if own is None:
        raise UserError(f"{path}/config.json has lost its key '{MODEL_TYPE}': export the run again")
    config = saved_config(own, f"{path}/config.json")
    tensors = read_weights(path)
    if config.model.n_layers > len(tensors):  # laying out a billion layers would not end
        raise UserError(f"{path} declares {config.model.n_layers} layers, and holds fewer tensors")
    model = load_exported(config.architecture, config.model, config.objective, tensors)
    return model.to(device).eval(), read_tokenizer(path), config


def read_tokenizer(path: Path) -> Tokenizer:
    """The run's tokenizer; where transformers has saved the folder again, what it made of it."""
    if (path / OWN_TOKENIZER).is_file():
        return load_tokenizer(path / OWN_TOKENIZER, path)
    file = path / "tokenizer.json"
    document = read_json(file)
    added = document.get("added_tokens") if isinstance(document, dict) else None
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise UserError(f"{file} has no list of added_tokens: export the run again")
    if not any(token.get("content") == MASK_TOKEN for token in added):
        return load_tokenizer(file, path)
    document["added_tokens"] = [token for token in added if token.get("content") != MASK_TOKEN]
    return JsonTokenizer(json.dumps(document), str(file))


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a folder's model*.safetensors; a `UserError` if there are none."""
    found: dict[str, Tensor] = {}
    for file in sorted(path.glob("model*.safetensors")):
        try:
            found |= load_file(check_given(file, path))
        except (SafetensorError, MemoryError) as error:
            raise UserError(f"cannot read {file}: {error}") from error
    if not found:
        raise UserError(f"{path} has no model.safetensors: export the run again")
    return found
