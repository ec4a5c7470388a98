"""Finds what probes look at in a model: layers, matrices, embeddings, scales.

Everything comes from what is declared of the model's modules (`tp_plan`, `sublayer_inputs`, roles),
so it holds for any architecture of the registry.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

from torch import Tensor, nn

from unitsphere.inspection.values import DoesNotApply, whole
from unitsphere.models.constraint import Role, declarations
from unitsphere.models.experts import ExpertLinear, Experts
from unitsphere.models.mixers.attention import AttentionMixer
from unitsphere.models.parts import Embedding, Linear
from unitsphere.models.plans import tp_plan
from unitsphere.models.trunk import Transformer

T = TypeVar("T")
Place = Literal["in", "out"]
PLACES: dict[str, Place] = {"columns": "in", "shared": "in", "rows": "out"}
"""How tensor parallel shards a matrix -> what it is in its sublayer."""
PARTS = {"cross": "cross ", "routed": "experts ", "shared": "shared "}
"""A module of a layer -> what names begin with of what other modules of the layer have, too."""


@dataclass(frozen=True)
class Layer:
    """A block by its label: its number; in the encoder of a pair "enc" and its number."""

    label: str
    path: str
    block: nn.Module

    @property
    def sublayer_inputs(self) -> dict[str, str]:
        """Sublayer -> the module that is given h, for those that the block has."""
        declared = cast(dict[str, str], self.block.sublayer_inputs)
        return {k: v for k, v in declared.items() if hasattr(self.block, k)}


def layers_of(model: Transformer) -> list[Layer]:
    """All blocks, an encoder's first, each stack in the order in which h passes."""
    encoder = [
        Layer(f"enc {n}", f"encoder.{n}", block) for n, block in enumerate(model.encoder or [])
    ]
    return encoder + [Layer(str(n), f"blocks.{n}", block) for n, block in enumerate(model.blocks)]


@dataclass(frozen=True)
class Matrix:
    """A matrix of a layer: of a sublayer's input, or of what makes its output.

    heads: the number of heads that an attention divides it into, or of experts that it is a stack
    of; else 1. order: among those of its sublayer and place.
    """

    name: str
    layer: str
    sublayer: str
    place: Place
    order: int
    parameter: str
    linear: Linear
    heads: int

    def weight(self) -> Tensor:
        """W [d_out, d_in] as the forward pass uses it; experts one below another."""
        return whole(self.linear.matrix()).flatten(0, -2)

    def vectors(self) -> Tensor:
        """W as vectors of length d_model, [n, d]: its rows, or the columns of an output matrix.

        These are what nGPT keeps at length 1 (§2.6, step 2).
        """
        if self.place == "in":
            return self.weight()
        return whole(self.linear.matrix()).mT.flatten(0, -2)

    def by_head(self) -> Tensor:
        """The vectors of each head: [heads, n/heads, d]."""
        return self.vectors().unflatten(0, (self.heads, -1))


def matrices_of(model: Transformer) -> Iterator[Matrix]:
    """Every matrix of every layer, layer by layer."""
    for layer in layers_of(model):
        for sublayer in layer.sublayer_inputs:
            counts: dict[Place, int] = {"in": 0, "out": 0}
            for prefix, path, module in parts_of(layer, sublayer):
                for local, cut in tp_plan(module).items():
                    linear = getattr(module, local)
                    if cut not in PLACES or not isinstance(linear, Linear):
                        continue
                    place = PLACES[cut]
                    yield Matrix(
                        name=prefix + local,
                        layer=layer.label,
                        sublayer=sublayer,
                        place=place,
                        order=counts[place],
                        parameter=f"{path}.{local}.weight",
                        linear=linear,
                        heads=heads_of(model, module, linear, place),
                    )
                    counts[place] += 1


def parts_of(layer: Layer, sublayer: str) -> Iterator[tuple[str, str, nn.Module]]:
    """(what its matrices' names begin with, path, module) of a sublayer, or of both MLPs of
    experts."""
    module, path = layer.block.get_submodule(sublayer), f"{layer.path}.{sublayer}"
    if not isinstance(module, Experts):
        yield PARTS.get(sublayer, ""), path, module
        return
    yield PARTS["routed"], f"{path}.routed", module.routed
    if module.shared is not None:
        yield PARTS["shared"], f"{path}.shared", module.shared


def heads_of(model: Transformer, module: nn.Module, linear: Linear, place: Place) -> int:
    """How many heads, or experts, a matrix is divided into; 1 in an MLP."""
    if isinstance(linear, ExpertLinear):
        return len(linear.weight)
    if not isinstance(module, AttentionMixer):
        return 1
    return linear.matrix().shape[0 if place == "in" else 1] // model.d_k


def second_matrices(model: Transformer) -> list[Matrix]:
    """The MLP's output matrix of each layer: W_2, W_oMLP, W_d."""
    return [m for m in matrices_of(model) if m.sublayer == "mlp" and m.place == "out"]


def embeddings_of(model: Transformer) -> dict[str, Tensor]:
    """ "input" and "output" embedding, [V, d] each; one "tied" where they are the same."""
    found = [getattr(model, n) for n, cut in tp_plan(model).items() if cut == "vocabulary"]
    inputs = next(module for module in found if isinstance(module, Embedding))
    if model.config.tied:
        return {"tied": whole(inputs.matrix())}
    return {"input": whole(inputs.matrix()), "output": whole(model.head().weight)}


def layer_of(model: Transformer, parameter: str) -> tuple[str, str]:
    """The label of the layer that owns a parameter ("" for none), and its name within."""
    for layer in layers_of(model):
        if parameter.startswith(layer.path + "."):
            return layer.label, parameter.removeprefix(layer.path + ".")
    return "", parameter


def parameters_of(model: Transformer, *wanted: Role) -> Iterator[tuple[str, str, str]]:
    """(full name, layer's label, name within it, or the full one) of parameters of some roles."""
    for name, declared in declarations(model).items():
        if declared.role in wanted:
            yield name, *layer_of(model, name)


def shown(name: str) -> str:
    """A parameter's name as it is shown: of `mlp.W_u.weight` `W_u`, of the scale `stored` its own.

    >>> shown("attention.s_qk.stored"), shown("norm_A.alpha"), shown("cross.W_q.weight")
    ('s_qk', 'norm_A.alpha', 'cross W_q')
    >>> shown("mlp.routed.W_u.weight"), shown("mlp.shared.W_u.weight")
    ('experts W_u', 'shared W_u')
    """
    *owners, local = name.split(".")
    parts = (
        [owners[-1]] if local in ("weight", "stored", "gain", "value") else [*owners[-1:], local]
    )
    begins = [word for part, word in PARTS.items() if part in owners[:-1]]
    return "".join(begins) + ".".join(parts)


def unless_none(found: list[T], why: str) -> list[T]:
    """What was found; DoesNotApply says `why` if that is nothing."""
    if not found:
        raise DoesNotApply(why)
    return found
