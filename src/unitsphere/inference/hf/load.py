"""An exported folder's model and tokenizer for transformers; the folder's own Python is not run.

transformers would run the modeling file of a folder, whoever has written it. Here the package's own
classes take the weights, and of config.json only the fields that these classes declare: a config
can name code, kernels and other weights that transformers would fetch. The tokenizer is made of
tokenizer.json, and the settings of the generation are those that an export has.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from unitsphere.config import read_json
from unitsphere.data.tokenizer import JsonTokenizer
from unitsphere.errors import UserError
from unitsphere.files import read_bytes, read_text
from unitsphere.inference.hf.export import MODELING, generation_config
from unitsphere.inference.hf.modeling_unitsphere import UnitsphereConfig, UnitsphereForCausalLM

FLAG = "--trust-remote-code"


def load_trusted(folder: Path) -> tuple[Any, Backend]:
    """Model and tokenizer as transformers loads them: the folder's modeling file runs."""
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    return model.eval(), tokenizer.backend_tokenizer


def load_own(folder: Path, tensors: Mapping[str, Tensor]) -> tuple[Any, Backend]:
    """Model and tokenizer of the exported folder, by the classes of this package.

    tensors: the folder's weights by name. Raises UserError for a folder with another modeling
    file, and for one whose parts do not fit together.
    """
    fields = read_json(folder / "config.json")
    check_modeling(folder, fields)
    text = JsonTokenizer(
        read_text(folder / "tokenizer.json", folder), str(folder / "tokenizer.json")
    )
    model = own_model(folder, fields, tensors)
    if text.vocab_size > model.config.vocab_size:
        raise UserError(
            f"{folder}/tokenizer.json has ids up to {text.vocab_size - 1}, and the model takes "
            f"{model.config.vocab_size} of them: export the run again"
        )
    settings = generation_config(text.separator, text.vocab_size, model.config.vocab_size)
    model.generation_config = settings
    model.config.bos_token_id = text.separator
    return model, Backend.from_str(text.json)


def check_modeling(folder: Path, fields: Mapping[str, Any]) -> None:
    """Raise UserError if the folder's code is not the modeling file that this version writes."""
    named = fields.get("auto_map") or {}
    modules = [str(name).partition(".")[0] for name in named.values()]
    file = folder / f"{MODELING}.py"
    own = Path(__file__).with_name(f"{MODELING}.py").read_bytes()
    foreign = [module for module in modules if module != MODELING]
    if file.exists() and read_bytes(file, folder) != own:
        foreign.insert(0, MODELING)
    if foreign:
        raise UserError(
            f"{folder}/{foreign[0]}.py is not the file that this version of unitsphere writes, so "
            f"it is not run: export the run again, or add {FLAG} to run it if you trust its author"
        )


def own_model(folder: Path, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """The model of a config's fields with these weights, in fp32; a `UserError` if they differ."""
    known = {name: fields[name] for name in UnitsphereConfig.__annotations__ if name in fields}
    layers = {name.split(".")[2] for name in tensors if name.startswith("model.layers.")}
    try:
        if known.get("num_hidden_layers") != len(layers):  # before any is made: it may say 10^9
            raise ValueError(f"it has {len(layers)} layers")
        with torch.device("meta"):  # only shapes: the config may ask for any size
            model = UnitsphereForCausalLM(UnitsphereConfig(**known))
        if model.config.tie_word_embeddings:
            tensors = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
        model.load_state_dict(tensors, strict=True, assign=True)
    # A config of a stranger fails wherever its values are used first.
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise UserError(
            f"the weights of {folder} are not those of its config.json "
            f"({' '.join(line.strip() for line in lines)[:200]}): export the run again"
        ) from error
    return model.float().eval().requires_grad_(False)
