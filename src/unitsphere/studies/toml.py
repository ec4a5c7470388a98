"""TOML written: the records of studies. (Python reads TOML, and writes none.)"""

import json
from collections.abc import Mapping

from unitsphere.errors import UserError

Scalar = bool | int | float | str


def toml_text(table: Mapping[str, object], prefix: str = "") -> str:
    """A nested table as TOML: its values, then its tables, in their order; None is left out.

    Reading it gives an equal table. Raises UserError for a value that is neither a scalar, a list
    of scalars nor a table.
    """
    values, tables = [], []
    for key, value in table.items():
        if isinstance(value, Mapping):
            name = prefix + _key(key)
            inner = toml_text(value, name + ".")
            tables.append(f"\n[{name}]\n{inner}")
        elif value is not None:
            values.append(f"{_key(key)} = {_value(key, value)}\n")
    return "".join(values + tables)


def _key(key: str) -> str:
    bare = key.replace("-", "").replace("_", "")
    return key if bare.isascii() and bare.isalnum() else _string(key)


def _value(key: str, value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(key, item) for item in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float):
        return repr(value)
    raise UserError(f"'{key}' must be a number, a text, true or false, not {value!r}")


def _string(text: str) -> str:
    # JSON's strings are TOML's, but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
