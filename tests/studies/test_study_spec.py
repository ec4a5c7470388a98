"""A study's TOML: read strictly, written canonically."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unitsphere.config import to_dict
from unitsphere.errors import UserError
from unitsphere.studies.core.spec import (
    ArmSpec,
    Execution,
    Study,
    Tune,
    load_study,
    study_from,
    toml_text,
)

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
"""No key or path holds a NUL."""

EXAMPLE = """
seeds = [0, 1]
[arms]
gpt-plus = "quickstart/gpt-plus"
ngpt = { recipe = "quickstart/ngpt", set = { "model.alpha.init" = 0.1 }, lr = 2e-2 }
[set]
"data.source" = "wiki.jsonl"
data.field = "body"
[tune]
points = 5
[run]
workers = 2
"""


def test_a_study_is_arms_settings_seeds_tuning_and_execution(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(EXAMPLE)
    study = load_study(Study, path)
    assert study.arms["gpt-plus"] == ArmSpec("quickstart/gpt-plus")
    assert study.arms["ngpt"].lr == 2e-2
    assert study.keys("ngpt") == {
        "data.source": "wiki.jsonl",
        "data.field": "body",
        "model.alpha.init": 0.1,
    }
    assert (study.seeds, study.tune.points, study.tune.ratio) == ([0, 1], 5, 2.0)
    assert study.run == Execution(workers=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = [0]", "'arms' is missing"),
        ("arms = {}", "'arms' must name at least one arm"),
        ("arms = 3", "'arms' must be a table"),
        ('arms = {"a b" = "x"}', "the arm 'a b' must have a name of letters"),
        ('arms = {".." = "x"}', "the arm '..' must have a name"),
        ("arms = {a = {lr = 1.0}}", "'arms.a' names no recipe"),
        ('arms = {a = {recipe = "x", lrs = 1}}', r"unknown key 'arms.a.lrs' \(did you mean 'lr'"),
        ('seed = [0]\narms = {a = "x"}', r"unknown key 'seed' \(did you mean 'seeds'"),
        ('arm = {a = "x"}', r"unknown key 'arm' \(did you mean 'arms'"),
        ('seeds = []\narms = {a = "x"}', "'seeds' must be one or more"),
        ('seeds = [1, 1]\narms = {a = "x"}', "'seeds' must be one or more different"),
        ('seeds = [-1]\narms = {a = "x"}', "'seeds' must be"),
        ('arms = {a = "x"}\nset = {"train.seed" = 1}', "'set.train.seed' cannot be set.*`seeds`"),
        ('arms = {a = "x"}\nset = {"data.source" = ["a"]}', "'set.data.source' must be a number"),
        ('arms = {a = {recipe = "x", set = {optim.lr = 1}}}', r"'arms.a.set.optim.lr' cannot"),
        ('arms = {a = "x"}\ntune = {ratio = 1}', "tune.ratio must be"),
        ('arms = {a = "x"}\ntune = {points = 0}', "tune.points"),
        ('arms = {a = "x"}\ntune = {fraction = 1}', "tune.fraction"),
        ('arms = {a = "x"}\ntune = {seeds = []}', "tune.seeds"),
        ('arms = {a = "x"}\nrun = {workers = 0}', "run.workers"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_study(Study, path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT
keys = st.from_regex(r"\A(model|data)(\.[a-z_]{1,6}){1,2}\Z")


@st.composite
def settings(draw) -> dict[str, object]:
    """Keys none of which begins another one's."""
    found = draw(st.dictionaries(keys, scalars, max_size=3))
    return {k: v for k, v in found.items() if not any(o.startswith(k + ".") for o in found)}


studies = st.builds(
    Study,
    arms=st.dictionaries(
        st.from_regex(r"\A\w[\w.+-]{0,8}\Z").filter(str.isascii),
        st.builds(ArmSpec, recipe=TEXT, set=settings(), lr=st.none() | st.floats(0, 1)),
        min_size=1,
        max_size=3,
    ),
    set=settings(),
    seeds=st.lists(st.integers(0, 99), min_size=1, unique=True),
    tune=st.builds(Tune, ratio=st.floats(1.1, 9), points=st.integers(1, 9)),
    run=st.builds(Execution, workers=st.none() | st.integers(1, 9)),
)


@given(studies)
def test_the_record_reads_back_as_the_same_study(study):
    text = toml_text(to_dict(study))
    again = study_from(Study, tomllib.loads(text))
    assert again == study
    assert toml_text(to_dict(again)) == text


def test_what_toml_has_no_word_for_is_refused():
    with pytest.raises(UserError, match="'a' must be a number, a string, true or false"):
        toml_text({"a": object()})
