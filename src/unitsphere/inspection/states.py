"""Probes of what h, attention and hidden units do on a batch, from a `Trace` of it.

| probe | figure |
|---|---|
| `input_norms` | anGPT 1, C.1 |
| `sublayer_angles`, `gates`, `attention_entropy` | this project's |
| `decay_rates`, `recurrent_states`, `expert_loads` | this project's |
| `max_violation` | arXiv 2408.15664 |
| `state_rank`, `dead_units`, `logit_lens` | this project's |
"""

from typing import cast

import torch
from torch import Tensor, nn

from unitsphere.data.batch import Batch
from unitsphere.inspection.anatomy import layers_of, unless_none
from unitsphere.inspection.trace import Move, Trace
from unitsphere.inspection.values import (
    DoesNotApply,
    Values,
    angle,
    distribution,
    effective_rank,
    layers,
    singular,
    whole,
)
from unitsphere.models.parts import RMSNorm, Scale
from unitsphere.models.trunk import Transformer
from unitsphere.ops.loss import linear_cross_entropy
from unitsphere.ops.residual import opening

NOT_GATED = "no sublayer has a gate: nGPT has with model.residual gated, GPT with model.gated"
GATES = {"attention": "w_A", "cross": "w_X", "mlp": "w_M"}
"""Sublayer -> the w of its gate in a block."""
DEAD = 0.01
"""A unit this many times as strong as its layer's median one, or less, is dead."""


def input_norms(found: Trace) -> Values:
    """Mean ‖h‖ as it enters each layer (anGPT Figures 1 and C.1)."""
    first = [move for move in found.moves if move.sublayer == "attention"]
    return layers(("h", move.layer, move.before.norm(dim=-1).mean()) for move in first)


def sublayer_angles(found: Trace) -> Values:
    """Mean angle in degrees by which each sublayer turns h."""
    return layers((m.sublayer, m.layer, angle(m.before, m.after).mean()) for m in found.moves)


def gates(model: Transformer, found: Trace) -> Values:
    """The numbers 2σ(⟨w, h⟩) that each sublayer's output is multiplied with, over the tokens."""
    blocks = {layer.label: layer.block for layer in layers_of(model)}
    seen = [
        (move.sublayer, move.layer, opening(gate_input(block, move), whole(w())))
        for move in found.moves
        if isinstance(w := getattr(block := blocks[move.layer], GATES[move.sublayer], None), Scale)
    ]
    return distribution(unless_none(seen, NOT_GATED))


def gate_input(block: nn.Module, move: Move) -> Tensor:
    """What a sublayer's gate reads: h, or its norm before a pre-norm sublayer."""
    names = cast(dict[str, str], block.sublayer_inputs)
    reader = block.get_submodule(names[move.sublayer])
    return reader(move.before) if isinstance(reader, RMSNorm) else move.before


def attention_entropy(found: Trace) -> Values:
    """Entropy of each head's attention in nats, and of weights all alike ("… if uniform")."""
    points = [
        point
        for (layer, sublayer), by_head in found.entropies.items()
        for point in (
            (sublayer, layer, by_head),
            (f"{sublayer} if uniform", layer, torch.tensor(found.uniform[layer, sublayer])),
        )
    ]
    return distribution(unless_none(points, "no layer has attention: see model.mixers"))


NOT_RECURRENT = "no layer has a recurrent mixer: see model.mixers"


def decay_rates(found: Trace) -> Values:
    """Mean e^g over the tokens of each head of a recurrent mixer, or of each row of its state.

    What is left of the state after a token: 1 keeps everything.
    """
    points = [("kept", layer, by_head) for layer, by_head in found.decays.items()]
    return distribution(unless_none(points, NOT_RECURRENT))


def recurrent_states(found: Trace) -> Values:
    """‖S‖ of each head after each row of the batch."""
    points = [("state", layer, by_head) for layer, by_head in found.lengths.items()]
    return distribution(unless_none(points, NOT_RECURRENT))


def expert_loads(found: Trace) -> Values:
    """The tokens of each expert over the layer's mean: 1 for even loads."""
    loads = loads_of(found)
    return distribution(("load", layer, n / n.mean()) for layer, n in loads.items())


def max_violation(found: Trace) -> Values:
    """MaxVio: the largest load of a layer over its mean, minus 1 (arXiv 2408.15664)."""
    loads = loads_of(found)
    return layers(("MaxVio", layer, n.max() / n.mean() - 1) for layer, n in loads.items())


def loads_of(found: Trace) -> dict[str, Tensor]:
    """The tokens of each expert by layer; DoesNotApply if there are no experts."""
    if not found.loads:
        raise DoesNotApply("no layer has experts: see model.n_experts")
    return {layer: n.double() for layer, n in found.loads.items()}


def state_rank(found: Trace) -> Values:
    """Effective rank of h as it leaves each sublayer, as a share of its width.

    Of h at all positions of the batch, as the rows of a matrix.
    """
    return layers(
        (f"after {move.sublayer}", move.layer, rank_share(move.after)) for move in found.moves
    )


def rank_share(h: Tensor) -> float:
    """Effective rank of rows [n, d] over the largest possible."""
    values = singular(h)
    return float(effective_rank(values)) / len(values)


def dead_units(found: Trace) -> Values:
    """Share of hidden units whose root mean square is at most DEAD times the layer's median."""
    return layers(("dead", layer, dead_share(units)) for layer, units in found.units.items())


def dead_share(units: Tensor) -> float:
    """Of root mean squares [d_ff], the share at or below DEAD times their median."""
    return float((units <= DEAD * units.median()).float().mean())


@torch.no_grad()
def logit_lens(model: Transformer, batch: Batch, found: Trace) -> Values:
    """Loss in nats if the head, with the norm before it, read h as it leaves each layer.

    "in" is h before the first layer. Of an encoder–decoder, the decoder's layers.
    """
    head = model.head()
    return layers(
        (
            "loss",
            label,
            linear_cross_entropy(
                model.norm(h), head.weight, batch.targets, head.scale, softcap=head.softcap
            ),
        )
        for label, h in found.states.items()
    )
