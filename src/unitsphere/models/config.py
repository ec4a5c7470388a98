"""What the configs of all architectures share: the sizes of a model, and their checks."""

import math
from dataclasses import dataclass

from unitsphere.errors import UserError


@dataclass(frozen=True)
class RecurrenceConfig:
    """Sizes of the recurrent token mixers that `model.mixers` may name."""

    n_heads: int | None = None
    """heads; none: the mixer's own number, for gdn model.n_heads"""
    d_key: int | None = None
    """rows of a head's state; none: the mixer's own number, for gdn d_model/model.n_heads"""
    d_value: int | None = None
    """columns of a head's state; none: the mixer's own number, for gdn d_model/model.n_heads"""
    conv: int = 4
    """tokens that the short convolution sees: itself and those before"""

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if value is not None and value < 1:
                raise UserError(f"model.recurrence.{key} must be at least 1: {value}")


@dataclass(frozen=True)
class ModelConfig:
    """The settings that every architecture has; its own config adds to them."""

    vocab_size: int | None = None
    """V; none: as the tokenizer, rounded up to a multiple of 64"""
    d_model: int = 128
    """width of the hidden state"""
    n_layers: int = 4
    """blocks"""
    n_heads: int = 4
    """attention heads; must divide d_model"""
    n_kv_heads: int | None = None
    """heads of keys and values, each for n_heads/n_kv_heads heads of queries; none: n_heads"""
    window: int | None = None
    """tokens that each sees: itself and those before, in an encoder on either side; none: all"""
    d_ff: int | None = None
    """width of the MLP, or of each expert; none: 4·d_model"""
    n_experts: int = 0
    """experts in the place of each MLP, of which a token uses top_k; 0: one MLP for all tokens"""
    top_k: int = 2
    """with `n_experts`: how many of them each token uses"""
    shared_experts: int = 1
    """with `n_experts`: further experts, which every token uses"""
    balance: float = 1e-3
    """with `n_experts`: c, by how much a step moves the bias that evens out loads; 0: no bias"""
    mixers: str = "attention"
    """token mixers of the layers by name, again from the first when the names are used up"""
    recurrence: RecurrenceConfig = RecurrenceConfig()
    """sizes of the recurrent ones among them"""
    tied: bool = False
    """use the input embedding as output head"""


def check_shape(config: ModelConfig) -> None:
    """Raise UserError for a width, a depth or a number of heads below 1, and for numbers with which
    no start can be drawn or all is NaN."""
    for key in ("d_model", "n_layers", "n_heads"):
        if (value := getattr(config, key)) < 1:
            raise UserError(f"model.{key} must be at least 1: {value}")
    for key in ("init_std", "embed_std", "norm_eps"):
        if not 0 <= (value := getattr(config, key, 0.0)) < math.inf:
            raise UserError(f"model.{key} must be a number from 0 on: {value}")
    if not 0 < (value := getattr(config, "rope_base", 1.0)) < math.inf:
        raise UserError(f"model.rope_base must be a number above 0: {value}")


def head_size(d_model: int, n_heads: int) -> int:
    """d_k = d_model/H; a `UserError` unless H divides d_model."""
    if n_heads < 1 or d_model % n_heads:
        raise UserError(
            f"model.d_model {d_model} is not divisible by model.n_heads {n_heads}: "
            "change one of them"
        )
    return d_model // n_heads


def kv_heads(n_heads: int, n_kv_heads: int | None) -> int:
    """Heads of keys and values: n_heads if none are given; a `UserError` unless they divide it."""
    if n_kv_heads is not None and (n_kv_heads < 1 or n_heads % n_kv_heads):
        raise UserError(
            f"model.n_heads {n_heads} is not divisible by model.n_kv_heads {n_kv_heads}: "
            "change one of them"
        )
    return n_heads if n_kv_heads is None else n_kv_heads


def mlp_size(d_ff: int | None, d_model: int) -> int:
    """The MLP's width: 4·d_model if none is given; a `UserError` unless it is positive."""
    if d_ff is not None and d_ff < 1:
        raise UserError(f"model.d_ff must be at least 1: {d_ff}; leave it out for 4·d_model")
    return 4 * d_model if d_ff is None else d_ff


def bigram_size(bigram_dim: int | None, d_model: int) -> int:
    """The width of E_2: a quarter of d_model if none is given; a `UserError` unless positive."""
    if bigram_dim is not None and bigram_dim < 1:
        raise UserError(
            f"model.bigram_dim must be at least 1: {bigram_dim}; leave it out for d_model/4"
        )
    return max(d_model // 4, 1) if bigram_dim is None else bigram_dim


def rotary_size(d_k: int, fraction: float) -> int:
    """How many dimensions of a head RoPE rotates: the largest even number up to d_k·fraction.

    Raises UserError for a fraction that is not between 0 and 1.
    """
    if not 0 <= fraction <= 1:
        raise UserError(f"model.rotary_fraction must be between 0 and 1: {fraction}")
    return 2 * int(round(d_k * fraction, 6) // 2)  # 100 · 0.58 is a little less than 58


def offset_start(d_k: int, fraction: float) -> int:
    """The first dimension of a head that RoPE does not rotate, for `model.key_offset`.

    Raises UserError where RoPE rotates all of them, or none.
    """
    d_rot = rotary_size(d_k, fraction)
    if not 0 < d_rot < d_k and d_k < 4:
        raise UserError(
            f"model.key_offset does not fit heads of {d_k}, of which RoPE cannot rotate half: set "
            "a smaller model.n_heads, for heads of at least 4"
        )
    if not 0 < d_rot < d_k:
        raise UserError(
            "model.key_offset moves the dimensions of a head that RoPE does not rotate: "
            f"set model.rotary_fraction to 0.5, instead of {fraction:g}"
        )
    return d_rot


def vocabulary(size: int | None) -> int:
    """V; a `UserError` if it is still to be taken from a tokenizer."""
    if size is None or size < 1:
        raise UserError(f"model.vocab_size is {size}: give the number of tokens")
    return size


def output_std(std: float, n_layers: int, cross: bool) -> float:
    """std/√(the number of sublayers that add to h), 2 per layer, or 3 with cross-attention."""
    return std / math.sqrt((3 if cross else 2) * n_layers)
