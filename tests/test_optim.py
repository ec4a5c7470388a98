"""`unitsphere.optim` in anyone's loop: any module, groups by role, schedules of torch's."""

import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import unitsphere
from unitsphere import nn as unit
from unitsphere import optim
from unitsphere.errors import UserError
from unitsphere.models.registry import build
from unitsphere.training.optim import build_optimizer, optim_config_type
from unitsphere.training.optim.constraint import constrain
from unitsphere.training.optim.registry import OPTIMIZERS
from unitsphere.training.optim.schedule import with_decay
from unitsphere.training.optim.state import attached
from unitsphere.training.optim.state import state_spec as optim_state

SMALL = {"vocab_size": 40, "d_model": 16, "n_layers": 1, "n_heads": 2}
FOR_MATRICES = [
    optim.AdamH, optim.MuonH, optim.Muon, optim.NorMuon, optim.Soap, optim.SoapMuon,
    optim.GatedAdamW,
]  # fmt: skip


def digits(seed=0):
    """Points of four classes that a small network can tell apart."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 8, generator=generator)
    return x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()


def test_it_is_imported_without_the_rest():
    """Of the package it needs what optimizers stand on: no data, no trained run, no report."""
    code = "import sys, unitsphere.optim; print(*(m for m in sys.modules if 'unitsphere.' in m))"
    result = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
    loaded = {".".join(name.split(".")[1:3]) for name in result.stdout.decode().split()}
    tops = {name.split(".")[0] for name in loaded} - {"training"}
    assert tops == {"config", "errors", "files", "kernels", "models", "ops", "optim"}
    training = {name for name in loaded if name.startswith("training.")}
    assert training == {"training.optim", "training.by_size"}
    assert {name for name in loaded if name.startswith("models.")} == {"models.constraint"}


def test_every_name_is_there_and_documented():
    assert unitsphere.optim is optim
    for name in optim.__all__:
        assert getattr(optim, name).__doc__
        assert f"`{name}`" in (optim.__doc__ or "") or f"`{name}(" in (optim.__doc__ or ""), name


@pytest.mark.parametrize("kind", FOR_MATRICES, ids=lambda kind: kind.__name__)
def test_each_trains_a_module_of_torch_s_and_resumes(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
    loss_of, (x, y) = nn.CrossEntropyLoss(), digits()

    def made(model):
        matrices = [p for p in model.parameters() if p.dim() == 2]
        rest = [p for p in model.parameters() if p.dim() != 2]
        return optim.Combined(kind(matrices, lr=0.02), optim.AdamW(rest, lr=0.02))

    def steps(model, optimizer, count):
        found = []
        for _ in range(count):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    optimizer = made(model)
    norms = [p.norm() for p in model.parameters()]
    curve = steps(model, optimizer, 30)
    assert curve[-1] < curve[0] - 0.1
    if kind in (optim.AdamH, optim.MuonH):
        for before, p in zip(norms, model.parameters(), strict=True):
            assert p.dim() == 1 or torch.allclose(before, p.norm())
    twin = copy.deepcopy(model)
    again = made(twin)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert steps(twin, again, 3) == steps(model, optimizer, 3)


@pytest.mark.parametrize(
    "kind", [*FOR_MATRICES, torch.optim.AdamW, torch.optim.SGD], ids=lambda kind: kind.__name__
)
def test_with_weights_in_bf16_each_goes_on_as_if_it_had_not_been_saved(kind):
    torch.manual_seed(0)

    def made(weight):
        held = nn.Parameter(weight)
        optimizer = kind([held], lr=0.02)
        if kind in FOR_MATRICES:
            optimizer = optim.Combined(optimizer)
        optim.average(optimizer, decay=None)
        return held, optimizer

    def steps(count, *given):
        for n in range(count):
            for weight, optimizer in given:
                generator = torch.Generator().manual_seed(n)
                weight.grad = torch.randn(6, 4, generator=generator).bfloat16()
                optimizer.step()

    one = made(torch.randn(6, 4).bfloat16())
    steps(260, one)  # bf16 cannot count further than 256
    two = made(one[0].detach().clone())
    two[1].load_state_dict(copy.deepcopy(one[1].state_dict()))
    steps(3, one, two)
    assert torch.equal(one[0], two[0])
    for key, value in one[1].state[one[0]].items():
        found = two[1].state[two[0]][key]
        assert found.dtype == value.dtype, key
        assert torch.equal(found, value), key


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_build_is_what_train_has(name):
    models = [build("ngpt", **SMALL) for _ in range(2)]
    config = optim_config_type()(name=name, lr=1e-2)
    expected = build_optimizer(models[0], config)
    constrain(models[0], expected, config=config.constrained)
    found = optim.build(models[1], name, lr=1e-2)
    x = torch.arange(40)[None]
    for model, optimizer in zip(models, (expected, found), strict=True):
        for _ in range(2):
            model.loss(x, x.roll(-1, 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    for p, q in zip(*(m.parameters() for m in models), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("kind", [optim.AdamH, optim.MuonH])
def test_a_group_that_is_added_later_keeps_its_norms_too(kind):
    torch.manual_seed(0)
    first, later = (nn.Parameter(torch.randn(4, 3)) for _ in range(2))
    optimizer = kind([first], lr=0.1)
    optimizer.add_param_group({"params": [later], "lr": 0.3})
    with pytest.raises(UserError, match="matrices that are not zero"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(4, 3))]})
    before = [first.detach().clone(), later.detach().clone()]
    (first**3 + later**3).sum().backward()
    optimizer.step()
    for weight, old in zip((first, later), before, strict=True):
        assert not torch.equal(weight, old)
        torch.testing.assert_close(weight.detach().norm(), old.norm())
        assert {*optimizer.state[weight]} == {*optim_state(optimizer, weight)}
    assert len(optimizer.param_groups) == 2


@pytest.mark.parametrize("kind", [optim.AdamH, optim.MuonH])
@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy])
def test_a_copy_of_it_keeps_its_norms_in_the_same_steps(kind, copied):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 3))
    optimizer = kind([weight], lr=0.1)
    started = weight.detach().norm()
    twins = [(weight, optimizer), copied((weight, optimizer))]
    for n in range(3):
        for p, held in twins:
            p.grad = torch.full_like(p, 1.0 + n) * p.detach() ** 2
            held.step()
        if n == 1:
            twins.append(copied(twins[0]))
    for p, held in twins:
        assert torch.equal(p, weight)
        torch.testing.assert_close(p.detach().norm(), started)
        assert len(attached(held)) == 1


def test_a_combined_optimizer_refuses_a_group_that_none_of_its_parts_would_step():
    weights = [nn.Parameter(torch.ones(2, 2)) for _ in range(3)]
    both = optim.Combined(optim.Muon(weights[:1]), optim.AdamW(weights[1:2]))
    with pytest.raises(UserError, match="before Combined is made"):
        both.add_param_group({"params": weights[2:], "lr": 0.1})
    assert len(both.param_groups) == 2


def test_a_combined_optimizer_takes_over_what_its_parts_have_kept():
    torch.manual_seed(0)
    started = [torch.randn(3, 2), torch.randn(3, 2), torch.randn(3)]

    def made(combined_first):
        weights = [nn.Parameter(weight.clone()) for weight in started]
        parts = [optim.MuonH(weights[:1]), optim.Muon(weights[1:2]), optim.AdamW(weights[2:])]
        if combined_first:
            parts = [optim.Combined(optim.Combined(*parts[:2]), parts[2])]
        for n in range(4):
            if n == 2:
                parts = [optim.Combined(*parts)]
            for weight in weights:
                weight.grad = (1.0 + n) * weight.detach() ** 2
            for part in parts:
                part.step()
        return weights

    for one, two in zip(made(False), made(True), strict=True):
        assert torch.equal(one, two)


def test_a_combined_optimizer_refuses_a_part_whose_average_would_be_lost():
    averaged = optim.Muon([nn.Parameter(torch.ones(2, 2))])
    optim.average(averaged, decay=None)
    with pytest.raises(UserError, match="give them to Combined"):
        optim.Combined(averaged)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_combined_refuses_parts_whose_own_hooks_it_would_not_call(register, nested):
    part = optim.MuonH([torch.nn.Parameter(torch.eye(2))])
    part = optim.Combined(part) if nested else part
    getattr(part, register)(lambda *given: None)
    with pytest.raises(UserError, match="give them to Combined"):
        optim.Combined(part)


@pytest.mark.parametrize(
    ("kind", "key"), [(optim.Muon, "adjust_lr_fn"), (optim.SoapMuon, "adjust_lr")]
)
def test_a_group_whose_rate_is_adjusted_by_an_unknown_word_is_refused(kind, key):
    group = {"params": [nn.Parameter(torch.ones(2, 2))], key: "match_rms"}
    with pytest.raises(UserError, match="match_rms_adamw or original, not 'match_rms'"):
        kind([group])


def test_a_schedule_needs_a_step():
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters())
    with pytest.raises(UserError, match="must be at least 1: 0"):
        optim.scheduler(optimizer, optim.Schedule(kind="wsd"), steps=0)


def test_a_cool_down_needs_a_schedule_that_has_one():
    """As in a run, which refuses it: no rate would follow it."""
    optimizer = optim.build(build("gpt", **SMALL), "adam", roles={"head": {"cooldown": 0.4}})
    with pytest.raises(UserError, match="a group's cooldown is for a schedule of kind wsd, not"):
        optim.scheduler(optimizer, optim.Schedule(kind="linear"), steps=10)


@pytest.mark.parametrize("kind", ["head", "router"])
def test_numbers_of_parameters_that_the_model_does_not_have_are_refused(kind):
    model = build("gpt", tied=True, **SMALL)
    with pytest.raises(UserError, match=f"optim.roles.{kind} is for a model with such parameters"):
        optim.build(model, "adam", roles={kind: {"beta1": 0.5}})


def test_the_weights_of_a_checkpoint_are_not_projected_again():
    """In the last bits a resumed run would differ from one that was not interrupted."""
    model = build("ngpt", **SMALL)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    before = copy.deepcopy(model.state_dict())
    optim.build(model, "adam", lr=1e-2, now=False)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    optim.build(model, "adam", lr=1e-2)
    assert not torch.equal(model.state_dict()["E_in.weight"], before["E_in.weight"])


@pytest.mark.parametrize("kind", [optim.Muon, optim.NorMuon, optim.Soap, optim.SoapMuon])
def test_a_vector_in_a_later_group_is_refused(kind):
    optimizer = kind([nn.Parameter(torch.ones(2, 2))])
    with pytest.raises((UserError, ValueError), match="matrices"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    assert len(optimizer.param_groups) == 1


def test_parameters_by_role_are_all_of_them_once():
    model = build("ngpt", tied=False, **SMALL)
    held = optim.by_role(model)
    assert held["head"] == [model.E_out.weight]
    assert held["embedding"] == [model.E_in.weight]
    assert len(held["matrix"]) == 7
    assert {id(p) for some in held.values() for p in some} == {id(p) for p in model.parameters()}


def test_a_scheduler_has_the_factors_of_the_schedule():
    weight = nn.Parameter(torch.ones(2, 2))
    schedule = optim.Schedule(kind="wsd", warmup=2, fall="power")
    optimizer = optim.AdamW([{"params": [weight]}, {"params": [], "cooldown": 0.5}], lr=0.5)
    rates = optim.scheduler(optimizer, schedule, 10)
    found = []
    for _ in range(10):
        found.append([group["lr"] for group in optimizer.param_groups])
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        rates.step()
    own = with_decay(schedule, 0.5)
    for n, row in enumerate(found):
        expected = [0.5 * optim.factor(schedule, n, 10), 0.5 * optim.factor(own, n, 10)]
        assert row == pytest.approx(expected)


def test_the_page_s_snippets_run(capsys):
    page = Path(__file__).parents[1] / "docs/how-to/optimizers.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {})
    assert "tensor(" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "numbers", "said"),
    [
        (optim.Soap, {"beta2": 0.5}, "beta2"),
        (optim.SoapMuon, {"momentum": 0.9}, "momentum"),
        (optim.Soap, {"every": 0}, "every must be 1 or more"),
        (optim.SoapMuon, {"adjust_lr": "match_rms"}, "adjusted by match_rms_adamw"),
        (optim.SoapMuon, {"betas": (0.9, 1.5)}, "beta2 must be from 0"),
        (optim.GatedAdamW, {"eps_gate": -1.0}, "eps_gate must be a number above 0"),
        (optim.GatedAdamW, {"betas": (2.0, 0.9)}, "betas must be from 0"),
        (optim.Muon, {"turns": 0}, "turns must be at least 1"),
        (optim.Muon, {"coefficients": "quintik"}, "must be one of quintic"),
        (optim.Muon, {"ns_coefficients": (2.0, -1.5, 0.5)}, "leave out ns_coefficients and eps"),
        (optim.NorMuon, {"eps": 1e-3}, "leave out ns_coefficients and eps"),
        (optim.Muon, {"ns_steps": 0}, "ns_steps must be at least 1: 0"),
        (optim.SoapMuon, {"ns_steps": 0}, "ns_steps must be at least 1: 0"),
        (optim.NorMuon, {"beta2": 1.5}, "beta2 must be from 0"),
        (optim.MuonH, {"momentum_warmup": -3}, "momentum_warmup must not be negative"),
        *((kind, {"lr": -0.1}, "earning rate") for kind in FOR_MATRICES),
    ],
)
def test_a_number_that_cannot_be_or_that_none_has_is_refused(kind, numbers, said):
    with pytest.raises((UserError, TypeError, ValueError), match=said):
        kind([nn.Parameter(torch.ones(4, 3))], **numbers)


def test_soap_muon_has_the_numbers_of_train():
    weight = nn.Parameter(torch.ones(4, 3))
    (group,) = optim.SoapMuon([weight]).param_groups
    (trained, *_) = optim.build(build("gpt", **SMALL), "soap-muon").param_groups
    own = {key: value for key, value in group.items() if key not in ("params", "lr")}
    assert own == {key: trained[key] for key in own} | {"weight_decay": own["weight_decay"]}


@pytest.mark.parametrize(
    "numbers", [{"decay": 1.5}, {"decay": None, "start": -1}, {"decay": None, "start": 0.8}]
)
def test_an_average_that_cannot_be_is_refused(numbers):
    optimizer = optim.AdamW([nn.Parameter(torch.ones(3))])
    with pytest.raises(UserError, match=r"optim\.average\.(decay|start) must be"):
        optim.average(optimizer, **numbers)


def test_a_form_or_constraint_that_there_is_none_of_is_refused():
    """A dataclass takes any text: no rate would follow it, and nothing would be constrained."""
    with pytest.raises(UserError, match=r"'schedule\.kind' must be one of cosine, linear"):
        optim.Schedule(kind="cosin")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"'schedule\.fall' must be one of linear, power"):
        optim.Schedule(kind="wsd", fall="sqrt")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"'optim\.constraint\.kind' must be one of declared"):
        optim.ConstraintConfig(kind="shpere")  # pyright: ignore[reportArgumentType]


def test_mistakes_are_one_line():
    model = build("gpt", **SMALL)
    with pytest.raises(UserError, match="must be one of adam, adamw, muon"):
        optim.build(model, "muom")
    with pytest.raises(UserError, match=r"unknown key 'optim\.rate'"):
        optim.build(model, "adam", rate=1.0)
    for key in ("clip", "average", "head_by_frequency", "logit_power", "transfer", "base"):
        with pytest.raises(UserError, match=f"{key} is the training loop's work"):
            optim.build(model, "adam", **{key: 1})
    for kind, bad in ((optim.AdamH, torch.ones(3)), (optim.MuonH, torch.zeros(3, 2))):
        with pytest.raises(UserError, match="matrices that are not zero"):
            kind([nn.Parameter(bad)])
    with pytest.raises(UserError, match="takes the place of weight_decay"):
        optim.AdamH([nn.Parameter(torch.ones(3, 2))], weight_decay=0.1)
    with pytest.raises(UserError, match="every step has the length lr: set turns to 1"):
        optim.MuonH([torch.nn.Parameter(torch.ones(4, 4))], turns=2)


@pytest.mark.parametrize("limit", [{"kind": "hyperball"}, {"kind": "sphere", "angle_cap": 1.0}])
def test_turns_are_refused_where_a_step_has_the_rate_s_length(limit):
    """As in a run: a matrix would move every second step by one rate, not by two."""
    model = build("gpt", **SMALL)
    held = optim.by_role(model)
    muon = optim.Muon(held.pop("matrix"), lr=0.1, turns=2, weight_decay=0.0)
    rest = optim.Adam([p for some in held.values() for p in some])
    with pytest.raises(UserError, match="limits a step by the rate, and turns 2 makes it 2 times"):
        optim.constrain(model, muon, rest, config=optim.ConstraintConfig(**limit))


@pytest.mark.parametrize("name", ["muon", "normuon", "muonh", "soap", "soap-muon", "gated-adamw"])
def test_a_model_of_matrices_only_needs_no_adam(name):
    model = nn.Sequential(unit.UnitLinear(8, 16), unit.UnitLinear(16, 4, dim=0))
    optimizer = optim.build(model, name, lr=0.01)
    model(torch.ones(2, 8)).square().sum().backward()
    optimizer.step()
    assert len(optimizer.state) == 2


def test_a_combined_part_of_torch_s_loads_a_state_of_fp32_into_weights_of_bf16():
    def made(dtype):
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(3, 3).to(dtype)), nn.Parameter(torch.ones(3).to(dtype))]
        parts = optim.Muon(weights[:1]), torch.optim.AdamW(weights[1:])
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        return optim.Combined(*parts)

    wide, narrow = made(torch.float32), made(torch.bfloat16)
    wide.step()
    narrow.load_state_dict(wide.state_dict())
    assert narrow.state[narrow.param_groups[1]["params"][0]]["exp_avg"].dtype == torch.bfloat16
