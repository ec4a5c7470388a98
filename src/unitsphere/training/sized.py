"""Numbers of a model that follow its width d and its depth L: `init = "sqrt(d)"` in a recipe.

A form is d, L, sqrt(d) or sqrt(L), times a number or dividing one: "sqrt(d)", "0.5*sqrt(d)", "1/L".
It is a number as soon as the config is made, and is computed again where a size is set later, by
an option or a study; config.json has the number.
"""

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from unitsphere.config import field_types
from unitsphere.errors import UserError

Config = TypeVar("Config")
FORM = re.compile(r"(?:(\d+(?:\.\d*)?(?:e[+-]?\d+)?) ?([*/]) ?)?(?:sqrt\(([dL])\)|([dL]))")
EXAMPLES = '"sqrt(d)", "0.5*sqrt(d)", "1/sqrt(d)" or "1/L" (d: model.d_model, L: model.n_layers)'


class BySize(float):
    """The number that a form comes to at the sizes given, which knows its form."""

    form: str
    sizes: tuple[int, int]

    def __new__(cls, form: str, d: int = 1, L: int = 1) -> Self:
        """Raises UserError for what is not a form."""
        match = FORM.fullmatch(form.strip())
        if match is None:
            raise UserError(f"'{form}' is neither a number nor a form such as {EXAMPLES}")
        factor, sign, root, plain = match.groups("")
        size = max({"d": d, "L": L}[root or plain], 1)  # sizes below 1 are refused with the model
        value = math.sqrt(size) if root else float(size)
        number = float(factor or 1)
        self = super().__new__(cls, number / value if sign == "/" else number * value)
        self.form, self.sizes = form, (d, L)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getnewargs__(self) -> Any:
        return self.form, *self.sizes


def is_number(kind: Any) -> bool:
    """Whether a field's type is a number, or that or none."""
    return kind is float or float in typing.get_args(kind)


def read_forms(cls: type, data: Mapping[str, Any], where: str = "model.") -> dict[str, Any]:
    """The table of a config of type `cls` with every text in the place of a number read as a form.

    Raises UserError for what is not a form.
    """
    kinds, found = field_types(cls), dict(data)
    for key, value in data.items():
        kind = kinds.get(key)
        if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
            found[key] = read_forms(typing.cast(type, kind), value, f"{where}{key}.")
        elif isinstance(value, str) and is_number(kind):
            try:
                found[key] = BySize(value)
            except UserError as error:
                raise UserError(f"{where}{key}: {error}") from None
    return found


def at_sizes(model: Config) -> Config:
    """A model's config, each number that has a form as d_model and n_layers make it."""
    return changed(model, None, lambda number, _: BySize(number.form, *sizes(model)))


def sizes(model: Any) -> tuple[int, int]:
    """d and L."""
    return model.d_model, model.n_layers


def settled(model: Config, saved: Any) -> Config:
    """A model's config in which numbers have forms no longer, for good.

    Where `saved`, that of a run or None, has such a number to some of its digits, these stay:
    recipes used to have three of them, or nine.
    """

    def keep(number: BySize, before: Any) -> float:
        written = {float(f"{number:.{digits}g}") for digits in range(3, 17)}
        return before if before in written else float(number)

    return changed(model, saved, keep)


def changed(config: Config, other: Any, make: Callable[[BySize, Any], float]) -> Config:
    """The config with `make(number, other's)` for each number in it that has a form."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(typing.cast(Any, config)):
        value, beside = getattr(config, field.name), getattr(other, field.name, None)
        if dataclasses.is_dataclass(value):
            found[field.name] = changed(value, beside, make)
        elif isinstance(value, BySize):
            found[field.name] = make(value, beside)
    return dataclasses.replace(typing.cast(Any, config), **found)
