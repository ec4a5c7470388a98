"""What a run's config leaves open, decided; the same in all of its processes."""

import math
import os
import re
import sys
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

from unitsphere.config import flatten, to_dict
from unitsphere.data.prepare import tokenizer_spec
from unitsphere.errors import UserError
from unitsphere.models.registry import build_from
from unitsphere.training.config import PLACES, Precision, RunConfig
from unitsphere.training.corpus import model_vocabulary
from unitsphere.training.device import FP8_NEEDS, pick_device, pick_precision
from unitsphere.training.folder import (
    CONFIG,
    at_places,
    check_same,
    is_empty,
    other_settings,
    saved_config,
)
from unitsphere.training.load import check_start, data_of_start
from unitsphere.training.parallel.agree import check_alike, everywhere
from unitsphere.training.parallel.layout import Layout, check_rows, degrees
from unitsphere.training.parallel.processes import own_device
from unitsphere.training.recipes import load_recipe
from unitsphere.training.sized import settled

OWN = ("data.cache", "init")
"""Further keys that name a place on a machine; where the first weights come from, the first says.
"""


def agreed_config(layout: Layout, config: RunConfig, out: Path) -> RunConfig:
    """`config` resolved; the same in all processes, and that of the run in `out`, if there is one.

    Raises UserError where it is not.
    """

    def decide() -> RunConfig:
        saved = saved_config(out)
        resolved = resolve(config, saved)
        if saved is not None:
            check_same(out, saved, resolved, resize=True)
        return resolved

    resolved = everywhere(layout, decide)
    # Each machine may have the data at another place: their contents are compared later.
    same = flatten(to_dict(resolved))
    check_alike(layout, "config", {k: v for k, v in same.items() if k not in (*PLACES, *OWN)})
    return resolved


def own_folder(config: RunConfig, usual: Path) -> tuple[Path, str]:
    """The folder of a run for which nobody names one, and why it is not `usual`, or "".

    If `usual` or one of `usual`-2, -3, … holds the run of `config`, it is that one; else the first
    of them that is free. Raises UserError for a damaged config.json among them.
    """
    name = re.compile(re.escape(usual.name) + r"-(\d+)")
    found = [(name.fullmatch(path.name), path) for path in usual.parent.glob("*")]
    numbered = sorted((int(match[1]), path) for match, path in found if match)
    odd = {path: obstacle(path, config) for path in [usual, *(path for _, path in numbered)]}
    names = chain([usual], (usual.with_name(f"{usual.name}-{n}") for n in count(2)))
    own = next((path for path, why in odd.items() if why == ""), None)
    own = own or next(path for path in names if odd.get(path) is None)
    return own, "" if own == usual else odd[usual] or ""


def obstacle(out: Path, config: RunConfig) -> str | None:
    """Why the run of `config` cannot be in `out`; "" if it is there, None if nothing is."""
    if (out / CONFIG).is_file():
        saved = load_recipe(out / CONFIG)
        odd = other_settings(out, saved, resolve(config, saved))
        more = f", and {len(odd) - 1} more" if len(odd) > 1 else ""
        return f"{out} holds another run ({odd[0]}{more})" if odd else ""
    free = not out.exists() or (out.is_dir() and is_empty(out))
    return None if free else f"{out} holds something else"


def place(layout: Layout, config: RunConfig) -> Layout:
    """This process's place once the degrees of parallelism are decided by the model's size."""
    model = build_from(config.architecture, config.model, "meta", objective=config.objective)
    count = sum(parameter.numel() for parameter in model.parameters())
    device = own_device(config.train.device)
    check_memory(count, layout.world, device.type)
    found = degrees(config.parallel, layout.world, count)
    check_rows(config.train.batch_tokens // config.data.context, config.data.context, found)
    return layout.with_degrees(found, device.type)


def check_memory(parameters: int, world: int, device: str) -> None:
    """Raise UserError for weights that no CPU's memory holds; a GPU says so itself.

    Weights and gradients in fp32, shared by all processes, are the least that training needs.
    """
    need = 8 * parameters / world
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device == "cpu" and need > have:
        raise UserError(
            f"a model of {parameters:,} parameters needs at least {need / 2**30:,.0f} GiB to be "
            f"trained, and this machine has {have / 2**30:,.0f}: lower model.d_model, "
            "model.n_layers or model.vocab_size"
        )


def resolve(config: RunConfig, saved: RunConfig | None) -> RunConfig:
    """`config` with what it leaves open decided; a run that goes on keeps what it decided.

    Paths are written from the root on. The precision "auto" depends on the device, and
    `model.vocab_size` none on the tokenizer and the objective. A number by the model's sizes keeps
    the digits that the run has.
    Raises UserError for values that do not go together.
    """
    for key, value in flatten(to_dict(config)).items():
        if isinstance(value, float) and math.isnan(value):
            raise UserError(f"{key} must be a number, not nan")
    config = with_new_tokenizer(config, saved)
    if config.init is not None:
        config = replace(config, data=data_of_start(config.init, config.data))
    config = at_places(config)
    tokens, context = config.train.batch_tokens, config.data.context
    if context < 1:
        raise UserError(f"data.context must be at least 1: {context}")
    if tokens % context:
        raise UserError(
            f"train.batch_tokens {tokens} is no multiple of data.context {context}: "
            f"{max(round(tokens / context), 1) * context} is the nearest that is"
        )
    precision = decide_precision(config, saved)
    model = settled(config.model, None if saved is None else saved.model)
    model = replace(model, vocab_size=model_vocabulary(config))
    check_model(replace(config, model=model))
    if config.init is not None and saved is None:
        check_start(config.init, replace(config, model=model))
    return replace(
        config,
        model=model,
        data=replace(config.data, tokenizer=tokenizer_spec(config.data)),
        train=replace(config.train, precision=precision),
    )


def with_new_tokenizer(config: RunConfig, saved: RunConfig | None) -> RunConfig:
    """Without the tokenizer of the prepared folder that the run had, if another one is asked for.

    The new folder brings its own; whether they are equal is checked with the data.
    """
    if saved is None or config.data.tokenizer != saved.data.tokenizer:
        return config
    brought = str(Path(saved.data.source) / "tokenizer.json")
    if config.data.source == saved.data.source or config.data.tokenizer != brought:
        return config
    return replace(config, data=replace(config.data, tokenizer=None))


def decide_precision(config: RunConfig, saved: RunConfig | None) -> Precision:
    """The run's precision on its device; a line on stderr where that cannot be fp8 as asked.

    A run begun in fp8 keeps it: `build_job` refuses to go on with it where there is none.
    """
    asked, device = config.train.precision, pick_device(config.train.device)
    before = None if saved is None else saved.train.precision
    if asked == "auto" and before is not None:
        asked = before
    if asked == before == "fp8":
        return "fp8"
    picked = pick_precision(asked, device)
    if asked == "fp8" and picked != "fp8":
        print(f"train.precision fp8 {FP8_NEEDS}: {picked} on {device} instead", file=sys.stderr)
    return picked


def check_model(config: RunConfig) -> None:
    """Raise UserError for a model that cannot be, or that is larger than any memory."""
    try:
        build_from(config.architecture, config.model, "meta", objective=config.objective)
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes beyond 64 bits
        said = str(error).partition("\n")[0]
        raise UserError(f"a model of these sizes cannot be built: {said}") from error
