"""Attention on a CPU by blocks of queries: its formula in fp64, and when it serves."""

import pytest
import torch

from unitsphere.kernels import attention, using_kernels
from unitsphere.kernels.device_attention import BLOCK, LONGEST_SEQUENCE, CausalAttention
from unitsphere.models.registry import build
from unitsphere.ops import attention as ops

SCALE = 0.3


def heads(time, dtype=torch.bfloat16, H_kv=2):
    """q, k and v, and a gradient of the output: [2, 2 or H_kv, time, 16]."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(2, H, time, 16, generator=generator) for H in (2, H_kv, H_kv, 2)]
    return [x.to(dtype) for x in made]


def results(function, q, k, v, g):
    """The output, and the gradients of q, k and v."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    o = function(q, k, v, SCALE, None, True)
    return [o.detach(), *torch.autograd.grad(o, (q, k, v), g)]


def errors(found, exact):
    """Relative to the length of each tensor."""
    return [float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]


@pytest.mark.parametrize("time", [BLOCK, BLOCK + 1, 256, LONGEST_SEQUENCE])
def test_it_is_as_exact_as_sdpa_in_bf16(time):
    given = heads(time)
    exact = results(ops.attention, *(x.double() for x in given))
    own, sdpa = (errors(results(f, *given), exact) for f in (attention, ops.attention))
    assert own != sdpa
    assert all(a < 1.5 * b for a, b in zip(own, sdpa, strict=True))


def test_a_query_sees_no_later_key():
    q, k, v, _ = heads(2 * BLOCK)
    changed = [x.clone() for x in (k, v)]
    for x in changed:
        x[..., BLOCK + 3 :, :] = 7.0
    before, after = (CausalAttention.apply(q, *x, SCALE) for x in ((k, v), changed))
    assert torch.equal(before[..., : BLOCK + 3, :], after[..., : BLOCK + 3, :])
    assert not torch.equal(before, after)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"dtype": torch.float32}, False),
        ({"time": BLOCK - 1}, False),
        ({"time": LONGEST_SEQUENCE + 1}, False),
        ({"H_kv": 1}, False),
        ({"causal": False}, False),
        ({"dropout": 0.1}, False),
        ({"mode": "off"}, False),
        ({"grad": False}, False),
    ],
)
def test_it_serves_what_it_can(change, expected, monkeypatch):
    served = []
    monkeypatch.setattr(CausalAttention, "apply", lambda *given: served.append(given))
    settings = {"time": BLOCK, "causal": True, "dropout": 0.0} | change
    sizes = {key: settings[key] for key in ("time", "dtype", "H_kv") if key in settings}
    q, k, v, _ = heads(**sizes)
    with using_kernels(settings.get("mode", "auto")), torch.set_grad_enabled("grad" not in change):
        attention(q, k, v, SCALE, None, settings["causal"], settings["dropout"])
    assert bool(served) is expected


def test_a_mask_takes_the_place_of_causality():
    q, k, v, _ = heads(BLOCK)
    itself = torch.eye(BLOCK).bool()
    torch.testing.assert_close(attention(q, k, v, SCALE, itself, False), v)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["gpt", "ngpt"])
def test_a_model_in_bf16_has_the_gradients_of_sdpa(name, compiled):
    model = build(name, vocab_size=50, d_model=32, n_layers=2, n_heads=2)
    tokens = torch.randint(50, (2, 100), generator=torch.Generator().manual_seed(0))
    loss = torch.compile(model.loss, backend="aot_eager") if compiled else model.loss
    found = {}
    for mode in ("auto", "off"):
        model.zero_grad()
        with using_kernels(mode), torch.autocast("cpu", torch.bfloat16):
            loss(tokens[:, :-1], tokens[:, 1:]).backward()
        found[mode] = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert not torch.equal(found["auto"], found["off"])
    assert (found["auto"] - found["off"]).norm() < 0.02 * found["off"].norm()
    torch._dynamo.reset()
