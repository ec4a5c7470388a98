"""Should averaged weights be projected? Validation loss of EMA weights, unchanged and projected.

    python benchmarks/averages.py

Two layers of 64 on the bytes of the standard library's modules, a tenth of them held back; 400
steps of Adam at 1e-2. Prints one JSON document per run.
"""

import json
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import unitsphere
from unitsphere.models.constraint import constraints
from unitsphere.models.trunk import Transformer

STEPS, ROWS, CONTEXT = 400, 8, 128
DECAYS = (0.9, 0.98, 0.995)
SIZES = {"vocab_size": 256, "d_model": 64, "n_layers": 2, "n_heads": 2}


def text(files: Iterable[Path]) -> Tensor:
    """The files' bytes, one after another, uint8 [n]."""
    found = bytearray().join(file.read_bytes() for file in files)
    return torch.frombuffer(found, dtype=torch.uint8)


def windows(data: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random windows and the bytes after each of theirs, int64 [rows, context] twice."""
    starts = torch.randint(len(data) - CONTEXT, (ROWS,), generator=generator)
    rows = torch.stack([data[start : start + CONTEXT + 1] for start in starts.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def validated(model: Transformer, data: Tensor) -> float:
    """Mean loss of 24 batches, always the same."""
    generator = torch.Generator().manual_seed(9)
    return sum(model.loss(*windows(data, generator)).item() for _ in range(24)) / 24


def trained(name: str, schedule: str, seed: int, data: Tensor, held: Tensor) -> dict[str, object]:
    """One run's figures."""
    generator = torch.Generator().manual_seed(seed)
    model = unitsphere.build(name, seed=seed, **SIZES)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    unitsphere.constrain(model, optimizer)
    cosine = torch.arange(STEPS + 1).div(STEPS).mul(torch.pi).cos().add(1).div(2).tolist()
    rate = LambdaLR(optimizer, cosine.__getitem__ if schedule == "cosine" else lambda step: 1.0)
    averages = {d: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(d)) for d in DECAYS}
    for _ in range(STEPS):
        model.loss(*windows(data, generator)).backward()
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
        for average in averages.values():
            average.update_parameters(model)
    found = {"model": name, "schedule": schedule, "seed": seed, "last": validated(model, held)}
    return found | {f"ema {decay}": both(a, held) for decay, a in averages.items()}


def both(average: AveragedModel, held: Tensor) -> dict[str, float]:
    """The averaged model's loss before and after it is projected, and its vectors' mean length."""
    lengths = [average.get_parameter(c.parameter).norm(dim=c.dim) for c in constraints(average)]
    raw = validated(average.module, held)
    unitsphere.project(average)
    length = torch.cat([length.flatten() for length in lengths]).mean().item()
    return {"raw": raw, "projected": validated(average.module, held), "mean_length": length}


def main() -> None:
    """Every model and schedule, two seeds."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    held = text(files[::10])
    data = text(file for number, file in enumerate(files) if number % 10)
    for name in ("ngpt", "angpt"):
        for schedule in ("constant", "cosine"):
            for seed in (0, 1):
                print(json.dumps(trained(name, schedule, seed, data, held)), flush=True)


if __name__ == "__main__":
    main()
