"""Muon's own keys, NorMuon, MuonH and AdamH: references in fp64, from the formulas alone."""

import copy
import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from run_folders import check_resumed
from scipy.optimize import linprog
from training.distributed.parallel_cases import Case, losses, resumed, save, trainer_of
from training.distributed.parallel_launch import launch

from unitsphere.errors import UserError
from unitsphere.models.constraint import roles
from unitsphere.models.registry import build
from unitsphere.training.distributed.layout import Degrees
from unitsphere.training.optim import OptimConfig, build_optimizer, muon, optim_config_type
from unitsphere.training.optim.average import AverageConfig, averaged
from unitsphere.training.optim.constraint import ConstraintConfig, constrain
from unitsphere.training.optim.muon import Muon, MuonConfig, NorMuonConfig, OrthogonalConfig
from unitsphere.training.optim.orthogonal import (
    COEFFICIENTS,
    MINIMAX,
    STACK,
    orthogonalise,
    per_call,
)
from unitsphere.training.optim.state import state_spec

SMALL = {"vocab_size": 40, "d_model": 16, "n_layers": 1, "n_heads": 2}
HYPERP = [
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]


DECLARED = ConstraintConfig()


def settings(name, constraint=DECLARED, **own):
    """An `OptimConfig` with the optimizer's own keys."""
    kinds = {"muon": MuonConfig, "normuon": NorMuonConfig, "muonh": OrthogonalConfig}
    section = {name: kinds[name](**own)} if own else {}
    decay = 0.1 if name in ("muon", "normuon") and constraint.kind != "hyperball" else 0.0
    config = optim_config_type()
    return config(name=name, lr=1e-2, weight_decay=decay, constraint=constraint, **section)


def gradients(weight, steps=4):
    for seed in range(steps):
        generator = torch.Generator().manual_seed(seed)
        yield torch.randn(weight.shape, generator=generator, dtype=torch.float64)


def polynomial(u, steps, triples):
    """Newton–Schulz by singular values: a polynomial of each, the last triple repeated."""
    left, s, right = torch.linalg.svd(u, full_matrices=False)
    s = s / s.norm()
    for k in range(steps):
        a, b, c = triples[min(k, len(triples) - 1)]
        s = a * s + b * s**3 + c * s**5
    return left @ s.diag() @ right


def of_layer(name, layer, **own):
    model = build("gpt", **SMALL).double()
    optimizer = build_optimizer(model, settings(name, **own))
    return getattr(model.blocks[0].mlp, layer).weight, optimizer


@pytest.mark.parametrize(("name", "steps", "off"), [("polar-express", 6, 0.02), ("hyperp", 5, 0.2)])
def test_better_coefficients_bring_singular_values_nearer_to_1(name, steps, off):
    u = torch.randn(24, 40, generator=torch.Generator().manual_seed(0)).double()
    found = orthogonalise(u, steps, name)
    torch.testing.assert_close(found, polynomial(u, steps, COEFFICIENTS[name]), rtol=0, atol=1e-10)
    assert (torch.linalg.svdvals(found) - 1).abs().max() < off
    exact = torch.linalg.svdvals(orthogonalise(u, 12, "convergent"))
    torch.testing.assert_close(exact, torch.ones(24).double(), rtol=0, atol=1e-6)


def minimax(low, steps):
    """(a, b, c) of each step: the best odd quintic for 1 on where the one before leaves [low, 1].

    By linear programming on a grid: smallest e with |ax + bx³ + cx⁵ − 1| ≤ e.
    """
    triples, high = [], 1.0
    for _ in range(steps):
        x = low + (high - low) * (1 - np.cos(np.linspace(0, np.pi, 2001))) / 2
        terms, ones = np.stack([x, x**3, x**5], axis=1), np.ones((2001, 1))
        bounds = np.vstack([np.hstack([terms, -ones]), np.hstack([-terms, -ones])])
        sides = np.concatenate([ones, -ones]).ravel()
        *triple, off = linprog([0, 0, 0, 1], bounds, sides, bounds=[(None, None)] * 4).x
        triples.append(tuple(map(float, triple)))
        low, high = 1 - off, 1 + off
    return triples, off


@pytest.mark.parametrize(
    ("steps", "low", "off"), [(2, 0.03, 0.38), (3, 0.01, 0.27), (4, 0.005, 0.083)]
)
def test_minimax_has_the_best_polynomials(steps, low, off):
    triples, found = minimax(low, steps)
    assert found == pytest.approx(off, abs=2e-3)
    np.testing.assert_allclose(MINIMAX[steps], triples, rtol=1e-3)


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (24, 24), (24, 26)])
@pytest.mark.parametrize("steps", MINIMAX)
def test_minimax_is_its_polynomials_of_singular_values_by_a_tighter_bound(steps, shape):
    u = 7 * torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    left, s, right = torch.linalg.svd(u, full_matrices=False)
    x = s / (s**4).sum() ** 0.25  # √‖UUᵀ‖_F is the fourth root of Σσ⁴, at least the largest σ
    for a, b, c in MINIMAX[steps]:
        x = a * x + b * x**3 + c * x**5
    found = orthogonalise(u, steps, "minimax")
    torch.testing.assert_close(found, left @ x.diag() @ right, rtol=0, atol=1e-10)
    in_fp32 = orthogonalise(u.float(), steps, "minimax")
    assert in_fp32.dtype == torch.float32
    torch.testing.assert_close(in_fp32.double(), found, rtol=0, atol=1e-4)
    assert orthogonalise(torch.zeros(shape), steps, "minimax").count_nonzero() == 0


@pytest.mark.parametrize("name", ["muon", "normuon", "muonh"])
def test_minimax_has_2_to_4_steps(name):
    model = build("gpt", **SMALL)
    with pytest.raises(UserError, match=r"2 to 4 steps: optim\.ns_steps is 5"):
        build_optimizer(model, settings(name, coefficients="minimax"))


@pytest.mark.parametrize("shape", [(64, 192), (192, 64)])
@pytest.mark.parametrize("name", ["quintic", "polar-express", "hyperp"])
def test_one_factor_is_as_exact_as_step_by_step_where_singular_values_are_small(name, shape):
    """Singular values from 1 to 1e-4: their squares are at fp32's rounding."""
    u = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    left, s, right = torch.linalg.svd(u, full_matrices=False)
    u = left @ torch.logspace(0, -4, len(s), dtype=torch.float64).diag() @ right
    wanted = polynomial(u, 5, COEFFICIENTS[name])
    torch.testing.assert_close(orthogonalise(u, 5, name), wanted, rtol=0, atol=1e-9)
    off = (orthogonalise(u.float(), 5, name) - wanted).norm() / wanted.norm()
    assert off < 2e-3


@pytest.mark.parametrize("shape", [(12, 20), (20, 12), (16, 16)])
def test_many_in_one_call_are_as_one_by_one(shape):
    updates = [torch.randn(shape, generator=torch.Generator().manual_seed(s)) for s in range(3)]
    alone = [orthogonalise(u, 5, "hyperp") for u in updates]
    for a, b in zip(alone, orthogonalise(torch.stack(updates), 5, "hyperp"), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    alone = [orthogonalise(u, 3, "minimax") for u in updates]
    for a, b in zip(alone, orthogonalise(torch.stack(updates), 3, "minimax"), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["muon", "normuon"])
def test_with_batched_stacks_of_experts_step_as_without(name):
    moved = []
    for batched in (False, True):
        model = build("gpt", **SMALL, n_experts=3, d_ff=16)
        optimizer = build_optimizer(model, settings(name, batched=batched))
        for seed in range(2):
            torch.manual_seed(seed)
            for p in model.parameters():
                p.grad = torch.randn(p.shape)
            optimizer.step()
        moved.append(model.state_dict())
    torch.testing.assert_close(moved[1], moved[0], rtol=0, atol=1e-5)


def test_equal_matrices_share_a_call_on_a_gpu_and_where_it_is_asked_for():
    matrix = torch.empty(8, 16)
    assert [per_call(matrix, batched) for batched in (False, True)] == [1, STACK // 128]
    on_gpu = SimpleNamespace(device=torch.device("cuda", 1), numel=lambda: 128)
    assert per_call(on_gpu, False) == STACK // 128
    assert per_call(torch.empty(STACK + 1, device="meta"), True) == 1


def test_a_large_stack_is_stepped_in_several_calls(monkeypatch):
    moved, calls = [], []
    orthogonal = muon.orthogonalise

    def counted(updates, *numbers):
        calls.append(len(updates) if updates.dim() == 3 else 1)
        return orthogonal(updates, *numbers)

    monkeypatch.setattr(muon, "orthogonalise", counted)
    for most in (1, 3 * 8 * 16, 99 * 8 * 16):
        monkeypatch.setattr("unitsphere.training.optim.orthogonal.STACK", most)
        calls.clear()
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(8, 16, generator=generator).requires_grad_() for _ in range(7)]
        for weight in weights:
            weight.grad = torch.randn(8, 16, generator=generator)
        muon.Muon(weights, batched=True).step()
        moved.append(torch.stack([weight.detach() for weight in weights]))
        assert calls == {1: [1] * 7, 3 * 8 * 16: [3, 3, 1], 99 * 8 * 16: [7]}[most]
    for other in moved[1:]:
        torch.testing.assert_close(other, moved[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("layer", ["W_oMLP", "W_u"])
def test_cautious_decay_and_warm_momentum_follow_the_equations(layer, batched):
    W, optimizer = of_layer(
        "muon", layer, cautious=True, momentum_warmup=3, coefficients="hyperp", batched=batched
    )
    held, expected = torch.zeros_like(W), W.detach().clone()
    for t, G in enumerate(gradients(W, 5)):
        W.grad = G
        optimizer.step()
        mu = min(0.85 + (0.95 - 0.85) * t / 3, 0.95)
        held = mu * held + (1 - mu) * G
        step = 0.2 * 64**0.5 * polynomial((1 - mu) * G + mu * held, 5, HYPERP)
        agree = torch.sign(step) == torch.sign(expected)
        expected = expected - 1e-2 * step - 1e-2 * 0.1 * torch.where(agree, expected, 0.0)
        torch.testing.assert_close(W.detach(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("layer", ["W_oMLP", "W_u"])
def test_matrices_take_turns(layer, batched):
    """Every third step one of three moves, by three times the rate; the momentum misses none."""
    W, optimizer = of_layer("muon", layer, turns=3, momentum_warmup=3, batched=batched)
    (group,) = [g for g in optimizer.param_groups if any(p is W for p in g["params"])]
    (place,) = [at for at, weight in enumerate(group["params"]) if weight is W]
    held, expected, moved = torch.zeros_like(W), W.detach().clone(), []
    for t, G in enumerate(gradients(W, 7)):
        before = [weight.detach().clone() for weight in group["params"]]
        for weight in group["params"]:
            weight.grad = G if weight is W else torch.ones_like(weight)
        optimizer.step()
        mu = min(0.85 + (0.95 - 0.85) * t / 3, 0.95)
        held = mu * held + (1 - mu) * G
        if (t + place) % 3 == 0:
            step = 0.2 * 64**0.5 * polynomial((1 - mu) * G + mu * held, 5, COEFFICIENTS["quintic"])
            expected = expected - 3e-2 * step - 3e-2 * 0.1 * expected
        torch.testing.assert_close(W.detach(), expected, rtol=0, atol=1e-10)
        pairs = zip(before, group["params"], strict=True)
        moved.append({at for at, (old, new) in enumerate(pairs) if not torch.equal(old, new)})
    for one, two, three in zip(moved, moved[1:], moved[2:], strict=False):
        assert one | two | three == set(range(len(before)))
        assert len(one) + len(two) + len(three) == len(before)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
@pytest.mark.parametrize("layer", ["W_oMLP", "W_u"])
def test_a_step_changes_a_matrix_by_at_least_the_floor(layer, adjust, batched):
    """‖U‖ ≥ 0.35·‖W‖ for the update U, of the norm before the step; a small W is left alone."""
    model = build("gpt", **SMALL).double()
    own = MuonConfig("hyperp", floor=0.35, batched=batched)
    config = optim_config_type()(name="muon", lr=0.1, weight_decay=0.1, adjust_lr=adjust, muon=own)
    optimizer = build_optimizer(model, config)
    W = getattr(model.blocks[0].mlp, layer).weight
    lengthened = []
    for size in (1e-3, 50.0):
        with torch.no_grad():
            W.mul_(size / W.norm())
        expected, held, optimizer.state[W] = W.detach().clone(), torch.zeros_like(W), {}
        for G in gradients(W, 2):
            W.grad = G
            held = 0.95 * held + 0.05 * G
            optimizer.step()
            rows, columns = W.shape
            rate = max(1, rows / columns) ** 0.5 if adjust == "original" else 0.2 * 64**0.5
            U = rate * polynomial(0.05 * G + 0.95 * held, 5, HYPERP)
            lengthened.append(bool(U.norm() < 0.35 * expected.norm()))
            if lengthened[-1]:
                U = U * 0.35 * expected.norm() / U.norm()
            expected = expected - 0.1 * U - 0.1 * 0.1 * expected
            torch.testing.assert_close(W.detach(), expected, rtol=0, atol=1e-9)
    assert lengthened == [False, False, True, True]


@pytest.mark.parametrize("layer", ["W_oMLP", "W_u"])
def test_normuon_follows_the_equations(layer):
    W, optimizer = of_layer("normuon", layer, beta2=0.9, coefficients="hyperp")
    rows = W.shape[0] > W.shape[1]
    held, expected, v = torch.zeros_like(W), W.detach().clone(), 0.0
    for G in gradients(W):
        W.grad = G
        optimizer.step()
        held = 0.95 * held + 0.05 * G
        direction = polynomial(0.05 * G + 0.95 * held, 5, HYPERP)
        v = 0.9 * v + 0.1 * (direction**2).mean(1 if rows else 0, keepdim=True)
        divided = direction / v.sqrt()
        divided = divided * direction.norm() / divided.norm()
        expected = (1 - 1e-2 * 0.1) * expected - 1e-2 * 0.2 * 64**0.5 * divided
        torch.testing.assert_close(W.detach(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["start", "before"])
@pytest.mark.parametrize("name", ["muonh", "adamh"])
def test_muonh_and_adamh_follow_the_equations(name, norm):
    """HyperP's step, with Muon's direction or Adam's; on the head by Adam in both."""
    model = build("gpt", tied=False, **SMALL).double()
    own = {"muonh": OrthogonalConfig("hyperp")} if name == "muonh" else {}
    config = optim_config_type()(name=name, lr=0.1, constraint=ConstraintConfig(norm=norm), **own)
    optimizer = build_optimizer(model, config)
    constrain(model, optimizer, config=config.constrained)
    W, role = model.blocks[0].mlp.W_u.weight, roles(model)
    (head,) = [model.get_parameter(n) for n, r in role.items() if r == "head"]
    free = [p for n, p in model.named_parameters() if role[n] not in ("matrix", "head")]
    assert not any("radius" in state_spec(optimizer, p) for p in free)
    assert ("radius" in state_spec(optimizer, W)) == (norm == "start")
    state = {p: (p.detach().clone(), torch.zeros_like(p), torch.zeros_like(p)) for p in (W, head)}
    R = {p: p.detach().norm() for p in (W, head)}
    for t, (G, H) in enumerate(zip(gradients(W), gradients(head), strict=True), 1):
        W.grad, head.grad = G, H
        optimizer.step()
        for p, g in ((W, G), (head, H)):
            old, m, v = state[p]
            if name == "muonh" and p is W:
                m = 0.95 * m + 0.05 * g
                direction = polynomial(0.05 * g + 0.95 * m, 5, HYPERP)
            else:
                m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
                direction = (m / (1 - 0.9**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-8)
            r = R[p] if norm == "start" else old.norm()
            new = old - 0.1 * r * direction / direction.norm()
            state[p] = (r * new / new.norm(), m, v)
            torch.testing.assert_close(p.detach(), state[p][0], rtol=0, atol=1e-9)
        if t == 2:  # something from outside: only `before` takes the new norm
            with torch.no_grad():
                for p in (W, head):
                    p.mul_(1.5)
                    state[p] = (state[p][0] * 1.5, *state[p][1:])


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="brings the constraint 'hyperball'"):
        OptimConfig(name="muonh", constraint=ConstraintConfig("sphere"))
    with pytest.raises(UserError, match=r"weight_decay is for optim\.name"):
        OptimConfig(name="adamh", weight_decay=0.1)
    with pytest.raises(UserError, match=r"are for optim\.constraint\.kind 'hyperball'"):
        OptimConfig(constraint=ConstraintConfig(norm="before"))
    for number in (
        {"beta2": 1.0},
        {"floor": -0.1},
        {"momentum_start": -0.1},
        {"momentum_warmup": -1},
        {"turns": 0},
    ):
        with pytest.raises(UserError, match=f"{next(iter(number))} must"):
            NorMuonConfig(**number)
    for constraint in (ConstraintConfig("hyperball"), ConstraintConfig(angle_cap=1.0)):
        with pytest.raises(UserError, match=r"optim\.muon\.turns 2 moves a matrix by 2"):
            settings("muon", turns=2, constraint=constraint)
    model = build("gpt", **SMALL)
    torch.nn.init.zeros_(model.blocks[0].mlp.W_oMLP.weight)
    for config in (
        OptimConfig(name="muonh"),
        OptimConfig(constraint=ConstraintConfig("frobenius")),
    ):
        with pytest.raises(UserError, match=r"W_oMLP.*starts at zero"):
            constrain(model, build_optimizer(model, config), config=config.constrained)


def test_a_state_from_before_these_keys_continues():
    weight = torch.nn.Parameter(torch.randn(6, 4))
    old = torch.optim.Muon([weight])
    twin = Muon([copy.deepcopy(weight)])
    twin.load_state_dict(old.state_dict())
    (group,) = twin.param_groups
    assert {k: group[k] for k in Muon.own} == Muon.own


def test_resuming_is_bitwise_the_uninterrupted_run(tiny, tmp_path):
    own = {
        "momentum_warmup": 6,
        "floor": 0.35,
        "cautious": True,
        "batched": True,
        "coefficients": "hyperp",
        "turns": 2,
    }
    config = dataclasses.replace(tiny("gpt", sample_every=5), optim=settings("normuon", **own))
    check_resumed(config, tmp_path)


AVERAGED = {"average": AverageConfig("ema", decay=0.5)}
SHARDED = {
    "normuon": Case(
        "gpt", model={"n_layers": 1}, optim={"name": "normuon", "weight_decay": 0.1} | AVERAGED
    ),
    "muon": Case(
        "gpt",
        model={"n_layers": 1},
        optim={"name": "muon", "muon": MuonConfig(floor=20.0, turns=2)} | AVERAGED,
    ),
    "muonh": Case("gpt", model={"n_layers": 1}, optim={"name": "muonh"} | AVERAGED),
}
LAYOUTS = {"fsdp2": Degrees(dp_shard=2), "tp": Degrees(tp=2)}


@torch.no_grad()
def by_its_average(trainer):
    """The loss of the averaged weights; the model's own is the same before and after."""
    batch, model = trainer.batches.batch(9), trainer.model
    own = model.loss(batch.inputs, batch.targets)
    with averaged(model, trainer.optimizer, trainer.config.optim.constrained):
        found = model.loss(batch.inputs, batch.targets)
    assert torch.equal(own, model.loss(batch.inputs, batch.targets))
    assert not torch.equal(own, found)
    return found[None, None].expand(1, 2)


def on_shards(rank, root):
    """Each on each layout: its losses, those after a checkpoint, that of the average."""
    for (name, case), (on, layout) in itertools.product(SHARDED.items(), LAYOUTS.items()):
        trainer, there = trainer_of(case, layout, rank), root / f"{name}-{on}"
        first = losses(trainer, range(3))
        there.mkdir(exist_ok=True)
        folder = save(there, trainer, 3)
        rest = losses(trainer, range(3, 5))
        again = resumed(case, folder, layout, rank)
        assert torch.equal(rest, losses(again, range(3, 5))), there.name
        average = by_its_average(trainer)
        assert torch.equal(average, by_its_average(again)), there.name
        if rank == 0:
            torch.save(torch.cat([first, rest, average]), there / "found.pt")


def test_on_shards_they_have_the_losses_of_one_process(tmp_path):
    launch(on_shards, 2, tmp_path)
    for name, case in SHARDED.items():
        alone = trainer_of(case)
        expected = torch.cat([losses(alone, range(5)), by_its_average(alone)])
        for on in LAYOUTS:
            found = torch.load(tmp_path / f"{name}-{on}" / "found.pt")
            assert torch.allclose(found, expected, atol=1e-4), (name, on)
