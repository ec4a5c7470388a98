"""Adam's step and the projection of a matrix as one kernel (see `ops.adam`)."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from unitsphere.kernels.registry import Kernel, call, register, unfit
from unitsphere.ops import adam as plain


def adam_project_(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    kind: Literal["sphere", "ball"],
    dim: int,
    radius: float = 1.0,
    decoupled: bool = False,
    shadow: Tensor | None = None,
) -> Tensor:
    """One step of Adam on a weight [out, in], then its projection along `dim`; both in place.

    The arguments are those of `ops.adam.adam_project_`: torch's state, Adam's numbers, the
    constraint, and a narrow copy of the weight to keep up to date. Returns the weight.
    """
    return call(
        ADAM_PROJECT, weight, gradient, exp_avg, exp_avg_sq, step, lr, betas, eps, weight_decay,
        kind, dim, radius, decoupled, shadow,
    )  # fmt: skip


def _refusal(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: float | Tensor,
    betas: tuple[float | Tensor, float | Tensor],
    eps: float,
    weight_decay: float,
    kind: str,
    dim: int | tuple[int, ...],
    radius: float | Tensor = 1.0,
    decoupled: bool = False,
    shadow: Tensor | None = None,
) -> str | None:
    if weight.dim() != 2 or weight.numel() == 0 or not isinstance(dim, int):
        return "it is not a matrix with vectors along one axis"
    if kind not in plain.PROJECTIONS:
        return f"it knows no constraint '{kind}'"
    held = [weight, exp_avg, exp_avg_sq, *([] if shadow is None else [shadow])]
    if any(tensor.shape != weight.shape or not tensor.is_contiguous() for tensor in held):
        return "weight, moments and copy are not contiguous and of one shape"
    if gradient.shape != weight.shape or gradient.is_sparse:
        return "the gradient is not as the weight is"
    if step.device != weight.device or step.dtype != torch.float32:
        return "the step is not counted on the weight's device in fp32: build Adam with fused=True"
    if any(isinstance(number, Tensor) for number in (lr, *betas, radius)):
        return "the rate, the betas or the radius is a tensor"
    return unfit(*held, gradient)


def _load() -> Callable[..., Tensor]:
    from unitsphere.kernels.gpu.adam import adam_project_

    return adam_project_


ADAM_PROJECT = register(Kernel(plain.adam_project_, _refusal, _load))
