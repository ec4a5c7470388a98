"""What a compiled block may move through memory: a lost fusion fails here, without a GPU.

When a change moves less, lower the budget; when torch schedules otherwise, measure again
(`python tests/bench/traffic.py`) and say in the commit what changed.
"""

import os

import pytest
import torch
from torch._inductor import config as inductor_config
from traffic import ARMS, arm_traffic

BUDGETS = {
    "angpt": 176.6,
    "dyt": 178.6,
    "gpt": 158.8,
    "gpt-plus": 171.6,
    "lnscaling": 171.6,
    "ngpt": 188.1,
    "normformer": 143.9,
    "rezero": 154.8,
}
"""Hidden states read and written per token by a block, forward and backward, with torch 2.13."""
MARGIN = 0.03
STALE = 0.15
TORCH = "2.13"

pytestmark = pytest.mark.skipif(
    not torch.__version__.startswith(TORCH), reason=f"the budgets are those of torch {TORCH}"
)


def test_every_architecture_has_a_budget():
    assert set(BUDGETS) == set(ARMS)


# Made of the operations of gpt-plus: a norm or two fewer or more, or a factor. The long form counts
# them too.
LIKE_GPT_PLUS = {"gpt", "lnscaling", "normformer", "rezero"}
COUNTED = sorted(BUDGETS if os.environ.get("TORTURE") == "long" else {*BUDGETS} - LIKE_GPT_PLUS)


@pytest.mark.parametrize("arm", COUNTED)
def test_a_block_moves_no_more_than_its_budget(arm):
    traffic = arm_traffic(arm)
    moved = traffic.forward + traffic.backward
    assert moved <= BUDGETS[arm] * (1 + MARGIN), "a fusion was lost, or there is more to move"
    assert moved >= BUDGETS[arm] * (1 - STALE), "it moves less now: lower its budget"


def test_a_lost_fusion_would_be_noticed():
    with inductor_config.patch(max_fusion_size=1):
        traffic = arm_traffic("gpt-plus")
    assert traffic.forward + traffic.backward > 1.2 * BUDGETS["gpt-plus"]
