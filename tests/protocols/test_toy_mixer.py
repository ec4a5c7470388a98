"""A new token mixer is one file and one line of the registry: the mean of what a token sees.

The class below is all that a mixer needs. The tests hold for any mixer with a state of constant
size, and are run for those of the registry too.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn

from unitsphere.errors import UserError
from unitsphere.inference import decode
from unitsphere.inference.generate import generate
from unitsphere.inference.translate import beam_search
from unitsphere.models.constraint import constraints, declarations
from unitsphere.models.exported import check_exportable
from unitsphere.models.mixers import MIXERS
from unitsphere.models.parts import Linear
from unitsphere.models.plans import fold_, tp_plan
from unitsphere.models.registry import ARCHITECTURES, build, count_by_role, lay_out
from unitsphere.training.forecast import flops_per_token
from unitsphere.training.optim import OptimConfig, build_optimizer
from unitsphere.training.optim.constraint import constrain


@dataclass
class Sums:
    """What `CausalMean` keeps per row: the sum of its values, and how many there were."""

    total: torch.Tensor
    count: torch.Tensor


class CausalMean(nn.Module):
    """W_o of the mean of W_v x over a token and those before it."""

    bidirectional = False
    tp_plan: ClassVar[dict[str, str]] = {"W_v": "columns", "W_o": "rows"}

    def __init__(self, config, W):
        super().__init__()
        self.d = config.d_model
        self.W_v, self.W_o = W.from_h(self.d), W.to_h(self.d)

    def forward(self, x, context):
        v = self.W_v(x)
        if context.documents is not None:  # whole sequences: there is no state
            same = context.documents[:, :, None] == context.documents[:, None, :]
            seen = same.tril().to(v.dtype)
            return self.W_o(seen @ v / seen.sum(-1, keepdim=True))
        real = torch.ones_like(v[..., :1]) if context.real is None else context.real[..., None]
        total, count = (v * real).cumsum(1), real.to(v.dtype).cumsum(1)
        if context.state is not None:
            total, count = (
                total + context.state.total[:, None],
                count + context.state.count[:, None],
            )
            context.state.total, context.state.count = total[:, -1], count[:, -1]
        return self.W_o(total / count.clamp(min=1))

    def init_state(self, batch, length):
        like = self.W_v.weight
        return Sums(like.new_zeros(batch, self.d), like.new_zeros(batch, 1))

    def reorder(self, state, rows):
        return Sums(state.total[rows], state.count[rows])

    def flops(self, context, causal):
        return 6 * self.d  # a sum and a division, forward and twice backward


NAMES = ["mean", "mean attention", "attention mean mean"]
PATTERNS = pytest.mark.parametrize("mixers", NAMES)
# The registry's mixers know only whether an architecture's matrices have unit vectors.
EVERY = pytest.mark.parametrize(
    ("name", "mixer"),
    [(name, "mean") for name in ARCHITECTURES]
    + [(name, mixer) for name in ("gpt", "ngpt", "angpt") for mixer in MIXERS],
)
SMALL = {"vocab_size": 50, "d_model": 32, "n_layers": 3, "n_heads": 2}
TIME = 9


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(MIXERS, "mean", CausalMean)


def tokens(rows=2, time=TIME, seed=0):
    return torch.randint(0, 50, (rows, time), generator=torch.Generator().manual_seed(seed))


def scattered(name, mixers, objective="clm"):
    """A model in double whose parameters have left their start."""
    model = build(name, objective=objective, mixers=mixers, **SMALL).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


def equal(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@EVERY
def test_it_trains_under_the_architecture_s_constraint(name, mixer):
    model = build(name, mixers=f"{mixer} attention", **SMALL)
    kind = MIXERS[mixer].__name__
    assert [type(m).__name__ for m in model.mixers()] == [kind, "Attention", kind]
    optimizer = build_optimizer(model, OptimConfig(name="adam", lr=0.01))
    constrain(model, optimizer)
    x, losses = tokens(8, 16), []
    for _ in range(15):
        loss = model.loss(x, x.roll(-1, 1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert declarations(model).keys() == dict(model.named_parameters()).keys()
    for c in constraints(model):
        lengths = model.get_parameter(c.parameter).norm(dim=c.dim)
        assert lengths.max() < 1 + 1e-6
        assert c.kind == "ball" or lengths.min() > 1 - 1e-6
    if name in ("ngpt", "angpt"):
        assert any("attention.W_v" in c.parameter for c in constraints(model))


@EVERY
@pytest.mark.parametrize("pattern", ["{}", "{} attention", "attention {0} {0}"])
def test_cached_logits_equal_those_of_the_whole_at_every_split(name, mixer, pattern):
    model, x = scattered(name, pattern.format(mixer)), tokens()
    whole = model(x)
    for split in range(1, TIME):
        cache = model.new_cache(2, TIME)
        equal(torch.cat([model(part, cache) for part in (x[:, :split], x[:, split:])], 1), whole)
    cache = model.new_cache(2, TIME)
    equal(torch.cat([model(x[:, t : t + 1], cache) for t in range(TIME)], 1), whole)


@EVERY
def test_the_future_padding_and_other_documents_are_not_seen(name, mixer):
    model, x = scattered(name, f"{mixer} attention"), tokens(1, 6)
    later = x.clone()
    later[:, 4:] = (later[:, 4:] + 1) % 50
    equal(model(later)[:, :4], model(x)[:, :4])
    padded, padding = torch.cat([tokens(1, 3, seed=9), x], 1), torch.tensor([3])
    equal(model(padded, left_padding=padding)[:, 3:], model(x))
    cache = model.new_cache(1, 9)
    parts = [model(p, cache, left_padding=padding) for p in (padded[:, :2], padded[:, 2:])]
    equal(torch.cat(parts, 1)[:, 3:], model(x))
    documents = torch.tensor([[0, 0, 1, 1, 1, 1]])
    other = x.clone()
    other[:, :2] = (other[:, :2] + 1) % 50
    equal(model(other, documents=documents)[:, 2:], model(x, documents=documents)[:, 2:])


@EVERY
def test_rows_are_reordered_for_beams(name, mixer):
    model, source = scattered(name, f"{mixer} attention", "seq2seq"), tokens(2, 5, seed=3)
    memory, cache, x = model.encode(source), model.new_cache(2, TIME), tokens()
    rows = torch.tensor([1, 1, 0])
    model(x[:, :4], cache, memory=memory)
    cache.reorder(rows)
    chosen = model(x[rows, 4:], cache, memory=memory.select(rows))
    equal(chosen, model(x, memory=memory)[rows, 4:])
    for row, found in enumerate(beam_search(model, source.tolist(), 6, separator=0, beam=3)):
        ends = torch.tensor([0])
        target = torch.tensor([*found.tokens, 0])
        seen = torch.cat([ends, target[:-1]])[None]
        encoded = model.encode(torch.cat([source[row], ends])[None])
        log_p = model(seen, memory=encoded)[0].log_softmax(-1)
        total = log_p.gather(1, target[:, None]).sum().item()
        assert found.log_probability == pytest.approx(total, abs=1e-9)


@PATTERNS
def test_parameters_and_operations_are_those_of_the_layers_as_built(mixers):
    model = build("ngpt", mixers=mixers, **SMALL)
    counted = count_by_role(lay_out("ngpt", model.config))
    assert sum(counted.values()) == sum(p.numel() for p in model.parameters())
    by_hand = sum(6 * 32 if isinstance(m, CausalMean) else 6 * 32 * 64 for m in model.mixers())
    assert model.mixing_flops(64) == by_hand
    matrices = counted["matrix"] + counted["head"]
    assert flops_per_token(model, 64) == 6 * matrices + by_hand


@EVERY
def test_every_matrix_has_a_place_in_the_tensor_parallel_plan(name, mixer):
    for made in build(name, mixers=f"{mixer} attention", **SMALL).mixers():
        matrices = {k for k, m in made.named_children() if isinstance(m, Linear)}
        assert matrices <= tp_plan(made).keys()


@EVERY
def test_a_folded_model_has_the_same_logits(name, mixer):
    model, x = scattered(name, f"{mixer} attention"), tokens()
    logits = model(x)
    torch.testing.assert_close(fold_(model)(x), logits, rtol=0, atol=1e-10)


def test_a_long_prompt_is_read_in_pieces_where_no_layer_has_attention(monkeypatch):
    model = build("ngpt", mixers="gdn mean", **SMALL)
    prompts = [[5, 9, 2, 7, 1, 3, 8, 4, 6], [7, 7]]
    whole, read = generate(model, prompts, 5), []
    monkeypatch.setattr(decode, "PIECE", 4)
    features = model.features
    monkeypatch.setattr(
        model, "features", lambda x, **given: read.append(x.shape[1]) or features(x, **given)
    )
    assert generate(model, prompts, 5) == whole
    assert read == [4, 4, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("mixer", ["mean", *MIXERS])
def test_compiled_decoding_writes_the_same_texts(monkeypatch, mixer):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    decode.compiled_step.cache_clear()
    torch.compiler.reset()
    model = build("ngpt", mixers=f"{mixer} attention", **SMALL)
    prompts = [[5, 9, 2], [7]]
    eager, compiled = (
        generate(model, prompts, 12, temperature=0.0, compile=compiled)
        for compiled in (False, True)
    )
    decode.compiled_step.cache_clear()
    torch.compiler.reset()
    assert eager == compiled


def test_what_it_cannot_do_is_one_line():
    with pytest.raises(UserError, match=r"no mixer 'maen' \(did you mean 'mean'\?\)"):
        build("ngpt", mixers="maen", **SMALL)
    with pytest.raises(UserError, match="names no mixer"):
        build("ngpt", mixers=" ", **SMALL)
    with pytest.raises(UserError, match=r"sees whole texts: model\.mixers must be attention"):
        build("ngpt", objective="mlm", mixers="mean", **SMALL)
    model = build("ngpt", mixers="mean attention", **SMALL)
    with pytest.raises(UserError, match="a mask needs attention in every layer"):
        model(tokens(), mask=torch.ones(TIME, TIME).bool())
    with pytest.raises(UserError, match="gdn, mamba2 and gla; keep the run folder"):
        check_exportable(model)
