"""What a run's config leaves open is resolved here, the same on all of its ranks."""

import math
import re
from dataclasses import replace
from itertools import chain, count
from os.path import exists
from pathlib import Path

import torch

from unitsphere.config import differences, flatten, read_json, to_dict
from unitsphere.data.config import DataConfig
from unitsphere.data.prepare import absolute, input_fingerprint, located, tokenizer_spec
from unitsphere.data.shards import is_prepared
from unitsphere.data.tokenizer import vocab_size_of
from unitsphere.errors import UserError
from unitsphere.training.by_size import without_forms
from unitsphere.training.config import RunConfig
from unitsphere.training.device import pick_device, resolve_precision
from unitsphere.training.distributed.layout import Layout
from unitsphere.training.distributed.processes import check_alike, on_all_ranks
from unitsphere.training.folder import CONFIG, ENVIRONMENT, TOKENIZER, run_and_checkpoint
from unitsphere.training.forecast import check_optimizer, shapes_of
from unitsphere.training.load import check_start
from unitsphere.training.optim.constraint import FROBENIUS
from unitsphere.training.recipes import load_recipe, no_run
from unitsphere.training.transfer import closed

FREE_TABLES = ("parallel.", "inspect.", "optim.base.")
"""Tables of which every key is free, as those in FREE_KEYS are."""
FREE_KEYS = frozenset(
    {
        "data.cache",
        "data.prefetch",
        "data.verify",
        "optim.transfer",
        "train.async_save",
        "train.compile",
        "train.kernels",
        "train.device",
        "train.eval_every",
        "train.eval_tokens",
        "train.keep_every",
        "train.keep_last",
        "train.hang_timeout",
        "train.log_every",
        "train.micro_batch",
        "train.recompute",
        "train.on_spike",
        "train.sample_every",
        "train.save_every",
        "train.spike_sigma",
        "train.time_limit",
        "train.wandb",
    }
)
"""Keys that may change when a run resumes: where it computes and what it writes, nothing that it
learns: what optim.transfer makes of optim.base is in the keys that it sets. (`micro_batch`,
`compile` and `device` change results by rounding, and dropout's draws.) A new key of another table
is not free until it is named here."""

PLACES = ("data.source", "data.validation", "data.tokenizer")
"""Keys that name where data are: a run resumes from another place if the same contents are there.
"""

LENGTH = ("train.steps:", "schedule.")
"""How the lines of keys begin that may change when a run resumes if all of its steps so far had the
same rate by both."""

OWN = ("data.cache", "init")
"""Further keys that name a place on a machine; where the first weights come from, the first says.
"""


def agreed_config(layout: Layout, config: RunConfig, out: Path) -> RunConfig:
    """`resolve_in` of `out`; raises UserError where it is not the same in all processes."""
    resolved = on_all_ranks(layout, lambda: resolve_in(out, config))
    # Each machine may have the data at another place: their contents are compared later.
    same = flatten(to_dict(resolved))
    check_alike(layout, "config", {k: v for k, v in same.items() if k not in (*PLACES, *OWN)})
    return resolved


def resolve_in(out: Path, config: RunConfig) -> RunConfig:
    """`config` resolved to train in `out`; UserError if `out` holds another run or other files."""
    saved = config_in(out)
    resolved = resolve(config, saved)
    if saved is not None:
        check_same(out, saved, resolved, resize=True)
    return resolved


def default_folder(config: RunConfig, usual: Path) -> tuple[Path, str]:
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


def resolve(config: RunConfig, saved: RunConfig | None) -> RunConfig:
    """`config` with what it leaves open resolved; a run that resumes keeps what it has.

    Paths are written from the root on. The precision "auto" depends on the device, and
    `model.vocab_size` none on the tokenizer and the objective. What optim.transfer set is set for
    good. A number by the model's sizes keeps the digits that the run has.
    Raises UserError for values that do not go together.
    """
    for key, value in flatten(to_dict(config)).items():
        if isinstance(value, float) and math.isnan(value):
            raise UserError(f"{key} must be a number, not nan")
    config = closed(config)
    config = at_places(replace(config, data=data_of(config, saved)))
    tokens, context = config.train.batch_tokens, config.data.context
    if context < 1:
        raise UserError(f"data.context must be at least 1: {context}")
    if tokens % context:
        raise UserError(
            f"train.batch_tokens {tokens} is not a multiple of data.context {context}: "
            f"{max(round(tokens / context), 1) * context} is the nearest that is"
        )
    before = None if saved is None else saved.train.precision
    device = pick_device(config.train.device)
    precision = resolve_precision(config.train.precision, before, device)
    model = without_forms(config.model, None if saved is None else saved.model)
    resolved = replace(
        config,
        model=replace(model, vocab_size=model_vocabulary(config)),
        data=replace(config.data, tokenizer=tokenizer_spec(config.data)),
        train=replace(config.train, precision=precision),
    )
    check_model(resolved)
    if resolved.init is not None and saved is None:
        check_start(resolved.init, resolved)
    return resolved


def data_of(config: RunConfig, saved: RunConfig | None) -> DataConfig:
    """The data of a config, with the tokenizer that it means where it names none.

    A run that starts with the weights of another has that one's tokens. One that resumes on
    another prepared folder has that folder's tokenizer, not the former folder's; whether they are
    equal is checked with the data.
    """
    data = config.data
    if saved is not None and data.source != saved.data.source:
        brought = str(Path(saved.data.source) / "tokenizer.json")
        if data.tokenizer == saved.data.tokenizer == brought:
            data = replace(data, tokenizer=None)
    if config.init is not None and saved is None and not (Path(config.init) / CONFIG).is_file():
        raise UserError(f"init: {no_run(Path(config.init))}")
    if config.init is not None and data.tokenizer is None and not is_prepared(data.source):
        data = replace(data, tokenizer=str(Path(config.init) / TOKENIZER))
    return data


def model_vocabulary(config: RunConfig) -> int:
    """`model.vocab_size`, or what the tokenizer and the objective ask for if that is left open."""
    if config.model.vocab_size is not None:
        return config.model.vocab_size
    return vocab_size_of(tokenizer_spec(config.data), config.special_ids)


def check_model(config: RunConfig) -> None:
    """Raise UserError for a model that cannot be, or whose optimizer or constraint does not fit it.

    So a dry run refuses what a run would, and a run before it has prepared its data.
    """
    try:
        model = shapes_of(config)
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes beyond 64 bits
        said = str(error).partition("\n")[0]
        raise UserError(f"a model of these sizes cannot be built: {said}") from error
    if config.optim.logit_power is not None:
        model.logit_scale()  # refused here, not in the first step
    zero, kind = getattr(config.model, "zero_outputs", "none"), config.optim.constrained.kind
    if zero != "none" and kind in FROBENIUS:
        raise UserError(
            f"model.zero_outputs {zero} starts matrices at zero, whose norm {kind} would keep "
            f"(optim.name {config.optim.name}): set model.zero_outputs none"
        )
    if config.train.precision == "bf16-storage":
        model.to(torch.bfloat16)
    check_optimizer(config, model)


def config_in(out: Path) -> RunConfig | None:
    """The config of the run in `out`; None for an empty folder or none, else a `UserError`."""
    if (out / CONFIG).is_file():
        return load_recipe(out / CONFIG)
    if out.is_file():
        raise UserError(f"cannot use {out} as folder: it is a file; give another --out")
    if out.exists() and not is_empty(out):
        raise UserError(f"{out} is not empty and holds no run: give --out another folder")
    return None


def is_empty(out: Path) -> bool:
    """Whether a folder holds nothing but hidden files."""
    return all(path.name.startswith(".") for path in out.iterdir())


def check_same(out: Path, saved: RunConfig, config: RunConfig, resize: bool = False) -> None:
    """Raise UserError unless `config` may resume the run of `saved`.

    With `resize` the keys of a run's length may differ, if nothing else does.
    """
    odd = other_settings(out, saved, config)
    if not (resize and all(line.startswith(LENGTH) for line in odd)) and odd:
        raise UserError(
            f"{out} holds a run of another config ({'; '.join(odd)}): give its own settings to "
            "resume it, or another --out"
        )


def other_settings(out: Path, saved: RunConfig, config: RunConfig) -> list[str]:
    """What makes `config` another run than that of `saved`, in `out`: `key: saved -> asked` each.

    Free keys may differ, and those in PLACES if the same data are at both. All others decide what
    is learned; `train.steps` too, since the schedule is stretched over them.
    """
    if saved.architecture != config.architecture:
        return [f"architecture: {saved.architecture!r} -> {config.architecture!r}"]
    saved, config = at_places(saved), at_places(config)
    changed = {line.partition(":")[0]: line for line in differences(saved, config)}
    odd = {
        key: line
        for key, line in changed.items()
        if key not in FREE_KEYS and not key.startswith(FREE_TABLES)
    }
    others = [line for key, line in odd.items() if key not in PLACES]
    resized = all(line.startswith(LENGTH) for line in others)
    if len(others) == len(odd) or (resized and holds_data_of(out, saved, config)):
        return others
    return list(odd.values())


def at_places(config: RunConfig) -> RunConfig:
    """The config with paths that mean the same from any working directory."""
    init = None if config.init is None else absolute(config.init)
    return replace(config, init=init, data=located(config.data))


def holds_data_of(out: Path, saved: RunConfig, config: RunConfig) -> bool:
    """Whether the data of `config` are, to the byte, those of the run `saved` in `out`.

    A run that has not recorded what it read is asked for its source as it is now.
    """
    recorded = last_data(out)
    if recorded is None and exists(saved.data.source):
        recorded = input_of(saved)
    return recorded is not None and recorded == input_of(config)


def input_of(config: RunConfig) -> str:
    """The fingerprint of what a run's tokens are made from."""
    return input_fingerprint(config.data, pairs=config.objective == "seq2seq")


def last_data(out: Path) -> str | None:
    """The fingerprint of the data that the run in `out` read last; None if it is not recorded."""
    path = out / ENVIRONMENT
    found = read_json(path) if path.is_file() else None
    resumed = found.get("resumed") if isinstance(found, dict) else None
    last = resumed[-1] if isinstance(resumed, list) and resumed else found
    data = last.get("data") if isinstance(last, dict) else None
    fingerprint = data.get("fingerprint") if isinstance(data, dict) else None
    return fingerprint if isinstance(fingerprint, str) else None


def check_same_data(run: Path, config: RunConfig) -> None:
    """Raise UserError if the data are not those that `run` (or its checkpoint) has read.

    Its validation split would be another, perhaps of documents that it is trained on.
    """
    run, _ = run_and_checkpoint(run)
    recorded = last_data(run)
    if recorded is not None and recorded != input_of(config):
        raise UserError(
            f"the data of {run} ({config.data.source}) were changed since it read them: restore "
            "them, or say which text to read with --data"
        )


SPLIT_KEYS = ("source", "validation", "val_fraction", "field")
"""Keys of [data] that decide which text a run is trained on, and which it is validated on."""


def same_data(path: Path, config: RunConfig, other: Path, others: RunConfig) -> bool:
    """Whether two runs (or checkpoints) have the same tokens, in the same splits.

    What they recorded decides, wherever the files were; without both records their settings do.
    """
    records = [last_data(run_and_checkpoint(run)[0]) for run in (path, other)]
    if None not in records:
        return records[0] == records[1]
    one, two = located(config.data), located(others.data)
    return all(getattr(one, key) == getattr(two, key) for key in SPLIT_KEYS)
