"""optim.transfer in configs: what is open, what the user says, and what a run folder keeps."""

import json
import math
from pathlib import Path

import pytest
from tiny_recipe import TEXT, tiny_recipe

from unitsphere.cli import main
from unitsphere.config import differences, flatten, to_dict
from unitsphere.errors import UserError
from unitsphere.studies.core.plan import arm_config, at_budget, final_run, own_rate, with_overrides
from unitsphere.studies.core.spec import ArmSpec, Study
from unitsphere.training.recipes import config_from, load_recipe, recipe_names
from unitsphere.training.resolve import resolve
from unitsphere.training.transfer import KEYS, OPTIMIZERS, advice, closed, reason

NU = {"optim.transfer": "nu"}
LARGER = {**NU, "model.d_model": 512, "model.n_layers": 16, "train.tokens": 8 * 983_040}
WITH_BASE = [n for n in recipe_names() if load_recipe(n).optim.base.lr is not None]


def changed(name, keys):
    return closed(with_overrides(load_recipe(name), keys))


def again(config):
    """The config as a run's config.json has it."""
    return config_from(json.loads(json.dumps(to_dict(config))), "config.json")


def test_the_small_recipes_have_a_base():
    small = {"quickstart/ngpt", "quickstart/angpt", "quickstart/gpt-plus"}
    assert small | {"unitsphere/gpt-plus-muon-1m", "unitsphere/best-1m"} <= set(WITH_BASE)


@pytest.mark.parametrize("name", WITH_BASE)
def test_a_base_changes_nothing_without_a_law_and_is_taken_at_its_own_sizes(name):
    config = load_recipe(name)
    base, table = config.optim.base, to_dict(config)
    without = {**table, "optim": {k: v for k, v in table["optim"].items() if k != "base"}}
    assert differences(config_from(without, ""), config) == [
        f"optim.base.{key}: None -> {value!r}"
        for key, value in sorted(flatten(to_dict(base)).items())
        if value is not None
    ]
    at_base = {
        **NU,
        "model.d_model": base.width,
        "model.n_layers": base.depth,
        "train.batch_tokens": base.batch_tokens,
        "train.tokens": base.tokens,
    }
    on, off = changed(name, at_base), changed(name, {**at_base, "optim.transfer": "none"})
    lines = {line.partition(":")[0] for line in differences(off, on)}
    assert lines <= {"optim.transfer", "optim.lr", *(f"optim.rates.{r}" for r in RATES)}
    assert on.optim.lr == base.lr
    assert on.model == off.model


RATES = ("embedding", "head", "scale")


def test_ngpt_at_another_size():
    config = changed("quickstart/ngpt", LARGER)
    assert config.optim.lr == pytest.approx(1e-2 * 4**-0.75 / 2)
    rates = config.optim.rates
    assert config.optim.lr * rates.embedding == pytest.approx(1e-2 * 4**-0.5 / 2)
    assert config.optim.lr * rates.scale == pytest.approx(1e-2 / 2)
    assert rates.head == 1
    assert config.model.alpha.init == pytest.approx(1 / 16)
    assert config.model.s_z.init == pytest.approx(math.sqrt(512))
    scales = [getattr(config.model, name).scale for name in ("alpha", "s_qk", "s_z")]
    assert scales == [1 / math.sqrt(128)] * 3


def test_numbers_without_a_form_are_those_of_the_base():
    config = changed("quickstart/angpt", LARGER)
    assert config.model.alpha.init == pytest.approx(0.05 * 4 / 16)
    assert config.model.s_z.init == pytest.approx(2)
    assert config.model.alpha.scale == 0.01


def test_gpt_plus_with_muon():
    config = changed("unitsphere/gpt-plus-muon-1m", LARGER)
    assert config.optim.lr == pytest.approx(4e-3 / 2 / 2)
    assert config.optim.lr * config.optim.rates.embedding == pytest.approx(1e-2 / 2 / 2)
    assert config.optim.lr * config.optim.rates.scale == pytest.approx(1e-2 / 2)
    assert config.model.branch == pytest.approx(1 / 4)
    deep = changed("unitsphere/gpt-plus-muon-1m", {**LARGER, "optim.transfer": "hyperp"})
    assert deep.model.branch == pytest.approx(1 / 2)
    held = {"optim.name": "muonh", "optim.weight_decay": 0.0, "optim.base.name": "muonh"}
    held = {**LARGER, **held, "optim.transfer": "hyperp"}
    relative = changed("unitsphere/gpt-plus-muon-1m", held)
    assert relative.optim.lr == pytest.approx(4e-3 * 8**-0.32 / 2)


@pytest.mark.parametrize("name", ["quickstart/gpt-plus", "unitsphere/gpt-plus-muon-1m"])
@pytest.mark.parametrize("batch", [2048, 8192])
def test_a_whole_run_decays_as_its_base_does(name, batch):
    """The sum of lr · weight_decay over the steps is the base's (arXiv 2405.13698)."""
    steps = {**NU, "train.steps": 3000, "train.batch_tokens": batch, "model.d_model": 256}
    config = changed(name, steps)
    whole = 4e-3 * 0.1 * (983_040 // 2048)
    assert config.optim.lr * config.optim.weight_decay * 3000 == pytest.approx(whole)
    assert changed(name, {**steps, "optim.weight_decay": 0.3}).optim.weight_decay == 0.3
    mine = changed(name, {**steps, "optim.lr": 1e-3})
    assert mine.optim.weight_decay * 1e-3 * 3000 == pytest.approx(whole)
    assert changed("quickstart/ngpt", steps).optim.weight_decay == 0


def test_what_the_user_says_wins_and_the_line_says_so(tmp_path):
    config = with_overrides(load_recipe("quickstart/ngpt"), LARGER)
    assert (reason(config) or "").startswith("optim.lr 0.001768 by optim.transfer nu: 0.01 of")
    given = with_overrides(config, {"optim.lr": 3e-3, "model.alpha.init": 0.2})
    assert (given.optim.lr, given.model.alpha.init) == (3e-3, 0.2)
    assert given.optim.rates == config.optim.rates
    assert "0.003 as given; optim.transfer nu would take 0.001768" in (reason(given) or "")
    mine = tmp_path / "mine.toml"
    mine.write_text('base = "quickstart/ngpt"\n[optim]\nlr = 5e-3\ntransfer = "nu"\n')
    assert load_recipe(mine).optim.lr == 5e-3
    mine.write_text('base = "quickstart/ngpt"\n[model]\nd_model = 512\n[optim]\ntransfer = "nu"\n')
    assert load_recipe(mine).optim.lr == pytest.approx(1e-2 * 4**-0.75 * 2 ** (1 / 3))
    off = with_overrides(config, {"optim.transfer": "none"})
    assert (off.optim.lr, off.model.alpha.scale) == (1e-2, None)
    assert reason(off) is None


@pytest.mark.parametrize("name", ["quickstart/ngpt", "unitsphere/gpt-plus-muon-1m"])
def test_what_was_resolved_is_read_back_and_never_transferred_again(name):
    config = changed(name, LARGER)
    assert again(config) == config
    assert closed(again(config)) == config
    assert reason(again(config)) == reason(config)
    larger = with_overrides(again(config), {"model.d_model": 1024})
    assert larger.optim.lr == config.optim.lr
    found = flatten(to_dict(config))
    assert all(type(found[key]) in (float, type(None)) for key in KEYS if key in found)


def test_what_has_no_base_or_no_law_is_refused_in_a_line():
    with pytest.raises(UserError, match=r"needs the run whose rate was tuned: set optim.base"):
        with_overrides(load_recipe("angpt2025/ngpt-32m"), NU)
    keys = {f"optim.base.{k}": v for k, v in to_dict(load_recipe(WITH_BASE[0]).optim.base).items()}
    del keys["optim.base.rates"]
    with pytest.raises(UserError, match=r"no law for architecture normformer, only for ngpt"):
        with_overrides(load_recipe("quickstart/normformer"), {**NU, **keys})
    with pytest.raises(UserError, match=r"no law for optim.name soap, only for adam"):
        with_overrides(load_recipe("quickstart/ngpt"), {**NU, "optim.name": "soap"})


def test_a_base_says_which_optimizer_it_was_tuned_with():
    for config in map(load_recipe, WITH_BASE):
        assert config.optim.base.name == config.optim.name


SMALL = ["quickstart/ngpt", "quickstart/gpt-plus", "unitsphere/gpt-plus-muon-1m"]


@pytest.mark.parametrize("name", SMALL)
def test_another_optimizer_does_not_take_the_rates_of_a_base(name):
    config = load_recipe(name)
    for other, kind in OPTIMIZERS.items():
        keys = {**NU, "optim.name": other, "optim.weight_decay": 0.0}
        if kind == OPTIMIZERS[config.optim.name]:
            assert with_overrides(config, keys).optim.lr == with_overrides(config, NU).optim.lr
        else:
            with pytest.raises(UserError, match=rf"are of {config.optim.name} .*is {other}: set"):
                with_overrides(config, keys)


@pytest.mark.parametrize("law", ["none", "nu"])
@pytest.mark.parametrize("key", ["model.d_model", "model.n_layers"])
@pytest.mark.parametrize("name", ["quickstart/gpt-plus", "quickstart/angpt"])
def test_sizes_below_1_are_refused_before_a_law_divides_by_them(name, key, law):
    for value in (0, -64):
        with pytest.raises(UserError, match=rf"{key} must be at least 1: {value}"):
            changed(name, {key: value, "optim.transfer": law})


def test_a_run_far_from_its_base_is_told_of_the_law():
    recipe = load_recipe("quickstart/ngpt")
    assert advice(recipe) is None
    line = advice(with_overrides(recipe, {**LARGER, "optim.transfer": "none"})) or ""
    assert "optim.lr 0.01 is the recipe's; rates were tuned at width 128, depth 4" in line
    assert "--optim.transfer nu would take 0.001768 here" in line
    longer = {"train.tokens": 8 * 983_040}
    line = advice(with_overrides(load_recipe("quickstart/gpt-plus"), longer)) or ""
    assert "would take 0.002928 and optim.weight_decay 0.0171 here" in line
    mine = with_overrides(load_recipe("quickstart/gpt-plus"), {**longer, "optim.weight_decay": 0.2})
    assert "would take 0.002928 here" in (advice(mine) or "")
    for keys in (
        LARGER,
        {"train.tokens": 2 * 983_040},
        {"model.d_model": 512, "optim.lr": 1e-3},
        {"model.d_model": 512, "optim.name": "muon"},
    ):
        assert advice(with_overrides(recipe, keys)) is None
    assert advice(with_overrides(recipe, {"train.tokens": 4 * 983_040}))
    assert advice(with_overrides(load_recipe("angpt2025/ngpt-32m"), {"model.d_model": 512})) is None


def test_an_arm_of_a_study_starts_from_the_rate_of_its_budget(tmp_path):
    arms = {"own": ArmSpec("quickstart/ngpt"), "given": ArmSpec("quickstart/ngpt", lr=3e-3)}
    study = Study(arms=arms, set={**NU, "data.cache": str(tmp_path)})
    rate = 1e-2 * 8 ** (-1 / 3)
    assert own_rate(study, "own", 8 * 983_040) == pytest.approx(rate)
    assert own_rate(study, "given", 8 * 983_040) == 3e-3
    assert at_budget(study, "own", 8 * 983_040).optim.lr == pytest.approx(rate)
    run = final_run(tmp_path, study, "own", 8 * 983_040, 2 * rate, seed=0)
    assert run.config.optim.lr == 2 * rate  # a rate beside the transferred one
    assert arm_config(study, "own").optim.lr == pytest.approx(1e-2 * 2 ** (1 / 3))


BASE = """
[optim]
transfer = "nu"
[optim.base]
width = 16
depth = 1
tokens = 128
batch_tokens = 128
lr = 1e-2
"""


def test_a_run_says_its_rate_keeps_it_and_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT * 200)
    text = tiny_recipe(save_every=1)
    Path("tiny.toml").write_text(text.replace("[train]", f"{BASE}\n[train]"))
    rate = 1e-2 * 2**-0.75 * 2 ** (-1 / 3)
    for options in (["--dry_run"], ["--out", "run"]):
        assert main(["train", "tiny.toml", *options]) == 0
        why = "optim.lr 0.004719 by optim.transfer nu: 0.01 of the base run"
        assert why in capsys.readouterr().err
    kept = json.loads(Path("run/config.json").read_text())
    assert kept["optim"]["lr"] == pytest.approx(rate)
    assert main(["train", "tiny.toml", "--out", "run"]) == 0
    assert "is finished" in capsys.readouterr().err
    # Another length is another rate by the recipe; the run folder keeps its own.
    assert main(["train", "tiny.toml", "--train.steps", "3", "--out", "run"]) == 2
    assert "another config (optim.lr: 0.0047" in capsys.readouterr().err
    constant = ["--schedule.kind", "constant"]
    assert main(["train", "tiny.toml", "--out", "flat", *constant]) == 0
    assert main(["train", "flat", "--train.steps", "3"]) == 0
    kept = json.loads(Path("flat/config.json").read_text())
    assert kept["optim"]["lr"] == pytest.approx(rate)
    assert main(["train", "tiny.toml", "--init", "run", "--out", "next"]) == 0
    assert resolve(load_recipe("next"), None).optim.lr == pytest.approx(rate)
    capsys.readouterr()
    assert main(["params", "tiny.toml", "--show", "--train.steps", "1"]) == 0
    shown = capsys.readouterr().out
    assert "derived: optim.transfer nu (default)" in shown
    assert "optim.lr 0.005946 by optim.transfer nu" in shown
    off = ["--optim.transfer", "none"]
    for verb in (["params", "tiny.toml", "--show"], ["train", "tiny.toml", "--dry_run"]):
        assert main([*verb, *off]) == 0
        said = capsys.readouterr()
        assert "--optim.transfer nu would take 0.004719 here" in said.out + said.err
