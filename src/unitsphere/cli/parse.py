"""A verb's arguments from a typed dataclass, by tyro; every mistake becomes one line.

tyro reports mistakes in boxes of several lines. So options are checked against the dataclass
first, each is handed to tyro as `--name=value` (a value may then begin with a dash), and what
tyro still refuses becomes a line that names the option, its type and the value.
"""

import collections
import contextlib
import dataclasses
import inspect
import io
import re
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

import tyro
from tyro.constructors import (
    MISSING_NONPROP,
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from unitsphere.config import did_you_mean, field_types
from unitsphere.errors import UserError

T = TypeVar("T")
TRUTHS = ("true", "false")
"""The values of a boolean, in any case."""


def options(cls: type, prefix: str = "") -> dict[str, Any]:
    """Option name without dashes ("train.steps") -> its type, for a dataclass and those in it."""
    found: dict[str, Any] = {}
    for name, kind in field_types(cls).items():
        if dataclasses.is_dataclass(kind):
            found |= options(typing.cast(type, kind), f"{prefix}{name}.")
        else:
            found[prefix + name] = kind
    return found


def parse(
    cls: type[T],
    argv: list[str],
    verb: str,
    *,
    default: T | None = None,
    about: str | None = None,
) -> T:
    """The `cls` that `argv` describes, on top of `default`; exits after printing help.

    Help begins with the first paragraph of `about`, else of the class's docstring, and ends with
    the others: tyro would run their lines into one. A boolean is true by its name (`--json`), or
    is what follows it, True or False. A tuple takes all the values that follow its option, each
    time that it is given; a `UseAppendAction[list[...]]` takes one each time.
    """
    known = options(cls)
    given = _read(argv, known, verb, takes_words=bool(_positionals(cls)))
    if not given.help:
        _check_words(given, cls, default is not None, verb)
    # Help shows a flag as one; else every boolean has been given its value, and nobody reads
    # comments, for which tyro parses every module that has one of the classes.
    plain = (tyro.conf.FlagConversionOff, tyro.conf.HelptextFromCommentsOff)
    forms = (tyro.conf.FlagCreatePairsOff,) if given.help else plain
    registry = _registry(_shown_plainly if given.help else _only_asked_for(cls, given))
    headline, _, notes = inspect.cleandoc(about or cls.__doc__ or "").partition("\n\n")
    start: dict[str, Any] = {} if default is None else {"default": default}
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(
                cls,
                args=given.tokens(),
                prog=f"unitsphere {verb}",
                description=headline,
                use_underscores=True,
                config=forms,
                registry=registry,
                **start,
            )
    except SystemExit as stop:
        if not stop.code:
            print(notes)
            raise
        raise UserError(_one_line(errors.getvalue(), given, known, verb)) from None


def given_options(cls: type, argv: list[str], verb: str) -> set[str]:
    """The names of the options in `argv`, as fields of `cls` ("train.steps")."""
    return {name for name, _ in _read(argv, options(cls), verb, takes_words=False).options}


Change = Callable[[type, StructConstructorSpec], StructConstructorSpec]


def _registry(change: Change) -> ConstructorRegistry:
    """tyro's own rules, with every dataclass's fields changed."""
    registry = ConstructorRegistry()
    at_work: list[type] = []

    @registry.struct_rule
    def changed(info: StructTypeInfo) -> StructConstructorSpec | None:
        if info.type in at_work:
            return None
        at_work.append(info.type)
        try:
            spec = ConstructorRegistry.get_struct_spec(info)
        finally:
            at_work.remove(info.type)
        return change(info.type, spec) if isinstance(spec, StructConstructorSpec) else None

    return registry


def _only_asked_for(cls: type, given: "_Given") -> Change:
    """Only the fields that the options and words set: a recipe has hundreds, and tyro is slow."""
    asked_for = {(cls, name) for name in _positionals(cls)}
    for option, _ in given.options:
        kind: Any = cls
        for name in option.split("."):
            asked_for.add((kind, name))
            kind = field_types(kind)[name]

    def change(kind: type, spec: StructConstructorSpec) -> StructConstructorSpec:
        # A section without a default instance is left to tyro, which makes one.
        known = [field for field in spec.fields if field.default is not MISSING_NONPROP]
        others = {f.name: f.default for f in known if (kind, f.name) not in asked_for}
        return dataclasses.replace(
            spec,
            instantiate=partial(spec.instantiate, **others),
            fields=tuple(field for field in spec.fields if field.name not in others),
        )

    return change


def _shown_plainly(_: type, spec: StructConstructorSpec) -> StructConstructorSpec:
    """Help does not show a default that is nothing, nor `--no_` flags."""
    return dataclasses.replace(spec, fields=tuple(map(_plain_field, spec.fields)))


def _plain_field(field: StructFieldSpec) -> StructFieldSpec:
    kind: Any = field.type
    if field.default in (None, (), ""):
        kind = Annotated[kind, tyro.conf.arg(help_behavior_hint="")]
    elif field.default is MISSING_NONPROP:
        kind = Annotated[kind, tyro.conf.arg(help_behavior_hint="(required)")]
    elif field.default is True:
        kind = Annotated[kind, tyro.conf.FlagConversionOff, tyro.conf.arg(metavar="[True|False]")]
    return dataclasses.replace(field, type=kind)


@dataclasses.dataclass
class _Given:
    """A command line taken apart: words without an option, options with their values."""

    words: list[str] = dataclasses.field(default_factory=list)
    options: list[tuple[str, list[str]]] = dataclasses.field(default_factory=list)
    help: bool = False

    def add(self, name: str, values: list[str], several: bool) -> None:
        """Note an option; of one that takes several values, none is lost when it comes again."""
        earlier = next((had for known, had in self.options if known == name), None)
        if several and earlier is not None:
            earlier += values
        else:
            self.options.append((name, values))

    def tokens(self) -> list[str]:
        """For tyro: a single value is joined to its option, so that it may begin with a dash."""
        tokens = list(self.words)
        for name, values in self.options:
            joined = len(values) == 1
            tokens += [f"--{name}={values[0]}"] if joined else [f"--{name}", *values]
        return tokens + ["--help"] * self.help


def _read(argv: list[str], known: Mapping[str, Any], verb: str, takes_words: bool) -> _Given:
    """`argv` with every option checked and spelled as its field.

    Where words are taken (`takes_words`), only True or False after a boolean is its value.
    """
    given = _Given()
    rest = collections.deque(argv)
    if odd := [word for word in argv if "\0" in word]:
        raise UserError(f"an argument must not hold a NUL character: {odd[0]!r}")
    while rest:
        token = rest.popleft()
        if token in ("-h", "--help"):
            given.help = True
        elif not token.startswith("-") or token in ("-", "-.jsonl"):
            given.words.append(token)
        else:
            spelled, equals, value = token.partition("=")
            name = spelled.lstrip("-").replace("-", "_")
            if name not in known or not spelled.startswith("--"):
                raise UserError(f"unknown option '{spelled}'{_near(name, known)}{_see(verb)}")
            if equals:
                rest.appendleft(value)
            if is_boolean(known[name]) and not equals and not _is_truth(rest, takes_words):
                rest.appendleft("True")
            values = _values(rest, known[name]) if equals or not _is_option(rest, known) else []
            if not values:
                raise UserError(f"--{name} needs a value: {describe(known[name])}{_see(verb)}")
            given.add(name, values, several=_takes_several(known[name]))
    return given


def is_boolean(kind: Any) -> bool:
    """Whether a type is bool, or bool or None: without a value the option says True."""
    return kind is bool or set(typing.get_args(kind)) == {bool, types.NoneType}


def _is_truth(rest: collections.deque[str], takes_words: bool) -> bool:
    """Whether the next word is a boolean's value, rather than an option or another word."""
    if not rest or rest[0].startswith("-"):
        return False
    return not takes_words or rest[0].lower() in TRUTHS


def _is_option(rest: collections.deque[str], known: Mapping[str, Any]) -> bool:
    """Whether the next word names an option, and so is not a value: `--say=--json` gives that."""
    name = rest[0].partition("=")[0] if rest else ""
    return name.startswith("--") and name[2:].replace("-", "_") in (*known, "help")


def _values(rest: collections.deque[str], kind: Any) -> list[str]:
    """Take an option's values from the front: one, or all up to the next option for a tuple."""
    values: list[str] = []
    while rest and (not values or (_takes_several(kind) and not rest[0].startswith("-"))):
        value = rest.popleft()
        known = is_boolean(kind) and value.lower() in (*TRUTHS, "none")
        values.append(value.capitalize() if known else value)
    return values


def _takes_several(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple


def _check_words(given: _Given, cls: type, defaulted: bool, verb: str) -> None:
    """Refuse words that no positional takes, and name whatever required one is missing."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    positional = _positionals(cls)
    takes_all = any(_takes_several(field_types(cls)[name]) for name in positional)
    extra = [] if takes_all else given.words[len(positional) :]
    if extra:
        taken = " and ".join(name.upper() for name in positional) or "only options"
        raise UserError(
            f"unexpected argument '{extra[0]}': {verb} takes {taken} "
            f"(quote a pattern, or a text with spaces){_see(verb)}"
        )
    named_ones = [name for name, _ in given.options] + positional[: len(given.words)]
    missing = [
        name.upper() if name in positional else f"--{name}"
        for name, field in fields.items()
        if _is_required(field) and name not in named_ones
    ]
    if missing and not defaulted:
        raise UserError(f"{verb} needs {' and '.join(missing)}{_see(verb)}")


def _positionals(cls: type) -> list[str]:
    """The fields that are words of the command line, without an option."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return [
        field.name
        for field in dataclasses.fields(cls)
        if tyro.conf.Positional in getattr(hints[field.name], "__metadata__", ())
    ]


def _is_required(field: dataclasses.Field[Any]) -> bool:
    nothing = dataclasses.MISSING
    return field.default is nothing and field.default_factory is nothing


ELSEWHERE = {
    "learning_rate": "optim.lr",
    "max_steps": "train.steps",
    "max_iters": "train.steps",
    "num_train_epochs": "train.steps",
    "batch_size": "train.batch_tokens",
    "per_device_train_batch_size": "train.batch_tokens",
    "block_size": "data.context",
    "dataset": "data.source",
    "output_dir": "out",
}
"""What nanoGPT and the Trainer of transformers call a key -> the key."""


def _near(name: str, known: Mapping[str, Any]) -> str:
    meant = ELSEWHERE.get(name.rpartition(".")[2])
    if meant in known:
        return f" (did you mean '--{meant}'?)"
    shortest_last = sorted(known, key=lambda key: -key.count("."))
    by_last = {key.rpartition(".")[2]: key for key in shortest_last}
    if name in by_last:
        return f" (did you mean '--{by_last[name]}'?)"
    suggestion = did_you_mean(name, known)
    return suggestion.replace("'", "'--", 1) if "did you mean" in suggestion else ""


def _see(verb: str) -> str:
    return f"; see `unitsphere {verb} --help`"


def describe(kind: Any) -> str:
    """A type in a user's words: "an integer", "one of cosine, linear or None"."""
    names = {int: "an integer", float: "a number", bool: "True or False", types.NoneType: "None"}
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(describe(argument) for argument in arguments)
    if origin in (tuple, list):
        return f"{describe(arguments[0])}, or several"
    return names.get(kind, "a path" if getattr(kind, "__name__", "") == "Path" else "text")


def _one_line(box: str, given: _Given, known: Mapping[str, Any], verb: str) -> str:
    """tyro's box as one line: it has refused the value of an option, or of a word."""
    for name, values in reversed(given.options):  # of one that is repeated the last one counts
        if f"--{name}:" in box or f"'--{name}'" in box:
            kind, got = describe(known[name]), " ".join(values)
            return f"--{name} must be {kind}, not '{got}'{_see(verb)}"
    text = " ".join(re.sub(r"[^\w\s.,:;'\"/=()\[\]{}-]", " ", box).split())
    return f"{text.partition(' For full helptext')[0]}{_see(verb)}"
