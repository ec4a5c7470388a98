"""nGPT with Accelerate: constrain what `prepare` returns.

    pip install accelerate
    python examples/accelerate_loop.py                    # or: accelerate launch …

Calling it before `prepare` works too, unless `prepare` makes new parameters (FSDP).
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import unitsphere


class LanguageModel(torch.nn.Module):
    """Tokens in, loss out: what DDP and FSDP wrap is `forward`."""

    def __init__(self, **shape):
        super().__init__()
        self.model = unitsphere.build("ngpt", **shape)

    def forward(self, tokens, targets):
        return self.model.loss(tokens, targets)


def main(steps: int = 200, **settings):
    """Train; the accelerator, the model and the optimizer."""
    accelerator = Accelerator(gradient_accumulation_steps=2, **settings)
    text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
    loader = DataLoader(text.unfold(0, 65, 64), batch_size=4, shuffle=True)
    model = LanguageModel(vocab_size=256, d_model=64, n_layers=2, n_heads=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    unitsphere.constrain(model, optimizer)
    step = 0
    while step < steps:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch[:, :-1], batch[:, 1:])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    step += 1
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if step == steps:
                break
    accelerator.print(f"step {step}: loss {loss.item():.3f}")
    return accelerator, model, optimizer


if __name__ == "__main__":
    main()
