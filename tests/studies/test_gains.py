"""Differences and speedups of arms whose speed is known."""

import json
from types import SimpleNamespace

import pytest
from studies.documents import BUDGETS, played

from unitsphere.studies.core.statistics import paired
from unitsphere.studies.gains import statement


def test_known_speedups_are_recovered_in_tokens_steps_flops_and_time(tmp_path):
    found = played(tmp_path, {"gpt": 1.0, "ngpt": 1.5}, pace={"gpt": 1000.0, "ngpt": 800.0})
    (row,) = found["speedups"]
    for key in ("tokens", "steps", "flops"):
        assert row[key]["median"] == pytest.approx(1.5, rel=0.05)
        assert row[key]["low"] <= row[key]["median"] <= row[key]["high"]
    assert row["time"]["median"] == pytest.approx(1.5 * 0.8, rel=0.05)
    assert row["to"]["tokens"] == BUDGETS[-1]
    assert row["seeds"] == 3
    assert "behind" not in row
    first, *rest = row["by_budget"]
    assert first["tokens"] == BUDGETS[0]
    assert (first["median"], first["reason"]) == (None, "reached before the smallest budget")
    assert [each["median"] for each in rest] == pytest.approx([1.5, 1.5], rel=0.05)
    json.dumps(found, allow_nan=False)


def test_a_larger_model_and_a_larger_batch_change_flops_and_steps(tmp_path):
    larger = {"ngpt": {"model.n_layers": 3, "train.batch_tokens": 128}}
    found = played(tmp_path, {"gpt": 1.0, "ngpt": 1.5}, changes=larger)
    flops = [found["arms"][arm]["flops_per_token"] for arm in ("gpt", "ngpt")]
    assert flops[1] > 1.2 * flops[0]
    (row,) = found["speedups"]
    assert row["flops"]["median"] == pytest.approx(1.5 * flops[0] / flops[1], rel=0.05)
    assert row["steps"]["median"] == pytest.approx(1.5 * 2, rel=0.05)
    assert "parameters" in [flag["name"] for flag in found["flags"]]


def test_what_was_tuned_to_another_value_at_another_budget_has_no_one_ratio(tmp_path):
    arms = {"gpt": 1.0, "wide": 1.5, "long": 1.5}
    last = {"wide": {"train.batch_tokens": 128}, "long": {"model.n_layers": 3}}
    found = played(tmp_path, arms, last=last)
    for arm, key, other in (("wide", "steps", "flops"), ("long", "flops", "steps")):
        (row,) = [row for row in found["speedups"] if row["arm"] == arm]
        assert row[other]["median"] == row["tokens"]["median"] == pytest.approx(1.5, rel=0.05)
        assert row[key]["median"] is None
        assert "at other budgets" in row[key]["reason"]
    steps = [budget["steps"] for budget in found["arms"]["wide"]["budgets"]]
    assert steps == [384 // 64, 768 // 64, 1536 // 128]


def test_losses_of_different_tokenizers_are_not_compared(tmp_path):
    found = played(
        tmp_path, {"gpt": 1.0, "ngpt": 1.5}, changes={"ngpt": {"data.tokenizer": "bpe:300"}}
    )
    (row,) = found["speedups"]
    for key in ("tokens", "steps", "flops", "time"):
        assert row[key]["median"] is None
        assert "another tokenizer" in row[key]["reason"]
    for row in found["differences"]:
        assert row["loss"] is None
        assert row["statement"].endswith("read bits per byte")
    assert found["arms"]["ngpt"]["budgets"][-1]["bits_per_byte"] is not None


def test_a_slower_arm_is_not_reached_and_how_far_behind_is_said(tmp_path):
    (row,) = played(tmp_path, {"gpt": 1.0, "slow": 1 / 1.4})["speedups"]
    for key in ("tokens", "steps", "flops", "time"):
        assert (row[key]["median"], row[key]["low"], row[key]["high"]) == (None, None, None)
        assert row[key]["reason"] == "not reached within the budgets"
    assert row["behind"]["median"] == pytest.approx(1.4, rel=0.05)


def test_an_arm_that_is_there_before_its_smallest_budget_is_not_behind(tmp_path):
    (row,) = played(tmp_path, {"gpt": 1.0, "fast": 100.0})["speedups"]
    assert row["tokens"]["reason"] == "reached before the smallest budget"
    assert "behind" not in row


def test_a_clear_difference_is_significant_and_said_in_words(tmp_path):
    found = played(tmp_path, {"gpt": 1.0, "ngpt": 1.5})
    last = found["differences"][-1]
    assert last["loss"]["mean"] < 0
    assert last["loss"]["p"] < 0.05
    assert last["loss"]["low"] <= last["loss"]["mean"] <= last["loss"]["high"]
    assert last["statement"].startswith("ngpt against gpt at 1,536 tokens: loss lower by ")
    assert "paired t-test over 3 seeds, p = " in last["statement"]
    assert last["statement"].endswith(": more than the seeds explain")


def test_noise_is_called_noise(tmp_path):
    found = played(tmp_path, {"gpt": 1.0, "same": 1.0}, noise=0.02)
    statement = found["differences"][-1]["statement"]
    assert statement.endswith("no more than the seeds may explain")


def test_several_arms_are_corrected_for(tmp_path):
    found = played(tmp_path, {"gpt": 1.0, "a": 1.2, "b": 1.4, "c": 1.0})
    rows = [row for row in found["differences"] if row["tokens"] == BUDGETS[-1]]
    assert [row["arm"] for row in rows] == ["a", "b", "c"]
    assert all(row["loss"]["p_corrected"] >= row["loss"]["p"] for row in rows)
    assert "corrected for 3 arms" in rows[0]["statement"]
    assert "95% interval of only this arm" in rows[0]["statement"]


def test_a_baseline_that_gets_worse_is_flagged_and_its_target_is_what_is_asked_for(tmp_path):
    found = played(tmp_path, {"gpt": 1.0, "ngpt": 1.5}, worse={"gpt": 1.0})
    last = [budget["loss"] for budget in found["arms"]["gpt"]["budgets"]][1:]
    (rising,) = [flag["text"] for flag in found["flags"] if flag["name"] == "rising"]
    assert rising.startswith(f"gpt: {last[1]:.4f} after 1,536 tokens, {last[0]:.4f} after 768")
    assert found["speedups"][0]["to"] == {"tokens": 768, "loss": pytest.approx(sum(last) / 2)}


def test_of_one_seed_nothing_is_said(tmp_path):
    found = played(tmp_path, {"gpt": 1.0, "ngpt": 1.5}, seeds=(4,))
    assert found["differences"][-1]["loss"]["p"] is None
    assert "in one seed, nothing can be said" in found["differences"][-1]["statement"]
    tokens = found["speedups"][0]["tokens"]
    assert tokens["median"] == pytest.approx(1.5, rel=0.05)
    assert (tokens["low"], tokens["reason"]) == (None, "no interval: one seed")
    assert found["flags"][0]["name"] == "one-seed"


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ([0.25, -0.25], "higher by 0.0000 (95% interval -3.1766 to 3.1766;"),
        ([0.25, 0.5], "higher by 0.3750 (95% interval -1.2133 to 1.9633;"),
        ([-0.25, -0.5], "lower by 0.3750 (95% interval -1.2133 to 1.9633;"),
    ],
)
def test_the_interval_is_that_of_the_side_that_is_named(differences, said):
    found = SimpleNamespace(baseline="gpt", tokens=lambda *_: 1000, other_tokens=lambda _: None)
    test = paired([0.0, 0.0], differences)
    assert said in statement(found, "ngpt", 1000, test, {"ngpt": test.p})
