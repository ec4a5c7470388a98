"""Pictures: names that do not overlap, plain ticks, curves of a quickstart, and no display."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Drawing
from report.made_up import make_quickstart

from unitsphere.report.document import Figure, Series
from unitsphere.report.kinds.quickstart import limits, validation_figures
from unitsphere.report.numbers import compact
from unitsphere.report.registry import page_of
from unitsphere.report.render.axes import apart, colour_of, draw_ticks, plain_ticks
from unitsphere.report.render.picture import draw, picture, write_picture, write_pictures


def curve(name: str, last: float, colour: int) -> Series:
    steps = [25.0 * i for i in range(1, 13)]
    bits = [last + 3 * (1 - step / 300) ** 2 for step in steps]
    return Series(name, {"step": steps}, bits, colour)


def figure_of(*series: Series, **more) -> Figure:
    return Figure("some", "Some", "bits per byte", {"step": "steps"}, series, **more)


def test_a_quickstart_s_curves_are_over_steps_and_over_time(tmp_path):
    curves = validation_figures(page_of(make_quickstart(tmp_path / "quickstart")))
    assert curves is not None
    assert [list(figure.xs) for figure in curves.figures] == [["step"], ["time"]]
    path = tmp_path / "deep" / "curves.png"
    write_picture(curves.figures, [path], title="Two arms")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_names_that_differ_in_a_sign_only_are_pictures_of_their_own(tmp_path):
    line = Series("ngpt", {"step": [1, 2]}, [2.5, 2.0])
    figures = [Figure(name, name, "bits", {"step": "steps"}, [line]) for name in ("a b", "a:b")]
    paths = write_pictures(figures, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["a-b-2.svg", "a-b.svg"]
    assert paths["a:b"]["svg"] == str(tmp_path / "a-b-2.svg")


@pytest.mark.parametrize("names", [("a b", "a-b-2", "a:b"), ("a b", "a:b", "a-b-2")])
def test_a_numbered_picture_does_not_overwrite_one_of_that_name(names, tmp_path):
    line = Series("ngpt", {"step": [1, 2]}, [2.5, 2.0])
    figures = [Figure(name, name, "bits", {"step": "steps"}, [line]) for name in names]
    paths = write_pictures(figures, tmp_path)
    assert len({path["svg"] for path in paths.values()}) == 3
    assert all(name in Path(paths[name]["svg"]).read_text() for name in names)


def test_the_first_steps_do_not_set_the_scale():
    low, high = limits(figure_of(Series("ngpt", {"step": [1, 100, 200]}, [8.0, 3.0, 2.0])))
    assert low < 2.0 < 3.0 < high < 3.2


def test_names_at_the_line_ends_stay_apart():
    arms = [curve(name, 2.1, place) for place, name in enumerate(("gpt-plus", "ngpt", "angpt"))]
    (axes,) = draw([figure_of(*arms, ends=True)]).axes
    heights = sorted(text.get_position()[1] for text in axes.texts)
    assert [text.get_text() for text in axes.texts] == [f"{arm.name} 2.1" for arm in arms]
    assert min(b - a for a, b in itertools.pairwise(heights)) > 0.05


def test_a_line_that_ends_at_0_has_its_name_too():
    line = Series("ngpt", {"step": [1, 2]}, [0.5, 0.0])
    (axes,) = draw([figure_of(line, ends=True)]).axes
    assert [text.get_text() for text in axes.texts] == ["ngpt 0"]


def test_a_single_point_is_enough():
    draw([figure_of(Series("ngpt", {"step": [10]}, [2.5]), ends=True)])


def test_drawing_imports_matplotlib_only_when_it_draws():
    code = "import sys, unitsphere.report.write; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_name_that_begins_with_an_underscore_is_in_the_legend():
    series = [Series(name, {"x": [1.0, 2.0]}, [1.0, 2.0], i) for i, name in enumerate(("_a", "b"))]
    svg = picture(Figure("loss", "Loss", "loss", {"x": "x"}, series)).decode()
    assert "_a<" in svg
    assert "b<" in svg


def test_a_plot_has_a_legend_only_for_lines_that_the_first_has_not():
    def plot(*lines):
        return Figure("a", "A", "loss", {"step": "steps"}, [curve(*line) for line in lines])

    first = [("gpt", 3.0, 0), ("ngpt", 2.0, 1), ("angpt", 2.5, 2)]
    others = [first[1:], [first[0], ("dyt", 2.0, 3)], [("gpt", 3.0, 1), ("ngpt", 2.0, 0)]]
    drawn = draw([plot(*lines) for lines in (first, *others)])
    has_legend = [axes.get_legend() is not None for axes in drawn.axes[:4]]
    assert has_legend == [True, False, True, True]  # the last has other colours


def test_names_move_apart_as_little_as_they_can():
    assert apart([3.0, 1.0, 2.0], 0.5) == [3.0, 1.0, 2.0]
    assert apart([1.0, 1.0, 1.0], 0.5) == pytest.approx([0.5, 1.0, 1.5])
    assert apart([1.2, 5.0, 1.0], 0.5) == pytest.approx([1.35, 5.0, 0.85])
    assert apart([], 0.5) == []


def test_no_name_is_below_the_lowest_place():
    assert apart([1.0, 1.1, 3.0], 0.5, lowest=1.0) == pytest.approx([1.0, 1.5, 3.0])
    assert apart([1.0, 1.0, 1.0], 0.5, lowest=0.2) == pytest.approx([0.5, 1.0, 1.5])


def test_lines_of_one_colour_differ_by_their_dashes():
    (axes,) = draw([figure_of(*(curve(f"arm {i}", 2.0 + i, i) for i in range(13)), ends=True)]).axes
    looks = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
    assert len(set(looks)) == 13
    assert [looks[place][1] for place in (0, 5, 6, 12)] == ["-", "-", "--", ":"]


def test_a_shade_goes_from_light_to_dark():
    early, late = (sum(colour_of(Series("", {}, [], shade=shade))[:3]) for shade in (0.0, 1.0))
    assert late < early


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (245760, 3, "246k"),
        (983040, 3, "983k"),
        (2_500_000, 6, "2.5M"),
        (1e9, 6, "1B"),
        (1024, 3, "1,024"),
        (999.6, 3, "999.6"),
        (1500, 6, "1,500"),
        (0.02, 6, "0.02"),
        (0.0003, 6, "0.0003"),
        (0.00003, 6, "3e-5"),
        (0, 6, "0"),
        (-20000, 6, "-20k"),
        (999_999, 3, "1M"),
        (2e14, 6, "200T"),
        (1.2e18, 6, "1.2e18"),
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
    drawn = Drawing()
    FigureCanvasAgg(drawn)
    axes = drawn.subplots()
    axes.plot(x, [1e-5, 2e-5])
    axes.set_xscale(scale)
    plain_ticks(axes)
    drawn.canvas.draw()
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert set(shown) <= set(labels)
    assert axes.yaxis.get_offset_text().get_text() == ""
    assert "1.2e-5" in [label.get_text() for label in axes.get_yticklabels()]


def test_ticks_that_were_set_stay():
    drawn = Drawing()
    FigureCanvasAgg(drawn)
    axes = drawn.subplots()
    axes.set_xscale("log")
    axes.plot([245760, 983040], [1, 2])
    figure = figure_of(places={"step": [245760, 491520, 983040]})
    draw_ticks(axes, figure, "step", small=False)
    plain_ticks(axes)
    drawn.canvas.draw()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["246k", "492k", "983k"]


@pytest.mark.parametrize("y", [[None, None], [0.0, 0.0]])
def test_a_logarithmic_picture_of_nothing_above_0_is_drawn(y):
    line = Series("ngpt", {"step": [1, 2]}, y)
    assert picture(figure_of(line, log_x=True, log_y=True), "png")
