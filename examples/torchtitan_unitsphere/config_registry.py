"""Configs for `--config`: torchtitan's trainer with a recipe's model, rate and schedule."""

from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import TrainingConfig
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.trainer import Trainer

from torchtitan_unitsphere import model_registry
from unitsphere.training.recipes import load_recipe


def ngpt_32m() -> Trainer.Config:
    """nGPT of the anGPT paper at 32M."""
    return of_recipe("angpt2025/ngpt-32m")


def angpt_32m() -> Trainer.Config:
    """anGPT at 32M."""
    return of_recipe("angpt2025/angpt-32m")


def gpt_plus_32m() -> Trainer.Config:
    """Their baseline at 32M."""
    return of_recipe("angpt2025/gpt-plus-32m")


def ngpt_debug() -> Trainer.Config:
    """nGPT of 1.3 million parameters, for the 2,048 tokens of torchtitan's test tokenizer."""
    config = of_recipe("quickstart/ngpt", vocab_size=2048)
    config.dataloader.dataset = "c4_test"
    return config


def of_recipe(name: str, vocab_size: int | None = None) -> Trainer.Config:
    """A recipe in torchtitan's terms: Adam with its rate, betas and weight decay."""
    recipe = load_recipe(name)
    context = recipe.data.context
    optim = recipe.optim
    warmup = recipe.schedule.warmup
    steps = recipe.train.steps
    return Trainer.Config(
        model_spec=model_registry(name, vocab_size),
        loss=CrossEntropyLoss.Config(),
        optimizer=default_adamw(
            lr=optim.lr,
            betas=(optim.beta1, optim.beta2),
            eps=optim.eps,
            weight_decay=optim.weight_decay,
        ),
        lr_scheduler=LRSchedulersContainer.Config(
            warmup_steps=int(warmup * steps if warmup < 1 else warmup), decay_type="cosine"
        ),
        training=TrainingConfig(
            local_batch_size=max(1, recipe.train.batch_tokens // context // 8),
            seq_len=context,
            steps=steps,
            disable_cuda_graphs=True,
        ),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        checkpoint=CheckpointManager.Config(interval=recipe.train.save_every or 500),
    )
