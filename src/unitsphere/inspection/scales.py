"""Probes of learned scales, by the values that the forward pass uses.

| probe | figure |
|---|---|
| `eigen_learning_rates` | nGPT 6 left, 15 |
| `learned_scales` | nGPT 6 middle and right, 15; NormFormer 4 |
| `lambda_by_depth` | NormFormer 6 |
"""

import torch
from torch import Tensor

from unitsphere.inspection.anatomy import layers_of, parameters_of, shown, unless_none
from unitsphere.inspection.values import Values, distribution, layers, whole
from unitsphere.models.parts import Scale
from unitsphere.models.trunk import Transformer

EIGEN = ("alpha_A", "alpha_X", "alpha_M")
"""A block's eigen learning rates, of attention, across and MLP."""


def effective(scale: Scale) -> Tensor:
    """The value that a scale has in the forward pass; one entry where it is one for all."""
    value = scale.forward()  # without the hooks that hand each process its own part
    return whole(value) if isinstance(value, Tensor) else torch.tensor(value)


def eigen_learning_rates(model: Transformer) -> Values:
    """|α_A| and |α_M| (and |α_X| across) by layer (nGPT Figure 6, left, and 15)."""
    found = [
        (name, layer.label, effective(scale).abs())
        for layer in layers_of(model)
        for name in EIGEN
        if isinstance(scale := getattr(layer.block, name, None), Scale)
    ]
    why = "h is not interpolated with a sublayer's output: nGPT and anGPT alone have α_A and α_M"
    return distribution(unless_none(found, why))


def learned_scales(model: Transformer) -> Values:
    """Every learned scale and gain: s_qk, s_u, s_ν, s_z, α, w, g; NormFormer's LN gains, γ and λ.

    nGPT Figure 6 (middle, right) and 15, NormFormer Figure 4.
    """
    found = [
        (shown(local) if layer else shown(name), layer, used(model, name))
        for name, layer, local in parameters_of(model, "scale", "gain")
    ]
    return distribution(unless_none(found, "the model has no learned scale or gain"))


def used(model: Transformer, parameter: str) -> Tensor:
    """A scale's parameter as the forward pass uses it: of a `Scale` its effective value."""
    owner = model.get_submodule(parameter.rpartition(".")[0])
    return effective(owner) if isinstance(owner, Scale) else whole(model.get_parameter(parameter))


def lambda_by_depth(model: Transformer) -> Values:
    """Mean λ of each layer, by its number over the number of layers (NormFormer Figure 6)."""
    found = []
    for stack, name in ((model.encoder, "encoder λ"), (model.blocks, "λ")):
        for number, block in enumerate(stack or [], 1):
            gain = getattr(getattr(block, "lambda_", None), "gain", None)
            if isinstance(gain, Tensor) and stack is not None:
                found.append((name, f"{number / len(stack):.3g}", whole(gain).mean()))
    why = "no residual has a learned scale λ: NormFormer has, with model.res_scale"
    return layers(unless_none(found, why))
