"""Averages of weights: their formulas in fp64, projection, validation, resumption, the command."""

import copy
import dataclasses
import json

import pytest
import torch
from run_folders import check_resumed, figures, weights
from torch import nn

from unitsphere import optim
from unitsphere.cli import main
from unitsphere.errors import UserError
from unitsphere.models.constraint import constraints
from unitsphere.models.registry import build
from unitsphere.report.model_card import validation
from unitsphere.training.load import load_run
from unitsphere.training.optim import OptimConfig
from unitsphere.training.optim.average import AverageConfig, averages_of
from unitsphere.training.optim.constraint import ConstraintConfig, constrain
from unitsphere.training.optim.schedule import ScheduleConfig
from unitsphere.training.optim.state import state_spec
from unitsphere.training.run import train

SMALL = {"vocab_size": 40, "d_model": 16, "n_layers": 1, "n_heads": 2}


def stepped(decay, start, steps):
    """Weights of a linear layer after each step, its optimizer, and the layer."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2, dtype=torch.float64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    optim.average(optimizer, decay, start)
    path = []
    for _ in range(steps):
        layer(torch.randn(4, 3, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        path.append(layer.weight.detach().clone())
    return path, optimizer, layer


@pytest.mark.parametrize("start", [0, 3, 20])
def test_a_tail_is_the_mean_of_the_last_weights(start):
    path, optimizer, layer = stepped(None, start, 9)
    expected = torch.stack(path[start:] or path[-1:]).mean(0)
    with optim.averaged(layer, optimizer):
        torch.testing.assert_close(layer.weight.detach(), expected, rtol=0, atol=1e-12)
    assert torch.equal(layer.weight, path[-1])


@pytest.mark.parametrize("start", [0, 3])
def test_an_exponential_average_starts_as_the_mean(start):
    path, optimizer, layer = stepped(0.75, start, 12)
    expected = torch.zeros_like(path[0])
    for k, W in enumerate(path[start:], 1):
        share = 1 / k if k < 4 else 0.25
        expected = (1 - share) * expected + share * W
    found = averages_of(layer, optimizer)["weight"]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_steps_that_a_gradient_scaler_leaves_out_are_not_averaged():
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    optim.average(optimizer, decay=None)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    path = []
    for factor in (torch.inf, 1.0, torch.inf, 1.0):
        scaler.scale(factor * layer(torch.randn(4, 3)).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        path += [layer.weight.detach().clone()] if factor == 1 else []
    torch.testing.assert_close(averages_of(layer, optimizer)["weight"], sum(path) / 2)
    assert optimizer.state[layer.weight]["average_steps"] == 2


@pytest.mark.parametrize("kind", ["declared", "ball", "frobenius", "hyperball", "none"])
def test_averages_are_projected_and_the_weights_come_back(kind):
    model = build("ngpt", **SMALL)
    config = ConstraintConfig(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    constrain(model, optimizer, config=config)
    optim.average(optimizer, decay=0.5)
    for seed in range(4):
        x = torch.randint(40, (2, 12), generator=torch.Generator().manual_seed(seed))
        model.loss(x, x.roll(-1, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    plain = averages_of(model, optimizer)
    declared = {c.parameter: c for c in constraints(model)}
    with optim.averaged(model, optimizer, config):
        for name, weight in model.named_parameters():
            expected = plain[name].double()
            radius = "radius" in optimizer.state[weight]
            if radius:
                expected = expected * own[name].double().norm() / expected.norm()
            elif kind in ("declared", "ball") and name in declared:
                length = expected.norm(dim=declared[name].dim, keepdim=True)
                expected = expected / (length if kind == "declared" else length.clamp(min=1))
            torch.testing.assert_close(weight.double(), expected, rtol=0, atol=1e-6)
            assert not torch.equal(weight, own[name])
            keys = {key: tuple(t.shape) for key, t in optimizer.state[weight].items()}
            assert {k for k in keys if "average" in k} == {"average", "average_steps"}
    assert all(torch.equal(p, own[name]) for name, p in model.named_parameters())
    twin, its = copy.deepcopy((model, optimizer))
    with optim.averaged(twin, its, config), optim.averaged(model, optimizer, config):
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(p, q)


def averaging(config, **numbers):
    average = AverageConfig(**numbers)
    return dataclasses.replace(config, optim=dataclasses.replace(config.optim, average=average))


def test_a_run_validates_it_resumes_bit_for_bit_and_serves_its_average(tiny, tmp_path, capsys):
    """`eval` shows the loss of the last validation."""
    config = averaging(tiny("ngpt", sample_every=5), kind="ema", decay=0.6, start=0.25)
    check_resumed(config, tmp_path)
    whole = tmp_path / "whole"

    validated = [record for record in figures(whole) if "val_loss" in record]
    assert all(r["val_loss_average"] != r["val_loss"] for r in validated)
    model = load_run(whole, "cpu", weights="average").model
    for c in constraints(model):
        lengths = model.get_parameter(c.parameter).norm(dim=c.dim)
        torch.testing.assert_close(lengths, torch.ones_like(lengths))
    assert main(["eval", str(whole), "--weights", "average", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["weights"] == "average"
    assert said["loss"] == pytest.approx(validated[-1]["val_loss_average"], rel=1e-5)
    assert main(["eval", str(whole), "--json"]) == 0
    assert "weights" not in json.loads(capsys.readouterr().out)
    shown = validation(whole, 8, "average")
    assert shown == {"validation loss (step 8)": f"{validated[-1]['val_loss_average']:.4f}"}
    assert len(validation(whole, 8, "last")) == 2
    exported = ["export", str(whole), "--out", str(tmp_path / "export"), "--weights", "average"]
    assert main([*exported, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["difference"] < 1e-4  # from the averaged model's
    assert f"{validated[-1]['val_loss_average']:.4f}" in (tmp_path / "export/README.md").read_text()


def test_a_longer_run_resumes_from_before_its_average_starts(tiny, tmp_path):
    config = averaging(tiny("gpt", steps=6, save_every=2, keep_last=9), kind="tail", start=0.5)
    config = dataclasses.replace(config, schedule=ScheduleConfig("constant"))
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=12))
    train(longer, tmp_path / "whole")
    train(config, tmp_path / "run")
    train(longer, tmp_path / "run")  # from step 2: at 4 the short run's average had started
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "run")
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())
    late = dataclasses.replace(config, train=dataclasses.replace(config.train, save_every=0))
    train(late, tmp_path / "late")
    with pytest.raises(UserError, match="average of weights starts after a fraction"):
        train(longer, tmp_path / "late")


def test_a_stop_in_its_validation_saves_the_weights_of_the_step(tiny, tmp_path, monkeypatch):
    config = averaging(tiny("ngpt", steps=4, save_every=0, eval_every=2), kind="tail", start=1)
    train(config, tmp_path / "whole")
    from unitsphere.errors import Preempted
    from unitsphere.training import monitor

    real, entered = monitor.averaged, []

    def stopping(model, optimizer, constraint):
        entered.append(model)
        return real(model, optimizer, constraint)

    monkeypatch.setattr(monitor, "averaged", stopping)
    monkeypatch.setattr(monitor.Stop, "due", lambda self: len(entered) == 1)
    with pytest.raises(Preempted):
        train(config, tmp_path / "broken")
    monkeypatch.undo()
    train(config, tmp_path / "broken")
    assert figures(tmp_path / "broken") == figures(tmp_path / "whole")
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())


@pytest.mark.parametrize("combined", [False, True])
def test_an_average_has_the_norms_that_the_optimizer_itself_keeps(combined):
    """MuonH and AdamH need no `constrain`, so nobody tells `averaged` of their norms."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, 3, bias=not combined))
    last = optim.AdamH([model[1].weight], lr=0.3)
    optimizer = optim.Combined(optim.MuonH([model[0].weight], lr=0.3), last) if combined else last
    before = [layer.weight.norm().item() for layer in model]
    optim.average(optimizer, None)
    for _ in range(6):
        model(torch.randn(5, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with optim.averaged(model, optimizer):
        found = [layer.weight.norm().item() for layer in model]
    assert found == pytest.approx(before, rel=1e-5)


def test_a_second_average_of_an_optimizer_is_refused():
    """Both wrote one tensor, so that neither average was right."""
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters())
    handles = optim.average(optimizer, decay=0.9)
    with pytest.raises(UserError, match="keeps an average already"):
        optim.average(optimizer, decay=0.5)
    for handle in handles:
        handle.remove()
    optim.average(optimizer, decay=0.5)


def test_what_cannot_be_is_one_line(tiny, tmp_path):
    for numbers in ({"decay": 1.0}, {"decay": 0.0}, {"start": -1.0}, {"start": float("inf")}):
        with pytest.raises(UserError, match=rf"optim\.average\.{next(iter(numbers))} must"):
            AverageConfig(kind="ema", **numbers)
    layer = nn.Linear(2, 2)
    none = torch.optim.SGD(layer.parameters())
    with pytest.raises(UserError, match="keeps no average"), optim.averaged(layer, none):
        pass
    out = tmp_path / "run"
    train(tiny("ngpt", steps=2), out)
    with pytest.raises(UserError, match="has no averaged weights"):
        load_run(out, "cpu", weights="average")
    assert AverageConfig("tail").steps_alike(10, 20) == 8
    assert AverageConfig("tail", start=7).steps_alike(10, 20) == 20


@pytest.mark.parametrize(
    ("average", "said"),
    [
        (AverageConfig("ema", decay=0.9, start=0.5), ""),
        (AverageConfig("tail"), ""),
        (AverageConfig(decay=0.9), "average.decay 0.9 is for optim.average.kind ema, not none: it"),
        (AverageConfig("tail", decay=0.9), "is for optim.average.kind ema, not tail: it is not"),
        (AverageConfig(start=0.5), "average.start 0.5 is for optim.average.kind ema or tail, not"),
        (
            AverageConfig("ema", start=10),
            "average starts after step 10, and the run has 10: set",
        ),
    ],
)
def test_what_a_run_does_not_read_is_said(average, said):
    lines = average.unread(10)
    assert said in "".join(lines)
    assert len(lines) == (said != "")


def test_a_checkpoint_before_the_first_averaged_step_has_no_average(tiny, tmp_path):
    """Its state has the last weights in the average's place: they would pass for an average."""
    config = tiny("ngpt", steps=4, save_every=2)
    average = AverageConfig(kind="tail", start=2)
    config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, average=average))
    train(config, tmp_path / "run")
    load_run(tmp_path / "run", "cpu", weights="average")
    early = tmp_path / "run/checkpoints/step-00000002"
    with pytest.raises(UserError, match=r"no averaged weights yet: .* those of step 3"):
        load_run(early, "cpu", weights="average")


def test_its_memory_is_declared_in_fp32():
    weight = nn.Parameter(torch.ones(4, 3, dtype=torch.bfloat16))
    optimizer = optim.Adam([weight], lr=0.1)
    optim.average(optimizer)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    declared = state_spec(optimizer, weight)["average"]
    kept = optimizer.state[weight]["average"]
    assert (declared.shape, declared.dtype) == (tuple(kept.shape), kept.dtype)
    assert kept.dtype == torch.float32
    assert OptimConfig().average.kind == "none"


def test_averages_that_were_loaded_first_stay_in_fp32():
    """bf16 holds no count above 256, and rounds away what a step adds."""

    def made(first):
        torch.manual_seed(0)
        layer = nn.Linear(3, 2, bias=False, dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
        if first:
            optim.average(optimizer, None)
        return layer, optimizer

    def steps(layer, optimizer, count):
        for _ in range(count):
            layer(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()

    layer, optimizer = made(first=True)
    steps(layer, optimizer, 300)
    other, again = made(first=False)
    other.load_state_dict(layer.state_dict())
    again.load_state_dict(optimizer.state_dict())
    optim.average(again, None)
    steps(other, again, 200)
    (state,) = again.state.values()
    assert state["average"].dtype == state["average_steps"].dtype == torch.float32


def test_a_group_that_is_added_later_is_averaged_too():
    first, later = nn.Linear(3, 3), nn.Linear(3, 3)
    model = nn.Sequential(first, later)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    optim.average(optimizer, None)
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": later.parameters()})
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert averages_of(model, optimizer).keys() == dict(model.named_parameters()).keys()


def test_an_average_beside_the_average_that_kappa_ip_keeps():
    model = build("gpt", **SMALL)
    cpr = {"kind": "cpr", "cpr": {"kappa": "Kappa-IP"}}
    optimizer = optim.build(model, "adamw", lr=0.01, constraint=cpr)
    optim.average(optimizer, 0.9)
    tokens = torch.arange(8)[None]
    for _ in range(2):
        model.loss(tokens, tokens).backward()
        optimizer.step()
    name, weight = next((n, p) for n, p in model.named_parameters() if "W_u" in n)
    state = optimizer.state[weight]
    assert state["average"].shape == weight.shape
    assert state["cpr_average"].shape == ()
    assert state.keys() == state_spec(optimizer, weight).keys(), name
