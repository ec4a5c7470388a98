import copy
import pickle

import pytest
import torch
from reference import optim as oracle

import unitsphere
from unitsphere.errors import UserError
from unitsphere.models.constraint import constraints, overridden
from unitsphere.training.optim import OptimConfig, build_optimizer
from unitsphere.training.optim.constraint import ConstraintConfig, constrain
from unitsphere.training.optim.cpr import CPRConfig

SMALL = {"vocab_size": 40, "d_model": 32, "n_layers": 2, "n_heads": 2}


def train(model, optimizer, steps=8):
    x = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss(x, x.roll(-1, 1)).backward()
        optimizer.step()


@pytest.mark.parametrize("name", ["ngpt", "angpt"])
def test_the_stored_tensors_stay_constrained_in_a_plain_loop(name):
    model = unitsphere.build(name, **SMALL)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    unitsphere.constrain(model, optimizer)
    train(model, optimizer)
    held = {id(p) for g in optimizer.param_groups for p in g["params"]}
    parameters = dict(model.named_parameters())
    inside = 0
    for c in constraints(model):
        assert id(parameters[c.parameter]) in held
        length = parameters[c.parameter].norm(dim=c.dim)
        if c.kind == "sphere":
            assert (length - 1).abs().max() < 1e-6
        else:
            assert length.max() < 1 + 1e-6
            inside += (length < 0.999).sum()
    assert name == "ngpt" or inside > 0  # the ball is used: some vectors shrink


def test_it_projects_at_once():
    model = unitsphere.build("ngpt", **SMALL)
    with torch.no_grad():
        model.E_in.weight.mul_(3)
    constrain(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert (model.E_in.weight.norm(dim=1) - 1).abs().max() < 1e-6


def test_weights_of_a_checkpoint_keep_their_bits_where_it_does_not_project_now():
    model = unitsphere.build("ngpt", **SMALL)
    with torch.no_grad():
        model.E_in.weight.mul_(3)
    before = model.E_in.weight.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    constrain(model, optimizer, now=False)
    assert torch.equal(model.E_in.weight, before)
    train(model, optimizer)
    assert (model.E_in.weight.norm(dim=1) - 1).abs().max() < 1e-6


def test_without_it_the_weights_drift():
    model = unitsphere.build("ngpt", **SMALL)
    train(model, torch.optim.Adam(model.parameters(), lr=0.1))
    assert (model.E_in.weight.norm(dim=1) - 1).abs().max() > 0.1


def test_handles_undo_it():
    model = unitsphere.build("ngpt", **SMALL)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for handle in constrain(model, optimizer):
        handle.remove()
    train(model, optimizer)
    assert (model.E_in.weight.norm(dim=1) - 1).abs().max() > 0.1


def test_an_optimizer_of_copies_is_refused():
    model = unitsphere.build("ngpt", **SMALL)
    copies = [p.detach().clone().requires_grad_() for p in model.parameters()]
    with pytest.raises(ValueError, match=r"no optimizer holds .* 'E_in\.weight' itself"):
        constrain(model, torch.optim.Adam(copies))


@pytest.mark.parametrize(
    ("swapped", "said"),
    [(False, "NoneType is not a torch Optimizer"), (True, "Adam is not a torch Module")],
)
def test_what_is_no_model_or_no_optimizer_is_refused(swapped, said):
    model = unitsphere.build("ngpt", **SMALL)
    optimizer = torch.optim.Adam(model.parameters())
    given = (optimizer, model) if swapped else (model, None)
    with pytest.raises(TypeError, match=said):
        constrain(*given)


def test_several_optimizers_share_a_model_and_frozen_parameters_need_none():
    model = unitsphere.build("ngpt", **SMALL)
    model.E_in.weight.requires_grad_(False)
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and n != "E_in.weight"]
    others = [p for p in model.parameters() if p.ndim != 2]
    optimizers = torch.optim.SGD(matrices, lr=0.1), torch.optim.Adam(others, lr=0.1)
    constrain(model, *optimizers)
    for optimizer in optimizers:
        train(model, optimizer)
    parameters = dict(model.named_parameters())
    for c in constraints(model):
        assert (parameters[c.parameter].norm(dim=c.dim) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "config",
    [ConstraintConfig(), ConstraintConfig(riemannian=True), ConstraintConfig(angle_cap=1.0)],
)
def test_frozen_parameters_that_an_optimizer_gets_later_are_constrained_too(config, fused):
    """Layers are thawed one after the other, each in a group of its own."""
    model = unitsphere.build("ngpt", **SMALL)
    late = list(model.blocks[1].parameters())
    for parameter in late:
        parameter.requires_grad_(False)
    early = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(early, lr=0.1, fused=fused)
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))])
    constrain(model, optimizer, other, config=config)
    before = [p.clone() for p in late]
    train(model, optimizer, 2)
    for parameter, old in zip(late, before, strict=True):
        assert torch.equal(parameter, old)
        parameter.requires_grad_(True)
    train(model, optimizer, 1)  # with gradients, and in no optimizer yet
    for parameter, old in zip(late, before, strict=True):
        assert torch.equal(parameter, old)
    optimizer.add_param_group({"params": late})
    train(model, optimizer, 2)
    other.step()
    assert (late[0] - before[0]).abs().max() > 0.01
    for c in constraints(model):
        assert (model.get_parameter(c.parameter).norm(dim=c.dim) - 1).abs().max() < 1e-6


def test_reloaded_optimizer_state_keeps_the_constraint():
    model = unitsphere.build("ngpt", **SMALL)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    constrain(model, optimizer)
    train(model, optimizer, 2)
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer, 2)
    assert (model.E_in.weight.norm(dim=1) - 1).abs().max() < 1e-6


def closest(model, kind="sphere"):
    """The largest distance of a constrained vector's length from 1 (for a ball: beyond 1)."""
    excess = [model.get_parameter(c.parameter).norm(dim=c.dim) - 1 for c in overridden(model, kind)]
    return max((e.abs() if kind == "sphere" else e).max().item() for e in excess)


@pytest.mark.parametrize(
    ("kind", "riemannian"), [("sphere", False), ("sphere", True), ("ball", False)]
)
def test_an_override_on_gpt_takes_the_in_axis_as_the_oracle_does(kind, riemannian):
    model = unitsphere.build("gpt", **SMALL).double()
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    wide = [n for n, p in start.items() if p.ndim == 2]
    config = ConstraintConfig(kind=kind, riemannian=riemannian)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, betas=(0.9, 0.95))
    constrain(model, optimizer, config=config)
    expected = start | {n: oracle.project(start[n], kind, 1) for n in wide}
    state, adam = oracle.State(), oracle.Adam(lr=0.1)
    for seed in range(3):
        x = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(seed))
        model.loss(x, x.roll(-1, 1)).backward()
        gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
        for n in wide if riemannian else []:
            w, g = expected[n], gradients[n]
            along = (w * g).sum(1, keepdim=True) / (w * w).sum(1, keepdim=True)
            gradients[n] = g - along * w
        optimizer.step()
        optimizer.zero_grad()
        expected, state = oracle.step(expected, gradients, state, adam)
        expected |= {n: oracle.project(expected[n], kind, 1) for n in wide}
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), expected[name], rtol=1e-8, atol=1e-10)
            torch.testing.assert_close(optimizer.state[p]["exp_avg"], state.m[name])


def test_riemannian_gradients_have_no_part_along_ngpt_s_vectors():
    model = unitsphere.build("ngpt", **SMALL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    constrain(model, optimizer, config=ConstraintConfig(riemannian=True))
    train(model, optimizer, 1)
    for c in constraints(model):
        w = model.get_parameter(c.parameter)
        assert (w * w.grad).sum(c.dim).abs().max() < 1e-6
    scale = model.blocks[0].attention.s_qk.stored
    assert scale.grad.abs().max() > 0


def test_none_leaves_a_normalized_architecture_free():
    model = unitsphere.build("ngpt", **SMALL)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    constrain(model, optimizer, config=ConstraintConfig(kind="none"))
    train(model, optimizer, 2)
    assert closest(model) > 0.1


def test_an_override_keeps_the_declared_axis():
    model = unitsphere.build("ngpt", **SMALL)
    axes = {c.parameter: c.dim for c in constraints(model)}
    assert {c.parameter: c.dim for c in overridden(model, "ball")} == axes
    assert {name for name, dim in axes.items() if dim == 0} == {
        name for name in axes if "W_o" in name
    }


@pytest.mark.parametrize("kind", ["ball", "cpr", "none"])
def test_riemannian_gradients_need_spheres(kind):
    with pytest.raises(UserError, match="riemannian needs weights on spheres"):
        ConstraintConfig(kind=kind, riemannian=True)


@pytest.mark.parametrize("name", ["gpt", "angpt"])
def test_riemannian_gradients_need_an_architecture_with_spheres(name):
    model = unitsphere.build(name, **SMALL)
    with pytest.raises(UserError, match="declares no sphere"):
        constrain(
            model,
            torch.optim.Adam(model.parameters()),
            config=ConstraintConfig(riemannian=True),
        )


KINDS = [
    ConstraintConfig(riemannian=True),
    ConstraintConfig(kind="ball"),
    ConstraintConfig(kind="frobenius"),
    ConstraintConfig(kind="hyperball"),
    ConstraintConfig(kind="cpr", cpr=CPRConfig("Kappa-kI0", value=0.9)),
]
CONFIGS = pytest.mark.parametrize("config", KINDS, ids=lambda config: config.kind)
ADAMS = pytest.mark.parametrize("name", ["adam", "muon"])


def pair(config, name="adam", seed=0, **numbers):
    """A small model and its constrained optimizer."""
    model = unitsphere.build("ngpt", seed=seed, **(SMALL | {"n_layers": 1}))
    optimizer = build_optimizer(model, OptimConfig(name=name, lr=0.05, **numbers))
    constrain(model, optimizer, config=config)
    return model, optimizer


def equal(model, other):
    return all(
        torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True)
    )


@CONFIGS
@ADAMS
def test_a_deep_copy_of_model_and_optimizer_continues_with_the_constraint(config, name):
    model, optimizer = pair(config, name)
    train(model, optimizer, 2)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    again, again_optimizer = copy.deepcopy((twin, twin_optimizer))
    before = [p.detach().clone() for p in twin.parameters()]
    train(model, optimizer, 3)
    assert all(torch.equal(p, q) for p, q in zip(twin.parameters(), before, strict=True))
    train(twin, twin_optimizer, 3)
    train(again, again_optimizer, 3)
    assert equal(model, twin)
    assert equal(model, again)


@CONFIGS
@ADAMS
def test_a_reload_into_fresh_objects_continues_the_same(config, name):
    model, optimizer = pair(config, name)
    train(model, optimizer, 2)
    other, other_optimizer = pair(config, name, seed=7)
    other.load_state_dict(model.state_dict())
    other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, 3)
    train(other, other_optimizer, 3)
    assert equal(model, other)


@CONFIGS
def test_a_pickled_pair_continues_the_same_once_constrained_again(config):
    model, optimizer = pair(config)
    train(model, optimizer, 2)
    other, other_optimizer = pickle.loads(pickle.dumps((model, optimizer)))
    constrain(other, other_optimizer, config=config)
    train(model, optimizer, 2)
    train(other, other_optimizer, 2)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


@CONFIGS
@pytest.mark.parametrize("unscaled", [False, True], ids=["scaled", "unscaled"])
@pytest.mark.parametrize("name", ["adam", "muon", "loop"])
def test_a_step_that_the_gradient_scaler_skips_leaves_the_weights_constrained(
    config, name, unscaled
):
    """Fused Adam is called and told; the others are not called at all. Clipping unscales first."""
    if name == "loop":
        model = unitsphere.build("ngpt", **(SMALL | {"n_layers": 1}))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        constrain(model, optimizer, config=config)
    else:
        model, optimizer = pair(config, name)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    x = torch.arange(24).reshape(2, 12)
    for factor in (1.0, torch.inf, 1.0):
        before = [p.detach().clone() for p in model.parameters()]
        scaler.scale(model.loss(x, x.roll(-1, 1)) * factor).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        moved = max(
            (p - q).abs().max().item() for p, q in zip(model.parameters(), before, strict=True)
        )
        assert (moved < 1e-6) == (factor == torch.inf)
        if config.kind == "declared":
            assert closest(model) < 1e-6
    assert scaler.get_scale() == 8.0


@CONFIGS
def test_accumulated_gradients_are_one_step(config):
    model, optimizer = pair(config)
    other, other_optimizer = copy.deepcopy((model, optimizer))
    x = torch.arange(24).reshape(2, 12)
    for _ in range(2):
        model.loss(x, x.roll(-1, 1)).backward()
        for row in x:
            (other.loss(row[None], row[None].roll(-1, 1)) / 2).backward()
        for one in (optimizer, other_optimizer):
            one.step()
            one.zero_grad()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


def test_handles_undo_everything_and_copies_made_then_are_free():
    model = unitsphere.build("ngpt", **SMALL)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for handle in constrain(model, optimizer, config=ConstraintConfig(riemannian=True)):
        handle.remove()
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    train(twin, twin_optimizer, 2)
    assert closest(twin) > 0.1
