"""`unitsphere.trainer.Constrain` by itself; tests/examples has it in a Trainer that resumes."""

import torch

import unitsphere
from unitsphere.models.constraint import constraints
from unitsphere.optim import ConstraintConfig


def lengths(model):
    """The lengths of the vectors of every constrained matrix of nGPT's, along its axis."""
    return [model.get_parameter(c.parameter).norm(dim=c.dim) for c in constraints(model)]


def off(model) -> float:
    return max((length - 1).abs().max().item() for length in lengths(model))


def test_it_projects_after_each_step_until_the_training_ends(tmp_path):
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from unitsphere.trainer import Constrain

    model = unitsphere.build("ngpt", vocab_size=40, d_model=16, n_layers=1, n_heads=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    events = TrainingArguments(str(tmp_path), use_cpu=True), TrainerState(), TrainerControl()

    def step():
        tokens = torch.arange(8)[None]
        model.loss(tokens, tokens + 1).backward()
        optimizer.step()
        return off(model)

    for config in (ConstraintConfig(), ConstraintConfig(kind="none")):
        callback = Constrain(config)
        callback.on_train_begin(*events, model=model, optimizer=optimizer)
        callback.on_train_begin(*events, model=model, optimizer=optimizer)  # a second training
        assert (step() < 1e-6) == (config.kind == "declared")
        callback.on_train_end(*events, model=model, optimizer=optimizer)
        assert not callback.handles
        assert step() > 1e-3
