"""Runs in FP8, emulated on the CPU; and what a run does where there is none."""

import dataclasses
import functools
import json

import pytest
import torch
from run_folders import figures
from torch._dynamo.utils import counters

from unitsphere.bench import train as train_bench
from unitsphere.bench.arms import ON_CPU, TOLERANCE, Stepper, arm_config
from unitsphere.bench.measure import Ceilings
from unitsphere.bench.train import Protocol, bench_training
from unitsphere.errors import UserError
from unitsphere.models.constraint import constraints
from unitsphere.models.parts import Linear
from unitsphere.models.plans import input_bounds
from unitsphere.models.registry import build
from unitsphere.ops.fp8 import Bounded
from unitsphere.training.corpus import open_corpus
from unitsphere.training.device import autocast, computes_in_fp8, emulated_fp8, pick_precision
from unitsphere.training.plan import build_trainer, use_fp8
from unitsphere.training.resolve import resolve
from unitsphere.training.run import train
from unitsphere.training.step import train_steps

CPU = torch.device("cpu")
PLUS = {"qk_norm": True, "rotary_fraction": 0.5}
FREE, WEIGHT, BOTH, LONG = Bounded(), Bounded(None, 1.0), Bounded(1.0, 1.0), Bounded(4.0, 1.0)
# fp32: "auto" is bf16 on a processor that has its instructions.
TINY = dataclasses.replace(
    ON_CPU,
    d_model=32,
    n_layers=1,
    n_heads=2,
    context=16,
    tokens=32,
    vocab_size=32,
    device="cpu",
    precision="fp32",
)

emulates = pytest.mark.skipif(
    torch.__version__ < (2, 13), reason="torch multiplies FP8 on a CPU from 2.13 on"
)


@pytest.fixture
def emulated():
    with emulated_fp8():
        yield


def make(architecture, d_model=32, **numbers):
    return build(architecture, vocab_size=24, d_model=d_model, n_layers=2, n_heads=2, **numbers)


def settings(model):
    """Layer -> how it multiplies, for those of the first block and the head."""
    return {
        name.removeprefix("blocks.0."): layer.fp8
        for name, layer in model.named_modules()
        if isinstance(layer, Linear) and not name.startswith("blocks.1.")
    }


def test_what_is_bounded_has_static_scales():
    model = make("ngpt")
    use_fp8(model)
    static = ["attention.W_q", "attention.W_k", "attention.W_v", "attention.W_o", "mlp.W_u"]
    expected = dict.fromkeys([*static, "mlp.W_nu"], BOTH)
    assert settings(model) == expected | {"mlp.W_oMLP": WEIGHT, "E_out": None}

    model = make("angpt")
    use_fp8(model)
    static = ["attention.W_q", "attention.W_k", "attention.W_v", "mlp.W_u", "mlp.W_z"]
    expected = dict.fromkeys(static, LONG) | dict.fromkeys(["attention.W_p", "mlp.W_d"], WEIGHT)
    assert settings(model) == expected | {"W_h": None}


@pytest.mark.parametrize("architecture", ["gpt", "normformer", "dyt"])
def test_what_is_free_has_dynamic_scales(architecture):
    model = make(architecture)
    use_fp8(model)
    found = settings(model)
    assert found.pop("E_out", None) is None
    assert set(found.values()) == {FREE}


def test_scales_follow_the_constraint_that_a_run_keeps():
    for architecture, kind, expected in [
        ("ngpt", "none", FREE),  # then v is not bounded either
        ("ngpt", "frobenius", FREE),
        ("ngpt", "ball", BOTH),
        ("gpt", "sphere", WEIGHT),
    ]:
        model = make(architecture)
        use_fp8(model, kind)
        assert settings(model)["attention.W_o"] == expected


def test_where_h_may_grow_so_does_its_bound_or_there_is_none():
    for architecture, numbers, expected in [
        ("ngpt", {"residual": "lerp_nu"}, LONG),
        ("ngpt", {"residual": "slerp"}, BOTH),
        ("angpt", {"nu_alpha": False}, WEIGHT),  # h of length 71 was seen
    ]:
        model = make(architecture, **numbers)
        use_fp8(model)
        assert settings(model)["attention.W_q"] == expected


def test_the_encoder_too_and_sizes_that_fp8_does_not_take_are_logged(caplog):
    model = make("ngpt", objective="seq2seq")
    use_fp8(model)
    assert model.encoder[1].mlp.W_u.fp8 == model.blocks[1].cross.W_k.fp8 == BOTH
    model = make("ngpt", d_ff=72)
    use_fp8(model)
    assert (model.blocks[0].mlp.W_u.fp8, model.blocks[0].attention.W_q.fp8) == (None, BOTH)
    assert [record.getMessage() for record in caplog.records] == [
        "fp8: blocks.0.mlp.W_u and 5 more are multiplied in bf16: their sizes are not multiples "
        "of 16"
    ]


class Kept:
    """The losses of a run's steps."""

    def __init__(self):
        self.losses = []

    def between(self):
        pass

    def after(self, step, loss, grad_norm, lr):
        self.losses.append(loss.item())


def watched(config, precision, steps=30):
    """A trainer and the losses of its steps."""
    config = dataclasses.replace(
        config, train=dataclasses.replace(config.train, precision=precision, steps=steps)
    )
    config = resolve(config, None)
    trainer, kept = build_trainer(config, open_corpus(config).batches), Kept()
    train_steps(trainer, 0, kept)
    return trainer, kept.losses


# At this rate anGPT's stored α, 0.01, crosses zero, where |α| makes much of a small difference.
RAW = {"signed_alpha": True}


@emulates
@pytest.mark.parametrize(
    ("architecture", "numbers"), [("ngpt", {}), ("angpt", RAW), ("gpt", PLUS)], ids=str
)
def test_thirty_steps_lose_little_and_keep_the_constraint(architecture, numbers, tiny, emulated):
    config = tiny(architecture)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, **numbers))
    last = {}
    for precision in ("fp32", "bf16", "fp8"):
        trainer, losses = watched(config, precision)
        assert losses[-1] < 0.8 * losses[0]
        last[precision] = sum(losses[-10:]) / 10
    assert last["fp8"] == pytest.approx(last["fp32"], abs=0.02)
    assert last["fp8"] == pytest.approx(last["bf16"], abs=0.02)
    assert last["fp8"] != last["bf16"]
    for constraint in constraints(trainer.model):
        weight = trainer.model.get_parameter(constraint.parameter)
        again = constraint.project_(weight.detach().clone())
        assert torch.allclose(weight, again, rtol=0, atol=1e-6)


@emulates
@pytest.mark.parametrize("architecture", ["ngpt", "angpt"])
def test_inputs_with_a_static_scale_stay_far_from_its_end(architecture, tiny, emulated):
    """What is clamped is beyond 1.75 times the bound."""
    trainer, _ = watched(tiny(architecture), "fp8")
    largest = {}

    def look(layer, inputs, name):
        largest[name] = inputs[0].abs().amax().item()

    for name, bound in input_bounds(trainer.model).items():
        if bound:
            layer = trainer.model.get_submodule(name)
            layer.register_forward_pre_hook(functools.partial(look, name=name))
    trainer.model(open_corpus(trainer.config).batches.batch(0).inputs)
    assert len(largest) == 2 * (6 if architecture == "ngpt" else 5)
    assert 0.1 < max(largest.values()) < 1  # the length is the bound, an element is less


def test_what_has_no_bound_gets_no_static_scale():
    sizes = {"vocab_size": 24, "d_model": 32, "n_layers": 1, "n_heads": 2}
    shifted = {
        name: set(input_bounds(build(name, **sizes, token_shift=True)).values())
        for name in ("ngpt", "angpt")
    }
    assert shifted == {"ngpt": {1.0}, "angpt": {None}}  # nGPT's h is a unit vector all the same
    assert set(input_bounds(build("angpt", **sizes)).values()) == {4.0}
    values = input_bounds(build("ngpt", **sizes, value_embeddings=True))
    assert set(values.values()) == {None}


@emulates
def test_a_block_is_one_graph():
    torch._dynamo.reset()
    counters.clear()
    tokens = torch.randint(24, (2, 16), generator=torch.Generator().manual_seed(0))

    def passed(compile):
        model = make("ngpt")
        use_fp8(model)
        if compile:
            for block in model.blocks:
                block.compile(fullgraph=True, backend="aot_eager")
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.loss(tokens, tokens.roll(-1, 1))
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters())]

    for found, expected in zip(passed(True), passed(False), strict=True):
        # The compiler's own form of a sum may round otherwise, and FP8 (6% a gradient) then too.
        assert (found - expected).norm() <= 0.12 * expected.norm()
    assert counters["stats"]["unique_graphs"] == 1  # both layers share it
    assert not counters["graph_break"]
    torch._dynamo.reset()


@emulates
def test_a_run_in_fp8_resumes_bit_for_bit_and_nowhere_else(tiny, tmp_path):
    config, out = tiny("ngpt", precision="fp8"), tmp_path / "broken"

    def die(*_):
        raise InterruptedError

    with emulated_fp8():
        train(config, tmp_path / "whole")
        config = dataclasses.replace(
            config, train=dataclasses.replace(config.train, sample_every=5)
        )
        with pytest.raises(InterruptedError):
            train(config, out, sampler=die)
    for precision in ("fp8", "auto"):
        again = dataclasses.replace(
            config, train=dataclasses.replace(config.train, precision=precision)
        )
        with pytest.raises(UserError, match="started in fp8 resumes only in fp8"):
            train(again, out)
    with emulated_fp8():
        assert train(again, out).trained
    assert figures(out) == figures(tmp_path / "whole")
    assert json.loads((out / "config.json").read_text())["train"]["precision"] == "fp8"
    assert not train(again, out).trained  # a finished run is what it is, anywhere


def test_a_device_without_fp8_trains_in_what_auto_takes_and_says_so(tiny, tmp_path, capsys):
    config = tiny(precision="fp8", steps=2)
    assert train(config, tmp_path / "run").step == 2
    auto = pick_precision("auto", CPU)
    line = f"train.precision fp8 needs an NVIDIA GPU of compute capability 8.9 or newer: {auto} on"
    assert line in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["precision"] == auto
    assert not train(config, tmp_path / "run").trained  # the same command finds the same run


def test_which_devices_have_fp8(monkeypatch):
    capability = {}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability["is"])
    for capability["is"], expected in [((8, 0), False), ((8, 9), True), ((9, 0), True)]:
        assert computes_in_fp8(torch.device("cuda")) == expected
    assert not computes_in_fp8(CPU)
    with emulated_fp8():
        assert computes_in_fp8(CPU)
        assert pick_precision("fp8", CPU) == "fp8"
    assert not computes_in_fp8(CPU)


def test_what_is_not_in_fp8_is_in_bf16():
    with autocast(CPU, "fp8"):
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
        assert torch.is_autocast_enabled("cpu")


def test_the_bench_times_no_fp8_where_there_is_none():
    with pytest.raises(UserError, match="needs an NVIDIA GPU"):
        Stepper(arm_config("ngpt:train.precision=fp8", TINY))


@emulates
def test_an_arm_in_fp8_passes_the_gate_by_its_tolerance(monkeypatch, emulated):
    monkeypatch.setattr(train_bench, "ceilings", lambda device: Ceilings(1e9, 1e10))
    arms = ["gpt-plus", "ngpt:train.precision=fp8"]
    report = bench_training(arms, TINY, Protocol(warmup=1, rounds=2, steps=1))
    assert [arm["precision"] for arm in report["arms"].values()] == ["fp32", "fp8"]
    assert 0 < report["arms"][arms[1]]["off_by"] < TOLERANCE["bf16"] < TOLERANCE["fp8"]
    assert any("bf16 peak" in line for line in train_bench.notes(report))
    whole = dataclasses.replace(TINY, precision="fp8")
    assert arm_config("ngpt", whole).train.precision == "fp8"
