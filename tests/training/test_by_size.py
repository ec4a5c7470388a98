"""Numbers of a model by its width d and depth L."""

import copy
import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unitsphere.cli.settings import read_settings
from unitsphere.cli.train import Train
from unitsphere.config import to_dict
from unitsphere.errors import UserError
from unitsphere.studies.core.plan import arm_config, with_overrides
from unitsphere.studies.core.spec import ArmSpec, Study, Tune
from unitsphere.studies.ladder import LadderStudy, rung_of
from unitsphere.training.by_size import BySize
from unitsphere.training.config import RunConfig
from unitsphere.training.folder import write_config
from unitsphere.training.recipes import config_from, layers, load_recipe, recipe_names
from unitsphere.training.resolve import check_same, config_in, resolve

SMALL = {"vocab_size": 64, "d_model": 16, "n_layers": 2, "n_heads": 2}


def ngpt(**model) -> RunConfig:
    return config_from({"architecture": "ngpt", "model": {**SMALL, **model}}, "here")


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("sqrt(d)", math.sqrt(128)),
        ("1/sqrt(d)", 1 / math.sqrt(128)),
        ("0.5*sqrt(d)", 0.5 * math.sqrt(128)),
        ("2 / L", 2 / 6),
        ("1e-2*d", 1.28),
        ("L", 6.0),
    ],
)
def test_forms(form, value):
    assert BySize(form, 128, 6) == value


WRONG = ["sqrt(n)", "d**2", "sqrt(d)*2", "1/0", "__import__('os')", "-1/L", "sqrt(d)/sqrt(L)", ""]


@pytest.mark.parametrize("text", WRONG)
def test_anything_else_is_refused_in_one_line_with_the_forms(text):
    with pytest.raises(UserError, match=r'^here: model\.s_z\.init: .*"sqrt\(d\)".*"1/L"') as error:
        ngpt(s_z={"init": text})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "kind"),
    [("model.d_model", "an integer"), ("optim.lr", "a number"), ("model.tied", "true or false")],
)
def test_only_numbers_of_the_model_have_forms(key, kind):
    with pytest.raises(UserError, match=f"'{key}' must be {kind}"):
        with_overrides(ngpt(), {key: "sqrt(d)"})


def test_a_number_follows_the_sizes_wherever_they_are_set(tmp_path):
    recipe = load_recipe("quickstart/ngpt")
    assert recipe.model.s_z.init == math.sqrt(128)
    larger = with_overrides(recipe, {"model.d_model": 256, "model.n_layers": 8})
    assert (larger.model.s_z.init, larger.model.alpha.init) == (16, 1 / 8)
    name = str(tmp_path / "mine.json")

    def read(argv):
        return read_settings("train", name, recipe, argv, Train).config

    argv = ["--model.d_model", "64", "--model.alpha.init=3/L", "--model.s-qk.init", "0.5*sqrt(d)"]
    options = read(argv)
    assert (options.model.s_z.init, options.model.alpha.init) == (8, 3 / 4)
    assert options.model.s_qk.init == 4
    numbers = read(["--model.s_z.init", "1/L", "--model.s_z.init", "5"])
    assert numbers.model.s_z.init == 5
    with pytest.raises(UserError, match=r"model\.s_z\.init: 'fast' is neither a number nor a form"):
        read(["--model.s_z.init", "fast"])


def test_a_model_sees_numbers_and_config_json_has_them(tmp_path):
    config = resolve(ngpt(s_z={"init": "sqrt(d)"}, alpha={"init": "1/L"}), None)
    assert {type(config.model.s_z.init), type(config.model.alpha.init)} == {float}
    write_config(tmp_path, config)
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["model"]["s_z"]["init"], written["model"]["alpha"]["init"]) == (4.0, 0.5)
    assert config_in(tmp_path) == config
    model = ngpt(s_z={"init": "sqrt(d)"}).model
    assert copy.deepcopy(model) == pickle.loads(pickle.dumps(model)) == model


def test_each_size_of_a_ladder_has_its_own():
    sizes = {str(d): {"model": {**SMALL, "d_model": d, "n_layers": d // 8}} for d in (16, 64)}
    arm = ArmSpec("quickstart/ngpt", {"model.s_qk.init": "2/L"})
    study = LadderStudy(
        arms={"ngpt": arm}, sizes=sizes, batches=[256, 512, 1024], seeds=[0], tune=Tune(points=3)
    )
    for d, rung in ((d, rung_of(study, "ngpt", str(d))) for d in (16, 64)):
        specs = {"one": study.rung(rung.arm, rung.size, 256)}
        model = arm_config(study.study(specs), "one").model
        assert (model.s_z.init, model.alpha.init) == (math.sqrt(d), 8 / d)
        assert model.s_qk.init == 16 / d


def test_an_arm_of_a_study_that_sets_the_width():
    keys = {"model.d_model": 64, "model.n_heads": 2}
    study = Study(arms={"a": ArmSpec("quickstart/ngpt"), "b": ArmSpec("quickstart/ngpt", keys)})
    found = [arm_config(study, arm).model.s_z.init for arm in ("a", "b")]
    assert found == [math.sqrt(128), 8]


def test_a_run_started_with_the_digits_resumes_with_them(tmp_path):
    """Recipes had 0.0884 for 1/√128 and 11.3137085 for √128."""
    old = ngpt(s_z={"init": 3.46410162}, alpha={"init": 0.333}, d_model=12, n_layers=3)
    write_config(tmp_path, resolve(old, None))
    forms = ngpt(s_z={"init": "sqrt(d)"}, alpha={"init": "1/L"}, d_model=12, n_layers=3)
    saved = config_in(tmp_path)
    check_same(tmp_path, saved, resolve(forms, saved))
    other = ngpt(s_z={"init": "sqrt(d)"}, alpha={"init": "2/L"}, d_model=12, n_layers=3)
    with pytest.raises(UserError, match=r"model\.alpha\.init"):
        check_same(tmp_path, saved, resolve(other, saved))


@pytest.mark.parametrize("name", [n for n in recipe_names() if n.startswith(("quick", "unit"))])
def test_small_recipes_write_no_number_that_goes_with_the_size(name):
    model = load_recipe(name).model
    tables = [table.get("model", {}) for _, table in layers(name)]
    given = [own.get("init_std") for own in tables]
    given += [own.get(key, {}).get("init") for own in tables for key in ("s_z", "alpha")]
    by_size = {model.d_model**0.5, model.d_model**-0.5, 1 / model.n_layers}
    for value in given:
        near = isinstance(value, float) and any(
            math.isclose(value, x, rel_tol=2e-3) for x in by_size
        )
        assert not near, value


FORMS = st.builds(
    lambda factor, sign, size: f"{factor}{sign}{size}",
    st.sampled_from(["1", "0.5", "3", "2e-1"]),
    st.sampled_from(["*", "/"]),
    st.sampled_from(["d", "L", "sqrt(d)", "sqrt(L)"]),
)


@given(FORMS, FORMS, st.integers(1, 300), st.integers(1, 40))
def test_a_resolved_config_is_read_back_as_it_was(s_z, alpha, d, n_layers):
    config = with_overrides(
        ngpt(s_z={"init": s_z}, alpha={"init": alpha, "scale": s_z}),
        {"model.d_model": 2 * d, "model.n_layers": n_layers},
    )
    data = json.loads(json.dumps(to_dict(config)))
    again = config_from(data, "config.json")
    assert again == config
    assert again.model.s_z.init == BySize(s_z, 2 * d, n_layers)
    assert type(again.model.s_z.init) is float
