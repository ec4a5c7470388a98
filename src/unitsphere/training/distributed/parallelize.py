"""A model made for its layout: what it computes stays the same, who computes what changes.

    tensor parallel → recomputation → compile, block by block → FSDP2 (HSDP), or DDP

The order is torchtitan's: tensor parallel cuts the matrices that the blocks then see,
recomputation is compiled with its block, and what is gathered and reduced is outermost.
torch's FSDP2 and DTensor, which take a second to import, are imported where they are used.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from unitsphere.models.constraint import Role, constraints, declarations, normalize_, roles
from unitsphere.models.experts import experts_of
from unitsphere.models.parts import reset
from unitsphere.models.trunk import Transformer
from unitsphere.ops.dtensor import local, part_of
from unitsphere.training.device import Precision
from unitsphere.training.distributed.layout import Layout, Recompute

SHARDED: tuple[Role, ...] = ("matrix", "embedding", "head")
"""What FSDP2 shards; a router is small, and stays in fp32."""

FORWARD_METHODS = ("loss", "encode")
"""What callers use of a model besides `forward`: FSDP gathers the weights for these too."""


def parallelize(
    model: Transformer,
    layout: Layout,
    recompute: Recompute = "none",
    compiled: bool = False,
    precision: Precision = "fp32",
    **settings: float | None,
) -> Callable[..., Tensor]:
    """Spread `model` over the processes of `layout`, in place; its loss as training calls it.

    `settings` go to every call of the loss. Call it before the optimizer is built. Gradients of
    that loss are summed, never averaged: each process divides by the targets of the whole batch.
    Raises UserError where the model does not fit the layout.
    """
    if layout.degrees.tp > 1:
        from unitsphere.training.distributed.tensor import share_matrices

        share_matrices(model, layout)
    recompute_blocks(model, recompute)
    if compiled:
        compile_blocks(model)
    if layout.degrees.data == 1:
        return partial(model.loss, **settings)
    if not layout.shards_weights:
        return replicas(model, partial(model.loss, **settings))
    shard(model, layout, precision)
    return partial(model.loss, **settings)  # FSDP's from here on, which gathers the weights


def shard(model: Transformer, layout: Layout, precision: Precision) -> None:
    """FSDP2 over the blocks and over the rest; HSDP where there are several copies.

    Only matrices are sharded, between constrained vectors: by rows, or by columns where those are
    columns and divide evenly, so that each process projects its own vectors, and stacks of them by
    expert. Routers, gains, scales and biases stay whole and in fp32 in every process:
    `step.reduce_small` sums their gradients. Weights are gathered as they are stored (see
    `gathered_dtype`), gradients summed in fp32.
    """
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )
    from torch.distributed.tensor import Shard

    assert layout.mesh is not None
    policy = partial(MixedPrecisionPolicy, reduce_dtype=torch.float32, cast_forward_inputs=False)
    several = layout.degrees.dp_replicate > 1
    mesh = layout.mesh["dp_replicate", "dp_shard"] if several else layout.mesh["dp_shard"]
    role = roles(model)
    small = {p for name, p in model.named_parameters() if role[name] not in SHARDED}
    columns = {model.get_parameter(c.parameter) for c in constraints(model) if c.dim == 0}

    def between(weight: nn.Parameter) -> Shard | None:
        even = local(weight).shape[-1] % layout.degrees.dp_shard == 0
        return Shard(1) if weight in columns and even else None

    cut = partial(fully_shard, mesh=mesh, ignored_params=small, shard_placement_fn=between)
    for block in [*model.blocks, *(model.encoder or [])]:
        cut(block, mp_policy=policy(param_dtype=gathered_dtype(model, precision)))
    cut(model, mp_policy=policy())
    assert isinstance(model, FSDPModule)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale on the way
    for name in FORWARD_METHODS:
        register_fsdp_forward_method(model, name)


def gathered_dtype(model: Transformer, precision: str) -> torch.dtype | None:
    """What blocks gather their matrices in; None: as they are stored.

    For bf16 in that, half as much to send and to hold.

    Autocast rounds a matrix to bf16 where it multiplies, so rounding it before it is sent gives the
    same product. Embedding and head are gathered as they are (rows of the one are h), and so
    is what the forward pass normalises or rounds to FP8 first.
    """
    in_forward = any(
        d.bound is not None and d.bound.in_forward for d in declarations(model).values()
    )
    return None if precision != "bf16" or in_forward else torch.bfloat16


class Loss(nn.Module):
    """A model's loss as a forward pass, which is what DDP wraps."""

    def __init__(self, model: Transformer, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *arguments: object, **keywords: object) -> Tensor:
        """The loss."""
        return self.loss(*arguments, **keywords)


def replicas(model: Transformer, loss: Callable[..., Tensor]) -> DistributedDataParallel:
    """The model's loss with gradients summed over the copies."""
    device = [model.device] if model.device.type == "cuda" else None
    wrapped = DistributedDataParallel(
        Loss(model, loss), device_ids=device, gradient_as_bucket_view=True
    )
    wrapped.broadcast_buffers = False  # each process counts its own tokens per expert
    wrapped.register_comm_hook(None, summed)
    return wrapped


def summed(state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """The sum of a bucket of gradients over the processes, taken in fp32."""
    own = bucket.buffer()
    wide = own.float()
    work = dist.all_reduce(wide, async_op=True)
    assert work is not None
    return work.get_future().then(lambda _: own.copy_(wide))


aten = torch.ops.aten
KEPT = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    torch.ops.unitsphere.scaled_product.default,  # FP8; `ops.fp8` registers it
    torch.ops.unitsphere.grouped_linear.default,  # experts; `ops.linear` registers it
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    torch.ops._c10d_functional.all_reduce.default,  # tensor parallel: sums over processes
}
"""Operations that are expensive to repeat."""


def recompute_blocks(model: Transformer, how: Recompute) -> None:
    """Make every block of the model keep only what `how` says, in place."""
    if how == "none":
        return
    context = {"context_fn": selective} if how == "selective" else {}
    for block in [*model.blocks, *(model.encoder or [])]:
        # Around the forward method, so that names stay, and FSDP and compile see it within.
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **context)


def selective() -> Any:
    """torch's contexts of the forward pass and its repetition."""
    return create_selective_checkpoint_contexts(policy)


def policy(context: Any, operation: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    """Whether the result of an operation is kept."""
    kept = operation in KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def compile_blocks(model: Transformer) -> None:
    """Compile every block in place, in one graph each, and what surrounds the blocks: the loss, and
    `mix` where there is something to mix. Names of parameters stay as they are.

    Whole blocks or an error: a graph that breaks would be slow in silence. It is the forward method
    that is compiled, so that what FSDP does before and after it stays outside of the graph.
    """
    if any(experts_of(model)):  # they count, and set their groups: not again in the backward pass
        torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
    for block in [*model.blocks, *(model.encoder or [])]:
        block.forward = torch.compile(block.forward, fullgraph=True)
    if model.shift is not None or model.bigrams is not None:
        model.mix = torch.compile(model.mix, fullgraph=True)
    model.compiled = True


@torch.no_grad()
def fill(model: Transformer, whole: Transformer, seed: int, device: torch.device) -> None:
    """Bring the parameters of `model`, the meta device's, to `device`, at the start of the run."""
    model.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    for name, module in whole.named_modules():
        module.to_empty(device=device, recurse=False)
        reset(module, generator)
        normalize_(module)
        for key, start in module.named_parameters(name, recurse=False):
            target = model.get_parameter(key)
            local(target).copy_(part_of(start, target))
        for key, start in module.named_buffers(name, recurse=False):
            model.get_buffer(key).copy_(start)
        module.to_empty(device="meta", recurse=False)
