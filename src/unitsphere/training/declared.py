"""What a config declares, compared with what its file of weights holds, before it is allocated.

A folder of a stranger may declare terabytes over a file of a few bytes. Here the model is laid out
without memory, and its tensors are compared with the file's header.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from unitsphere.errors import UserError
from unitsphere.models.registry import build_from
from unitsphere.training.config import RunConfig
from unitsphere.training.tensors import check_tensors, empty_tensors, model_tensors


def check_checkpoint(config: RunConfig, folder: Path) -> None:
    """Raise UserError unless the checkpoint `folder` holds the model that `config` declares."""
    check_declared(config, empty_tensors(folder, "model.", "meta"), f"checkpoint {folder}")


def check_declared(config: RunConfig, stored: Mapping[str, Tensor], where: str) -> None:
    """Raise UserError unless the model of `config` has the names, shapes and kinds of `stored`.

    stored: `model.<name>` -> a tensor, on the meta device at will, of each tensor of the model.
    where: what holds them, for the message.
    """
    if config.model.n_layers > len(stored):  # laying out a billion layers would not end
        raise UserError(
            f"{where} does not fit its config: it has {len(stored)} tensors, and the config "
            f"declares {config.model.n_layers} layers"
        )
    model = build_from(config.architecture, config.model, "meta", objective=config.objective)
    check_tensors(model_tensors(model), stored, where)


def check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise UserError if a weight is NaN or infinite: nothing that it computes has a meaning."""
    odd = next((name for name, t in tensors.items() if not t.isfinite().all()), None)
    if odd is not None:
        raise UserError(f"{where} holds numbers that are not finite, in {odd}: train it again")
