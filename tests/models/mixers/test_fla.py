"""Chunks by flash-linear-attention: its axes and its sequences, on a stand-in and on a GPU."""

import importlib.util
import sys
import types

import pytest
import torch
from mixer_cases import FILES, inputs

from unitsphere.kernels import recurrence, using_kernels
from unitsphere.kernels.recurrence import by_fla, refusal, wrong_gradients
from unitsphere.models.config import RecurrenceConfig
from unitsphere.models.mixers import MIXERS
from unitsphere.models.registry import build

SEGMENTS = torch.tensor([[0] * 5 + [1] * 20 + [2] * 5, [0] * 30])


def stand_in(mixer):
    """The function that fla documents, [B, T, H, …], of the mixer's plain recurrence."""

    def kernel(*across, scale, initial_state, output_final_state, cu_seqlens=None):
        assert (scale, output_final_state) == (1.0, True)
        across = [x.transpose(1, 2) for x in across]
        if cu_seqlens is None:
            o, S = FILES[mixer].recurrent(*across, initial_state)
            return o.transpose(1, 2), S
        assert len(across[0]) == 1
        pairs = zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)
        texts = [[x[:, :, begin:end] for x in across] for begin, end in pairs]
        found = [
            FILES[mixer].recurrent(*text, S[None])
            for text, S in zip(texts, initial_state, strict=True)
        ]
        o, S = zip(*found, strict=True)
        return torch.cat(o, dim=2).transpose(1, 2), torch.cat(S)

    return kernel


def with_gradients(form, given):
    """o, the last S, and the gradients of a sum of both."""
    given = [x.detach().requires_grad_() for x in given]
    o, S = form(*given)
    weights = torch.linspace(-1, 1, o.numel(), dtype=o.dtype, device=o.device).view_as(o)
    return [o, S, *torch.autograd.grad((o * weights).sum() + S.square().sum(), given)]


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["one text", "texts"])
def test_its_axes_and_its_texts_are_those_of_the_plain_chunks(mixer, segments):
    def by_stand_in(*given):
        return by_fla(stand_in(mixer), given[:-1], given[-1], segments)

    given = inputs(mixer, 30)
    found = with_gradients(by_stand_in, given)
    expected = with_gradients(lambda *x: FILES[mixer].chunked(*x, segments), given)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-11, atol=1e-11)


def test_it_refuses_what_it_would_round_or_cannot_do():
    S = torch.zeros(1, 1, 8, 8)
    assert "TF32" in refusal(torch.float32, S)
    assert "longer than 256" in refusal(torch.bfloat16, torch.zeros(1, 1, 257, 8))
    if importlib.util.find_spec("fla") is None:
        assert "unitsphere[fla]" in refusal(torch.bfloat16, S)


@pytest.mark.parametrize(
    ("chip", "triton", "decays", "refused"),
    [
        ((9, 0), "3.6.0", "per head", True),
        ((9, 0), "3.4.0", "per head", True),
        ((9, 0), "3.7.1", "per head", False),
        ((9, 0), "3.3.1", "per head", False),
        ((8, 0), "3.6.0", "per head", False),
        ((9, 0), "3.6.0", "per channel", False),
    ],
)
def test_it_refuses_the_gradients_that_triton_compiles_wrongly_on_hopper(
    chip, triton, decays, refused, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: chip)
    monkeypatch.setattr(recurrence, "version", lambda _: triton)
    decay = torch.zeros(1, 2, 8) if decays == "per head" else torch.zeros(1, 2, 8, 4)
    why = wrong_gradients(torch.device("cuda"), decay)
    assert (why is not None) == refused
    assert wrong_gradients(torch.device("cpu"), decay) is None
    assert why is None or "upgrade triton" in why


def test_the_plain_chunks_serve_where_the_gradients_would_be_wrong(monkeypatch):
    for check, why in (("no_backend", None), ("refusal", None), ("wrong_gradients", "wrong")):
        monkeypatch.setattr(recurrence, check, lambda *_, why=why: why)
    x = torch.zeros(1, 2, 8, 4)
    chunks = recurrence.Chunks(lambda *given: (x, given[-2]), "no_such_module", "kernel")
    o, S = chunks(torch.bfloat16, x, x, x, x[..., 0], S=x, segments=None)
    assert o is x
    assert S is x


FUNCTIONS = {
    "gdn": ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule"),
    "mamba2": ("fla.ops.simple_gla", "chunk_simple_gla"),
    "gla": ("fla.ops.gla", "chunk_gla"),
}


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("mode", ["auto", "off"])
def test_a_model_calls_fla_in_the_dtype_of_the_run_where_it_can_serve(mixer, mode, monkeypatch):
    """A stand-in is served on a CPU: q, k and v come in bf16, decays in fp32; `off` calls none."""
    module, name = FUNCTIONS[mixer]
    fla, called = types.ModuleType(module), []

    def kernel(q, k, v, g, *rest, **settings):
        called.append([x.dtype for x in (q, k, v, g)])
        return stand_in(mixer)(q.float(), k.float(), v.float(), g, *rest, **settings)

    setattr(fla, name, kernel)
    monkeypatch.setitem(sys.modules, module, fla)
    monkeypatch.setattr(recurrence, "no_backend", lambda *_: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    sizes = RecurrenceConfig(n_heads=2, d_key=8, d_value=8)
    model = build(
        "ngpt", mixers=mixer, vocab_size=16, d_model=16, n_layers=1, n_heads=2, recurrence=sizes
    )
    tokens = torch.arange(12)[None]
    with torch.autocast("cpu", torch.bfloat16), using_kernels(mode):
        found = model(tokens)
    assert called == ([[torch.bfloat16] * 3 + [torch.float32]] if mode == "auto" else [])
    monkeypatch.undo()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(found, model(tokens), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_cpu_has_the_plain_chunks(mixer):
    *given, S = inputs(mixer, 30)
    found = FILES[mixer].CHUNKS(torch.bfloat16, *given, S=S, segments=None)
    assert all(map(torch.equal, found, FILES[mixer].chunked(*given, S)))


@pytest.mark.gpu
@pytest.mark.skipif(importlib.util.find_spec("fla") is None, reason="needs unitsphere[fla]")
@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["one text", "texts"])
def test_fla_gives_what_the_plain_chunks_give(mixer, segments):
    """To what bf16 can tell: its step is 2⁻⁸. Where fla is refused, the plain chunks serve."""
    given = [x.float().cuda() for x in inputs(mixer, 30, K=32, V=64)]
    segments = None if segments is None else segments.cuda()
    chunks = FILES[mixer].CHUNKS
    assert refusal(torch.bfloat16, given[-1]) is None

    def fast(*x):
        return chunks(torch.bfloat16, *x[:-1], S=x[-1], segments=segments)

    found = with_gradients(fast, given)
    expected = with_gradients(lambda *x: chunks.plain(*x, segments), given)
    for own, other in zip(found, expected, strict=True):
        assert (own - other).norm() <= 0.02 * other.norm()
