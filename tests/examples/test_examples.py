"""Every example as it is printed, with few steps: weights are where the constraint wants them."""

import runpy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import unitsphere
from unitsphere.cli import main
from unitsphere.models.constraint import constraints

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def example(name: str):
    """The `main` of an example."""
    return runpy.run_path(str(Path(__file__).parents[2] / "examples" / f"{name}.py"))["main"]


def off(model) -> float:
    """How far the farthest constrained vector of nGPT's is from length 1."""
    found = constraints(model)
    assert len(found) >= 9
    lengths = [model.get_parameter(c.parameter).norm(dim=c.dim) for c in found]
    return max((length - 1).abs().max().item() for length in lengths)


def trained(model, name="E_in.weight") -> bool:
    """Whether a parameter has left the start that `build` gives it by its seed."""
    start = unitsphere.build("ngpt", vocab_size=256, d_model=64, n_layers=2, n_heads=2)
    return (model.get_parameter(name) - start.get_parameter(name)).abs().max().item() > 1e-5


@pytest.fixture(autouse=True)
def _aside(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert f"python examples/{path.name}" in text


def test_every_example_is_run_here():
    tests = Path(__file__).read_text(encoding="utf-8")
    assert [path.stem for path in EXAMPLES if f'example("{path.stem}")' not in tests] == []


def test_plain_loop():
    model, optimizer, averaged = example("plain_loop")(steps=3)
    assert trained(model)
    assert off(model) < 1e-6
    assert off(averaged) < 1e-6
    assert not torch.equal(averaged.module.E_in.weight, model.E_in.weight)
    optimizer.load_state_dict(optimizer.state_dict())
    tokens = torch.arange(32)[None]
    model.loss(tokens, tokens.roll(-1, 1)).backward()
    optimizer.step()
    assert off(model) < 1e-6


def test_plain_loop_whose_scaler_skips_a_step():
    """Every gradient of the first steps overflows in fp16, and halves the scale."""
    model, optimizer, _ = example("plain_loop")(steps=2, init_scale=2.0**100)
    assert not trained(model)
    assert off(model) < 1e-6
    assert not optimizer.state


def test_plain_loop_compiled(monkeypatch):
    compiled = partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", compiled)
    model, _, _ = example("plain_loop")(steps=2, compile=True, d_model=32)
    assert off(model) < 1e-6


def test_hf_trainer(tmp_path):
    run = example("hf_trainer")
    quiet = {"disable_tqdm": True, "save_steps": 2}
    whole = run(str(tmp_path / "out"), steps=4, **quiet)
    assert trained(whole.model.model)
    assert off(whole.model) < 1e-6
    (tmp_path / "out" / "checkpoint-4").rename(tmp_path / "checkpoint-4")
    resumed = run(str(tmp_path / "out"), steps=4, resume=True, **quiet)
    assert resumed.state.global_step == 4
    assert off(resumed.model) < 1e-6
    for p, q in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_lightning_module(tmp_path):
    from pytorch_lightning import Trainer  # seconds, which each worker that collects would spend

    names = runpy.run_path(str(EXAMPLES[0].parent / "lightning_module.py"))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    module, trainer = example("lightning_module")(steps=3, enable_checkpointing=False, **quiet)
    assert trained(module.model)
    assert off(module) < 1e-6
    trainer.save_checkpoint("saved.ckpt")
    fresh, loader = names["LanguageModel"](4), DataLoader(torch.arange(130).view(2, 65))
    again = Trainer(
        max_steps=4, accelerator="cpu", logger=False, enable_checkpointing=False, **quiet
    )
    again.fit(fresh, loader, ckpt_path="saved.ckpt")
    assert again.global_step == 4
    assert off(fresh) < 1e-6
    idle = Trainer(max_steps=3, accelerator="cpu", logger=False, **quiet)
    idle.fit(unmoved := names["LanguageModel"](3), loader, ckpt_path="saved.ckpt")
    for p, q in zip(module.parameters(), unmoved.parameters(), strict=True):
        assert torch.equal(p, q)  # projected again, they would differ in their last bits
    average = names["ProjectedAverage"](decay=0.5)
    averaged, _ = names["main"](steps=3, callbacks=[average], enable_checkpointing=False, **quiet)
    assert off(averaged) < 1e-6


def test_accelerate_loop(tmp_path):
    accelerator, model, optimizer = example("accelerate_loop")(steps=3, cpu=True)
    assert trained(model.model)
    assert off(model) < 1e-6
    accelerator.save_state(str(tmp_path / "state"))
    accelerator.load_state(str(tmp_path / "state"))
    tokens = torch.arange(32)[None]
    accelerator.backward(model(tokens, tokens.roll(-1, 1)))
    optimizer.step()
    assert off(model) < 1e-6


@pytest.mark.parametrize("constrained_first", [True, False])
def test_accelerate_s_optimizer_with_a_scaler_that_skips(constrained_first):
    from accelerate.optimizer import AcceleratedOptimizer

    example("accelerate_loop")(steps=1, cpu=True)  # Accelerate's own state
    model = unitsphere.build("ngpt", vocab_size=40, d_model=32, n_layers=1, n_heads=2)
    inner = torch.optim.Adam(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    if constrained_first:
        unitsphere.constrain(model, inner)
    optimizer = AcceleratedOptimizer(inner, device_placement=False, scaler=scaler)
    if not constrained_first:
        unitsphere.constrain(model, optimizer)
    tokens = torch.arange(24).reshape(2, 12)
    for factor in (1.0, torch.inf, 1.0):
        before = model.E_in.weight.detach().clone()
        scaler.scale(model.loss(tokens, tokens.roll(-1, 1)) * factor).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert optimizer.step_was_skipped == (factor == torch.inf)
        moved = (model.E_in.weight - before).abs().max() > 1e-6
        assert moved == (factor != torch.inf)
        assert off(model) < 1e-6


def test_train_on(tmp_path):
    Path("text.txt").write_text("The cat sat on the mat, and that was that.\n" * 60)
    sizes = ["--model.d_model", "64", "--model.n_layers", "1", "--model.n_heads", "2"]
    data = ["--data.source", "text.txt", "--data.tokenizer", "bytes", "--data.context", "32"]
    steps = ["--train.steps", "2", "--train.batch_tokens", "64", "--train.device", "cpu"]
    assert main(["train", "quickstart/ngpt", *sizes, *data, *steps, "--out", "run"]) == 0
    run = unitsphere.load("run", device="cpu")
    model = example("train_on")("run", steps=2)
    assert off(model) < 1e-6
    assert not torch.equal(model.E_in.weight, run.model.E_in.weight)


def test_vit_digits():
    torch.manual_seed(0)
    model, right = example("vit_digits")(epochs=3)
    assert off(model) < 1e-6
    assert right > 0.3  # a tenth by chance; seeds 0 to 3 give 0.54 to 0.85


def test_optimizers(capsys):
    model, optimizer, last, average = example("optimizers")()
    assert min(last, average) > 0.9
    assert {len(optimizer.state[p]) for p in model.parameters()} == {3, 5}
    assert "averaged" in capsys.readouterr().out
