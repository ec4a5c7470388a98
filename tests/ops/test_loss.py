from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from unitsphere.errors import UserError
from unitsphere.models import trunk
from unitsphere.models.registry import build
from unitsphere.ops import chunked_loss
from unitsphere.ops.chunked_loss import chunk_rows
from unitsphere.ops.loss import IGNORE, chunked, cross_entropy, linear_cross_entropy

NO_TORCH = not hasattr(torch.nn, "LinearCrossEntropyOptions")
torchs = pytest.param("torch", marks=pytest.mark.skipif(NO_TORCH, reason="torch 2.13 brought it"))


def head(seed=0, shape=(3, 5), d=8, V=11, ignored=0.3, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    h = torch.randn(*shape, d, generator=g, dtype=dtype)
    weight = torch.randn(V, d, generator=g, dtype=dtype)
    scale = torch.rand(V, generator=g, dtype=dtype) + 0.5
    targets = torch.randint(0, V, shape, generator=g)
    targets[torch.rand(shape, generator=g) < ignored] = IGNORE
    return h, weight, scale, targets


def loss_and_gradients(function, *leaves):
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    loss = function(*leaves)
    (3 * loss).backward()
    return [loss.detach(), *(leaf.grad for leaf in leaves)]


def assert_same(found, wanted, atol=1e-10):
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=atol, equal_nan=True)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**31),
    shape=st.sampled_from([(1,), (7,), (2, 3), (2, 1, 4)]),
    V=st.sampled_from([1, 2, 11]),
    ignored=st.sampled_from([0.0, 0.5, 1.1]),
    rows=st.sampled_from([1, 3, 100]),
    reduction=st.sampled_from(["mean", "sum"]),
    smoothing=st.sampled_from([0.0, 0.1]),
    z_loss=st.sampled_from([0.0, 1e-2]),
    softcap=st.sampled_from([None, 1.5]),
    fused=st.booleans(),
)
def test_chunks_give_the_plain_loss_and_gradients(
    seed, shape, V, ignored, rows, reduction, smoothing, z_loss, softcap, fused
):
    h, weight, _, targets = head(seed, shape, 4, V, ignored)
    if z_loss and bool((targets == IGNORE).all()) and reduction == "mean":
        z_loss = 0.0  # the plain z-loss of nothing has no gradient, not 0

    def in_chunks(h, weight):
        flat = h.flatten(0, -2)
        numbers = reduction, smoothing, z_loss, softcap, rows
        with mock.patch.object(chunked_loss, "compiled", lambda function: function):
            return chunked(flat, weight, targets.flatten(), h.dtype, *numbers, fused=fused)

    def plain(h, weight):
        z = F.linear(h, weight)
        z = z if softcap is None else softcap * z / (softcap**2 + z**2).sqrt()
        return cross_entropy(z, targets, reduction, smoothing, z_loss)

    assert_same(loss_and_gradients(in_chunks, h, weight), loss_and_gradients(plain, h, weight))


@pytest.mark.parametrize("path", ["auto", "chunked", "fused", torchs])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("scaled", ["no", "by row", "by one"])
def test_every_path_gives_the_plain_loss_and_gradients(path, reduction, scaled):
    h, weight, scale, targets = head()
    leaves = [h, weight, *{"no": [], "by row": [scale], "by one": [scale.mean()]}[scaled]]

    def by(path):
        def loss(h, weight, scale=None):
            return linear_cross_entropy(h, weight, targets, scale, reduction, path=path)

        return loss_and_gradients(loss, *leaves)

    assert_same(by(path), by("plain"))


def test_the_scale_is_that_of_the_logits():
    h, weight, scale, targets = head()
    found = linear_cross_entropy(h, weight, targets, scale)
    torch.testing.assert_close(found, cross_entropy(F.linear(h, weight) * scale, targets, "mean"))


def test_smoothing_and_z_loss_are_those_of_the_definition():
    h, weight, _, targets = head(ignored=0.0)
    logits = F.linear(h, weight).flatten(0, 1)
    lse = logits.logsumexp(-1)
    nll = lse - logits.gather(1, targets.flatten()[:, None])[:, 0]
    wanted = (0.8 * nll + 0.2 * (lse - logits.mean(-1)) + 0.01 * lse**2).sum()
    found = linear_cross_entropy(h, weight, targets, None, "sum", 0.2, 0.01)
    torch.testing.assert_close(found, wanted)


def test_large_logits_do_not_overflow():
    h, weight, _, targets = head(dtype=torch.float32)
    found = linear_cross_entropy(1e3 * h, weight, targets)
    torch.testing.assert_close(found, linear_cross_entropy(1e3 * h, weight, targets, path="plain"))


def test_under_autocast_the_loss_is_fp32_and_nearer_to_fp64_than_the_plain_one():
    h, weight, scale, targets = head(0, (4, 64), 32, 97, dtype=torch.float64)
    exact = loss_and_gradients(
        lambda *x: linear_cross_entropy(x[0], x[1], targets, x[2]), h, weight, scale
    )

    def error(path):
        def loss(h, weight, scale):
            with torch.autocast("cpu", torch.bfloat16):
                return linear_cross_entropy(h, weight, targets, scale, path=path)

        found = loss_and_gradients(loss, h.float(), weight.float(), scale.float())
        assert [x.dtype for x in found] == [torch.float32] * 4
        return [float((x - y).norm() / y.norm()) for x, y in zip(found, exact, strict=True)]

    assert max(error("chunked")) < 1e-2
    assert all(a <= 1.05 * b + 1e-4 for a, b in zip(error("chunked"), error("plain"), strict=True))


def test_gradients_may_be_asked_for_again_not_differentiated_and_are_made_only_if_wanted():
    h, weight, _, targets = head()
    weight.requires_grad_()
    loss = linear_cross_entropy(h, weight, targets)
    first = torch.autograd.grad(loss, weight, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(loss, weight, retain_graph=True)[0])
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.grad(loss.square(), weight, create_graph=True)[0].sum().backward()
    with torch.no_grad():
        assert not linear_cross_entropy(h, weight, targets).requires_grad


def test_no_tensor_of_all_logits_is_made():
    """Neither forward nor backward makes a tensor larger than the weight or one chunk."""
    d, V, tokens = 8, 4096, 4096
    h, weight, _, targets = head(0, (tokens,), d, V, dtype=torch.float32)
    rows = chunk_rows(V, d, h.device)
    assert rows == 512

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            for one in made if isinstance(made, tuple | list) else [made]:
                if isinstance(one, torch.Tensor):
                    Largest.elements = max(Largest.elements, one.numel())
            return made

    with Largest():
        linear_cross_entropy(h.requires_grad_(), weight.requires_grad_(), targets).backward()
    assert Largest.elements == rows * V


@pytest.mark.parametrize("path", ["chunked", torchs])
def test_it_compiles_without_a_break(path):
    h, weight, scale, targets = head(dtype=torch.float32)

    def loss(h, weight, scale):
        return linear_cross_entropy(h, weight, targets, scale, path=path)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = loss_and_gradients(compiled, h, weight, scale)
    assert_same(found, loss_and_gradients(loss, h, weight, scale), atol=1e-6)


def test_a_path_that_does_not_serve_is_refused():
    h, weight, _, targets = head()
    with pytest.raises(UserError, match="take the path chunked"):
        linear_cross_entropy(h, weight, targets, path="liger")
    with pytest.raises(UserError, match="take the path chunked"):
        linear_cross_entropy(h, weight, targets, label_smoothing=0.1, path="torch")
    with pytest.raises(UserError, match="no soft cap"):
        linear_cross_entropy(h, weight, targets, path="torch", softcap=15.0)
    with pytest.raises(UserError, match="take the path chunked"):
        linear_cross_entropy(h.bfloat16(), weight.bfloat16(), targets, path="torch")


@pytest.mark.parametrize("path", ["plain", "chunked"])
@pytest.mark.parametrize("outside", [-1, 11])
def test_a_target_outside_the_vocabulary_is_an_error_and_not_the_first_entry(path, outside):
    """−1 is how other trainers mark what is not scored: taken for entry 0, it would be learned."""
    h, weight, _, targets = head()
    targets[0, 0] = outside
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        linear_cross_entropy(h, weight, targets, path=path)


@pytest.mark.parametrize("path", ["plain", "chunked"])
def test_a_reduction_and_a_smoothing_that_there_are_not_are_refused(path):
    """With "none" torch returns the loss of each token; here it was the mean."""
    h, weight, _, targets = head()
    with pytest.raises(UserError, match="reduction must be mean or sum: none"):
        linear_cross_entropy(h, weight, targets, reduction="none", path=path)
    for smoothing in (-0.1, 1.1):
        with pytest.raises(UserError, match="label_smoothing must be between 0 and 1"):
            linear_cross_entropy(h, weight, targets, label_smoothing=smoothing, path=path)


def test_a_model_takes_the_path_of_its_device(monkeypatch):
    taken = []
    monkeypatch.setattr(trunk, "loss_path", lambda device, compiled: "fused")
    monkeypatch.setattr(chunked_loss, "compiled", lambda f: taken.append(f) or f)
    model = build("gpt", vocab_size=11, d_model=8, n_layers=1, n_heads=2)
    tokens = torch.arange(6)[None]
    fused = model.loss(tokens, tokens)
    assert taken == [chunked_loss.fused_chunk]
    monkeypatch.setattr(trunk, "loss_path", lambda device, compiled: "auto")
    torch.testing.assert_close(fused, model.loss(tokens, tokens))
