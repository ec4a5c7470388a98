"""Who looks at whom: the rule against loops, as a mask, in blocks, and in FlexAttention."""

import itertools

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from unitsphere.errors import UserError
from unitsphere.ops import attention as attentions
from unitsphere.ops.attention import MaskRule, attention, attention_mask, keys_seen, takes_blocks

CPU = torch.device("cpu")
TIME = 9
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 1, 1, 3]])
RULES = list(itertools.product([True, False], [None, 1, 4], [None, DOCUMENTS]))
EVERY = pytest.mark.parametrize(
    "rule",
    [MaskRule(*s) for s in RULES],
    ids=[f"{'causal' if c else 'both'}-{w}-{'row' if d is None else 'apart'}" for c, w, d in RULES],
)


def looks(rule, row, query, key):
    """The rule for one pair, in words of its own."""
    if rule.causal and key > query:
        return False
    if rule.window is not None and key not in range(query - rule.window + 1, query + rule.window):
        return False
    return rule.documents is None or bool(rule.documents[row, query] == rule.documents[row, key])


def by_loops(rule, queries):
    rows = 1 if rule.documents is None else 2
    see = [[[looks(rule, row, q, k) for k in range(TIME)] for q in queries] for row in range(rows)]
    return torch.tensor(see)[:, None]


@EVERY
def test_the_mask_is_the_rule_for_all_queries_and_for_the_last(rule):
    for n in (TIME, 2, 1):
        wanted = by_loops(rule, range(TIME - n, TIME))
        assert torch.equal(rule.dense(n, TIME, CPU).expand(wanted.shape), wanted)


@EVERY
def test_blocks_count_the_keys_as_the_mask_does(rule):
    wanted = by_loops(rule, range(TIME)).sum(-1, keepdim=True)
    for mask in (rule.blocks(TIME, CPU), rule.dense(TIME, TIME, CPU)):
        assert torch.equal(keys_seen(mask, CPU).expand(wanted.shape), wanted)


def test_blocks_in_which_nothing_is_seen_are_passed_over():
    documents = (torch.arange(512) // 128)[None]
    blocks = MaskRule(True, None, documents).blocks(512, CPU)
    assert torch.equal(blocks.to_dense()[0, 0], torch.eye(4).int())
    near = MaskRule(True, 129).blocks(512, CPU).to_dense()[0, 0]
    assert torch.equal(near, torch.ones(4, 4).tril().triu(-1).int())


PLAIN_FLEX = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture
def flex_with_gradients(monkeypatch):
    """FlexAttention uncompiled, its plain form; torch refuses gradients on a CPU beforehand."""
    monkeypatch.setattr(flex, "_validate_device", lambda q, k, v: None)
    monkeypatch.setattr(attentions, "compiled", lambda function: function)


@pytest.mark.parametrize(
    "rule",
    [
        MaskRule(True, 4),
        MaskRule(True, None, DOCUMENTS),
        MaskRule(True, 4, DOCUMENTS),
        MaskRule(False, 4),
    ],
    ids=["window", "documents", "both", "two-sided"],
)
@PLAIN_FLEX
@pytest.mark.usefixtures("flex_with_gradients")
def test_flex_attention_and_sdpa_agree(rule):
    H_kv, generator = 2, torch.Generator().manual_seed(0)
    shapes = [(2, 4, TIME, 16), (2, H_kv, TIME, 16), (2, H_kv, TIME, 16), (2, 4, TIME, 16)]
    q, k, v, g = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    results = []
    for mask in (rule.dense(TIME, TIME, CPU), rule.blocks(TIME, CPU)):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = attention(*leaves, 0.4, mask, causal=False)
        results.append((out, *torch.autograd.grad(out, leaves, g)))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_nothing_special_needs_no_mask():
    for rule in (MaskRule(True), MaskRule(False)):
        assert attention_mask(rule, TIME, TIME, CPU) is None
        assert attention_mask(rule, 1, TIME, CPU) is None
    assert attention_mask(MaskRule(False), 2, TIME, CPU) is None
    assert attention_mask(MaskRule(True), 2, TIME, CPU) is not None
    assert attention_mask(MaskRule(True, 4), 1, TIME, CPU) is not None


def test_a_query_with_nothing_but_padding_in_its_window_sees_itself_alone():
    real = (torch.arange(TIME) < 4)[None, None, None]
    see = attention_mask(MaskRule(False, 2), TIME, TIME, CPU, mask=real)
    assert isinstance(see, torch.Tensor)
    places = torch.arange(TIME)
    near = ((places - places[:, None]).abs() < 2) & real[0, 0]
    near[5:] = torch.eye(TIME).bool()[5:]  # position 4 still sees 3
    assert torch.equal(see[0, 0], near)


def test_blocks_are_for_whole_sequences_without_padding():
    def kind(rule, n_queries, **others):
        return type(attention_mask(rule, n_queries, TIME, CPU, blocks=True, **others)).__name__

    narrow = MaskRule(True, 4, DOCUMENTS)
    assert kind(narrow, TIME) == "BlockMask"
    assert kind(MaskRule(True), TIME) == "NoneType"
    assert kind(narrow, 2) == "Tensor"
    assert kind(narrow, TIME, left_padding=torch.tensor([0, 2])) == "Tensor"
    assert kind(narrow, TIME, mask=torch.ones(2, 1, 1, TIME).bool()) == "Tensor"


def test_flex_attention_serves_gpus_from_heads_of_16_on_and_no_fp64():
    gpu = torch.device("cuda")
    assert takes_blocks(gpu, 16, torch.float32)
    assert takes_blocks(gpu, 128, torch.bfloat16)
    assert not takes_blocks(gpu, 8, torch.float32)
    assert not takes_blocks(gpu, 64, torch.float64)
    assert not takes_blocks(CPU, 64, torch.float32)


@pytest.mark.gpu
@EVERY
@pytest.mark.parametrize("H_kv", [1, 2, 4])
def test_flex_attention_on_a_gpu_is_the_formula(rule, H_kv):
    device, time = torch.device("cuda"), 300
    documents = rule.documents
    if documents is not None:
        documents = documents.repeat_interleave(34, dim=1)[:, :time].to(device)
    wide = MaskRule(rule.causal, rule.window and 30 * rule.window, documents)
    generator = torch.Generator(device).manual_seed(0)
    shapes = [(2, 4, time, 32), (2, H_kv, time, 32), (2, H_kv, time, 32), (2, 4, time, 32)]
    q, k, v, g = (torch.randn(s, generator=generator, device=device) for s in shapes)
    results = []
    for mask, dtype in (
        (wide.dense(time, time, device), torch.float64),
        (wide.dense(time, time, device), torch.float32),
        (wide.blocks(time, device), torch.float32),
    ):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        out = attention(*leaves, 0.2, mask, causal=False)
        results.append((out, *torch.autograd.grad(out, leaves, g.to(dtype))))
    for other in results[1:]:
        for found, wanted in zip(other, results[0], strict=True):
            assert (found - wanted).norm() < 2e-3 * wanted.norm()  # TF32 in the products


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_mask_of_ones_and_zeros_is_refused(dtype):
    """SDPA would add it to the logits: nothing is hidden, and nothing says so."""
    mask = torch.ones(TIME, TIME).tril().to(dtype)
    for rule in (MaskRule(True), MaskRule(True, window=3)):
        with pytest.raises(UserError, match=r"take mask\.bool\(\)"):
            attention_mask(rule, TIME, TIME, CPU, mask=mask)
