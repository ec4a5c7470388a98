"""Every architecture learns the same on every layout, and its weights keep their constraint."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from parallel_cases import ARCHITECTURES, VARIANTS, VOCABULARY, losses, resumed, save, trainer_of
from parallel_launch import launch

from unitsphere.ops.dtensor import whole
from unitsphere.training.checkpoint import store as checkpoint
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
LONG = os.environ.get("TORTURE") == "long"
ON_COPIES = ["gpt-plus", "ngpt"]
ON_SHARDS = ["gpt", "ngpt", "angpt", "normformer", "dyt", "rezero"]
ON_A_MESH = ["gpt-plus", "ngpt", "angpt"]
"""Copies do not see what a model is. Shards cut its parameters, which gpt-plus and lnscaling have
in no other shapes than these. Each has a plan of its own for tensor parallel. On a mesh of both,
constraints (none, sphere, ball) meet two cuts. The long form trains all of them on all layouts."""
PLANNED = {
    "ddp": [
        *(ARCHITECTURES if LONG else ON_COPIES), "angpt-mlm-accumulated", "ngpt-seq2seq",
        "gpt-experts-accumulated",
    ],
    "fsdp2": [
        *(ARCHITECTURES if LONG else ON_SHARDS),
        "dyt-mlm-accumulated", "ngpt-seq2seq", "ngpt-best", "gpt-hyperball", "gpt-cpr",
        "gpt-recent", "ngpt-capped", "ngpt-hybrid", "ngpt-experts",
    ],
    "tp": [
        *ARCHITECTURES,
        "gpt-plus-seq2seq", "ngpt-tied-scalar", "ngpt-grouped", "ngpt-best", "ngpt-riemannian",
        "angpt-sphere", "ngpt-frobenius", "gpt-cpr", "gpt-recent", "ngpt-capped", "gpt-hybrid",
        "ngpt-hybrid",
    ],
    "fsdp2 x tp": [
        *(ARCHITECTURES if LONG else ON_A_MESH), "gpt-cpr", "ngpt-frobenius", "ngpt-best",
    ],
    "hsdp": ["dyt-mlm-accumulated"],
    "ddp x tp": ["ngpt-tied-scalar"],
}  # fmt: skip
"""Where each architecture and variant may go wrong."""
Plan = list[tuple[str, str]]
"""Cases and the layouts on which they are trained."""


SAVED = ("ngpt", "fsdp2 x tp")
"""Saved after training: its shards are cut twice along the same axis."""


def steps_of(name: str, layout: str) -> range:
    """Three, of which the last has weights and state that two have changed; CPR begins with it.

    In the long form more, for an architecture that is free, on the sphere and in the ball most.
    """
    if not LONG:
        return range(4 if "cpr" in name else 3)
    return range(20 if name in ON_A_MESH else 5)


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
        curve = losses(trainer, steps_of(name, layout)).tolist()
        with torch.no_grad():
            logits = whole_logits(trainer)
        if (name, layout) == SAVED:
            save(folder, trainer, len(curve))
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
    alone, curves = {}, {}
    for name, layout in plan:
        alone[name, layout] = trainer_of(CASES[name])
        curves[name, layout] = losses(alone[name, layout], steps_of(name, layout))
    found = json.loads((folder / "found.json").read_text())
    for (name, layout), there in zip(plan, found, strict=True):
        curve, expected = torch.tensor(there["curve"]), curves[name, layout]
        difference = float((curve - expected)[:, 0].abs().max())
        assert difference <= TOLERANCE, f"the loss of {name} on {layout} differs by {difference}"
        norms = curve[:, 1], expected[:, 1]
        assert torch.allclose(*norms, rtol=1e-4, atol=1e-5), f"gradients of {name} on {layout}"
        assert there["off"] <= 1e-6, f"{name} on {layout} is off its constraint"
        logits = torch.tensor(there["logits"]), torch.tensor(whole_logits(alone[name, layout]))
        assert torch.allclose(*logits, atol=1e-4), f"logits of {name} on {layout}"


def planned(processes: int) -> Plan:
    """What is trained in that many processes."""
    return [
        (name, layout)
        for layout, names in PLANNED.items()
        for name in names
        if LAYOUTS[layout].data * LAYOUTS[layout].tp == processes
    ]


@pytest.mark.timeout(300)
def test_two_processes_learn_as_one_does(tmp_path):
    check(planned(2), 2, tmp_path)


@pytest.mark.timeout(300)
def test_four_processes_learn_as_one_does(tmp_path):
    check(planned(4), 4, tmp_path)
    alone, case, steps = trainer_of(CASES["ngpt"]), CASES["ngpt"], steps_of(*SAVED)
    losses(alone, steps)
    loaded = resumed(case, checkpoint.folder_of(tmp_path, len(steps)))
    for (name, weight), other in zip(
        alone.model.named_parameters(), loaded.model.parameters(), strict=True
    ):
        # By norm: Adam takes one whole step by the sign of a gradient that is rounding alone.
        assert float((weight - other).norm() / weight.norm()) < 1e-5, name
    rest = range(len(steps), len(steps) + 3)
    assert torch.allclose(losses(alone, rest), losses(loaded, rest), atol=1e-5)
