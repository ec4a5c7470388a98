"""Labelled texts: GLUE's files as they are found, every mistake; sequences, splits, batches."""

import json
import os
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unitsphere.data.labelled import (
    Example,
    class_indices,
    class_names,
    encode_examples,
    fitting,
    padded_rows,
    read_labelled,
    shuffled_batches,
    stratified,
)
from unitsphere.data.tasks import TASKS, Fields, fields_of
from unitsphere.data.tokenizer import load_tokenizer
from unitsphere.errors import UserError

# A busy machine generates slowly.
relaxed = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
def write(tmp_path):
    """Write a file of this name and content; its path."""

    def made(name: str, content: str, encoding: str = "utf-8") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode(encoding))
        return path

    return made


def read(path: Path, task: str | None = None, **named: str):
    fields = fields_of(task, named.get("text"), named.get("text2"), named.get("label"))
    return [(e.text, e.text2, e.label, e.line) for e in read_labelled(path, fields)]


def test_sst2_as_glue_ships_it(write):
    path = write("train.tsv", 'sentence\tlabel\nhide new "secretions \t0\nfine\t1\n')
    assert read(path, "sst2") == [('hide new "secretions ', None, "0", 2), ("fine", None, "1", 3)]


def test_mrpc_as_glue_ships_it_with_a_byte_order_mark_and_windows_line_ends(write):
    text = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tOne .\tTwo .\r\n"
    assert read(write("msr.tsv", text), "mrpc") == [("One .", "Two .", "1", 2)]


def test_rte_s_names_are_the_classes_0_and_1(write):
    text = "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tnot_entailment\n1\tc\td\tentailment\n"
    found = read(write("rte.tsv", text), "rte")
    assert found == [("a", "b", "1", 2), ("c", "d", "0", 3)]


def test_cola_with_and_without_a_header(write):
    plain = write("a.tsv", "gj04\t1\t\tThe car honked.\ngj04\t0\t*\tThe car honk.\n")
    headed = write("b.tsv", "x\ty\nThe car honked.\t1\nThe car honk.\t0\n")
    assert [row[:3] for row in read(plain, "cola")] == [row[:3] for row in read(headed, "cola")]
    assert read(plain, "cola")[0] == ("The car honked.", None, "1", 1)


def test_mnli_as_glue_ships_it_and_as_its_authors_do(write, capsys):
    names = "index\tgenre\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
    rows = "0\tfiction\t(a)\ta\tb\tneutral\tcontradiction\n1\tfiction\t(c)\tc\td\tneutral\t-\n"
    assert read(write("train.tsv", names + rows), "mnli") == [("a", "b", "2", 2)]
    assert "1 lines without a label or text are left out" in capsys.readouterr().err
    own = {"gold_label": "entailment", "sentence1": "a", "sentence2": "b", "genre": "x"}
    hub = {"premise": "a", "hypothesis": "b", "label": 1, "idx": 0}
    text = "".join(json.dumps(row) + "\n" for row in (own, hub))
    assert [row[2] for row in read(write("mnli.jsonl", text), "mnli")] == ["0", "1"]


def test_qnli_and_qqp_as_glue_ships_them(write, capsys):
    text = "index\tquestion\tsentence\tlabel\n0\tWho ?\tMe .\tnot_entailment\n"
    assert read(write("qnli.tsv", text), "qnli") == [("Who ?", "Me .", "1", 2)]
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    text = head + "1\t2\t3\tWhy ?\tHow ?\t1\n4\t5\t6\tbroken\n7\t8\t9\tSo ?\t\t0\n"
    assert read(write("qqp.tsv", text), "qqp") == [("Why ?", "How ?", "1", 2)]
    assert "2 lines" in capsys.readouterr().err
    row = {"question1": "a", "question2": "b", "label": 0}
    assert read(write("qqp.jsonl", json.dumps(row)), "qqp") == [("a", "b", "0", 1)]


def test_wsc_as_superglue_ships_it_and_flat(write):
    target = {"span1_index": 0, "span1_text": "Mark", "span2_index": 3, "span2_text": "him"}
    text = "Mark told Pete: him, not himself."
    marked = "Mark told Pete: *him*, not himself."
    rows = [
        {"text": text, "target": target, "idx": 0, "label": False},
        {"text": text, **target, "label": 1},
    ]
    path = write("wsc.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert read(path, "wsc") == [(marked, "Mark", "0", 1), (marked, "Mark", "1", 2)]
    elsewhere = {"text": text, "target": target | {"span2_index": 1}, "label": True}
    assert read(write("odd.jsonl", json.dumps(elsewhere)), "wsc") == [(text, "Mark", "1", 1)]


def test_jsonl_with_labels_as_numbers_and_as_names(write):
    rows = [
        {"sentence1": "a", "sentence2": "b", "label": 1, "idx": 0},
        {"sentence1": "c", "sentence2": "d", "label": "entailment", "idx": 1},
    ]
    path = write("rte.jsonl", "\n\n".join(json.dumps(row) for row in rows))
    assert read(path, "rte") == [("a", "b", "1", 1), ("c", "d", "0", 3)]


def test_any_file_by_its_fields(write):
    path = write("mine.tsv", "topic\tbody\nsport\tball\nnews\tpaper\n")
    examples = read_labelled(path, fields_of(None, "body", None, "topic"))
    assert [(e.text, e.label) for e in examples] == [("ball", "sport"), ("paper", "news")]
    classes = class_names(examples, Fields(("body",), ("topic",)))
    assert classes == ["news", "sport"]
    assert class_indices(examples, classes, path) == [1, 0]


def test_columns_by_number_have_no_header(write):
    path = write("mine.tsv", "1\tball\n2\tpaper\n")
    assert read(path, text="2", label="1") == [("ball", None, "1", 1), ("paper", None, "2", 2)]


def test_a_named_field_takes_the_preset_s_place(write):
    path = write("other.tsv", "body\tlabel\nfine\t1\n")
    assert read(path, "sst2", text="body") == [("fine", None, "1", 2)]


def test_classes_are_sorted_by_value(write):
    path = write("n.tsv", "text\tlabel\n" + "".join(f"t\t{n}\n" for n in (10, 9, -1)))
    examples = read_labelled(path, fields_of(None, "text", None, "label"))
    assert class_names(examples, Fields((), ())) == ["-1", "9", "10"]


text = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r\0"), min_size=1
).filter(lambda s: s.strip())
rows = st.lists(st.tuples(text, text, st.sampled_from("01")), min_size=1)


@relaxed
@given(rows)
def test_what_is_written_as_tsv_comes_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("tsv") / "t.tsv"
    head = "index\tsentence1\tsentence2\tlabel\n"
    lines = (f"{i}\t{a}\t{b}\t{label}\n" for i, (a, b, label) in enumerate(rows))
    path.write_bytes((head + "".join(lines)).encode())
    assert [row[:3] for row in read(path, "rte")] == rows


@relaxed
@given(rows)
def test_what_is_written_as_jsonl_comes_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("jsonl") / "t.jsonl"
    records = ({"sentence1": a, "sentence2": b, "label": int(label)} for a, b, label in rows)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert [row[:3] for row in read(path, "rte")] == rows


MISTAKES = {
    "a field that is not there": ("t.tsv", "text\tlabel\na\t1\n", "line 1", "'sentence'"),
    "columns missing": ("t.tsv", "sentence\tlabel\nfine\t1\nbad\n", "line 3", "1 columns"),
    "an unknown label": ("t.tsv", "sentence\tlabel\nfine\t1\nbad\t-1\n", "line 3", "'-1'"),
    "a label with a fraction": ("t.jsonl", '{"sentence": "a", "label": 0.5}', "line 1", "0.5"),
    "a label that is true": ("t.jsonl", '{"sentence": "a", "label": true}', "line 1", "True"),
    "no label": ("t.jsonl", '{"sentence": "a"}', "line 1", "'label'"),
    "no JSON": ("t.jsonl", '{"sentence": "a", "label": 1}\n{', "line 2", "JSON"),
    "no object": ("t.jsonl", "[1]", "line 1", "object"),
    "a text that is a number": ("t.jsonl", '{"sentence": 3, "label": 1}', "line 1", "a number"),
    "an empty text": ("t.tsv", "sentence\tlabel\n \t1\n", "line 2", "empty"),
    "half a surrogate pair": ("t.jsonl", r'{"sentence": "\ud800", "label": 1}', "1", "surrogate"),
    "a NUL": ("t.jsonl", r'{"sentence": "a\u0000", "label": 1}', "line 1", "NUL"),
    "an empty file": ("t.tsv", "", "t.tsv", "no examples"),
    "a header alone": ("t.tsv", "sentence\tlabel\n", "t.tsv", "no examples"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_names_its_line(write, mistake):
    name, content, where, what = MISTAKES[mistake]
    with pytest.raises(UserError) as raised:
        read(write(name, content), "sst2")
    assert where in str(raised.value)
    assert what in str(raised.value)


def test_files_that_cannot_be_read(write, tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read(tmp_path / "none.tsv", "sst2")
    with pytest.raises(UserError, match="UTF-8 at byte 15"):
        read(write("latin.tsv", "sentence\tlabel\né\t1\n", "latin-1"), "sst2")


def test_columns_that_are_not_there(write):
    with pytest.raises(UserError, match="has 2 columns, and 3, 1"):
        read(write("t.tsv", "1\ta\n"), text="3", label="1")


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({}, "--task"),
        ({"text": "a"}, "--label"),
        ({"text": "a", "label": "2"}, "column numbers"),
        ({"task": "rte", "label": "2"}, "all of the fields"),
    ],
)
def test_fields_that_do_not_go_together(named, message):
    with pytest.raises(UserError, match=message):
        fields_of(named.get("task"), named.get("text"), None, named.get("label"))


def test_one_class_is_nothing_to_tell_apart(write):
    examples = read_labelled(write("t.tsv", "sentence\tlabel\na\t1\n"), TASKS["sst2"].fields)
    with pytest.raises(UserError, match="all 1 labels are '1'"):
        class_names(examples, TASKS["sst2"].fields)


def test_a_label_that_training_did_not_have(write):
    path = write("t.tsv", "text\tlabel\na\tred\nb\tblue\n")
    examples = read_labelled(path, fields_of(None, "text", None, "label"))
    with pytest.raises(UserError, match=r"line 3 of .*'blue'.*\(green, red\)"):
        class_indices(examples, ["green", "red"], path)


SIZES = {
    "sst2": ("glue_sst2_val.jsonl", 872, 444),
    "mrpc": ("glue_mrpc_val.jsonl", 408, 279),
    "rte": ("glue_rte_val.jsonl", 277, 131),
    "cola": ("cola_in_domain_dev.tsv", 527, 365),
}


@pytest.mark.data
@pytest.mark.parametrize("task", SIZES)
def test_glue_s_validation_splits(task):
    name, total, positive = SIZES[task]
    examples = read_labelled(Path(os.environ["UNITSPHERE_DATA"], "eval", name), TASKS[task].fields)
    assert len(examples) == total
    assert sum(example.label == "1" for example in examples) == positive
    assert all((example.text2 is None) == (task in ("sst2", "cola")) for example in examples)


# A busy machine generates slowly.

BYTES = load_tokenizer("bytes")


def encoded(length: int, *texts: str):
    a, b = (*texts, None)[:2]
    found = encode_examples([Example(a, b, "0", 1)], BYTES, length)
    return bytes(found.tokens[0].tolist()), found.truncated


def test_a_text_stands_between_separators():
    assert encoded(10, "ab") == (b"\0ab\0", 0)


def test_a_pair_has_a_separator_between():
    assert encoded(10, "ab", "cde") == (b"\0ab\0cde\0", 0)


def test_the_longer_text_is_cut_and_counted():
    assert encoded(6, "abcdef") == (b"\0abcd\0", 1)
    assert encoded(9, "ab", "cdefgh") == (b"\0ab\0cdef\0", 1)
    assert encoded(9, "abcdef", "ghijkl") == (b"\0abc\0ghi\0", 1)


def test_a_length_without_room_is_refused():
    with pytest.raises(UserError, match="leave no room"):
        encoded(3, "a")


@relaxed
@given(st.integers(1, 50), st.integers(1, 50), st.integers(2, 60))
def test_cutting_is_token_by_token_from_the_longer(first, second, room):
    a, b = first, second
    while a + b > room:
        a, b = (a - 1, b) if a > b or (a == b and second > first) else (a, b - 1)
    found = fitting(first, second, room)
    assert sum(found) == a + b
    assert abs(found[0] - a) <= 1  # which of two equally long texts is cut first is free


@relaxed
@given(st.lists(st.integers(0, 3), min_size=1, max_size=200), st.integers(0, 5))
def test_a_split_is_disjoint_complete_and_stratified(classes, seed):
    rest, part = stratified(classes, 0.2, seed)
    assert sorted(rest + part) == list(range(len(classes)))
    total, taken = Counter(classes), Counter(classes[i] for i in part)
    for name, count in total.items():
        assert abs(taken[name] - 0.2 * count) <= 1
        assert count == 1 or 0 < taken[name] < count
    assert (rest, part) == stratified(classes, 0.2, seed)


def test_a_split_depends_on_its_seed_and_stays_among_what_it_is_given():
    classes = [0, 1] * 50
    assert stratified(classes, 0.2, 0) != stratified(classes, 0.2, 1)
    rest, part = stratified(classes, 0.2, 0, among=range(20))
    assert sorted(rest + part) == list(range(20))


def test_rows_are_filled_up_on_the_right():
    rows = padded_rows([np.array([0, 5, 0]), np.array([0, 6, 7, 0])], separator=0)
    assert rows.tokens.tolist() == [[0, 5, 0, 0], [0, 6, 7, 0]]
    assert rows.real.tolist() == [[True, True, True, False], [True] * 4]


def test_every_epoch_has_every_example_once_in_another_order():
    batches = list(shuffled_batches(range(10), rows=4, epochs=2, seed=0))
    assert [len(batch) for batch in batches] == [4, 4, 2] * 2
    first, second = [*chain(*batches[:3])], [*chain(*batches[3:])]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert batches == list(shuffled_batches(range(10), rows=4, epochs=2, seed=0))
    assert batches != list(shuffled_batches(range(10), rows=4, epochs=2, seed=1))


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSONL", "a.ndjson", "a.Json"])
def test_a_name_says_json_lines_in_any_case(tmp_path, name):
    (tmp_path / name).write_text('{"text": "hi", "label": "x"}\n')
    (found,) = read_labelled(tmp_path / name, Fields(text=("text",), label=("label",)))
    assert (found.text, found.label) == ("hi", "x")
