"""Ticks in numbers that one reads at once."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from unitsphere.report.document import Figure as Plot
from unitsphere.report.numbers import compact
from unitsphere.report.render.axes import draw_ticks, plain_ticks


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (245760, 3, "246k"),
        (983040, 3, "983k"),
        (2_500_000, 6, "2.5M"),
        (1e9, 6, "1B"),
        (1500, 6, "1,500"),
        (0.02, 6, "0.02"),
        (0.0003, 6, "0.0003"),
        (0.00003, 6, "3e-5"),
        (0, 6, "0"),
        (-20000, 6, "-20k"),
    ],
)
def test_a_number_in_few_characters(value, digits, text):
    assert compact(value, digits) == text


@pytest.mark.parametrize(
    ("x", "scale", "shown"),
    [
        ([1e5, 1.2e6], "log", ["100k", "200k", "500k", "1M"]),
        ([1e-4, 1e-1], "log", ["0.0001", "0.001", "0.01", "0.1"]),
        ([3e5, 6e5], "log", ["300k", "400k", "500k", "600k"]),
        ([0, 100_000], "linear", ["0", "20k", "40k"]),
    ],
)
def test_axes_have_plain_numbers_and_no_offset(x, scale, shown):
    figure = Figure()
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(x, [1e-5, 2e-5])
    axes.set_xscale(scale)
    plain_ticks(axes)
    figure.canvas.draw()
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert set(shown) <= set(labels)
    assert axes.yaxis.get_offset_text().get_text() == ""
    assert "1.2e-5" in [label.get_text() for label in axes.get_yticklabels()]


def test_ticks_that_were_set_stay():
    drawn = Figure()
    FigureCanvasAgg(drawn)
    axes = drawn.subplots()
    axes.set_xscale("log")
    axes.plot([245760, 983040], [1, 2])
    places = {"tokens": [245760, 491520, 983040]}
    draw_ticks(
        axes, Plot("some", "Some", "loss", {"tokens": ""}, [], places=places), "tokens", False
    )
    plain_ticks(axes)
    drawn.canvas.draw()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["246k", "492k", "983k"]
