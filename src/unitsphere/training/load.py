"""A trained model back from its run folder."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unitsphere.config import differences, read_json
from unitsphere.data.config import DataConfig
from unitsphere.data.manifest import is_prepared
from unitsphere.data.tokenizer import Tokenizer, load_tokenizer
from unitsphere.errors import UserError
from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Transformer
from unitsphere.training import checkpoint
from unitsphere.training.config import RunConfig
from unitsphere.training.declared import check_checkpoint, check_finite
from unitsphere.training.device import pick_device
from unitsphere.training.folder import CONFIG, TOKENIZER
from unitsphere.training.load_exported import is_exported, load_folder
from unitsphere.training.recipes import load_recipe
from unitsphere.training.tensors import load_model


class LoadedRun(NamedTuple):
    """A run's model with the weights of its newest complete checkpoint, ready for inference."""

    model: Transformer
    tokenizer: Tokenizer
    config: RunConfig


def load_run(path: Path | str, device: str = "auto", trainable: bool = False) -> LoadedRun:
    """Model, tokenizer and config of the run folder `path`, or of one exported from it.

    `path` may also be one of the run's checkpoints (RUN/checkpoints/step-NNNNNNNN). The model is
    in eval mode and wants no gradients, unless it shall be `trainable`. Raises UserError if it is
    none of these, or has no complete checkpoint yet; for an exported folder that shall be
    trainable.
    """
    path, wanted = run_and_checkpoint(Path(path))
    if not trainable and (path / CONFIG).is_file() and is_exported(read_json(path / CONFIG)):
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
    check_finite(model.state_dict(), f"checkpoint {folder}")
    model.requires_grad_(trainable).train(trainable)
    return LoadedRun(model, tokenizer, config)


def config_of_run(path: Path) -> RunConfig:
    """The config of the run folder `path`; a `UserError` if it is none, or an exported one."""
    if not (path / CONFIG).is_file():
        raise UserError(f"{path} is no run folder: it has no {CONFIG}")
    if is_exported(read_json(path / CONFIG)):
        raise UserError(
            f"{path} is an exported folder: its scales are part of its weights, which are not "
            "unit vectors any more; train on from the run folder"
        )
    return load_recipe(path / CONFIG)


def run_and_checkpoint(path: Path) -> tuple[Path, Path | None]:
    """The run folder, and the checkpoint if `path` is one of the run's checkpoints."""
    run = path.absolute().parent.parent
    if path.absolute().parent.name == "checkpoints" and (run / CONFIG).is_file():
        return run, path
    return path, None


def chosen_checkpoint(run: Path, wanted: Path | None = None) -> Path:
    """The wanted checkpoint, or the newest complete one; what is damaged is said on stderr.

    Raises UserError if the wanted one is damaged or not there, or if there is none.
    """
    if wanted is not None:
        wrong = checkpoint.damage(wanted) if wanted.is_dir() else "there is no such folder"
        if wrong is not None:
            raise UserError(f"cannot load the checkpoint {wanted}: {wrong}")
        return wanted
    folder, damaged = checkpoint.newest(run / "checkpoints")
    if folder is None:
        why = f" ({damaged[0]})" if damaged else ""
        raise UserError(f"{run} has no complete checkpoint{why}: train it first")
    for line in damaged:
        print(f"{line}: {folder} serves instead", file=sys.stderr)
    return folder


def data_of_start(run: str, data: DataConfig) -> DataConfig:
    """The data of a run that starts with the weights of `run`: in its tokens, if none are named."""
    if data.tokenizer is not None or is_prepared(data.source):
        return data
    return replace(data, tokenizer=str(Path(run) / TOKENIZER))


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
    model = build_from(config.architecture, config.model, "meta", objective=config.objective)
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
