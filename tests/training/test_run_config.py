"""The config of a run: which of its numbers nothing reads."""

import pytest

from unitsphere.studies.core.plan import with_overrides
from unitsphere.training.config import RunConfig
from unitsphere.training.recipes import load_recipe, recipe_names


def config(**keys: object) -> RunConfig:
    return with_overrides(load_recipe("quickstart/ngpt"), keys)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model.top_k": 3}, "model.top_k 3 is for model.n_experts: it is not used"),
        ({"model.balance": 0.1}, "model.balance 0.1 is for model.n_experts: it is not used"),
        ({"model.bigram_dim": 4}, "model.bigram_dim 4 is for model.bigram_rows: it is not used"),
        (
            {"optim.rates.router": 4.0},
            "optim.rates.router 4.0 is for model.n_experts: it is not used",
        ),
        (
            {"optim.roles.router.beta1": 0.5},
            "optim.roles.router.beta1 0.5 is for model.n_experts: it is not used",
        ),
        (
            {"model.tied": True, "optim.rates.head": 4.0},
            "optim.rates.head 4.0 is for model.tied false: it is not used",
        ),
        (
            {"model.recurrence.conv": 3},
            "model.recurrence.conv 3 is for recurrent model.mixers: it is not used",
        ),
        (
            {"data.mask.fraction": 0.5},
            "data.mask.fraction 0.5 is for objective mlm: it is not used",
        ),
    ],
)
def test_a_number_that_nothing_reads_is_said(keys, said):
    assert config(**keys).unread() == [said]


@pytest.mark.parametrize(
    "keys",
    [
        {"model.n_experts": 4, "model.top_k": 3, "optim.rates.router": 4.0},
        {"model.n_experts": 4, "optim.roles.router.beta1": 0.5, "optim.rates.head": 4.0},
        {"model.bigram_rows": 64, "model.bigram_dim": 4},
        {"model.mixers": "gdn attention", "model.recurrence.conv": 3},
        {"objective": "mlm", "data.mask.fraction": 0.5},
    ],
)
def test_one_that_is_read_is_not(keys):
    assert config(**keys).unread() == []


@pytest.mark.parametrize("name", recipe_names())
def test_no_recipe_has_one(name):
    assert load_recipe(name).unread() == []
