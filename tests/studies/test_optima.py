"""Two-stage interpolation finds the optimum of a grid, and says when there is none in it."""

import math

import numpy as np
import pytest

from unitsphere.studies.laws import between, lowest, optimum

BATCHES = [2.0**k for k in range(10, 15)]
RATES = [1e-3 * 2.0**k for k in range(-1, 6)]


def bowl(batch: float, lr: float, best_batch: float, best_lr: float) -> float:
    """A loss whose best rate grows as the square root of the batch."""
    octaves = math.log2(batch / best_batch)
    return 3 + 0.05 * octaves**2 + 0.1 * (math.log2(lr / best_lr) - octaves / 2) ** 2


def grid(best_batch: float, best_lr: float) -> dict[float, dict[float, float]]:
    return {b: {r: bowl(b, r, best_batch, best_lr) for r in RATES} for b in BATCHES}


@pytest.mark.parametrize("best_lr", [2.3e-3, 4e-3, 7.1e-3])
@pytest.mark.parametrize("best_batch", [3000.0, 4096.0, 7000.0])
def test_the_optimum_of_a_bowl_lies_between_the_points_of_the_grid(best_batch, best_lr):
    found = optimum(grid(best_batch, best_lr))
    assert found.batch == pytest.approx(best_batch, rel=1e-6)
    assert found.lr == pytest.approx(best_lr, rel=1e-6)
    assert found.loss == pytest.approx(3, abs=1e-9)
    assert found.by_batch[4096.0].at == pytest.approx(best_lr * math.sqrt(4096 / best_batch))
    assert found.bracketed


@pytest.mark.parametrize(("best_lr", "edge"), [(2e-4, "low"), (9e-2, "high")])
def test_a_rate_beyond_the_grid_is_an_edge_and_nothing_is_extrapolated(best_lr, edge):
    found = optimum(grid(4096.0, best_lr))
    assert found.lr_edge == edge
    assert found.batch_edge is None or found.batch in BATCHES
    assert not found.bracketed
    assert RATES[0] <= found.lr <= RATES[-1] * (1 + 1e-12)


@pytest.mark.parametrize(("best_batch", "edge"), [(300.0, "low"), (90000.0, "high")])
def test_a_batch_beyond_the_grid_is_an_edge(best_batch, edge):
    found = optimum(grid(best_batch, 4e-3))
    assert found.batch_edge == edge
    assert found.batch == pytest.approx(BATCHES[0] if edge == "low" else BATCHES[-1])


def test_runs_that_diverged_are_left_out_and_the_last_rate_below_them_is_an_edge():
    diverged = {
        batch: {lr: math.nan if lr > 3e-3 else loss for lr, loss in row.items()}
        for batch, row in grid(4096.0, 6e-3).items()
    }
    found = optimum(diverged)
    assert found.lr == pytest.approx(2e-3)
    assert found.lr_edge == "high"


def test_a_batch_whose_runs_all_diverged_is_left_out_and_none_left_is_an_error():
    none = dict.fromkeys(RATES, math.inf)
    some = grid(3000.0, 4e-3) | {BATCHES[4]: none}
    assert list(optimum(some).by_batch) == BATCHES[:4]
    with pytest.raises(ValueError, match="no finite value"):
        optimum(dict.fromkeys(BATCHES, none))


def test_the_interpolant_is_akima_s():
    # Akima (1970), by hand: the secants are 0, 1, 0, 0, and −1 before them. The slope at 1 is
    # (|0−1|·0 + |0+1|·1)/2 = 1/2, at 2 it is |0−0|·1 + |1−0|·0 = 0; so half-way the cubic is at
    # (0 + 1)/2 + (1/2 − 0)/8.
    x, y = np.exp([0.0, 1.0, 2.0, 3.0, 4.0]), [0.0, 0.0, 1.0, 1.0, 1.0]
    assert between(x, np.exp(y), math.exp(1.5)) == pytest.approx(math.exp(0.5625))
    assert between(x, np.exp(y), math.exp(3.5)) == pytest.approx(math.e)


@pytest.mark.parametrize("count", [1, 2])
def test_of_too_few_points_the_lowest_is_taken_and_flagged(count):
    found = lowest([1e-3, 2e-3][:count], [3.0, 2.0][:count])
    assert found.at == pytest.approx([1e-3, 2e-3][count - 1])
    assert found.edge == ["single", "high"][count - 1]
