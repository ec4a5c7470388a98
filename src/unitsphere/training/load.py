"""A trained model back from its run folder."""

import sys
from pathlib import Path
from typing import NamedTuple

import torch

from unitsphere.config import read_json
from unitsphere.data.tokenizer import Tokenizer, load_tokenizer
from unitsphere.errors import UserError
from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Transformer
from unitsphere.training import checkpoint
from unitsphere.training.config import RunConfig
from unitsphere.training.device import pick_device
from unitsphere.training.folder import CONFIG
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
    if not (path / CONFIG).is_file():
        raise UserError(f"{path} is no run folder: it has no {CONFIG}")
    if is_exported(read_json(path / CONFIG)):
        if trainable:
            raise UserError(
                f"{path} is an exported folder: its scales are part of its weights, which are no "
                "unit vectors any more; train on from the run folder"
            )
        return LoadedRun(*load_folder(path, pick_device(device)))
    config = load_recipe(path / CONFIG)
    folder = chosen_checkpoint(path, wanted)
    model = build_from(
        config.architecture, config.model, pick_device(device), objective=config.objective
    )
    if config.train.precision == "bf16-storage":
        model.to(torch.bfloat16)
    load_model(folder, model)
    model.requires_grad_(trainable).train(trainable)
    return LoadedRun(model, load_tokenizer(path / "tokenizer.json"), config)


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
