"""Probes on the page: an inspection's, in the form that the package tells, and live ones."""

import json
import shutil
from pathlib import Path

import pytest
from report.made_up import make_run

from unitsphere.report.document import Figures, Folded, Text
from unitsphere.report.registry import page_of
from unitsphere.report.runs import Run
from unitsphere.report.sections.probe_figures import density_line, overlay_figures


def layers(factor: float, series=("W_q",)) -> dict:
    labels = ["0", "1", "2"]
    return {
        name: {"labels": labels, "values": [factor * (at + place) for at in (1.0, 2.0, 3.0)]}
        for place, name in enumerate(series)
    }


def spread(middle: float) -> dict:
    quantiles = [[middle + q for q in (-3, -2, -1, 0, 1, 2, 3)]]
    shape = {"edges": [0.0, 1.0, 2.0], "counts": [1, 3]}
    return {"input": {"labels": [""], "means": [middle], "quantiles": quantiles} | shape}


def probe(axis: str, steps: list[int], series: list[dict], **more) -> dict:
    values = {"form": "layers", "axis": axis, "unit": "length", "log": False}
    values |= {"steps": steps, "series": series, "live": {"steps": [], "series": []}}
    return (
        {"title": "Lengths", "source": "nGPT Figure 4", "applies": True, "why": ""}
        | more
        | {"values": values}
    )


@pytest.fixture
def inspected(tmp_path) -> Path:
    run = make_run(tmp_path / "run", "quickstart/ngpt", steps=100)
    probes = {
        "few": probe("layer", [0, 100], [layers(1), layers(2)]),
        "spread": probe("layer", [0, 100], [spread(0), spread(1)]),
        "steps": probe("step", [0, 50, 100], [layers(f, ("W_q", "W_k", "W_v")) for f in (1, 2, 3)]),
        "not": probe("layer", [], [], applies=False, why="no norm has a gain", title="Gains"),
    }
    (run / "inspect").mkdir()
    document = {"run": "run", "architecture": "ngpt", "checkpoints": [0, 100], "probes": probes}
    (run / "inspect" / "inspect.json").write_text(json.dumps(document))
    return run


def test_each_form_has_its_figure(inspected):
    section = next(s for s in page_of(inspected).sections if s.name == "probes")
    groups = [block for block in section.blocks if isinstance(block, Figures)]
    apart, over_layers, over_steps = groups
    assert apart.apart
    (histogram,) = apart.figures
    assert histogram.series[0].x["value"] == [0.5, 1.5]
    assert histogram.series[0].y == [0.25, 0.75]
    (few,) = over_layers.figures
    assert few.ticks == {0.0: "0", 1.0: "1", 2.0: "2"}
    assert [(line.name, line.style, line.y) for line in few.series] == [
        ("W_q", "both", [2, 4, 6]),
        ("W_q, step 0", "dashed", [1, 2, 3]),
    ]
    (steps,) = over_steps.figures
    assert [line.name for line in steps.series] == ["W_q", "W_k", "W_v"]
    key = steps.series[1]
    assert (key.x["step"], key.y) == ([0, 50, 100], [3, 6, 9])
    assert (key.low, key.high) == ([2, 4, 6], [4, 8, 12])


def test_probes_of_several_arms_are_drawn_over_each_other(inspected, tmp_path):
    other = make_run(tmp_path / "gpt", "quickstart/gpt-plus", steps=100)
    (other / "inspect").mkdir()
    document = json.loads((inspected / "inspect" / "inspect.json").read_text())
    values = document["probes"]["few"]["values"]
    values["series"] = [layers(1), layers(5, ("W_q", "W_k"))]
    (other / "inspect" / "inspect.json").write_text(json.dumps(document))
    figures = {figure.name: figure for figure in page_of([inspected, other]).figures()}
    few = figures["overlay-few-W_q"]  # W_k is of one arm
    assert [(line.name, line.y) for line in few.series] == [
        ("run", [2, 4, 6]),
        ("gpt", [5, 10, 15]),
    ]
    assert "at steps: run 100, gpt 100" in few.caption
    steps = figures["overlay-steps"]
    assert [panel.title for panel in steps.panels()] == ["W_q", "W_k", "W_v"]
    assert [line.name for line in steps.panels()[1].series] == ["run", "gpt"]
    spread = figures["overlay-spread-spread-input"]
    assert [line.y for line in spread.series] == [[0.25, 0.75]] * 2
    assert "run-few" in figures  # each run's own stay


def test_an_arm_has_its_colour_where_another_has_no_such_probe(inspected, tmp_path):
    first = make_run(tmp_path / "first", "quickstart/gpt-plus", steps=100)
    other = shutil.copytree(inspected, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"architecture": "angpt"}))
    figures = {figure.name: figure for figure in page_of([first, inspected, other]).figures()}
    colours = {line.name: line.colour for line in figures["loss"].series}
    assert colours == {"first": 0, "run": 1, "other": 2}
    for name in ("overlay-few-W_q", "overlay-spread-spread-input"):
        assert {line.name: line.colour for line in figures[name].series} == {"run": 1, "other": 2}


def test_more_than_three_series_have_a_panel_each(inspected):
    path = inspected / "inspect" / "inspect.json"
    document = json.loads(path.read_text())
    names = ("a", "b", "c", "d")
    document["probes"]["few"]["values"]["series"] = [layers(1, names), layers(2, names)]
    path.write_text(json.dumps(document))
    figure = next(f for f in page_of(inspected).figures() if f.name == "run-few")
    panels = figure.panels()
    assert [panel.title for panel in panels] == [*names]
    assert [line.legend for line in panels[3].series] == ["step 100", "step 0"]


def test_series_of_one_layer_and_of_the_whole_model_are_one_figure(inspected):
    path = inspected / "inspect" / "inspect.json"
    document = json.loads(path.read_text())
    scales = spread(0) | {"s_qk": spread(1)["input"] | {"labels": ["0"]}}
    document["probes"]["spread"]["values"]["series"] = [scales, scales]
    path.write_text(json.dumps(document))
    figures = [f for f in page_of(inspected).figures() if f.name == "run-spread"]
    assert [figure.ticks for figure in figures] == [{0.0: "all", 1.0: "0"}]


def test_layers_stand_in_their_order_whichever_series_names_them_first(inspected):
    """As where some layers have attention and others a recurrent mixer."""
    some, every = (
        {"labels": labels, "values": [0.0] * len(labels)}
        for labels in (["1", "10"], ["enc 0", "in", "0", "1", "2", "10"])
    )
    path = inspected / "inspect" / "inspect.json"
    document = json.loads(path.read_text())
    one, two, three = (
        probe("layer", [1], [scene])
        for scene in ({"some": some, "every": every}, {"every": some}, {"every": every})
    )
    path.write_text(json.dumps(document | {"probes": {"probe": one}}))
    ordered = {0.0: "enc 0", 1.0: "in", 2.0: "0", 3.0: "1", 4.0: "2", 5.0: "10"}
    figure = next(f for f in page_of(inspected).figures() if f.name == "run-probe")
    assert figure.ticks == ordered
    assert [line.x["layer"] for line in figure.series] == [[3, 5], [0, 1, 2, 3, 4, 5]]
    run = Run("run", "run", inspected)
    arms = {"a": (run, two), "b": (run, three)}
    (overlay,) = overlay_figures("probe", arms, dict.fromkeys(arms, 0), spread=False)
    assert overlay.ticks == ordered
    assert [line.x["layer"] for line in overlay.series] == [[3, 5], [0, 1, 2, 3, 4, 5]]


def test_what_does_not_apply_says_why(inspected):
    section = next(s for s in page_of(inspected).sections if s.name == "probes")
    folded = next(block for block in section.blocks if isinstance(block, Folded))
    assert folded.title == "1 probe has nothing to show of this model"
    assert folded.blocks == [Text(["Gains: no norm has a gain"], listed=True)]


def test_live_records_are_drawn_while_a_run_trains(tmp_path):
    run = make_run(tmp_path / "run", "quickstart/ngpt", steps=100, until=10)
    with (run / "metrics.jsonl").open("a") as file:
        for step in (20, 40):
            record = {"step": step, "tokens": 2048 * step, "time": float(step), "loss": 3.0}
            file.write(json.dumps(record | {"probe/input_norms/h/0": step / 10}) + "\n")
    page = page_of(run)
    figure = next(f for f in page.figures() if f.name == "run-live-input_norms")
    assert figure.title == "Length of h as it enters each layer"
    assert (figure.y, figure.log_y) == ("mean length of h", True)
    assert list(figure.xs) == ["step", "tokens", "time", "flops"]
    (line,) = figure.series
    assert (line.name, line.x["step"], line.y) == ("h 0", [20, 40], [2, 4])


def test_a_run_without_probes_has_no_such_part(tmp_path):
    run = make_run(tmp_path / "run", "quickstart/ngpt", steps=20)
    assert "probes" not in [section.name for section in page_of(run).sections]


def test_bins_without_a_width_are_left_out():
    line = density_line("run", {"edges": [1.0, 1.0, 2.0], "counts": [3, 1]}, 0, log=False)
    assert line is not None
    assert (line.x["value"], line.y) == ([1.5], [0.25])


def test_a_density_is_per_width_of_a_bin_or_per_decade():
    told = {"edges": [0.1, 1.0, 100.0], "counts": [1, 3]}
    line, logarithmic = (density_line("run", told, 0, log=log) for log in (False, True))
    assert line.y == pytest.approx([0.25 / 0.9, 0.75 / 99], rel=1e-5)
    assert logarithmic.y == pytest.approx([0.25, 0.375])


def test_two_steps_with_other_bins_are_drawn_as_densities(inspected):
    path = inspected / "inspect" / "inspect.json"
    document = json.loads(path.read_text())
    wide = {"input": spread(0)["input"] | {"edges": [0.0, 10.0, 20.0]}}
    document["probes"]["spread"]["values"]["series"] = [spread(0), wide]
    path.write_text(json.dumps(document))
    figure = next(f for f in page_of(inspected).figures() if f.name == "run-spread")
    assert figure.y == "density"
    assert [(line.style, line.y) for line in figure.series] == [
        ("line", [0.025, 0.075]),
        ("dashed", [0.25, 0.75]),
    ]
