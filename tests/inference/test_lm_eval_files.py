"""Task files and items that a stranger wrote: nothing runs, and every mistake is one line."""

import contextlib
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unitsphere.errors import UserError

pytest.importorskip("lm_eval")
os.environ["HF_HUB_OFFLINE"] = "1"
from unitsphere.inference.lm_eval_files import KINDS, PlainLoader, check_task
from unitsphere.inference.lm_eval_model import HarnessLM, Rehearsal
from unitsphere.inference.lm_eval_tasks import figures, run_tasks

LOCAL = "!function unitsphere.inference.lm_eval_data.local"
CHOICE = f"""
task: mine
custom_dataset: {LOCAL}
dataset_kwargs: {{file: items.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: label
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
WRITTEN = f"""
task: mine
custom_dataset: {LOCAL}
dataset_kwargs: {{file: items.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}} ="
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
ROLLING = f"""
task: mine
custom_dataset: {LOCAL}
dataset_kwargs: {{file: items.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: bits_per_byte}}]
"""
ITEM = {
    "question": "Who?",
    "choices": ["a cat", "a dog"],
    "label": 1,
    "answer": "a dog",
    "text": "t",
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_items(ITEM)


def write_items(*items: object) -> None:
    Path("items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))


def refused(task: str, *items: object, trusted: bool = False, **options: object) -> str:
    """The one line about a task file, or about its items."""
    Path("mine.yaml").write_text(task)
    if items:
        write_items(*items)
    with pytest.raises(UserError) as error:
        run_tasks(Rehearsal(), ["mine.yaml"], trusted=trusted, **options)
    return str(error.value)


@pytest.mark.parametrize("task", [CHOICE, WRITTEN, ROLLING])
def test_a_plain_task_file_is_evaluated(task):
    Path("mine.yaml").write_text(task)
    found = figures(run_tasks(Rehearsal(), ["mine.yaml"]))
    assert found["mine"]["items"] == 1


class Unlikely(Rehearsal):
    """A text that is so unlikely that its perplexity per word is more than a float holds."""

    def loglikelihood_rolling(self, requests):
        return [-1000.0 for _ in requests]


def test_a_perplexity_that_no_float_holds_is_infinite_and_its_task_has_the_others():
    metrics = "[{metric: word_perplexity}, {metric: bits_per_byte}]"
    Path("mine.yaml").write_text(ROLLING.replace("[{metric: bits_per_byte}]", metrics))
    write_items({"text": "a" * 500})
    found = figures(run_tasks(Unlikely(), ["mine.yaml"]))["mine"]["metrics"]
    assert found["word_perplexity"] == {"value": math.inf, "standard_error": None}
    assert found["bits_per_byte"]["value"] == pytest.approx(2 / math.log(2))


def test_a_choice_that_is_one_token_with_its_context_is_an_error():
    text = SimpleNamespace(separator=0, encode=lambda text: [len(text.split())])
    lm = HarnessLM(SimpleNamespace(objective="clm"), text, max_length=8)
    with pytest.raises(UserError, match="'ples' adds no token to the text before it"):
        lm.loglikelihood([SimpleNamespace(args=("ap", "ples"))])


FILTERS = """
filter_list:
  - {name: whole, filter: [{function: take_first}]}
  - {name: word, filter: [{function: regex, regex_pattern: "(answer)"}, {function: take_first}]}
"""


def test_a_metric_has_a_figure_for_each_filter_of_the_answers():
    Path("mine.yaml").write_text(WRITTEN + FILTERS)
    write_items(ITEM | {"answer": "an answer"})
    found = figures(run_tasks(Rehearsal(), ["mine.yaml"]))["mine"]["metrics"]
    values = {name: one["value"] for name, one in found.items()}
    assert values == {"exact_match,whole": 1.0, "exact_match,word": 0.0}


BAD_ITEMS = {
    "no label": (CHOICE, {"label": None}, "its label None is neither"),
    "a label that is none": (CHOICE, {"label": ""}, "field 'label' is of another type"),
    "a negative label": (CHOICE, {"label": -1}, "its label -1 is neither"),
    "a label beyond the choices": (CHOICE, {"label": 2}, "its label 2 is neither"),
    "no choices": (CHOICE, {"choices": []}, "its choices are []"),
    "null choices": (CHOICE, {"choices": None}, "its choices are None"),
    "a null choice": (CHOICE, {"choices": ["a cat", None]}, "a choice is None"),
    "an empty choice": (CHOICE, {"choices": ["a cat", ""]}, "a choice is ''"),
    "a null prompt": (CHOICE, {"question": None}, "'question' is undefined (missing, or null)"),
    "a null text": (ROLLING, {"text": None}, "'text' is undefined (missing, or null)"),
    "an empty text": (ROLLING, {"text": " "}, "the text to score is ' '"),
    "a null target": (WRITTEN, {"answer": None}, "'answer' is undefined (missing, or null)"),
    "an empty target": (WRITTEN, {"answer": ""}, "the target is ''"),
    "a NUL in a prompt": (CHOICE, {"question": "a\0b"}, "field 'question' holds a NUL character"),
    "a NUL in a choice": (CHOICE, {"choices": ["a", "\0b"]}, "field 'choices.1' holds a NUL"),
    "half a pair": (ROLLING, {"text": "\ud800"}, "field 'text' holds half a surrogate pair"),
    "another type": (CHOICE, {"label": "one"}, "field 'label' is of another type"),
}


@pytest.mark.parametrize("case", BAD_ITEMS)
def test_an_item_that_cannot_be_scored_is_an_error_with_file_and_line(case):
    task, change, words = BAD_ITEMS[case]
    message = refused(task, ITEM, ITEM, ITEM | change, ITEM)
    assert "line 3 of items.jsonl" in message
    assert words in message


def test_a_first_item_that_cannot_be_scored_is_said_as_any_other():
    for change in ({"label": 7}, {"choices": []}, {"choices": [None, "x"]}, {"label": None}):
        assert "line 1 of items.jsonl: it cannot be scored" in refused(CHOICE, ITEM | change)


@pytest.mark.parametrize("field", ["label", "choices", "question"])
def test_a_missing_field_is_an_error_with_file_and_line(field):
    less = {key: value for key, value in ITEM.items() if key != field}
    assert "line 2 of items.jsonl" in refused(CHOICE, ITEM, less)
    assert "line 1 of items.jsonl" in refused(CHOICE, less, ITEM)


def test_the_name_of_a_field_that_no_item_has_is_not_a_prompt():
    less = {key: value for key, value in ITEM.items() if key != "question"}
    task = CHOICE.replace('"{{question}}"', "question")
    assert "no item has the field 'question' of doc_to_text" in refused(task, less, less)
    word = CHOICE.replace('"{{question}}"', "\"{{'question'}}\"")
    Path("mine.yaml").write_text(word)
    assert figures(run_tasks(Rehearsal(), ["mine.yaml"]))["mine"]["items"] == 2
    write_items({"question": "Who?", "choices": {"text": ["a", "b"], "label": "AB"}})
    with pytest.raises(UserError, match="no item has the field 'question_stem'"):
        run_tasks(Rehearsal(), ["openbookqa"], data="items.jsonl")


class Heard(Rehearsal):
    """Keeps the texts that it is asked for, and writes one."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def loglikelihood_rolling(self, requests):
        self.heard = [request.args[0] for request in requests]
        return super().loglikelihood_rolling(requests)

    def generate_until(self, requests):
        return ["[1, 2]" for _ in requests]


def test_a_text_that_looks_like_a_list_is_a_text():
    lists = ["[1, 2]", "['a']", "[7]"]
    write_items(*({"text": text} for text in lists))
    run_tasks(lm := Heard(), ["text"], data="items.jsonl")
    assert lm.heard == lists
    write_items(*({"source": f"s{n}", "target": "[1, 2]"} for n in range(8)))
    found = figures(run_tasks(Heard(), ["translation"], data="items.jsonl"))
    assert found["translation"]["metrics"]["bleu"]["value"] == pytest.approx(100)


def test_another_field_is_not_scored_for_the_one_that_is_asked_for():
    write_items({"body": "a", "text": "b"}, {"text": "b"})
    with pytest.raises(UserError, match=r"line 2 of items\.jsonl has no field 'body'"):
        run_tasks(Rehearsal(), ["text"], data="items.jsonl", rename={"text": "body"})
    run_tasks(lm := Heard(), ["text"], data="items.jsonl", rename={"text": "text"})
    assert lm.heard == ["b", "b"]
    write_items({"body": "a", "text": "b"})
    run_tasks(lm, ["text"], data="items.jsonl", rename={"text": "body"})
    assert lm.heard == ["a"]


@pytest.mark.parametrize(
    "template",
    [
        "{{question | lower}}",
        "{{[question, 'x'] | join(' ')}}",
        "{{question ~ 'x'}}",
        "x {{[question]}}",
        "{{nested.field}}",
        "x {{several}}",
        "{{nested.get('field')}}",
    ],
)
def test_no_template_writes_a_null_as_the_word_none(template):
    task = ROLLING.replace("{{text}}", template)
    nulls = {"question": None, "nested": {"field": None}, "several": ["a", None]}
    message = refused(task, ITEM | {"nested": {"field": "x"}, "several": ["a"]}, ITEM | nulls)
    assert "line 2 of items.jsonl" in message


def test_the_word_none_in_a_text_is_a_word():
    Path("mine.yaml").write_text(ROLLING)
    write_items({"text": "None"})
    assert figures(run_tasks(Rehearsal(), ["mine.yaml"]))["mine"]["items"] == 1


def test_items_beyond_the_limit_are_not_asked_for_unless_they_are_examples():
    Path("mine.yaml").write_text(CHOICE)
    write_items(ITEM, ITEM, ITEM | {"label": None})
    assert figures(run_tasks(Rehearsal(), ["mine.yaml"], limit=2))["mine"]["items"] == 2
    assert "line 3 of items.jsonl" in refused(CHOICE, limit=1, shots=1)


BAD_FILES = {
    "nothing": ("", "no table of keys"),
    "a list": ("- a\n", "no table of keys"),
    "no YAML": ("a: [", "not valid YAML"),
    "a tab": ("task:\n\t- x", "not valid YAML"),
    "an unknown tag": ("task: !!python/object/apply:os.getcwd []", "not valid YAML"),
    "an impossible date": ("task: 2024-13-45", "not valid YAML"),
    "deep": ("task: " + "[" * 5000 + "]" * 5000, "not valid YAML"),
    "aliases": (CHOICE + "metadata: {a: &a [1], b: *a}\n", "aliases"),
    "a key that comes twice": (CHOICE + "task: other\n", "a key comes twice"),
    "an unknown key": (CHOICE + "doc_to_txt: x\n", "unknown key 'doc_to_txt' (did you mean"),
    "a key that is no text": (CHOICE + "1: x\n", "unknown key '1'"),
    "no name": (CHOICE.replace("task: mine", ""), "it has no 'task'"),
    "an empty name": (CHOICE.replace("task: mine", "task: ''"), "empty name"),
    "a null name": (CHOICE.replace("task: mine", "task:"), "'task' must be text, not None"),
    "a list of tasks": (CHOICE.replace("task: mine", "task: [a]"), "'task' must be text"),
    "no target": (CHOICE.replace("doc_to_target: label", ""), "it has no 'doc_to_target'"),
    "no prompt": (CHOICE.replace("doc_to_text", "description"), "it has no 'doc_to_text'"),
    "no choices": (CHOICE.replace("doc_to_choice: choices", ""), "it has no 'doc_to_choice'"),
    "no choices at all": (CHOICE.replace(": choices", ": []"), "its choices are []"),
    "no data": (CHOICE.replace(f"custom_dataset: {LOCAL}", ""), "it has no 'custom_dataset'"),
    "data of another kind": (
        CHOICE.replace("lm_eval_data.local", "lm_eval_data.marked_pronouns"),
        "'custom_dataset' must be",
    ),
    "no file": (CHOICE.replace("{file: items.jsonl}", "{}"), "'dataset_kwargs' must hold only"),
    "a file of wrong type": (CHOICE.replace("items.jsonl", "[1]"), "must hold only 'file'"),
    "a file elsewhere": (CHOICE.replace("items.jsonl", "../x.jsonl"), "lies elsewhere"),
    "an absolute file": (CHOICE.replace("items.jsonl", "/etc/passwd"), "lies elsewhere"),
    "a file that is not there": (CHOICE.replace("items.jsonl", "gone.jsonl"), "no file gone.jsonl"),
    "no split": (CHOICE.replace("test_split: test", ""), "it has no 'test_split'"),
    "another split": (CHOICE.replace("test_split: test", "test_split: dev"), "must be test"),
    "an unknown output type": (
        CHOICE.replace("multiple_choice", "multiple"),
        "unknown output_type 'multiple'",
    ),
    "no metrics": (CHOICE[: CHOICE.index("metric_list")] + "metric_list: []\n", "no metric"),
    "metrics of wrong type": (
        CHOICE[: CHOICE.index("metric_list")] + "metric_list: acc\n",
        "'metric_list' must be a list",
    ),
    "a metric of wrong type": (CHOICE.replace("{metric: acc,", "{metric: [acc],"), "must hold"),
    "an unknown metric": (CHOICE.replace("metric: acc,", "metric: acd,"), "unknown metric 'acd'"),
    "an unknown aggregation": (
        CHOICE.replace("aggregation: mean", "aggregation: maen"),
        "unknown aggregation 'maen'",
    ),
    "an aggregation of wrong type": (
        CHOICE.replace("aggregation: mean", "aggregation: [mean]"),
        "unknown aggregation",
    ),
    "another's aggregation": (
        CHOICE.replace("aggregation: mean", "aggregation: bits_per_byte"),
        "task mine",
    ),
    "a metric without figures": (
        CHOICE.replace("metric: acc,", "metric: bleu,"),
        "metric 'bleu' has no figure",
    ),
    "a filter of wrong type": (WRITTEN + "filter_list: [regex]\n", "'filter_list' must hold"),
    "no filters": (WRITTEN + "filter_list: []\n", "'filter_list' is empty"),
    "an unknown filter": (
        WRITTEN + "filter_list: [{name: x, filter: [{function: rex}]}]\n",
        "unknown filter 'rex'",
    ),
    "a filter of text": (WRITTEN + "filter_list: [{name: x, filter: regex}]\n", "must hold tables"),
    "a bad pattern": (
        WRITTEN + "filter_list: [{name: x, filter: [{function: regex, regex_pattern: '('}]}]\n",
        "task mine",
    ),
    "an unknown setting of a filter": (
        WRITTEN + "filter_list: [{name: x, filter: [{function: take_first, k: 1}]}]\n",
        "task mine",
    ),
    "few-shot examples below 0": (CHOICE + "num_fewshot: -1\n", "'num_fewshot' must be 0 or more"),
    "few-shot examples as text": (CHOICE + "num_fewshot: two\n", "'num_fewshot' must be a whole"),
    "more examples than items": (CHOICE + "num_fewshot: 1000\n", "task mine"),
    "repeats": (CHOICE + "repeats: 1000000000\n", "'repeats' must be from 1"),
    "an unknown setting": (WRITTEN + "generation_kwargs: {beams: 2}\n", "'beams'"),
    "a temperature of text": (WRITTEN + "generation_kwargs: {temperature: hot}\n", "temperature"),
    "a stop that is none": (WRITTEN + "generation_kwargs: {until: 5}\n", "'until' must be text"),
    "tokens below 0": (WRITTEN + "generation_kwargs: {max_gen_toks: -5}\n", "'max_gen_toks'"),
    "tokens as text": (WRITTEN + "generation_kwargs: {max_gen_toks: many}\n", "'max_gen_toks'"),
    "metadata of wrong type": (CHOICE + "metadata: 5\n", "'metadata' must be a table"),
    "metadata that names a file": (CHOICE + "metadata: {file: x}\n", "'metadata' may not have"),
    "a broken template": (CHOICE.replace("{{question}}", "{{question"), "TemplateSyntaxError"),
    "an unknown function of a template": (CHOICE.replace("{{question}}", "{{f()}}"), "'f'"),
    "an unknown filter of a template": (CHOICE.replace("{{question}}", "{{question | f}}"), "'f'"),
    "a template that divides by 0": (CHOICE.replace("{{question}}", "{{1 / 0}}"), "ZeroDivision"),
    "choices that are no list": (CHOICE.replace(": choices", ": '{{question}}'"), "line 1 of"),
    "an unknown field": (CHOICE.replace("{{question}}", "{{questoin}}"), "'questoin'"),
    "an unknown field as label": (CHOICE.replace(": label", ": lable"), "the field 'lable'"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_mistake_in_a_task_file_is_one_line_that_names_it(case):
    text, words = BAD_FILES[case]
    message = refused(text)
    assert words in message
    assert "mine" in message
    assert len(message) < 700


CODE = {
    "a function beside the file": CHOICE + "process_docs: !function utils.evil\n",
    "a function in the place of data": CHOICE.replace(LOCAL, "!function utils.evil"),
    "a function as prompt": CHOICE.replace('"{{question}}"', "!function utils.evil"),
    "a function in the place of our own": CHOICE.replace("unitsphere", "planted.unitsphere"),
    "a function as metric": CHOICE.replace("metric: acc,", "metric: !function utils.evil,"),
    "a function in a filter": WRITTEN
    + "filter_list: [{name: x, filter: [{function: custom, filter_fn: !function utils.evil}]}]\n",
    "a class": CHOICE + "class: !function utils.evil\n",
    "a metric of another package": CHOICE.replace("acc,", "acc, hf_evaluate: true,"),
    "a loader of data": CHOICE + "dataset_path: pandas\n",
    "an included file": CHOICE + "include: other.yaml\n",
    "a group": CHOICE + "group: many\n",
    "code in a template": CHOICE.replace(
        "{{question}}", "{{''.__class__.__mro__[1].__subclasses__()}}"
    ),
    "a module in a template": CHOICE.replace(
        "{{question}}", "{{cycler.__init__.__globals__.os.system('touch ran')}}"
    ),
}


@pytest.mark.parametrize("case", CODE)
def test_no_code_of_a_task_file_runs(case):
    Path("utils.py").write_text("open('ran', 'w')\ndef evil(*a, **k): open('ran', 'w')\n")
    planted = Path("unitsphere/inference")
    planted.mkdir(parents=True)
    planted.joinpath("lm_eval_data.py").write_text("open('ran', 'w')\n")
    message = refused(CODE[case])
    assert "--trust-task-code" in message or "unsafe" in message or "line 1 of" in message
    assert not Path("ran").exists()


def test_our_own_function_is_not_one_that_lies_beside_the_file():
    planted = Path("unitsphere/inference")
    planted.mkdir(parents=True)
    planted.joinpath("lm_eval_data.py").write_text("open('ran', 'w')\n")
    Path("mine.yaml").write_text(CHOICE)
    assert run_tasks(Rehearsal(), ["mine.yaml"])
    assert not Path("ran").exists()


def test_trusted_code_runs_and_its_items_are_checked_too():
    Path("utils.py").write_text("def kept(items): return items.filter(lambda i: i['label'] != 0)\n")
    Path("mine.yaml").write_text(CHOICE + "process_docs: !function utils.kept\n")
    write_items(ITEM, ITEM | {"label": 0})
    found = figures(run_tasks(Rehearsal(), ["mine.yaml"], trusted=True))
    assert found["mine"]["items"] == 1
    message = refused(Path("mine.yaml").read_text(), ITEM, ITEM | {"label": 7}, trusted=True)
    assert "line 2 of" in message
    assert "items.jsonl: it cannot be scored: its label 7" in message


def test_what_goes_wrong_in_trusted_code_is_one_line_with_its_place():
    Path("utils.py").write_text("def kept(items):\n    return items['x']['y']\n")
    message = refused(CHOICE + "process_docs: !function utils.kept\n", trusted=True)
    assert "mine.yaml" in message
    assert "ValueError: Column 'x'" in message


def test_a_link_out_of_the_folder_is_not_followed(tmp_path_factory):
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.jsonl"
    secret.write_text(json.dumps(ITEM) + "\n")
    Path("items.jsonl").unlink()
    Path("items.jsonl").symlink_to(secret)
    assert "link out of" in refused(CHOICE)
    assert run_tasks(Rehearsal(), ["mine.yaml"], data=str(secret.parent / "secret.jsonl"))


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_a_task_file_that_is_no_file_is_not_read(kind):
    if kind == "fifo":
        os.mkfifo("mine.yaml")
    else:
        Path("mine.yaml").mkdir()
    with pytest.raises(UserError, match=r"not a regular file"):
        run_tasks(Rehearsal(), ["mine.yaml"])


def test_two_tasks_of_one_name_are_an_error():
    Path("mine.yaml").write_text(CHOICE)
    Path("other.yaml").write_text(CHOICE)
    with pytest.raises(UserError, match="two tasks are named 'mine', one of them in other"):
        run_tasks(Rehearsal(), ["mine.yaml", "other.yaml"])
    assert run_tasks(Rehearsal(), ["mine.yaml", "mine.yaml"])


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(key=st.sampled_from([*KINDS, "class", "x"]), value=plain)
def test_any_value_of_any_key_is_read_or_refused(key, value):
    document = yaml.load(CHOICE, PlainLoader) | {key: value}
    with contextlib.suppress(UserError):
        check_task(document)
