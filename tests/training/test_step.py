import pytest
import torch

from unitsphere.data import IGNORED, Batch
from unitsphere.models.registry import build
from unitsphere.training.optim import OptimConfig, build_optimizer
from unitsphere.training.optim.schedule import factor
from unitsphere.training.plan import Trainer, make_plan
from unitsphere.training.step import backward, set_rates, train_step


@pytest.fixture
def trainer(tiny):
    """`trainer(micro_batch)`: a trainer without data."""

    def make(micro_batch: int | None = None, **train) -> Trainer:
        model = build("gpt", vocab_size=64, d_model=32, n_layers=2, n_heads=2).double()
        optimizer = build_optimizer(model, OptimConfig(lr=1e-2))
        config = tiny(micro_batch=micro_batch, **train)
        return Trainer(config, make_plan(config), model, model.loss, optimizer, None)

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
def test_accumulation_changes_nothing_but_rounding(trainer, micro_batch):
    whole, parts = trainer(), trainer(micro_batch)
    loss, loss_of_parts = backward(whole, batch()), backward(parts, batch())
    assert loss_of_parts.item() == pytest.approx(loss.item(), rel=1e-6)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-10, atol=1e-14)


def test_the_loss_is_the_mean_over_targets(trainer):
    whole = batch()
    found = trainer()
    expected = torch.nn.functional.cross_entropy(
        found.model(whole.inputs).flatten(0, 1), whole.targets.flatten(), ignore_index=IGNORED
    )
    assert backward(found, whole).item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_batch_without_targets_teaches_nothing(trainer):
    found, empty = trainer(), batch()
    empty.targets.fill_(IGNORED)
    assert backward(found, empty).item() == 0
    assert all(torch.all(p.grad == 0) for p in found.model.parameters())


def test_the_rate_follows_the_schedule_in_every_group(trainer):
    found = trainer(steps=10)
    for step, expected in ((0, 1e-2), (5, 0.5e-2)):
        set_rates(found.optimizer, factor(found.config.schedule, step, 10))
        rates = [group["lr"] for group in found.optimizer.param_groups]
        assert rates == pytest.approx([expected] * len(rates))


def test_a_group_with_its_own_cool_down_follows_the_one_schedule_of_another_loop(trainer):
    found = trainer()
    peaks = [group["initial_lr"] for group in found.optimizer.param_groups]
    found.optimizer.param_groups[0]["cooldown"] = 0.6
    train_step(found.model, found.optimizer, lambda: backward(found, batch()), 0, 0.5)
    rates = [group["lr"] for group in found.optimizer.param_groups]
    assert rates == [0.5 * peak for peak in peaks]


def test_a_step_without_a_guard_is_clip_rate_and_optimizer(trainer):
    here, twin, whole = trainer(), trainer(), batch()
    twin.model.load_state_dict(here.model.state_dict())

    def gradients():
        return backward(here, whole)

    loss, norm = train_step(here.model, here.optimizer, gradients, 0, 0.5, clip=1e-3)
    expected = backward(twin, whole)
    before = torch.nn.utils.clip_grad_norm_(twin.model.parameters(), 1e-3)
    set_rates(twin.optimizer, 0.5)
    twin.optimizer.step()
    assert torch.equal(loss, expected)
    assert torch.equal(norm, before)
    for mine, other in zip(here.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(mine, other)
        assert mine.grad is None


def test_a_step_whose_gradients_fail_leaves_the_weights(trainer):
    found = trainer()
    before = [p.clone() for p in found.model.parameters()]

    def gradients():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        train_step(found.model, found.optimizer, gradients, 0, 1.0)
    assert all(map(torch.equal, before, found.model.parameters()))
