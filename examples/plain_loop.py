"""nGPT in a plain PyTorch loop: accumulated gradients, AMP with a grad scaler, a schedule, EMA.

    python examples/plain_loop.py

Two lines keep the weights on the sphere: `constrain` after the optimizer is built, and `project`
for the averaged weights, because an average of unit vectors is shorter than 1.
"""

import argparse
from pathlib import Path

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import unitsphere

ACCUMULATED, ROWS, CONTEXT = 2, 4, 64


def batches(seed: int):
    """Windows of a text, byte by byte: tokens and the tokens after them, [rows, time] each."""
    text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - CONTEXT, (ROWS,), generator=generator)
        rows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        yield rows[:, :-1], rows[:, 1:]


def main(steps: int = 200, compile: bool = False, init_scale: float = 2.0**12, d_model: int = 64):
    """Train; the model, its optimizer and the model of averaged weights."""
    model = unitsphere.build("ngpt", vocab_size=256, d_model=d_model, n_layers=2, n_heads=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    unitsphere.constrain(model, optimizer)  # now and after each step
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)  # "cuda" on a GPU
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
    loss_of = torch.compile(model.loss) if compile else model.loss
    data = batches(seed=0)
    for step in range(steps):
        for _ in range(ACCUMULATED):
            tokens, targets = next(data)
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(tokens, targets) / ACCUMULATED
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)  # steps and projects, or skips what has overflown
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
        averaged.update_parameters(model)
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item() * ACCUMULATED:.3f}")
    unitsphere.project(averaged)
    return model, optimizer, averaged


if __name__ == "__main__":
    main()
