"""The ablation recipes against the papers' tables: what differs from the baseline, and no more."""

import re

import pytest

from unitsphere.config import differences
from unitsphere.training.recipes import load_recipe, recipe_folder, recipe_names

SLOW, ROOT = 0.03125, 32.0  # 1/√d_model and √d_model at d_model = 1024


def ablations(paper):
    """Short name -> config, of a paper's ablations."""
    start = f"{paper}/ablations/"
    return {n.removeprefix(start): load_recipe(n) for n in recipe_names() if n.startswith(start)}


def changes(config, base):
    """What differs from `base`, as `model.` keys -> new value in words."""
    found = dict(line.split(": ", 1) for line in differences(base, config))
    return {key.removeprefix("model."): value.split(" -> ")[1] for key, value in found.items()}


def starts(names, init, scale):
    """Table 4's columns for the scales, beside the paper's setting of each."""
    own = {"s_qk": (1.0, None), "s_u": (1.0, 1.0), "s_nu": (1.0, 1.0), "s_z": (1.0, None)}
    wanted = {}
    for name in names:
        old_init, old_scale = own[name]
        wanted |= {f"{name}.init": repr(init)} if init != old_init else {}
        wanted |= {f"{name}.scale": repr(scale)} if scale != old_scale else {}
    return wanted


def forms(**scales):
    """Table 5's columns: s_uv stands for s_u and s_nu."""
    names = {"s_uv": ("s_u", "s_nu")}
    return {
        f"{name}.form": repr(form)
        for key, form in scales.items()
        for name in names.get(key, (key,))
    }


NGPT = {
    "baseline": {},
    "table4-row02": starts(["s_qk"], 0.33, SLOW),
    "table4-row03": starts(["s_qk"], 0.05, SLOW),
    "table4-row04": starts(["s_qk"], 1.0, 1.0),
    "table4-row05": starts(["s_qk"], 0.33, 1.0),
    "table4-row06": starts(["s_qk"], 0.05, 1.0),
    "table4-row08": starts(["s_u", "s_nu"], SLOW, 1.0),
    "table4-row09": starts(["s_u", "s_nu"], 1.0, SLOW),
    "table4-row10": starts(["s_u", "s_nu"], SLOW, SLOW),
    "table4-row12": starts(["s_z"], ROOT, SLOW),
    "table4-row13": starts(["s_z"], 1.0, 1.0),
    "table4-row14": starts(["s_z"], ROOT, 1.0),
    "table5-row02": forms(s_qk="scalar"),
    "table5-row03": forms(s_uv="scalar"),
    "table5-row04": forms(s_z="scalar"),
    "table5-row05": forms(alpha="scalar"),
    "table5-row06": forms(s_qk="scalar", s_uv="scalar"),
    "table5-row07": forms(s_qk="scalar", s_uv="scalar", s_z="scalar"),
    "table5-row08": forms(s_qk="scalar", s_uv="scalar", s_z="scalar", alpha="scalar"),
    "table5-row09": forms(s_qk="fixed"),
    "table5-row10": forms(s_uv="fixed"),
    "table5-row11": forms(s_qk="fixed", s_uv="fixed"),
    "table5-row12": forms(s_qk="fixed", s_uv="fixed", s_z="scalar"),
    "table6-row1": {"qk_norm": "False"},
    "table6-row2": {"residual": "'slerp'"},
}


def test_ngpt_tables_4_5_and_6():
    found = ablations("ngpt2024")
    base = found["baseline"]
    assert (base.model.d_model, base.data.context, base.optim.lr) == (1024, 1024, 1e-3)
    assert base.train.steps * base.train.batch_tokens == pytest.approx(52e9, rel=0.01)
    for short, wanted in NGPT.items():
        (name,) = [n for n in found if n.startswith(short)]
        assert changes(found[name], base) == wanted, name
    assert len(found) == len(NGPT) + 2  # and A.7's two


def test_ngpt_appendix_a7():
    found, base = ablations("ngpt2024"), load_recipe("ngpt2024/ngpt-1b")
    run = {"data.context": "8192", "train.batch_tokens": "4194304", "train.micro_batch": "4"}
    assert changes(found["a7-alpha_init-0.1"], base) == {"alpha.init": "0.1", **run}
    assert changes(found["a7-alpha_scale-0.1"], base) == {"alpha.scale": "0.1", **run}


ARMS = {
    "figure5-gpt-plus-without-qk-norm": ("gpt-plus", {"qk_norm": "False"}),
    "figure5-gpt-plus": ("gpt-plus", {}),
    "figure5-ngpt": ("ngpt", {}),
    "figure5-ngpt-lerp-correction": ("ngpt", {"residual": "'lerp_nu'"}),
    "figure5-ngpt-param-bounding": ("ngpt", {"residual": "'lerp_nu'", "bound": "'ball'"}),
    "figure5-angpt": ("angpt", {}),
    "figure-a1-gpt-plus": ("gpt-plus", {}),
    "figure-a1-gpt-plus-without-qk-norm": ("gpt-plus", {"qk_norm": "False"}),
    "figure-a1-ngpt": ("ngpt", {}),
    "figure-a1-angpt": ("angpt", {}),
}


def test_angpt_figures_5_and_a1():
    found = ablations("angpt2025")
    assert found.keys() == {*ARMS, "figure-a1-ln-scaling", "figure-a1-dyt"}
    for name, (arm, wanted) in ARMS.items():
        base = load_recipe(f"angpt2025/{arm}-0.5b")
        assert changes(found[name], base) == {**wanted, "train.steps": "19073"}, name
    for config in found.values():
        assert config.train.steps * config.train.batch_tokens == pytest.approx(10e9, rel=1e-4)
    plus = found["figure-a1-gpt-plus"]
    for name, architecture in (("figure-a1-ln-scaling", "lnscaling"), ("figure-a1-dyt", "dyt")):
        config = found[name]
        assert config.architecture == architecture
        assert (config.optim, config.schedule, config.train) == (
            plus.optim,
            plus.schedule,
            plus.train,
        )
        for key in ("d_model", "n_layers", "n_heads", "d_ff", "qk_norm", "rotary_fraction"):
            assert getattr(config.model, key) == getattr(plus.model, key), (name, key)
    assert found["figure-a1-dyt"].model.alpha_init == 1.0


ADDITIONS = ("post_attn_ln", "ffn_ln", "head_scale", "res_scale")
TABLE_4 = {
    "table4-row1": ({}, 92_500),
    "table4-row2": ({"post_attn_ln": "False"}, 92_500),
    "table4-row3": ({"ffn_ln": "False"}, 92_500),
    "table4-row4": ({"head_scale": "False"}, 92_500),
    "table4-row5": ({"res_scale": "False"}, 92_500),
    "table4-row6": ({"qkv_ln": "True"}, 87_500),
    "table4-row7": (dict.fromkeys(ADDITIONS, "False"), 100_000),
}
TABLE_5 = [
    {"optim.lr": "0.001"},
    {},
    {"optim.lr": "0.006"},
    {"schedule.warmup": "6000.0"},
    {"data.context": "2048", "dropout": "0.1"},
    {"optim.clip": "0.1"},
]


def test_normformer_tables_4_and_5():
    recipes = ablations("normformer2021")
    found = {"-".join(name.split("-")[:2]): config for name, config in recipes.items()}
    base = found["table4-row1"]
    assert (base.data.context, base.schedule.kind, base.schedule.warmup) == (1024, "linear", 500)
    for name, (wanted, steps) in TABLE_4.items():
        got = changes(found[name], base)
        assert got.pop("train.steps", "92500") == str(steps)
        assert got == wanted, name
    for i, wanted in enumerate(TABLE_5):
        budget = 1000 / 470 if "data.context" in wanted else 1
        for row, off, steps in ((2 * i + 1, True, 100_000), (2 * i + 2, False, 92_500)):
            got = changes(found[f"table5-row{row:02d}"], base)
            assert int(got.pop("train.steps", "92500")) == round(steps * budget)
            assert got == {**wanted, **(dict.fromkeys(ADDITIONS, "False") if off else {})}, row
    geglu = changes(found["section5-geglu"], base)
    assert geglu == {"activation": "'geglu'", "ffn_ln": "False", "d_ff": "2048"}
    assert len(found) == len(TABLE_4) + 2 * len(TABLE_5) + 1


TABLE_2 = {  # beside another row: what differs
    "gpt-125m-gpt3-lr": ("gpt-125m", {"optim.lr": "0.0006"}),
    "gpt-355m-gpt3-lr": ("gpt-355m", {"optim.lr": "0.0003"}),
    "gpt-1.3b-gpt3-lr": ("gpt-1.3b", {"optim.lr": "0.0002"}),
    "gpt-2.7b-relu2": ("gpt-2.7b", {"activation": "'relu2'", "train.steps": "230000"}),
    "gpt-2.7b-relu2-high-lr": ("gpt-2.7b-relu2", {"optim.lr": "0.0006"}),
    "normformer-125m-res-scale": (
        "normformer-125m",
        {"res_scale": "True", "train.steps": "539000"},
    ),
    "normformer-355m-res-scale": (
        "normformer-355m",
        {"res_scale": "True", "train.steps": "550000"},
    ),
    "normformer-2.7b-relu2": ("normformer-2.7b", {"train.steps": "222000"}),
    "normformer-mlm-125m-res-scale": ("normformer-mlm-125m", {"res_scale": "True"}),  # Table 3
}


@pytest.mark.parametrize("name", TABLE_2)
def test_normformer_tables_2_and_3(name):
    base, wanted = TABLE_2[name]
    found = changes(*(load_recipe(f"normformer2021/{n}") for n in (name, base)))
    found.pop("schedule.end", None)
    assert found == wanted


def test_gpt3_s_decay_ends_after_260_billion_tokens_in_the_recipes_that_follow_it():
    recipes = [load_recipe(n) for n in recipe_names() if n.startswith("normformer2021/")]
    follows = [config for config in recipes if config.schedule.kind == "cosine"]
    assert len(follows) == 16
    for config in follows:
        tokens = config.train.steps * config.train.batch_tokens
        assert config.schedule.end * tokens == pytest.approx(min(260e9, tokens), rel=2e-3)
        assert config.schedule.final == 0.1


CITED = r"Table|§|Appendix|script|Baseline: none|NormFormer\+ResScale"
PAPER_S = ("[model]", "[data]", "[data.mask]", "[optim]", "[schedule]")


@pytest.mark.parametrize("name", [n for n in recipe_names() if n.startswith("normformer2021/")])
def test_every_value_of_the_normformer_paper_s_recipes_cites_its_source(name):
    section = ""
    for line in (recipe_folder() / f"{name}.toml").read_text(encoding="utf-8").splitlines():
        section = line if line.startswith("[") else section
        key = line.partition(" = ")[0]
        if " = " in line and (section.startswith(PAPER_S) or key in ("steps", "batch_tokens")):
            comment = line.partition("#")[2] or section.partition("#")[2]
            assert re.search(CITED, comment), line
