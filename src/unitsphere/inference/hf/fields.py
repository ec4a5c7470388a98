"""What config.json of an exported folder says of a model: the modeling file's config, filled in."""

import math
from typing import Any

from unitsphere.models.parts import kv_heads, mlp_size
from unitsphere.models.trunk import Transformer

BLOCKS = {"ngpt": "step", "angpt": "step", "normformer": "normformer"}
"""Architecture -> kind of block; the others are pre-norm blocks."""
NORMS = {"normformer": "layer", "rezero": "none", "dyt": "dyt"}
"""Architecture -> norm; the others have RMSNorm."""


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
        shared |= {
            "sliding_window": config.window,
            "layer_types": ["sliding_attention"] * config.n_layers,
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
    steps = {"lerp": "lerp_norm", "lerp_nu": "lerp_nu", "add": "add_norm", "gated": "add_norm"}
    return {
        "qk_norm": config.qk_norm,
        "qk_scale": True,
        "attention_scale": math.sqrt(d_k),
        "step": steps[config.residual],
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
