"""How a sublayer's output x joins the hidden state h: the residual rules of nGPT and anGPT.

| rule | formula | source |
|---|---|---|
| `lerp_norm` | Norm(h + α ⊙ (Norm(x) − h)) | nGPT eq. 7, 10, 11 |
| `add_norm` | Norm(h + α ⊙ x): x keeps its length | this project |
| `gate` | 2σ(⟨w, h⟩)·x, in the place of x | this project |
| `slerp` | sin((1−α)θ)/sin θ · h + sin(αθ)/sin θ · Norm(x), cos θ = ⟨h, Norm(x)⟩ | nGPT eq. 6 |
| `riemannian` | Norm(h − α ⊙ (h⟨h, Norm(x)⟩ − Norm(x))) | nGPT eq. 29, 30 |
| `lerp` | (h + α ⊙ (Norm(x) − h)) · ν(α), ν(α) = (1 − 2α + 2α²)^(−1/2) | anGPT Table 1 |

Shapes: h and x are [..., d]; α is [d], a scalar tensor or a float. Each returns [..., d];
`lerp_norm`, `add_norm` and `lerp` in h's dtype, so that a scale kept in fp32 does not widen it.
`lerp` is also "nGPT with LERP correction" (anGPT Figure 5): ν(α) in place of the outer Norm.
"""

import math
from typing import Any

import torch
from torch import Tensor

from unitsphere.ops.norm import cast, inner, length, reciprocal_length, unit_norm


def lerp_norm(h: Tensor, x: Tensor, alpha: Tensor | float) -> Tensor:
    """Step from h towards Norm(x) by α, back onto the sphere (nGPT eq. 10)."""
    if not isinstance(alpha, Tensor):
        wide = torch.promote_types(h.dtype, torch.float32)
        alpha = torch.full((), alpha, dtype=wide, device=h.device)
    if not torch.is_grad_enabled():  # `apply` costs time for each token in decoding
        return LerpNorm.forward(h, x, alpha)
    return LerpNorm.apply(h, x, alpha)  # pyright: ignore[reportReturnType]


class LerpNorm(torch.autograd.Function):
    """`lerp_norm` with its gradient by rows, which keeps h, x and α and nothing in between.

    With x̂ = r_x x, r_x = 1/‖x‖, s = h + α⊙(x̂ − h), y = r_s s, r_s = 1/‖s‖, upstream g:
    ds = r_s(g − y⟨g,y⟩);  dα = Σ_rows ds⊙(x̂ − h);  dh = (1 − α)⊙ds;
    dx = r_x(α⊙ds − x̂⟨α⊙ds, x̂⟩), where ⟨α⊙ds, x̂⟩ = r_s(⟨g, α⊙x̂⟩ − ⟨g,y⟩⟨y, α⊙x̂⟩), so that
    no sum over a row waits for another: compiled, less is kept. In fp32 or wider.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
        """y."""
        s = interpolate(h, x / length(x), alpha)
        return cast(s / length(s), h.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        """Keep the inputs."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """dh, dx, dα, by operations that autograd can differentiate again."""
        h, x, alpha = ctx.saved_tensors
        r_x = reciprocal_length(x)
        x_hat = x * r_x
        s = interpolate(h, x_hat, alpha)
        r_s = reciprocal_length(s)
        g, y, towards = g.to(s.dtype), s * r_s, alpha * x_hat
        g_y, g_towards, y_towards = inner(g, y), inner(g, towards), inner(y, towards)
        ds = r_s * torch.addcmul(g, y, g_y, value=-1)
        step = alpha * ds
        # Two products, not one with x̂ − h: compiled, that difference would be kept.
        d_alpha = (ds * x_hat - ds * h).sum_to_size(alpha.shape)
        dx = r_x * torch.addcmul(step, x_hat, r_s * (g_towards - g_y * y_towards), value=-1)
        return (ds - step).to(h.dtype), dx.to(x.dtype), d_alpha.to(alpha.dtype)


def interpolate(h: Tensor, x: Tensor, alpha: Tensor | float) -> Tensor:
    """h + α⊙(x − h), in fp32 or wider."""
    wide = torch.promote_types(h.dtype, torch.float32)
    weight = cast(alpha, wide) if isinstance(alpha, Tensor) else alpha
    return torch.lerp(cast(h, wide), cast(x, wide), weight)


def add_norm(h: Tensor, x: Tensor, alpha: Tensor | float) -> Tensor:
    """Step from h by α times x as it is, back onto the sphere.

    Without Norm(x) a sublayer that has little to say moves h little, as in a pre-norm GPT: an
    average over many values is short. On the sphere x is at most about 1 long at the start.
    """
    wide = torch.promote_types(h.dtype, torch.float32)
    step = alpha.to(wide) if isinstance(alpha, Tensor) else alpha
    return unit_norm(h.to(wide) + step * x.to(wide)).to(h.dtype)


def gate(h: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """A sublayer's output x times 2σ(⟨w, h⟩), a number from 0 to 2 per token; with w = 0, x.

    The h that the sublayer read decides how far it moves. Shape and dtype of x.
    """
    return cast(opening(h, w) * x, x.dtype)


def opening(h: Tensor, w: Tensor) -> Tensor:
    """2σ(⟨w, h⟩), [..., 1], in fp32 or wider: autocast would take a product of vectors in bf16."""
    wide = torch.promote_types(h.dtype, torch.float32)
    return 2 * torch.sigmoid((cast(h, wide) * cast(w, wide)).sum(-1, keepdim=True))


def slerp(h: Tensor, x: Tensor, alpha: Tensor | float) -> Tensor:
    """Step along the great circle from h to Norm(x) by α (nGPT eq. 6).

    With a vector α each element takes its own share of that angle; Norm then keeps h on the
    sphere (with one α for all it changes nothing). Where the two vectors (anti-)align, sin θ
    vanishes and the limit for small angles, LERP, takes its place. Angles are taken in fp32 or
    wider: half precision cannot tell a small one from none.
    """
    dtype, wide = h.dtype, torch.promote_types(h.dtype, torch.float32)
    h, x = h.to(wide), unit_norm(x.to(wide))
    cosine = (h * x).sum(-1, keepdim=True)
    near = cosine.abs() > 1 - 1e-6
    theta = torch.acos(cosine.masked_fill(near, 0))
    sine = theta.sin()
    arc = ((1 - alpha) * theta).sin() / sine * h + (alpha * theta).sin() / sine * x
    return unit_norm(torch.where(near, h + alpha * (x - h), arc)).to(dtype)


def riemannian(h: Tensor, x: Tensor, alpha: Tensor | float) -> Tensor:
    """Step from h by α along Norm(x)'s part in h's tangent space, retracted (nGPT eq. 29, 30)."""
    x = unit_norm(x)
    return unit_norm(h - alpha * (h * (h * x).sum(-1, keepdim=True) - x))


def lerp(
    h: Tensor, x: Tensor, alpha: Tensor | float, nu_alpha: Tensor | float | None = None
) -> Tensor:
    """Step from h towards Norm(x) by α, length restored in expectation by ν(α) (anGPT §4.3).

    ν(α) = (1 − 2α + 2α²)^(−1/2) is 1/√E‖·‖² for orthogonal unit vectors, as §4.2 defines it;
    the paper's §4.3 prints the inverse square of that. `nu_alpha` is ν(α) where it is known
    already, or what takes its place: 1 leaves the length.
    """
    step = interpolate(h, unit_norm(x), alpha)
    return cast(step * (nu(alpha) if nu_alpha is None else nu_alpha), h.dtype)


def nu(alpha: Tensor | float) -> Tensor | float:
    """ν(α) = (1 − 2α + 2α²)^(−1/2) = ((1 − α)² + α²)^(−1/2), element by element.

    Compiled, it is computed again for every row of h, so not by `hypot`, which is slow on a CPU.
    """
    if isinstance(alpha, Tensor):
        return torch.rsqrt((1 - alpha).square() + alpha.square())
    return 1 / math.hypot(1 - alpha, alpha)
