"""Muon for the matrices, AdamW for the rest, a schedule and an average, on any PyTorch module.

    python examples/optimizers.py

The module is torch's own. With one of ours, `optim.by_role(model)` sorts the parameters, and
`optim.build(model, "muon", lr=0.01)` makes what `unitsphere train --optim.name muon` uses.
"""

import torch
from torch import nn

from unitsphere import optim


def points(count: int, seed: int):
    """Points of ten dimensions, and which of two intertwined spirals each is on."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(2, (count,), generator=generator)
    turn = 6 * torch.rand(count, generator=generator)
    radius = (turn + 0.5) * (2 * label - 1)
    x = 0.2 * torch.randn(count, 10, generator=generator)
    x[:, 0] += radius * torch.cos(turn)
    x[:, 1] += radius * torch.sin(turn)
    return x, label


def main(steps: int = 300):
    """Train; the module, its optimizer, and the accuracies of its last and averaged weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
    model.append(nn.Linear(64, 2))
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    optimizer = optim.Combined(
        optim.Muon(matrices, lr=0.01, weight_decay=0.1, cautious=True),
        optim.AdamW(rest, lr=0.003),
    )
    optim.average(optimizer, decay=0.98)
    schedule = optim.Schedule(kind="wsd", decay=0.5, fall="power")  # 1 - sqrt(t) at the end
    rates = optim.scheduler(optimizer, schedule, steps)
    (x, y), (held_x, held_y) = points(512, seed=1), points(512, seed=2)

    def accuracy() -> float:
        with torch.no_grad():
            return (model(held_x).argmax(1) == held_y).float().mean().item()

    for _ in range(steps):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        rates.step()
    last = accuracy()
    with optim.averaged(model, optimizer):
        average = accuracy()
    print(f"right: {last:.1%} by the last weights, {average:.1%} averaged")
    return model, optimizer, last, average


if __name__ == "__main__":
    main()
