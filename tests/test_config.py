import json
import math
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unitsphere.config import (
    did_you_mean,
    differences,
    from_dict,
    json_text,
    read_json,
    read_object,
    read_toml,
    to_dict,
)
from unitsphere.errors import UserError

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
"""No key or path holds a NUL."""


@dataclass(frozen=True)
class Inner:
    rate: float = 1.0
    kind: Literal["a", "b"] = "a"
    limit: int | None = None


@dataclass(frozen=True)
class Outer:
    steps: int = 10
    name: str = "x"
    on: bool = False
    inner: Inner = Inner(rate=0.5, limit=7)


@dataclass(frozen=True)
class Point:
    x: int
    y: int


def test_unknown_key_names_the_nearest():
    with pytest.raises(UserError, match=r"unknown key 'inner\.rat' \(did you mean 'rate'\?\)"):
        from_dict(Outer, {"inner": {"rat": 1}})


def test_a_key_that_must_be_given_is_named():
    with pytest.raises(UserError, match=r"^'point\.y' is missing$"):
        from_dict(Point, {"x": 1}, "point.")


def test_a_table_keeps_the_default_of_the_keys_it_does_not_name():
    assert from_dict(Outer, {"inner": {"kind": "b"}}).inner == Inner(0.5, "b", 7)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"steps": "5"}, "steps"),
        ({"steps": True}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"on": 1}, "on"),
        ({"inner": 3}, "inner"),
        ({"inner": {"kind": "c"}}, r"inner\.kind"),
        ({"inner": {"limit": "no"}}, r"inner\.limit"),
    ],
)
def test_a_value_of_the_wrong_type_names_its_key(data, key):
    with pytest.raises(UserError, match=f"'{key}' must be"):
        from_dict(Outer, data)


@dataclass(frozen=True)
class Named:
    tables: dict[str, dict[str, object]]


@pytest.mark.parametrize(("value", "key"), [([1], "tables"), ({"a": "x"}, "tables.a")])
def test_what_must_be_a_table_is_called_so(value, key):
    with pytest.raises(UserError, match=rf"^'{key}' must be a table, not "):
        from_dict(Named, {"tables": value})


def test_an_integer_serves_as_a_float():
    rate = from_dict(Outer, {"inner": {"rate": 2}}).inner.rate
    assert rate == 2.0
    assert isinstance(rate, float)


def test_an_integer_beyond_all_floats_is_refused():
    with pytest.raises(UserError, match=r"^'inner\.rate' must be at most 1\.8e308$"):
        from_dict(Outer, {"inner": {"rate": 10**400}})


@given(
    st.builds(
        Outer,
        steps=st.integers(),
        name=TEXT,
        on=st.booleans(),
        inner=st.builds(
            Inner,
            rate=st.floats(allow_nan=False),
            kind=st.sampled_from(["a", "b"]),
            limit=st.none() | st.integers(),
        ),
    )
)
def test_round_trip(config):
    assert from_dict(Outer, to_dict(config)) == config
    assert differences(config, config) == []


def test_differences_name_the_leaves():
    assert differences(Outer(), Outer(steps=11, inner=Inner(0.5, "b", 7))) == [
        "inner.kind: 'a' -> 'b'",
        "steps: 10 -> 11",
    ]


def test_files_that_cannot_be_read(tmp_path):
    bad = tmp_path / "bad"
    bad.write_text("{=")
    for read in (read_toml, read_json):
        with pytest.raises(UserError, match="not valid"):
            read(bad)
        with pytest.raises(UserError, match=r"cannot read .*missing"):
            read(tmp_path / "missing")


def test_no_near_name_lists_them_all():
    assert did_you_mean("zzz", ["gpt", "ngpt"]) == " (known: gpt, ngpt)"


@pytest.mark.parametrize("data", [[1], None, 5, "text"])
def test_a_document_that_is_no_table_is_refused(data):
    with pytest.raises(UserError, match=r"^Outer must be a table, not "):
        from_dict(Outer, data)
    with pytest.raises(UserError, match=r"^a/b\.json must be a table, not "):
        from_dict(Outer, data, "a/b.json: ")


@pytest.mark.parametrize(
    ("text", "kind"), [("[]", "a list"), ("5", "an integer"), ("null", "null"), ('"a"', "a text")]
)
def test_only_an_object_is_read_as_an_object(tmp_path, text, kind):
    path = tmp_path / "document.json"
    path.write_text('{"a": 1}')
    assert read_object(path) == {"a": 1}
    path.write_text(text)
    with pytest.raises(UserError, match=f"must hold a JSON object, not {kind}$"):
        read_object(path)


def test_json_has_no_nan_and_no_infinity():
    document = {"a": math.inf, "b": [1.5, -math.inf, (math.nan,)], "c": {"d": 3, "e": "Infinity"}}
    text = json_text(document)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": None,
        "b": [1.5, None, [None]],
        "c": {"d": 3, "e": "Infinity"},
    }
    assert json_text({"é": 1}, indent=None) == '{"é": 1}'
