"""The league: entries of one set of rules, ranked with published rows by one test."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from studies.inprocess import InProcess
from studies.tiny import recipes

from unitsphere.cli import main
from unitsphere.errors import UserError
from unitsphere.report.document import Table
from unitsphere.report.kinds.league import league_page
from unitsphere.report.registry import page_of
from unitsphere.report.render.text import markdown_table, terminal
from unitsphere.studies import league as module
from unitsphere.studies.core.kind import run_study
from unitsphere.studies.core.spec import toml_text
from unitsphere.studies.core.tune import Tuned
from unitsphere.studies.league import (
    KIND,
    Entries,
    LeagueStudy,
    differing,
    league_study,
    places,
    standings,
)

ROOT = Path(__file__).parents[2]
RULES = """
tokens = 384
seeds = [0, 1, 2]
[set]
data.tokenizer = "bytes"
train = { batch_tokens = 64, eval_tokens = 256 }
[tune]
points = 1
"""


def losses(*values: float) -> dict[str, float]:
    return {str(seed): value for seed, value in enumerate(values)}


def test_places_follow_tukeys_test():
    found = places([losses(3.0, 3.01, 2.99), losses(3.01, 3.02, 3.0), losses(3.2, 3.21, 3.19)])
    assert [(row["place"], row["best"], row["worst"]) for row in found] == [
        (1, 1, 2),
        (2, 1, 2),
        (3, 3, 3),
    ]
    assert found[2]["loss"] == pytest.approx(3.2)
    assert found[0]["standard_error"] == pytest.approx(0.01 / np.sqrt(3))
    assert places([losses(3.0, 3.1)])[0]["worst"] == 1
    assert places([]) == []


def test_the_pairs_that_differ_are_those_of_scipy():
    random = np.random.default_rng(0)
    samples = [list(3 + 0.01 * n + random.normal(0, 0.01, 2 + n % 3)) for n in range(7)]
    wanted = stats.tukey_hsd(*samples).pvalue < 0.05
    assert 0 < wanted.sum() < 42
    assert (differing(samples) == wanted).all()


def test_places_of_many_entries_take_one_critical_value(monkeypatch):
    monkeypatch.setattr(module.stats, "tukey_hsd", None)
    found = places([losses(3 + n / 100, 3.001 + n / 100) for n in range(100)])
    assert [row["worst"] for row in found] == [*range(1, 101)]


def entry(name: str, text: str = "a", at_edge: bool = False, **by_seed: float):
    done = {"text": text, "at_edge": at_edge, "losses": by_seed, "unfinished": {}}
    return {"name": name} | done


def test_other_texts_and_single_runs_have_no_rank():
    rows = [
        entry("worse", s0=3.2, s1=3.21),
        entry("elsewhere", text="b", at_edge=True, s0=1.0, s1=1.0),
        entry("abroad", text="c", s0=1.0, s1=1.0),
        entry("alone", s0=3.0),
        entry("better", at_edge=True, s0=3.0, s1=3.01),
    ]
    found = standings(rows, "a")
    assert [row["name"] for row in found["rows"]] == ["better", "worse"]
    other, *rest = found["flags"]
    assert other["name"] == "other-text"
    assert other["text"].endswith("so not ranked: elsewhere, abroad")
    flags = {(flag["name"], flag["text"].split()[0].rstrip(":")) for flag in rest}
    assert flags == {("no-rank", "alone"), ("edge", "better")}


def test_an_entry_with_a_diverged_seed_has_no_rank():
    lucky = entry("lucky", s0=2.0, s1=2.01) | {"unfinished": {"2": "diverged"}}
    found = standings([lucky, entry("sound", s0=3.0, s1=3.01)], "a")
    assert [row["name"] for row in found["rows"]] == ["sound"]
    (flag,) = found["flags"]
    assert flag == {"name": "no-rank", "text": "lucky: seed 2 diverged: not ranked"}


@pytest.fixture
def entries(tmp_path: Path, monkeypatch) -> Path:
    """A file with one entry, and rules that train it in a second."""
    rules = tmp_path / "shipped/league/rules.toml"
    rules.parent.mkdir(parents=True)
    rules.with_name("rows.json").write_text('{"rows": []}')
    monkeypatch.setattr(module, "SHIPPED", tmp_path / "shipped")
    _, ngpt, _ = recipes(tmp_path)
    reference = {"data.context": 16, "train.precision": "fp32", "train.device": "cpu"}
    text = {"data.source": str(tmp_path / "text.jsonl"), "data.cache": str(tmp_path / "cache")}
    path = tmp_path / "mine.toml"
    arms = {"mine": {"recipe": ngpt, "set": {"data.val_fraction": 0.3}}}
    path.write_text(toml_text({"arms": arms, "set": text}))
    rules.write_text(
        RULES.replace("[set]", toml_text({"set": reference | {"data.val_fraction": 0.3}}))
    )
    return path


def test_an_entry_is_trained_and_ranked_with_the_published(entries, tmp_path):
    study = league_study([entries])
    assert isinstance(study, LeagueStudy)
    out = tmp_path / "out"
    first = run_study(KIND, study, out, InProcess()).document
    (mine,) = first["rows"]
    assert (mine["name"], mine["place"], mine["optimizer"]) == ("mine", 1, "adam")
    assert len(mine["losses"]) == 3
    theirs = {k: v - 1 for k, v in mine["losses"].items()}
    published = first | {"rows": [mine | {"name": "theirs", "losses": theirs}]}
    (tmp_path / "shipped/league/rows.json").write_text(json.dumps(published))
    assert module.published_standings()["provenance"] == first["provenance"]
    again = run_study(KIND, study, out, InProcess(stop=0))  # nothing is left to train
    assert [row["name"] for row in again.document["rows"]] == ["theirs", "mine"]
    assert again.document["rows"][1]["best"] == 2
    (tmp_path / "shipped/league/rows.json").write_text(json.dumps({"rows": [mine]}))
    twin = run_study(KIND, study, out, InProcess(stop=0)).document
    assert {row["name"] for row in twin["rows"]} == {"mine", "mine (published)"}
    (tmp_path / "shipped/league/rows.json").write_text(json.dumps(published))
    run_study(KIND, study, out, InProcess(stop=0))
    page = page_of(out)
    assert "theirs has the lowest loss of 2 entries" in page.answer


def test_an_entry_whose_rates_all_diverged_has_no_best_rate_at_an_edge(entries):
    study = league_study([entries])
    rate = Tuned(None, study.tokens, {0.01: None, 0.02: None}, at_edge=True)
    found = Entries(module.checked(study), {"mine": rate}, {"mine": {}}, "a")
    flags = standings([module.row(study, found, "mine")], "a")["flags"]
    assert [flag["name"] for flag in flags] == ["no-rank"]


def test_the_fingerprint_covers_both_splits_and_the_rules(entries):
    study = league_study([entries])
    (config,) = module.checked(study).values()
    known = module.fingerprint(config)
    longer = dataclasses.replace(config, data=dataclasses.replace(config.data, val_fraction=0.4))
    assert module.fingerprint(longer) != known
    rules = module.SHIPPED / "league/rules.toml"
    rules.write_text(rules.read_text().replace("tokens = 384", "tokens = 448"))
    assert module.fingerprint(config) != known


def test_an_entry_may_be_a_tenth_larger_and_may_not_be_called_as_the_rules(entries, tmp_path):
    path = tmp_path / "large.toml"
    path.write_text(
        entries.read_text().replace(
            "[arms.mine.set]", '[arms.mine.set]\n"model.d_model" = 512\n"model.n_layers" = 24'
        )
    )
    with pytest.raises(UserError, match=r"mine has [\d,]+ parameters, the rules allow 10% more"):
        module.checked(league_study([path]))
    path.write_text('[arms."the rules"]\nrecipe = "quickstart/ngpt"\n')
    with pytest.raises(UserError, match="must have a name of letters"):
        league_study([path])


def test_rules_are_not_an_entrys_to_set(entries, tmp_path, capsys):
    path = tmp_path / "other.toml"
    path.write_text('[arms.other]\nrecipe = "quickstart/ngpt"\n[set]\ndata.context = 512\n')
    with pytest.raises(UserError, match=r"'set.data.context' is for the league's rules"):
        league_study([path])
    path.write_text("tokens = 3\n[arms]\n")
    with pytest.raises(UserError, match="'tokens' is for the league's rules"):
        league_study([path])
    with pytest.raises(UserError, match="'mine' is in another file too"):
        league_study([entries, entries])
    longer = entries.read_text().replace("[arms.mine.set]", '[arms.mine.set]\n"data.context" = 32')
    path.write_text(longer)
    with pytest.raises(UserError, match=r"unfair: context.*: make the arms alike$"):
        module.checked(league_study([path]))
    for option in (["--out", "here"], ["--workers", "2"], ["--dry_run"]):
        assert main(["compare", "league", *option]) == 2
        assert f"{option[0]} is for entries that are trained" in capsys.readouterr().err
    assert main(["compare", "quickstart", "--add", str(path)]) == 2
    assert "--add is for the league" in capsys.readouterr().err


@pytest.mark.parametrize("said", ["arms = 3", '[[arms]]\nrecipe = "quickstart/ngpt"', 'set = "x"'])
def test_an_entrys_file_has_tables(said, tmp_path):
    path = tmp_path / "odd.toml"
    path.write_text(said)
    with pytest.raises(UserError, match=rf"{path}: '(arms|set)' must be a table, not "):
        league_study([path])


def test_the_published_rows_are_the_repositorys_entries_and_the_pages_table():
    rows = module.published()["rows"]
    entries = league_study([ROOT / "benchmarks/league/entries.toml"]).arms
    assert {row["name"]: (row["recipe"], row["set"]) for row in rows} == {
        name: (entry.recipe, entry.set) for name, entry in entries.items()
    }
    found = module.published_standings()
    assert len(found["rows"]) == len(rows) == len(entries)
    assert {tuple(row["losses"]) for row in rows} == {tuple(map(str, module.rules()["seeds"]))}
    assert {len(row["rates"]) for row in rows} == {module.rules()["tune"]["points"]}
    table = league_page(found, Path("league")).sections[0].blocks[0]
    assert isinstance(table, Table)
    page = (ROOT / "docs/results/league.md").read_text()
    assert markdown_table(table.columns, table.rows) in page


DESIGNS = {
    "Peri-LN": "peri-ln",
    "GPT+": "gpt-plus",
    "anGPT": "angpt",
    "nGPT": "ngpt",
    "LN-scaling": "lnscaling",
    "DyT": "dyt",
    "GPT": "gpt",
    "ReZero": "rezero",
    "Post-LN": "post-ln",
    "Pre-LN": "pre-ln",
    "NormFormer": "normformer",
}
OPTIMIZERS = {
    "Adam or AdamW": ("adamw", "adam"),
    "Muon": ("muon",),
    "NorMuon": ("normuon",),
    "SOAP": ("soap",),
    "SOAP-Muon": ("soap-muon",),
    "Gated AdamW": ("gated-adamw",),
    "MuonH": ("muonh",),
    "AdamH": ("adamh",),
}


def designs_by_optimizers(rows: dict[str, float]) -> str:
    """The losses of the entries that are one design with one optimizer and nothing else."""
    cells = [
        [
            next((f"{rows[f'{key}-{end}']:.3f}" for end in ends if f"{key}-{end}" in rows), "")
            for ends in OPTIMIZERS.values()
        ]
        for key in DESIGNS.values()
    ]
    lines = [["design", *OPTIMIZERS], ["---", *["---:"] * len(OPTIMIZERS)]]
    lines += [[name, *row] for name, row in zip(DESIGNS, cells, strict=True)]
    return "\n".join(f"| {' | '.join(line)} |".replace("  ", " ") for line in lines)


def test_no_cell_of_the_published_league_is_broken_in_80_columns(tmp_path):
    text = terminal(league_page(module.published_standings(), tmp_path), 80)
    shown = {tuple(line.split()[-5:-3]) for line in text.splitlines()}
    assert shown >= {(row["name"], row["optimizer"]) for row in module.published()["rows"]}


def test_the_page_s_designs_by_optimizers_are_the_published_rows():
    rows = {row["name"]: row["loss"] for row in module.published_standings()["rows"]}
    page = (ROOT / "docs/results/league.md").read_text()
    assert designs_by_optimizers(rows) in page
    pairs = sum(
        cell.strip() != ""
        for line in designs_by_optimizers(rows).splitlines()[2:]
        for cell in line.split("|")[2:-1]
    )
    assert f"of the {len(DESIGNS) * len(OPTIMIZERS)} pairs of this table {pairs} are there" in page


def test_the_entries_of_the_repository_follow_the_rules(monkeypatch):
    monkeypatch.chdir(ROOT)
    configs = module.checked(league_study([ROOT / "benchmarks/league/entries.toml"]))
    assert {config.model.d_model for config in configs.values()} == {64}
    assert configs["dyt-adamw"].architecture == "dyt"
    assert configs["peri-ln-adamw"].model.output_norm
