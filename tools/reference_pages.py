"""The generated pages of the reference: configuration keys and verbs.

A key's type and default are those of its dataclass, its meaning the docstring below the field, and
its recipes the files that set it themselves.
"""

import ast
import contextlib
import dataclasses
import functools
import inspect
import io
import itertools
import os
import re
import types
import typing
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from unittest import mock

from unitsphere.cli import app, main
from unitsphere.config import field_types, flatten, read_toml
from unitsphere.models.registry import ARCHITECTURES
from unitsphere.training.config import run_config_type
from unitsphere.training.recipes import recipe_folder, recipe_names

SHOWN = 12
"""Recipes named for one value of a key; the others are counted."""


@dataclasses.dataclass(frozen=True)
class Key:
    """A configuration key as the page shows it."""

    name: str
    kind: Any
    default: Any
    meaning: str


def config_pages() -> dict[str, str]:
    """Page name -> Markdown: the sections of a run's config, then each architecture's model."""
    every = run_config_type("gpt")
    sections = [f.name for f in dataclasses.fields(every) if is_section(field_types(every)[f.name])]
    pages = {"run": page("A run", "The keys at the top of a recipe.", list(own_keys(every)))}
    for name in sections:
        if name == "model":
            continue
        kind = field_types(every)[name]
        pages[name] = page(f"[{name}]", first_line(kind), list(keys(kind, f"{name}.")))
    for name, entry in ARCHITECTURES.items():
        found = list(keys(entry.config, "model."))
        pages[f"model-{name}"] = page(f"[model] of {name}", first_line(entry.config), found, name)
    return pages


def is_section(kind: Any) -> bool:
    """Whether a key's type is a config of its own."""
    return dataclasses.is_dataclass(kind)


def own_keys(cls: type) -> Iterator[Key]:
    """The keys of a config that are not sections."""
    for key in keys(cls, ""):
        if not is_section(key.kind) and "." not in key.name:
            yield key


def keys(cls: type, prefix: str, start: Any = None) -> Iterator[Key]:
    """Every key of a config, and each section in it followed by its keys.

    start: the config whose values are the defaults; None: the class's own.
    """
    texts = meanings(cls)
    for field in dataclasses.fields(cls):
        kind = field_types(cls)[field.name]
        default = default_of(field) if start is None else getattr(start, field.name)
        yield Key(prefix + field.name, kind, default, texts.get(field.name, ""))
        if is_section(kind):
            yield from keys(kind, f"{prefix}{field.name}.", default)


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """A field's default; MISSING if the config must name it."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@functools.cache
def meanings(cls: type) -> dict[str, str]:
    """Field -> the docstring below it, in the class or the one that it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base) or base.__qualname__ not in source_classes(base):
            continue
        body = source_classes(base)[base.__qualname__].body
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                value = getattr(text.value, "value", None)
                if isinstance(value, str) and isinstance(field.target, ast.Name):
                    found[field.target.id] = inspect.cleandoc(value)
    return found


@functools.cache
def source_classes(cls: type) -> dict[str, ast.ClassDef]:
    """Name -> definition of the classes of a class's module; none for one that is made."""
    module = inspect.getmodule(cls)
    if module is None or not getattr(module, "__file__", None):
        return {}
    tree = ast.parse(inspect.getsource(module))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


ABOVE = {
    "architecture": "which model: a name of the table in [architectures](../../architectures.md)"
}
"""Keys whose meaning is that of their name in another place."""


def page(title: str, about: str, found: list[Key], architecture: str | None = None) -> str:
    """The page of a section; ValueError for a key without a meaning."""
    lines = [f"# {title}", "", about]
    for key in found:
        if is_section(key.kind):
            text = " ".join((key.meaning or first_line(key.kind)).split())
            lines += ["", f"## `{key.name}`", "", f"{text[0].upper()}{text[1:].rstrip('.')}."]
            continue
        meaning = key.meaning or ABOVE.get(key.name, "")
        if not meaning:
            raise ValueError(f"{key.name} has no docstring that says what it means")
        sentence = " ".join(meaning.split())
        level = "###" if key.name.count(".") > 1 else "##"
        lines += ["", f"{level} `{key.name}`", "", f"{sentence[0].upper()}{sentence[1:]}.", ""]
        lines += [f"{kind_name(key.kind)}{default_text(key.default)}"]
        lines += recipe_lines(key.name, architecture)
    return "\n".join(lines) + "\n"


def kind_name(kind: Any) -> str:
    """A type as a reader of TOML sees it."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return "One of " + ", ".join(f"`{argument}`" for argument in arguments)
    if origin in (types.UnionType, typing.Union):
        named = [kind_name(argument) for argument in arguments if argument is not type(None)]
        return " or ".join(named) + (", or none" if type(None) in arguments else "")
    if origin is list:
        return f"List: {kind_name(arguments[0])}"
    if origin is dict:
        return f"Table: {kind_name(arguments[1])}"
    names = {int: "Integer", float: "Number", bool: "`true` or `false`", str: "Text"}
    return names.get(kind, "Any value")


def default_text(default: Any) -> str:
    """What a default adds to the line of the type."""
    if default is dataclasses.MISSING:
        return "; must be set."
    if default is None or default in ("", [], {}):
        return "; not set by default."
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    return f"; default `{shown}`."


def recipe_lines(key: str, architecture: str | None) -> list[str]:
    """The recipes that set a key themselves, by value, folded away."""
    by_value: dict[str, list[str]] = defaultdict(list)
    for name, (kind, values) in recipe_values().items():
        if key in values and architecture in (None, kind):
            by_value[str(values[key])].append(name)
    if not by_value:
        return []
    count = sum(map(len, by_value.values()))
    lines = ["", f'??? note "Set by {count} recipe{"s" * (count > 1)}"', ""]
    lines += ["    | value | recipes |", "    |---|---|"]
    for value, names in sorted(by_value.items(), key=lambda item: -len(item[1])):
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        listed = ", ".join(names[:SHOWN])
        lines.append(f"    | `{value.replace('|', '/')}` | {listed}{more} |")
    return lines


@functools.cache
def recipe_values() -> dict[str, tuple[str, dict[str, Any]]]:
    """Recipe -> its architecture, and dotted key -> value as its own file has it."""
    found = {}
    for name in recipe_names():
        table = read_toml(recipe_folder() / f"{name}.toml")
        base = table
        while "architecture" not in base:
            base = read_toml(recipe_folder() / f"{base['base']}.toml")
        found[name] = base["architecture"], flatten(table)
    return found


def first_line(cls: type) -> str:
    """The first paragraph of a class's docstring."""
    return " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split())


def verbs_page() -> str:
    """Every verb's help, as a terminal of 84 columns shows it."""
    lines = ["# The command line", "", "`unitsphere VERB …`. Exit status: 0 for success, 1 for a"]
    lines += ["failed run, 2 for a user's mistake, 75 for a run that was stopped and saved."]
    for verb, (_, about) in app.VERBS.items():
        lines += ["", f"## {verb}", "", f"{about[0].upper()}{about[1:]}.", ""]
        lines += ["```text", help_of(verb).rstrip(), "```"]
        if verb == "train":
            lines += ["", "Its options are the keys of [the configuration](config/run.md)."]
    return "\n".join(lines) + "\n"


def help_of(verb: str) -> str:
    """What `unitsphere VERB --help` prints."""
    out = io.StringIO()
    terminal = {"COLUMNS": "84", "NO_COLOR": "1", "TERM": "dumb"}
    with (
        mock.patch.dict(os.environ, terminal),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        main([verb, "--help"])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    return plain
