import json
import re
from pathlib import Path

import pytest

from unitsphere.cli import main
from unitsphere.config import differences, flatten, to_dict
from unitsphere.errors import UserError
from unitsphere.models.registry import ARCHITECTURES, count_by_role, lay_out
from unitsphere.studies.core.plan import with_overrides
from unitsphere.training.config import RunConfig, TrainConfig, run_config_type
from unitsphere.training.recipes import (
    first_sentence,
    grouped_recipes,
    is_ablation,
    layers,
    load_recipe,
    recipe_names,
    sources,
)
from unitsphere.training.resolve import FREE_KEYS, FREE_TABLES

ARMS = ("gpt-plus", "angpt", "ngpt")

RECIPE = """
architecture = "ngpt"
[model]
d_model = 64
[optim]
lr = 2e-2
[schedule]
kind = "linear"
"""


@pytest.fixture
def recipe(tmp_path):
    def write(text: str):
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_recipe_sets_what_it_names_and_leaves_the_rest_at_its_default(recipe):
    config = load_recipe(recipe(RECIPE))
    assert isinstance(config, RunConfig)
    assert (config.architecture, config.model.d_model, config.optim.lr) == ("ngpt", 64, 2e-2)
    assert config.schedule.kind == "linear"
    assert config.train == TrainConfig()


def test_a_recipe_holds_what_differs_from_its_base(recipe, tmp_path):
    (tmp_path / "first.toml").write_text(RECIPE + '[train]\nsteps = 7\n[model.alpha]\ninit = "1/L"')
    (tmp_path / "second.toml").write_text('base = "first.toml"\n[model]\nn_layers = 10\n')
    config = load_recipe(
        recipe('base = "second.toml"\n[model]\nd_model = 128\n[train]\nseed = 3\n')
    )
    assert (config.model.d_model, config.model.n_layers, config.model.alpha.init) == (128, 10, 0.1)
    assert (config.optim.lr, config.train.steps, config.train.seed) == (2e-2, 7, 3)
    shipped = load_recipe(recipe('base = "quickstart/ngpt"\n[optim]\nlr = 1e-3\n'))
    assert differences(load_recipe("quickstart/ngpt"), shipped) == ["optim.lr: 0.01 -> 0.001"]
    found = sources(str(recipe('base = "second.toml"\n[train]\nsteps = 8\n')))
    by_file = {key: Path(label).name for key, label in found.items()}
    assert by_file["train.steps"] == "mine.toml"
    assert by_file["model.n_layers"] == "second.toml"
    assert by_file["model.d_model"] == by_file["architecture"] == "first.toml"
    assert "train.seed" not in by_file


def test_an_architecture_may_take_the_place_of_its_base_s(recipe):
    plus = load_recipe("angpt2025/ablations/figure-a1-gpt-plus")
    scaled = load_recipe("angpt2025/ablations/figure-a1-ln-scaling")
    assert (plus.architecture, scaled.architecture) == ("gpt", "lnscaling")
    with pytest.raises(UserError, match=r"unknown key 'model.alpha'"):
        load_recipe(recipe('base = "quickstart/ngpt"\narchitecture = "gpt"\n'))


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ('"mine.toml"', "cannot be its own base: .*mine.toml -> .*mine.toml"),
        ('"../{folder}/mine.toml"', "cannot be its own base"),
        ('"quikstart/ngpt"', "mine.toml: base: unknown recipe 'quikstart/ngpt'.*'quickstart/ngpt'"),
        ('"none.toml"', "cannot read .*none.toml"),
        ('["quickstart/ngpt"]', "'base' must be the name of a recipe"),
        ('"wrong.toml"', r"wrong.toml: unknown key 'model.d_modle'"),
        ('"back.toml"', "back.toml -> .*mine.toml"),
    ],
)
def test_a_mistake_in_a_base_is_one_line(recipe, tmp_path, base, message):
    (tmp_path / "wrong.toml").write_text(RECIPE.replace("d_model", "d_modle"))
    (tmp_path / "back.toml").write_text('base = "mine.toml"')
    path = recipe(f"base = {base.format(folder=tmp_path.name)}\n")
    with pytest.raises(UserError, match=message) as caught:
        load_recipe(path)
    assert "\n" not in str(caught.value)


def test_an_ablation_holds_its_change_and_no_copy_of_its_base():
    """The first of NormFormer's holds the hyperparameters of Table 7, which are of no other."""
    alone = {"normformer2021/ablations/table4-row7-baseline"}
    for name in filter(is_ablation, recipe_names()):
        *bases, (_, own) = layers(name)
        assert bool(bases) == (name not in alone), name
        assert len(flatten(own)) <= 9 or name in alone, name


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_has_a_config_of_its_own_model(name):
    config = run_config_type(name)()
    assert config.architecture == name
    assert isinstance(config.model, ARCHITECTURES[name].config)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_comes_back_from_json(name, tmp_path):
    config = load_recipe(name)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_dict(config)), encoding="utf-8")
    assert load_recipe(path) == config


def test_an_angpt_saved_before_its_alpha_was_positive_keeps_its_meaning(tmp_path):
    saved = to_dict(load_recipe("quickstart/angpt"))
    del saved["model"]["signed_alpha"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(saved), encoding="utf-8")
    assert load_recipe(path).model.signed_alpha
    assert not load_recipe("quickstart/angpt").model.signed_alpha


def test_an_exported_folder_is_not_trained_further(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "unitsphere", "architectures": []}')
    with pytest.raises(UserError, match=r"is an exported folder, .* a recipe and --init RUN"):
        load_recipe(tmp_path)
    (tmp_path / "config.json").write_text("5")
    with pytest.raises(UserError, match=r"config\.json: the top level must hold architecture"):
        load_recipe(tmp_path)


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"unknown recipe 'ngtp' \(did you mean 'quickstart/ngpt'"):
        load_recipe("ngtp")
    with pytest.raises(UserError, match="unknown recipe 'quikstart/ngpt'"):
        load_recipe("quikstart/ngpt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"ngpt"', '"ngtp"'), r"unknown architecture 'ngtp'.*'ngpt'"),
        (("d_model", "d_modle"), r"unknown key 'model.d_modle'.*'d_model'"),
        (("[optim]", "[optimm]"), r"unknown key 'optimm'.*'optim'"),
        (("64", '"64"'), r"'model.d_model' must be an integer"),
        (('"linear"', '"lineal"'), r"'schedule.kind' must be one of"),
        (("[model]", "[model"), "not valid TOML"),
        (('architecture = "ngpt"', ""), "architecture ="),
    ],
)
def test_a_mistake_in_a_recipe_is_one_line_that_names_the_file(recipe, change, message):
    path = recipe(RECIPE.replace(*change))
    with pytest.raises(UserError, match=message) as caught:
        load_recipe(path)
    assert "mine.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_recipes_come_by_paper_small_ones_and_the_baseline_first_and_ablations_last():
    groups = grouped_recipes()
    assert next(iter(groups)) == "quickstart"
    assert sorted(name for names in groups.values() for name in names) == list(recipe_names())
    names = groups["angpt2025"]
    first = [f"angpt2025/{arm}-{size}" for size in ("32m", "62m") for arm in ARMS]
    assert names[:6] == first
    assert names.index("angpt2025/gpt-plus-1b") > names.index("angpt2025/ngpt-0.5b")
    assert all(map(is_ablation, names[18:]))
    assert not any(map(is_ablation, names[:18]))


def test_a_recipe_s_first_sentence():
    said = first_sentence("angpt2025/gpt-plus-32m")
    assert said == "GPT+ 32M of the anGPT paper (arXiv 2505.22014)"
    assert all(map(first_sentence, recipe_names()))


def test_a_recipe_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        load_recipe(tmp_path / "none.toml")


@pytest.mark.parametrize("key", ["steps", "batch_tokens", "micro_batch", "log_every", "save_every"])
def test_numbers_that_cannot_be_are_refused_by_name(key):
    with pytest.raises(UserError, match=f"train.{key}"):
        TrainConfig(**{key: -1})


def test_a_batch_that_no_machine_comes_to_the_end_of_is_refused():
    assert TrainConfig(batch_tokens=2**30).batch_tokens == 2**30
    with pytest.raises(UserError, match="batch_tokens must be at most 1,073,741,824: 100,000,000,"):
        TrainConfig(batch_tokens=10**14)


def test_the_keys_that_may_change_on_resume_exist():
    keys = set(flatten(to_dict(run_config_type("gpt")())))
    assert keys >= FREE_KEYS
    assert all(any(key.startswith(table) for key in keys) for table in FREE_TABLES)


ANGPT = [n for n in recipe_names() if n.startswith("angpt2025/")]


def parameters(config):
    return sum(count_by_role(lay_out(config.architecture, config.model)).values())


@pytest.mark.parametrize("name", ANGPT)
def test_beta2_is_99_below_100m_parameters_as_in_the_angpt_paper(name):
    config = load_recipe(name)
    assert config.optim.beta2 == (0.99 if parameters(config) < 100e6 else 0.95)


BUDGETS = [
    n for n in recipe_names() if re.match(r"angpt2025/[^/]*$|unitsphere/.*-([\d.]+b|\d{2,}m)", n)
]


@pytest.mark.parametrize("name", BUDGETS)
def test_a_budget_is_20_tokens_a_parameter(name):
    config = load_recipe(name)
    tokens = config.train.steps * config.train.batch_tokens
    assert tokens == pytest.approx(20 * parameters(config), rel=0.01)


def test_a_recipe_sets_optimizer_and_constraint(recipe):
    text = RECIPE.replace("lr = 2e-2", 'name = "muon"\nadam_lr = 3e-3')
    text += '[optim.constraint]\nkind = "cpr"\n[optim.constraint.cpr]\nkappa = "Kappa-IP"\n'
    optim = load_recipe(recipe(text)).optim
    assert (optim.name, optim.adam_lr, optim.constraint.kind) == ("muon", 3e-3, "cpr")
    assert optim.constraint.cpr.kappa == "Kappa-IP"
    with pytest.raises(UserError, match=r"'optim.constraint.kind' must be one of"):
        load_recipe(recipe(text.replace('"cpr"', '"cube"')))


def test_a_budget_of_tokens_holds_where_the_batch_is_set_by_an_option(recipe, capsys):
    name = recipe(f"{RECIPE}[train]\ntokens = 10e3\nbatch_tokens = 1024\n")
    assert load_recipe(name).train.steps == 10
    said = {
        "--train.batch_tokens 2048": "5 steps",
        "--train.batch_tokens 2048 --train.steps 10": "10 steps",
        "--train.batch_tokens 2048 --train.tokens 5e3": "2 steps",
    }
    for words, steps in said.items():
        assert main(["train", str(name), "--schedule.area", *words.split()]) == 0
        assert f"learning rate of {steps}" in capsys.readouterr().out


def test_tokens_take_the_place_of_steps_and_the_later_layer_of_a_recipe_counts(recipe, tmp_path):
    batch = "batch_tokens = 1024\n"
    (tmp_path / "first.toml").write_text(f"{RECIPE}[train]\ntokens = 10e3\n{batch}")
    assert load_recipe(tmp_path / "first.toml").train == TrainConfig(steps=10, batch_tokens=1024)
    assert load_recipe(recipe('base = "first.toml"\n[train]\nsteps = 7\n')).train.steps == 7
    assert load_recipe(recipe('base = "first.toml"\n[train]\ntokens = 3e3\n')).train.steps == 3
    config = with_overrides(load_recipe("quickstart/ngpt"), {"train.tokens": 200e6})
    assert (config.train.steps, config.train.tokens) == (97656, None)
    with pytest.raises(UserError, match=r"give train.steps or train.tokens, not both"):
        load_recipe(recipe(f"{RECIPE}[train]\nsteps = 7\ntokens = 3e3\n"))
    with pytest.raises(UserError, match=r"train.tokens must be a number above 0"):
        TrainConfig(tokens=0.0)
    with pytest.raises(UserError, match=r"1,000 training tokens are less than a step of 2,048"):
        with_overrides(load_recipe("quickstart/ngpt"), {"train.tokens": 1000})
