"""What happens with an update whose loss or gradient is not finite, or whose loss is a spike."""

import dataclasses

import pytest
import torch
from run_folders import figures, weights
from torch.utils._python_dispatch import TorchDispatchMode

from unitsphere.errors import UserError
from unitsphere.models.registry import build
from unitsphere.training import guard, run
from unitsphere.training import step as training_step
from unitsphere.training.checkpoint import store as checkpoint
from unitsphere.training.checkpoint import tensors
from unitsphere.training.distributed.layout import Layout
from unitsphere.training.guard import Guard, Losses
from unitsphere.training.optim import OptimConfig, build_optimizer
from unitsphere.training.optim.constraint import ConstraintConfig, constrain
from unitsphere.training.run import train

TOKENS = torch.arange(24).reshape(2, 12) % 16
NAN, FINE = torch.tensor(float("nan")), torch.tensor(2.0)
KINDS = {
    "gpt adam": ("gpt", OptimConfig()),
    "ngpt adamw": ("ngpt", OptimConfig(name="adamw", weight_decay=0.1)),
    "angpt muon": ("angpt", OptimConfig(name="muon")),
    "frobenius": ("gpt", OptimConfig(constraint=ConstraintConfig("frobenius"))),
    "hyperball": ("gpt", OptimConfig(constraint=ConstraintConfig("hyperball"))),
    "cpr": ("gpt", OptimConfig(name="adamw", constraint=ConstraintConfig("cpr"))),
}


def make(kind: str):
    architecture, config = KINDS[kind]
    model = build(architecture, vocab_size=16, d_model=16, n_layers=1, n_heads=2)
    optimizer = build_optimizer(model, config)
    constrain(model, optimizer, config=config.constraint, warmup=2)
    return model, optimizer


def step(keeper, number, model, optimizer, loss=FINE, harm=False):
    model.loss(TOKENS, TOKENS).backward()
    if harm:
        for parameter in model.parameters():
            parameter.grad.fill_(float("nan"))
    training_step.train_step(model, optimizer, lambda: loss, number, 1.0, guard=keeper)


def held(model, optimizer):
    return {k: v.clone() for k, v in tensors.named_tensors(model, optimizer).items()}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_step_leaves_weights_and_state_bit_for_bit(kind):
    model, optimizer = make(kind)
    keeper = Guard("skip")
    start = held(model, optimizer)
    step(keeper, 0, model, optimizer, harm=True)
    assert_same(held(model, optimizer), start)
    step(keeper, 1, model, optimizer)
    before = held(model, optimizer)
    assert before.keys() > start.keys()
    for harmed in ({"harm": True}, {"loss": NAN}, {"loss": torch.tensor(float("inf"))}):
        step(keeper, 2, model, optimizer, **harmed)
        assert_same(held(model, optimizer), before)
    step(keeper, 3, model, optimizer)

    plain, its_optimizer = make(kind)
    for number in range(2):
        step(Guard(), number, plain, its_optimizer)
    assert_same(held(model, optimizer), held(plain, its_optimizer))


class NoSync(TorchDispatchMode):
    """Refuses whatever makes the host wait for the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "the host waits"
        assert func is not torch.ops.aten.nonzero.default, "the host waits"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("on_spike", ["stop", "skip", "rollback"])
def test_without_a_spike_the_host_does_not_wait(on_spike):
    model, optimizer = make("gpt adam")
    keeper = Guard(on_spike, sigma=6)
    keeper.load([], 0, model.device)
    step(keeper, 0, model, optimizer)
    model.loss(TOKENS, TOKENS).backward()
    with NoSync():
        training_step.train_step(model, optimizer, lambda: FINE, 1, 1.0, guard=keeper)
    with pytest.raises(AssertionError, match="the host waits"), NoSync():
        bool(FINE.isfinite())


def test_the_limit_is_that_of_the_last_losses_without_spikes():
    losses, seen = Losses.of([], 0, torch.device("cpu")), []
    generator = torch.Generator().manual_seed(0)
    for number in range(250):
        loss = 3 + torch.rand((), generator=generator)
        spike = torch.tensor(number % 7 == 0)
        losses = losses.add(torch.where(spike, torch.inf, loss), spike)
        seen += [] if spike else [loss.item()]
        limit = losses.limit(6.0).item()
        if len(seen) < 100:
            assert limit == float("inf")
        else:
            last = torch.tensor(seen[-100:], dtype=torch.float64)
            assert limit == pytest.approx(float(last.mean() + 6 * last.std(correction=0)))


def harm(monkeypatch, updates, factor=float("nan")):
    """Loss and gradient of some updates are multiplied."""
    backward = training_step.backward
    updates = list(updates)

    def harmed(trainer, batch, *rest):
        loss = backward(trainer, batch, *rest)
        if any(torch.equal(batch.inputs, trainer.batches.batch(u).inputs) for u in updates):
            loss = loss * factor
            for parameter in trainer.model.parameters():
                parameter.grad.mul_(factor)
        return loss

    monkeypatch.setattr(training_step, "backward", harmed)


def finite(records):
    return [{k: v for k, v in r.items() if k not in ("loss", "grad_norm")} for r in records]


def test_stopping_names_the_step_and_saves_nothing_of_it(tiny, tmp_path, monkeypatch):
    harm(monkeypatch, [4])
    with pytest.raises(UserError, match=r"^step 5: loss nan, gradient norm nan; .*optim\.lr"):
        train(tiny(log_every=3), tmp_path / "run")
    assert [*checkpoint.folders(tmp_path / "run/checkpoints")] == [3]
    monkeypatch.undo()
    train(tiny(log_every=3), tmp_path / "run")


def test_skipping_and_rolling_back_leave_out_the_same_update(tiny, tmp_path, monkeypatch, capsys):
    harm(monkeypatch, [4])
    for on_spike in ("skip", "rollback"):
        config = tiny("ngpt", on_spike=on_spike, log_every=3, eval_every=0, steps=12)
        assert train(config, tmp_path / on_spike).trained
    skipped, back = tmp_path / "skip", tmp_path / "rollback"
    assert_same(weights(skipped), weights(back))
    assert figures(skipped) == figures(back)
    records = figures(skipped)
    assert [r["step"] for r in records] == [1, 3, 5, 6, 9, 12]
    assert records[2] == {"step": 5, "tokens": 640, "spike": 1.0}
    said = capsys.readouterr().err
    assert "back to step 3, to leave it out" in said
    assert said.count("step 5: loss nan, gradient norm nan: left out") == 2
    monkeypatch.undo()
    train(tiny("ngpt", log_every=3, eval_every=0, steps=12), tmp_path / "plain")
    assert not torch.equal(
        weights(tmp_path / "plain")["model.E_out.weight"], weights(back)["model.E_out.weight"]
    )


@pytest.mark.parametrize("on_spike", ["skip", "rollback"])
def test_a_finite_spike_is_found_and_a_resume_is_exact(on_spike, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "WINDOW", 4)
    harm(monkeypatch, [6], factor=5.0)
    config = tiny(steps=10, on_spike=on_spike, spike_sigma=8.0, sample_every=8)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(config, whole, sampler=lambda *_: "")
    assert [r["step"] for r in figures(whole) if "spike" in r] == [7]
    assert {"loss", "grad_norm"} <= figures(whole)[6].keys()

    def die(*_):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        train(config, broken, sampler=die)
    state = checkpoint.load_state(broken / "checkpoints/step-00000006")
    assert (len(state.losses), state.losses_seen) == (4, 6)
    train(config, broken, sampler=lambda *_: "")
    assert figures(broken) == figures(whole)
    assert_same(weights(broken), weights(whole))


def test_an_unwelcome_last_step_ends_the_run_all_the_same(tiny, tmp_path, monkeypatch):
    harm(monkeypatch, [7])
    found = train(tiny(on_spike="skip"), tmp_path / "run")
    assert found.step == 8
    assert found.loss != found.loss
    assert found.val_loss > 0


@pytest.mark.parametrize("on_spike", ["skip", "rollback"])
def test_too_many_stop_the_run(on_spike, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "MOST", 2)
    harm(monkeypatch, [4, 6, 7])
    with pytest.raises(
        UserError, match=r"step 8: loss nan.* the last of 3 recent ones; start a new"
    ):
        train(tiny(on_spike=on_spike), tmp_path / "run")


def test_rolling_back_needs_a_checkpoint(tiny, tmp_path, monkeypatch):
    harm(monkeypatch, [1])
    with pytest.raises(UserError, match=r"step 2: loss nan.*no checkpoint yet to go back to"):
        train(tiny(on_spike="rollback"), tmp_path / "run")


def test_other_processes_wait_for_a_day_while_checkpoints_are_read(tiny, tmp_path, monkeypatch):
    patient, waited = [], []
    agreed_state, on_ranks = run.agreed_state, run.on_ranks

    def aside(layout, timeout=None):
        patient.extend([dataclasses.replace(layout)] if timeout == run.PREPARING else [])
        return patient[-1]

    def agreed(layout, *rest):
        waited.append(layout)
        return agreed_state(layout, *rest)

    def in_first(layout, here, action):
        if getattr(action, "func", None) is run.begin_folder:
            waited.append(layout)
        return on_ranks(layout, here, action)

    harm(monkeypatch, [4])
    monkeypatch.setattr(Layout, "aside", aside)
    monkeypatch.setattr(run, "agreed_state", agreed)
    monkeypatch.setattr(run, "on_ranks", in_first)
    train(tiny(on_spike="rollback"), tmp_path / "run")
    assert len(waited) == 3  # at the start, in writing the folder, in going back
    assert all(layout is patient[0] for layout in waited)


def test_what_to_do_may_change_when_a_run_continues(tiny, tmp_path, monkeypatch):
    harm(monkeypatch, [4])
    config = tiny()
    with pytest.raises(UserError, match="step 5"):
        train(config, tmp_path / "run")
    on = dataclasses.replace(config.train, on_spike="skip")
    train(dataclasses.replace(config, train=on), tmp_path / "run")
    assert [r["step"] for r in figures(tmp_path / "run") if "spike" in r] == [5]
