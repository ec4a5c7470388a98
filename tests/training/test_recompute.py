"""Activations computed again: the same run in less memory."""

from collections import Counter
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from unitsphere.data.batch import Batch
from unitsphere.models.experts import experts_of
from unitsphere.models.registry import build
from unitsphere.training.distributed.parallelize import compile_blocks, recompute_blocks
from unitsphere.training.plan import use_fp8

NUMBERS = {"vocab_size": 32, "d_model": 16, "n_layers": 2, "n_heads": 2}


def gradients(architecture, objective, how, **numbers):
    """Loss, gradients and the bytes that the forward pass kept, of one batch."""
    model = build(architecture, objective=objective, **NUMBERS, **numbers)
    recompute_blocks(model, how)
    tokens = torch.arange(24).reshape(2, 12) % 32
    source = tokens if objective == "seq2seq" else None
    kept = {}

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    torch.manual_seed(0)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model.loss(tokens, tokens.roll(1, 1), **Batch(tokens, tokens, source).keywords())
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())], sum(kept.values())


@pytest.mark.parametrize("how", ["selective", "full"])
@pytest.mark.parametrize(
    ("architecture", "objective", "numbers"),
    [
        ("ngpt", "clm", {}),
        ("ngpt", "clm", {"n_experts": 4, "top_k": 2}),
        ("angpt", "mlm", {}),
        ("normformer", "clm", {"dropout": 0.3, "attention_dropout": 0.3}),
        ("gpt", "seq2seq", {"qk_norm": True}),
    ],
)
def test_nothing_changes(architecture, objective, numbers, how):
    plain, _ = gradients(architecture, objective, "none", **numbers)
    again, _ = gradients(architecture, objective, how, **numbers)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


@pytest.mark.parametrize("how", ["selective", "full"])
def test_experts_are_computed_again_in_compiled_blocks(how, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    plain, compiled = (build("ngpt", **NUMBERS, n_experts=4) for _ in range(2))
    recompute_blocks(compiled, how)
    compile_blocks(compiled)
    tokens = torch.arange(24).reshape(2, 12)
    for model in (plain, compiled):
        model.loss(tokens, tokens.roll(1, 1)).backward()
    for own, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)  # the loss sums in another order
    for own, other in zip(experts_of(plain), experts_of(compiled), strict=True):
        assert torch.equal(own.tokens_per_expert, other.tokens_per_expert)


PRODUCTS = {
    "experts": ("grouped_linear", {"n_experts": 4, "top_k": 2}),
    "fp8": ("scaled_product", {}),
    "plain": ("mm", {}),
}
"""What a model multiplies its matrices by, and the numbers that make it do so."""


class Counted(TorchDispatchMode):
    """Counts the operations that run, by name."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def count_products(kind, how):
    """How many matrix products a step of a model takes."""
    product, numbers = PRODUCTS[kind]
    model = build("ngpt", **NUMBERS | {"d_model": 32}, **numbers)
    if kind == "fp8":
        use_fp8(model)
    recompute_blocks(model, how)
    tokens = torch.arange(32).reshape(2, 16)
    with Counted() as counted:
        model.loss(tokens, tokens.roll(1, 1)).backward()
    return counted.calls[product]


@pytest.mark.parametrize("kind", list(PRODUCTS))
def test_selective_repeats_no_matrix_product(kind):
    counts = {how: count_products(kind, how) for how in ("none", "selective", "full")}
    assert 0 < counts["none"] == counts["selective"] < counts["full"]


def test_full_keeps_least():
    sizes = [gradients("ngpt", "clm", how)[1] for how in ("full", "none")]
    assert sizes[0] < sizes[1] / 2


def test_a_run_takes_the_setting(tiny, tmp_path):
    from run_folders import weights

    from unitsphere.training.run import train

    for how in ("none", "full"):
        train(tiny("ngpt", steps=3, recompute=how), tmp_path / how)
    plain, again = weights(tmp_path / "none"), weights(tmp_path / "full")
    assert all(torch.equal(plain[name], again[name]) for name in plain)
