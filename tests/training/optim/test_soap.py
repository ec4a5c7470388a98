"""SOAP, SOAP-Muon and GatedAdamW: their formulas in fp64, resumption, constraints."""

import copy
import dataclasses
import math

import pytest
import torch
from run_folders import check_resumed

from unitsphere.errors import UserError
from unitsphere.models.constraint import roles
from unitsphere.models.registry import build
from unitsphere.training.guard import Guard
from unitsphere.training.optim import OptimConfig, build_optimizer, optim_config_type
from unitsphere.training.optim.adam import GatedAdamW, GatedConfig
from unitsphere.training.optim.constraint import REMEMBERED, ConstraintConfig, constrain
from unitsphere.training.optim.cpr import CPRConfig
from unitsphere.training.optim.muon import cool_momentum
from unitsphere.training.optim.soap import Soap, SoapConfig, SoapMuon, SoapMuonConfig
from unitsphere.training.optim.state import state_spec

NAMES = ["soap", "soap-muon", "gated-adamw"]
SMALL = {"vocab_size": 40, "d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24}
F64 = torch.float64


def gradients(shape, count):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=F64) for _ in range(count)]


def stepped(kind, start, found, **numbers):
    """A weight after each step with the gradients `found`."""
    weight = torch.nn.Parameter(start.clone())
    optimizer, path = kind([weight], **numbers), []
    for grad in found:
        weight.grad = grad.clone()
        optimizer.step()
        path.append(weight.detach().clone())
    return path


def gram_schmidt(A):
    """Orthonormal columns that span what the first columns of A do."""
    columns = []
    for a in A.T:
        for _ in range(2):
            for q in columns:
                a = a - (q @ a) * q
        columns.append(a / a.norm())
    return torch.stack(columns, 1)


def soap_directions(found, b1, b2, bf, eps, every, largest):
    """N of each step after the first, by algorithm 3; sides longer than `largest` have Q = I.

    `b1` is β₁, or the list of those of steps 0, 1, …
    """
    b1s = b1 if isinstance(b1, list) else [b1] * len(found)
    m, n = found[0].shape
    factor = {0: (1 - bf) * found[0] @ found[0].T, 1: (1 - bf) * found[0].T @ found[0]}
    Q = {0: torch.eye(m, dtype=F64), 1: torch.eye(n, dtype=F64)}
    factored = [axis for axis in (0, 1) if found[0].shape[axis] <= largest]
    for axis in factored:
        values, vectors = torch.linalg.eigh(factor[axis])
        Q[axis] = vectors[:, values.argsort(descending=True)]
    M, V, directions = torch.zeros(m, n, dtype=F64), torch.zeros(m, n, dtype=F64), []
    for t, (G, b1) in enumerate(zip(found[1:], b1s[1:], strict=True), 1):
        M = b1 * M + (1 - b1) * G
        V = b2 * V + (1 - b2) * (Q[0].T @ G @ Q[1]) ** 2
        turned = (Q[0].T @ M @ Q[1]) / (1 - b1**t) / ((V / (1 - b2**t)) ** 0.5 + eps)
        directions.append(Q[0] @ turned @ Q[1].T)
        factor[0] = bf * factor[0] + (1 - bf) * G @ G.T
        factor[1] = bf * factor[1] + (1 - bf) * G.T @ G
        if t % every == 0:
            for axis in factored:
                size = torch.stack([q @ factor[axis] @ q for q in Q[axis].T])
                order = size.argsort(descending=True)
                V = V[order] if axis == 0 else V[:, order]
                Q[axis] = gram_schmidt(factor[axis] @ Q[axis][:, order])
    return directions


@pytest.mark.parametrize(("shape", "largest"), [((5, 5), 9), ((4, 6), 5), ((6, 4), 5), ((4, 6), 1)])
@pytest.mark.parametrize("every", [1, 3])
def test_soap_is_algorithm_3(every, shape, largest):
    """The longer side of an oblong gradient has many eigenbases, so no two programs agree on it."""
    found = gradients(shape, 8)
    start = gradients(shape, 1)[0]
    numbers = {"betas": (0.9, 0.8), "factor_beta": 0.7, "eps": 1e-4, "every": every}
    path = stepped(Soap, start, found, lr=0.1, weight_decay=0.5, max_side=largest, **numbers)
    assert torch.equal(path[0], start)
    W = start
    for N, after in zip(
        soap_directions(found, 0.9, 0.8, 0.7, 1e-4, every, largest), path[1:], strict=True
    ):
        W = W - 0.1 * 0.5 * W - 0.1 * N
        torch.testing.assert_close(after, W, rtol=0, atol=1e-10)


@pytest.mark.parametrize("cautious", [True, False])
@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
def test_soap_muon_orthogonalises_soap_s_direction(cautious, adjust):
    found = gradients((6, 4), 5)
    start = gradients((6, 4), 1)[0]
    numbers = {"lr": 0.1, "weight_decay": 0.5, "cautious": cautious, "adjust_lr": adjust}
    numbers |= {"betas": (0.9, 0.8), "factor_beta": 0.7, "eps": 1e-4, "every": 1}
    path = stepped(SoapMuon, start, found, max_side=5, **numbers)
    rate = 0.2 * 6**0.5 if adjust == "match_rms_adamw" else 1.5**0.5
    W = start
    for N, after in zip(soap_directions(found, 0.9, 0.8, 0.7, 1e-4, 1, 5), path[1:], strict=True):
        X = newton_schulz(N)
        agrees = (X * W > 0) if cautious else torch.ones_like(W)
        W = W - 0.1 * 0.5 * W * agrees - 0.1 * rate * X
        torch.testing.assert_close(after, W, rtol=0, atol=1e-10)


def newton_schulz(N):
    """Five of Jordan's steps for a tall matrix."""
    X, eye = N / N.norm(), torch.eye(N.shape[1], dtype=F64)
    for _ in range(5):
        A = X.T @ X
        X = X @ (3.4445 * eye - 4.7750 * A + 2.0315 * A @ A)
    return X


@pytest.mark.parametrize("floor", [0.0, 2.0])
def test_soap_muon_damps_what_lengthens_a_matrix(floor):
    """Of ‖W‖'s growth a quarter is left, none of it from the tangent; decay comes after."""
    found = gradients((6, 4), 9)
    start = 0.3 * found[1]  # the first steps shorten it, later ones lengthen it
    numbers = {"lr": 0.1, "adjust_lr": "original", "weight_decay": 0.5, "outward": 0.25}
    numbers |= {"betas": (0.9, 0.8), "factor_beta": 0.7, "eps": 1e-4, "every": 1, "max_side": 5}
    path = stepped(SoapMuon, start, found, floor=floor, **numbers)
    W, signs = start, set()
    for N, after in zip(soap_directions(found, 0.9, 0.8, 0.7, 1e-4, 1, 5), path[1:], strict=True):
        U, w = newton_schulz(N), W / W.norm()
        radial = (U * w).sum() * w
        signs.add(bool((U * w).sum() < 0))
        U = U - radial + (0.25 if (U * w).sum() < 0 else 1.0) * radial
        least = floor / 1.5**0.5 * W.norm(dim=1) / U.norm(dim=1)
        U = 1.5**0.5 * U * least.clamp(min=1)[:, None]
        moved = W - 0.1 * U
        moved = moved / moved.norm() * (W.norm() - 0.1 * (U * w).sum())
        W = moved - 0.1 * 0.5 * moved * (U * W > 0)
        torch.testing.assert_close(after, W, rtol=0, atol=1e-10)
    assert signs == {True, False}


def test_soap_muon_with_damping_moves_a_matrix_of_zeros():
    path = stepped(SoapMuon, torch.zeros(6, 4, dtype=F64), gradients((6, 4), 4), lr=0.1, outward=0)
    assert all(W.isfinite().all() for W in path)
    assert path[1].norm() > 0


def test_soap_muon_with_damping_turns_no_matrix_round():
    """A step inwards that is longer than the matrix leaves it tiny, not negative."""
    found = gradients((6, 4), 3)
    start = 1e-3 * newton_schulz(soap_directions(found, 0.9, 0.8, 0.7, 1e-4, 1, 5)[0])
    numbers = {"betas": (0.9, 0.8), "factor_beta": 0.7, "eps": 1e-4, "every": 1, "max_side": 5}
    path = stepped(SoapMuon, start, found, lr=1.0, outward=0.5, **numbers)
    assert path[1].norm() == pytest.approx(1e-8)


@pytest.mark.parametrize("outward", [-0.1, 1.5, float("nan")])
def test_soap_muon_refuses_a_part_that_is_none(outward):
    with pytest.raises(UserError, match=r"outward must be from 0 to 1"):
        SoapMuonConfig(outward=outward)


@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
def test_soap_muon_lengthens_the_step_of_a_long_row(adjust):
    """A row's step is at least lr·f·‖row‖; of these rows some are long enough for that."""
    found = gradients((6, 4), 5)
    start = gradients((6, 4), 1)[0] * torch.tensor([4.0, 0.0, 0.01, 1.0, 2.0, 0.1]).to(F64)[:, None]
    numbers = {"lr": 0.1, "adjust_lr": adjust, "floor": 0.3825, "every": 1, "max_side": 5}
    numbers |= {"betas": (0.9, 0.8), "factor_beta": 0.7, "eps": 1e-4}
    path = stepped(SoapMuon, start, found, **numbers)
    rate = 0.2 * 6**0.5 if adjust == "match_rms_adamw" else 1.5**0.5
    W, lengthened = start, []
    for N, after in zip(soap_directions(found, 0.9, 0.8, 0.7, 1e-4, 1, 5), path[1:], strict=True):
        rows = []
        for u, w in zip(rate * newton_schulz(N), W, strict=True):
            lengthened.append(bool(u.norm() < 0.3825 * w.norm()))
            rows.append(u * 0.3825 * w.norm() / u.norm() if lengthened[-1] else u)
        W = W - 0.1 * torch.stack(rows)
        torch.testing.assert_close(after, W, rtol=0, atol=1e-10)
    assert set(lengthened) == {True, False}


def test_soap_muon_s_momentum_is_warmed_up_and_cooled_down():
    """0.85 to 0.95 in 4 steps, to 0.75 in the last 2 of 8; step 0 only sets the bases."""
    found, start = gradients((6, 4), 8), gradients((6, 4), 1)[0]
    weight = torch.nn.Parameter(start.clone())
    own = {"momentum_warmup": 4, "momentum_end": 0.75, "momentum_cooldown": 2}
    numbers = {"betas": (0.95, 0.8), "factor_beta": 0.7, "eps": 1e-4, "every": 1, "max_side": 5}
    optimizer = SoapMuon([weight], lr=0.1, momentum_start=0.85, **own, **numbers)
    b1s = [0.85, 0.875, 0.9, 0.925, 0.95, 0.95, 0.85, 0.75]
    directions = [None, *soap_directions(found, b1s, 0.8, 0.7, 1e-4, 1, 5)]
    W = start
    for step, (G, N) in enumerate(zip(found, directions, strict=True)):
        weight.grad = G.clone()
        cool_momentum(optimizer, 8 - step)
        optimizer.step()
        W = W if N is None else W - 0.1 * 0.2 * 6**0.5 * newton_schulz(N)
        torch.testing.assert_close(weight.detach(), W, rtol=0, atol=1e-10)


@pytest.mark.parametrize("power", [0.0, 0.3, 0.5, 1.0])
def test_the_gate_is_the_sigmoid_of_the_logarithm(power):
    found = [g * 10.0 ** (i - 3) for i, g in enumerate(gradients((3, 5), 5))]
    start = gradients((3, 5), 1)[0]
    path = stepped(
        GatedAdamW, start, found, lr=0.1, betas=(0.9, 0.8), weight_decay=0.5, power=power,
        eps_gate=0.02, scale=3.0, eps=1e-6,
    )  # fmt: skip
    W, m, v = start, torch.zeros_like(start), torch.zeros_like(start)
    for t, (G, after) in enumerate(zip(found, path, strict=True), 1):
        m, v = 0.9 * m + 0.1 * G, 0.8 * v + 0.2 * G**2
        d = (v / (1 - 0.8**t)) ** 0.5 + 1e-6
        gate = torch.sigmoid(power * torch.log(d / 0.02))
        W = W - 0.1 * (3.0 * gate * m / (1 - 0.9**t) / d + 0.5 * W)
        torch.testing.assert_close(after, W, rtol=0, atol=1e-12)


def test_a_gate_of_power_one_is_adamw_with_its_eps():
    start, found = gradients((3, 5), 1)[0], gradients((3, 5), 4)
    gated = stepped(GatedAdamW, start, found, lr=0.1, power=1.0, eps_gate=0.3, eps=1e-30)
    plain = {"lr": 0.1, "betas": (0.9, 0.95), "eps": 0.3, "weight_decay": 0.0}
    adamw = stepped(torch.optim.AdamW, start, found, **plain)
    for a, b in zip(gated, adamw, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def one_step(model, optimizer, seed=0):
    x = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(seed))
    model.loss(x, x.roll(-1, 1)).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("name", NAMES)
def test_matrices_by_the_rule_and_the_rest_by_adamw_with_the_state_declared(name):
    model = build("ngpt", **SMALL)
    config = OptimConfig(name=name, lr=1e-2, adam_lr=3e-3, weight_decay=0.1)
    optimizer = build_optimizer(model, config)
    for seed in range(3):
        one_step(model, optimizer, seed)
    group = {id(p): g for g in optimizer.param_groups for p in g["params"]}
    for key, role in roles(model).items():
        weight = model.get_parameter(key)
        assert group[id(weight)]["initial_lr"] == (1e-2 if role == "matrix" else 3e-3), key
        own = "every" in group[id(weight)] or "eps_gate" in group[id(weight)]
        assert own == (role == "matrix"), key
        declared = state_spec(optimizer, weight)
        kept = {k: (tuple(t.shape), t.dtype) for k, t in optimizer.state[weight].items()}
        assert kept == {k: (tuple(s.shape), s.dtype) for k, s in declared.items()}, key
    twin, its = copy.deepcopy((model, optimizer))
    for pair in ((model, optimizer), (twin, its)):
        one_step(*pair, seed=9)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("kind", ["declared", "none", "sphere", *REMEMBERED])
@pytest.mark.parametrize("name", NAMES)
def test_constraints_hold_and_nothing_becomes_nan(name, kind):
    model = build("ngpt", **SMALL)
    config = OptimConfig(
        name=name, lr=0.02, constraint=ConstraintConfig(kind=kind, cpr=CPRConfig(warm_steps=2))
    )
    optimizer = build_optimizer(model, config)
    constrain(model, optimizer, config=config.constraint)
    before = [p.detach().clone() for p in model.parameters()]
    for seed in range(3):
        one_step(model, optimizer, seed)
    for p, q in zip(model.parameters(), before, strict=True):
        assert p.isfinite().all()
        assert not torch.equal(p, q)
        if kind in ("frobenius", "hyperball") and "radius" in optimizer.state[p]:
            torch.testing.assert_close(p.detach().norm(), q.norm())


@pytest.mark.parametrize("kind", [Soap, SoapMuon])
def test_a_first_gradient_that_is_not_finite_is_left_to_the_guard(kind):
    weight = torch.nn.Parameter(torch.ones(3, 4))
    optimizer, guard = kind([weight], lr=0.1), Guard("skip")
    for step, value in enumerate((math.nan, math.inf, 1e30)):
        weight.grad = torch.full((3, 4), value)
        guard.counts(step, torch.tensor(math.nan), weight.grad.norm())
        with guard.undoing_spikes(optimizer):
            optimizer.step()
        assert torch.equal(weight.detach(), torch.ones(3, 4))
        assert not optimizer.state[weight]


@pytest.mark.parametrize("name", ["soap-muon", "gated-adamw"])
def test_a_run_resumes_bit_for_bit_by_its_own_keys(name, tiny, tmp_path):
    kind, key = optim_config_type(), name.replace("-", "_")
    soap_muon = {"every": 2, "cautious": False, "floor": 0.4}
    soap_muon |= {"momentum_warmup": 4, "momentum_cooldown": 4}
    numbers = {"soap_muon": soap_muon, "gated_adamw": {"power": 0.7}}[key]
    own = kind.__dataclass_fields__[key].default_factory(**numbers)
    optim = kind(name=name, lr=1e-2, adam_lr=3e-3, **{key: own})
    config = dataclasses.replace(tiny("ngpt", sample_every=5), optim=optim)
    check_resumed(config, tmp_path)


def test_numbers_out_of_range_are_refused():
    kinds = {"soap": SoapConfig, "soap_muon": SoapMuonConfig, "gated_adamw": GatedConfig}
    for section, key, value in (
        ("soap", "beta2", 1.0),
        ("soap_muon", "every", 0),
        ("soap_muon", "floor", -1.0),
        ("soap_muon", "momentum_end", 1.0),
        ("soap", "max_side", 0),
        ("soap", "eps", -1.0),
        ("gated_adamw", "power", 1.5),
        ("gated_adamw", "eps_gate", 0.0),
    ):
        with pytest.raises(UserError, match=rf"(optim\.{section}\.)?{key} must be"):
            kinds[section](**{key: value})
    with pytest.raises(UserError, match="two axes"):
        Soap([torch.nn.Parameter(torch.zeros(2, 3, 4))])
