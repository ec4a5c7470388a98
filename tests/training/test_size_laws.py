"""The laws of optim.transfer against what the papers say, and what any such law must do."""

import itertools
import math
from functools import partial
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unitsphere.errors import UserError
from unitsphere.training.by_size import (
    BaseConfig,
    BaseRatesConfig,
    Group,
    Law,
    Moved,
    Ratios,
    Weights,
    branch_by_depth,
    rate_by_batch,
    rate_by_depth,
    rate_by_tokens,
    rate_by_width,
    rate_factor,
    s_z_by_width,
    stored_scale,
)

LAWS = get_args(Law)
CASES = list(itertools.product(LAWS, get_args(Weights), get_args(Group), get_args(Moved)))
RATIOS = st.floats(1e-3, 1e3)


def test_nu_is_the_paper_s_table():
    # d 102·8 -> 102·40, L 8 -> 128, steps 80,000 -> 10,000: νGPT §3.1 and Table 1
    m_w, m_L, m_T = 40 / 8, 128 / 8, 10_000 / 80_000
    eta = m_T ** (-1 / 3)
    m = Ratios(m_w, m_L, m_T, 1.0)
    expected: dict[Group, float] = {
        "embedding": eta * m_w ** (-1 / 2),
        "matrix": eta * m_w ** (-3 / 4),
        "head": eta * m_w ** (-3 / 4),
        "scale": eta,
    }
    for group, factor in expected.items():
        assert rate_factor("nu", "bound", "adam", group, "adam", m) == pytest.approx(
            factor, rel=1e-14
        )
    assert 0.05 * branch_by_depth("nu", m_L) == pytest.approx(0.05 / m_L)
    assert math.sqrt(816) * s_z_by_width(m_w) == pytest.approx(math.sqrt(4080))
    assert stored_scale(816) == 1 / math.sqrt(816)


def test_nu_lowers_a_gpt_s_rates_by_adam_less_over_the_tokens_than_muon_s():
    m = Ratios(1.0, 1.0, 26.7, 1.0)
    groups: tuple[Group, ...] = ("matrix", "embedding", "head", "scale")
    for group in groups:
        adam = rate_factor("nu", "free", "adam", group, "adam", m)
        assert adam == pytest.approx(26.7**-0.15)
        beside_muon = rate_factor("nu", "free", "muon", group, "adam", m)
        assert beside_muon == pytest.approx(26.7 ** (-1 / 3))


def test_nu_has_widths_of_its_own_for_a_gpt_by_adam():
    m = Ratios(3.0, 1.0, 1.0, 1.0)
    expected: dict[Group, float] = {"matrix": 1 / 3, "embedding": 1, "head": 3**-0.5, "scale": 1}
    for group, factor in expected.items():
        found = rate_factor("nu", "free", "adam", group, "adam", m)
        assert found == pytest.approx(factor)
    beside_muon = rate_factor("nu", "free", "muon", "embedding", "adam", m)
    assert beside_muon == pytest.approx(3**-0.5)


def test_the_batch_raises_every_rate_but_nu_s_of_a_gpt_by_adam():
    assert rate_by_batch("nu", "bound", "adam", 16.0) == 4
    assert rate_by_batch("nu", "free", "muon", 16.0) == 4
    assert rate_by_batch("hyperp", "free", "adam", 16.0) == 4
    assert rate_by_batch("nu", "free", "adam", 16.0) == 1


def test_hyperp_is_its_code():
    # η = η₀·√(B/2²¹)·√(8/L)·(T/T₀)^−0.32 with T₀ = 1.04e10, for MuonH and AdamH, at any width
    batch, depth, tokens = 2**22, 24, 1e11
    eta = math.sqrt(batch / 2**21) * math.sqrt(8 / depth) * (tokens / 1.04e10) ** -0.32
    m = Ratios(3.0, depth / 8, tokens / 1.04e10, batch / 2**21)
    steps: dict[Group, Moved] = {"matrix": "hyperball", "head": "hyperball", "embedding": "adam"}
    for group, moved in steps.items():
        found = rate_factor("hyperp", "free", "hyperball", group, moved, m)
        assert found == pytest.approx(eta, rel=1e-14)
    branches = math.sqrt(2 * 8) / math.sqrt(2 * depth)  # 1/√(2L), divided by the base's
    assert branch_by_depth("hyperp", m.depth) == pytest.approx(branches)


def test_hyperp_s_own_fit_of_the_best_rate_is_followed():
    best = [24.27 * tokens**-0.320 for tokens in (1e10, 1.66e11)]
    assert rate_by_tokens("hyperp", "free", "hyperball", "matrix", 16.6) == pytest.approx(
        best[1] / best[0]
    )


def test_hyperp_s_table_has_the_horizon_on_matrices_only():
    assert rate_by_tokens("hyperp-paper", "free", "hyperball", "matrix", 4.0) == pytest.approx(
        4**-0.32
    )
    assert rate_by_tokens("hyperp-paper", "free", "hyperball", "head", 4.0) == 1
    others: tuple[Group, ...] = ("embedding", "head")
    for group in others:
        factor = rate_by_width("hyperp-paper", "free", "adam", group, "adam", 4.0)
        assert factor == pytest.approx(1 / math.sqrt(4))


@pytest.mark.parametrize("law", LAWS)
def test_a_step_of_muon_keeps_its_singular_values(law):
    # match_rms_adamw: all are lr·0.2·√max(out, in), and max grows with the width
    by_width = partial(rate_by_width, law, "free")
    at = {d: 0.2 * math.sqrt(d) * by_width("muon", "matrix", "muon", d) for d in (1, 16)}
    assert at[1] == pytest.approx(at[16])
    assert by_width("muon-original", "matrix", "muon-original", 16.0) == 1


@pytest.mark.parametrize(("law", "weights", "group", "moved"), CASES)
def test_the_base_is_left_as_it_is(law, weights, group, moved):
    assert rate_factor(law, weights, moved, group, moved, Ratios(1, 1, 1, 1)) == 1


@given(st.sampled_from(CASES), st.lists(RATIOS, min_size=8, max_size=8))
def test_two_transfers_are_one(case, sizes):
    first, second = Ratios(*sizes[:4]), Ratios(*sizes[4:])
    both = Ratios(*(a * b for a, b in zip(sizes[:4], sizes[4:], strict=True)))
    law, weights, group, moved = case
    a, b, whole = (rate_factor(law, weights, moved, group, moved, m) for m in (first, second, both))
    assert a * b == pytest.approx(whole, rel=1e-9)


@given(st.sampled_from(CASES), RATIOS, st.floats(1.01, 10))
def test_larger_models_and_longer_runs_never_raise_a_rate_nor_larger_batches_lower_it(
    case, size, more
):
    law, weights, group, moved = case
    wider, narrower = (
        rate_by_width(law, weights, moved, group, moved, m_w) for m_w in (size * more, size)
    )
    assert wider <= narrower
    assert rate_by_depth(law, size * more) <= rate_by_depth(law, size)
    longer, shorter = (
        rate_by_tokens(law, weights, moved, group, m_T) for m_T in (size * more, size)
    )
    assert longer <= shorter
    assert branch_by_depth(law, size * more) < branch_by_depth(law, size)
    bigger, smaller = (rate_by_batch(law, weights, moved, m_B) for m_B in (size * more, size))
    assert bigger >= smaller


def test_a_base_of_impossible_numbers_is_refused():
    with pytest.raises(UserError, match=r"optim.base.width must be a number above 0: 0"):
        BaseConfig(width=0)
    with pytest.raises(UserError, match=r"optim.base.rates.head must be a number above 0: -1"):
        BaseConfig(rates=BaseRatesConfig(head=-1.0))
