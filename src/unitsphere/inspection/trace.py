"""What probes look at: a model with what there is of its training, and a forward pass watched.

In a `Trace` h is seen before and after each sublayer, with attention and hidden units.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from unitsphere.data.batch import IGNORED, Batch
from unitsphere.inspection.anatomy import Layer, layers_of
from unitsphere.inspection.updates import Gradients, Recorded, gradients_of
from unitsphere.inspection.values import DoesNotApply, entropy
from unitsphere.models.context import Context, LayerState
from unitsphere.models.experts import Experts
from unitsphere.models.mixers.attention import AttentionMixer
from unitsphere.models.mixers.recurrent import RecurrentMixer, RecurrentState
from unitsphere.models.plans import tp_plan
from unitsphere.models.trunk import Transformer


@dataclass(frozen=True)
class Move:
    """A sublayer's step of h, [positions, d] before and after, at the positions that count."""

    layer: str
    sublayer: str
    before: Tensor
    after: Tensor


@dataclass
class Trace:
    """What was seen. Entropies are [H], means over the queries that count, in nats; `uniform` is
    what they would be if every key seen had the same weight. Units are [d_ff], root mean squares.
    """

    moves: list[Move] = field(default_factory=list)
    entropies: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    uniform: dict[tuple[str, str], float] = field(default_factory=dict)
    units: dict[str, Tensor] = field(default_factory=dict)
    decays: dict[str, Tensor] = field(default_factory=dict)
    """of a recurrent mixer by layer: mean e^g over the tokens, of each head or row of its state"""
    lengths: dict[str, Tensor] = field(default_factory=dict)
    """of its state after each row, [rows, H]"""
    loads: dict[str, Tensor] = field(default_factory=dict)
    """how many tokens each expert of a layer was given, [E]"""
    states: dict[str, Tensor] = field(default_factory=dict)
    """h of the decoder, [rows, time, d]: "in" as it enters, then as it leaves each layer"""


def trace(model: Transformer, batch: Batch, deep: bool = True) -> Trace:
    """Watch the model on a batch, without gradients and without dropout.

    deep: attention and hidden units too, which needs the attention weights in full.
    """
    found = Trace()
    training = model.training
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.callback(model.train, training)
        stack.enter_context(uncompiled())
        model.eval()
        for layer in layers_of(model):
            count = counting(model, batch, layer)
            stack.enter_context(watched_states(layer, count, found))
            stack.enter_context(watched_experts(layer, count, found))
            if deep:
                stack.enter_context(watched_attention(layer, count, found))
                stack.enter_context(watched_units(layer, count, found))
                stack.enter_context(watched_recurrence(layer, count, found))
        model.loss(batch.inputs, batch.targets, **batch.keywords())
    return found


def uncompiled() -> AbstractContextManager[object]:
    """Within, compiled code runs eagerly: compiled code calls no hooks."""
    if "torch._dynamo" in sys.modules:
        return torch.compiler.set_stance("force_eager")
    return nullcontext()  # nothing is compiled, and the compiler takes seconds to import


def counting(model: Transformer, batch: Batch, layer: Layer) -> Tensor:
    """bool [rows, time]: the positions of a layer that count; padding does not."""
    if layer.label.startswith("enc"):
        assert batch.source is not None
        real = batch.source_mask
        return torch.ones_like(batch.source, dtype=torch.bool) if real is None else real
    if model.objective != "mlm":
        return batch.targets != IGNORED
    if batch.mask is None:
        return torch.ones_like(batch.inputs, dtype=torch.bool)
    return batch.mask.flatten(1, -2)[:, -1]


@contextmanager
def hooked(handles: list[torch.utils.hooks.RemovableHandle]) -> Iterator[None]:
    """Remove the hooks at the end."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def watched_states(layer: Layer, count: Tensor, found: Trace) -> AbstractContextManager[None]:
    """Within: the layer's moves of h and its output are recorded."""
    seen: list[Tensor] = []

    def reads(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        seen.append(arguments[0])

    def leaves(module: nn.Module, arguments: tuple[Any, ...], h: Tensor) -> None:
        ends = [*seen[1:], h]
        for sublayer, before, after in zip(layer.sublayer_inputs, seen, ends, strict=True):
            move = Move(layer.label, sublayer, before[count].float(), after[count].float())
            found.moves.append(move)
        if not layer.label.startswith("enc"):
            found.states.setdefault("in", seen[0])
            found.states[layer.label] = h
        seen.clear()

    handles = [
        layer.block.get_submodule(reader).register_forward_pre_hook(reads)
        for reader in layer.sublayer_inputs.values()
    ]
    return hooked([*handles, layer.block.register_forward_hook(leaves)])


def watched_attention(layer: Layer, count: Tensor, found: Trace) -> AbstractContextManager[None]:
    """Within: the entropy of the layer's attention weights is recorded."""
    handles = []
    for sublayer in layer.sublayer_inputs:
        module = layer.block.get_submodule(sublayer)
        if isinstance(module, AttentionMixer):
            receive = partial(record_entropy, found, (layer.label, sublayer), count)
            handles.append(module.register_forward_pre_hook(watching(receive)))
    return hooked(handles)


def record_entropy(
    found: Trace, place: tuple[str, str], count: Tensor, weights: Tensor, seen: Tensor
) -> None:
    """Of attention weights [batch, H, queries, keys], with the keys `seen` by each query."""
    by_query = entropy(weights).transpose(0, 1)  # [H, batch, queries]
    found.entropies[place] = by_query[:, count].mean(dim=1)
    rows = seen[:, 0] if seen.dim() == 4 else seen
    most = rows.squeeze(-1).float().log().expand(by_query.shape[1:])
    found.uniform[place] = float(most[count].mean())


def watching(receive: Callable[[Tensor, Tensor], None]) -> Callable[..., tuple[Any, ...]]:
    """A hook that puts a `Watched` in the place of the context."""

    def hook(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        x, context = arguments
        return x, Watched(context, receive)

    return hook


@dataclass(frozen=True)
class Watched:
    """A context that also hands over the attention weights.

    Attention is linear in v, so with the identity as values it returns the weights themselves, with
    any mask and any kernel.
    """

    context: Context
    receive: Callable[[Tensor, Tensor], None]

    def __getattr__(self, name: str) -> Any:
        """All else is the context's."""
        return getattr(self.context, name)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float = 0.0) -> Tensor:
        """The context's, after its weights are handed over, without dropout."""
        keys = k.shape[-2]
        identity = torch.eye(keys, dtype=v.dtype, device=v.device).expand(*k.shape[:2], keys, keys)
        self.receive(self.context.attend(q, k, identity, scale), self.context.keys_seen(k))
        return self.context.attend(q, k, v, scale, dropout)


def watched_recurrence(layer: Layer, count: Tensor, found: Trace) -> AbstractContextManager[None]:
    """Within: decay and state of the layer's recurrent mixer are recorded, if it has one."""
    sublayer = layer.block.get_submodule("attention")
    if not isinstance(sublayer, RecurrentMixer):
        return nullcontext()
    mixer: RecurrentMixer = sublayer
    states: list[RecurrentState] = []

    def enters(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        x, context = arguments
        found.decays[layer.label] = mixer.log_decay(x)[count].exp().mean(dim=0)
        states.append(mixer.init_state(len(x), x.shape[1]))
        return x, context.of(LayerState(states[-1]))  # as in decoding, which keeps the last state

    def leaves(module: nn.Module, arguments: tuple[Any, ...], y: Tensor) -> None:
        found.lengths[layer.label] = states.pop().S.flatten(2).norm(dim=-1)

    before = mixer.register_forward_pre_hook(enters)
    return hooked([before, mixer.register_forward_hook(leaves)])


def watched_experts(layer: Layer, count: Tensor, found: Trace) -> AbstractContextManager[None]:
    """Within: it is recorded how many tokens each expert of the layer was given, if it has some."""
    mlp = layer.block.get_submodule("mlp")
    if not isinstance(mlp, Experts):
        return nullcontext()

    def leaves(module: nn.Module, arguments: tuple[Any, ...], found_by: tuple[Tensor, Any]) -> None:
        chosen = found_by[0][count.flatten()].flatten()
        found.loads[layer.label] = torch.bincount(chosen, minlength=len(mlp.tokens_per_expert))

    return hooked([mlp.router.register_forward_hook(leaves)])


def watched_units(layer: Layer, count: Tensor, found: Trace) -> AbstractContextManager[None]:
    """Within: the strength of each hidden unit of the MLP is recorded, before a norm over them.

    With experts: of the shared one, which every token uses.
    """
    mlp = layer.block.get_submodule("mlp")
    if isinstance(mlp, Experts):
        mlp = mlp.shared
    if mlp is None:
        return nullcontext()
    local = {shard: name for name, shard in tp_plan(mlp).items()}
    reader = mlp.get_submodule(local.get("gathered", local["rows"]))

    def reads(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        units = arguments[0][count].float()
        found.units[layer.label] = units.square().mean(dim=0).sqrt()

    return hooked([reader.register_forward_pre_hook(reads)])


NO_RECORDS = Recorded({}, {})


@dataclass(frozen=True)
class Base:
    """The run that a ratio is taken against: its model and a batch."""

    model: Transformer
    batch: Batch
    recorded: Recorded = NO_RECORDS

    @cached_property
    def gradients(self) -> Gradients:
        """Of the batch's loss."""
        return gradients_of(self.model, self.batch)


@dataclass(frozen=True)
class Subject:
    """All that a probe may look at, computed when it does; `no_batch` says why there is no batch.

    moments: Adam's first ones by parameter. of_step: the gradients of a training step, to be used
    in place of the batch's. before: the weights `steps` steps earlier. step: the number of this
    one. recorded: what the run recorded while it trained. against: whether there is a second run
    at all, which may have no `base` to compare this step with. deep: whether the trace sees
    attention and hidden units.
    """

    model: Transformer
    batch: Batch | None = None
    no_batch: str = "no batch was given"
    moments: Mapping[str, Tensor] = field(default_factory=dict)
    of_step: Gradients | None = None
    before: Mapping[str, Tensor] | None = None
    steps: int = 1
    step: int = 0
    recorded: Recorded = NO_RECORDS
    base: Base | None = None
    against: bool = False
    deep: bool = True

    @property
    def given(self) -> Batch:
        """The batch; DoesNotApply without one."""
        if self.batch is None:
            raise DoesNotApply(self.no_batch)
        return self.batch

    @cached_property
    def trace(self) -> Trace:
        """A watched forward pass of the batch."""
        return trace(self.model, self.given, self.deep)

    @cached_property
    def gradients(self) -> Gradients:
        """Of a training step's loss, or of the batch's."""
        return self.of_step or gradients_of(self.model, self.given)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The model's parameters by name."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    @property
    def earlier(self) -> Mapping[str, Tensor]:
        """The weights from before; DoesNotApply if there are none."""
        if self.before is None:
            raise DoesNotApply(
                "there are no earlier weights to compare with: keep more checkpoints"
            )
        return self.before

    @property
    def other(self) -> Base:
        """The second run at this step; DoesNotApply if there is none."""
        if self.base is None and self.against:
            raise DoesNotApply("the second run has no checkpoint of this step")
        if self.base is None:
            raise DoesNotApply("there is no second run to compare with: give --against RUN2")
        return self.base
