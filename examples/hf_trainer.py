"""nGPT in Hugging Face's Trainer: a callback keeps the constraints.

    pip install 'transformers[torch]'
    python examples/hf_trainer.py

The Trainer does accumulation, schedules, clipping, checkpoints and resuming.
"""

import argparse
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

import unitsphere
from unitsphere.trainer import Constrain


class LanguageModel(torch.nn.Module):
    """A model as the Trainer calls it: keywords in, a dict with the loss out."""

    def __init__(self, **shape):
        super().__init__()
        self.model = unitsphere.build("ngpt", **shape)

    def forward(self, input_ids, labels):
        return {"loss": self.model.loss(input_ids, labels)}


def main(out: str = "runs/hf-trainer", steps: int = 200, resume: bool = False, **settings):
    """Train; the trainer."""
    text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
    windows = [{"input_ids": w[:-1], "labels": w[1:]} for w in text.unfold(0, 65, 64)]
    model = LanguageModel(vocab_size=256, d_model=64, n_layers=2, n_heads=2)
    settings = {"save_steps": steps, "report_to": "none"} | settings
    arguments = TrainingArguments(
        out,
        max_steps=steps,
        learning_rate=1e-2,
        weight_decay=0.0,
        lr_scheduler_type="cosine",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        use_cpu=True,
        **settings,
    )
    trainer = Trainer(model, arguments, train_dataset=windows, callbacks=[Constrain()])
    trainer.train(resume_from_checkpoint=resume)
    return trainer


if __name__ == "__main__":
    main()
