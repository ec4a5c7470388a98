"""A trained model, loaded from its run folder, an exported folder, or an archive of either."""

import json
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from unitsphere.config import differences, read_json
from unitsphere.data.shards import is_prepared
from unitsphere.data.tokenizer import JsonTokenizer, Tokenizer, load_tokenizer
from unitsphere.errors import UserError
from unitsphere.files import check_given
from unitsphere.models.exported import MASK_TOKEN, OWN_TOKENIZER, load_exported
from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Transformer
from unitsphere.training.archive import is_archive, unpacked
from unitsphere.training.checkpoint import store as checkpoint
from unitsphere.training.checkpoint.store import State
from unitsphere.training.checkpoint.tensors import (
    check_finite,
    check_tensors,
    empty_tensors,
    load_model,
    model_tensors,
    read_tensors,
)
from unitsphere.training.config import RunConfig
from unitsphere.training.device import pick_device
from unitsphere.training.folder import CHECKPOINTS, CONFIG, TOKENIZER, run_and_checkpoint
from unitsphere.training.forecast import shapes_of
from unitsphere.training.optim.average import AVERAGE, load_averages_
from unitsphere.training.recipes import no_run, saved_config

Weights = Literal["last", "average"]
"""Which of a checkpoint's weights: those of its step, or their average (`optim.average`)."""


class LoadedRun(NamedTuple):
    """A run's model with the weights of its newest complete checkpoint, ready for inference."""

    model: Transformer
    tokenizer: Tokenizer
    config: RunConfig


def load_run(
    path: Path | str, device: str = "auto", trainable: bool = False, weights: Weights = "last"
) -> LoadedRun:
    """Model, tokenizer and config of the run folder `path`, or of one exported from it.

    `path` may also be one of the run's checkpoints (RUN/checkpoints/step-NNNNNNNN), or an archive
    of such a folder (`training.archive`: .tar.gz, .tgz, .zip). The model is in eval mode and wants
    no gradients, unless it is to be `trainable`. `weights` "average" are the averaged ones,
    projected. Raises UserError if it is none of these, or has no complete checkpoint yet; for an
    exported folder that is to be trainable; for a run that keeps no average, or not yet.
    """
    path = Path(path)
    if is_archive(path):
        with unpacked(path) as folder:
            try:
                return load_run(folder, device, trainable, weights)
            except UserError as error:  # it names a folder that is then removed
                raise UserError(str(error).replace(str(folder), str(path))) from error
    path, wanted = run_and_checkpoint(path)
    if not trainable and (path / CONFIG).is_file() and is_exported(read_json(path / CONFIG)):
        if weights == "average":
            raise UserError(f"{path} is an exported folder, which has one set of weights")
        return LoadedRun(*load_folder(path, pick_device(device)))
    config = config_of_run(path)
    folder = chosen_checkpoint(path, wanted)
    tokenizer = load_tokenizer(path / TOKENIZER, path)
    check_checkpoint(config, folder)
    model = build_from(
        config.architecture, config.model, pick_device(device), objective=config.objective
    )
    if config.train.precision == "bf16-storage":
        model.to(torch.bfloat16)
    load_model(folder, model)
    if weights == "average":
        averages = stored_averages(folder, model)
        check_begun(folder, config)
        load_averages_(model, averages, config.optim.constrained)
    check_finite(model.state_dict(), f"checkpoint {folder}")
    model.requires_grad_(trainable).train(trainable)
    return LoadedRun(model, tokenizer, config)


def check_begun(folder: Path, config: RunConfig) -> None:
    """Raise UserError for a checkpoint before the first averaged step: it has the last weights."""
    start = config.optim.average.first(config.train.steps)
    step = int(folder.name.removeprefix("step-"))
    if step <= start:
        raise UserError(
            f"checkpoint {folder} has no averaged weights yet: by optim.average.start the first "
            f"are those of step {start + 1}"
        )


def stored_averages(folder: Path, model: Transformer) -> dict[str, Tensor]:
    """Parameter name -> the average that a checkpoint has of it; a UserError if there is none."""
    names = {f"optim.{name}.{AVERAGE}": name for name, _ in model.named_parameters()}
    stored = empty_tensors(folder, "optim.", "meta")
    found = {key: torch.empty_like(stored[key], device="cpu") for key in names if key in stored}
    if not found:
        raise UserError(
            f"checkpoint {folder} has no averaged weights: train with optim.average.kind"
        )
    odd = [k for k, t in found.items() if t.shape != model.get_parameter(names[k]).shape]
    if odd:
        raise UserError(f"checkpoint {folder} does not fit the model at {odd[0]}")
    read_tensors(folder, found)
    return {names[key]: tensor for key, tensor in found.items()}


def config_of_run(path: Path) -> RunConfig:
    """Returns the config of the run folder `path`; UserError if it is none or exported."""
    if not (path / CONFIG).is_file():
        raise UserError(no_run(path))
    document = read_json(path / CONFIG)
    if is_exported(document):
        raise UserError(
            f"{path} is an exported folder: its scales are part of its weights, which are not "
            "unit vectors any more; continue from the run folder"
        )
    return saved_config(document, str(path / CONFIG))


def chosen_checkpoint(run: Path, wanted: Path | None = None) -> Path:
    """The wanted checkpoint, or the newest complete one; what is damaged is reported on stderr.

    Raises UserError if the wanted one is damaged or not there, or if there is none.
    """
    if wanted is not None:
        wrong = checkpoint.damage(wanted) if wanted.is_dir() else "there is no such folder"
        if wrong is not None:
            raise UserError(f"cannot load the checkpoint {wanted}: {wrong}")
        return wanted
    folder, damaged = checkpoint.newest(run / CHECKPOINTS)
    if folder is None:
        why = f" ({damaged[0]})" if damaged else ""
        raise UserError(f"{run} has no complete checkpoint{why}: train it first")
    for line in damaged:
        print(f"{line}: {folder} is used instead", file=sys.stderr)
    return folder


def pinned(path: Path) -> Path:
    """The checkpoint that `load_run` loads for a run folder; another path as it is.

    For who asks several times: a run that trains on has another newest checkpoint by then. Raises
    the errors of `chosen_checkpoint`.
    """
    folder, wanted = run_and_checkpoint(path)
    if not (folder / CHECKPOINTS).is_dir() or not (folder / CONFIG).is_file():
        return path
    return chosen_checkpoint(folder, wanted)


def last_state(out: Path) -> State | None:
    """The state of the newest complete checkpoint; None if nothing was saved yet.

    Damaged checkpoints are passed over with a line each. Raises UserError if there are only
    damaged ones.
    """
    folder, damaged = checkpoint.newest(out / CHECKPOINTS)
    for line in checkpoint.links(out / CHECKPOINTS):
        print(line, file=sys.stderr)
    if folder is None and damaged:
        raise UserError(f"{damaged[0]}, and no other is complete: give another --out to start over")
    for line in damaged:
        print(f"{line}: {folder} is used instead", file=sys.stderr)
    return None if folder is None else checkpoint.load_state(folder)


def check_start(run: str, config: RunConfig, tokenizer: Tokenizer | None = None) -> None:
    """Raise UserError, naming what differs, unless `config` can start with the weights of `run`.

    Architecture, objective, all shapes and, where `tokenizer` is given, the tokens must be equal.
    """
    before, own = config_of_run(Path(run)), Path(run) / TOKENIZER
    odd = [
        f"{key}: {getattr(before, key)!r} -> {getattr(config, key)!r}"
        for key in ("architecture", "objective")
        if getattr(before, key) != getattr(config, key)
    ]
    another = (
        tokenizer is not None
        and load_tokenizer(own, Path(run)).fingerprint != tokenizer.fingerprint
    )
    if not odd and another:
        odd = ["its tokenizer is another one"]
    if not odd and shapes(before) != shapes(config):
        odd = [f"model.{line}" for line in differences(before.model, config.model)]
    if odd:
        todo = "give the settings that it has"
        if another or any(line.startswith("model.vocab_size") for line in odd):
            todo = f"add --data.tokenizer {own}"
            if is_prepared(config.data.source):
                todo = f"prepare the data with --tokenizer {own}"
        raise UserError(f"cannot start with the weights of {run}: {'; '.join(odd)}; {todo}")


def shapes(config: RunConfig) -> dict[str, torch.Size]:
    """Name -> shape of everything that a checkpoint holds of the model."""
    model = shapes_of(config)
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def find_start(config: RunConfig, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Where a run's first weights come from, for environment.json: run, step, checkpoint, sha256.

    None without `init`. Raises UserError if they do not fit, or if there are none.
    """
    if config.init is None:
        return None
    check_start(config.init, config, tokenizer)
    folder = chosen_checkpoint(Path(config.init))
    check_checkpoint(config, folder)
    sha256 = checkpoint.fingerprint(folder / checkpoint.MARKER)["sha256"]
    step = checkpoint.load_state(folder).step
    return {"run": config.init, "step": step, "checkpoint": str(folder.resolve()), "sha256": sha256}


def check_checkpoint(config: RunConfig, folder: Path) -> None:
    """Raise UserError unless the checkpoint `folder` holds the model that `config` declares."""
    stored, where = empty_tensors(folder, "model.", "meta"), f"checkpoint {folder}"
    if config.model.n_layers > len(stored):  # laying out a billion layers would not end
        raise UserError(
            f"{where} does not fit its config: it has {len(stored)} tensors, and the config "
            f"declares {config.model.n_layers} layers"
        )
    check_tensors(model_tensors(shapes_of(config)), stored, where)


MODEL_TYPE = "unitsphere"


def is_exported(document: Any) -> bool:
    """Whether a config.json belongs to an exported folder."""
    return isinstance(document, dict) and document.get("model_type") == MODEL_TYPE


def load_folder(path: Path, device: torch.device) -> tuple[Transformer, Tokenizer, RunConfig]:
    """Model, tokenizer and config of the exported folder `path`; a `UserError` if it is damaged."""
    own = read_json(path / "config.json").get(MODEL_TYPE)
    if own is None:
        raise UserError(f"{path}/config.json has lost its key '{MODEL_TYPE}': export the run again")
    config = saved_config(own, f"{path}/config.json")
    tensors = read_weights(path)
    if config.model.n_layers > len(tensors):  # laying out a billion layers would not end
        raise UserError(f"{path} declares {config.model.n_layers} layers, and holds fewer tensors")
    model = load_exported(config.architecture, config.model, config.objective, tensors)
    return model.to(device).eval(), read_tokenizer(path), config


def read_tokenizer(path: Path) -> Tokenizer:
    """The run's tokenizer; where transformers has saved the folder again, what it made of it."""
    if (path / OWN_TOKENIZER).is_file():
        return load_tokenizer(path / OWN_TOKENIZER, path)
    file = path / "tokenizer.json"
    document = read_json(file)
    added = document.get("added_tokens") if isinstance(document, dict) else None
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise UserError(f"{file} has no list of added_tokens: export the run again")
    if not any(token.get("content") == MASK_TOKEN for token in added):
        return load_tokenizer(file, path)
    document["added_tokens"] = [token for token in added if token.get("content") != MASK_TOKEN]
    return JsonTokenizer(json.dumps(document), str(file))


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a folder's model*.safetensors; a `UserError` if there are none."""
    found: dict[str, Tensor] = {}
    for file in sorted(path.glob("model*.safetensors")):
        try:
            found |= load_file(check_given(file, path))
        except (SafetensorError, MemoryError) as error:
            raise UserError(f"cannot read {file}: {error}") from error
    if not found:
        raise UserError(f"{path} has no model.safetensors: export the run again")
    return found
