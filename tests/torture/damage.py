"""Files as an accident or somebody else may have left them: valid ones, changed a little."""

import copy
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

HOSTILE_TEXT = [
    "",
    "\0",
    "../../../../tmp/elsewhere",
    "/etc/passwd",
    "~root/x",
    "a" * 5000,
    "\ud800",
    "__import__('os').system('touch /tmp/owned')",
    "!!python/object/apply:os.system ['touch /tmp/owned']",
    "{0.__class__}",
    "nan",
    "…\u202e",
]
HOSTILE_NUMBERS = [
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    10**30,
    -(10**30),
    0.5,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
]


def deep(kind: str) -> bytes:
    """JSON that is deeper than any stack; the last of them closes its lists."""
    return b"[" * 3000 + b"]" * 3000 if kind == "[]" else kind.encode() * 100_000


DEEP = st.sampled_from(["[", '{"a":', "[]"]).map(deep)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(HOSTILE_NUMBERS),
    st.sampled_from(HOSTILE_TEXT),
    st.text(max_size=20),
    st.integers(),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(document: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON document, its own, (), first."""
    found = [here]
    if isinstance(document, dict):
        for key, value in document.items():
            found += places(value, (*here, key))
    if isinstance(document, list):
        for index, value in enumerate(document[:50]):
            found += places(value, (*here, index))
    return found


def changed(document: Any, place: tuple[Any, ...], how: str, value: Any) -> Any:
    """A copy with the value at `place` replaced, removed, or given a neighbour."""
    if not place:
        return value
    document = copy.deepcopy(document)
    inner = document
    for step in place[:-1]:
        inner = inner[step]
    if how == "remove":
        del inner[place[-1]]
    elif how == "add" and isinstance(inner, dict):
        inner[str(value)[:30]] = value
    else:
        inner[place[-1]] = value
    return document


@st.composite
def documents(draw: Callable[..., Any], valid: Any) -> Any:
    """A JSON document with one to three changes."""
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places(valid)))
        how = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        valid = changed(valid, place, how, draw(VALUES))
    return valid


@st.composite
def damaged(draw: Callable[..., Any], valid: bytes) -> bytes:
    """Bytes with one to three changes: flipped, cut, repeated, put in."""
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(valid) - 1, 0)))
        how = draw(st.sampled_from(["flip", "cut", "repeat", "put in", "drop"]))
        if how == "flip" and valid:
            other = bytes([valid[place] ^ (1 << draw(st.integers(0, 7)))])
            valid = valid[:place] + other + valid[place + 1 :]
        elif how == "cut":
            valid = valid[:place]
        elif how == "repeat":
            valid = valid[:place] + valid[max(place - 40, 0) :]
        elif how == "put in":
            valid = valid[:place] + draw(st.binary(max_size=12)) + valid[place:]
        else:
            valid = valid[:place] + valid[place + draw(st.integers(1, 20)) :]
    return valid


def json_files(valid: Any) -> st.SearchStrategy[bytes]:
    """A JSON file: another document, damaged text, or a text that is deeper than any stack."""
    text = json.dumps(valid)
    return st.one_of(
        documents(valid).map(lambda d: json.dumps(d).encode()),
        damaged(text.encode()),
        DEEP,
    )
