"""Accuracy on tasks: which evaluations of a run the page shows."""

from pathlib import Path

from report.made_up import make_run

from unitsphere.report.document import Table
from unitsphere.report.runs import in_arms
from unitsphere.report.sections.accuracy import accuracy_sections
from unitsphere.training.folder import add_evaluation, read_evaluations
from unitsphere.training.load import config_of_run


def evaluate(run: Path, context: int, items: int, value: float) -> None:
    metrics = {"acc": {"value": value, "standard_error": 0.1}}
    tasks = {"piqa": {"items": items, "shots": 0, "metrics": metrics}}
    add_evaluation(run, {"step": 20, "tokens": 200, "context": context, "tasks": tasks})


def table_of(*runs: Path) -> Table:
    (section,) = accuracy_sections(in_arms([(run.name, run) for run in runs]))
    table = section.blocks[1]
    assert isinstance(table, Table)
    return table


def test_the_most_items_are_shown_and_of_these_the_context_of_the_training(tmp_path):
    run = make_run(tmp_path / "ngpt", "quickstart/ngpt", steps=20)
    own = config_of_run(run).data.context
    evaluate(run, own, 9000, 0.3)
    evaluate(run, 2 * own, 9000, 0.2)
    evaluate(run, own, 5, 0.8)
    assert len(read_evaluations(run)) == 3
    table = table_of(run)
    assert table.rows == [["ngpt", "200", "0.3000"]]
    assert table.notes == []
    evaluate(run, 2 * own, 9001, 0.1)
    assert table_of(run).rows == [["ngpt", "200", "0.1000"]]


def test_a_note_says_where_the_number_of_items_differs(tmp_path):
    gpt, ngpt = (
        make_run(tmp_path / name, f"quickstart/{name}", steps=20) for name in ("gpt-plus", "ngpt")
    )
    evaluate(gpt, 8, 5, 0.5)
    evaluate(ngpt, 8, 9000, 0.5)
    (note,) = table_of(gpt, ngpt).notes
    assert note.startswith("piqa: the evaluations have 5 to 9,000 items")
