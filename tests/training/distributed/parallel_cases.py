"""Tiny runs of every architecture, made the same way on any layout.

Batches are a function only of the step. Targets are scored unevenly: the rows of the first half
have few that count, so a process that averaged over its own rows would be wrong.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unitsphere.data.batch import IGNORED, Batch
from unitsphere.models.config import RecurrenceConfig
from unitsphere.models.trunk import Objective
from unitsphere.training.checkpoint.saver import write
from unitsphere.training.checkpoint.store import State
from unitsphere.training.checkpoint.tensors import load_model, load_optimizer, named_tensors
from unitsphere.training.config import RunConfig, TrainConfig, run_config_type
from unitsphere.training.distributed.layout import Degrees, Layout
from unitsphere.training.optim import RoleConfig, RolesConfig, optim_config_type
from unitsphere.training.optim.constraint import ConstraintConfig
from unitsphere.training.optim.cpr import CPRConfig
from unitsphere.training.plan import Trainer, build_trainer, make_plan
from unitsphere.training.step import update

VOCABULARY, CONTEXT, ROWS, WIDTH = 64, 12, 4, 32
ONE = Degrees()
SIZES = {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layers": 2, "n_heads": 2, "d_ff": 48}


@dataclass(frozen=True)
class Case:
    """A run: an architecture, its objective and numbers, and settings of optimizer and training."""

    architecture: str
    objective: Objective = "clm"
    model: dict[str, Any] = field(default_factory=dict)
    optim: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)


ARCHITECTURES = {
    "gpt": Case("gpt"),
    "gpt-plus": Case("gpt", model={"qk_norm": True, "rotary_fraction": 0.5}),
    "ngpt": Case("ngpt"),
    "angpt": Case("angpt"),
    "normformer": Case("normformer"),
    "lnscaling": Case("lnscaling"),
    "dyt": Case("dyt"),
    "rezero": Case("rezero"),
}
SMALL = {"n_layers": 1}
SCALAR = {"s_qk": "scalar", "s_u": "scalar", "s_z": "scalar"}
RECENT = {
    "activation": "relu2",
    "softcap": 2.0,
    "embedding_norm": True,
    "embedding_start": "rms",
    "zero_outputs": "branches",
}
HYBRID = {
    "n_layers": 4,
    "mixers": "gdn mamba2 gla attention",
    "recurrence": RecurrenceConfig(n_heads=2, d_key=6, d_value=8),
}
BEFORE = {"token_shift": True, "key_offset": True, "rotary_fraction": 0.5}
"""The parts that read the token before."""
EXPERTS = {"n_layers": 1, "n_experts": 4, "top_k": 2}
BY_ROLE = RolesConfig(RoleConfig(beta1=0.8, weight_decay=0.1), scale=RoleConfig(eps=1e-6))
VARIANTS = {
    "angpt-mlm-accumulated": Case("angpt", "mlm", SMALL, train={"micro_batch": 1}),
    "dyt-mlm-accumulated": Case("dyt", "mlm", SMALL, train={"micro_batch": 1}),
    "ngpt-seq2seq": Case("ngpt", "seq2seq", SMALL),
    "gpt-plus-seq2seq": Case("gpt", "seq2seq", SMALL | {"qk_norm": True}),
    "ngpt-tied-scalar": Case(
        "ngpt", model=SMALL | {"tied": True, "s_qk": "scalar", "s_z": "scalar"}
    ),
    "ngpt-grouped": Case("ngpt", model=SMALL | {"n_heads": 4, "n_kv_heads": 2}),
    "ngpt-best": Case(
        "ngpt",
        model=SMALL | {"residual": "gated"},
        optim={"name": "muon", "muon_head": True, "head_by_frequency": True},
    ),
    "ngpt-riemannian": Case("ngpt", model=SMALL, optim={"riemannian": True}),
    "gpt-hyperball": Case("gpt", model=SMALL, optim={"constraint": "hyperball"}),
    "angpt-sphere": Case("angpt", model=SMALL, optim={"constraint": "sphere"}),
    "ngpt-frobenius": Case("ngpt", model=SMALL, optim={"constraint": "frobenius"}),
    "ngpt-capped": Case(
        "ngpt", model=SMALL, optim={"angle_cap": 0.5, "logit_power": 0.5, "name": "gated-adamw"}
    ),
    "gpt-hybrid": Case("gpt", model=HYBRID),
    "ngpt-hybrid": Case("ngpt", model=HYBRID, optim={"name": "muon"}),
    "ngpt-experts": Case("ngpt", model=EXPERTS, optim={"name": "muon"}),
    "gpt-experts-accumulated": Case("gpt", model=EXPERTS, train={"micro_batch": 1}),
    "gpt-cpr": Case("gpt", model=SMALL | {"output_norm": True}, optim={"constraint": "cpr"}),
    "gpt-plus-peri": Case(
        "gpt",
        model=SMALL | BEFORE | {"qk_norm": True, "output_norm": True, "embedding_norm": True},
        optim={"name": "muon"},
    ),
    "ngpt-best-shift": Case(
        "ngpt", model=SMALL | BEFORE | {"residual": "gated"}, optim={"name": "muon"}
    ),
    "gpt-recent": Case("gpt", model=SMALL | RECENT, optim={"name": "muon", "roles": BY_ROLE}),
}


class Random:
    """Random batches by step, of tokens that differ in how common they are."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    def batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(VOCABULARY, (ROWS, CONTEXT + 1), generator=generator)
        tokens = tokens.square() // VOCABULARY  # some are rare, others common
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].clone()
        if self.objective != "clm":
            targets[: ROWS // 2, 2:] = IGNORED
        if self.objective != "seq2seq":
            return Batch(inputs, targets)
        source = torch.randint(VOCABULARY, (ROWS, CONTEXT), generator=generator)
        lengths = torch.tensor([CONTEXT, 3, 5, 7])
        return Batch(inputs, targets, source, torch.arange(CONTEXT) < lengths[:, None])

    def rows(self, step: int, first: int, count: int) -> Batch:
        return self.batch(step).take(first, first + count)


def config_of(case: Case, steps: int = 20) -> RunConfig:
    kind = run_config_type(case.architecture)
    model = kind().model
    numbers = {
        name: dataclasses.replace(getattr(model, name), form=value)
        if dataclasses.is_dataclass(getattr(model, name)) and not dataclasses.is_dataclass(value)
        else value
        for name, value in case.model.items()
    }
    optim = dict(case.optim)
    kind_of, riemannian = optim.pop("constraint", "declared"), optim.pop("riemannian", False)
    cap = optim.pop("angle_cap", 0.0)
    optim["constraint"] = ConstraintConfig(
        kind_of, riemannian, CPRConfig(warm_steps=2), angle_cap=cap
    )
    return kind(
        architecture=case.architecture,
        objective=case.objective,
        model=dataclasses.replace(model, **(SIZES | numbers)),
        optim=optim_config_type()(lr=3e-3, **optim),
        data=dataclasses.replace(kind().data, context=CONTEXT),
        train=TrainConfig(
            steps=steps,
            batch_tokens=ROWS * CONTEXT,
            **{"precision": "fp32", "device": "cpu", "compile": False} | case.train,
        ),
    )


def trainer_of(case: Case, found: Degrees = ONE, rank: int = 0) -> Trainer:
    """The run's objects on a layout of these degrees, in this process."""
    config, world = config_of(case), found.data * found.tp
    layout = Layout(rank, world, rank).with_degrees(found, "cpu")
    return build_trainer(config, Random(case.objective), make_plan(config, layout))


def save(root: Path, trainer: Trainer, step: int) -> Path:
    """A checkpoint of the trainer as it is, written by all of its processes."""
    state = State(step, 0, 0.0, 0, "", torch.__version__)
    return write(root, state, named_tensors(trainer.model, trainer.optimizer), trainer.plan.layout)


def resumed(case: Case, folder: Path, found: Degrees = ONE, rank: int = 0) -> Trainer:
    """A new trainer on a layout, with what a checkpoint holds."""
    trainer = trainer_of(case, found, rank)
    load_model(folder, trainer.model)
    load_optimizer(folder, trainer.model, trainer.optimizer)
    return trainer


def losses(trainer: Trainer, steps: range) -> Tensor:
    """Loss and gradient norm of each step, [steps, 2]."""
    return torch.stack([torch.stack(update(trainer, step)[:2]) for step in steps])
