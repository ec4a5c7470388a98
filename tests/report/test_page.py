"""The report's page: what it says of runs and studies, whole or with pieces missing."""

import dataclasses
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report.made_up import NASTY, make_quickstart, make_run

from unitsphere.cli import main
from unitsphere.errors import UserError
from unitsphere.report import document
from unitsphere.report.document import Figure, Figures, Page, Section, Series, Table
from unitsphere.report.kinds.compare import budget_figure
from unitsphere.report.numbers import known, sort_value, within
from unitsphere.report.registry import page_of
from unitsphere.report.render.axes import smoothed
from unitsphere.report.render.html import figure_json, figure_rows, html, series_json
from unitsphere.report.render.picture import picture
from unitsphere.report.runs import by_arm, found_in, in_arms
from unitsphere.report.sections.accuracy import accuracy_sections
from unitsphere.report.sections.curves import POINTS, places
from unitsphere.report.write import build, write_page
from unitsphere.training.folder import add_evaluation, read_evaluations


class Elements(HTMLParser):
    """Start tags with their attributes, and the text of the page's data."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory) -> Path:
    return make_quickstart(tmp_path_factory.mktemp("page") / "quickstart")


def test_a_quickstart_s_answer_comes_first_with_its_figures(quickstart):
    page = page_of(quickstart)
    assert page.answer.startswith("After the same 409,600 training tokens ngpt is ")
    assert "% ahead of gpt-plus: " in page.answer
    assert any("one seed" in line.lower() for line in page.caveats)
    assert "angpt failed: the disk is full" in page.caveats
    names = [section.name for section in page.sections]
    assert names == ["curves", "results", "samples", "settings", "environment"]
    html = build(quickstart)
    assert html.index(page.answer) < html.index('id="curves"')


def test_curves_can_be_read_by_step_tokens_time_and_operations(quickstart):
    figure = next(f for f in page_of(quickstart).figures() if f.name == "loss")
    assert list(figure.xs) == ["step", "tokens", "time", "flops"]
    line = figure.series[0]
    assert (line.x["step"][0], line.x["tokens"][0]) == (1, 2048)
    assert line.x["time"][-1] == pytest.approx(200 * 0.4 / 60, rel=1e-5)
    assert figure.xs["time"] == "minutes of training"
    each = line.x["flops"][-1] / line.x["tokens"][-1]
    assert 6e6 < each < 12e6  # six operations for each of 1.18 million weights, and attention
    assert line.y[0] == pytest.approx(7 - 0.2 + 0.05 * 0.6569866, abs=1e-4)


def test_the_page_is_one_file_without_an_address_outside(quickstart):
    elements = Elements(build(quickstart))
    assert all(not a.get("src") or a["src"].startswith("data:") for _, a in elements.tags)
    links = [a["href"] for _, a in elements.tags if a.get("href")]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    policy = next(a["content"] for a in elements.named("meta") if "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy
    assert write_page(quickstart, quickstart / "p.html").path.stat().st_size < 5e6


def test_what_users_wrote_never_becomes_markup(tmp_path):
    folder = make_quickstart(tmp_path / "quick<b>start", nasty=NASTY)
    html = build(folder)
    elements = Elements(html)
    assert all("onerror" not in attributes for _, attributes in elements.tags)
    assert len(elements.named("script")) == 2
    assert not elements.named("b")
    assert NASTY in "".join(elements.text)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert "loss" in json.loads(data.group(1))


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (("environment.json",), "reached"),
        (("samples.txt",), "reached"),
        (("config.json",), "is at"),
        (("metrics.jsonl",), "no record yet"),
        (("config.json", "environment.json", "samples.txt"), "is at"),
    ],
)
def test_a_run_with_missing_pieces_has_a_page(tmp_path, missing, said):
    run = make_run(tmp_path / "run", "quickstart/ngpt")
    for name in missing:
        (run / name).unlink()
    assert said in page_of(run).answer
    assert "<main" in build(run)


def test_torn_files_and_records_of_another_kind_are_no_end(tmp_path):
    run = make_run(tmp_path / "run", "quickstart/ngpt")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 201, "loss": NaN}\n{"step": 202, "loss": "high", "tokens": 1}\n{"st')
    (run / "environment.json").write_text('{"command": ["x", 3]')
    figures = {figure.name: figure for figure in page_of(run).figures()}
    assert max(figures["loss"].series[0].x["step"]) == 200
    assert "NaN" not in build(run)


def test_a_study_s_run_is_named_by_its_place(tmp_path):
    run = tmp_path / "runs" / "ngpt" / "1000" / "seed-0"
    make_run(run, "quickstart/ngpt")
    assert page_of(run).title == "seed-0"
    (tmp_path / "study.toml").touch()
    assert page_of(run).title == "ngpt 1000 seed-0"


def test_a_copied_study_s_runs_are_the_copy_s(tmp_path):
    run = make_run(tmp_path / "first" / "runs" / "ngpt" / "seed-0", "quickstart/ngpt", steps=20)
    outside = make_run(tmp_path / "outside", "quickstart/ngpt", steps=20)
    copied = shutil.copytree(tmp_path / "first", tmp_path / "second") / "runs" / "ngpt" / "seed-0"
    assert found_in(tmp_path / "second", str(run)) == copied
    assert found_in(tmp_path / "second", str(outside)) == outside
    assert found_in(tmp_path / "second", str(tmp_path / "gone")) is None


def test_a_run_that_still_trains_says_how_far_it_is(tmp_path):
    run = make_run(tmp_path / "run", "quickstart/ngpt", steps=400, until=100)
    page = page_of(run)
    assert page.unfinished == "Not finished: run at step 100 of 400"
    assert page.answer.startswith("run is at")


def test_runs_in_a_folder_without_results_stand_beside_each_other(tmp_path):
    make_run(tmp_path / "study" / "runs" / "a" / "seed-0", "quickstart/ngpt")
    make_run(tmp_path / "study" / "runs" / "b" / "seed-0", "quickstart/gpt-plus", 300, until=60)
    page = page_of(tmp_path / "study")
    assert page.answer == "1 of 2 runs that have started are finished; there is no result yet."
    table = next(b for s in page.sections for b in s.blocks if isinstance(b, Table))
    assert [row[:3] for row in table.rows] == [
        ["a/seed-0", "200", "200"],
        ["b/seed-0", "60", "300"],
    ]


def test_an_exported_model_is_not_a_run(tmp_path):
    make_run(tmp_path / "run", "quickstart/ngpt")
    exported = tmp_path / "run-hf"
    exported.mkdir()
    (exported / "config.json").write_text('{"model_type": "unitsphere", "architecture": "ngpt"}')
    assert page_of(tmp_path).answer.startswith("1 of 1 runs")
    with pytest.raises(UserError, match="has no run and no study"):
        page_of(exported)


def test_arms_differ_in_what_their_configs_differ_in(quickstart):
    page = page_of(quickstart)
    section = next(s for s in page.sections if s.name == "settings")
    table = next(block for block in section.blocks if isinstance(block, Table))
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["architecture"] == ["gpt", "ngpt"]
    assert rows["model.s_qk.init"] == ["–", "1"]
    assert "train.steps" not in rows


def test_a_folder_without_a_run_is_a_mistake_in_one_line(tmp_path, capsys):
    with pytest.raises(UserError, match="has no run and no study"):
        page_of(tmp_path)
    assert main(["report", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_results_of_another_version_are_a_mistake_in_one_line(tmp_path):
    (tmp_path / "results.json").write_text('{"speedups": [], "arms": {}}')
    with pytest.raises(UserError, match="another version"):
        page_of(tmp_path)


def test_the_verb_writes_the_page_and_its_figures(quickstart, tmp_path, capsys):
    out, figures = tmp_path / "page.html", tmp_path / "figures"
    assert (
        main(["report", str(quickstart), "--out", str(out), "--figures", str(figures), "--json"])
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["page"] == str(out)
    assert said["bytes"] == out.stat().st_size < 5e6
    assert said["kind"] == "Quickstart"
    for figure in said["figures"]:
        assert Path(figure["svg"]).read_bytes().startswith(b"<?xml")
        assert Path(figure["png"]).read_bytes()[:4] == b"\x89PNG"
        assert figure["data"].startswith("unitsphere train quickstart/")
    assert main(["report", str(quickstart)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(quickstart / "report.html")


def test_figures_drawn_twice_are_the_same(quickstart, tmp_path):
    first, second = (
        write_page(quickstart, tmp_path / f"{n}.html", tmp_path / n).figures["loss"]["svg"]
        for n in ("a", "b")
    )
    assert Path(first).read_bytes() == Path(second).read_bytes()


def test_every_figure_has_its_data_as_a_table(quickstart):
    for figure in page_of(quickstart).figures():
        rows = figure_rows(figure)
        assert 2 <= len(rows) <= 26
        assert {len(row) for row in rows} == {1 + len(figure.series)}
        last = [f"{series.y[-1]:.6g}" for series in figure.series]
        assert rows[-1][1:] == last


def lines(count: int) -> Figure:
    """A figure of lines, each with a value at a place that the others lack."""
    series = [Series(f"arm {i}", {"step": [0, i + 1]}, [1.0, 2.0 + i], i) for i in range(count)]
    return Figure("some", "Some", "value", {"step": "steps"}, series)


def test_a_figure_is_rounded_once(several, tmp_path):
    run = shutil.copytree(several["gpt"], tmp_path / "gpt")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "val_bits_per_byte": 4.2135047, "loss": 7.3478487}\n')
    validation, loss = (
        next(f for f in page_of(run).figures() if f.name == name)
        for name in ("val-bits-per-byte", "loss")
    )
    assert validation.caption == "Last: gpt 4.214."
    assert figure_rows(loss)[-1][1] == "7.34785"


def test_a_table_under_a_plot_carries_no_value_forward():
    assert figure_rows(lines(2)) == [["0", "1", "1"], ["1", "2", ""], ["2", "", "3"]]


def test_a_table_under_panels_tells_their_lines_apart():
    names = [("ngpt", "piqa"), ("ngpt", "sciq"), ("W_q, step 0", "W_q"), ("W_q", "W_q"), ("h", "")]
    line = Series("", {"step": [1]}, [1.0])
    series = [dataclasses.replace(line, name=name, panel=panel) for name, panel in names]
    figure = Figure("some", "Some", "value", {"step": "steps"}, series)
    page = Page("Some", "", "", [Section("some", "Some", [Figures([figure])])])
    heads = re.findall('<th scope="col" class="number">(.*?)</th>', html(page, "", {}))
    assert heads == ["piqa, ngpt", "sciq, ngpt", "W_q, step 0", "W_q", "h"]


def test_more_than_six_lines_become_small_plots_with_the_others_behind():
    assert [panel.title for panel in lines(6).panels()] == [""]
    panels = lines(7).panels()
    assert [panel.title for panel in panels] == [f"arm {i}" for i in range(7)]
    assert all(len(panel.series) == 1 and len(panel.behind) == 6 for panel in panels)
    assert figure_json(lines(7))["panels"][2] == {
        "title": "arm 2",
        "series": [2],
        "behind": [0, 1, 3, 4, 5, 6],
    }
    svg = picture(lines(7)).decode()
    assert all(f"arm {i}" in svg for i in range(7))


def change(run: Path, key: str, value: object) -> Path:
    """Another value in a run's config."""
    config = json.loads((run / "config.json").read_text())
    section, _, name = key.partition(".")
    (config[section] if name else config)[name or section] = value
    (run / "config.json").write_text(json.dumps(config))
    return run


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> dict[str, Path]:
    """Two seeds of a run, one with another rate, and one of another architecture."""
    root = tmp_path_factory.mktemp("several")
    for name in ("ngpt-s0", "ngpt-s1", "ngpt-rate"):
        make_run(root / name, "quickstart/ngpt", steps=40)
    make_run(root / "gpt", "quickstart/gpt-plus", steps=40)
    change(root / "ngpt-s1", "train.seed", 1)
    change(root / "ngpt-rate", "optim.lr", 0.5)
    return {path.name: path for path in root.iterdir()}


def test_only_runs_that_differ_in_the_seed_are_one_arm(several):
    arms = by_arm(in_arms(sorted(several.items())))
    told = {arm: [run.name for run in runs] for arm, runs in arms.items()}
    assert told == {"gpt": ["gpt"], "ngpt-rate": ["ngpt-rate"], "ngpt": ["ngpt-s0", "ngpt-s1"]}
    page = page_of(several["gpt"].parent)
    caption = next(f.caption for f in page.figures() if f.name == "loss")
    assert "ngpt-rate" in caption
    assert caption.startswith("Last, means: gpt ")


def test_two_seeds_do_not_take_the_name_of_another_run(several):
    named = [("ngpt-0", several["ngpt-s0"]), ("ngpt-1", several["ngpt-s1"])]
    runs = in_arms([*named, ("ngpt", several["gpt"])])
    assert [run.arm for run in runs] == ["ngpt-0", "ngpt-0", "ngpt"]


def test_runs_that_one_names_stand_on_one_page_with_what_differs(several, tmp_path, capsys):
    chosen = [several[name] for name in ("ngpt-s0", "ngpt-rate")]
    page = page_of(chosen)
    assert page.answer.startswith("Of 2 runs ngpt-s0 is lowest: ")
    assert page.caveats == ["The runs differ in optim.lr (see Settings)."]
    assert dict(page.facts) == {"data": "stdlib", "tokenizer": "1,024 entries"}
    out = tmp_path / "page.html"
    assert main(["report", *map(str, chosen), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "Runs"
    assert "optim.lr" in out.read_text()
    assert f"unitsphere report {chosen[0]} {chosen[1]}" in out.read_text()
    assert main(["report", *map(str, chosen), "--samples", "1"]) == 2
    assert "--samples writes texts of one run" in capsys.readouterr().err


def test_a_run_that_is_named_twice_has_its_own_page(several):
    run = several["ngpt-s0"]
    assert page_of([run, run]).kind == page_of(run).kind == "Training run · ngpt"
    assert page_of([run, run]).answer == page_of(run).answer


def test_a_diverged_run_is_not_the_lowest(several, tmp_path):
    """Its last validation was before it diverged; the table says "diverged" in its place."""
    run = shutil.copytree(several["ngpt-rate"], tmp_path / "wild")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 41, "val_loss": 0.1, "val_bits_per_byte": 0.1}\n')
        file.write('{"step": 42, "diverged": 42}\n')
    assert page_of([several["ngpt-s0"], run]).answer.startswith("Of 2 runs ngpt-s0 is lowest: ")
    again = shutil.copytree(run, tmp_path / "again")
    assert page_of([run, again]).answer == "2 runs, all of which diverged."


def test_a_huge_loss_has_three_digits(several, tmp_path):
    run = shutil.copytree(several["ngpt-rate"], tmp_path / "wild")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "loss": 2e28, "val_loss": 1.25e30, "val_bits_per_byte": 7e29}\n')
    facts = dict(page_of(run).facts)
    assert (facts["validation loss"], facts["bits per byte"]) == ("1.25e+30", "7e+29")
    assert page_of(run).answer == (
        "wild reached 7e+29 bits per byte of text that it was not trained on, after 40 steps."
    )
    runs = page_of([run, several["ngpt-s0"]]).sections[0].blocks[0]
    assert runs.rows[0][3:6] == ["2e+28", "1.25e+30", "7e+29"]
    assert runs.numeric(4)


def test_the_tokens_of_a_validation_are_those_it_was_made_after(several, tmp_path):
    run = shutil.copytree(several["ngpt-s0"], tmp_path / "run")
    before = [page_of(run).answer, page_of([run, several["gpt"]]).answer]
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4000, "tokens": 8192000, "time": 1e3, "loss": 2.0}\n')
    after = [page_of(run).answer, page_of([run, several["gpt"]]).answer]
    assert after == before


def test_losses_on_other_data_are_not_to_be_compared(several, tmp_path):
    other = make_run(tmp_path / "other", "quickstart/ngpt", steps=40)
    page = page_of([several["ngpt-s0"], change(other, "data.source", "books.jsonl")])
    assert any("of other text or tokens: data.source differs" in line for line in page.caveats)
    assert page.answer == "2 runs, which cannot be compared: they are validated on different texts."
    own = shutil.copytree(several["ngpt-s0"], tmp_path / "own")
    alike = [change(run, "data.validation", "held-out.txt") for run in (own, other)]
    assert page_of(alike).answer.startswith("Of 2 runs ")
    assert dict(page.facts)["data"] == "stdlib, books.jsonl"
    for key, value in (("data.field", "body"), ("train.eval_tokens", 4096)):
        part = change(shutil.copytree(several["ngpt-s0"], tmp_path / key), key, value)
        beside = page_of([several["ngpt-s0"], part])
        assert beside.answer == page.answer
        assert f"of other text or tokens: {key} differs" in beside.caveats[1]


def test_nats_of_different_tokens_are_not_compared(several, tmp_path):
    runs = []
    for tokenizer in ("bytes", "bpe:1024"):
        run = shutil.copytree(several["ngpt-s0"], tmp_path / tokenizer)
        runs.append(change(run, "data.tokenizer", tokenizer))
    assert page_of(runs).answer.startswith("Of 2 runs ")
    for run in runs:  # as of masked models, which have no bits per byte
        lines = (run / "metrics.jsonl").read_text()
        (run / "metrics.jsonl").write_text(lines.replace("val_bits_per_byte", "val_accuracy"))
    assert page_of(runs).answer == "2 runs, which cannot be compared: their tokenizers differ."


def test_a_masked_model_s_loss_is_shown_but_not_compared(several, tmp_path):
    """It has no bits per byte, so the loss in nats says more."""
    masked = change(shutil.copytree(several["gpt"], tmp_path / "masked"), "objective", "mlm")
    lines = (masked / "metrics.jsonl").read_text()
    (masked / "metrics.jsonl").write_text(lines.replace("val_bits_per_byte", "val_accuracy"))
    page = page_of([several["ngpt-s0"], masked])
    assert page.answer == "2 runs, which cannot be compared: they have different objectives."
    losses = next(f for f in page.figures() if f.name == "val-loss")
    assert [line.name for line in losses.series] == ["ngpt-s0", "masked"]


def test_a_quickstart_s_speedup_is_drawn_between_its_curves(quickstart):
    figure = next(f for f in page_of(quickstart).figures() if f.name == "val-bits-per-byte")
    base, ngpt = figure.series
    (mark,) = figure.marks
    first = next(x for x, y in zip(ngpt.x["step"], ngpt.y, strict=True) if y <= base.y[-1])
    assert mark.x["step"] == (200, first)
    assert mark.y == base.y[-1]
    assert mark.text == f"ngpt ×{200 / first:.2f}"
    assert mark.text in picture(figure).decode()


def test_a_study_s_budgets_are_the_ticks_and_its_speedup_an_arrow():
    arms = {
        name: {
            "budgets": [
                {"tokens": tokens, "seeds": [{"seed": 0, "loss": loss - place}]}
                for tokens, loss in ((245760, 5.0), (983040, 4.0))
            ]
        }
        for place, name in enumerate(("gpt", "ngpt"))
    }
    speedup = {"arm": "ngpt", "tokens": {"median": 2.0}, "to": {"tokens": 983040, "loss": 4.0}}
    figure = budget_figure({"arms": arms, "speedups": [speedup], "provenance": {}})
    assert figure.places == {"tokens": [245760, 983040]}
    (mark,) = figure.marks
    assert (mark.x["tokens"], mark.y, mark.text) == ((983040, 491520), 4.0, "ngpt ×2.00")
    svg = picture(figure).decode()
    assert ">246k<" in svg
    assert ">983k<" in svg
    assert "ngpt ×2.00" in svg


def test_accuracy_over_budgets_and_checkpoints_is_a_line_per_arm(several, tmp_path):
    def evaluate(run: Path, step: int, **scores: float) -> None:
        tasks = {
            task: {"items": 9, "shots": 0, "metrics": {"acc": {"value": v, "standard_error": 0.1}}}
            for task, v in scores.items()
        }
        add_evaluation(run, {"step": step, "tokens": 10 * step, "context": 8, "tasks": tasks})

    short, long = (make_run(tmp_path / f"ngpt-{n}", "quickstart/ngpt", steps=n) for n in (20, 40))
    evaluate(short, 20, piqa=0.5, sciq=0.3)
    evaluate(long, 40, piqa=0.1)
    evaluate(long, 40, piqa=0.7)  # in the place of the one before
    evaluate(long, 40, sciq=0.5)
    evaluate(long, 30, piqa=0.6)  # a checkpoint
    evaluate(long, 20, piqa=0.9)  # one where the short run ends: it is not another seed of it
    assert len(read_evaluations(long)) == 4
    (section,) = accuracy_sections(in_arms([("ngpt-20", short), ("ngpt-40", long)]))
    figures, table = section.blocks
    lines = {(line.legend, line.panel): line for line in figures.figures[0].series}
    assert list(lines) == [("ngpt", "piqa"), ("ngpt", "sciq"), ("ngpt", "average")]
    piqa = lines["ngpt", "piqa"]
    assert (piqa.x["tokens"], piqa.y) == ([200, 300, 400], [0.5, 0.6, 0.7])
    assert (piqa.low[0], piqa.high[0]) == (0.4, 0.6)
    assert lines["ngpt", "average"].y == [0.4, 0.6]
    assert table.rows[1] == ["ngpt", "300", "0.6000", "", ""]
    (beside,) = accuracy_sections(in_arms([("gpt", several["gpt"]), ("ngpt", long)]))
    assert {line.colour for line in beside.blocks[0].figures[0].series} == {1}
    assert accuracy_sections(in_arms(list(several.items()))) == []


def test_accuracies_with_other_shots_are_other_panels_and_averages(tmp_path):
    run = make_run(tmp_path / "ngpt", "quickstart/ngpt", steps=20)
    for shots, scores in ((0, (0.5, 0.3)), (5, (0.9, 0.7)), (1, (0.6,))):
        tasks = {
            task: {"items": 9, "shots": shots, "metrics": {"acc": {"value": value}}}
            for task, value in zip(("piqa", "sciq"), scores, strict=False)
        }
        add_evaluation(run, {"step": 20, "tokens": 200, "context": 8, "tasks": tasks})
    (section,) = accuracy_sections(in_arms([("ngpt", run)]))
    figures, table = section.blocks
    panels = {line.panel: line.y for line in figures.figures[0].series}
    assert panels == {
        "piqa": [0.5],
        "sciq": [0.3],
        "piqa, 5 shots": [0.9],
        "sciq, 5 shots": [0.7],
        "piqa, 1 shot": [0.6],
        "average": [0.4],
        "average, 5 shots": [0.8],
    }
    assert table.columns == ["arm", "tokens", *panels]


def test_long_lines_keep_their_spikes(tmp_path):
    y = [1.0] * 10_000
    y[4321] = 9.0
    kept = places(y, 200)
    assert len(kept) <= 200
    assert {0, 4321, 9999} <= set(kept)
    assert places([1.0, None], 4) == [0, 1]
    run = make_run(tmp_path / "run", "quickstart/ngpt", steps=3 * POINTS)
    for block in page_of(run).sections[0].blocks:
        assert isinstance(block, Figures)
        assert all(len(s.y) <= POINTS for figure in block.figures for s in figure.series)


def test_a_long_line_with_spikes_is_smoothed_by_means_of_all_its_values(tmp_path):
    run = make_run(tmp_path / "run", "quickstart/ngpt", steps=3 * POINTS)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for i, line in enumerate(lines):
        line["grad_norm"] = 101.0 if i % 6 == 3 else 1.0  # 17.7 on average
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    figures = {figure.name: figure for figure in page_of(run).figures()}
    (line,) = figures["grad-norm"].series
    assert max(line.y) == 101.0
    assert max(smoothed(line.means, 0.9)[100:]) < 25
    assert series_json(line)["means"] == line.means
    (short,) = page_of(make_run(tmp_path / "short", "quickstart/ngpt")).figures()[0].series
    assert short.means is None


def test_smoothing_has_no_bias_at_its_start():
    assert smoothed([3.0, 3.0, None, 3.0], 0.9) == [pytest.approx(3.0)] * 2 + [
        None,
        pytest.approx(3.0),
    ]
    assert smoothed([1.0, 2.0], 0.5)[1] == pytest.approx((0.25 * 1 + 0.5 * 2) / 0.75)


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (2.27449, ".4f", "2.2745"),
        (0.25, "+.2f", "+0.25"),
        (1234567.25, ".4f", "1234567.2500"),
        (12345678.25, ".4f", "1.23e+07"),
        (-1.25e30, "+.2f", "-1.25e+30"),
        (8.5e43, ",.0f", "8.5e+43"),
        (134_217_728, ",.0f", "134,217,728"),
    ],
)
def test_a_figure_is_never_longer_than_a_column(value, form, text):
    assert known(value, form) == text
    assert within(value, None, form) == text
    assert within(value, (value, value), form) == f"{text} [{text}, {text}]"


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1,311,880", 1311880),
        ("1.42 (1.31–1.55)", 1.42),
        ("-0.0123", -0.0123),
        ("+0.33", 0.33),
        ("1m 29s", 89),
        ("2h 07m", 7620),
        ("42s", 42),
        ("3e-4", 3e-4),
        ("–", None),
        ("", None),
        ("not reached", None),
        ("ngpt", None),
    ],
)
def test_a_cell_sorts_by_its_number(cell, value):
    assert sort_value(cell) == value


def test_the_time_of_a_long_table_grows_with_its_rows(monkeypatch):
    looked = []
    monkeypatch.setattr(document, "sort_value", lambda cell: looked.append(cell) or 1.0)
    table = Table("Trials", ["trial", "loss"], [[str(n), "2.5"] for n in range(50)])
    text = html(Page("Some", "", "", [Section("some", "Some", [table])]), "", {})
    assert text.count('class="number">2.5</td>') == 50
    assert len(looked) <= 100


def test_a_run_without_a_figure_leaves_its_column_one_of_numbers():
    table = Table("", ["arm", "loss"], [["a", "3.25"], ["b", "stopped"], ["c", "–"]])
    assert table.numeric(1)
    assert not table.numeric(0)
    assert not Table("", ["arm", "loss"], [["a", "stopped"]]).numeric(1)
