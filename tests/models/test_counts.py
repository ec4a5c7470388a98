"""Exact parameter counts: equations.md's formulas, and what the papers print."""

import functools

import pytest

from unitsphere.models.constraint import roles
from unitsphere.models.registry import ARCHITECTURES, build_from, count_by_role, lay_out
from unitsphere.training.recipes import load_recipe, recipe_names


@functools.cache
def count(recipe):
    config = load_recipe(recipe)
    return sum(
        p.numel() for p in build_from(config.architecture, config.model, "meta").parameters()
    )


@pytest.mark.parametrize(
    ("recipe", "parameters"),
    [
        ("ngpt2024/gpt-0.5b", 468_239_360),
        ("ngpt2024/ngpt-0.5b", 468_491_520),
        ("ngpt2024/gpt-1b", 1_025_731_840),
        ("ngpt2024/ngpt-1b", 1_026_177_280),
    ],
)
def test_ngpt_paper(recipe, parameters):
    assert count(recipe) == parameters


ANGPT_SIZES = {
    "32m": (256, 6, 4, 32.05, 32.11, 32.10),
    "62m": (384, 10, 6, 62.24, 62.33, 62.28),
    "125m": (512, 18, 8, 127.03, 127.16, 127.08),
    "250m": (768, 18, 12, 247.17, 247.34, 247.21),
    "0.5b": (1024, 24, 16, 505.73, 506.00, 505.78),
    "1b": (1280, 36, 20, 1073, 1073, 1073),
}


@pytest.mark.parametrize("size", ANGPT_SIZES)
def test_angpt_paper(size):
    d, L, H, *printed = ANGPT_SIZES[size]
    V = 50304
    matrices = 16 * d * d * L + 2 * V * d
    exact = {
        "gpt-plus": matrices + (2 * L + 1) * d + H * L,
        "ngpt": matrices + 11 * L * d + V,
        "angpt": matrices + 2 * L * d + V + H * L,
    }
    for (arm, parameters), millions in zip(exact.items(), printed, strict=True):
        assert count(f"angpt2025/{arm}-{size}") == parameters
        assert abs(parameters / 1e6 - millions) < (0.5 if size == "1b" else 0.012)


@pytest.mark.parametrize(
    ("size", "baseline", "normformer"),
    [
        ("125m", 124.4, 124.5),
        ("355m", 354.7, 355.0),
        ("1.3b", 1313.5, 1314.0),
        ("2.7b", 2648.7, 2649.5),
    ],
)
def test_normformer_paper(size, baseline, normformer):
    config = load_recipe(f"normformer2021/normformer-{size}").model
    d, d_f, L, H = config.d_model, config.d_ff, config.n_layers, config.n_heads
    small, large = count(f"normformer2021/gpt-{size}"), count(f"normformer2021/normformer-{size}")
    assert large - small == L * (2 * d + 2 * d_f + H)
    assert round(small / 1e6, 1) == baseline
    assert round(large / 1e6, 1) == normformer


def test_normformer_paper_s_masked_models():
    # Table 3. RoBERTa's head has a dense layer, a layer norm and a bias more, and two positions.
    config = load_recipe("normformer2021/gpt-mlm-125m").model
    d, V = config.d_model, config.vocab_size
    roberta = d * d + d + 2 * d + V + 2 * d
    assert round((count("normformer2021/gpt-mlm-125m") + roberta) / 1e6, 2) == 125.42
    assert abs((count("normformer2021/normformer-mlm-125m") + roberta) / 1e6 - 125.50) < 0.01
    scaled = count("normformer2021/normformer-mlm-125m-res-scale") + roberta
    assert abs(scaled / 1e6 - 125.51) < 0.01


NORMFORMER = {  # Table 2, in millions, of each recipe beside those above
    "gpt-125m-gpt3-lr": (124.4, 124_377_600),
    "gpt-355m-gpt3-lr": (354.7, 354_740_224),
    "gpt-1.3b-gpt3-lr": (1313.5, 1_313_460_224),
    "gpt-2.7b-relu2": (2648.7, 2_648_724_480),
    "gpt-2.7b-relu2-high-lr": (2648.7, 2_648_724_480),
    "normformer-125m-res-scale": (124.5, 124_479_120),
    "normformer-355m-res-scale": (355.0, 355_010_944),
    "normformer-2.7b-relu2": (2649.5, 2_649_544_704),
}


@pytest.mark.parametrize("recipe", NORMFORMER)
def test_normformer_paper_s_other_rows(recipe):
    printed, exact = NORMFORMER[recipe]
    assert count(f"normformer2021/{recipe}") == exact
    assert round(exact / 1e6, 1) == printed


def test_a_2_7b_with_res_scale_is_not_what_table_2_counts():
    config = load_recipe("normformer2021/normformer-2.7b").model
    scales = config.n_layers * config.d_model
    assert round((count("normformer2021/normformer-2.7b") + scales) / 1e6, 1) == 2649.6
    assert config.activation == "relu2"


@pytest.mark.parametrize("name", [n for n in recipe_names() if n.startswith("normformer2021/")])
def test_the_normformer_paper_s_vocabulary_has_50257_entries(name):
    config = load_recipe(name)
    assert config.data.tokenizer == "bpe:50257"
    assert config.model.vocab_size == 51_200  # by the counts


def test_geglu_has_as_many_weights_as_the_mlp_that_it_replaces():
    base = load_recipe("normformer2021/ablations/table4-row3-no-ffn-ln").model
    more = count("normformer2021/ablations/section5-geglu") - count(
        "normformer2021/ablations/table4-row3-no-ffn-ln"
    )
    assert more == base.n_layers * (2 * 2048 - base.d_ff)  # biases


def test_normformer_extra_at_12_layers_of_768():
    extra = count("normformer2021/normformer-125m") - count("normformer2021/gpt-125m")
    assert extra == 92_304


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("n_layers", [1, 5])
def test_counts_by_role_are_those_of_the_model(name, n_layers):
    config = ARCHITECTURES[name].config(vocab_size=96, d_model=32, n_heads=2, n_layers=n_layers)
    model = build_from(name, config, "meta")
    counted = count_by_role(lay_out(name, config))
    assert sum(counted.values()) == sum(p.numel() for p in model.parameters())
    assert counted.keys() == set(roles(model).values())
