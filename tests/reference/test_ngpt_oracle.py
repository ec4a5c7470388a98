"""Closed forms for the nGPT oracle."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reference import basics, ngpt
from reference.basics import Scale

V, D, D_F = 11, 8, 12
PAPER = ngpt.paper(D, n_layers=2, n_heads=2)
TOKENS = torch.tensor([[1, 5, 9, 2, 7], [3, 3, 0, 10, 4]])
TARGETS = torch.tensor([[5, 9, 2, 7, 1], [3, 0, 10, -100, 8]])
RESIDUALS = ["lerp", "slerp", "riemannian", "add", "gated"]


def tensors_for(settings: ngpt.Settings, seed: int = 0) -> dict[str, Tensor]:
    scales = ("alpha_A", "alpha_M", "s_qk", "s_u", "s_nu", "s_z")
    shapes = ngpt.shapes(settings, V, D, D_F)
    raw = basics.random_tensors(shapes, seed, around_one=scales)
    return {n: t.detach().requires_grad_() for n, t in ngpt.normalized(raw).items()}


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("kind", ["vector", "scalar"])
def test_h_stays_on_the_sphere(residual: str, kind: str) -> None:
    settings = replace(PAPER, residual=residual, alpha=Scale(kind, 0.3, 1.0))
    for h in ngpt.hidden_states(tensors_for(settings), settings, TOKENS):
        close(h.square().sum(-1), torch.ones(2, 5).double())


@pytest.mark.parametrize("residual", ["lerp", "slerp", "lerp_nu"])
def test_alpha_one_goes_to_the_proposal_and_alpha_zero_stays(residual: str) -> None:
    a, b = basics.unit(randn(6, D)), basics.unit(randn(12, D)[6:])
    close(ngpt.step(a, b, torch.ones(D).double(), residual), b)
    close(ngpt.step(a, b, torch.zeros(D).double(), residual), a)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_slerp_turns_by_alpha_theta(alpha: float) -> None:
    a, b = basics.unit(randn(6, D)), basics.unit(randn(12, D)[6:])
    c = ngpt.slerp(a, b, torch.tensor(alpha, dtype=torch.float64))
    theta = torch.acos((a * b).sum(-1))
    close(c.square().sum(-1), torch.ones(6).double())
    close((a * c).sum(-1), torch.cos(alpha * theta))
    close((b * c).sum(-1), torch.cos((1 - alpha) * theta))


def test_slerp_of_equal_vectors_is_the_vector_with_a_finite_gradient() -> None:
    a = basics.unit(randn(3, D)).requires_grad_()
    c = ngpt.slerp(a, a.detach().clone(), torch.tensor(0.3, dtype=torch.float64))
    close(c, a)
    c.sum().backward()
    assert a.grad is not None
    assert a.grad.isfinite().all()


def test_lerp_and_slerp_agree_halfway_and_riemannian_is_a_tangent_step() -> None:
    a, b = basics.unit(randn(6, D)), basics.unit(randn(12, D)[6:])
    half = torch.tensor(0.5, dtype=torch.float64)
    close(ngpt.step(a, b, half, "slerp"), ngpt.step(a, b, half, "lerp"))
    tangent = b - a * (a * b).sum(-1, keepdim=True)
    turned = ngpt.step(a, b, half, "riemannian")
    angle = torch.atan(0.5 * tangent.square().sum(-1).sqrt())
    close((turned * a).sum(-1), torch.cos(angle))


def test_zero_output_matrices_make_the_block_the_identity() -> None:
    settings = replace(PAPER, alpha=Scale("scalar", 0.3, 1.0))
    tensors = tensors_for(settings)
    for i in range(2):
        tensors[f"layers.{i}.W_o"] = torch.zeros(D, D).double()
        tensors[f"layers.{i}.W_oMLP"] = torch.zeros(D, D_F).double()
        for name in ("alpha_A", "alpha_M"):
            tensors[f"layers.{i}.{name}"] = torch.tensor(0.3).double()
    for h in ngpt.hidden_states(tensors, settings, TOKENS):
        close(h, tensors["E_in"][TOKENS])


def test_the_sign_of_alpha_counts_only_when_signed() -> None:
    tensors = tensors_for(PAPER)
    flipped = {n: -t if "alpha" in n else t for n, t in tensors.items()}
    close(ngpt.forward(flipped, PAPER, TOKENS), ngpt.forward(tensors, PAPER, TOKENS))
    signed = replace(PAPER, absolute_alpha=False)
    one = ngpt.forward(flipped, signed, TOKENS)
    assert not torch.allclose(one, ngpt.forward(tensors, signed, TOKENS))


def test_qk_norm_forgets_the_lengths_of_q_and_k() -> None:
    tensors = tensors_for(PAPER)
    scaled = {n: 7 * t if n.endswith(("W_q", "W_k")) else t for n, t in tensors.items()}
    close(ngpt.forward(scaled, PAPER, TOKENS), ngpt.forward(tensors, PAPER, TOKENS))
    off = replace(PAPER, qk_norm=False)
    assert not torch.allclose(ngpt.forward(scaled, off, TOKENS), ngpt.forward(tensors, off, TOKENS))
    rescaled = replace(off, softmax_factor=math.sqrt(D / 2) / 49)
    close(ngpt.forward(scaled, rescaled, TOKENS), ngpt.forward(tensors, off, TOKENS))


def test_s_qk_acts_squared_on_the_softmax_factor() -> None:
    fixed = replace(PAPER, s_qk=Scale("fixed", 1.3))
    factor = replace(
        PAPER, s_qk=Scale("fixed", 1.0), softmax_factor=1.3**2 * math.sqrt(D / PAPER.n_heads)
    )
    tensors = tensors_for(fixed)
    close(ngpt.forward(tensors, fixed, TOKENS), ngpt.forward(tensors, factor, TOKENS))


def test_vector_scalar_and_fixed_scales_of_one_value_agree() -> None:
    names = {"s_qk": 1.2, "s_u": 0.8, "s_nu": 1.1, "s_z": 2.0, "alpha": 0.15}
    kinds = {}
    for kind in ("vector", "scalar", "fixed"):
        scales = {name: Scale(kind, init, 0.25) for name, init in names.items()}
        settings = ngpt.paper(D, 2, 2, **scales)
        tensors = tensors_for(settings)
        for name in tensors:
            if name.split(".")[-1] not in ngpt.CONSTRAINED_AXIS:
                tensors[name] = torch.full_like(tensors[name], 0.25)
        matrices = {n: t for n, t in tensors_for(PAPER).items() if n in tensors}
        keep = {n: t for n, t in matrices.items() if n.split(".")[-1] in ngpt.CONSTRAINED_AXIS}
        kinds[kind] = ngpt.forward({**tensors, **keep}, settings, TOKENS)
    close(kinds["vector"], kinds["scalar"])
    close(kinds["vector"], kinds["fixed"])


def test_a_scalar_s_u_changes_nothing_and_has_no_gradient() -> None:
    settings = replace(PAPER, s_u=Scale("scalar"))
    tensors = tensors_for(settings)
    loss = ngpt.loss(tensors, settings, TOKENS, TARGETS)
    (gradient,) = torch.autograd.grad(loss, [tensors["layers.0.s_u"]])
    assert abs(float(gradient)) < 1e-15


def test_normalizing_in_the_forward_forgets_lengths_and_leaves_tangent_gradients() -> None:
    settings = replace(PAPER, normalize_in_forward=True)
    tensors = tensors_for(settings)
    close(ngpt.forward(tensors, settings, TOKENS), ngpt.forward(tensors, PAPER, TOKENS))
    axes = ngpt.CONSTRAINED_AXIS
    longer = {n: 3 * t if n.split(".")[-1] in axes else t for n, t in tensors.items()}
    close(ngpt.forward(longer, settings, TOKENS), ngpt.forward(tensors, settings, TOKENS))
    loss = ngpt.loss(tensors, settings, TOKENS, TARGETS)
    constrained = [n for n in tensors if n.split(".")[-1] in axes]
    for name, g in zip(
        constrained, torch.autograd.grad(loss, [tensors[n] for n in constrained]), strict=True
    ):
        along = (g * tensors[name]).sum(axes[name.split(".")[-1]])
        assert along.abs().max() < 1e-13


@pytest.mark.parametrize("residual", [*RESIDUALS, "lerp_nu"])
def test_causality_padding_and_document_mask(residual: str) -> None:
    settings = replace(PAPER, residual=residual)
    tensors = tensors_for(settings)
    whole = ngpt.forward(tensors, settings, TOKENS)
    close(ngpt.forward(tensors, settings, TOKENS[:, :3]), whole[:, :3])
    padded = torch.cat([torch.zeros(2, 2, dtype=torch.int64), TOKENS], dim=1)
    where = {"left_padding": torch.tensor([2, 2])}
    close(ngpt.forward(tensors, settings, padded, **where)[:, 2:], whole)
    targets = torch.cat([torch.full((2, 2), -100), TARGETS], dim=1)
    loss = ngpt.loss(tensors, settings, padded, targets, **where)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, list(tensors.values())))
    document = torch.tensor([0, 0, 1, 1, 1])
    mask = document[:, None] == document[None, :]
    restart = torch.tensor([0, 1, 0, 1, 2]).expand(2, 5)
    got = ngpt.forward(tensors, settings, TOKENS, mask=mask, positions=restart)
    close(got[:, 2:], ngpt.forward(tensors, settings, TOKENS[:, 2:]))


def test_positions_are_relative_unless_s_qk_weighs_the_two_halves_of_a_pair() -> None:
    shifted = {"positions": torch.arange(5).expand(2, 5) + 7}
    for scale, relative in ((Scale("scalar", 1.0, 0.3), True), (Scale(), False)):
        settings = replace(PAPER, s_qk=scale)
        tensors = tensors_for(settings)
        here = ngpt.forward(tensors, settings, TOKENS)
        there = ngpt.forward(tensors, settings, TOKENS, **shifted)
        assert torch.allclose(here, there, rtol=1e-11, atol=1e-12) == relative


def test_tied_equals_untied_with_one_matrix_and_gradients_add() -> None:
    tensors = tensors_for(PAPER)
    tensors["E_out"] = tensors["E_in"].detach().clone().requires_grad_()
    tied = {n: t for n, t in tensors.items() if n != "E_out"}
    separate = ngpt.loss(tensors, PAPER, TOKENS, TARGETS)
    shared = ngpt.loss(tied, replace(PAPER, tied=True), TOKENS, TARGETS)
    close(shared, separate)
    one, two = torch.autograd.grad(separate, [tensors["E_in"], tensors["E_out"]])
    close(torch.autograd.grad(shared, [tied["E_in"]])[0], one + two)


def test_zero_s_z_costs_log_v() -> None:
    settings = replace(PAPER, s_z=Scale("fixed", 0.0))
    got = ngpt.loss(tensors_for(settings), settings, TOKENS, TARGETS)
    close(got, torch.tensor(math.log(V), dtype=torch.float64))


def test_published_parameter_count() -> None:
    shapes = ngpt.shapes(ngpt.paper(1024, 24, 16), 32000, 1024, 4096)
    assert sum(math.prod(shape) for shape in shapes.values()) == 468_491_520


def test_mlp_with_identity_matrices() -> None:
    eye, x = torch.eye(4, dtype=torch.float64), randn(3, 4)
    p = {"W_u": eye, "W_nu": eye, "W_oMLP": eye}
    settings = replace(PAPER, s_u=Scale("fixed", 3.0), s_nu=Scale("fixed", 0.5))
    # sqrt(d) = 2, so nu = x.
    close(ngpt.mlp(x, p, settings), 3 * x * x / (1 + torch.exp(-x)))


def test_output_matrices_are_normalized_by_column_and_the_others_by_row() -> None:
    raw = basics.random_tensors(ngpt.shapes(PAPER, V, D, D_F))
    for name, w in ngpt.normalized(raw).items():
        last = name.split(".")[-1]
        if last in ("W_o", "W_oMLP"):
            close(w.square().sum(0), torch.ones(w.shape[1]).double())
        elif last[0] in "WE":
            close(w.square().sum(1), torch.ones(w.shape[0]).double())
        else:
            assert w is raw[name]
