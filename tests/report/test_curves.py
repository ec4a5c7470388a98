"""The picture of the curves is drawn without a display, with names that do not overlap."""

import itertools
import subprocess
import sys

import pytest

from unitsphere.report.curves import Curve, _limits, apart, line_style, validation_curves


def curve(name: str, last: float, pace: float = 1.0) -> Curve:
    steps = [25 * i for i in range(1, 13)]
    bits = [last + 3 * (1 - step / 300) ** 2 for step in steps]
    return Curve(name, steps, [pace * step for step in steps], bits)


def test_a_png_is_written_where_it_was_asked_for(tmp_path):
    path = tmp_path / "deep" / "curves.png"
    arms = [curve("gpt-plus", 2.1), curve("ngpt", 2.09, 1.2), curve("angpt", 2.1)]
    assert validation_curves(arms, "Three arms", path) == path
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_one_evaluation_is_enough_for_a_picture(tmp_path):
    validation_curves([Curve("ngpt", [10], [3.0], [2.5])], "One", tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 1000


def test_the_first_steps_do_not_set_the_scale():
    low, high = _limits([Curve("ngpt", [1, 100, 200], [1.0, 2.0, 3.0], [8.0, 3.0, 2.0])])
    assert low < 2.0 < 3.0 < high < 3.2


def test_names_at_the_line_ends_stay_apart(tmp_path):
    from matplotlib.axes import Axes

    heights: list[float] = []
    annotate = Axes.annotate

    def note(self, text, **how):
        heights.append(how["xytext"][1])
        return annotate(self, text, **how)

    Axes.annotate = note
    try:
        arms = [curve("gpt-plus", 2.1), curve("ngpt", 2.1), curve("angpt", 2.1)]
        validation_curves(arms, "Equal arms", tmp_path / "equal.png")
    finally:
        Axes.annotate = annotate
    panel = sorted(heights[:3])
    assert min(b - a for a, b in itertools.pairwise(panel)) > 0.05


def test_the_module_imports_without_matplotlib():
    code = "import sys, unitsphere.report.curves; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_move_apart_as_little_as_they_can():
    assert apart([3.0, 1.0, 2.0], 0.5) == [3.0, 1.0, 2.0]
    assert apart([1.0, 1.0, 1.0], 0.5) == pytest.approx([0.5, 1.0, 1.5])
    assert apart([1.2, 5.0, 1.0], 0.5) == pytest.approx([1.35, 5.0, 0.85])
    assert apart([], 0.5) == []


def test_lines_of_one_colour_differ_by_their_dashes():
    assert [line_style(index) for index in (0, 5, 6, 12)] == ["-", "-", "--", ":"]
