"""The benchmark of every design: its arms, what it reuses, and the table it writes."""

import dataclasses
import importlib
import sys
from pathlib import Path

import pytest
from studies.inprocess import InProcess
from studies.tiny import recipes

from unitsphere.config import read_json
from unitsphere.errors import UserError
from unitsphere.models.registry import ARCHITECTURES
from unitsphere.training.config import RunConfig
from unitsphere.training.recipes import config_from, load_recipe

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = ("designs", "design_arms", "design_page", "quickstart_sweep")


@pytest.fixture(scope="module")
def designs():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        for name in MODULES:
            patch.delitem(sys.modules, name, raising=False)
        yield importlib.import_module("designs")
        for name in MODULES:
            sys.modules.pop(name, None)


def configs(designs) -> dict[str, RunConfig]:
    return {name: config_from(each.table(), name) for name, each in designs.DESIGNS.items()}


def test_every_architecture_and_muon_is_among_the_arms(designs):
    found = configs(designs).values()
    assert {config.architecture for config in found} == set(ARCHITECTURES)
    assert {config.optim.name for config in found} == {"adam", "adamw", "muon"}
    assert len({(c.architecture, c.model, c.optim.name) for c in found}) == len(designs.DESIGNS)


def test_the_arms_share_data_budget_schedule_and_size(designs):
    found = list(configs(designs).values())
    shared = {(config.data, config.schedule, config.train) for config in found}
    sizes = {(c.model.d_model, c.model.n_layers, c.model.n_heads, c.model.d_ff) for c in found}
    assert len(shared) == 1
    assert sizes == {(128, 4, 2, None)}
    assert found[0].train.steps * found[0].train.batch_tokens == 512_000
    assert found[0].train.eval_tokens is None


@pytest.mark.parametrize("name", ["ngpt", "angpt", "normformer"])
def test_the_quickstart_s_arms_are_its_recipes(designs, name):
    design, recipe = designs.DESIGNS[name], load_recipe(f"quickstart/{name}")
    config = config_from(design.table(), name)
    assert config.model == recipe.model
    expected = dataclasses.replace(
        recipe.optim, base=config.optim.base
    )  # which only `transfer` reads
    assert dataclasses.replace(config.optim, lr=design.middle) == expected


def arm(designs, results):
    made = designs.Arm("gpt", list(results), Path("none"), 500)
    made.results = results
    return made


def test_one_rate_is_added_only_beyond_an_edge_and_once_all_ran(designs):
    assert arm(designs, {1.0: 2.2, 2.0: 2.0, 4.0: 2.1}).beyond() is None
    assert arm(designs, {1.0: 2.0, 2.0: 2.1, 4.0: 2.2}).beyond() == 0.5
    assert arm(designs, {1.0: 2.2, 2.0: 2.1, 4.0: 2.0}).beyond() == 8.0
    assert arm(designs, {1.0: 2.1, 2.0: 2.0, 4.0: "diverged"}).beyond() is None
    assert arm(designs, {1.0: 2.0, 2.0: "diverged", 4.0: "diverged"}).beyond() == 0.5
    assert arm(designs, {1.0: 2.0, 2.0: 2.1, 4.0: "not run"}).beyond() is None
    assert arm(designs, {1.0: "diverged", 2.0: "diverged"}).beyond() is None


def record(best: float | None, *values: float | str) -> dict:
    rates = zip([0.004, 0.008, 0.016], values, strict=True)
    return {
        "title": "GPT",
        "parameters": 1311872,
        "optim": {"name": "adamw"},
        "best": best,
        "rates": [{"lr": lr, "bits_per_byte": value} for lr, value in rates],
    }


def test_a_row_shows_the_best_rate_and_every_other(designs):
    row = sys.modules["design_page"].row
    assert row(record(0.008, 1.95, 1.90512, "diverged")) == [
        "GPT",
        "1,311,872",
        "adamw",
        "1.905",
        "0.008",
        "0.004: 1.950, **0.008: 1.905**, 0.016: diverged",
    ]
    last = row(record(None, "diverged", "diverged", "not run"))[3:]
    assert last == ["–", "–", "0.004: diverged, 0.008: diverged, 0.016: not run"]


def test_a_best_rate_that_is_not_bracketed_is_marked(designs):
    row = sys.modules["design_page"].row
    assert row(record(0.004, 1.90, 1.95, "diverged"))[4] == "0.004 (edge)"
    assert row(record(0.016, 2.1, 2.0, 1.9))[4] == "0.016 (edge)"
    assert row(record(0.008, 2.1, 2.0, "not run"))[4] == "0.008 (edge)"
    assert row(record(0.008, "not run", 2.0, "not run"))[4] == "0.008 (the only one)"


@pytest.fixture
def tiny(designs, tmp_path, monkeypatch):
    """The benchmark over a text and a size that take seconds; the words of its command line."""
    data = load_recipe(recipes(tmp_path)[0]).data
    table = {"source": data.source, "tokenizer": "bytes", "context": 16, "val_fraction": 0.3}
    monkeypatch.setitem(designs.SHARED, "data", table)
    monkeypatch.setitem(designs.SHARED["train"], "batch_tokens", 64)
    for key, value in {"d_model": 16, "n_layers": 1, "n_heads": 2}.items():
        monkeypatch.setitem(designs.SIZE, key, value)
    out, results = tmp_path / "runs" / "designs", tmp_path / "results"
    return ["--arms", "gpt", "--steps", "6", "--out", str(out), "--results", str(results)]


def test_it_trains_shows_divergence_and_trains_nothing_twice(designs, tiny, tmp_path, monkeypatch):
    rates = ["--rates", "1e-2", "1e30"]
    monkeypatch.setattr(designs, "Local", lambda workers: InProcess())
    assert designs.main([*tiny, *rates]) == 0
    found = read_json(tmp_path / "results.json")["arms"][0]
    good, bad = (rate["bits_per_byte"] for rate in found["rates"])
    assert 0 < good < 8.5
    assert bad == "diverged"
    assert found["best"] == 1e-2
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert f"**0.01: {good:.3f}**, 1e+30: diverged" in page

    monkeypatch.setattr(designs, "Local", lambda workers: lambda jobs: pytest.fail("trained"))
    assert designs.main([*tiny, *rates]) == 0
    assert designs.main([*tiny, *rates, "2e-2", "--no-train"]) == 0
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "0.02: not run" in page
    assert "Not run" not in page
    assert designs.main([*tiny, "--rates", "3e-2", "--no-train"]) == 0
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "Not run: GPT.\n" in page
    assert "| GPT |" not in page
    other = designs.arms_of(designs.arguments([*tiny, "--steps", "7", *rates]))[0]
    with pytest.raises(UserError, match="another config"):
        other.read()
