"""A recipe on the command line: `RECIPE [--section.key value …]`, for `train` and `params --show`.

The options are the keys of the recipe's own config, so the recipe is found first.
"""

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from unitsphere.cli.parse import TRUTHS, given_options, is_boolean, options, parse
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.training.config import RunConfig

FORMS = """\
A number of the model may follow its width d and its depth L, in a recipe and
as an option: "sqrt(d)", "0.5*sqrt(d)", "1/sqrt(d)", "1/L", and the like."""


class Settings(NamedTuple):
    """A recipe's config with the options applied, the verb's own options, and which keys came."""

    config: "RunConfig"
    own: Any
    given: set[str]


def split_recipe(argv: list[str], own: type) -> tuple[str | None, list[str]]:
    """The recipe (the first word that is neither an option nor an option's value), and the rest.

    own: the dataclass of the options that the verb has in addition to a recipe's keys.
    """
    index = 0
    while index < len(argv):
        token = argv[index]
        if not token.startswith("-"):
            return token, argv[:index] + argv[index + 1 :]
        alone = "=" in token or token in ("-h", "--help")
        if not alone and argv[index + 1 : index + 2]:
            alone = argv[index + 1].lower() not in TRUTHS and _is_boolean(token, own)
        index += 1 if alone else 2
    return None, argv


def _is_boolean(option: str, own: type) -> bool:
    """Whether an option is true by its name: one of the verb's, or of any architecture's config."""
    name = option.lstrip("-").replace("-", "_")
    if name in options(own):
        return is_boolean(options(own)[name])
    from unitsphere.models.registry import ARCHITECTURES
    from unitsphere.training.config import run_config_type

    return any(is_boolean(options(run_config_type(kind)).get(name)) for kind in ARCHITECTURES)


def read_settings(
    verb: str, name: str, recipe: "RunConfig", argv: list[str], own: type
) -> Settings:
    """The config of the recipe `name` with the options in `argv` applied.

    own: the dataclass of the verb's other options, each with a default; its docstring is the help.
    """
    from unitsphere.studies.core.plan import with_overrides
    from unitsphere.training.recipes import token_budget

    kind = type(recipe)
    keys = [field.name for field in dataclasses.fields(kind)]
    both: Any = dataclasses.make_dataclass("Options", [], bases=(own, kind), frozen=True)
    forms, rest = _take_forms(kind, argv)
    found = parse(
        both,
        rest,
        f"{verb} {name}",
        default=both(**{key: getattr(recipe, key) for key in keys}),
        about=f"{inspect.cleandoc(own.__doc__ or '')}\n\n{FORMS}".replace("RECIPE", name),
    )
    config = kind(**{key: getattr(found, key) for key in keys})
    given = given_options(both, rest, f"{verb} {name}") | set(forms)
    length = {"train.steps", "train.tokens"} & given
    if len(length) == 2:
        raise UserError("give --train.steps or --train.tokens, not both")
    if "train.batch_tokens" in given and not length:  # the steps are of the recipe's batch
        train = dataclasses.replace(config.train, tokens=token_budget(name))
        config = dataclasses.replace(config, train=train)
    return Settings(with_overrides(config, forms), found, given & set(options(kind)))


def _take_forms(kind: type["RunConfig"], argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """The numbers of the model that are given by its sizes ("sqrt(d)"), and all other words."""
    from unitsphere.training.by_size import is_number

    numbers = {k for k, of in options(kind).items() if k.startswith("model.") and is_number(of)}
    forms, rest, words = {}, [], iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        key = name.removeprefix("--").replace("-", "_")
        if not name.startswith("--") or key not in numbers:
            rest.append(word)
            continue
        value = value if equals else next(words, "")
        forms.pop(key, None)  # the last one counts
        if value and value != "None" and value[:2] != "--" and not _reads_as_number(value):
            forms[key] = value
        else:
            rest += [name, value] if value else [name]
    return forms, rest


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
