"""What every architecture does as an encoder-decoder."""

from typing import Any

import pytest
import torch
from torch import Tensor

from reference import angpt, basics, gpt, lnscaling, ngpt
from reference.architectures import (
    CASES,
    ENCODERS,
    PADDED,
    REAL,
    SOURCE,
    TARGETS,
    TOKENS,
    TRANSLATORS,
    Case,
    D,
    close,
    differ,
)
from reference.basics import Tensors

NAMES = list(TRANSLATORS)
ORDER = torch.tensor([3, 1, 0, 2])


def embedded(tensors: Tensors, stack: str) -> Tensors:
    """The tensors of one stack under the names of a model of that stack alone."""
    kept = {n: t for n, t in tensors.items() if n.split(".")[0] not in ("layers", "encoder")}
    kept = {n: t for n, t in kept.items() if not n.startswith(("gain_enc", "LN_enc", "DyT_enc"))}
    for name, tensor in tensors.items():
        if name.startswith(f"{stack}.") and "cross." not in name and "_X" not in name:
            kept[name.replace(f"{stack}.", "layers.", 1)] = tensor
        if stack == "encoder" and name.split(".")[0].endswith("_encoder"):
            kept[name.replace("_encoder", "_final")] = tensor
    return kept


def attend(case: Case, *arguments: Any) -> Tensor:
    """The architecture's attention; GPT's, where it borrows that one."""
    borrowed = hasattr(case.settings, "trunk")
    attention = gpt.attention if borrowed else case.oracle.attention
    settings = case.settings.trunk() if borrowed else case.settings
    x, p, *rest = arguments
    return attention(x, p, settings, *rest)


def plain_post_ln(tensors: Tensors) -> Tensors:
    """`tensors` where a Post-LN after attention normalises and no more: LN of LN is then LN."""
    if "LN_final.gain" in tensors:
        return tensors
    plain = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith((".LN_1.gain", ".LN_X.gain")):
            plain[name] = torch.ones_like(tensor)
        if name.endswith((".LN_1.bias", ".LN_X.bias")):
            plain[name] = torch.zeros_like(tensor)
    return plain


def silent(tensors: Tensors, place: str, alpha: str) -> Tensors:
    """`tensors` with an attention that adds nothing: the one at `place`, "" or "cross."."""
    outputs = {f"{place}{name}" for name in ("W_o", "W_O", "b_O", "LN_a.bias")} | {alpha}
    return {n: 0 * t if n.split(".", 2)[-1] in outputs else t for n, t in tensors.items()}


@pytest.mark.parametrize("name", NAMES)
def test_each_sublayer_reads_what_the_one_before_it_gave(name: str) -> None:
    # Start from the state after a sublayer with that sublayer silent: what follows is the same.
    case = TRANSLATORS[name].but(n_layers=1)
    case = case.but(eps=0.0) if name == "post-ln" else case
    tensors = plain_post_ln(case.tensors())
    memory = case.oracle.encode(tensors, case.settings, SOURCE, REAL)
    where = (torch.zeros(2, 5), basics.visible(TOKENS, True, None, None), memory)
    where += (basics.visible_memory(TOKENS, memory, REAL),)
    layer = {"layer": 1} if case.oracle is lnscaling else {}

    def states(h: Tensor, tensors: Tensors) -> list[Tensor]:
        p = basics.of_layer(tensors, 0)
        return case.oracle.block(h, p, case.settings, *where, **layer)

    h = case.oracle.hidden_states(tensors, case.settings, TOKENS, memory=memory, source_mask=REAL)[
        0
    ]
    h_A, h_X, h_M = states(h, tensors)
    assert differ(h_A, h)
    assert differ(h_X, h_A)
    quiet = silent(tensors, "", "alpha_A")
    for one, other in zip(states(h_A, quiet), (h_A, h_X, h_M), strict=True):
        close(one, other)
    for one in zip(states(h_X, silent(quiet, "cross.", "alpha_X")), (h_X, h_X, h_M), strict=True):
        close(*one)


@pytest.mark.parametrize("name", NAMES)
def test_the_memory_is_what_an_encoder_s_head_would_multiply(name: str) -> None:
    case, encoder = TRANSLATORS[name], ENCODERS[name].but(tied=False)
    if case.oracle in (ngpt, angpt):
        encoder = encoder.but(s_z=basics.Scale("fixed", 1.0))
    tensors = case.tensors()
    head = "W_h" if case.oracle is angpt else "E_out"
    alone = embedded(tensors, "encoder") | {head: torch.eye(D, dtype=torch.float64)}
    memory = case.oracle.encode(tensors, case.settings, SOURCE, REAL)
    close(memory, encoder.logits(alone, SOURCE, mask=REAL[:, None, :]))


@pytest.mark.parametrize("name", NAMES)
def test_silent_cross_attention_leaves_a_decoder_alone(name: str) -> None:
    case, decoder = TRANSLATORS[name], CASES[name]
    if name == "post-ln":
        case, decoder = case.but(eps=0.0), decoder.but(eps=0.0)
    tensors = silent(plain_post_ln(case.tensors()), "cross.", "alpha_X")
    close(case.translate(tensors), decoder.logits(embedded(tensors, "layers")))


@pytest.mark.parametrize("name", NAMES)
def test_the_source_reaches_every_token_of_the_target(name: str) -> None:
    case = TRANSLATORS[name]
    tensors = case.tensors()
    whole = case.translate(tensors)
    for place in range(4):
        changed = SOURCE.clone()
        changed[:, place] = 9
        moved = (case.translate(tensors, changed) - whole).abs().amax(-1)
        assert bool((moved > 1e-9).all()), place


@pytest.mark.parametrize("name", NAMES)
def test_the_target_is_causal_given_the_source(name: str) -> None:
    case = TRANSLATORS[name]
    tensors = case.tensors()
    memory = case.oracle.encode(tensors, case.settings, SOURCE, REAL)
    where = {"memory": memory, "source_mask": REAL}
    whole = case.logits(tensors, **where)
    close(case.logits(tensors, TOKENS[:, :3], **where), whole[:, :3])
    padded = torch.cat([torch.zeros(2, 2, dtype=torch.int64), TOKENS], dim=1)
    got = case.logits(tensors, padded, left_padding=torch.tensor([2, 2]), **where)
    close(got[:, 2:], whole)


@pytest.mark.parametrize("name", NAMES)
def test_padding_of_the_source_changes_neither_logits_nor_gradients(name: str) -> None:
    case = TRANSLATORS[name]
    tensors = case.tensors()
    got = case.translate(tensors, SOURCE, REAL)
    close(case.translate(tensors, PADDED, REAL), got)
    assert differ(case.translate(tensors, SOURCE), got)
    for row, length in enumerate(REAL.sum(-1).tolist()):
        one = slice(row, row + 1)
        bare = case.translate(tensors, SOURCE[one, :length], tokens=TOKENS[one])
        close(got[one], bare)
    losses = [case.loss(tensors, source=s, source_mask=REAL) for s in (SOURCE, PADDED)]
    leaves = list(tensors.values())
    gradients = [torch.autograd.grad(loss, leaves) for loss in losses]
    for one, other in zip(*gradients, strict=True):
        close(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_cross_attention_forgets_the_order_of_the_memory(name: str) -> None:
    case = TRANSLATORS[name]
    tensors = case.tensors()
    memory = case.oracle.encode(tensors, case.settings, SOURCE, REAL)
    got = case.logits(tensors, memory=memory, source_mask=REAL)
    where = {"memory": memory[:, ORDER], "source_mask": REAL[:, ORDER]}
    close(case.logits(tensors, **where), got)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_source_counts_through_the_encoder_s_positions_alone(name: str) -> None:
    case = TRANSLATORS[name]
    tensors = case.tensors()
    for positions, same in ((torch.zeros(2, 4).long(), True), (None, False)):
        one, other = (
            case.oracle.encode(tensors, case.settings, source, None, positions)
            for source in (SOURCE, SOURCE[:, ORDER])
        )
        got = case.logits(tensors, memory=other)
        assert differ(case.logits(tensors, memory=one), got) != same


@pytest.mark.parametrize("name", [n for n in NAMES if TRANSLATORS[n].relative])
def test_queries_of_cross_attention_have_no_position(name: str) -> None:
    # Equal tokens have equal values, so that self-attention cannot tell them apart.
    case = TRANSLATORS[name]
    tensors = case.tensors()
    equal = torch.full((2, 5), 7)
    logits = case.translate(tensors, tokens=equal)
    close(logits, logits[:, :1].expand_as(logits))


@pytest.mark.parametrize("name", NAMES)
def test_cross_attention_to_itself_is_self_attention_without_rotation(name: str) -> None:
    case = CASES[name].but(rotary_fraction=0.0)
    p = basics.of_layer(case.tensors(), 0)
    x = torch.randn(2, 5, D, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    positions = torch.arange(5).expand(2, 5)
    see = basics.visible(TOKENS, True, None, None)
    want = attend(case, x, p, positions, see)
    close(attend(case.but(rotary_fraction=1.0), x, p, positions, see, x), want)


@pytest.mark.parametrize("name", NAMES)
def test_a_single_source_token_is_read_whatever_query_and_key_are(name: str) -> None:
    case = TRANSLATORS[name]
    tensors = case.tensors()
    loss = case.loss(tensors, source=SOURCE[:, :1])
    gradients = dict(zip(tensors, torch.autograd.grad(loss, list(tensors.values())), strict=True))
    for i in range(2):
        for matrix in ("W_q", "W_k"):
            assert float(gradients[f"layers.{i}.cross.{matrix}"].abs().max()) < 1e-14
        assert float(gradients[f"layers.{i}.cross.W_v"].abs().max()) > 1e-6
        if f"layers.{i}.gain_X" in gradients:  # RMSNorm_X feeds the query alone
            assert float(gradients[f"layers.{i}.gain_X"].abs().max()) < 1e-14


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_tensor(name: str) -> None:
    case = TRANSLATORS[name]
    tensors = case.tensors()
    loss = case.loss(tensors, source=SOURCE, source_mask=REAL, label_smoothing=0.1)
    for key, g in zip(tensors, torch.autograd.grad(loss, list(tensors.values())), strict=True):
        assert g.isfinite().all(), key
        # The bias of keys shifts every score of a query alike, unless a norm follows.
        shifts = key.endswith("b_k") and case.settings.qkv_ln == "off"
        shifts = shifts or key.endswith("LN_k.bias")
        if not shifts:
            assert float(g.abs().max()) > 1e-12, key


@pytest.mark.parametrize("name", NAMES)
def test_source_target_and_a_tied_head_share_one_embedding(name: str) -> None:
    untied, tied = TRANSLATORS[name].but(tied=False), TRANSLATORS[name].but(tied=True)
    head = "W_h" if untied.oracle is angpt else "E_out"
    tensors = untied.tensors()
    tensors[head] = tensors["E_in"].detach().clone().requires_grad_()
    shared = {n: t for n, t in tensors.items() if n != head}
    assert set(shared) == set(tied.tensors())
    one = untied.loss(tensors, source=SOURCE, source_mask=REAL)
    other = tied.loss(shared, source=SOURCE, source_mask=REAL)
    close(other, one)
    into, out = torch.autograd.grad(one, [tensors["E_in"], tensors[head]])
    close(torch.autograd.grad(other, [shared["E_in"]])[0], into + out)
    only_in_the_source = 8  # not among TOKENS
    assert float(into[only_in_the_source].abs().max()) > 1e-9
    assert float(into[7].abs().max()) > 1e-9  # among TOKENS, not in SOURCE


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_the_smoothed_cross_entropy_of_the_translation(name: str) -> None:
    case = TRANSLATORS[name]
    tensors = case.tensors()
    logits = case.translate(tensors, SOURCE, REAL).flatten(0, 1)
    for smoothing in (0.0, 0.1):
        want = torch.nn.functional.cross_entropy(
            logits, TARGETS.flatten(), ignore_index=-100, label_smoothing=smoothing
        )
        got = case.loss(tensors, source=SOURCE, source_mask=REAL, label_smoothing=smoothing)
        close(got, want)


@pytest.mark.parametrize("name", NAMES)
def test_each_stack_has_its_own_tensors_and_states(name: str) -> None:
    case = TRANSLATORS[name]
    tensors = case.tensors()
    layer, cross, encoder = (
        {n.removeprefix(prefix) for n in tensors if n.startswith(prefix)}
        for prefix in ("layers.1.", "layers.1.cross.", "encoder.1.")
    )
    assert encoder == {n for n in layer if not n.startswith("cross.") and "_X" not in n}
    assert cross < encoder
    memory = case.oracle.encode(tensors, case.settings, SOURCE)
    states = case.oracle.hidden_states(tensors, case.settings, TOKENS, memory=memory)
    assert len(states) == 1 + 3 * 2


def test_a_memory_goes_with_seq2seq_only() -> None:
    for case in CASES.values():
        translator = case.but(seq2seq=True)
        tensors = translator.tensors()
        with pytest.raises(ValueError, match="memory"):
            translator.logits(tensors)
        memory = translator.oracle.encode(tensors, translator.settings, SOURCE)
        with pytest.raises(ValueError, match="memory"):
            case.logits(tensors, memory=memory)
