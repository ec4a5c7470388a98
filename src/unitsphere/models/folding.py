"""A model made ready for inference: constants and scales of outputs become part of the weights."""

from typing import Protocol, TypeVar, runtime_checkable

from torch import nn

from unitsphere.models.parts import Embedding, Linear, Scale

Model = TypeVar("Model", bound=nn.Module)


@runtime_checkable
class Folds(Protocol):
    """A module whose weights can absorb what it multiplies their outputs by."""

    def fold(self) -> None:
        """Let them, and multiply by 1 from then on."""
        ...


def fold_(model: Model) -> Model:
    """Fold what a model multiplies outputs by into its weights, in place, for inference alone.

    The outputs are the same but for rounding, and a token costs less (docs/results/speed.md):
    nGPT's s_u, s_ν·√d and s_z, anGPT's ν's and s_z, ReZero's a, LN-scaling's 1/√ℓ and DyT's s
    disappear, every other scale is kept as it is used, and weights that are normalised in the
    forward pass are so once. GPT and NormFormer have no such factors. What is folded is no unit
    vector: it needs no gradient, declares no constraint and is not for a checkpoint. Returns the
    model, in eval mode.
    """
    for module in list(model.modules()):
        if isinstance(module, Folds):
            module.fold()
    for module in model.modules():
        if isinstance(module, Scale):
            module.settle()
        if isinstance(module, Linear | Embedding):
            module.absorb(1.0)
    return model.eval().requires_grad_(False)
