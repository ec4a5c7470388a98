"""What tests read back from run folders, and the check that a resumed run is the uninterrupted."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from unitsphere.training.config import RunConfig
from unitsphere.training.log import read_metrics
from unitsphere.training.run import train


class KilledError(Exception):
    """Ends a run where the sampler is called, nothing saved."""


def die(*_: object) -> str:
    """A sampler that ends the run."""
    raise KilledError


def weights(out: Path) -> dict[str, Tensor]:
    """All tensors of a run's newest checkpoint, the optimizer's too."""
    newest = sorted((out / "checkpoints").glob("step-*"))[-1]
    return {k: v for path in newest.glob("*.safetensors") for k, v in load_file(path).items()}


def figures(out: Path) -> list[dict[str, Any]]:
    """The records of a run without what depends on the clock."""
    clock = ("time", "tokens_per_second", "slowest_rank", "slowest_ratio")
    return [{k: v for k, v in r.items() if k not in clock} for r in read_metrics(out)]


def check_resumed(config: RunConfig, folder: Path) -> dict[str, Tensor]:
    """Train in `folder`/whole in one go, and in `folder`/broken killed and resumed: figures,
    samples and weights are the same. Returns the tensors of the last checkpoint.

    The config saves every 3 steps and samples every 5.
    """
    whole, broken = folder / "whole", folder / "broken"
    train(config, whole, sampler=lambda *_: "text")
    with pytest.raises(KilledError):  # at step 5, the checkpoint is that of step 3
        train(config, broken, sampler=die)
    assert [record["step"] for record in figures(broken)] == [1, 2, 3, 4, 5]
    assert train(config, broken, sampler=lambda *_: "text").trained
    assert figures(broken) == figures(whole)
    assert (broken / "samples.txt").read_text() == (whole / "samples.txt").read_text()
    expected, found = weights(whole), weights(broken)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    return expected
