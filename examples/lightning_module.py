"""nGPT in Lightning: constrain the optimizer in `configure_optimizers`.

    pip install pytorch-lightning
    python examples/lightning_module.py

Lightning's Trainer does accumulation, clipping, precision and checkpoints. Its callbacks for
averaged weights (EMA) replace the weights without the optimizer, so `on_train_end` projects them.
"""

import argparse
from pathlib import Path

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import EMAWeightAveraging
from torch.utils.data import DataLoader

import unitsphere


class LanguageModel(lightning.LightningModule):
    def __init__(self, steps: int):
        super().__init__()
        self.steps = steps
        self.model = unitsphere.build("ngpt", vocab_size=256, d_model=64, n_layers=2, n_heads=2)

    def training_step(self, batch, number):
        loss = self.model.loss(batch[:, :-1], batch[:, 1:])
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2, betas=(0.9, 0.95))
        resumed = self.trainer.ckpt_path is not None  # its weights are loaded already
        unitsphere.constrain(self, optimizer, now=not resumed)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class ProjectedAverage(EMAWeightAveraging):
    """Averaged weights, which are used as unit vectors."""

    def on_train_end(self, trainer, module):
        super().on_train_end(trainer, module)
        unitsphere.project(module)


def main(steps: int = 200, **settings):
    """Train; the module and the trainer."""
    text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
    loader = DataLoader(text.unfold(0, 65, 64), batch_size=4, shuffle=True)
    module = LanguageModel(steps)
    settings = {"accumulate_grad_batches": 2, "gradient_clip_val": 1.0} | settings
    trainer = lightning.Trainer(max_steps=steps, accelerator="cpu", logger=False, **settings)
    trainer.fit(module, loader)
    return module, trainer


if __name__ == "__main__":
    main(callbacks=[ProjectedAverage(decay=0.98)], enable_checkpointing=False)
