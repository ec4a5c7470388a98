"""What the pages of studies say in a sentence, of made-up results."""

import pytest

from unitsphere.report.document import Figure
from unitsphere.report.kinds.ladder import answer as ladder_answer
from unitsphere.report.kinds.ladder import law_lines
from unitsphere.report.kinds.quantize import bits_figure
from unitsphere.report.kinds.ramp import diverges
from unitsphere.report.kinds.transfer import answer as transfer_answer
from unitsphere.report.render.picture import picture
from unitsphere.studies.core.statistics import fit
from unitsphere.studies.ladder_results import law_figures
from unitsphere.studies.laws import Laws


@pytest.mark.parametrize(
    ("median", "rates", "said"),
    [
        (0.2, [0.1, 0.2, 0.3], "0.2 (seeds from 0.1 to 0.3)"),
        (0.2, [0.1, 0.2, None], "0.2 (seeds from 0.1 to above 3)"),
        (0.2, [0.2], "0.2 (one seed, no interval)"),
        (None, [0.1, None], "did not diverge up to 3 in 1 of 2 seeds"),
        (None, [None, None], "did not diverge up to 3"),
    ],
)
def test_a_ramp_says_which_seeds_did_not_diverge(median, rates, said):
    seeds = [{"lr": rate, "error": None} for rate in rates] + [{"lr": None, "error": "full"}]
    arm = {"lr": median, "reached_peak": median is None, "ratio": None, "seeds": seeds}
    assert diverges(arm, 3.0) == said


def test_a_ladder_s_test_names_its_law_and_arms():
    law = {"exponent": -0.1, "exponent_interval": [-0.2, 0.0]}
    tests = [
        {"arms": ["gpt", arm], "law": "lr", "difference": -0.25, "p": 0.5} for arm in ("a", "b")
    ]
    said = ladder_answer({"arms": {"gpt": {"laws": {"loss": law}}}, "tests": tests})
    assert "the exponents of rate(N) of gpt and a differ by 0.2500 (p = 0.5)" in said


def test_a_ladder_speaks_of_brackets_only_where_there_are_some():
    two = {"exponent": -0.1, "exponent_interval": None}
    three = {"exponent": -0.1, "exponent_interval": [-0.2, 0.0]}
    of_two, both = (
        ladder_answer({"arms": {n: {"laws": {"lr": law}} for n, law in laws}, "tests": []})
        for laws in ([("gpt", two)], [("gpt", two), ("ngpt", three)])
    )
    assert of_two == "gpt's best rate scales as size to the power -0.100."
    assert both.endswith("-0.100 [-0.200, 0.000]. Brackets are 95% intervals.")


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([1e6, 2e6, 4e6], [8192.0, 12000.0, 16000.0]),
        ([1_311_880, 1_312_776], [8192.0, 9011.0]),  # an exponent of 140: x^140 is no float
        ([1_311_880, 1_312_776, 1_318_400], [8192.0, 9e5, 64.0]),
    ],
)
def test_a_law_is_drawn_through_its_points_however_steep(sizes, batches):
    law = law_figures(Laws(None, fit(sizes, batches), None, None, None))["batch"]
    points = [(*point, True) for point in zip(sizes, batches, strict=True)]
    dots, line = law_lines("gpt", points, law, 0)
    assert dots.y == pytest.approx(batches)
    assert all(y is not None and y > 0 for y in line.y)
    x, y = line.x["x"][0], line.y[0]
    assert y == pytest.approx(fit(sizes, batches).at(x), rel=1e-4)
    picture(Figure("law", "Law", "y", {"x": "x"}, [dots, line], log_x=True, log_y=True))


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (
            [(0.05, None), (0.01, None)],
            "ngpt at the law's rates is at most 0.0500 nats per token above the best rates "
            "(16×1, 640 tokens), in 2 of 2 cells.",
        ),
        (
            [(0.01, None), (0.05, "high"), (None, None)],
            "ngpt at the law's rates is at most 0.0100 nats per token above the best rates "
            "(16×1, 640 tokens), in 1 of 3 cells; "
            "the best rate of 1 of its cells is at the grid's edge.",
        ),
        (
            [(0.05, "high"), (0.01, "low")],
            "ngpt has no cell with a loss at the law's rate and a best rate inside the grid; "
            "the best rate of 2 of its cells is at the grid's edge.",
        ),
        (
            [(None, None)],
            "ngpt has no cell with a loss at the law's rate and a best rate inside the grid.",
        ),
    ],
)
def test_a_transfer_s_largest_gap_leaves_lower_bounds_out(cells, said):
    size = {"depth": 1, "tokens": 640}
    found = [
        size | {"width": 16 * n, "gap": gap, "edge": edge}
        for n, (gap, edge) in enumerate(cells, start=1)
    ]
    assert transfer_answer({"arms": {"ngpt": {"cells": found}}}) == said


def test_a_loss_that_rounding_lowers_stands_where_the_caption_says():
    entry = {"format": "int8", "renormalized": False, "bits": 8.0, "increase": -0.02}
    figure = bits_figure({"arms": {"gpt": {"runs": [{"formats": [entry]}]}}}, groups=False)
    assert [line.y for line in figure.series] == [[1e-4]]
    assert "A point at 0.0001: no larger increase, or none." in figure.caption
