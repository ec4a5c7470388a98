"""How much memory a process will need, from shapes only.

| part | is |
|---|---|
| weights, gradients | what the process holds of every parameter, as it is stored |
| optimizer | what it declares that it keeps of every parameter (`optim/state.py`) |
| undo | with `train.on_spike` skip: a second copy of weights and optimizer state |
| gathered | with FSDP2: the two largest blocks, and what lies outside of them, whole |
| activations | what a forward pass of the micro-batch keeps for the backward pass |
| head | what the loss makes: gradients of h and of the head, copies of the head, and logits, \
of which there is one chunk at a time (`ops.chunked_loss`), all of them where they fit it |

Activations are counted tensor by tensor on tensors that have only a shape; in bf16 they are taken
for half as large. What a library allocates for itself is not known, nor what the
allocator wastes: expect a tenth more.
"""

import dataclasses
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from unitsphere.models.constraint import roles
from unitsphere.models.experts import experts_of
from unitsphere.models.registry import lay_out
from unitsphere.models.trunk import Transformer
from unitsphere.ops.chunked_loss import chunk_rows
from unitsphere.ops.dtensor import local
from unitsphere.ops.linear import unless_one
from unitsphere.training.config import RunConfig
from unitsphere.training.distributed.layout import Degrees, Layout, Recompute
from unitsphere.training.distributed.parallelize import KEPT, gathered_dtype, parallelize
from unitsphere.training.optim import build_optimizer
from unitsphere.training.optim.constraint import constrain
from unitsphere.training.optim.schedule import warmup_steps
from unitsphere.training.optim.state import state_spec


def shapes_of(config: RunConfig) -> Transformer:
    """The config's model, its tensors without values."""
    return lay_out(config.architecture, config.model, config.objective)


def flops_per_token(model: Transformer, context: int) -> int:
    """Operations of one training token, forward and backward, in sequences of `context` tokens.

    With seq2seq a token of the target together with one of a source of the same length. Of experts
    those that a token is given to count.
    """
    role = roles(model)
    multiplied = {"matrix", "head", "router"}
    weights = sum(p.numel() for name, p in model.named_parameters() if role[name] in multiplied)
    if "head" not in role.values():  # tied; other embeddings are only looked up
        weights += model.config.vocab_size * model.config.d_model
    idle = sum(experts.idle_weights for experts in experts_of(model))  # biases are not counted
    return 6 * (weights - idle) + round(model.mixing_flops(context))


@dataclass(frozen=True)
class ModelSize:
    """A model's parameters, and its operations per training token."""

    parameters: int
    flops_per_token: int


def size_of(config: RunConfig) -> ModelSize:
    """Counted without allocating the model; a `UserError` for a config that makes none."""
    model = shapes_of(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    return ModelSize(count, flops_per_token(model, config.data.context))


FP32 = 4


@dataclass(frozen=True)
class Forecast:
    """Bytes in each process."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    head: int
    undo: int = 0

    @property
    def memory(self) -> int:
        """All bytes of a process at the peak."""
        return sum(dataclasses.astuple(self))

    def line(self) -> str:
        """The memory in one line."""
        parts = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "a copy of weights and optimizer": self.undo,
            "gathered": self.gathered,
            "activations": self.activations + self.head,
        }
        listed = ", ".join(f"{name} {size(count)}" for name, count in parts.items() if count)
        return f"predicted memory of each process: {size(self.memory)} ({listed})"


def forecast(
    config: RunConfig,
    model: Transformer,
    layout: Layout,
    device: torch.device | None = None,
    kept: int | None = None,
) -> Forecast:
    """What training `config` needs in each process, for its model as `parallelize` left it.

    Weights, gradients and optimizer state are those of `model`; it may be on the meta device when
    `device` says where it is to be trained. kept: what `kept_per_sequence` gives, if it is known.
    """
    rows = min(config.train.micro_batch or local_rows(config, layout), local_rows(config, layout))
    weights = sum(held(parameter) for parameter in model.parameters())
    blocks = [*model.blocks, *(model.encoder or [])]
    kept = kept_per_sequence(config, layout, len(blocks)) if kept is None else kept
    state = optimizer_bytes(config, model)
    return Forecast(
        weights=weights,
        gradients=held_between_parts(config, model, layout, weights),
        optimizer=state,
        gathered=gathered(config, model, blocks, layout),
        activations=kept * rows,
        head=head_bytes(config, model, layout, rows, device or model.device),
        undo=weights + state if config.train.on_spike == "skip" else 0,
    )


def local_rows(config: RunConfig, layout: Layout) -> int:
    """Sequences of a batch that a process computes."""
    return config.rows // layout.degrees.data


def held(parameter: Tensor) -> int:
    """Bytes of a parameter that this process holds."""
    return local(parameter).numel() * parameter.element_size()


def held_between_parts(config: RunConfig, model: Transformer, layout: Layout, weights: int) -> int:
    """Bytes of gradients: of whole matrices if FSDP2 reduces them only after several parts."""
    several = 0 < (config.train.micro_batch or 0) < local_rows(config, layout)
    if layout.degrees.dp_shard > 1 and several and config.parallel.reduce == "batch":
        return sum(p.numel() * p.element_size() for p in model.parameters()) // layout.degrees.tp
    return weights


def optimizer_bytes(config: RunConfig, model: Transformer) -> int:
    """Bytes of the state that the optimizer declares; what it counts with is left out."""
    optimizer = build_optimizer(model, config.optim)
    config.optim.average.attach(optimizer, config.train.steps)
    return sum(
        slot.bytes(parameter)
        for parameter in model.parameters()
        for slot in state_spec(optimizer, parameter).values()
        if slot.shape  # not the counts
    )


def check_optimizer(config: RunConfig, model: Transformer) -> None:
    """Raise UserError where optimizer or constraint do not fit the model, which has only shapes."""
    optimizer = build_optimizer(model, config.optim)
    warmup = warmup_steps(config.schedule, config.train.steps)
    constrain(model, optimizer, config=config.optim.constrained, warmup=warmup, now=False)


def gathered(config: RunConfig, model: Transformer, blocks: list[nn.Module], layout: Layout) -> int:
    """Bytes of whole weights that FSDP2 has at once in addition to its shards."""
    if layout.degrees.dp_shard == 1:
        return 0

    def whole(module: nn.Module, dtype: torch.dtype | None = None) -> int:
        sizes = (p.numel() * (dtype or p.dtype).itemsize for p in module.parameters())
        return sum(sizes) // layout.degrees.tp

    dtype = gathered_dtype(model, config.train.precision)
    outside = whole(model) - sum(whole(block) for block in blocks)
    return outside + sum(sorted(whole(block, dtype) for block in blocks)[-2:])


def kept_per_sequence(config: RunConfig, layout: Layout, blocks: int) -> int:
    """Bytes kept for the backward pass for each sequence, without the head.

    With recomputation those of one of the `blocks`, which is being computed again, are added.
    """
    kept = activations(config, layout, config.train.recompute)
    if config.train.recompute == "none":
        return kept
    return kept + max(activations(config, layout, "none") - kept, 0) // blocks


def activations(config: RunConfig, layout: Layout, how: Recompute) -> int:
    """Bytes that the forward pass of one sequence keeps; in bf16 half of what fp32 would."""
    sizes = config.model
    if hasattr(sizes, "attention_dropout"):  # a CPU keeps all weights for it, a GPU none
        sizes = dataclasses.replace(sizes, attention_dropout=0.0)
    model = lay_out(config.architecture, sizes, config.objective)
    parallelize(model, dataclasses.replace(layout, degrees=Degrees(tp=layout.degrees.tp)), how)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        part = local(tensor)
        kept[part.untyped_storage()._cdata] = part.numel() * part.element_size()
        return tensor

    kept_again = Repeated() if how == "selective" else nullcontext()
    # Not the meta device, whose attention would keep all scores.
    with FakeTensorMode(allow_non_fake_inputs=True), kept_again:
        model.to_empty(device="cpu")
        weights = {local(p).untyped_storage()._cdata for p in model.parameters()}
        tokens = torch.zeros((1, config.data.context), dtype=torch.int64)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            memory = model.encode(tokens) if config.objective == "seq2seq" else None
            features = model.features(tokens, memory=memory)
    assert features.requires_grad  # and so the graph, which keeps the storages apart, is alive
    total = sum(count for storage, count in kept.items() if storage not in weights)
    total += kept_again.bytes if isinstance(kept_again, Repeated) else 0
    return total // 2 if config.train.precision in ("bf16", "fp8", "bf16-storage") else total


class Repeated(TorchDispatchMode):
    """Counts what selective recomputation itself keeps: autograd does not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in KEPT:
            outputs = found if isinstance(found, tuple) else (found,)
            self.bytes += sum(
                t.numel() * t.element_size() for t in outputs if isinstance(t, Tensor)
            )
        return found


def head_bytes(
    config: RunConfig, model: Transformer, layout: Layout, rows: int, device: torch.device
) -> int:
    """Bytes of what the loss allocates for `rows` sequences, at the higher of its two peaks.

    In its forward pass: gradients of h and W, the scaled W, its copy in 16 bits, a chunk's logits.
    In its backward pass: these gradients twice, and again for a scaled W.
    """
    head = model.head()
    vocabulary, width = len(head.weight) // layout.degrees.tp, head.weight.shape[1]
    tokens = rows * config.data.context
    h, W = FP32 * tokens * width, FP32 * vocabulary * width
    narrow = config.train.precision != "fp32"
    scaled = W if unless_one(head.scale) is not None else 0
    logits = min(tokens, chunk_rows(vocabulary, width, device)) * vocabulary
    # In 16 bits the product is there, for a moment, with the same in fp32.
    chunk = (FP32 + 2) * logits if narrow else FP32 * logits
    chunk += 0 if head.softcap is None else FP32 * logits  # the cap's slope
    forward = h + W + scaled + (W // 2 if narrow else 0) + chunk
    return max(forward, 2 * h + W + scaled)


SPARE = 0.9
"""Share of a device's free memory that a forecast may fill."""


def fitting_rows(
    config: RunConfig,
    model: Transformer,
    layout: Layout,
    free: int,
    device: torch.device | None = None,
) -> int:
    """The most rows at once that divide a process's part of the batch and fit `free` bytes.

    `free` counts from before the weights are there. 1 if none fits.
    """
    rows, free = local_rows(config, layout), free - sum(map(held, model.parameters()))
    kept = kept_per_sequence(config, layout, len(model.blocks) + len(model.encoder or []))
    for count in (n for n in range(rows, 0, -1) if rows % n == 0):
        train = dataclasses.replace(config.train, micro_batch=count)
        found = forecast(dataclasses.replace(config, train=train), model, layout, device, kept)
        if found.memory - found.weights <= SPARE * free:
            return count
    return 1


def size(count: int) -> str:
    """Bytes in a unit that suits."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:  # what is above rounds to 1e+03
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} TB"
