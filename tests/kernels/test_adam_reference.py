"""The plain function is torch's Adam and the projection, one after the other."""

import pytest
import torch

from unitsphere.ops.project import PROJECTIONS, AdamSettings, Target, adam_project_


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("kind", ["sphere", "ball"])
@pytest.mark.parametrize("dim", [0, 1])
def test_it_steps_as_torch_does(optimizer, kind, dim):
    torch.manual_seed(0)
    numbers = {"lr": 3e-2, "betas": (0.9, 0.95), "eps": 1e-9, "weight_decay": 0.1}
    expected = torch.nn.Parameter(torch.randn(5, 7, dtype=torch.float64))
    weight = expected.detach().clone()
    exp_avg, exp_avg_sq = torch.zeros_like(weight), torch.zeros_like(weight)
    shadow = torch.empty_like(weight, dtype=torch.bfloat16)
    torchs = optimizer([expected], **numbers)
    for n in range(1, 4):
        gradient = torch.randn_like(weight)
        expected.grad = gradient.clone()
        torchs.step()
        PROJECTIONS[kind](expected.data, dim, 1.5)
        decoupled = optimizer is torch.optim.AdamW
        adam_project_(
            weight, gradient, exp_avg, exp_avg_sq, torch.tensor(n),
            AdamSettings(**numbers, decoupled=decoupled), Target(kind, dim, 1.5), shadow,
        )  # fmt: skip
        torch.testing.assert_close(weight, expected.detach(), rtol=1e-12, atol=1e-12)
    assert torch.equal(shadow, weight.bfloat16())
    torch.testing.assert_close(exp_avg, torchs.state[expected]["exp_avg"])
    torch.testing.assert_close(exp_avg_sq, torchs.state[expected]["exp_avg_sq"])
