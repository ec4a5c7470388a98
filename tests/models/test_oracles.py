"""The models against reference oracles that were written from the papers alone.

Forward, loss and the gradient of every parameter agree in fp64 to 1e-10 and in fp32 to 1e-5
(relative to the largest entry), on random weights, for every switch; so does one optimizer step.
"""

import math
from dataclasses import replace

import pytest
import torch
from reference import angpt, gpt, ngpt, normformer
from reference import optim as oracle_optim
from reference.basics import Scale

from unitsphere.models.constraint import declarations, roles
from unitsphere.models.parts import ScaleConfig
from unitsphere.models.registry import build
from unitsphere.ops.loss import cross_entropy
from unitsphere.training.constraint import constrain
from unitsphere.training.optim import DECAYED, OptimConfig, build_optimizer

V, D, L, H, D_FF, T_MAX = 23, 16, 2, 2, 40, 9
SLOW = 1 / math.sqrt(D)
NORMFORMER_NAMES = {"gamma": "gamma", "lambda_": "lambda", "W_o": "W_O"}


def ngpt_case(model=None, **settings):
    return "ngpt", model or {}, ngpt, ngpt.paper(D, L, H, **settings)


def scale_case(name, form, init, scale):
    """One scale of nGPT in one form; the oracle's `Scale` beside it."""
    return ngpt_case({name: ScaleConfig(form, init, scale)}, **{name: Scale(form, init, scale)})


def angpt_case(model, **settings):
    return "angpt", model, angpt, angpt.Settings(L, H, **settings)


def normformer_case(**settings):
    """Switches that the model and the oracle call by the same name and value."""
    start = {"res_scale": False, **settings}
    return "normformer", start, normformer, normformer.Settings(L, H, **start)


PLUS = {"qk_norm": True, "rotary_fraction": 0.5}
OFF = normformer.PRE_LN
CASES = {
    "gpt": ("gpt", {}, gpt, gpt.Settings(L, H)),
    "gpt-tied": ("gpt", {"tied": True}, gpt, gpt.Settings(L, H, tied=True)),
    "gpt-plus": ("gpt", PLUS, gpt, gpt.Settings(L, H, **PLUS)),
    **{
        f"gpt-plus-g-{g}": ("gpt", {**PLUS, "g": g}, gpt, gpt.Settings(L, H, **PLUS, g=g))
        for g in ("layer", "fixed")
    },
    "gpt-plus-g-3": (
        "gpt",
        {**PLUS, "g": "fixed", "g_init": 3.0},
        gpt,
        gpt.Settings(L, H, **PLUS, g="fixed", g_value=3.0),
    ),
    "ngpt": ngpt_case(),
    "ngpt-lerp-nu": ngpt_case({"residual": "lerp_nu"}, residual="lerp_nu"),
    "ngpt-lerp-nu-fixed-alpha": ngpt_case(
        {"residual": "lerp_nu", "alpha": ScaleConfig("fixed", 0.3)},
        residual="lerp_nu",
        alpha=Scale("fixed", 0.3),
    ),
    "ngpt-ball": ngpt_case({"bound": "ball"}),
    "ngpt-in-forward": ngpt_case({"normalize_in_forward": True}, normalize_in_forward=True),
    "ngpt-in-forward-tied": ngpt_case(
        {"normalize_in_forward": True, "tied": True}, normalize_in_forward=True, tied=True
    ),
    "ngpt-alpha-a7": scale_case("alpha", "vector", 0.1, SLOW),
    "ngpt-tied": ngpt_case({"tied": True}, tied=True),
    "ngpt-signed": ngpt_case({"signed_alpha": True}, absolute_alpha=False),
    "ngpt-slerp": ngpt_case({"residual": "slerp"}, residual="slerp"),
    "ngpt-riemannian": ngpt_case({"residual": "riemannian"}, residual="riemannian"),
    "ngpt-no-qk-norm": ngpt_case({"qk_norm": False}, qk_norm=False),
    "ngpt-half-rotary": ngpt_case({"rotary_fraction": 0.5}, rotary_fraction=0.5),
    **{
        f"ngpt-{name}-{form}": scale_case(name, form, 0.5, 0.4)
        for name in ("alpha", "s_qk", "s_u", "s_nu", "s_z")
        for form in ("vector", "scalar", "fixed")
    },
    "angpt": ("angpt", {}, angpt, angpt.Settings(L, H)),
    "angpt-tied": ("angpt", {"tied": True}, angpt, angpt.Settings(L, H, tied=True)),
    "angpt-z1": ("angpt", {"z_gain": "1"}, angpt, angpt.Settings(L, H, z_gain="1")),
    "angpt-plain": ("angpt", {"nu_alpha": False}, angpt, angpt.Settings(L, H, residual="plain")),
    "angpt-exact": angpt_case({}, nu_acf="exact"),
    "angpt-3.74": angpt_case({"nu_acf": 3.74}),
    "angpt-gelu": angpt_case({"activation": "gelu"}, activation="gelu", nu_acf="exact"),
    "angpt-relu2": angpt_case({"activation": "relu2"}, activation="relu2", nu_acf="exact"),
    "angpt-z1-gelu": angpt_case(
        {"activation": "gelu", "z_gain": "1"}, activation="gelu", z_gain="1", nu_acf="exact"
    ),
    "angpt-g-layer": angpt_case({"g": "layer"}, g="layer"),
    "angpt-g-fixed": angpt_case({"g": "fixed"}, g="fixed"),
    "angpt-g-2": angpt_case({"g": "fixed", "g_init": 2.0}, g="fixed", g_value=2.0),
    "angpt-attention-factor": angpt_case({"attention_factor": True}, attention_factor=True),
    "angpt-full-rotary": angpt_case({"rotary_fraction": 1.0}, rotary_fraction=1.0),
    **{
        f"angpt-{name}-{form}": angpt_case(
            {name: ScaleConfig(form, 0.3, 0.4)}, **{name: Scale(form, 0.3, 0.4)}
        )
        for name in ("alpha", "s_z")
        for form in ("vector", "scalar", "fixed")
    },
    "pre-ln": ("normformer", OFF, normformer, normformer.Settings(L, H, **OFF)),
    "normformer": ("normformer", {}, normformer, normformer.Settings(L, H, res_scale=False)),
    **{
        f"pre-ln+{name}": (
            "normformer",
            {**OFF, name: True},
            normformer,
            normformer.Settings(L, H, **{**OFF, name: True}),
        )
        for name in OFF
    },
    "post-ln": normformer_case(**normformer.POST_LN),
    "post-ln-learned": normformer_case(**normformer.POST_LN, positions="learned"),
    "normformer-post": normformer_case(norm="post", res_scale=True),
    "normformer-res-scale": normformer_case(res_scale=True),
    "normformer-learned": normformer_case(positions="learned"),
    "normformer-rotary": normformer_case(positions="rotary"),
    **{
        f"normformer-qkv-ln-{positions}": (
            "normformer",
            {"qkv_ln": True, "positions": positions},
            normformer,
            normformer.Settings(L, H, res_scale=False, qkv_ln="width", positions=positions),
        )
        for positions in ("sinusoidal", "rotary")
    },
    "normformer-relu2-untied": (
        "normformer",
        {"activation": "relu2", "tied": False, "res_scale": True},
        normformer,
        normformer.Settings(L, H, activation="relu2", tied=False),
    ),
}


def oracle_name(architecture, name):
    """The oracle's name of a parameter: blocks.0.attention.W_q.weight -> layers.0.W_q."""
    parts = name.replace("blocks.", "layers.").removesuffix(".weight").split(".")
    parts = [p for p in parts if p not in ("attention", "mlp")]
    if parts[-1] == "stored":
        parts.pop()
    if architecture == "gpt":
        rename = {"norm_A": "gain_A", "norm_M": "gain_M", "norm": "gain_final"}
        parts = [rename.get(p, p) for p in parts if p != "gain"]
    if architecture == "normformer":
        parts = [{"norm": "LN_final", "E": "E_in"}.get(p, p) for p in parts]
        if parts[-1] == "bias" and parts[-2].startswith("W_"):
            parts[-2:] = [f"b_{NORMFORMER_NAMES.get(parts[-2], parts[-2])[2:]}"]
        if len(parts) > 1 and parts[-2] in ("gamma", "lambda_"):
            parts.pop()
        parts = [NORMFORMER_NAMES.get(p, p) for p in parts]
    return ".".join(parts)


def setup(case):
    """(model with random weights, its oracle, settings, oracle's tensors by the model's names)."""
    architecture, numbers, oracle, settings = CASES[case]
    sizes = {"vocab_size": V, "d_model": D, "n_layers": L, "n_heads": H, "d_ff": D_FF}
    if numbers.get("positions") == "learned":
        sizes["max_positions"] = T_MAX
    model = build(architecture, **sizes, **numbers)
    generator = torch.Generator().manual_seed(2)
    role = roles(model)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if role[name] == "scale" and p.any():  # some change their sign, none its magnitude
                p.mul_(1 + 0.8 * noise)
            else:
                p.add_(0.3 * noise)
    model.double()
    shapes = (
        oracle.shapes(settings, V, D, D_FF, T_MAX)
        if oracle is normformer
        else oracle.shapes(settings, V, D, D_FF)
    )
    tensors = {}
    for name, p in model.named_parameters():
        key = oracle_name(architecture, name)
        tensors[key] = p.detach().double().reshape(shapes[key]).clone().requires_grad_()
    assert tensors.keys() == shapes.keys()
    return model, oracle, settings, tensors


def batch(rows=2, time=7):
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, V, (rows, time), generator=generator)
    targets = torch.randint(0, V, (rows, time), generator=generator)
    targets[0, :2] = -100
    return tokens, targets


def distance(a, b, floor=1e-30):
    """Largest difference relative to the largest entry, or to `floor` where that is smaller."""
    return ((a.double().reshape(b.shape) - b).abs().max() / b.abs().max().clamp(min=floor)).item()


@pytest.mark.parametrize("case", CASES)
def test_forward_loss_and_gradients(case):
    model, oracle, settings, tensors = setup(case)
    tokens, targets = batch()
    logits = oracle.forward(tensors, settings, tokens)
    expected = oracle.loss(tensors, settings, tokens, targets)
    expected.backward()
    # Some gradients are exactly zero: a scalar s_u cancels in Norm, a key bias in the softmax.
    largest = max(t.grad.abs().max().item() for t in tensors.values())
    for dtype, bound, share in ((torch.float64, 1e-10, 0.01), (torch.float32, 1e-5, 0.1)):
        model.to(dtype)
        model.zero_grad()
        assert distance(model(tokens), logits) < bound
        loss = model.loss(tokens, targets)
        assert distance(loss, expected) < bound
        loss.backward()
        for name, p in model.named_parameters():
            wanted = tensors[oracle_name(CASES[case][0], name)].grad
            assert distance(p.grad, wanted, share * largest) < bound, (name, dtype)


@pytest.mark.parametrize("case", ["gpt", "gpt-plus", "ngpt", "angpt", "normformer"])
def test_left_padding(case):
    model, oracle, settings, tensors = setup(case)
    tokens, _ = batch(rows=3)
    padding = torch.tensor([0, 3, 5])
    logits = model(tokens, left_padding=padding)
    expected = oracle.forward(tensors, settings, tokens, left_padding=padding)
    for row, start in enumerate(padding):
        assert distance(logits[row, start:], expected[row, start:]) < 1e-10


def masks(time=7):
    """Bidirectional, and two documents in a row: bidirectional and causal."""
    document = torch.arange(time) >= 4
    together = document[:, None] == document[None, :]
    causal = torch.ones(time, time).tril().bool()
    return {
        "bidirectional": torch.ones(time, time).bool(),
        "documents": together,
        "causal documents": together & causal,
    }


MASKED = ["gpt", "gpt-plus", "ngpt", "angpt", "angpt-attention-factor", "pre-ln", "post-ln-learned"]


@pytest.mark.parametrize("kind", masks())
@pytest.mark.parametrize("case", MASKED)
def test_masks(case, kind):
    model, oracle, settings, tensors = setup(case)
    tokens, targets = batch()
    mask = masks()[kind]
    free = replace(settings, causal=False)
    wanted = oracle.forward(tensors, free, tokens, mask=mask)
    logits = model(tokens, mask=mask)
    assert distance(logits, wanted) < 1e-10
    rows = model(tokens, mask=mask.expand(2, 1, 7, 7))
    assert distance(rows, wanted) < 1e-10
    oracle.loss(tensors, free, tokens, targets, mask=mask).backward()
    cross_entropy(logits, targets, "mean").backward()
    floor = 1e-2 * max(t.grad.abs().max().item() for t in tensors.values())
    for name, p in model.named_parameters():
        wanted = tensors[oracle_name(CASES[case][0], name)].grad
        assert distance(p.grad, wanted, floor) < 1e-10, name


@pytest.mark.parametrize("case", MASKED)
def test_a_mask_with_left_padding(case):
    model, oracle, settings, tensors = setup(case)
    tokens, _ = batch(rows=3)
    padding = torch.tensor([0, 3, 5])
    everyone = torch.ones(7, 7).bool()
    logits = model(tokens, left_padding=padding, mask=everyone)
    free = replace(settings, causal=False)
    wanted = oracle.forward(tensors, free, tokens, left_padding=padding)
    for row, start in enumerate(padding):
        assert distance(logits[row, start:], wanted[row, start:]) < 1e-10


STEPPED = ["gpt", "gpt-plus", "ngpt", "ngpt-ball", "angpt", "normformer", "post-ln-learned"]


@pytest.mark.parametrize("case", STEPPED)
def test_one_optimizer_step_with_the_constraint(case):
    model, oracle, settings, tensors = setup(case)
    architecture = CASES[case][0]
    config = OptimConfig(name="adam", lr=0.05, beta2=0.99, eps=1e-9)
    if architecture in ("gpt", "normformer"):
        config = OptimConfig(name="adamw", lr=0.05, weight_decay=0.1)
    optimizer = build_optimizer(model, config)
    constrain(model, optimizer)
    kind, axes = {
        "ngpt": ("ball" if case == "ngpt-ball" else "sphere", oracle_optim.NGPT),
        "angpt": ("ball", oracle_optim.ANGPT),
    }.get(architecture, (None, None))
    names = {name: oracle_name(architecture, name) for name, _ in model.named_parameters()}
    start = {k: t.detach() for k, t in tensors.items()}
    if axes:
        start = {
            k: oracle_optim.project(t, kind, axes[k.split(".")[-1]])
            if k.split(".")[-1] in axes
            else t
            for k, t in start.items()
        }
    leaves = {k: t.clone().requires_grad_() for k, t in start.items()}
    tokens, targets = batch()
    oracle.loss(leaves, settings, tokens, targets).backward()
    adam = oracle_optim.Adam(
        config.lr,
        config.beta1,
        config.beta2,
        config.eps,
        config.weight_decay,
        config.name == "adamw",
    )
    decayed = {names[n]: d.role in DECAYED for n, d in declarations(model).items()}
    gradients = {k: t.grad for k, t in leaves.items()}
    wanted, state = oracle_optim.step(
        start, gradients, oracle_optim.State(), adam, kind, axes, decayed
    )
    model.loss(tokens, targets).backward()
    optimizer.step()
    for name, p in model.named_parameters():
        key = names[name]
        if key.endswith("b_k"):  # its true gradient is 0; Adam divides rounding by rounding
            continue
        assert distance(p.detach(), wanted[key]) < 1e-10, name
        assert distance(optimizer.state[p]["exp_avg"], state.m[key]) < 1e-10, name
        assert distance(optimizer.state[p]["exp_avg_sq"], state.v[key]) < 1e-10, name
