"""Known scaling laws come back from noisy grids; the anGPT paper's printed figures are met."""

import math

import numpy as np
import pytest

from unitsphere.studies.core.statistics import z_test
from unitsphere.studies.laws import (
    Allocation,
    LadderSize,
    Laws,
    allocation,
    fit_laws,
    flops,
    optimum,
    suggest,
    z_tests,
)

DRAWS = 300
LEAST = 0.93
SIZES = [32e6, 62e6, 127e6, 247e6, 506e6]
RATE, RATE_EXPONENT = 1.1, -0.35
BATCH, BATCH_EXPONENT = 20.0, 0.55
LOSS, LOSS_EXPONENT = 30.0, -0.05  # of compute


def held(law, truth: float) -> bool:
    low, high = law.exponent_interval
    return low <= truth <= high


def grid_of(n: float, rng: np.random.Generator) -> dict[float, dict[float, float]]:
    """Runs of a size on a grid of factors 2 that holds the known optimum, losses with noise."""
    best_lr, best_batch = RATE * n**RATE_EXPONENT, BATCH * n**BATCH_EXPONENT
    middle = 2.0 ** round(math.log2(best_batch))
    lowest = LOSS * flops(n, 20 * n) ** LOSS_EXPONENT
    found = {}
    for batch in (middle * 2.0**k for k in range(-1, 2)):
        octaves = math.log2(batch / best_batch)
        # Each batch's rates are moved until the best is in the middle, as in the paper.
        centre = 1e-3 * 2.0 ** round(math.log2(best_lr * 1e3) + octaves / 2)
        for lr in (centre * 2.0**k for k in range(-2, 3)):
            above = 0.1 * (math.log2(lr / best_lr) - octaves / 2) ** 2 + 0.04 * octaves**2
            loss = lowest + above + 1e-3 * rng.standard_normal()
            found.setdefault(batch, {})[lr] = loss
    return found


@pytest.fixture(scope="module")
def draws() -> list[Laws]:
    """The laws from 300 draws of the runs of a whole ladder: 5 sizes × 3 batches × 5 rates."""
    rng = np.random.default_rng(0)
    return [
        fit_laws([LadderSize(int(n), 20 * n, optimum(grid_of(n, rng))) for n in SIZES])
        for _ in range(DRAWS)
    ]


def test_the_exponents_of_rate_and_batch_are_held_in_93_percent_of_300_draws(draws):
    rates = np.mean([held(laws.lr, RATE_EXPONENT) for laws in draws])
    batches = np.mean([held(laws.batch, BATCH_EXPONENT) for laws in draws])
    assert rates >= LEAST
    assert batches >= LEAST


def test_the_exponent_of_the_loss_is_held_in_93_percent_of_300_draws(draws):
    assert np.mean([held(laws.loss, LOSS_EXPONENT) for laws in draws]) >= LEAST


def test_what_is_suggested_for_the_next_size_holds_its_optimum_in_93_percent(draws):
    suggested = [suggest(laws, 1073e6) for laws in draws]
    lr, batch = RATE * 1073e6**RATE_EXPONENT, BATCH * 1073e6**BATCH_EXPONENT
    assert np.mean([s.lr_interval[0] <= lr <= s.lr_interval[1] for s in suggested]) >= LEAST
    assert (
        np.mean([s.batch_interval[0] <= batch <= s.batch_interval[1] for s in suggested]) >= LEAST
    )
    assert np.median([s.lr for s in suggested]) == pytest.approx(lr, rel=0.02)
    assert np.median([s.batch for s in suggested]) == pytest.approx(batch, rel=0.02)


# Hoffmann et al. (arXiv 2203.15556), eq. 10: L(N, D) = E + A/N^α + B/D^β.
E, A, ALPHA, B, BETA = 1.69, 406.4, 0.34, 410.7, 0.28
COMPUTES = np.geomspace(1e17, 1e20, 7)


def chinchilla(n: float, tokens: float) -> float:
    return E + A * n**-ALPHA + B * tokens**-BETA


def best_size(compute: float) -> float:
    ratio = (ALPHA * A / (BETA * B)) ** (1 / (ALPHA + BETA))
    return ratio * (compute / 6) ** (BETA / (ALPHA + BETA))


def spent(compute: float, rng: np.random.Generator) -> Allocation:
    """The best size at a compute from runs of seven sizes, factors of √2 apart."""
    middle = 2.0 ** round(math.log2(best_size(compute)))
    sizes = middle * 2.0 ** np.arange(-3, 4)
    noise = 1e-3 * rng.standard_normal(7)
    losses = [chinchilla(n, compute / (6 * n)) for n in sizes] + noise
    return allocation(compute, [round(n) for n in sizes], losses.tolist())


def test_best_size_and_data_are_held_in_93_percent_of_300_draws():
    rng = np.random.default_rng(0)
    draws = [fit_laws([], [spent(c, rng) for c in COMPUTES]) for _ in range(DRAWS)]
    sizes = np.mean([held(laws.parameters, BETA / (ALPHA + BETA)) for laws in draws])
    tokens = np.mean([held(laws.tokens, ALPHA / (ALPHA + BETA)) for laws in draws])
    assert sizes >= LEAST
    assert tokens >= LEAST
    assert all(
        laws.parameters.exponent + laws.tokens.exponent == pytest.approx(1) for laws in draws
    )


def test_an_allocation_spends_its_compute():
    found = spent(1e19, np.random.default_rng(1))
    assert flops(found.parameters, found.tokens) == pytest.approx(1e19)
    assert found.parameters == pytest.approx(best_size(1e19), rel=0.1)
    assert found.edge is None


def test_the_fits_leave_out_what_lies_at_an_edge():
    rng = np.random.default_rng(2)
    sizes = [LadderSize(int(n), 20 * n, optimum(grid_of(n, rng))) for n in SIZES]
    grid = grid_of(1e9, rng)
    beyond = optimum({b: grid[b] for b in grid if b > BATCH * 1e9**BATCH_EXPONENT})
    assert beyond.batch_edge == "low"
    assert fit_laws([*sizes, LadderSize(10**9, 2e10, beyond)]).batch == fit_laws(sizes).batch
    best = [spent(c, rng) for c in COMPUTES]
    smallest = allocation(1e21, [10, 20, 30], [1e-5, 2e-5, 3e-5])
    assert smallest.edge == "low"
    assert fit_laws([], [*best, smallest]).parameters == fit_laws([], best).parameters


def test_too_few_sizes_have_no_law_and_no_suggestion():
    one = LadderSize(32_000_000, 64e7, optimum(grid_of(32e6, np.random.default_rng(3))))
    laws = fit_laws([one])
    assert laws == Laws(None, None, None, None, None)
    assert suggest(laws, 1e9) is None
    assert set(z_tests(laws, laws).values()) == {None}


# anGPT (arXiv 2505.22014), Table I.1: D_opt = D0·C^α_D, N_opt = N0·C^α_N.
TABLE = {
    "GPT+": ("13.408079", "0.466271", "0.336617", "0.465600"),
    "anGPT": ("9.727337", "0.473190", "0.650506", "0.451378"),
}


@pytest.mark.parametrize("arm", TABLE)
def test_table_i1_comes_back_to_every_printed_digit_from_points_of_its_laws(arm):
    d0, alpha_d, n0, alpha_n = map(float, TABLE[arm])
    # From the smallest run of its Figure 4 (32M, half of 20·N) to its largest (1B, 5 times that).
    computes = np.geomspace(flops(32.05e6, 10 * 32.05e6), flops(1073e6, 100 * 1073e6), 30)
    points = [Allocation(c, n0 * c**alpha_n, d0 * c**alpha_d, 3.0, None) for c in computes]
    laws = fit_laws([], points)
    printed = (
        laws.tokens.coefficient,
        laws.tokens.exponent,
        laws.parameters.coefficient,
        laws.parameters.exponent,
    )
    assert tuple(f"{value:.6f}" for value in printed) == TABLE[arm]


def test_table_i1_spends_the_compute_of_its_own_grid_where_its_largest_runs_are():
    for d0, alpha_d, n0, alpha_n in (map(float, row) for row in TABLE.values()):
        compute = flops(1073e6, 100 * 1073e6)
        law = flops(n0 * compute**alpha_n, d0 * compute**alpha_d)
        assert law == pytest.approx(compute, rel=0.06)


def test_the_paper_s_z_test():
    # Appendix I: σ² = 1.11e-6 (anGPT), 1.08e-6 (GPT+), p = 0.073: exponents .00265 apart.
    found = z_test(0.002653, 1.11e-6, 1.08e-6)
    assert found.p == pytest.approx(0.073, abs=5e-4)
    assert found.z == pytest.approx(1.793, abs=2e-3)
    # Its Table I.1's exponents are further apart: with those variances no chance would do that.
    for place in (1, 3):
        apart = float(TABLE["anGPT"][place]) - float(TABLE["GPT+"][place])
        assert z_test(apart, 1.11e-6, 1.08e-6).p < 1e-5
