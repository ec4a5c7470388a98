"""The papers' tables as data: every figure beside the paper's own text, every row a recipe."""

import math
import re

import pytest

from unitsphere.errors import UserError
from unitsphere.studies.ablate import ablation_study
from unitsphere.studies.core.plan import arm_config
from unitsphere.studies.tables import (
    BY_SIZE,
    load_size,
    load_sizes,
    load_table,
    only,
    table_names,
)
from unitsphere.training.recipes import load_recipe, recipe_names

# The papers' columns once more, in the order of the rows, as they are printed.
PRINTED = {
    "ngpt-table4": "2.252 -0.33 -0.09 -0.09 -0.08 +1.94 +0.92 +0.05 +0.48 +1.06 +3.12 +1.66",
    "ngpt-table5": "2.252 +0.22 +0.07 +0.20 +0.22 +0.17 +0.30 +0.62 +0.11 +0.05 +0.20 +0.40",
    "ngpt-table6": "2.252 +0.12 -0.08",
    "angpt-figure5": "- 2.1 3.0 3.0 3.4 3.8",
    "angpt-figureA1": "- -2.5 0.0 -6.5 0.2 1.3",
    "normformer-table4": "15.88 15.92 16.14 16.22 16.20 15.88 16.37",
    "normformer-table5": (
        "16.80 16.33 16.37 15.88 16.58 16.22 16.50 16.06 16.29 15.88 16.46 16.14"
    ),
}
ACCURACY = {
    "ngpt-table4": "54.44 54.67 53.69 54.19 54.89 52.41 53.51 53.90 54.39 52.60 52.71 51.84",
    "ngpt-table5": "54.44 54.05 54.23 53.69 54.86 54.52 52.59 53.61 54.17 55.51 53.63 53.37",
    "ngpt-table6": "54.44 54.71 54.80",
}


# nGPT's Mean(s) in the order of the rows: of each row of Table 4 what it is about, of Table 5 all
# but an s_u that is a scalar, which cancels.
MEANS = {
    "ngpt-table4": """
        1.51 1.24 1.12 60.8 1.36 1.01 1.38 1.11 0.29 0.03 0.03 2.75 11.2 0.40 0.25 106.1 23.6 63.6
    """,
    "ngpt-table5": """
        1.47 1.12 1.24 60.80 0.22 0.33
        1.49 1.13 1.23 62.11 0.22 0.33
        1.46 1.46 60.70 0.22 0.33
        1.47 1.12 1.24 95.65 0.22 0.33
        1.40 1.13 1.13 60.90 0.30 0.36
        1.51 1.47 61.18 0.22 0.32
        1.52 1.68 96.65 0.22 0.30
        1.49 1.17 88.64 0.30 0.37
        1.00 1.12 1.15 60.69 0.24 0.35
        1.45 1.00 1.00 61.53 0.23 0.35
        1.00 1.00 1.00 61.26 0.24 0.36
        1.00 1.00 1.00 96.15 0.22 0.35
    """,
}


def test_every_table_is_there_and_every_ablation_recipe_is_a_row():
    assert table_names() == sorted(PRINTED)
    used = {row.recipe for name in table_names() for row in load_table(name).rows}
    ablations = {name for name in recipe_names() if "/ablations/" in name}
    assert used <= ablations
    without_figures = {"a7", "section5"}
    others = {name.rpartition("/")[2].partition("-")[0] for name in ablations - used}
    assert others == without_figures


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_figures_are_the_papers(name):
    table = load_table(name)
    printed = PRINTED[name].split()
    assert len(table.rows) == len(printed)
    for row, text in zip(table.rows, printed, strict=True):
        if row.figure is not None:
            assert row.figure == float(text), row.name
        elif text != "-":
            sign = -1 if name.startswith("angpt") else 1
            assert row.change == sign * float(text), row.name
    found = [row.accuracy for row in table.rows if row.accuracy is not None]
    assert found == [float(text) for text in ACCURACY.get(name, "").split()]
    means = [mean for row in table.rows for mean in row.means.values()]
    assert means == [float(text) for text in MEANS.get(name, "").split()]


def test_scales_that_are_fixed_have_the_mean_that_they_start_with():
    for row in load_table("ngpt-table5").rows:
        model = load_recipe(row.recipe).model
        scales = {name: getattr(model, name) for name in ("s_qk", "s_u", "s_nu", "s_z")}
        fixed = {name: scale.init for name, scale in scales.items() if scale.form == "fixed"}
        assert fixed == {name: row.means[name] for name in fixed}, row.name


def test_changes_are_relative_to_the_row_they_name():
    table = load_table("normformer-table5")
    assert table.paper_change(table.rows[0]) is None
    assert table.paper_change(table.rows[1]) == pytest.approx(100 * (16.33 / 16.80 - 1))
    assert table.reference(table.rows[3]).name == "03-baseline-lr-3e-3"
    four = load_table("normformer-table4")
    assert four.paper_change(four.rows[6]) == pytest.approx(100 * (16.37 / 15.88 - 1))
    assert four.reference(four.rows[0]) is None
    steps = [row.seconds for row in load_table("ngpt-table6").rows]
    assert steps == [0.657, 0.576, 0.726]


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_shares_and_rates_are_those_of_the_recipes(name):
    rows = load_table(name).rows
    configs = [load_recipe(row.recipe) for row in rows]
    base = next(c for row, c in zip(rows, configs, strict=True) if row.share == row.rate == 1)
    for row, config in zip(rows, configs, strict=True):
        assert config.train.steps == round(base.train.steps * row.share), row.name
        if name.startswith("normformer"):
            assert config.optim.lr == pytest.approx(0.003 * row.rate, rel=1e-3), row.name


@pytest.mark.parametrize("name", sorted(PRINTED))
@pytest.mark.parametrize("size", ["tiny", "quickstart", "paper"])
def test_every_row_has_a_config_at_every_size(name, size):
    study = ablation_study(name, size)
    table = study.paper_table
    for row in table.rows:
        config, recipe = arm_config(study, row.name), load_recipe(row.recipe)
        assert config.architecture == recipe.architecture
        if size == "paper":
            assert config == recipe
        else:
            assert config.model.d_ff == 4 * config.model.d_model
            assert config.model.vocab_size is None
            assert config.schedule.warmup < 1 or recipe.schedule.warmup == 0


def test_what_goes_with_the_width_is_that_of_the_recipes():
    """The keys that a smaller size computes give the recipe's own values at the paper's width."""
    for name in table_names():
        table = load_table(name)
        for row in table.rows:
            recipe = load_recipe(row.recipe)
            for key, value in {**table.small, **row.small}.items():
                if name.startswith("angpt") or key == "schedule.warmup":
                    continue  # chosen for the size: the tests below
                own = recipe
                for part in key.split("."):
                    own = getattr(own, part)
                if isinstance(value, str):
                    sizes = recipe.model.d_model, recipe.model.n_layers, 1024
                    assert own == pytest.approx(BY_SIZE[value](*sizes)), key


def test_both_sides_of_angpts_tables_start_by_the_width():
    """nGPT's rows as in the quickstart; the others at 1/√d, which suits one rate for all roles."""
    quickstart = {name: load_recipe(f"quickstart/{name}").model for name in ("ngpt", "angpt")}
    for name in ("angpt-figure5", "angpt-figureA1"):
        study = ablation_study(name)
        models = {arm: arm_config(study, arm).model for arm in study.arms}
        for arm, model in models.items():
            if "ngpt" not in arm:
                assert model.init_std == pytest.approx(model.d_model**-0.5), arm
                continue
            like = quickstart[arm.partition("-")[0]]
            for key in ("alpha", "s_z"):
                assert getattr(model, key).init == pytest.approx(getattr(like, key).init), arm


def test_a_smaller_normformer_has_a_warm_up_of_more_than_a_step():
    for name in ("normformer-table4", "normformer-table5"):
        study = ablation_study(name)
        for arm in study.arms:
            recipe = load_recipe(study.arms[arm].recipe).schedule.warmup
            assert arm_config(study, arm).schedule.warmup == {500: 0.1, 6000: 0.3}[recipe], arm
    own = ablation_study("normformer-table5", settings={"schedule.warmup": 0.2})
    warmups = {arm: arm_config(own, arm).schedule.warmup for arm in own.arms}
    assert warmups.pop("07-baseline-longer-warmup") == 0.3
    assert warmups.pop("08-normformer-longer-warmup") == 0.3
    assert set(warmups.values()) == {0.2}


def test_settings_come_before_what_the_row_is_about():
    study = ablation_study(
        "ngpt-table4", "tiny", rows=["12"], settings={"model.d_model": 96, "model.s_z.init": 9.0}
    )
    assert list(study.arms) == ["01-baseline", "12-s_z-init-root"]
    baseline, root = (arm_config(study, arm).model for arm in study.arms)
    assert (baseline.d_model, baseline.d_ff, baseline.s_z.init) == (96, 384, 9.0)
    assert root.s_z.init == pytest.approx(math.sqrt(96))
    assert root.s_z.scale == pytest.approx(1 / math.sqrt(96))


def test_some_rows_bring_what_they_are_measured_against_and_tuned_on():
    table = load_table("normformer-table5")
    names = [row.name for row in only(table, ["08", "02-normformer-lr-1e-3"]).rows]
    assert names == [
        "01-baseline-lr-1e-3",
        "02-normformer-lr-1e-3",
        "03-baseline-lr-3e-3",
        "07-baseline-longer-warmup",
        "08-normformer-longer-warmup",
    ]
    with pytest.raises(UserError, match=re.escape("unknown row '8'")):
        only(table, ["8"])


def test_a_width_below_1_is_told():
    table = load_table("angpt-figure5")
    with pytest.raises(UserError, match=r"model\.d_model must be at least 1: 0"):
        load_size("tiny").keys(table, table.rows[0], "gpt", {"model.d_model": 0})


def test_unknown_names_are_told():
    with pytest.raises(UserError, match=r"unknown table 'ngpt-table7' \(did you mean"):
        load_table("ngpt-table7")
    with pytest.raises(UserError, match=r"unknown size 'quick' \(did you mean 'quickstart'"):
        load_size("quick")
    assert load_size("paper") is None
    assert {"tiny", "quickstart"} <= load_sizes().keys()
