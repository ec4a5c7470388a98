"""transformers' GPT-2 trained by its Trainer with the defaults, or the loss of what it saved.

Runs in the peers' environment (torch, numpy, transformers, accelerate):

    python hf_trainer.py TOKENS CONTEXT OUT WIDTH STEPS RATE   # trains on TOKENS/train.bin
    python hf_trainer.py TOKENS CONTEXT OUT                    # the loss on all of TOKENS/val.bin
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from windows import fast_bf16, vocabulary


class Windows(Dataset):
    """A stream of uint16 tokens in windows of `context`, side by side."""

    def __init__(self, path: Path, context: int) -> None:
        tokens = np.fromfile(path, dtype=np.uint16).astype(np.int64)
        count = len(tokens) // context
        self.windows = torch.from_numpy(tokens[: count * context]).view(count, context)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.windows[index], "labels": self.windows[index]}


def train(tokens: Path, context: int, out: str, width: int, steps: int, rate: float) -> None:
    """Every setting but sizes, steps, rate, device and precision is the Trainer's own."""
    config = GPT2Config(
        vocab_size=vocabulary(tokens),
        n_positions=context,
        n_embd=width,
        n_layer=4,
        n_head=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    print("parameters", sum(parameter.numel() for parameter in model.parameters()))
    arguments = TrainingArguments(
        output_dir=out,
        max_steps=steps,
        learning_rate=rate,
        use_cpu=True,
        bf16=fast_bf16(),
        save_strategy="no",
        report_to="none",
    )
    trainer = Trainer(model, arguments, train_dataset=Windows(tokens / "train.bin", context))
    trainer.train()
    trainer.save_model(out)


def score(tokens: Path, context: int, out: str) -> None:
    """The mean over all positions but the first of each window."""
    model = GPT2LMHeadModel.from_pretrained(out).eval()
    windows = Windows(tokens / "val.bin", context).windows
    with torch.no_grad():
        losses = [model(x, labels=x).loss.item() * len(x) for x in windows.split(16)]
    print(sum(losses) / len(windows))


if __name__ == "__main__":
    place, length, saved, *rest = sys.argv[1:]
    if rest:
        train(Path(place), int(length), saved, int(rest[0]), int(rest[1]), float(rest[2]))
    else:
        score(Path(place), int(length), saved)
