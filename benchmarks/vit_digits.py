"""A vision transformer of `unitsphere.nn` and a plain one, each tuned, on scikit-learn's digits.

    python benchmarks/vit_digits.py docs/results/vit-digits.json

Both have the patches, depth and width of examples/vit_digits.py; their parameter counts differ by
half a percent. For each rate of a grid two models are trained on 1,078 digits; the rate with the
best mean accuracy on 269 others is chosen. Four models are then trained at it on all 1,347 digits,
and their accuracy on the last 450 is reported. 20 epochs, batches of 64, cosine to 0.
"""

import json
import runpy
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import unitsphere

EXAMPLE = Path(__file__).parent.parent / "examples" / "vit_digits.py"
SPHERE = runpy.run_path(str(EXAMPLE))
D, LAYERS, HEADS = SPHERE["D"], SPHERE["LAYERS"], SPHERE["HEADS"]
EPOCHS = 20
RATES = {"plain": [2e-3, 4e-3, 8e-3, 1.6e-2], "normalized": [5e-3, 1e-2, 2e-2, 4e-2]}
TUNING = slice(0, 1078), slice(1078, 1347)
TEST = slice(0, 1347), slice(1347, 1797)


class Plain(nn.Module):
    """The example's model with torch's pre-norm layers; MLPs as large as a SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Linear(4, D), nn.Embedding(16, D)
        nn.init.normal_(self.places.weight, std=0.02)
        self.layers = nn.Sequential(
            *(plain_layer() for _ in range(LAYERS)),
            nn.LayerNorm(D),
        )
        self.head = nn.Linear(D, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[batch, 8, 8] -> logits [batch, 10]."""
        patches = images.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)
        return self.head(self.layers(self.patches(patches) + self.places.weight).mean(1))


def plain_layer() -> nn.Module:
    """[batch, time, D] -> the same."""
    shape = {"dim_feedforward": 6 * D, "dropout": 0.0, "activation": "gelu", "batch_first": True}
    return nn.TransformerEncoderLayer(D, HEADS, **shape, norm_first=True)


def accuracy(arm: str, lr: float, seed: int, train: slice, test: slice) -> float:
    """Train one model; its share of right answers on `test`."""
    torch.manual_seed(seed)
    data = load_digits()
    images, labels = torch.tensor(data.images).float() / 16, torch.tensor(data.target)
    model = Plain() if arm == "plain" else SPHERE["ViT"]()
    if arm == "plain":
        optimizer = torch.optim.AdamW(model.parameters(), lr, (0.9, 0.95), weight_decay=0.1)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr, (0.9, 0.95))
        unitsphere.constrain(model, optimizer)
    count = train.stop - train.start
    batches = [batch for _ in range(EPOCHS) for batch in torch.randperm(count).split(64)]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(batches))
    for batch in batches:
        logits = model(images[train][batch])
        nn.functional.cross_entropy(logits, labels[train][batch]).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return (model(images[test]).argmax(1) == labels[test]).float().mean().item()


def report(arm: str) -> dict[str, Any]:
    """One arm tuned and tested, on one core."""
    torch.set_num_threads(1)
    tuned = {
        lr: statistics.mean(accuracy(arm, lr, seed, *TUNING) for seed in range(2))
        for lr in RATES[arm]
    }
    best = max(tuned, key=tuned.__getitem__)
    scores = [accuracy(arm, best, seed, *TEST) for seed in range(10, 14)]
    return {
        "validation": tuned,
        "lr": best,
        "test": scores,
        "mean": statistics.mean(scores),
        "standard_error": statistics.stdev(scores) / len(scores) ** 0.5,
    }


def main(out: Path) -> None:
    """Both arms, one core each."""
    with ProcessPoolExecutor(len(RATES)) as pool:
        found = dict(zip(RATES, pool.map(report, RATES), strict=True))
    print(json.dumps(found, indent=2))
    out.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
