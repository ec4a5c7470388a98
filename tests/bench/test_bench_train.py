"""The training bench on models so small that its figures mean nothing: what is told is tested."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.exc import Unsupported

from unitsphere.bench import arms, measure, train
from unitsphere.bench.arms import (
    ON_CPU,
    RandomBatches,
    Stepper,
    arm_config,
    arm_kernels,
    check_arm,
    compare_steps,
    first_steps,
    sizes_for,
)
from unitsphere.bench.measure import (
    Ceilings,
    ceilings,
    drift,
    held_bytes,
    kernels_of,
    peak_of,
    state_bytes,
    timed,
)
from unitsphere.bench.train import Protocol, bench_training
from unitsphere.cli import main
from unitsphere.errors import UserError
from unitsphere.kernels import mode
from unitsphere.models.registry import build
from unitsphere.training.forecast import flops_per_token
from unitsphere.training.step import train_steps

CPU = torch.device("cpu")
# fp32: "auto" is bf16 on a processor that has its instructions.
TINY = dataclasses.replace(
    ON_CPU,
    d_model=16,
    n_layers=1,
    n_heads=2,
    context=8,
    tokens=16,
    vocab_size=32,
    device="cpu",
    precision="fp32",
)
OPTIONS = "--device cpu --d_model 16 --layers 1 --heads 2 --context 8 --tokens 16 --vocab 32"


@pytest.fixture
def quick(monkeypatch):
    """Ceilings at once, and a clock by which an arm's number is its time."""
    monkeypatch.setattr(train, "ceilings", lambda device: Ceilings(1e9, 1e10))


@pytest.fixture
def report(quick):
    protocol = Protocol(warmup=1, rounds=2, steps=1)
    return bench_training(["gpt-plus", "ngpt", "angpt:model.tied=true"], TINY, protocol)


def test_the_report_has_the_contract_s_form(report):
    json.dumps(report)
    assert list(report["arms"]) == ["gpt-plus", "ngpt", "angpt:model.tied=true"]
    assert set(report["ratios"]) == {"ngpt/gpt-plus", "angpt:model.tied=true/gpt-plus"}
    for arm in report["arms"].values():
        assert arm["tokens_per_second"] == pytest.approx(16e3 / arm["ms"])
        assert arm["mfu"] is None
        assert arm["kernels"] is None
        assert len(arm["rounds_ms"]) == 2
    for ratio in [*report["ratios"].values(), report["noise"]]:
        assert ratio["low"] <= ratio["median"] <= ratio["high"]
    assert report["environment"]["sizes"]["precision"] == "fp32"
    tied, untied = (report["arms"][a]["parameters"] for a in ("angpt:model.tied=true", "ngpt"))
    assert tied < untied


def test_the_figures_are_those_of_the_rounds(quick, monkeypatch):
    """Arm number n takes n·10 ms plus the round's own delay: medians and ratios follow."""
    numbers = {}
    calls = []

    def clock(step, count, device):
        number = numbers.setdefault(step.__self__, len(numbers) + 1)
        calls.append(number)
        return [10.0 * number + 100 * (len(calls) > 6)] * count

    monkeypatch.setattr(train, "timed", clock)
    found = bench_training(["gpt-plus", "ngpt"], TINY, Protocol(1, 2, 4))
    assert calls == [1, 2, 3, 1, 2, 3, 2, 3, 1]  # warm-up, two rounds in rotating order
    assert found["arms"]["gpt-plus"]["rounds_ms"] == [10, 110]
    assert found["noise"]["median"] == pytest.approx((20 / 10 + 120 / 110) / 2)
    assert found["ratios"]["ngpt/gpt-plus"]["median"] == pytest.approx((30 / 10 + 130 / 110) / 2)
    assert found["noise"]["floor"] == pytest.approx(1)
    assert not found["ratios"]["ngpt/gpt-plus"]["tie"]


def test_when_the_time_is_up_no_arm_and_no_round_starts(quick):
    found = bench_training(["gpt-plus", "ngpt"], TINY, Protocol(1, 8, 1, minutes=0))
    assert found["left"] == {"ngpt": "there was no time for it"}
    assert [len(arm["rounds_ms"]) for arm in found["arms"].values()] == [1]
    assert found["environment"]["protocol"]["rounds"] == 1
    assert "ngpt is left out: there was no time for it" in train.notes(found)
    assert [row[0] for row in train.rows(found)] == ["gpt-plus"]


@pytest.mark.parametrize("form", [["--json"], []])
def test_the_verb_says_by_its_status_that_an_arm_is_left_out(quick, capsys, form):
    command = ["bench", *OPTIONS.split(), "--minutes", "1e-9", *form]
    assert main([*command, "--arms", "gpt-plus", "ngpt"]) == 1
    assert "there was no time for it" in capsys.readouterr().out
    assert main([*command, "--arms", "gpt-plus"]) == 0


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (UserError("it differs"), "it differs"),
        (torch.OutOfMemoryError("too large"), "out of GPU memory"),
        (Unsupported("a call\n  Hint: none", "break"), "torch cannot compile it: a call"),
        (RuntimeError("no such kernel\nframe #0"), "torch cannot run it: no such kernel"),
    ],
)
def test_an_arm_that_fails_is_left_out_and_the_baseline_s_ends_the_bench(
    quick, monkeypatch, error, why
):
    def check(name, *given):
        if name == failing:
            raise error

    monkeypatch.setattr(train, "check_arm", check)
    arms, protocol = ["gpt-plus", "ngpt", "angpt"], Protocol(1, 1, 1)
    failing = "ngpt"
    found = bench_training(arms, TINY, protocol)
    assert [*found["arms"]] == ["gpt-plus", "angpt"]
    assert found["left"]["ngpt"].startswith(why)
    failing = "gpt-plus"
    with pytest.raises(type(error)):
        bench_training(arms, TINY, protocol)


def test_a_mistake_in_the_last_arm_is_told_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(train, "ceilings", lambda device: pytest.fail("it measured"))
    for last, said in (("nonesuch", "unknown recipe"), ("ngpt:kernels=on", "is not a mode")):
        with pytest.raises(UserError, match=said):
            bench_training(["gpt-plus", last], TINY, Protocol(1, 1, 1))


def test_people_are_told_the_same(report, tmp_path):
    rows = train.rows(report)
    assert [row[0] for row in rows] == list(report["arms"])
    assert rows[0][-2:] == ["1", ""]
    assert "n/a" in rows[1]
    report["ceilings"]["drifted"] = True
    notes = "\n".join(train.notes(report))
    assert "is a tie" in notes
    assert "the ceilings moved" in notes
    path = train.draw(report, tmp_path / "figures" / "speed.svg")
    assert all(f"<!-- {name} -->" in path.read_text() for name in report["arms"])


def test_a_step_is_the_training_code_s_own():
    stepper = Stepper(arm_config("ngpt", TINY))
    mine = [stepper.step()[0].item() for _ in range(3)]
    trainer = Stepper(arm_config("ngpt", TINY)).trainer
    shown = []
    short = dataclasses.replace(trainer.config.train, steps=3)
    monitor = SimpleNamespace(
        after=lambda step, loss, norm, lr: shown.append(loss.item()), between=lambda: None
    )
    trainer = dataclasses.replace(trainer, config=dataclasses.replace(trainer.config, train=short))
    train_steps(trainer, 0, monitor)
    assert mine[:1] == shown[:1]
    assert mine == pytest.approx(shown, rel=1e-2)  # the schedule of a short run ends sooner
    times = timed(stepper.step, 2, CPU)
    assert len(times) == 2
    assert min(times) > 0
    assert stepper.done == 5


def test_an_arm_has_its_kernels_while_it_steps(monkeypatch):
    seen = []
    monkeypatch.setattr(arms, "update", lambda trainer, step: (seen.append(mode()), None, None))
    Stepper(arm_config("ngpt", TINY), "off").step()
    Stepper(arm_config("ngpt", TINY)).step()
    assert [*seen, mode()] == ["off", "auto", "auto"]


def test_arms_of_the_same_reference_compute_it_once(monkeypatch):
    made, figures = [], [(3.0, 1.0)] * arms.GATE_STEPS
    monkeypatch.setattr(arms, "first_steps", lambda stepper: (made.append(1), figures)[1])
    arms.reference_steps.cache_clear()
    compiled = dataclasses.replace(TINY, compile=True)
    for arm, kernels in (("gpt-plus", "auto"), ("ngpt", "auto"), ("gpt-plus", "off")):
        assert check_arm(arm, arm_config(arm, compiled), kernels, figures) == 0
    assert len(made) == 2
    arms.reference_steps.cache_clear()


def test_batches_are_random_and_shifted_by_one():
    batches = RandomBatches(97, 8, 4)
    batch = batches.batch(1)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert batch.inputs.unique().numel() > 10
    assert not torch.equal(batch.inputs, batches.batch(2).inputs)


def test_the_gate_passes_what_agrees_and_stops_what_does_not():
    wanted = [(2.0, 0.5), (1.0, 0.5)]
    near = [(2.0, 0.5), (1.0001, 0.5)]
    assert compare_steps("x", near, wanted, 1e-3) == pytest.approx(1e-4, rel=1e-2)
    with pytest.raises(UserError, match="at step 2 its loss"):
        compare_steps("x", [(2.0, 0.5), (1.1, 0.5)], wanted, 1e-3)
    with pytest.raises(UserError, match="at step 1 its gradient's norm"):
        compare_steps("x", [(2.0, 0.4), (1.0, 0.5)], wanted, 1e-3)
    with pytest.raises(UserError, match="computes something else"):
        compare_steps("x", [(float("nan"), 0.5), (1.0, 0.5)], wanted, 1e-3)


def test_an_arm_is_compared_with_fp32_unless_it_is_that():
    config = arm_config("ngpt", TINY)
    assert check_arm("ngpt", config, "auto", first_steps(Stepper(config))) is None
    narrow = arm_config("ngpt", dataclasses.replace(TINY, precision="bf16"))
    found = first_steps(Stepper(narrow))
    off = check_arm("ngpt", narrow, "off", found)
    assert off is not None
    assert 0 < off < 2e-2
    with pytest.raises(UserError, match="computes something else"):
        check_arm("ngpt", narrow, "off", [(1.5 * loss, norm) for loss, norm in found])


def test_sizes_and_arms_are_checked():
    assert sizes_for(CPU, {"d_model": 64, "context": None}).d_model == 64
    assert sizes_for(torch.device("cuda"), {}).compile
    with pytest.raises(UserError, match="not a multiple of --context"):
        sizes_for(CPU, {"tokens": 100, "context": 64})
    config = arm_config("gpt-plus:model.g=fixed,optim.lr=0.5", TINY)
    assert (config.model.g, config.optim.lr, config.model.d_ff) == ("fixed", 0.5, None)
    assert arm_config("ngpt:kernels=off", TINY) == arm_config("ngpt", TINY)
    assert [arm_kernels(arm) for arm in ("ngpt", "ngpt:kernels=off")] == ["auto", "off"]
    with pytest.raises(UserError, match="kernels=on of an arm is not a mode"):
        arm_kernels("ngpt:kernels=on")
    with pytest.raises(UserError, match="not KEY=VALUE"):
        arm_config("ngpt:compile", TINY)
    with pytest.raises(UserError, match="unknown recipe 'gpt3'"):
        arm_config("gpt3", TINY)
    with pytest.raises(UserError, match="has 32 tokens per step, the others have 16"):
        arm_config("ngpt:train.batch_tokens=32", TINY)
    with pytest.raises(UserError, match="a context of 5, of which 16 tokens per step is not"):
        arm_config("ngpt:data.context=5", TINY)  # its steps would have 15
    for context in (0, -4):
        with pytest.raises(UserError, match=f"a context of {context}, of which"):
            arm_config(f"ngpt:data.context={context}", TINY)
    with pytest.raises(UserError, match="objective seq2seq, and a bench has no pairs"):
        arm_config("quickstart/ngpt-seq2seq", TINY)


def test_an_arm_of_its_own_context_counts_its_own_operations():
    arm = train.Arm("short", Stepper(arm_config("ngpt:data.context=4", TINY)), None, [1.0])
    found = train.figures(arm, TINY)
    assert found["tokens_per_second"] == 16_000
    assert found["flops_per_second"] == 16_000 * flops_per_token(arm.stepper.trainer.model, 4)


def test_the_peak_counts_what_lives_at_once():
    def call():
        a = torch.ones(1 << 18)  # 1 MiB
        b = a + 1
        del a
        c = torch.cat([b, b])
        del b
        return c.sum()

    assert peak_of(call, CPU) == pytest.approx(3 * 2**20, rel=1e-3)
    assert kernels_of(call, CPU) is None


def test_kernels_are_counted_and_the_longest_come_first(monkeypatch):
    times = [("norm", 500), ("mm", 2000), ("Memcpy HtoD", 9000), ("norm", 700)]
    events = [
        SimpleNamespace(name=name, time_range=SimpleNamespace(elapsed_us=lambda us=us: us))
        for name, us in times
    ]
    monkeypatch.setattr(measure, "_on_gpu", lambda call: events)
    found = kernels_of(lambda: None, torch.device("cuda"))
    assert found == {
        "calls": 3,
        "ms": pytest.approx(3.2),
        "longest": [
            {"name": "mm", "calls": 1, "ms": 2.0},
            {"name": "norm", "calls": 2, "ms": pytest.approx(1.2)},
        ],
    }


def test_what_is_held_is_weights_and_state():
    model = build("gpt", vocab_size=8, d_model=4, n_layers=1, n_heads=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    size = 4 * sum(p.numel() for p in model.parameters())
    assert held_bytes(model, optimizer) == size
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert held_bytes(model, optimizer) == 2 * size
    model.register_buffer("counts", torch.zeros(3))
    assert held_bytes(model, optimizer) == 2 * size + 12
    assert state_bytes(optimizer) == size


def test_ceilings_are_rates():
    found = ceilings(CPU)
    assert 1e6 < found.copy < 1e13
    assert 1e6 < found.matmul < 1e15
    assert drift(Ceilings(100, 10), Ceilings(99, 10.5)) == pytest.approx(0.05)


def test_the_verb_prints_one_json_document_or_a_table(quick, capsys, tmp_path):
    command = ["bench", *OPTIONS.split(), "--rounds", "1", "--arms", "gpt-plus", "ngpt"]
    figure = tmp_path / "a.png"
    assert main([*command, "--json", "--figure", str(figure)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= {"environment", "noise", "arms", "ratios"}
    assert found["environment"]["threads"] == 1
    assert figure.stat().st_size > 1000
    assert main(command) == 0
    assert "ngpt" in capsys.readouterr().out


def test_an_unknown_bench_is_refused_with_the_nearest(capsys):
    assert main(["bench", "optimisers"]) == 2
    assert "unknown bench 'optimisers' (did you mean 'optimizers'?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--rounds 0", "--rounds must be at least 1"),
        ("--vocab 0", "--vocab must be at least 1"),
        ("--figure speed.doc", "must end in .png"),
        ("--arms ngpt ngpt", "given twice"),
        ("--arms nonesuch", "unknown recipe"),
        ("--heads 3", "not divisible"),
    ],
)
def test_a_mistake_is_one_line(quick, capsys, options, said):
    given = OPTIONS.replace("--heads 2", "") if "heads" in options else OPTIONS
    assert main(["bench", *given.split(), *options.split()]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert said in last
