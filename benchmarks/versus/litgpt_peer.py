"""litgpt's pretraining on given tokens, or the loss of what it saved.

Runs in an environment with litgpt 0.5.13, torchmetrics and tensorboard:

    python litgpt_peer.py TOKENS CONTEXT OUT WIDTH STEPS RATE  # trains on TOKENS/train.bin
    python litgpt_peer.py TOKENS CONTEXT OUT WIDTH             # the loss on all of TOKENS/val.bin

The model is its pythia-14m with other sizes and a vocabulary of its own. The settings are those of
its config_hub/pretrain/debug.yaml, which trains that model; precision, compilation and start are
its own. Its checkpoint, with optimizer and loader, is replaced by the weights in safetensors.
"""

import sys
from pathlib import Path
from typing import Any

import litgpt.pretrain
import torch
from litgpt.args import EvalArgs, TrainArgs
from litgpt.config import Config
from litgpt.data import DataModule
from litgpt.model import GPT
from safetensors.torch import load_model, save_model
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from windows import pairs, vocabulary, windows

ROWS = 8


class Windows(DataModule):
    """Windows of the tokens, in a random order."""

    def __init__(self, tokens: Path, context: int) -> None:
        super().__init__()
        self.tokens, self.context = tokens, context

    def connect(self, **_: object) -> None:
        """The tokens are encoded, so nothing is needed."""

    def train_dataloader(self) -> DataLoader:
        """Whole batches of the training tokens."""
        rows = windows(self.tokens / "train.bin", self.context)
        return DataLoader(rows, batch_size=ROWS, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader:
        """It looks at two batches before it starts."""
        return DataLoader(windows(self.tokens / "val.bin", self.context), batch_size=ROWS)


def sized(tokens: Path, context: int, width: int) -> Config:
    """The config of a model with so many channels."""
    size = vocabulary(tokens)
    return Config.from_name(
        "pythia-14m", block_size=context, n_layer=4, n_embd=width, n_head=2,
        vocab_size=size, padded_vocab_size=size, intermediate_size=4 * width,
    )  # fmt: skip


def save_weights(fabric: Any, state: dict[str, Any], tokenizer: Any, place: Path) -> None:
    """What litgpt's save_checkpoint is replaced by."""
    save_model(state["model"]._forward_module._orig_mod, place.parents[1] / "model.safetensors")


def train(tokens: Path, context: int, out: Path, width: int, steps: int, rate: float) -> None:
    """Every setting but sizes, data, steps and rate is litgpt's."""
    litgpt.pretrain.save_checkpoint = save_weights
    litgpt.pretrain.setup(
        "pythia-14m",
        model_config=sized(tokens, context, width),
        out_dir=out,
        data=Windows(tokens, context),
        train=TrainArgs(
            save_interval=None, global_batch_size=ROWS, micro_batch_size=ROWS,
            lr_warmup_steps=min(100, steps // 10), max_tokens=steps * ROWS * context,
            max_norm=1.0, min_lr=rate / 10, tie_embeddings=False,
        ),
        eval=EvalArgs(interval=steps + 1, final_validation=False),
        optimizer={
            "class_path": "torch.optim.AdamW",
            "init_args": {"lr": rate, "weight_decay": 0.1, "betas": [0.9, 0.95]},
        },
        devices=1,
    )  # fmt: skip


def score(tokens: Path, context: int, out: Path, width: int) -> None:
    """Print the mean over all windows of the validation split."""
    model = GPT(sized(tokens, context, width))
    load_model(model, out / "model.safetensors")
    model.eval()
    rows = windows(tokens / "val.bin", context)
    losses = []
    with torch.no_grad():
        for part in rows.split(64):
            inputs, targets = pairs(part)
            loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            losses.append(loss.item() * len(part))
    print(sum(losses) / len(rows))


if __name__ == "__main__":
    place, length, saved, width, *rest = sys.argv[1:]
    sizes = (Path(place), int(length), Path(saved), int(width))
    if rest:
        train(*sizes, int(rest[0]), float(rest[1]))
    else:
        score(*sizes)
