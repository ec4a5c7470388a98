"""The arms' table of a quickstart says the same in a terminal and in Markdown, in 80 columns."""

import dataclasses

import pytest

from unitsphere.report.document import Page, Section, Table
from unitsphere.report.kinds.quickstart import Arm, arms_table
from unitsphere.report.numbers import duration
from unitsphere.report.render.text import markdown_table, terminal

GPT = Arm(
    name="gpt-plus",
    recipe="quickstart/gpt-plus",
    run="runs/quickstart/gpt-plus",
    parameters=1_312_384,
    lr=0.004,
    steps=300,
    tokens=614_400,
    bits_per_byte=2.1234,
    steps_to_baseline=300,
    ms_per_step=312.4,
    seconds=98.7,
)
NGPT = dataclasses.replace(
    GPT, name="ngpt", parameters=1_319_040, lr=0.01, bits_per_byte=2.05, steps_to_baseline=225
)
ANGPT = dataclasses.replace(GPT, name="angpt", bits_per_byte=2.2, steps_to_baseline=None)


def lines(arms: list[Arm], baseline: str | None) -> list[str]:
    table = arms_table(arms, baseline)
    return markdown_table(table.columns, table.rows).splitlines()


def test_every_figure_shows_at_80_columns():
    table = arms_table([GPT, NGPT, ANGPT], "gpt-plus")
    page = Page("", "", "Three arms", [Section("results", "", [table])])
    printed = terminal(page, 80).splitlines()
    rows = {line.split()[0]: line for line in printed if line.strip()}
    expected = ["gpt-plus", "1,312,384", "0.004", "2.123", "300", "312", "1m", "39s"]
    assert rows["gpt-plus"].split() == expected
    assert rows["ngpt"].split()[1:5] == ["1,319,040", "0.01", "2.050", "225"]
    assert " not " in rows["angpt"]  # reached, in the next line
    assert max(map(len, printed)) <= 80
    assert "…" not in "".join(printed)


def test_markdown_holds_the_same_cells():
    found = lines([GPT, ANGPT], "gpt-plus")
    assert found[0].startswith("| arm | parameters | learning rate | validation bits/byte | ")
    assert found[1].split("|")[1:3] == [" --- ", " ---: "]
    assert found[2] == "| gpt-plus | 1,312,384 | 0.004 | 2.123 | 300 | 312 | 1m 39s |"
    assert "not reached" in found[3]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59.4, "59s"), (59.6, "1m 00s"), (185, "3m 05s"), (7620, "2h 07m")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_without_a_baseline_nothing_refers_to_it():
    found = lines([NGPT], None)
    assert found[0].count("|") == 7
    assert "steps to" not in found[0]
    assert found[2] == "| ngpt | 1,319,040 | 0.01 | 2.050 | 312 | 1m 39s |"


def test_headings_give_way_before_names_do():
    """At 80 columns the table of the quickstart keeps its arms' names whole."""
    head = ["arm", "parameters", "steps to gpt-plus's last loss", "training time", "ms per step"]
    row = ["gpt-plus-muon-of-a-name", "1,311,880", "not reached", "1m 55s", "459"]
    page = Page(
        "q", "Quickstart", "", [Section("results", "Results", [Table("Arms", head, [row])])]
    )
    lines = terminal(page, 72).splitlines()
    assert any(all(cell in line for cell in row) for line in lines)
    assert all(len(line) <= 72 for line in lines)
