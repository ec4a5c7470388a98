"""The head's gradient by how rare each token is."""

import copy
import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from run_folders import check_resumed, figures

from unitsphere.data.batch import IGNORED, Batch
from unitsphere.errors import UserError
from unitsphere.models.registry import ARCHITECTURES, build
from unitsphere.training.config import run_config_type
from unitsphere.training.optim import OptimConfig, build_optimizer, frequency
from unitsphere.training.optim.frequency import UNIFORM, row_factors, weigh_head
from unitsphere.training.run import train

SMALL = {"vocab_size": 40, "d_model": 32, "n_layers": 2, "n_heads": 2}
OPTIM = OptimConfig(name="muon", lr=1e-2, muon_head=True, head_by_frequency=True)


class Same:
    """The same targets [n] in every batch, which are not its inputs."""

    def __init__(self, targets):
        self.targets = torch.tensor([targets])

    def batch(self, step):
        return Batch(torch.zeros_like(self.targets), self.targets)

    def rows(self, step, first, count):
        return self.batch(step)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=30))
def test_a_row_counts_by_one_over_the_root_of_its_tokens_share(targets):
    found = row_factors(Same([*targets, IGNORED]), 2**19, 8)
    for token in range(8):
        p = (1 - UNIFORM) * targets.count(token) / len(targets) + UNIFORM / 8
        assert found[token].item() == pytest.approx((8 * p) ** -0.5, rel=1e-5)


def test_more_is_counted_for_a_larger_vocabulary():
    asked = []

    class Counting(Same):
        def batch(self, step):
            asked.append(step)
            return super().batch(step)

    row_factors(Counting([1]), 2**18, 4096)
    assert asked == [0, 1, 2, 3]
    row_factors(Counting([1]), 2**18, 8192)
    assert asked[4:] == list(range(8))


def test_no_target_at_all_is_no_frequency():
    found = row_factors(Same([IGNORED]), 2**20, 4)
    torch.testing.assert_close(found, torch.full((4,), UNIFORM**-0.5))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_optimizer_sees_the_heads_gradient_by_rows_and_all_else_as_it_is(name):
    torch.manual_seed(0)
    targets = torch.randint(0, 40, (1, 200)).square().div(40, rounding_mode="floor")
    batches = Same(targets[0].tolist())
    factors = row_factors(batches, 2**20, 40)
    model = build(name, tied=False, **SMALL)
    optimizer = build_optimizer(model, OPTIM)
    twin, by_hand = copy.deepcopy((model, optimizer))
    weigh_head(model, optimizer, batches, 2**20)
    head = next(n for n in dict(model.named_parameters()) if n.startswith(("E_out", "W_h")))
    for m, o in ((model, optimizer), (twin, by_hand)):
        x = targets[:, :20]
        m.loss(x, x.roll(-1, 1)).backward()
        if m is twin:
            m.get_parameter(head).grad.mul_(factors[:, None])
        o.step()
    for (key, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs), key
    assert factors.max() / factors.min() > 2


def test_copies_of_model_and_optimizer_keep_it():
    model = build("ngpt", **SMALL)
    optimizer = build_optimizer(model, OPTIM)
    weigh_head(model, optimizer, Same([1, 2, 2]), 2**20)
    twin, copied = copy.deepcopy((model, optimizer))
    for m, o in ((model, optimizer), (twin, copied)):
        x = torch.arange(20)[None]
        m.loss(x, x).backward()
        o.step()
    assert torch.equal(model.E_out.weight, twin.E_out.weight)


def test_it_needs_muon_on_a_head_of_its_own():
    with pytest.raises(UserError, match=r"head_by_frequency is for a head trained by Muon"):
        OptimConfig(name="muon", head_by_frequency=True)
    for name in ARCHITECTURES:
        config = run_config_type(name)()
        tied = dataclasses.replace(config.model, tied=True)
        with pytest.raises(UserError, match=r"for a head of its own: set model\.tied false"):
            dataclasses.replace(config, model=tied, optim=OPTIM)


def test_a_resumed_run_counts_the_same_tokens_and_is_the_uninterrupted_one(
    tiny, tmp_path, monkeypatch
):
    monkeypatch.setattr(frequency, "COUNTED", 2**12)
    config = tiny("ngpt", sample_every=5)
    gated = dataclasses.replace(config.model, residual="gated")
    config = dataclasses.replace(config, optim=OPTIM, model=gated)
    check_resumed(config, tmp_path)
    plain = dataclasses.replace(config, optim=dataclasses.replace(OPTIM, head_by_frequency=False))
    train(plain, tmp_path / "plain")
    assert figures(tmp_path / "plain") != figures(tmp_path / "whole")
