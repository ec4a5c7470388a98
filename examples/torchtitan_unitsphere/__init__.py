"""Models of unitsphere in torchtitan: its trainer, data, FSDP2 and checkpoints, our constraint.

    pip install torchtitan==0.3.0
    PYTHONPATH=examples torchrun --nproc_per_node 8 -m torchtitan.train \
        --module torchtitan_unitsphere --config ngpt_32m --hf_assets_path PATH

A flavor is the name of a recipe (`unitsphere recipes`): its model, with a vocabulary for the
tokenizer. nGPT and anGPT are projected after each optimizer step (`constrain`). Data parallelism
only: plain, FSDP2 and hybrid.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.protocols.model import BaseModel
from torchtitan.protocols.model_spec import ModelSpec

import unitsphere
from unitsphere.models.registry import build_from
from unitsphere.training.forecast import flops_per_token
from unitsphere.training.recipes import load_recipe


class UnitsphereModel(BaseModel):
    """A model of ours behind torchtitan's protocol: tokens in, logits out."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseModel.Config):
        """Architecture, its config, and the seed of the weights (torchtitan's debug.seed)."""

        architecture: str
        numbers: Any
        seed: int = 0

        def update_from_config(self, *, config: Any, **kwargs: Any) -> None:
            """Take the seed; a ValueError for a layout that the models do not have here."""
            self.seed = config.debug.seed or 0
            for kind in ("tensor", "pipeline", "context"):
                if getattr(config.parallelism, f"{kind}_parallel_degree") > 1:
                    raise ValueError(f"torchtitan_unitsphere has no {kind} parallelism")

        def get_nparams_and_flops(self, model: nn.Module, seq_len: int) -> tuple[int, int]:
            """Parameters, and FLOPs of training on a token."""
            count = sum(parameter.numel() for parameter in model.parameters())
            return count, flops_per_token(model.model, seq_len)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = build_from(config.architecture, config.numbers, "meta")

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits [batch, time, V]; positions start again with each document, which sees itself."""
        documents = None if positions is None else (positions == 0).cumsum(-1)
        return self.model(tokens, documents=documents)

    def verify_module_protocol(self) -> None:
        """The modules inside are plain ones of torch."""

    def init_states(self, *, buffer_device: torch.device | None = None) -> None:
        """The start that the seed gives, the same for every layout."""
        whole = build_from(
            self.config.architecture, self.config.numbers, "cpu", self.config.seed
        ).state_dict()
        for name, parameter in self.model.named_parameters():
            start = whole[name].to(parameter.device)
            if isinstance(parameter, DTensor):
                start = distribute_tensor(start, parameter.device_mesh, parameter.placements)
            parameter.data.copy_(start)


def parallelize(
    model: UnitsphereModel, *, parallel_dims: Any, training: Any, compile_config: Any, **_: Any
) -> UnitsphereModel:
    """Compile and shard the model block by block."""
    if compile_config.enable and "model" in compile_config.components:
        for block in model.model.blocks:
            block.compile()
    names = ["dp_replicate", "fsdp"] if parallel_dims.dp_replicate_enabled else ["fsdp"]
    mesh = parallel_dims.get_mesh(names)
    policy = MixedPrecisionPolicy(
        param_dtype=TORCH_DTYPE_MAP[training.mixed_precision_param],
        reduce_dtype=TORCH_DTYPE_MAP[training.mixed_precision_reduce],
    )
    for block in model.model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def constrain(optimizers: Any, model_parts: list[nn.Module], parallel_dims: Any) -> None:
    """Project now and after each optimizer step what the model constrains."""
    for model in model_parts:
        unitsphere.constrain(model, *optimizers)


def model_registry(flavor: str, vocab_size: int | None = None) -> ModelSpec:
    """The model of a recipe; vocab_size: where the recipe's follows its tokenizer."""
    recipe = load_recipe(flavor)
    numbers = replace(recipe.model, vocab_size=vocab_size or recipe.model.vocab_size)
    return ModelSpec(
        name="unitsphere",
        flavor=flavor,
        model=UnitsphereModel.Config(architecture=recipe.architecture, numbers=numbers),
        parallelize_fn=parallelize,
        pipelining_fn=None,
        post_optimizer_build_fn=constrain,
        state_dict_adapter=None,
    )
