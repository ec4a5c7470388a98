"""Every architecture learns the same on every layout, and its weights keep their constraint."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from parallel_cases import ARCHITECTURES, VARIANTS, VOCABULARY, losses, resumed, save, trainer_of
from parallel_launch import launch

from unitsphere.ops.dtensor import whole
from unitsphere.training.distributed.layout import Degrees
from unitsphere.training.optim.constraint import bounds_of
from unitsphere.training.plan import Trainer

TOLERANCE = 1e-5
LAYOUTS = {
    "ddp": Degrees(dp_replicate=2),
    "fsdp2": Degrees(dp_shard=2),
    "tp": Degrees(tp=2),
    "fsdp2 x tp": Degrees(dp_shard=2, tp=2),
    "hsdp": Degrees(dp_replicate=2, dp_shard=2),
    "ddp x tp": Degrees(dp_replicate=2, tp=2),
}
CASES = ARCHITECTURES | VARIANTS
VARIANTS_ON = {
    "ddp": ["angpt-mlm-accumulated", "ngpt-seq2seq"],
    "fsdp2": [
        "dyt-mlm-accumulated", "ngpt-seq2seq", "ngpt-best", "gpt-hyperball", "gpt-cpr",
        "gpt-recent", "ngpt-capped",
    ],
    "tp": [
        "gpt-plus-seq2seq", "ngpt-tied-scalar", "ngpt-grouped", "ngpt-best", "ngpt-riemannian",
        "angpt-sphere", "ngpt-frobenius", "gpt-cpr", "gpt-recent", "ngpt-capped",
    ],
}  # fmt: skip
"""Where each variant may go wrong."""
Plan = list[tuple[str, str]]
"""Cases and the layouts on which they are trained."""


SAVED = ("ngpt", "fsdp2 x tp")
"""Saved after training: its shards are cut twice along the same axis."""


LONG = ("gpt-plus", "ngpt", "angpt")


def steps_of(name: str) -> range:
    """20 for the architectures in LONG: free, on the sphere and in the ball. 5 for the others."""
    return range(20 if name in LONG else 5)


def off_the_constraint(trainer: Trainer) -> float:
    """How far a length that is constrained, of the full tensors, is from what is allowed."""
    off = [0.0]
    for constraint in bounds_of(trainer.model, trainer.config.optim.constraint.kind):
        weight = whole(trainer.model.get_parameter(constraint.parameter)).detach()
        beyond = weight.norm(dim=constraint.dim) - 1
        off.append(float(beyond.abs().max() if constraint.kind == "sphere" else beyond.max()))
    for weight, state in trainer.optimizer.state.items():
        if "radius" in state:
            off.append(abs(float(whole(weight.detach()).norm() / state["radius"]) - 1))
    return max(off)


def train_all(plan: Plan, rank: int, folder: Path) -> None:
    """Train as planned; the first process leaves what was found."""
    found: list[dict[str, Any]] = []
    for name, layout in plan:
        trainer = trainer_of(CASES[name], LAYOUTS[layout], rank)
        begins_alike(trainer, name)
        curve = losses(trainer, steps_of(name)).tolist()
        with torch.no_grad():
            logits = whole_logits(trainer)
        if (name, layout) == SAVED:
            save(folder, trainer, 20)
        found.append({"curve": curve, "off": off_the_constraint(trainer), "logits": logits})
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))


def begins_alike(trainer: Trainer, name: str) -> None:
    """Parts that were drawn apart are parts of what one process draws."""
    alone = dict(trainer_of(CASES[name]).model.named_parameters())
    for key, weight in trainer.model.named_parameters():
        assert torch.allclose(whole(weight.detach()), alone[key], rtol=3e-7, atol=0), key


def whole_logits(trainer: Trainer) -> list[float]:
    """Some logits of the trained model, through `forward` and not the loss."""
    tokens = torch.arange(8)[None] % VOCABULARY
    memory = None if trainer.config.objective != "seq2seq" else trainer.model.encode(tokens)
    return trainer.model(tokens, memory=memory)[0, -1].tolist()


def check(plan: Plan, processes: int, folder: Path) -> None:
    """Train as planned in that many processes, and compare with one."""
    launch(partial(train_all, plan), processes, folder)
    alone = {name: trainer_of(CASES[name]) for name, _ in plan}
    curves = {name: losses(trainer, steps_of(name)) for name, trainer in alone.items()}
    found = json.loads((folder / "found.json").read_text())
    for (name, layout), there in zip(plan, found, strict=True):
        curve, expected = torch.tensor(there["curve"]), curves[name]
        difference = float((curve - expected)[:, 0].abs().max())
        assert difference <= TOLERANCE, f"the loss of {name} on {layout} differs by {difference}"
        norms = curve[:, 1], expected[:, 1]
        assert torch.allclose(*norms, rtol=1e-4, atol=1e-5), f"gradients of {name} on {layout}"
        assert there["off"] <= 1e-6, f"{name} on {layout} is off its constraint"
        logits = torch.tensor(there["logits"]), torch.tensor(whole_logits(alone[name]))
        assert torch.allclose(*logits, atol=1e-4), f"logits of {name} on {layout}"


@pytest.mark.timeout(300)
def test_two_processes_learn_as_one_does(tmp_path):
    plan = [(name, on) for on, more in VARIANTS_ON.items() for name in [*ARCHITECTURES, *more]]
    check(plan, 2, tmp_path)


@pytest.mark.timeout(300)
def test_four_processes_learn_as_one_does(tmp_path):
    copies = [("dyt-mlm-accumulated", "hsdp"), ("ngpt-tied-scalar", "ddp x tp")]
    copies += [("gpt-cpr", "fsdp2 x tp"), ("ngpt-frobenius", "fsdp2 x tp")]
    copies += [("ngpt-best", "fsdp2 x tp")]
    check([(name, "fsdp2 x tp") for name in ARCHITECTURES] + copies, 4, tmp_path)
    alone, case = trainer_of(CASES["ngpt"]), CASES["ngpt"]
    losses(alone, range(20))
    loaded = resumed(case, tmp_path / "step-00000020")
    for (name, weight), other in zip(
        alone.model.named_parameters(), loaded.model.parameters(), strict=True
    ):
        # By norm: Adam takes one whole step by the sign of a gradient that is rounding alone.
        assert float((weight - other).norm() / weight.norm()) < 1e-5, name
    assert torch.allclose(losses(alone, range(20, 23)), losses(loaded, range(20, 23)), atol=1e-5)
