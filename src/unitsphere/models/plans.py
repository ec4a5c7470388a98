"""What other packages need to know of an architecture's modules, as tables by their class.

| table | says | used by |
|---|---|---|
| `TP_PLANS` | how tensor parallel shards a module's parts | training, inspection |
| `INPUT_BOUNDS` | how large the inputs of a matrix can be | training in FP8 |
| `FOLDS` | how factors of outputs become part of the weights | inference, export |

A token mixer from `mixers.MIXERS` has its `tp_plan` in its own file.

A part's sharding, by its local name; what is not named is whole on every rank. Between a matrix
sharded by columns and one sharded by rows, each rank computes some of the heads, or of the hidden
units:

| shard | part | sharded along | input | output |
|---|---|---|---|---|
| columns | Linear | d_out (rows of W) | whole | the rank's outputs |
| rows | Linear | d_in | the rank's inputs | whole, a sum over ranks |
| vocabulary | Embedding, head, s_z | its entries | whole | whole; of the head the rank's logits |
| heads | scales and gains per head | heads | | the rank's heads |
| channels | what a recurrent mixer has per head or per unit of it | them | | the rank's part |
| shared | what all of its heads share | nothing | | whole |
| units | scales of hidden units | units | | for a Linear sharded by columns |
| gathered | norms over all heads or units | nothing | gathered | the rank's part |
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from unitsphere.models import angpt, dyt, gpt, lnscaling, ngpt, normformer, rezero
from unitsphere.models.experts import Router
from unitsphere.models.mixers.gdn import GatedDeltaNet
from unitsphere.models.mixers.gla import GatedLinearAttention
from unitsphere.models.mixers.mamba2 import Mamba2
from unitsphere.models.parts import Embedding, Linear, RMSNorm, Scale
from unitsphere.models.trunk import Transformer

Model = TypeVar("Model", bound=nn.Module)
Entry = TypeVar("Entry")
Shard = Literal["columns", "rows", "vocabulary", "heads", "channels", "shared", "units", "gathered"]
Plan = dict[str, Shard]

QKV: Plan = {"W_q": "columns", "W_k": "columns", "W_v": "columns"}
GATED_MLP: Plan = {"W_u": "columns", "W_nu": "columns", "W_oMLP": "rows"}
ENDS: Plan = {"E_in": "vocabulary", "E_out": "vocabulary"}
LAYER_NORMS: Plan = {"LN_q": "gathered", "LN_k": "gathered", "LN_v": "gathered"}

TP_PLANS: dict[type[nn.Module], Plan] = {
    ngpt.Attention: {**QKV, "W_o": "rows", "s_qk": "heads"},
    ngpt.MLP: {**GATED_MLP, "s_u": "units", "s_nu": "units"},
    ngpt.NGPT: {**ENDS, "s_z": "vocabulary"},
    angpt.Attention: {**QKV, "W_p": "rows", "g": "heads"},
    angpt.MLP: {"W_u": "columns", "W_z": "columns", "W_d": "rows"},
    angpt.ANGPT: {"E_in": "vocabulary", "W_h": "vocabulary", "s_z": "vocabulary"},
    normformer.Attention: {**QKV, "W_o": "rows", "gamma": "heads", **LAYER_NORMS},
    normformer.MLP: {"W_1": "columns", "W_3": "columns", "W_2": "rows", "LN_f": "gathered"},
    normformer.NormFormer: {"E": "vocabulary", "E_out": "vocabulary"},
    gpt.Attention: {**QKV, "W_o": "rows", "g": "heads"},
    gpt.MLP: GATED_MLP,
    gpt.GPT: ENDS,
    lnscaling.Attention: {**QKV, "W_o": "rows", "g": "heads"},
    lnscaling.MLP: GATED_MLP,
    lnscaling.LNScaling: ENDS,
    dyt.Attention: {**QKV, "W_o": "rows", "g": "heads"},
    dyt.MLP: GATED_MLP,
    dyt.DyTGPT: ENDS,
    rezero.Attention: {**QKV, "W_o": "rows"},
    rezero.MLP: GATED_MLP,
    rezero.ReZero: ENDS,
}


def tp_plan(module: nn.Module) -> Plan:
    """How tensor parallel shards the module's own parts; empty for a module without any."""
    plan = of_class(TP_PLANS, module)
    return getattr(module, "tp_plan", {}) if plan is None else plan


def of_class(table: Mapping[type[nn.Module], Entry], module: nn.Module) -> Entry | None:
    """The entry of a module's class, or of the nearest that it inherits from: FSDP2 makes
    subclasses of its own."""
    return next((table[kind] for kind in type(module).__mro__ if kind in table), None)


LONGEST_H = 4.0
"""How long h was seen to become in training where ν(α) replaces Norm (at most 3.98)."""


def _longest_ngpt(config: ngpt.NGPTConfig) -> float | None:
    if config.value_embeddings:  # s_v has no bound
        return None
    return LONGEST_H if config.residual == "lerp_nu" else 1.0


def _longest_angpt(config: angpt.ANGPTConfig) -> float | None:
    if config.token_shift or config.bigram_rows:  # s has no bound
        return None
    return LONGEST_H if config.nu_alpha else None


INPUT_BOUNDS: dict[type[nn.Module], tuple[Callable[[Any], float | None], tuple[str, ...]]] = {
    # W_v h, and means of such vectors, the heads, are at most as large as h
    ngpt.Attention: (_longest_ngpt, ("W_q", "W_k", "W_v", "W_o")),
    ngpt.MLP: (_longest_ngpt, ("W_u", "W_nu")),
    angpt.Attention: (_longest_angpt, ("W_q", "W_k", "W_v")),
    angpt.MLP: (_longest_angpt, ("W_u", "W_z")),
}
"""Class -> the bound of h's elements by the model's config, and the matrices whose input has it."""


def input_bounds(model: Transformer) -> dict[str, float | None]:
    """Full name of a matrix -> the largest |element| that its input can have; None: not known."""
    found: dict[str, float | None] = {}
    for name, module in model.named_modules():
        if rule := of_class(INPUT_BOUNDS, module):
            bound, matrices = rule
            found |= {f"{name}.{local}": bound(model.config) for local in matrices}
    return found


def fold_(model: Model) -> Model:
    """Make factors of outputs a part of the weights, in place, for inference only.

    The outputs are the same but for rounding, and a token costs less (docs/results/speed.md):
    nGPT's s_u, s_ν·√d and s_z, anGPT's ν's and s_z, a router's s_r, GPT's c and norm of the
    embedding, ReZero's a, LN-scaling's 1/√ℓ and DyT's s disappear, every other scale is stored as
    it is used, and weights that are normalised in the forward pass are normalised once. NormFormer
    has no such factors.
    Folded weights are not unit vectors: they need no gradient, have no constraint and are not for a
    checkpoint. Returns the model, in eval mode.
    """
    for module in list(model.modules()):
        if rule := of_class(FOLDS, module):
            rule(module)
    for module in model.modules():
        if isinstance(module, Scale):
            module.store_value()
        if isinstance(module, Linear | Embedding):
            module.fold(1.0)
    return model.eval().requires_grad_(False)


def _fold_ngpt_mlp(mlp: ngpt.MLP) -> None:
    mlp.W_u.fold(mlp.s_u())
    mlp.W_nu.fold(mlp.s_nu() * mlp.root_d)
    mlp.s_u.become_one()
    mlp.s_nu.become_one()
    mlp.root_d = 1.0


@torch.no_grad()
def _fold_ngpt_rate(rate: ngpt.Rate) -> None:
    """|α| in place of α."""
    if rate.stored is not None:
        rate.stored.copy_(rate())
        rate.factor, rate.signed = 1.0, True


def _fold_ngpt(model: ngpt.NGPT) -> None:
    if model.E_out is not None:  # a tied head is the embedding too
        model.E_out.fold(model.s_z())
        model.s_z.become_one()


def _fold_router(router: Router) -> None:
    router.W_r.fold(router.s_r())
    router.s_r.become_one()


def _fold_angpt_attention(attention: angpt.Attention) -> None:
    for W in (attention.W_q, attention.W_k, attention.W_v):
        W.fold(attention.nu_qkv)
    attention.W_p.fold(attention.nu_p)
    attention.nu_qkv = attention.nu_p = 1.0


def _fold_angpt_mlp(mlp: angpt.MLP) -> None:
    mlp.W_u.fold(mlp.nu_uz * mlp.nu_acf)
    mlp.W_z.fold(mlp.nu_uz * mlp.z_gain)
    mlp.W_d.fold(mlp.nu_d)
    mlp.nu_uz = mlp.nu_acf = mlp.z_gain = mlp.nu_d = 1.0


@torch.no_grad()
def _fold_angpt_rate(rate: angpt.Rate) -> None:
    """|α| in place of a learned α, and its ν(α), computed once for all tokens."""
    if rate.stored is None:
        return
    rate.stored.copy_(rate())
    rate.factor, rate.signed = 1.0, True
    rate.keep_nu()


def _fold_angpt(model: angpt.ANGPT) -> None:
    if model.W_h is not None:  # a tied head is the embedding too
        model.W_h.fold(model.s_z())
        model.s_z.become_one()


@torch.no_grad()
def _fold_embedding(model: gpt.GPT) -> None:
    """The norm of the embedding into its rows."""
    if model.E_out is not None:  # a tied embedding is the head too
        model.E_in.weight.copy_(model.norm_E(model.E_in.weight))
        model.norm_E = nn.Identity()


def _fold_recurrent(mixer: nn.Module) -> None:
    """s of each input into its W."""
    for name, scale in mixer.named_children():
        if isinstance(scale, Scale):
            mixer.get_submodule(f"W_{name.removeprefix('s_')}").fold(scale())  # pyright: ignore[reportCallIssue]
            scale.become_one()


def _fold_outputs(block: nn.Module, factor: Tensor | float) -> None:
    """A factor of a block's sublayers into the matrices of their outputs."""
    for name in ("attention", "cross", "mlp"):
        for part in getattr(block, name, nn.Identity()).modules():  # of experts, each MLP
            for local, shard in tp_plan(part).items():
                if shard == "rows":
                    getattr(part, local).fold(factor)


def _fold_rezero(block: rezero.Block) -> None:
    _fold_outputs(block, block.a())
    block.a.become_one()


def _fold_gpt(block: gpt.Block) -> None:
    """c into the gains of the norms of the outputs, or into the matrices before them."""
    outputs = [getattr(block, name, None) for name in ("norm_oA", "norm_oX", "norm_oM")]
    norms = [part for part in outputs if isinstance(part, RMSNorm)]
    for norm in norms:
        norm.fold(block.branch)
    if not norms:
        _fold_outputs(block, block.branch)
    block.branch = 1.0


def _fold_lnscaling(block: lnscaling.Block) -> None:
    """1/√ℓ into the gains of the norms."""
    norms = [block.norm_A, block.norm_M]
    if hasattr(block, "cross"):
        norms.append(block.norm_X)
    for norm in norms:
        norm.fold(block.depth_scale)
    block.depth_scale = 1.0


def _fold_dyt(model: dyt.DyTGPT) -> None:
    if model.E_out is not None:  # a tied embedding is the head too
        model.E_in.fold(model.s())
        model.s.become_one()


FOLDS: dict[type[nn.Module], Callable[[Any], None]] = {
    Router: _fold_router,
    ngpt.MLP: _fold_ngpt_mlp,
    ngpt.Rate: _fold_ngpt_rate,
    ngpt.NGPT: _fold_ngpt,
    angpt.Attention: _fold_angpt_attention,
    angpt.MLP: _fold_angpt_mlp,
    angpt.Rate: _fold_angpt_rate,
    angpt.ANGPT: _fold_angpt,
    gpt.GPT: _fold_embedding,
    gpt.Block: _fold_gpt,
    rezero.Block: _fold_rezero,
    lnscaling.Block: _fold_lnscaling,
    dyt.DyTGPT: _fold_dyt,
    GatedDeltaNet: _fold_recurrent,
    GatedLinearAttention: _fold_recurrent,
    Mamba2: _fold_recurrent,
}
