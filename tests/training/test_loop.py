import pytest
import torch

from unitsphere.data import IGNORED, Batch
from unitsphere.models.registry import build
from unitsphere.training.optim import OptimConfig, build_optimizer
from unitsphere.training.step import Job, backward, set_rate


@pytest.fixture
def job(tiny):
    """`job(micro_batch)`: a job without data."""

    def make(micro_batch: int | None = None, **train) -> Job:
        model = build("gpt", vocab_size=64, d_model=32, n_layers=2, n_heads=2).double()
        optimizer = build_optimizer(model, OptimConfig(lr=1e-2))
        config = tiny(micro_batch=micro_batch, **train)
        return Job(config, model, model.loss, optimizer, None, "fp32")

    return make


def batch(rows: int = 6, context: int = 16):
    """Rows with very different numbers of targets: the first has a single one."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(64, (rows, context + 1), generator=generator)
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    targets[0, 1:] = IGNORED
    targets[1, 5:] = IGNORED
    return Batch(inputs, targets)


@pytest.mark.parametrize("micro_batch", [1, 2, 4, 6, 100])
def test_accumulation_changes_nothing_but_rounding(job, micro_batch):
    whole, parts = job(), job(micro_batch)
    loss, loss_of_parts = backward(whole, batch()), backward(parts, batch())
    assert loss_of_parts.item() == pytest.approx(loss.item(), rel=1e-6)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-10, atol=1e-14)


def test_the_loss_is_the_mean_over_targets(job):
    whole = batch()
    found = job()
    expected = torch.nn.functional.cross_entropy(
        found.model(whole.inputs).flatten(0, 1), whole.targets.flatten(), ignore_index=IGNORED
    )
    assert backward(found, whole).item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_batch_without_targets_teaches_nothing(job):
    found, empty = job(), batch()
    empty.targets.fill_(IGNORED)
    assert backward(found, empty).item() == 0
    assert all(torch.all(p.grad == 0) for p in found.model.parameters())


def test_the_rate_follows_the_schedule_in_every_group(job):
    found = job(steps=10)
    assert set_rate(found, 0) == pytest.approx(1e-2)
    rate = set_rate(found, 5)
    assert rate == pytest.approx(0.5e-2)
    assert {group["lr"] for group in found.optimizer.param_groups} == {rate}
