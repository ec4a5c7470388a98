"""The models beside their oracles: one case a switch, and the names that the two have for a tensor.

The oracles (tests/reference) were written from the papers alone, by someone who had not seen the
models.
"""

import math
from dataclasses import replace

import torch
from reference import angpt, dyt, gpt, lnscaling, ngpt, normformer, rezero
from reference.basics import Scale

from unitsphere.models.constraint import roles
from unitsphere.models.parts import ScaleConfig
from unitsphere.models.registry import build

V, D, L, H, D_FF, T_MAX = 23, 16, 2, 2, 40, 9
SLOW = 1 / math.sqrt(D)
NORMFORMER_NAMES = {"gamma": "gamma", "lambda_": "lambda", "W_o": "W_O"}


NORMFORMER_MODULES = {"norm": "LN_final", "norm_memory": "LN_encoder", "E": "E_in"}
GAINS = {"norm_A": "gain_A", "norm_M": "gain_M", "norm_X": "gain_X", "norm": "gain_final"}
GAINS |= {"norm_memory": "gain_encoder", "norm_E": "gain_E"}
GAINS |= {"norm_oA": "gain_oA", "norm_oM": "gain_oM", "norm_oX": "gain_oX"}
DYT = {"norm_A": "DyT_A", "norm_M": "DyT_M", "norm_X": "DyT_X", "norm": "DyT_final"}
DYT |= {"norm_memory": "DyT_encoder", "gain": "gamma", "bias": "beta", "s": "embed_scale"}


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


BARE = {"qk_norm": False, "rotary_fraction": 1.0}
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
    "gpt-plus-branch": (
        "gpt",
        {**PLUS, "branch": 0.4},
        gpt,
        gpt.Settings(L, H, **PLUS, branch=0.4),
    ),
    "gpt-plus-g-3": (
        "gpt",
        {**PLUS, "g": "fixed", "g_init": 3.0},
        gpt,
        gpt.Settings(L, H, **PLUS, g="fixed", g_value=3.0),
    ),
    **{
        f"gpt-plus-{name}": ("gpt", {**PLUS, **given}, gpt, gpt.Settings(L, H, **PLUS, **given))
        for name, given in {
            "relu2": {"activation": "relu2"},
            "softcap": {"softcap": 0.5},
            "embedding-norm": {"embedding_norm": True},
            "gated": {"gated": True, "branch": 0.4},
            "peri-ln": {"output_norm": True, "embedding_norm": True},
            "value-embeddings": {"value_embeddings": True},
            "token-shift": {"token_shift": True, "embedding_norm": True},
            "bigrams": {"bigram_rows": 13, "token_shift": True},
            "key-offset": {"key_offset": True},
            "output-norm": {"output_norm": True, "gated": True, "branch": 0.4},
            "recent-tied": {
                "activation": "relu2",
                "softcap": 0.5,
                "embedding_norm": True,
                "tied": True,
            },
        }.items()
    },
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
    "ngpt-add": ngpt_case({"residual": "add"}, residual="add"),
    "ngpt-gated": ngpt_case({"residual": "gated"}, residual="gated"),
    "ngpt-no-qk-norm": ngpt_case({"qk_norm": False}, qk_norm=False),
    "ngpt-value-embeddings": ngpt_case({"value_embeddings": True}, value_embeddings=True),
    "ngpt-token-shift": ngpt_case({"token_shift": True}, token_shift=True),
    "ngpt-bigrams": ngpt_case({"bigram_rows": 13}, bigram_rows=13),
    "ngpt-key-offset": ngpt_case(
        {"key_offset": True, "rotary_fraction": 0.5}, key_offset=True, rotary_fraction=0.5
    ),
    "ngpt-half-rotary": ngpt_case({"rotary_fraction": 0.5}, rotary_fraction=0.5),
    **{
        f"ngpt-{name}-{form}": scale_case(name, form, 0.5, 0.4)
        for name in ("alpha", "s_qk", "s_u", "s_nu", "s_z")
        for form in ("vector", "scalar", "fixed")
    },
    "angpt": ("angpt", {}, angpt, angpt.Settings(L, H)),
    "angpt-tied": ("angpt", {"tied": True}, angpt, angpt.Settings(L, H, tied=True)),
    "angpt-z1": ("angpt", {"z_gain": "1"}, angpt, angpt.Settings(L, H, z_gain="1")),
    "angpt-token-shift": angpt_case({"token_shift": True}, token_shift=True),
    "angpt-bigrams": angpt_case({"bigram_rows": 13}, bigram_rows=13),
    "angpt-key-offset": angpt_case({"key_offset": True}, key_offset=True),
    "angpt-plain": ("angpt", {"nu_alpha": False}, angpt, angpt.Settings(L, H, residual="plain")),
    "angpt-signed": angpt_case({"signed_alpha": True}, absolute_alpha=False),
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
    "normformer-geglu": normformer_case(activation="geglu", ffn_ln=False),
    "normformer-geglu-ln": normformer_case(activation="geglu"),
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
    "rezero": ("rezero", {}, rezero, rezero.Settings(L, H)),
    "rezero-tied": ("rezero", {"tied": True}, rezero, rezero.Settings(L, H, tied=True)),
    "rezero-half-rotary": (
        "rezero",
        {"rotary_fraction": 0.5},
        rezero,
        rezero.Settings(L, H, rotary_fraction=0.5),
    ),
    **{
        f"{name}{suffix}": (
            name,
            {**BARE, **beta, **numbers},
            oracle,
            oracle.Settings(L, H, **numbers),
        )
        for name, oracle, beta in (("lnscaling", lnscaling, {}), ("dyt", dyt, {"beta": True}))
        for suffix, numbers in (
            ("", {"tied": False}),
            ("-tied", {"tied": True}),
            ("-half-rotary", {"rotary_fraction": 0.5}),
            *((f"-plus-g-{g}", {**PLUS, "g": g}) for g in ("head", "layer", "fixed")),
        )
    },
    "dyt-no-beta": ("dyt", {**BARE, "beta": False}, dyt, dyt.Settings(L, H, bias=False)),
}


FEW = {"n_heads": 4, "n_kv_heads": 2}
NARROW = {**FEW, "window": 3}


def narrowed(case, changes):
    """A case with other heads of keys, and a window."""
    architecture, numbers, oracle, settings = CASES[case]
    return architecture, {**numbers, **changes}, oracle, replace(settings, **changes)


NARROWED = ["gpt", "gpt-plus", "gpt-plus-value-embeddings", "ngpt", "ngpt-no-qk-norm", "rezero"]
NARROWED += [
    "gpt-plus-token-shift",
    "angpt-attention-factor",
    "lnscaling-plus-g-head",
    "dyt-plus-g-head",
]
NARROWED += ["normformer-qkv-ln-rotary", "post-ln-learned"]
CASES |= {f"{case}-grouped": narrowed(case, FEW) for case in ("ngpt", "angpt")}
CASES |= {f"{case}-narrow": narrowed(case, NARROW) for case in NARROWED}
CASES |= {"ngpt-one-key": narrowed("ngpt", {"n_heads": 4, "n_kv_heads": 1})}


def oracle_name(architecture, name):
    """The oracle's name of a parameter: blocks.0.attention.W_q.weight -> layers.0.W_q."""
    parts = name.replace("blocks.", "layers.").removesuffix(".weight").split(".")
    parts = [p for p in parts if p not in ("attention", "mlp")]
    if parts[-1] == "stored":
        parts.pop()
    if parts[0] == "shift":
        return f"{parts[1]}_shift"
    if parts[0] == "bigrams":
        return "s_2" if parts[1] == "s" else parts[1]
    if architecture in ("gpt", "lnscaling"):
        parts = [GAINS.get(p, p) for p in parts if p != "gain"]
    if architecture == "dyt":
        parts = [DYT.get(p, p) for p in parts]
    if architecture == "normformer":
        parts = normformer_parts(parts)
    return ".".join(parts)


def normformer_parts(parts):
    """W_q.bias is b_q; γ and λ have no gain of their own; LN_a of cross-attention lies in cross."""
    parts = [NORMFORMER_MODULES.get(p, p) for p in parts]
    if parts[-1] == "bias" and parts[-2].startswith("W_"):
        parts[-2:] = [f"b_{NORMFORMER_NAMES.get(parts[-2], parts[-2])[2:]}"]
    if len(parts) > 1 and parts[-2] in ("gamma", "lambda_"):
        parts.pop()
    if "LN_aX" in parts:
        at = parts.index("LN_aX")
        parts[at : at + 1] = ["cross", "LN_a"]
    return [NORMFORMER_NAMES.get(p, p) for p in parts]


def setup(case, objective="clm"):
    """(model with random weights, its oracle, settings, the oracle's tensors by its names)."""
    architecture, numbers, oracle, settings = CASES[case]
    settings = replace(settings, causal=objective != "mlm", seq2seq=objective == "seq2seq")
    sizes = {"vocab_size": V, "d_model": D, "n_layers": L, "n_heads": H, "d_ff": D_FF}
    if numbers.get("positions") == "learned":
        sizes["max_positions"] = T_MAX
    model = build(architecture, objective=objective, **{**sizes, **numbers})
    generator = torch.Generator().manual_seed(2)
    role = roles(model)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if role[name] == "scale" and p.any():  # some change their sign, none its magnitude
                p.mul_(1 + 0.6 * noise)
            else:
                p.add_(0.1 * noise)
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
    """‖a − b‖ relative to ‖b‖, or to `floor` where that is smaller."""
    return ((a.double().reshape(b.shape) - b).norm() / b.norm().clamp(min=floor)).item()


def largest_gradient(tensors):
    """The largest norm of a gradient."""
    return max(t.grad.norm().item() for t in tensors.values())
