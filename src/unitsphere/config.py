"""Typed configs: strict load from TOML or JSON, and dump. Knows no project type.

A config is a frozen dataclass whose fields are scalars, `T | None`, `Literal`s, lists or dicts of
these, `Any`, or further such dataclasses. A key that the dataclass lacks, or a value of the wrong
type, is a `UserError` that names the key and its nearest match, so a misspelt setting is never
ignored.
"""

import dataclasses
import difflib
import functools
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from unitsphere.errors import UserError
from unitsphere.files import read_text

T = TypeVar("T")
NAMES = {float: "a number", int: "an integer", str: "a text", bool: "true or false"}
NAMES |= {list: "a list", dict: "a table"}
"""What a user calls a type."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the nearest known name, or some known names if none is near."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f" (did you mean '{near[0]}'?)"
    return f" (known: {', '.join(known[:8])}{', …' if len(known) > 8 else ''})"


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file; a `UserError` if it is missing or not TOML."""
    try:
        return tomllib.loads(read_text(path))
    except ValueError as error:  # not TOML, or a number with too many digits
        raise UserError(f"{path} is not valid TOML: {error}") from error
    except RecursionError as error:
        raise UserError(f"{path} is not valid TOML: it is nested too deeply") from error


def parse_json(text: str | bytes) -> Any:
    """The JSON document in a text; a ValueError says what is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_text(document: Any, indent: int | None = 2) -> str:
    """A document as JSON, which has no NaN and no infinity: such numbers become null."""
    return json.dumps(_finite(document), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> Any:
    """The document in a JSON file; a `UserError` if it is missing, not JSON or a link elsewhere."""
    try:
        return parse_json(read_text(path, within=path.parent))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; a `UserError` for what `read_json` refuses, or another value."""
    found = read_json(path)
    if not isinstance(found, dict):
        kind = NAMES.get(type(found), "null")
        raise UserError(f"{path} must hold a JSON object, not {kind}")
    return found


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Field name -> resolved type of a config dataclass."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def from_dict(cls: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """Build `cls` from a nested mapping, strictly; `where` prefixes keys in errors ("model.")."""
    if not isinstance(data, Mapping):
        raise UserError(f"{where.rstrip('.: ') or cls.__name__} must be a table, not {data!r}")
    kinds = field_types(cls)
    for key in data:
        if key not in kinds:
            raise UserError(f"unknown key '{where}{key}'{did_you_mean(key, kinds)}")
    start = _nested_defaults(cls)
    values = {k: _convert(kinds[k], v, where + k, start.get(k)) for k, v in data.items()}
    for field in dataclasses.fields(typing.cast(Any, cls)):
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            raise UserError(f"'{where}{field.name}' is missing")
    try:
        return cls(**values)
    except TypeError as error:
        raise UserError(f"{where.rstrip('.') or cls.__name__}: {error}") from error


def _nested_defaults(cls: type) -> dict[str, Any]:
    """Field name -> default, of the fields whose default is a config itself."""
    return {
        f.name: f.default
        for f in dataclasses.fields(cls)
        if dataclasses.is_dataclass(f.default) and not isinstance(f.default, type)
    }


def _convert(kind: Any, value: Any, where: str, start: Any = None) -> Any:
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise UserError(f"'{where}' must be a table, not {value!r}")
        # A table changes the keys it names; the others keep this field's own default.
        own = dataclasses.asdict(start) if start is not None else {}
        return from_dict(typing.cast(type, kind), own | dict(value), where + ".")
    options = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        if value not in options:
            raise UserError(f"'{where}' must be one of {', '.join(map(str, options))}: {value!r}")
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in options:
            return None
        return _convert(next(o for o in options if o is not types.NoneType), value, where)
    if origin is dict and isinstance(value, Mapping):
        return {key: _convert(options[1], v, f"{where}.{key}") for key, v in value.items()}
    if origin is list and isinstance(value, list):
        return [_convert(options[0], v, f"{where}[{i}]") for i, v in enumerate(value)]
    kind = origin or kind
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"'{where}' must be at most 1.8e308") from None
    if (kind is int and isinstance(value, bool)) or not isinstance(value, kind):
        raise UserError(f"'{where}' must be {NAMES.get(kind, kind.__name__)}, not {value!r}")
    if isinstance(value, str) and "\0" in value:
        raise UserError(f"'{where}' must not hold a NUL character: {value!r}")
    return value


def check_choices(config: Any, where: str) -> None:
    """Raise UserError for a field with none of its choices; a dataclass itself takes any value."""
    for name, kind in field_types(type(config)).items():
        if typing.get_origin(kind) is typing.Literal:
            _convert(kind, getattr(config, name), where + name)


def check_seed(name: str, seed: int) -> None:
    """Raise UserError for a seed that random generators do not take."""
    if not 0 <= seed < 2**64:
        raise UserError(f"{name} must be from 0 to 2^64 - 1: {seed}")


def to_dict(config: Any) -> dict[str, Any]:
    """A nested dict of plain values; `from_dict` of it gives an equal config."""
    return dataclasses.asdict(config)


def differences(a: Any, b: Any) -> list[str]:
    """`key: a -> b` for every leaf in which two configs of one type differ."""
    left, right = flatten(to_dict(a)), flatten(to_dict(b))
    return [
        f"{key}: {left.get(key)!r} -> {right.get(key)!r}"
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    ]


DEEPEST = 50
"""Most levels of a nested dict; no config or JSON document of this package has ten."""


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value for every leaf of a nested dict; UserError beyond `DEEPEST` levels."""
    if prefix.count(".") > DEEPEST:
        raise UserError(f"'{prefix[:DEEPEST]}…' is nested too deeply: at most {DEEPEST} levels")
    flat: dict[str, Any] = {}
    for key, value in data.items():
        nested = isinstance(value, Mapping)
        flat |= flatten(value, f"{prefix}{key}.") if nested else {prefix + key: value}
    return flat
