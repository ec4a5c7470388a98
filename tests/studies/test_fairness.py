"""Each unfair set-up is refused or flagged by its name."""

import dataclasses
from pathlib import Path

import pytest
from studies.tiny import recipes

from unitsphere.errors import UserError
from unitsphere.studies.core.execute import Record, timing
from unitsphere.studies.core.fairness import (
    REFUSALS,
    check_fair,
    made_on,
    rate_flags,
    run_flags,
    setting_flags,
)
from unitsphere.studies.core.plan import wanted, with_overrides
from unitsphere.studies.core.tune import Tuned
from unitsphere.training.config import RunConfig
from unitsphere.training.corpus import epoch_tokens, open_corpus
from unitsphere.training.forecast import size_of
from unitsphere.training.recipes import load_recipe
from unitsphere.training.resolve import resolve


@pytest.fixture
def recipe(tmp_path) -> str:
    return recipes(tmp_path)[0]


def pair(recipe: str, changes: dict, both: dict | None = None) -> dict[str, RunConfig]:
    """Two arms, the second with some keys changed; its `init` need not be a run."""
    keys = [both or {}, (both or {}) | {key: changes[key] for key in changes if key != "init"}]
    first, second = (wanted(recipe, each, Path("none")) for each in keys)
    return {"arm-0": first, "arm-1": dataclasses.replace(second, init=changes.get("init"))}


UNFAIR = {
    "data": {"data.val_fraction": 0.1},
    "tokenizer": {"data.tokenizer": "bpe:300"},
    "context": {"data.context": 32},
    "batch": {"train.batch_tokens": 128},
    "evaluation": {"train.eval_tokens": 64},
    "precision": {"train.precision": "bf16"},
    "objective": {"objective": "mlm"},
    "weights": {"train.precision": "bf16-storage"},
    "init": {"init": "another-run"},
    "un-annealed": {"schedule.kind": "constant"},
    "start": {"optim.name": "muon", "model.init_std": 0.1, "optim.rates.head": 2.5},
    "tied-rates": {"optim.name": "muon"},
}
NOT_TUNED = {"arm-0": (), "arm-1": ()}


def test_every_refusal_has_a_case():
    assert set(UNFAIR) == set(REFUSALS)


@pytest.mark.parametrize("name", UNFAIR)
def test_it_is_refused_by_its_name_and_flagged_where_it_is_allowed(recipe, name):
    configs = pair(recipe, UNFAIR[name])
    with pytest.raises(UserError, match=rf"unfair: .*{name}: .*arm-1.*allow = \[.*\"{name}\"") as e:
        check_fair(configs, "arm-0", [], tuned=NOT_TUNED)
    assert "\n" not in str(e.value)
    implied = [flag for flag in REFUSALS if f'"{flag}"' in str(e.value)]
    flags = check_fair(configs, "arm-0", implied, tuned=NOT_TUNED)
    assert name in [flag.name for flag in flags]


def test_a_free_baseline_by_adamw_with_one_rate_for_all_roles_is_refused(recipe):
    plain = pair(recipe, {})

    def named(configs, baseline="arm-0", tuned=NOT_TUNED, allow=()):
        return [flag.name for flag in check_fair(configs, baseline, allow, tuned=tuned)]

    with pytest.raises(UserError, match=r"tied-rates: arm-0 trains embedding, head and scales"):
        named(plain)
    assert named(plain, allow=["tied-rates"]) == ["tied-rates"]
    assert named(pair(recipe, {"optim.rates.head": 4.0}), "arm-1") == []
    assert named(pair(recipe, {"optim.constraint.kind": "hyperball"}), "arm-1") == []
    assert named(plain, tuned=NOT_TUNED | {"arm-0": ("optim.rates.*",)}) == []


def test_a_free_baseline_by_adamw_with_a_wide_start_is_refused(recipe):
    """Only the baseline: 0.05 nats at the best of its rates, rates by role given (start-64)."""
    configs = pair(recipe, {"model.init_std": 0.05}, {"optim.rates.head": 2.5})
    assert check_fair(configs, "arm-0", [], tuned=NOT_TUNED) == []
    with pytest.raises(UserError, match=r"start: arm-1 starts its matrices at .*init_std 0\.05"):
        check_fair(configs, "arm-1", [], tuned=NOT_TUNED)
    assert check_fair(configs, "arm-1", [], tuned=NOT_TUNED | {"arm-1": ("model.init_std",)}) == []
    ball = {"model.init_std": 0.05, "optim.constraint.kind": "hyperball"}
    assert check_fair(pair(recipe, ball), "arm-1", ["tied-rates"], tuned=NOT_TUNED) == []


@pytest.mark.parametrize("name", ["muonh", "adamh"])
def test_an_arm_that_keeps_the_norms_of_a_narrow_start_is_refused(recipe, name):
    """0.25 nats at the best of its rates: the head's norm bounds the logits (docs/log.md)."""
    held = {"optim.name": name, "optim.weight_decay": 0.0}

    def found(changes, tuned=NOT_TUNED):
        return check_fair(pair(recipe, held | changes), "arm-0", ["tied-rates"], tuned=tuned)

    with pytest.raises(UserError, match=r"start: arm-1 keeps the norms of .*0\.02"):
        found({})
    assert "start" not in [flag.name for flag in found({"model.init_std": 0.25})]
    tuned = NOT_TUNED | {"arm-1": ("model.init_std",)}
    assert "start" not in [flag.name for flag in found({}, tuned)]


def test_another_vocabulary_is_another_tokenizer(recipe):
    with pytest.raises(UserError, match=r"tokenizer: .*model\.vocab_size 300 against 256"):
        check_fair(pair(recipe, {"model.vocab_size": 300}), "arm-0", [])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schedule.final": 0.5}, "schedule.final 0.5 is above 0.1"),
        ({"schedule.warmup": 6.0}, "the rate falls over 0 of 6 steps"),
        ({"schedule.kind": "wsd", "schedule.decay": 0.04}, r"the rate falls over 0\.24 of 6 steps"),
        ({"schedule.kind": "ramp"}, 'schedule.kind is "ramp"'),
    ],
)
def test_a_rate_that_does_not_come_down_is_refused(recipe, changes, why):
    with pytest.raises(UserError, match=f"un-annealed: arm-1: {why}"):
        check_fair(pair(recipe, changes), "arm-0", [])


def test_arms_that_are_alike_are_fair(recipe):
    configs = pair(recipe, {"model.init_std": 0.1, "optim.lr": 1.0, "schedule.final": 0.1})
    assert check_fair(configs, "arm-0", []) == []
    least = {"schedule.kind": "wsd", "schedule.decay": 0.05, "train.steps": 137}
    assert check_fair(pair(recipe, least), "arm-0", []) == []


@pytest.mark.parametrize("name", ["context", "un-annealed", "start", "tied-rates"])
def test_the_advice_is_to_make_arms_alike_only_where_they_must_be(recipe, name):
    others = [other for other in REFUSALS if other != name]
    with pytest.raises(UserError) as error:
        check_fair(pair(recipe, UNFAIR[name]), "arm-0", others, tuned=NOT_TUNED)
    assert ("make the arms alike" in str(error.value)) == (name == "context")
    assert ("change that" in str(error.value)) == (name != "context")


def test_arms_that_are_alike_and_unfair_are_not_to_be_made_alike(recipe):
    both = pair(recipe, {}, {"schedule.kind": "constant"})
    with pytest.raises(UserError, match=r'arm-1: .* is "constant": change that$'):
        check_fair(both, "arm-0", None)


def test_a_tuned_rate_of_the_router_leaves_the_other_roles_tied(recipe):
    for key, tied in {"optim.rates.router": True, "optim.rates.scale": False}.items():
        tuned = NOT_TUNED | {"arm-0": ("optim.lr", key)}
        flags = check_fair(pair(recipe, {}), "arm-0", ["tied-rates"], tuned=tuned)
        assert [flag.name for flag in flags] == ["tied-rates"] * tied


def test_rates_that_climb_are_no_refusal_where_none_is_annealed(recipe):
    configs = pair(recipe, {}, {"schedule.kind": "ramp"})
    assert check_fair(configs, "arm-0", [], annealed=False) == []
    with pytest.raises(UserError, match="un-annealed"):
        check_fair(configs, "arm-0", [])


def test_an_unknown_name_is_not_allowed(recipe):
    with pytest.raises(UserError, match=r"'allow' knows no 'dta' \(did you mean 'data'"):
        check_fair(pair(recipe, {}), "arm-0", ["dta"])


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("schedule", {"schedule.warmup": 0.5}),
        ("speed", {"train.compile": True}),
        ("speed", {"inspect.every": 5}),
        ("spikes", {"train.on_spike": "skip"}),
        ("average", {"optim.average.kind": "ema"}),
        ("parameters", {"model.d_model": 20}),
    ],
)
def test_settings_that_are_flagged(recipe, name, changes):
    configs = pair(recipe, changes)
    counts = {arm: size_of(config).parameters for arm, config in configs.items()}
    assert [flag.name for flag in setting_flags(configs, counts, "arm-0")] == [name]
    alike = pair(recipe, {})
    same = dict.fromkeys(alike, 1000) | {"arm-1": 1015}
    assert list(setting_flags(alike, same, "arm-0")) == []


def test_weights_in_bf16_are_flagged_though_all_arms_have_them(recipe):
    configs = pair(recipe, {}, {"train.precision": "bf16-storage"})
    assert check_fair(configs, "arm-0", []) == []
    flags = list(setting_flags(configs, dict.fromkeys(configs, 1), "arm-0"))
    assert [flag.name for flag in flags] == ["weights"]


def record(status="finished", **environment) -> Record:
    where = {"device": "cpu", "cpu": "a", "threads": 1, "commit": "c"} | environment
    return Record(None, status, loss=1.0, environment=where, error=None)


TUNED = Tuned(0.1, 64, {0.05: 2.0, 0.1: 1.0, 0.2: 1.5}, at_edge=False)


def names(recipe, seeds=(0, 1), budgets=(64,), rates=None, records=None) -> list[str]:
    configs = pair(recipe, {})
    places = {
        (arm, tokens): dataclasses.replace(TUNED, tokens=tokens)
        for arm in configs
        for tokens in budgets
    }
    runs = {(arm, t, seed): record() for arm, t in places for seed in seeds}
    found = run_flags(configs, budgets, seeds, places | (rates or {}), runs | (records or {}))
    return [flag.name for flag in found]


def test_a_study_that_went_well_has_no_flags(recipe):
    assert names(recipe) == []


def test_what_is_flagged_of_runs(recipe):
    place, run = ("arm-1", 64), ("arm-1", 64, 0)
    assert names(recipe, seeds=[0]) == ["one-seed"]
    edge = dataclasses.replace(TUNED, at_edge=True)
    assert names(recipe, rates={place: edge}) == ["edge"]
    given = Tuned(0.1, 64, {}, at_edge=False)
    assert names(recipe, rates={place: given, ("arm-0", 64): given}) == ["untuned"]
    point = dataclasses.replace(given, trials=[{"params": {}, "status": "finished"}])
    assert names(recipe, rates={place: point, ("arm-0", 64): point}) == ["untuned"]
    assert names(recipe, rates={place: dataclasses.replace(TUNED, tokens=128)}) == ["borrowed"]
    assert names(recipe, rates={place: dataclasses.replace(TUNED, lr=None)}) == ["no-rate"]
    broken = dataclasses.replace(TUNED, errors=("arm-1 tune: the disk is full",))
    assert names(recipe, rates={place: broken}) == ["failed"]
    elsewhere = dataclasses.replace(broken, tokens=128)
    assert names(recipe, rates={place: elsewhere}) == ["failed", "borrowed"]
    twice = {("arm-1", tokens): dataclasses.replace(edge, tokens=64) for tokens in (64, 128)}
    assert names(recipe, budgets=(64, 128), rates=twice) == ["edge", "borrowed"]
    assert names(recipe, records={run: record("diverged")}) == ["diverged"]
    assert names(recipe, records={run: record("failed")}) == ["failed"]
    assert names(recipe, records={run: record(cpu="b")}) == ["hardware"]
    assert names(recipe, records={run: record(commit="d")}) == ["versions"]
    moved = record(resumed=[{"device": "cpu", "cpu": "b", "threads": 1, "commit": "c"}])
    assert names(recipe, records={run: moved}) == ["hardware"]
    assert names(recipe, budgets=(64, 64_000)) == ["repeated"]


def test_a_budget_that_only_one_arm_repeats_is_flagged_with_its_name(recipe):
    """With another tokenizer, which `allow` lets through, the split has another size."""
    configs = pair(recipe, {"data.tokenizer": "bpe:300"})
    sizes = {arm: epoch_tokens(config) for arm, config in configs.items()}
    assert sizes["arm-1"] < sizes["arm-0"]
    budget = sizes["arm-1"] + 1
    place = dataclasses.replace(TUNED, tokens=budget)
    rates = {(arm, budget): place for arm in configs}
    (flag,) = run_flags(configs, [budget], [0, 1], rates, {})
    assert flag.name == "repeated"
    assert flag.text.startswith(f"arm-1: {budget:,} tokens go 1.0 times over ")


def test_pairs_are_repeated_when_there_are_more_than_the_split_has(recipe, tmp_path):
    """A pair counts as data.context tokens of a budget, however short its texts are."""
    source = tmp_path / "pairs.jsonl"
    source.write_text("".join(f'{{"source": "a{n}", "target": "b{n}"}}\n' for n in range(40)))
    keys = {"objective": "seq2seq", "data.source": str(source), "data.cache": str(tmp_path)}
    config = resolve(with_overrides(load_recipe(recipe), keys), None)
    pairs = open_corpus(config).epoch
    size = pairs * config.data.context
    assert list(made_on({"arm-0": config}, [size], [])) == []
    (flag,) = made_on({"arm-0": config}, [size + 1], [])
    assert flag.name == "repeated"
    assert f"over {size:,} training tokens" in flag.text


def test_an_arm_that_was_tuned_by_fewer_rates_is_flagged(recipe):
    """Of one budget only: a grid that grew at another budget says nothing of the arm."""
    four = dataclasses.replace(TUNED, rates={**TUNED.rates, 0.4: None})
    grown = {("arm-1", 64): four}
    assert names(recipe, rates=grown) == ["fewer-runs"]
    (flag,) = rate_flags({("arm-0", 64): TUNED, **grown})
    assert flag.text == "arm-0 at 64 tokens: 3 points have a result, of another arm 4"
    assert names(recipe, rates={("arm-1", 64): dataclasses.replace(four, failed=1)}) == []
    later = {(arm, 128): dataclasses.replace(four, tokens=128) for arm in ("arm-0", "arm-1")}
    assert names(recipe, budgets=(64, 128), rates=later) == []


def test_times_of_different_hardware_are_not_compared():
    assert timing([record(), record()]) == ""
    assert timing([record(), record(threads=2)]) == (
        "runs were timed on different hardware: threads 1 and 2"
    )
