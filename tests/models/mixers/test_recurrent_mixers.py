"""The recurrent mixers: the layer against its formulas, chunks against the recurrence."""

import pytest
import torch
from mixer_cases import FILES, inputs
from reference import mixers as reference

from unitsphere.errors import UserError
from unitsphere.models.config import RecurrenceConfig
from unitsphere.models.constraint import declarations
from unitsphere.models.mixers import MIXERS
from unitsphere.models.registry import build, count_by_role, lay_out

SIZES = {"vocab_size": 50, "d_model": 24, "n_layers": 1, "n_heads": 2}
SIZES |= {"recurrence": RecurrenceConfig(n_heads=3, d_key=6, d_value=8)}
REFERENCES = {
    "gdn": reference.gated_deltanet,
    "mamba2": reference.mamba2,
    "gla": reference.gated_linear_attention,
}


def scattered(architecture, mixer):
    """A model in double whose parameters have left their start."""
    model = build(architecture, mixers=mixer, **SIZES).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("architecture", ["gpt", "ngpt"])
def test_a_layer_is_its_formulas_and_so_are_its_gradients(architecture, mixer, monkeypatch):
    model = scattered(architecture, mixer)
    made, seen = model.blocks[0].attention, {}
    made.register_forward_hook(lambda module, given, y: seen.update(x=given[0], y=y))
    tokens = torch.randint(50, (1, 11), generator=torch.Generator().manual_seed(0))
    model(tokens)
    weights = {n.rpartition(".")[0]: p for n, p in made.named_parameters()}
    scales = {n: m() for n, m in made.named_children() if n.startswith("s_")}
    expected = REFERENCES[mixer](
        seen["x"][0], weights | scales, made.n_heads, architecture == "ngpt"
    )
    torch.testing.assert_close(seen["y"][0], expected, rtol=0, atol=1e-12)
    direction = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).view_as(expected)
    parameters = list(made.parameters())
    found, right = (
        torch.autograd.grad((y * direction).sum(), parameters, retain_graph=True)
        for y in (seen["y"][0], expected)
    )
    for own, other in zip(found, right, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("documents", [False, True])
def test_chunks_are_the_recurrence_forward_and_backward(mixer, dtype, within, documents):
    file = FILES[mixer]
    for T in (1, 3, 8, 13):
        given = [x.to(dtype).requires_grad_() for x in inputs(mixer, T)]
        segments = (torch.arange(T) // 5).expand(2, T) if documents else None
        both = []
        for form, extra in ((file.recurrent, {}), (file.chunked, {"chunk": 4})):
            o, S = form(*given, segments, **extra)
            weight = torch.linspace(-1, 1, o.numel(), dtype=dtype).view_as(o)
            loss = (o * weight).sum() + (S * S).sum()
            both.append([o, S, *torch.autograd.grad(loss, given)])
        for a, b in zip(*both, strict=True):
            scale = b.abs().max().clamp(min=1).item()
            torch.testing.assert_close(a, b, rtol=0, atol=within * scale)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_state_does_not_grow_with_the_text(mixer):
    made = build("ngpt", mixers=mixer, **SIZES).mixers()[0]
    short, long = (vars(made.init_state(2, length)) for length in (8, 32768))
    assert {k: v.shape for k, v in short.items()} == {k: v.shape for k, v in long.items()}
    assert short["S"].shape == (2, 3, 6, 8)
    assert short["columns"].shape[1] == (0 if mixer == "gla" else 3)


ON = {
    "gdn": ["W_q", "W_k", "W_v", "W_z", "W_a", "W_b"],
    "mamba2": ["W_z", "W_x", "W_B", "W_C", "W_dt"],
    "gla": ["W_q", "W_k", "W_v", "W_z", "W_low"],
}


@pytest.mark.parametrize("mixer", MIXERS)
def test_projections_are_on_the_sphere_and_the_rest_is_declared_off_it(mixer):
    found = declarations(build("ngpt", mixers=mixer, **SIZES).mixers()[0])
    on = {name.partition(".")[0]: d.bound.dim for name, d in found.items() if d.bound}
    assert on == dict.fromkeys(ON[mixer], 1) | {"W_o": 0}
    assert {d.role for d in found.values() if not d.bound} == {"bias", "scale"}


@pytest.mark.parametrize("mixer", MIXERS)
def test_parameters_are_counted_exactly(mixer):
    d, H, K, V = 24, 3, 6, 8
    config = build("gpt", mixers=mixer, **SIZES).config
    counted = count_by_role(lay_out("gpt", config))
    mlp = 3 * d * 4 * d
    matrices, free, gain = {
        "gdn": (d * H * (2 * K + 3 * V + 2), 4 * H * (2 * K + V) + 2 * H, V),
        "mamba2": (d * (3 * H * V + 2 * K + H), 5 * (H * V + 2 * K) + 3 * H, H * V),
        "gla": (d * (2 * H * K + 3 * H * V + 16), H * K * 17, V),
    }[mixer]
    assert counted["matrix"] == mlp + matrices
    assert counted["bias"] == free
    assert counted["gain"] == 3 * d + gain


def test_sizes_that_cannot_be_are_one_line():
    plain = {k: v for k, v in SIZES.items() if k != "recurrence"}
    with pytest.raises(UserError, match=r"2·d_model 48 is not divisible by .*d_value 64"):
        build("ngpt", mixers="mamba2", **plain)
    with pytest.raises(UserError, match=r"model\.recurrence\.conv must be at least 1: 0"):
        RecurrenceConfig(conv=0)
