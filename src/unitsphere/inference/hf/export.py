"""A trained model as a folder for transformers, compared with the original at the end.

The folder holds config.json (the fields of the modeling file's config, filled in), the weights in
model.safetensors, generation_config.json, the tokenizer's files, the modeling file
(`modeling_unitsphere.py`, copied as it is), and README.md, the model card.
"""

import importlib.util
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unitsphere.config import to_dict
from unitsphere.data.tokenizer import Tokenizer
from unitsphere.data.writer import publish, workspace
from unitsphere.errors import UserError
from unitsphere.files import write_tensors, write_text
from unitsphere.inference.hf.tokenizer import write_tokenizer
from unitsphere.models.config import kv_heads, mlp_size
from unitsphere.models.exported import check_exportable, exported_tensors, is_tied
from unitsphere.models.mixers import ATTENTION, mixer_names
from unitsphere.models.plans import fold_
from unitsphere.models.trunk import Transformer
from unitsphere.models.variants import EXPORTED

WEIGHTS = "model.safetensors"
MODELING = "modeling_unitsphere"
CLASSES = {
    "clm": ("AutoModelForCausalLM", "UnitsphereForCausalLM"),
    "mlm": ("AutoModelForMaskedLM", "UnitsphereForMaskedLM"),
}
TOLERANCE = 1e-4
"""Share of the largest logit by which the logits of the export may differ."""
COMPARED = 128
"""Most tokens of a row on which the two are compared."""
BLOCKS = {"ngpt": "step", "angpt": "step", "normformer": "normformer"}
"""Architecture -> kind of block; the others are pre-norm blocks."""
NORMS = {"normformer": "layer", "rezero": "none", "dyt": "dyt"}
"""Architecture -> norm; the others have RMSNorm."""
SHIFTS = {"ngpt": "unit", "angpt": "nu"}
"""Architecture -> what a token shift ends with; the others have the plain sum."""


@dataclass(frozen=True)
class Exported:
    """What was written, and how far its logits are from the original's."""

    out: str
    parameters: int
    """of the exported model: fewer than were trained, because scales are folded"""
    difference: float
    """largest difference between two logits"""
    largest_logit: float
    compared: int
    """tokens whose logits were compared"""


Card = Callable[[Exported], str]
"""The text of README.md."""


def check_transformers() -> None:
    """Raise a `UserError` unless transformers is there."""
    if importlib.util.find_spec("transformers") is None:
        raise UserError("export to hf needs transformers: pip install 'unitsphere[hf]'")


def export_hf(
    model: Transformer,
    tokenizer: Tokenizer,
    architecture: str,
    context: int,
    settings: dict[str, Any],
    out: Path,
    card: Card,
) -> Exported:
    """Write the folder `out`; `model` is folded by it, in fp32.

    `settings` is the run's config as a dict, kept in config.json so that the folder can be loaded
    here again. Raises UserError for a model that cannot be carried, for a folder that is not
    empty, and, with nothing left behind, if the logits are not those of the model.
    """
    check_transformers()
    check_exportable(model)
    with workspace(out) as aside:
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file: give --out a folder")
        if out.exists() and any(out.iterdir()):
            raise UserError(f"{out} is not empty: give --out another folder")
        made = write_folder(aside, out, model.float(), tokenizer, architecture, context, settings)
        write_text(aside / "README.md", card(made))
        publish(aside, out)
    return made


def write_folder(
    folder: Path,
    out: Path,
    model: Transformer,
    tokenizer: Tokenizer,
    architecture: str,
    context: int,
    settings: dict[str, Any],
) -> Exported:
    """All but the card; the comparison is of what `folder` then holds."""
    tokens = some_tokens(tokenizer, min(context, COMPARED)).to(model.device)
    with torch.inference_mode():
        expected = model(tokens).cpu()
    tied = is_tied(fold_(model))
    tensors, twin = exported_tensors(architecture, model)
    on_cpu = {name: tensor.cpu() for name, tensor in tensors.items()}
    write_tensors(folder / WEIGHTS, on_cpu, {"format": "pt"})
    fields = config_fields(architecture, model, tied, context)
    fields["unitsphere"] = settings | {"model": to_dict(twin)}
    write_configs(folder, model.objective, fields, tokenizer)
    write_tokenizer(folder, tokenizer, model.objective, context)
    shutil.copyfile(Path(__file__).with_name(f"{MODELING}.py"), folder / f"{MODELING}.py")
    difference = (logits_of(folder, model.objective, tokens.cpu()) - expected).abs().max().item()
    largest = expected.abs().max().item()
    if not difference <= TOLERANCE * max(largest, 1.0):
        raise UserError(
            f"the exported logits differ from the model's by {difference:.1e} (the largest is "
            f"{largest:.1f}): nothing was written; this is a mistake of the export: report it"
        )
    count = sum(tensor.numel() for tensor in tensors.values())
    return Exported(str(out), count, difference, largest, tokens.numel())


def some_tokens(tokenizer: Tokenizer, length: int) -> Tensor:
    """Two rows of ids, int64 [2, length], that begin with the separator; always the same."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(tokenizer.vocab_size, (2, length), generator=generator)
    tokens[:, 0] = tokenizer.separator
    return tokens


def write_configs(
    folder: Path, objective: str, fields: dict[str, Any], tokenizer: Tokenizer
) -> None:
    """Write config.json and generation_config.json."""
    from unitsphere.inference.hf.modeling_unitsphere import UnitsphereConfig

    auto, name = CLASSES[objective]
    separator = tokenizer.separator
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), separator)
    fields = (
        fields
        | special
        | {
            "architectures": [name],
            "dtype": "float32",
            "auto_map": {
                "AutoConfig": f"{MODELING}.UnitsphereConfig",
                "AutoModel": f"{MODELING}.UnitsphereModel",
                auto: f"{MODELING}.{name}",
            },
        }
    )
    UnitsphereConfig(**fields).save_pretrained(folder)
    if objective == "clm":
        settings = generation_config(separator, tokenizer.vocab_size, fields["vocab_size"])
        settings.save_pretrained(folder)


def generation_config(separator: int, tokens: int, vocab_size: int) -> Any:
    """How an exported model generates: never an id from `tokens` up.

    The vocabulary is rounded up, so these ids have no token.
    """
    from transformers import GenerationConfig

    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), separator)
    unused = list(range(tokens, vocab_size)) or None
    return GenerationConfig(**special, suppress_tokens=unused)


def logits_of(folder: Path, objective: str, tokens: Tensor) -> Tensor:
    """The exported model's logits, by the modeling file that was copied."""
    from transformers.utils import logging

    from unitsphere.inference.hf import modeling_unitsphere

    logging.disable_progress_bar()
    model = getattr(modeling_unitsphere, CLASSES[objective][1]).from_pretrained(folder)
    with torch.inference_mode():
        return model.eval()(tokens).logits


def config_fields(
    architecture: str, model: Transformer, tied: bool, context: int
) -> dict[str, Any]:
    """The fields of `UnitsphereConfig` for a folded model; `context` is what it was trained on."""
    config = model.config
    d, heads = config.d_model, config.n_heads
    shared = {
        "architecture": architecture,
        "vocab_size": model.head().weight.shape[0],
        "hidden_size": d,
        "intermediate_size": mlp_size(config.d_ff, d),
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads(heads, config.n_kv_heads),
        "head_dim": model.d_k,
        "max_position_embeddings": model.max_length or context,
        "is_causal": model.objective == "clm",
        "block": BLOCKS.get(architecture, "pre_norm"),
        "norm": NORMS.get(architecture, "rms"),
        "rope_theta": model.rope_base,
        "rotary_dim": model.d_rot,
        "tie_word_embeddings": tied,
        "initializer_range": getattr(config, "init_std", 1 / math.sqrt(d)),
    }
    if config.window is not None:
        shared["sliding_window"] = config.window
    if getattr(config, "token_shift", False):
        shared["token_shift"] = SHIFTS.get(architecture, "add")
    if getattr(config, "key_offset", False):
        shared["key_offset"] = True
    if getattr(config, "output_norm", False):
        shared |= {"attention_output_norm": True, "mlp_output_norm": True}
    names = mixer_names(config)
    if {*names} != {ATTENTION}:
        modules: Any = zip(names, model.mixers(), strict=True)
        sizes = {name: [m.n_heads, m.K, m.V] for name, m in modules if name != ATTENTION}
        shared |= {"mixers": names, "mixer_sizes": sizes, "mixer_conv": config.recurrence.conv}
    if config.n_experts:
        shared |= {
            "num_experts": config.n_experts,
            "num_experts_per_tok": config.top_k,
            "num_shared_experts": config.shared_experts,
        }
    return shared | PARTS.get(architecture, _gpt_parts)(config, model.d_k)


def _gpt_parts(config: Any, d_k: int) -> dict[str, Any]:
    """GPT, GPT+ and what builds on them."""
    normed = getattr(config, "qk_norm", False)
    return {
        "qk_norm": normed,
        "logit_gain": normed,
        "attention_scale": 1.0 if normed else 1 / math.sqrt(d_k),
        "norm_eps": getattr(config, "norm_eps", 1e-6),
        "norm_bias": getattr(config, "beta", False),
    }


def _ngpt_parts(config: Any, d_k: int) -> dict[str, Any]:
    return {
        "qk_norm": config.qk_norm,
        "qk_scale": True,
        "attention_scale": math.sqrt(d_k),
        "step": EXPORTED[config.residual],
        "residual_gate": config.residual == "gated",
    }


def _angpt_parts(config: Any, d_k: int) -> dict[str, Any]:
    return {
        "qk_norm": True,
        "logit_gain": True,
        "step": "lerp_nu" if config.nu_alpha else "lerp",
        "hidden_act": config.activation,
    }


def _normformer_parts(config: Any, d_k: int) -> dict[str, Any]:
    return {
        "attention_scale": 1 / math.sqrt(d_k),
        "norm_eps": config.norm_eps,
        "hidden_act": config.activation,
        "positions": config.positions,
        "embedding_scale": math.sqrt(config.d_model),
        "qkv_norm": config.qkv_ln,
        "head_scale": config.head_scale,
        "attention_output_norm": config.post_attn_ln,
        "mlp_norm": config.ffn_ln,
        "residual_scale": config.res_scale,
        "post_norm": config.norm == "post",
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
    }


PARTS = {
    "ngpt": _ngpt_parts,
    "angpt": _angpt_parts,
    "normformer": _normformer_parts,
}
"""Architecture -> what its attention, residual and norms are, in the modeling file's words."""
