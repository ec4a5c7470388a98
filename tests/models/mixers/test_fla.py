"""Chunks by flash-linear-attention: its axes and its sequences, on a stand-in and on a GPU."""

import importlib.util

import pytest
import torch
from mixer_cases import FILES, inputs

from unitsphere.kernels import using_kernels
from unitsphere.kernels.recurrence import by_fla, refusal
from unitsphere.models.mixers import MIXERS
from unitsphere.models.mixers.gdn import CHUNKS

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


def test_a_cpu_and_a_process_without_kernels_have_the_plain_chunks(monkeypatch):
    monkeypatch.setattr("unitsphere.kernels.recurrence.refusal", pytest.fail)
    *given, S = inputs("gdn", 30)
    expected = FILES["gdn"].chunked(*given, S)
    for mode in ("auto", "off"):
        with using_kernels(mode):
            found = CHUNKS(torch.bfloat16, *given, S=S, segments=None)
        assert all(map(torch.equal, found, expected))


@pytest.mark.gpu
@pytest.mark.skipif(importlib.util.find_spec("fla") is None, reason="needs unitsphere[fla]")
@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["one text", "texts"])
def test_fla_gives_what_the_plain_chunks_give(mixer, segments):
    """To what bf16 can tell: its step is 2⁻⁸."""
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
