"""The page of a comparison in a terminal, in Markdown and as a picture."""

import copy
import html
import re

import pytest
from markdown_it import MarkdownIt
from studies.documents import played

from unitsphere.config import read_json
from unitsphere.report.document import Commands, Page, Sample, Samples, Section, Table, Text
from unitsphere.report.kinds.compare import budget_figure, compare_page, notes, ratio, speedup
from unitsphere.report.render.picture import picture
from unitsphere.report.render.text import markdown, origin, terminal
from unitsphere.report.write import write_results


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("comparison")
    return played(folder, {"gpt-plus": 1.0, "ngpt-with-a-name": 1.5, "slow": 0.7})


def test_the_tables_fit_80_columns_and_hold_every_figure(found, tmp_path):
    text = terminal(compare_page(found, tmp_path), 80)
    assert text.startswith("ngpt-with-a-name needs ")
    assert max(map(len, text.splitlines())) <= 80
    for arm, figures in found["arms"].items():
        assert arm in text
        for budget in figures["budgets"]:
            assert f"{budget['loss']:.4f}" in text
            assert f"{budget['bits_per_byte']:.4f}" in text
    assert "not reached" in text
    assert all(part in text for part in ratio(found["speedups"][0]["tokens"]).split())


def test_large_budgets_fit_too(found, tmp_path):
    large = copy.deepcopy(found)
    for arm in large["arms"].values():
        for budget in arm["budgets"]:
            budget["tokens"] *= 10**7
    text = terminal(compare_page(large, tmp_path), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert f"{large['arms']['gpt-plus']['budgets'][-1]['loss']:.4f}" in text


def test_ratios_say_what_is_missing():
    assert ratio({"median": 1.5, "low": 1.4, "high": 1.62}) == "1.50 (1.40–1.62)"
    assert ratio({"median": 1.5, "low": None, "high": 2.0, "reason": "low: …"}) == "1.50 (≤ 2.00)"
    assert ratio({"median": 1.5, "low": 1.4, "high": None, "reason": "high: …"}) == "1.50 (≥ 1.40)"
    assert ratio({"median": 1.5, "low": None, "high": None}) == "1.50 (no interval)"
    nothing = {"median": None, "low": None, "high": None}
    assert ratio(nothing | {"reason": "not reached within the budgets"}) == "not reached"
    assert ratio(nothing | {"reason": "runs were timed on different hardware"}) == "–"


def test_notes_have_targets_reasons_and_statements(found, tmp_path):
    said = notes(found)
    assert "slow, tokens, steps, flops, time: not reached within the budgets" in said
    assert any(line.startswith("slow: gpt-plus reaches its last loss × 1.4") for line in said)
    assert any(line.endswith("; median and 95% interval, bootstrap over 3 seeds") for line in said)
    of_one = copy.deepcopy(found)
    for row in of_one["speedups"]:
        row["seeds"] = 1
    assert not any("bootstrap" in line for line in notes(of_one))
    at_once = copy.deepcopy(found)
    for row in at_once["speedups"]:
        row["behind"] = {"median": None, "low": None, "high": None}
    assert "slow: gpt-plus reaches its last loss before the smallest budget" in notes(at_once)
    assert found["differences"][-1]["statement"] in said
    flagged = found | {"flags": [{"name": "one-seed", "text": "only seed 0"}]}
    assert compare_page(flagged, tmp_path).caveats == ["[one-seed] only seed 0"]


def test_the_answer_says_whether_the_seeds_explain_the_speedup(found, tmp_path):
    """The interval of a speedup over few seeds is too narrow to stand without the test."""
    best = max(found["speedups"], key=lambda row: row["tokens"]["median"] or 0)
    said = next(r for r in found["differences"][::-1] if r["arm"] == best["arm"])["statement"]
    answer = compare_page(found, tmp_path).answer
    assert answer.startswith(f"{best['arm']} needs ")
    assert answer.endswith(f" {said}.")


@pytest.mark.parametrize(
    ("gain", "times", "interval"),
    [
        ((1.4, 1.5, 1.62), "1.50 times fewer", "95% interval 1.40 to 1.62"),
        ((1.4, 1.5, None), "1.50 times fewer", "95% interval 1.40 or more"),
        ((None, 1.5, 2.0), "1.50 times fewer", "95% interval up to 2.00"),
        ((None, 1.5, None), "1.50 times fewer", "no interval"),
        ((0.4, 0.5, 0.8), "2.00 times more", "95% interval 1.25 to 2.50"),
        ((None, 0.5, 0.8), "2.00 times more", "95% interval 1.25 or more"),
        ((0.4, 0.5, None), "2.00 times more", "95% interval up to 2.50"),
    ],
)
def test_the_answer_has_the_end_of_the_interval_that_is_known(gain, times, interval):
    tokens = dict(zip(("low", "median", "high"), gain, strict=True))
    row = {"arm": "a", "baseline": "b", "seeds": 3, "tokens": tokens}
    said = f"a needs {times} tokens than b to reach its loss ({interval}, 3 seeds)."
    assert speedup(row) == said


def test_the_answer_does_not_pass_over_an_arm_that_is_there_before_its_smallest_budget(tmp_path):
    """Else the second best would be named: of the best no speedup is known."""
    found = played(tmp_path, {"gpt-plus": 1.0, "third": 1.5, "second": 8.0, "best": 9.0})
    answer = compare_page(found, tmp_path).answer
    assert answer.startswith("best reaches gpt-plus's loss before its smallest budget, so how ")
    assert "best against gpt-plus at 1,536 tokens: loss lower by" in answer
    assert "second" not in answer
    assert "third" not in answer


def test_markdown_has_answer_command_tables_picture_and_rates(found, tmp_path):
    page = compare_page(found, tmp_path)
    text = markdown(page)
    assert text.index(page.answer) < text.index("### Loss at equal tokens")
    assert f"Command: `{found['provenance']['command']}`" in text
    assert "![Loss against training tokens](loss.png)" in text
    assert "- gpt-plus at 384: 0.01: 3.0000, 0.02: 2.0000, 0.04: –" in text
    assert "| slow | not reached | not reached | not reached | not reached |" in text


def test_markdown_shows_names_as_they_are():
    """Arms may be named by a user's folders, and texts come from files of others."""
    name = "__a__*b*|`c`<i>[d](e)&lt; model.d_model"
    commands = Commands([("again", "run `x`")])
    table = Table(name, ["arm"], [[name]], notes=[name])
    blocks = [table, Text([name]), Samples([Sample(name, "```")]), commands]
    page = Page(name, "Kind", name, [Section("s", name, blocks)], caveats=[name])
    shown = r"\_\_a\_\_\*b\*|\`c\`\<i>[d\](e)\&lt; model.d_model"
    text = markdown(page)
    assert text.count(shown.partition("|")[0]) == text.count("model.d_model") == 8
    seen = MarkdownIt().renderInline(shown)
    assert html.unescape(seen) == name
    assert re.findall("<[a-z]", seen) == []
    assert f"# {shown}\n\n{shown}\n\n- {shown}\n" in text
    assert f"| {shown.replace('|', '&#124;')} |" in text
    assert "````text\n```\n````" in text
    assert "- again: `` run `x` ``" in text


def test_a_commit_that_is_not_known_is_said_to_be_that():
    source = {"command": "unitsphere compare a.toml", "commit": None, "machine": "x", "torch": "2"}
    assert "\nCommit: not known  \n" in origin(source)
    assert "\nCommit: abc  \n" in origin(source | {"runs_commit": "abc"})


def test_one_call_writes_the_results_of_a_study(found, tmp_path):
    out = tmp_path / "deep" / "study"
    page, files = write_results({"kind": "compare", **found}, out)
    assert page.kind == "Comparison"
    assert files == [out / "results.json", out / "results.md", out / "loss.png"]
    assert files[2].read_bytes()[:4] == b"\x89PNG"


def test_a_page_that_fails_loses_no_figures(found, tmp_path, monkeypatch):
    def fails(*_: object) -> None:
        raise RuntimeError("no page")

    monkeypatch.setattr("unitsphere.report.write.study_page", fails)
    with pytest.raises(RuntimeError, match="no page"):
        write_results({"kind": "compare", **found}, tmp_path)
    assert read_json(tmp_path / "results.json")["arms"] == found["arms"]


def test_arms_of_two_tokenizers_have_bits_per_byte_and_no_speedup(tmp_path):
    other = {"ngpt": {"data.tokenizer": "bpe:300"}}
    found = played(tmp_path, {"gpt": 1.0, "ngpt": 1.5}, changes=other)
    page = compare_page(found, tmp_path)
    assert page.answer.endswith("so nats per token do not compare: read bits per byte.")
    assert "| ngpt | – | – | – | – |" in markdown(page)


def test_the_picture_shows_what_finished(found):
    lines = {line.name: line for line in budget_figure(found).series}
    means = [b["loss"] for b in found["arms"]["gpt-plus"]["budgets"]]
    assert lines["gpt-plus"].y == pytest.approx(means, rel=1e-5)
    seeds = [[s["loss"] for s in b["seeds"]] for b in found["arms"]["gpt-plus"]["budgets"]]
    assert lines["gpt-plus"].low == pytest.approx([min(each) for each in seeds], rel=1e-5)
    assert lines["gpt-plus, seed 1"].y == pytest.approx([s[1] for s in seeds], rel=1e-5)
    lost = copy.deepcopy(found)
    slow = lost["arms"]["slow"]["budgets"]
    for seed in slow[0]["seeds"]:
        seed["loss"] = None
    assert len(next(s for s in budget_figure(lost).series if s.name == "slow").y) == 2
    for seed in (seed for budget in slow for seed in budget["seeds"]):
        seed["loss"] = None
    figure = budget_figure(lost)
    assert {line.legend for line in figure.series} == set(list(found["arms"])[:2])
    assert picture(figure, "png")[:4] == b"\x89PNG"


@pytest.mark.parametrize("budgets", [[], [{"tokens": 100, "seeds": [{"seed": 0, "loss": 3.0}]}]])
def test_little_is_enough_for_a_picture(budgets):
    figure = budget_figure({"arms": {"one": {"budgets": budgets}}, "speedups": []})
    assert len(picture(figure, "png")) > 1000
