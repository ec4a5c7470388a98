"""A folded model's tensors under the names of its exported form, and back, bit for bit.

Exported folders (inference/hf) hold the weights of a folded model (`plans.fold_`) under the
names that transformers' own models use. Both directions use the twin: the model, on the meta
device, that is left when everything that can be folded is, every scale that remains has one value
an element, and the head is one matrix.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unitsphere.errors import UserError
from unitsphere.models.gpt import GPTConfig
from unitsphere.models.mixers import mixer_names
from unitsphere.models.parts import RMSNorm, Scale, ScaleConfig
from unitsphere.models.plans import fold_
from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Transformer
from unitsphere.models.variants import EXPORTED
from unitsphere.ops.linear import scale_rows, unless_one

NAMES = {
    "attention.norm": "self_attn.norm",
    "gain.value": "norm.weight",
    "W_up.value": "up_proj.weight",
    "b.value": "up_proj.bias",
    "E": "model.embed_tokens",
    "E_in": "model.embed_tokens",
    "P": "model.embed_positions",
    "blocks": "model.layers",
    "norm": "model.norm",
    "E_out": "lm_head",
    "W_h": "lm_head",
    "attention": "self_attn",
    "W_q": "q_proj",
    "W_k": "k_proj",
    "W_v": "v_proj",
    "W_o": "o_proj",
    "W_p": "o_proj",
    "W_u": "up_proj",
    "W_1": "up_proj",
    "W_nu": "gate_proj",
    "W_z": "gate_proj",
    "W_3": "gate_proj",
    "W_oMLP": "down_proj",
    "W_d": "down_proj",
    "W_2": "down_proj",
    "W_r": "proj",
    "W_a": "a_proj",
    "W_b": "b_proj",
    "W_x": "x_proj",
    "W_B": "B_proj",
    "W_C": "C_proj",
    "W_dt": "dt_proj",
    "W_low": "low_proj",
    "norm_A": "attention_norm",
    "LN_1": "attention_norm",
    "norm_M": "mlp_norm",
    "LN_2": "mlp_norm",
    "LN_a": "attention_output_norm",
    "norm_oA": "attention_output_norm",
    "norm_oM": "mlp_output_norm",
    "LN_f": "norm",
    "LN_q": "q_norm",
    "LN_k": "k_norm",
    "LN_v": "v_norm",
    "alpha_A.stored": "alpha_attention",
    "alpha_M.stored": "alpha_mlp",
    "w_A.stored": "gate_attention",
    "w_M.stored": "gate_mlp",
    "s_qk.stored": "qk_scale",
    "g.stored": "logit_gain",
    "gamma.gain": "head_scale",
    "lambda_.gain": "residual_scale",
    "shift.s.stored": "model.token_shift.scale",
    "shift.w.stored": "model.token_shift.gate",
    "gain": "weight",
}
"""Parts of names here -> there."""

MIXERS = {"attention", "gdn", "mamba2", "gla"}
"""Those that the exported form has."""
OWN_TOKENIZER = "run_tokenizer.json"
"""File of an exported folder: the run's tokenizer as it was."""
MASK_TOKEN = "<mask>"
"""What a masked model's exported tokenizer calls the token after its last."""

_PART = re.compile(r"(?<![^.])(" + "|".join(map(re.escape, NAMES)) + r")(?![^.])")
HEADS = ("E_out", "W_h")


def exported_name(name: str) -> str:
    """The name of a tensor of the twin in an exported folder.

    >>> exported_name("blocks.0.attention.W_q.weight")
    'model.layers.0.self_attn.q_proj.weight'
    """
    return _PART.sub(lambda match: NAMES[match[1]], name).removesuffix(".value")


def check_exportable(model: Transformer) -> None:
    """Raise a `UserError` with the reason for what the exported form does not have."""
    if reason := not_exportable(model):
        raise UserError(f"cannot export {reason}; keep the run folder for it")


def not_exportable(model: Transformer) -> str:
    """What a model has that the exported form does not; empty if there is nothing."""
    reasons = {
        "objective": "an encoder-decoder (objective seq2seq): its exported form is a single stack",
        "residual": "the residual '{}': its exported form has lerp, lerp_nu, add and gated",
        "mixers": "the mixers '{}': its exported form has attention, gdn, mamba2 and gla",
        "attention_factor": "attention_factor: the number of keys that a query sees is not known "
        "to transformers' attention kernels",
        "softcap": "softcap {}: its exported form has logits without a cap",
        "gated": "GPT's gates (model.gated): its exported form has none in pre-norm blocks",
        "value_embeddings": "value embeddings (model.value_embeddings): its exported form has none",
        "bigram_rows": "an embedding of pairs (model.bigram_rows {}): its exported form has none",
        "offset": "model.key_offset beside model.window: transformers' cache has no key from "
        "before the window",
        "window": "model.window 1: transformers' cache keeps every token for it",
        "ungated": "GPT's activation 'relu2': its exported form has SwiGLU in pre-norm blocks",
    }
    config = model.config
    carried = {
        "residual": tuple(EXPORTED),
        "attention_factor": (False,),
        "softcap": (None,),
        "gated": (False,),
        "value_embeddings": (False,),
        "bigram_rows": (0,),
    }
    wrong = [key for key, fine in carried.items() if getattr(config, key, fine[0]) not in fine]
    if isinstance(config, GPTConfig) and config.activation == "relu2":
        wrong.append("ungated")
    if getattr(config, "key_offset", False) and config.window is not None:
        wrong.append("offset")
    if config.window == 1 and model.objective == "clm":  # its cache keeps the last 1 - 1 = all
        wrong.append("window")
    if not {*mixer_names(config)} <= MIXERS:
        wrong.insert(0, "mixers")
    if model.objective == "seq2seq":
        wrong.insert(0, "objective")
    return reasons[wrong[0]].format(getattr(config, wrong[0], "")) if wrong else ""


def is_tied(model: Transformer) -> bool:
    """Whether the folded model's head is its input embedding and nothing else."""
    if not model.config.tied:
        return False
    scale = model.head().scale
    # DyT's scale and GPT's norm, which only the input has.
    rescaled = isinstance(getattr(model, "s", None), Scale)
    normed = isinstance(getattr(model, "norm_E", None), RMSNorm)
    return unless_one(scale) is None and not rescaled and not normed


def twin_config(config: Any, tied: bool) -> Any:
    """The model config of the twin of a model with `config`."""
    forms = {
        "alpha": ScaleConfig("vector"),
        "s_qk": ScaleConfig("vector"),
        "g": "head",
        "signed_alpha": True,
        "normalize_in_forward": False,
        "embedding_norm": False,
        "tied": tied,
    }
    have = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **{k: v for k, v in forms.items() if k in have})


def twin(architecture: str, config: Any, objective: Any) -> Transformer:
    """The twin of that config, on the meta device."""
    return fold_(build_from(architecture, config, "meta", objective=objective))


def exported_tensors(architecture: str, model: Transformer) -> tuple[dict[str, Tensor], Any]:
    """What an exported folder holds of a folded model: its tensors, and the twin's config.

    The tensors give the same logits as the folded model. Raises UserError for what cannot be
    carried.
    """
    check_exportable(model)
    config = twin_config(model.config, is_tied(model))
    values = _values(model)
    found = {}
    for name, like in twin(architecture, config, model.objective).state_dict().items():
        found[exported_name(name)] = values[name].expand(like.shape).contiguous()
    return found, config


def _values(model: Transformer) -> dict[str, Tensor]:
    """The folded model's tensors by name; scales as they act, the head as one matrix."""
    head, first = model.head(), next(model.parameters())
    matrix = scale_rows(head.weight, head.scale)
    values = model.state_dict() | {f"{name}.weight": matrix for name in HEADS}
    for name, module in model.named_modules():
        if isinstance(module, Scale):
            values[f"{name}.stored"] = torch.as_tensor(
                module(), dtype=first.dtype, device=first.device
            )
    scale = getattr(model, "s", None)
    if isinstance(scale, Scale):
        values["E_in.weight"] = values["E_in.weight"] * scale()
    norm = getattr(model, "norm_E", None)
    if isinstance(norm, RMSNorm):
        values["E_in.weight"] = norm(values["E_in.weight"])
    return values


def load_exported(
    architecture: str, config: Any, objective: Any, tensors: Mapping[str, Tensor]
) -> Transformer:
    """The folded model of an exported folder's tensors, with the same logits.

    Raises UserError if they are not those of the twin of `config`.
    """
    model = twin(architecture, config, objective)
    names = {exported_name(name): name for name in model.state_dict()}
    if odd := sorted(set(names) ^ set(tensors)):
        raise UserError(f"the exported weights are not those of its config: see {odd[0]}")
    state = {own: tensors[name] for name, own in names.items()}
    for own, tensor in state.items():
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            raise UserError(f"the exported {exported_name(own)} does not hold finite numbers")
    for own, like in model.state_dict().items():
        if state[own].numel() != like.numel():
            raise UserError(f"the exported {exported_name(own)} has another size than its config")
        state[own] = state[own].reshape(like.shape)
    model.load_state_dict(state, assign=True)
    return fold_(model)  # what a folded model keeps besides its tensors
