"""GPT, nGPT, anGPT, NormFormer, ReZero, LN-scaling and DyT for transformers, in folded form.

Written by `unitsphere export`; needs PyTorch and transformers (5.17 or newer) alone. Constants and
scales of the training are part of the weights, so three kinds of block are left (h [batch, time,
d]; F is attention, then the MLP; Norm(x) = x/‖x‖):

| block | formula | architectures |
|---|---|---|
| pre_norm | h = h + F(norm(h)) | gpt, lnscaling, dyt, rezero |
| step | a step of h by α towards Norm(F(h)), or along F(h), perhaps gated: `STEPS` | ngpt, angpt |
| normformer | h = h + LN_a(attention(LN_1(h))); h = λ⊙h + MLP(LN_2(h)); or post-norm | normformer |

In any of them a layer may have experts in the place of its MLP (`Experts`), and in the place of
attention a mixer whose state does not grow with the text (`MIXERS`).

Positions are computed in each forward pass; the only buffer is the experts' bias.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
    find_packed_sequence_indices,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    MaskedLMOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs


class UnitsphereConfig(PreTrainedConfig):
    """Shapes under transformers' names; what the blocks are made of under this file's."""

    model_type = "unitsphere"
    keys_to_ignore_at_inference = ["past_key_values"]

    architecture: str = "gpt"  # where the weights come from; decides nothing
    vocab_size: int = 256
    hidden_size: int = 128
    intermediate_size: int = 512  # of the MLP, or of each expert
    num_experts: int = 0  # in the place of each MLP; 0: one MLP for all tokens
    num_experts_per_tok: int = 2
    num_shared_experts: int = 0  # which every token uses
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    head_dim: int = 32
    max_position_embeddings: int = 2048
    sliding_window: int | None = None  # tokens that one sees, itself included; None: all
    layer_types: list[str] | None = None  # what a cache keeps of each layer; None: filled in
    mixers: list[str] | None = None  # of each layer: attention or a name of MIXERS; None: attention
    mixer_sizes: dict[str, list[int]] | None = None  # by name: heads, width of a key, of a value
    mixer_conv: int = 4  # tokens that their short convolutions see
    is_causal: bool = True
    block: str = "pre_norm"
    step: str = "lerp_norm"  # with block "step"
    residual_gate: bool = False  # with block "step": F(h) times 2σ(⟨w, h⟩)
    norm: str = "rms"  # of a pre_norm block and of the last h: rms, dyt, layer or none
    norm_eps: float = 1e-6
    norm_bias: bool = False  # with dyt
    hidden_act: str = "silu"
    positions: str = "rotary"  # or sinusoidal or learned, added to the embeddings
    rope_theta: float = 10000.0
    rotary_dim: int = 0  # dimensions of a head that RoPE rotates
    embedding_scale: float = 1.0
    token_shift: str | None = None  # "add", "unit" or "nu": `TokenShift` of the embeddings
    key_offset: bool = False  # keys' dimensions from rotary_dim on are those of the token before
    attention_scale: float = 1.0  # of q kᵀ
    qk_norm: bool = False
    qk_scale: bool = False  # nGPT's s_qk
    logit_gain: bool = False  # g of GPT+ and anGPT
    attention_output_norm: bool = False  # with block "pre_norm" or "normformer"
    mlp_output_norm: bool = False  # with block "pre_norm"
    qkv_norm: bool = False  # the rest with block "normformer"
    head_scale: bool = False
    mlp_norm: bool = False
    residual_scale: bool = False
    post_norm: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0  # of attention's weights
    initializer_range: float = 0.02
    use_cache: bool = True
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        if self.layer_types is None:
            attention = "full_attention" if self.sliding_window is None else "sliding_attention"
            mixers = self.mixers or ["attention"] * self.num_hidden_layers
            types = [attention if name == "attention" else "linear_attention" for name in mixers]
            if attention not in types:  # a cache counts the tokens of a layer that has keys
                types[:1] = ["hybrid"]
            self.layer_types = types
        super().__post_init__(**kwargs)

    @property
    def base_model_tp_plan(self) -> dict[str, str] | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How engines shard the layers' matrices; None where scales of heads, wide norms, states
        or experts would have to be sharded with them."""
        if self.block != "pre_norm" or self.logit_gain or self.mixers or self.num_experts:
            return None
        parts = {"self_attn": ("q_proj", "k_proj", "v_proj"), "mlp": ("up_proj", "gate_proj")}
        plan = {f"layers.*.{at}.{name}": "colwise" for at, names in parts.items() for name in names}
        return plan | {"layers.*.self_attn.o_proj": "rowwise", "layers.*.mlp.down_proj": "rowwise"}


def wide(x: Tensor) -> Tensor:
    """x in fp32, or as it is if that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unit_norm(x: Tensor) -> Tensor:
    """x/‖x‖ along the last axis, computed in fp32 or wider and returned so; a zero stays zero.

    It passes its gradient on: padding before a text is zero in a mixer.
    """
    x = wide(x)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / length.masked_fill(length == 0, 1.0)


def wide_linear(linear: nn.Linear, x: Tensor) -> Tensor:
    """linear(x) in fp32 or wider."""
    bias = None if linear.bias is None else wide(linear.bias)
    return F.linear(wide(x), wide(linear.weight), bias)


def relu2(x: Tensor) -> Tensor:
    """ReLU(x)²."""
    return F.relu(x).square()


ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "geglu": F.gelu, "relu2": relu2}


class RMSNorm(nn.Module):
    """weight ⊙ x/rms(x)."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        scaled = wide(x) * torch.rsqrt(
            wide(x).square().mean(-1, keepdim=True) + self.variance_epsilon
        )
        return (scaled * self.weight).to(x.dtype)


class DyT(nn.Module):
    """weight ⊙ tanh(alpha·x) (+ bias): stands in for a norm."""

    def __init__(self, hidden_size: int, bias: bool) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.5))
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.weight * torch.tanh(self.alpha * x)
        return y if self.bias is None else y + self.bias


def make_norm(config: UnitsphereConfig, width: int | None = None) -> nn.Module:
    """The norm that the config names, `hidden_size` wide unless said otherwise."""
    width = width or config.hidden_size
    if config.norm == "rms":
        return RMSNorm(width, config.norm_eps)
    if config.norm == "layer":
        return nn.LayerNorm(width, config.norm_eps)
    return DyT(width, config.norm_bias) if config.norm == "dyt" else nn.Identity()


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first dimensions of the heads x; dimension i pairs with i + rotary_dim/2."""
    half = cos.shape[-1]
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1).to(x.dtype)


def rope_table(position_ids: Tensor, rotary_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """(cos, sin) of the angles, [batch, 1, time, rotary_dim/2] each."""
    steps = torch.arange(0, rotary_dim, 2, device=position_ids.device, dtype=torch.float32)
    angles = position_ids[:, None, :, None].float() * base ** -(steps / rotary_dim)
    return angles.cos(), angles.sin()


def sinusoid(position_ids: Tensor, width: int) -> Tensor:
    """[sin ‖ cos] of positions, [batch, time, width]; an odd width ends in a zero."""
    half = width // 2
    steps = torch.arange(half, device=position_ids.device, dtype=torch.float32)
    angles = position_ids[..., None].float() * torch.exp(
        steps * (-math.log(10000.0) / max(half - 1, 1))
    )
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=-1), (0, width - 2 * half))


ENGINES = ("vllm", "sglang")
"""Attention implementations of engines that put the tokens of several texts into one row."""


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ·scaling + mask) v as [batch, time, heads, head_dim], and the weights."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    logits = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        logits = logits + attention_mask
    weights = F.dropout(wide(logits).softmax(-1), dropout).to(query.dtype)
    return (weights @ value).transpose(1, 2), weights


class Attention(nn.Module):
    """Heads of q, k, v of x; how they are scaled and normalised is the config's."""

    def __init__(self, config: UnitsphereConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        if config.key_offset and config._attn_implementation in ENGINES:
            raise ValueError(f"{config._attn_implementation} keeps the keys: no key_offset")
        self.is_causal, self.scaling = config.is_causal, config.attention_scale
        self.head_dim, heads = config.head_dim, config.num_attention_heads
        self.num_key_value_groups = heads // config.num_key_value_heads
        width, bias = config.hidden_size, config.block == "normformer"
        kv_width = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias)
        self.k_proj, self.v_proj = (nn.Linear(width, kv_width, bias) for _ in range(2))
        self.o_proj = nn.Linear(heads * self.head_dim, width, bias)
        if config.qkv_norm:
            self.q_norm = make_norm(config, width)
            self.k_norm, self.v_norm = make_norm(config, kv_width), make_norm(config, kv_width)
        if config.qk_scale:
            self.qk_scale = nn.Parameter(torch.ones(config.num_key_value_heads, 1, self.head_dim))
        if config.logit_gain:
            self.logit_gain = nn.Parameter(torch.full((heads, 1, 1), math.sqrt(self.head_dim)))
        if config.head_scale:
            self.head_scale = nn.Parameter(torch.ones(heads, 1, 1))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [batch, heads, time, head_dim] before their positions."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.config.qkv_norm:
            q, k, v = self.q_norm(q), self.k_norm(k), self.v_norm(v)
        return tuple(y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for y in (q, k, v))

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        attention_mask: Any = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = self.heads(x)
        if self.config.rotary_dim:
            q, k = rope(q, *rotation), rope(k, *rotation)
        if self.config.qk_norm:
            q, k = unit_norm(q), unit_norm(k)
        if self.config.qk_scale:
            q = q * self.qk_scale.repeat_interleave(self.num_key_value_groups, dim=0)
            k = k * self.qk_scale
        if self.config.logit_gain:
            q = q * self.logit_gain
        q, k = q.to(v.dtype), k.to(v.dtype)
        if self.config.key_offset:
            k = self.ended(k, kwargs["position_ids"])
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        if self.config.key_offset:  # the cache has each token's own key
            own, late = k.split([self.config.rotary_dim, k.shape[-1] - self.config.rotary_dim], -1)
            k = torch.cat([own, F.pad(late[..., :-1, :], (0, 0, 1, 0))], dim=-1)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation or "eager", eager_attention
        )
        kwargs |= {"scaling": self.scaling, "sliding_window": self.config.sliding_window}
        kwargs["dropout"] = self.config.attention_dropout if self.training else 0.0
        y, weights = attend(self, q, k, v, attention_mask, **kwargs)
        y = y.reshape(*x.shape[:-1], -1, self.head_dim)
        if self.config.head_scale:
            y = y * self.head_scale[..., 0]
        return self.o_proj(y.flatten(-2)), weights

    def ended(self, k: Tensor, position_ids: Tensor) -> Tensor:
        """k with 0 from rotary_dim on where the next token is at position 0: none is before it.

        Padding is known by its position -1: the next token may be in the next part of a prompt.
        """
        ends = F.pad(position_ids[:, 1:] == 0, (0, 1)) | (position_ids < 0)
        late = torch.arange(k.shape[-1], device=k.device) >= self.config.rotary_dim
        return k.masked_fill(ends[:, None, :, None] & late, 0.0)


CHUNK = 16  # tokens; D below is as large as a chunk squared, for each row of S


def scan(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, S: Tensor, beta: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """o [B, H, T, V], and the last state S [B, H, K, V], of this recurrence over T tokens:

        S = e^g S;  S = S + k ⊗ u;  o = Sᵀq,  with u = v, or u = β(v − Sᵀk) where there is a β

    q, k [B, H or 1, T, K]; v [B, H, T, V]; g [B, H, T, K or 1]; β [B, H, T, 1]. A chunk of tokens
    is computed at once: D_ij = e^(g_(j+1) + … + g_i) is left at token i of what token j has
    written, and where there is a β, the u of the chunk solve a triangular system.
    """
    out = []
    for at in range(0, q.shape[2], CHUNK):
        Q, K, V, G = (x[:, :, at : at + CHUNK] for x in (q, k, v, g))
        j = torch.arange(Q.shape[2], device=q.device)[:, None]
        i = j[:, None]
        D = G[:, :, :, None].masked_fill(i <= j, 0).cumsum(2).masked_fill(i < j, -math.inf).exp()
        of_S = G.cumsum(2).exp()  # what is left at token i of the state before the chunk
        U = V
        if beta is not None:
            b = beta[:, :, at : at + CHUNK]
            A = b * torch.einsum("bhik,bhjk,bhijk->bhij", K, K, D)
            U = torch.linalg.solve_triangular(
                A, b * (V - (of_S * K) @ S), upper=False, unitriangular=True
            )
        out.append((of_S * Q) @ S + torch.einsum("bhik,bhjk,bhijk->bhij", Q, K, D) @ U)
        S = of_S[:, :, -1, :, None] * S + (D[:, :, -1] * K).mT @ U
    return torch.cat(out, dim=2), S


def shown(x: Tensor, mask: Tensor | None) -> Tensor:
    """x [B, T, n], but 0 where the mask [B, T] is 0: padding."""
    return x if mask is None else x * mask[..., None]


class Mixer(nn.Module):
    """What mixers share: H heads, each with a state S [K, V] in fp32 or wider, which a cache keeps.

    Padding leaves no trace in it, nor does a text in those that share its row: `texts` [batch or 1,
    time] numbers them.
    """

    name: str
    norm: RMSNorm | None

    def __init__(self, config: UnitsphereConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx, self.width = layer_idx, config.mixer_conv
        self.hidden_size, self.bias = config.hidden_size, config.block == "normformer"
        self.H, self.K, self.V = (config.mixer_sizes or {})[self.name]
        self.counts = (config.layer_types or [])[layer_idx] == "hybrid"
        self.gate_proj = self.from_h(self.H * self.V)
        self.o_proj = nn.Linear(self.H * self.V, self.hidden_size, self.bias)

    def from_h(self, width: int) -> nn.Linear:
        """A matrix that reads h."""
        return nn.Linear(self.hidden_size, width, self.bias)

    def convolution(self, channels: int) -> nn.Parameter:
        """The weights of a short convolution, the last column for the token itself."""
        return nn.Parameter(torch.zeros(channels, self.width))

    def heads(self, x: Tensor) -> Tensor:
        """[B, T, H·n] -> [B, H, T, n]."""
        return x.unflatten(-1, (self.H, -1)).transpose(1, 2)

    def convolved(
        self,
        x: Tensor,
        weights: list[Any],
        cache: Any,
        texts: Tensor | None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """SiLU(Σ_j w_j ⊙ x_(t−j) + bias) of x [B, T, channels], after the inputs in the cache."""
        x, weight, past = x.mT, wide(torch.cat(weights)), self.width - 1
        if texts is not None:  # they come without a cache
            y = x * weight[:, -1:] if bias is None else x * weight[:, -1:] + bias[:, None]
            for j in range(1, min(self.width, x.shape[-1])):
                near = F.pad(texts[:, j:] == texts[:, :-j], (j, 0))[:, None]
                y = y + F.pad(x[..., :-j], (j, 0)) * near * weight[:, -1 - j, None]
            return F.silu(y).mT
        length = x.shape[-1] + past
        if cache is not None and past:
            x = cache.update_conv_state(x, self.layer_idx, conv_kernel_size=past)[..., -length:]
        x = F.pad(x, (length - x.shape[-1], 0))
        return F.silu(F.conv1d(x, weight[:, None], bias, groups=len(weight))).mT

    def scanned(
        self, cache: Any, texts: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *decay: Tensor
    ) -> Tensor:
        """o of `scan` (decay: g, and β if there is one), from the state in the cache on."""
        g = decay[0]
        if texts is not None:  # e^g is 0 where a text starts: the state before it is lost
            starts = F.pad(texts[:, 1:] != texts[:, :-1], (1, 0))
            g = g.masked_fill(starts[:, None, :, None], -math.inf)
        S = None if cache is None else cache.layers[self.layer_idx].recurrent_states[0]
        if S is None:
            S = v.new_zeros(len(v), self.H, self.K, self.V)
        o, S = scan(q, k, v, g, S, *decay[1:])
        if cache is not None:
            cache.update_recurrent_state(S, self.layer_idx)
        if cache is not None and self.counts:
            key = v.new_ones(len(v), 1, v.shape[2], 1)
            cache.update(key, key, self.layer_idx)
        return o

    def output(self, o: Tensor, z: Tensor) -> tuple[Tensor, None]:
        """W_o(norm(o) ⊙ SiLU(z)), the norm of each head; without a weight it is Norm."""
        o = unit_norm(o) if self.norm is None else self.norm(o)
        return self.o_proj(o.transpose(1, 2).flatten(2).to(z.dtype) * F.silu(z)), None


class GatedDeltaNet(Mixer):
    """`scan` with β = σ(b), g = −e^A_log·softplus(a + dt_bias).

    q, k and v are convolved, then q and k divided by their length, q by √K too.
    """

    name = "gdn"

    def __init__(self, config: UnitsphereConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        keys, values = self.H * self.K, self.H * self.V
        self.q_proj, self.k_proj, self.v_proj = map(self.from_h, (keys, keys, values))
        self.a_proj, self.b_proj = map(self.from_h, (self.H, self.H))
        self.conv_q, self.conv_k, self.conv_v = map(self.convolution, (keys, keys, values))
        self.A_log, self.dt_bias = (nn.Parameter(torch.zeros(self.H)) for _ in range(2))
        self.norm = None if config.block == "step" else RMSNorm(self.V, 1e-6)

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        texts: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """`attention_mask` [batch, time] is 0 for padding."""
        qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=-1)
        a, b, z = self.a_proj(x), self.b_proj(x), self.gate_proj(x)
        with torch.autocast(x.device.type, enabled=False):
            weights = [self.conv_q, self.conv_k, self.conv_v]
            qkv = shown(wide(qkv), attention_mask)
            qkv = self.convolved(qkv, weights, past_key_values, texts)
            q, k, v = map(self.heads, qkv.split([len(weight) for weight in weights], dim=-1))
            g = -wide(self.A_log).exp() * F.softplus(wide(a) + self.dt_bias)
            decay = [self.heads(shown(y, attention_mask)) for y in (g, wide(b).sigmoid())]
            q, k = unit_norm(q) / math.sqrt(self.K), unit_norm(k)
            o = self.scanned(past_key_values, texts, q, k, v, *decay)
        return self.output(o, z)


class Mamba2(Mixer):
    """y = o + D·x, o of `scan` with q = C, k = B, v = dt·x, g = −e^A_log·dt.

    dt = softplus(W_dt h + dt_bias); x, B and C are convolved; all heads share B and C.
    """

    name = "mamba2"

    def __init__(self, config: UnitsphereConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        sizes = self.H * self.V, self.K, self.K
        self.x_proj, self.B_proj, self.C_proj = map(self.from_h, sizes)
        self.conv_x, self.conv_B, self.conv_C = map(self.convolution, sizes)
        self.bias_x, self.bias_B, self.bias_C = (nn.Parameter(torch.zeros(n)) for n in sizes)
        self.dt_proj = self.from_h(self.H)
        self.A_log, self.dt_bias, self.D = (nn.Parameter(torch.zeros(self.H)) for _ in range(3))
        self.norm = None if config.block == "step" else RMSNorm(self.H * self.V, 1e-5)

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        texts: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """`attention_mask` [batch, time] is 0 for padding."""
        xBC = torch.cat([self.x_proj(x), self.B_proj(x), self.C_proj(x)], dim=-1)
        dt, z = self.dt_proj(x), self.gate_proj(x)
        with torch.autocast(x.device.type, enabled=False):
            weights = [self.conv_x, self.conv_B, self.conv_C]
            bias = wide(torch.cat([self.bias_x, self.bias_B, self.bias_C]))
            xBC = shown(wide(xBC), attention_mask)
            xBC = self.convolved(xBC, weights, past_key_values, texts, bias)
            inner, k, q = xBC.split([len(weight) for weight in weights], dim=-1)
            inner, k, q = self.heads(inner), k[:, None], q[:, None]
            dt = self.heads(shown(F.softplus(wide(dt) + self.dt_bias), attention_mask))
            A, D = (y[:, None, None] for y in (-wide(self.A_log).exp(), wide(self.D)))
            y = self.scanned(past_key_values, texts, q, k, dt * inner, A * dt) + D * inner
        return self.output(y, z)

    def output(self, o: Tensor, z: Tensor) -> tuple[Tensor, None]:
        """With a norm: of all heads together, after they are multiplied by SiLU(z)."""
        if self.norm is None:
            return super().output(o, z)
        return self.o_proj(self.norm(o.transpose(1, 2).flatten(2).to(z.dtype) * F.silu(z))), None


class GatedLinearAttention(Mixer):
    """`scan` with a g for each row of S: g = ln σ(up(low(x)))/16; no convolution."""

    name = "gla"

    def __init__(self, config: UnitsphereConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        keys, values = self.H * self.K, self.H * self.V
        self.q_proj, self.k_proj, self.v_proj = map(self.from_h, (keys, keys, values))
        self.low_proj, self.up_proj = self.from_h(16), nn.Linear(16, keys)
        self.norm = None if config.block == "step" else RMSNorm(self.V, 1e-5)

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        texts: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """`attention_mask` [batch, time] is 0 for padding."""
        q, k, v, low = self.q_proj(x), self.k_proj(x), self.v_proj(x), self.low_proj(x)
        with torch.autocast(x.device.type, enabled=False):
            g = F.logsigmoid(wide_linear(self.up_proj, low)) / 16
            k, g = shown(wide(k), attention_mask), shown(g, attention_mask)
            q, k, v, g = map(self.heads, (wide(q) / math.sqrt(self.K), k, wide(v), g))
            o = self.scanned(past_key_values, texts, q, k, v, g)
        return self.output(o, self.gate_proj(x))


MIXERS = {mixer.name: mixer for mixer in (GatedDeltaNet, Mamba2, GatedLinearAttention)}


def make_mixer(config: UnitsphereConfig, layer_idx: int) -> nn.Module:
    """The attention of a layer, or what is in its place."""
    name = "attention" if config.mixers is None else config.mixers[layer_idx]
    return Attention(config, layer_idx) if name == "attention" else MIXERS[name](config, layer_idx)


def linear(d_in: int, d_out: int, bias: bool, n_experts: int | None) -> nn.Module:
    """nn.Linear, or one for each of some experts."""
    if n_experts is None:
        return nn.Linear(d_in, d_out, bias)
    return ExpertLinear(n_experts, d_in, d_out, bias)


class ExpertLinear(nn.Module):
    """An nn.Linear for each expert."""

    def __init__(self, n_experts: int, d_in: int, d_out: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_experts, d_out, d_in))
        self.bias = nn.Parameter(torch.zeros(n_experts, d_out)) if bias else None

    def forward(self, x: Tensor, expert: int) -> Tensor:
        return F.linear(x, self.weight[expert], None if self.bias is None else self.bias[expert])


class GatedMLP(nn.Module):
    """down(up(x) ⊙ f(gate(x))), of hidden width d_ff; of the given expert if there are some."""

    def __init__(self, config: UnitsphereConfig, d_ff: int, n_experts: int | None = None) -> None:
        super().__init__()
        d = config.hidden_size
        self.up_proj, self.gate_proj = (linear(d, d_ff, False, n_experts) for _ in range(2))
        self.down_proj = linear(d_ff, d, False, n_experts)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor, *expert: int) -> Tensor:
        units = self.up_proj(x, *expert) * self.activation(self.gate_proj(x, *expert))
        return self.down_proj(units, *expert)


class PlainMLP(nn.Module):
    """down(LN_f(f(up(x)))), or down(LN_f(GELU(up(x)) ⊙ gate(x))) with geglu; with biases."""

    def __init__(self, config: UnitsphereConfig, d_ff: int, n_experts: int | None = None) -> None:
        super().__init__()
        d = config.hidden_size
        self.up_proj = linear(d, d_ff, True, n_experts)
        self.down_proj = linear(d_ff, d, True, n_experts)
        gated = config.hidden_act == "geglu"
        self.gate_proj = linear(d, d_ff, True, n_experts) if gated else None
        self.norm = make_norm(config, d_ff) if config.mlp_norm else nn.Identity()
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor, *expert: int) -> Tensor:
        units = self.activation(self.up_proj(x, *expert))
        units = units if self.gate_proj is None else units * self.gate_proj(x, *expert)
        return self.down_proj(self.norm(units), *expert)


class Router(nn.Module):
    """The experts of a token, those with the largest p + bias, and their gates √(p_i/Σ p_j)."""

    expert_bias: Tensor

    def __init__(self, config: UnitsphereConfig) -> None:
        super().__init__()
        self.top_k, n = config.num_experts_per_tok, config.num_experts
        self.proj = nn.Linear(config.hidden_size, n, config.block == "normformer")
        self.register_buffer("expert_bias", torch.zeros(n))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[n, d] -> experts [n, top_k] and gates [n, top_k], in fp32 or wider."""
        with torch.autocast(x.device.type, enabled=False):
            logits = wide_linear(self.proj, x)
        chosen = (logits.sigmoid() + self.expert_bias).topk(self.top_k).indices
        log_p = F.logsigmoid(logits.gather(-1, chosen))
        return chosen, (log_p.log_softmax(-1) / 2).exp()


class Experts(nn.Module):
    """y = Σ gate·MLP_i(x) of a token's experts; √½(y + MLP_shared(x)) with shared ones."""

    def __init__(self, config: UnitsphereConfig, mlp: Any) -> None:
        super().__init__()
        d_ff, shared = config.intermediate_size, config.num_shared_experts
        self.router = Router(config)
        self.routed = mlp(config, d_ff, config.num_experts)
        self.shared = mlp(config, shared * d_ff) if shared else None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        chosen, gates = self.router(rows)
        y = torch.zeros_like(rows, dtype=gates.dtype)
        for expert in chosen.unique().tolist():
            row, place = (chosen == expert).nonzero(as_tuple=True)
            y = y.index_add(0, row, gates[row, place, None] * self.routed(rows[row], expert))
        y = y.view_as(x).to(x.dtype)
        return y if self.shared is None else math.sqrt(0.5) * (y + self.shared(x))


def make_mlp(config: UnitsphereConfig) -> nn.Module:
    """The MLP of a layer, or its experts."""
    mlp = PlainMLP if config.block == "normformer" else GatedMLP
    return Experts(config, mlp) if config.num_experts else mlp(config, config.intermediate_size)


class PreNormBlock(GradientCheckpointingLayer):
    """h = h + attention(norm(h)); h = h + MLP(norm(h)); Peri-LN has a norm of each output too."""

    def __init__(self, config: UnitsphereConfig, layer_idx: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = make_norm(config), make_norm(config)
        self.self_attn, self.mlp = make_mixer(config, layer_idx), make_mlp(config)
        self.attention_output_norm, self.mlp_output_norm = (
            make_norm(config) if extra else nn.Identity()
            for extra in (config.attention_output_norm, config.mlp_output_norm)
        )

    def forward(self, h: Tensor, rotation: tuple[Tensor, Tensor], **kwargs: Any) -> Tensor:
        x = self.self_attn(self.attention_norm(h), rotation, **kwargs)[0]
        h = h + self.attention_output_norm(x)
        return h + self.mlp_output_norm(self.mlp(self.mlp_norm(h)))


def lerp_norm(h: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    """Norm(h + α ⊙ (Norm(x) − h)): nGPT, equation 10."""
    return unit_norm(torch.lerp(wide(h), unit_norm(x), wide(alpha))).to(h.dtype)


def lerp_nu(h: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    """(h + α ⊙ (Norm(x) − h))·ν(α), ν(α) = (1 − 2α + 2α²)^(−1/2): anGPT, Table 1."""
    alpha = wide(alpha)
    step = torch.lerp(wide(h), unit_norm(x), alpha)
    return (step * torch.rsqrt((1 - alpha).square() + alpha.square())).to(h.dtype)


def lerp(h: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    """h + α ⊙ (Norm(x) − h): anGPT without ν(α)."""
    return torch.lerp(wide(h), unit_norm(x), wide(alpha)).to(h.dtype)


def add_norm(h: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    """Norm(h + α ⊙ x): nGPT with residual "add"."""
    return unit_norm(wide(h) + wide(alpha) * wide(x)).to(h.dtype)


def gated(h: Tensor, x: Tensor, w: Tensor | None) -> Tensor:
    """2σ(⟨w, h⟩)·x, or x where there is no w: nGPT with residual "gated"."""
    if w is None:
        return x
    return (2 * torch.sigmoid((wide(h) * wide(w)).sum(-1, keepdim=True)) * x).to(x.dtype)


STEPS = {"lerp_norm": lerp_norm, "lerp_nu": lerp_nu, "lerp": lerp, "add_norm": add_norm}


class StepBlock(GradientCheckpointingLayer):
    """h steps by attention(h), then by MLP(h), as `step` says; there is no norm before.

    With `residual_gate` each output is taken times 2σ(⟨w, h⟩) first, one number a token.
    """

    def __init__(self, config: UnitsphereConfig, layer_idx: int) -> None:
        super().__init__()
        self.step = STEPS[config.step]
        self.self_attn, self.mlp = make_mixer(config, layer_idx), make_mlp(config)
        self.alpha_attention, self.alpha_mlp = (
            nn.Parameter(torch.full((config.hidden_size,), 0.05)) for _ in range(2)
        )
        self.gate_attention = self.gate_mlp = None
        if config.residual_gate:
            self.gate_attention, self.gate_mlp = (
                nn.Parameter(torch.zeros(config.hidden_size)) for _ in range(2)
            )

    def forward(self, h: Tensor, rotation: tuple[Tensor, Tensor], **kwargs: Any) -> Tensor:
        x = gated(h, self.self_attn(h, rotation, **kwargs)[0], self.gate_attention)
        h = self.step(h, x, self.alpha_attention)
        return self.step(h, gated(h, self.mlp(h), self.gate_mlp), self.alpha_mlp)


class NormFormerBlock(GradientCheckpointingLayer):
    """Pre-norm, or post-norm: h = LN_1(h + LN_a(attention(h))); h = LN_2(λ⊙h + MLP(h))."""

    def __init__(self, config: UnitsphereConfig, layer_idx: int) -> None:
        super().__init__()
        self.post_norm, self.dropout = config.post_norm, nn.Dropout(config.dropout)
        self.attention_norm, self.mlp_norm = make_norm(config), make_norm(config)
        self.self_attn, self.mlp = make_mixer(config, layer_idx), make_mlp(config)
        extra = config.attention_output_norm
        self.attention_output_norm = make_norm(config) if extra else nn.Identity()
        self.residual_scale = None
        if config.residual_scale:
            self.residual_scale = nn.Parameter(torch.ones(config.hidden_size))

    def forward(self, h: Tensor, rotation: tuple[Tensor, Tensor], **kwargs: Any) -> Tensor:
        x = h if self.post_norm else self.attention_norm(h)
        x = self.attention_output_norm(self.self_attn(x, rotation, **kwargs)[0])
        h = h + self.dropout(x)
        h = self.attention_norm(h) if self.post_norm else h
        x = self.dropout(self.mlp(h if self.post_norm else self.mlp_norm(h)))
        h = (h if self.residual_scale is None else self.residual_scale * h) + x
        return self.mlp_norm(h) if self.post_norm else h


BLOCKS = {"pre_norm": PreNormBlock, "step": StepBlock, "normformer": NormFormerBlock}


class TokenShift(nn.Module):
    """e_t + 2σ(√d·⟨gate, Norm(e_t)⟩)·scale ⊙ e_(t−1); "unit": its Norm; "nu": times ν(scale)."""

    def __init__(self, config: UnitsphereConfig) -> None:
        super().__init__()
        if config._attn_implementation in ENGINES:
            raise ValueError(
                f"{config._attn_implementation} does not tell the token before: no token_shift"
            )
        self.scale, self.gate = (nn.Parameter(torch.zeros(config.hidden_size)) for _ in range(2))
        self.form = config.token_shift

    def forward(self, e: Tensor, before: Tensor, position_ids: Tensor) -> Tensor:
        """e, before [batch, time, d]; what is at position 0 has nothing before it."""
        before = before.masked_fill((position_ids == 0)[..., None], 0.0)
        h = e + gated(unit_norm(e) * e.shape[-1] ** 0.5, self.scale * before, self.gate)
        if self.form == "nu":
            h = h * (1 + self.scale.square().mean()).rsqrt()
        return unit_norm(h).to(e.dtype) if self.form == "unit" else h


class UnitspherePreTrainedModel(PreTrainedModel):
    """What transformers asks of every model."""

    config_class = UnitsphereConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = [block.__name__ for block in BLOCKS.values()]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _keep_in_fp32_modules_strict = ["router", "A_log", "dt_bias"]
    _can_record_outputs = {
        "hidden_states": tuple(BLOCKS.values()),
        "attentions": Attention,
    }

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        starts = {"qk_scale": 1.0, "logit_gain": math.sqrt(self.config.head_dim), "alpha": 0.5}
        starts |= {"alpha_attention": 0.05, "alpha_mlp": 0.05, "head_scale": 1.0}
        starts |= {"residual_scale": 1.0, "gate_attention": 0.0, "gate_mlp": 0.0}
        starts |= {"A_log": 0.0, "dt_bias": -4.6, "D": 1.0, "bias_x": 0.0, "bias_B": 0.0}
        starts |= {"bias_C": 0.0}
        if isinstance(module, TokenShift):
            starts |= {"scale": 0.0, "gate": 0.0}
        for name, parameter in module.named_parameters(recurse=False):
            if name in starts:
                init.constant_(parameter, starts[name])
            elif name.startswith("conv_"):
                init.normal_(parameter, std=parameter.shape[1] ** -0.5)
            elif isinstance(module, RMSNorm | DyT):
                init.constant_(parameter, float(name == "weight"))
            elif isinstance(module, ExpertLinear):
                std = self.config.initializer_range if name == "weight" else 0.0
                init.normal_(parameter, std=std)
        if isinstance(module, Router):
            init.zeros_(module.expert_bias)


class UnitsphereModel(UnitspherePreTrainedModel):
    """Embeddings, blocks, the last norm."""

    def __init__(self, config: UnitsphereConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.positions == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_shift = TokenShift(config) if config.token_shift else None
        self.dropout = nn.Dropout(config.dropout)
        layers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(BLOCKS[config.block](config, layer) for layer in layers)
        last = config.block != "step" and not config.post_norm
        self.norm = make_norm(config) if last else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        previous_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """`previous_ids` [batch, 1]: the token before the first; only for token_shift, with a cache
        that is not empty. `generate` gives it."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        h = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None and self.config.is_causal:
            past_key_values = DynamicCache(config=self.config)
        texts = None
        if position_ids is None:
            position_ids = self.positions(h, attention_mask, past_key_values)
        elif attention_mask is None and past_key_values is None:  # as transformers' masks do
            texts = find_packed_sequence_indices(position_ids)
        masks = attention_mask
        if not isinstance(masks, dict):  # for a static cache `generate` makes them itself
            masks = self.masks(h, attention_mask, past_key_values, position_ids)
        if self.token_shift is not None:
            before = torch.cat(
                [self.last_before(h, previous_ids, past_key_values), h[:, :-1]], dim=1
            )
            h = self.token_shift(h, before, position_ids)
        h = self.dropout(self.with_positions(h * self.config.embedding_scale, position_ids))
        rotation = rope_table(position_ids, self.config.rotary_dim, self.config.rope_theta)
        for layer, kind in zip(self.layers, self.config.layer_types or (), strict=True):
            mixed = kind in ("linear_attention", "hybrid")
            h = layer(
                h,
                rotation,
                attention_mask=masks.get("linear_attention" if kind == "hybrid" else kind),
                past_key_values=past_key_values,
                position_ids=position_ids,
                **({"texts": texts} if mixed else {}),
                **kwargs,
            )
        return BaseModelOutputWithPast(self.norm(h), past_key_values)

    def last_before(self, h: Tensor, previous_ids: Tensor | None, cache: Cache | None) -> Tensor:
        """The embedding [batch, 1, d] of the token before the first of h; 0 where there is none."""
        if previous_ids is not None:
            return self.embed_tokens(previous_ids)
        if cache is not None and cache.get_seq_length() > 0:
            raise ValueError(
                "a model with token_shift needs previous_ids with a cache: the last token in it"
            )
        return torch.zeros_like(h[:, :1])

    def positions(self, h: Tensor, attention_mask: Tensor | None, cache: Cache | None) -> Tensor:
        """[batch or 1, time]: after what is cached, and after the padding that the mask shows.

        Padding on the left is at -1.
        """
        past = 0 if cache is None else cache.get_seq_length()
        time = h.shape[1]
        if attention_mask is not None and attention_mask.shape[1:] == (past + time,):
            return (attention_mask.long().cumsum(-1) - 1)[:, -time:]
        return torch.arange(past, past + time, device=h.device)[None]

    def masks(
        self, h: Tensor, attention_mask: Tensor | None, cache: Cache | None, positions: Tensor
    ) -> dict[str, Any]:
        """Type of layer -> who looks at whom; of mixers, which tokens [batch, time] are real."""
        types = set(self.config.layer_types or ())
        attention = types - {"linear_attention", "hybrid"}
        found: dict[str, Any] = {
            kind: self.mask(h, attention_mask, cache, positions) for kind in attention
        }
        if attention_mask is not None and types != attention:
            if attention_mask.dim() != 2:
                raise ValueError("a model with mixers takes an attention_mask [batch, time]")
            found["linear_attention"] = attention_mask[:, -h.shape[1] :]
        return found

    def mask(
        self, h: Tensor, attention_mask: Tensor | None, cache: Cache | None, positions: Tensor
    ) -> Any:
        """Who looks at whom, in the form that the attention implementation takes."""
        window = self.config.sliding_window
        if self.config.is_causal:
            make = create_causal_mask if window is None else create_sliding_window_causal_mask
            return make(self.config, h, attention_mask, cache, positions)

        def near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query - key).abs() < window

        within = None if window is None else near
        return create_bidirectional_mask(self.config, h, attention_mask, and_mask_function=within)

    def with_positions(self, h: Tensor, position_ids: Tensor) -> Tensor:
        """h and what is added for its positions; nothing if RoPE carries them."""
        if self.config.positions == "sinusoidal":
            return h + sinusoid(position_ids, h.shape[-1]).to(h.dtype)
        if self.config.positions == "learned":
            return h + self.embed_positions(position_ids.clamp(min=0))
        return h


class UnitsphereForCausalLM(UnitspherePreTrainedModel, GenerationMixin):
    """Predicts the next token."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: UnitsphereConfig) -> None:
        super().__init__(config)
        self.model = UnitsphereModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._is_stateful = config.mixers is not None  # a state cannot go back to an earlier token
        self.post_init()

    def prepare_inputs_for_generation(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """transformers' own, with padding at position -1 for key_offset, and with the token before
        those that are new for token_shift.

        Its arguments are named, so that `generate` takes them.
        """
        found = super().prepare_inputs_for_generation(  # pyright: ignore[reportAttributeAccessIssue]
            input_ids,
            next_sequence_length=next_sequence_length,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        positions, mask = found.get("position_ids"), attention_mask
        if self.config.key_offset and positions is not None and mask is not None:
            real = mask[:, -positions.shape[1] :] != 0
            found["position_ids"] = torch.where(real, positions, -1)
        if self.config.token_shift:
            found |= self.previous(input_ids, next_sequence_length, past_key_values)
        return found

    def previous(
        self, input_ids: Tensor, new: int | None, cache: Cache | None
    ) -> dict[str, Tensor]:
        """`previous_ids`, if there are some, where the last `new` of these ids, or all, are new.

        A prompt that is read in pieces (prefill_chunk_size) comes without the pieces before.
        """
        time = input_ids.shape[1]
        new = new or time
        if time > new:
            return {"previous_ids": input_ids[:, -new - 1 : -new]}
        if cache is None:
            return {}
        past, last = int(cache.get_seq_length()), getattr(cache, "last_ids", None)
        cache.last_ids = past + time, input_ids[:, -1:]  # pyright: ignore[reportAttributeAccessIssue]
        return {"previous_ids": last[1]} if last and last[0] == past else {}

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """transformers' own, with which `generate_batch` and `transformers serve` begin.

        It puts the tokens of several texts into one row and keeps the keys itself.
        """
        if self.config.token_shift or self.config.key_offset:
            raise ValueError(
                "continuous batching does not pass on the previous token, which token_shift and "
                "key_offset read: call generate instead"
            )
        return super().init_continuous_batching(*args, **kwargs)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,  # `generate` and Trainer give only what is named here
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        out = self.model(input_ids, attention_mask, position_ids, **kwargs)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(out.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss, logits, out.past_key_values, out.hidden_states, out.attentions
        )


class UnitsphereForMaskedLM(UnitspherePreTrainedModel):
    """Predicts masked tokens from all the others."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: UnitsphereConfig) -> None:
        super().__init__(config)
        self.model = UnitsphereModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,  # Trainer gives only what is named here
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        out = self.model(input_ids, attention_mask, position_ids, **kwargs)
        logits = self.lm_head(out.last_hidden_state)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size, **kwargs)
        return MaskedLMOutput(loss, logits, out.hidden_states, out.attentions)
