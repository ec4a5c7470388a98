"""Attention against its formula, head by head."""

import pytest
import torch

from unitsphere.ops.attention import attention, compiled


def heads(n_queries=5, n_keys=7, H=4, H_kv=2, dtype=torch.float64):
    """q [2, H, queries, 8], k and v [2, H_kv, keys, 8]."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, H, n_queries, 8), (2, H_kv, n_keys, 8), (2, H_kv, n_keys, 8)]
    return [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]


def formula(q, k, v, scale, see):
    """softmax(q kᵀ·scale) v over the keys that `see` [2, queries, keys] shows, by loops."""
    group = q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    for row in range(q.shape[0]):
        for head in range(q.shape[1]):
            scores = q[row, head] @ k[row, head // group].T * scale
            weights = scores.masked_fill(~see[row], -torch.inf).softmax(-1)
            out[row, head] = weights @ v[row, head // group]
    return out


MASK = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(1)) < 0.6
MASK[..., 0] = True


@pytest.mark.parametrize("H_kv", [1, 2, 4])
@pytest.mark.parametrize("kind", ["all", "mask", "causal"])
def test_a_head_of_keys_serves_its_group_of_queries(kind, H_kv):
    q, k, v = heads(H_kv=H_kv, n_keys=5 if kind == "causal" else 7)
    see = {
        "all": torch.ones(2, 5, 7).bool(),
        "mask": MASK[:, 0],
        "causal": torch.ones(2, 5, 5).tril().bool(),
    }[kind]
    wanted = formula(q, k, v, 0.3, see)
    found = attention(q, k, v, 0.3, MASK if kind == "mask" else None, kind == "causal")
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    weight = torch.randn(found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(2))
    gradients = torch.autograd.grad((found * weight).sum(), (q, k, v))
    for a, b in zip(
        gradients, torch.autograd.grad((wanted * weight).sum(), (q, k, v)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["all", "mask", "causal"])
def test_dropout_leaves_out_weights_and_raises_the_others(kind):
    q, k, _ = heads(H_kv=4, n_keys=5 if kind == "causal" else 7)
    identity = torch.eye(k.shape[-2], dtype=k.dtype).expand(2, 4, -1, -1)
    given = (q, k, identity, 0.3, MASK if kind == "mask" else None, kind == "causal")
    weights = attention(*given)
    torch.manual_seed(0)
    dropped = attention(*given, dropout=0.25)
    kept = dropped != 0
    assert 0.65 < (kept & (weights != 0)).sum() / (weights != 0).sum() < 0.85
    torch.testing.assert_close(dropped, torch.where(kept, weights / 0.75, 0))


def test_what_needs_the_compiler_is_compiled_once_and_is_part_of_what_is_being_compiled():
    def double(x):
        return 2 * x

    torch._dynamo.reset()
    apart = compiled(double)
    assert apart is not double
    assert apart is compiled(double)
    within = torch.compile(lambda x: compiled(double)(x) + 1, backend="eager", fullgraph=True)
    assert within(torch.ones(2)).tolist() == [3.0, 3.0]
    torch._dynamo.reset()
