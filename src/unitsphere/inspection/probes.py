"""The probes by name: what each is called, whose figure it is, and what it looks at.

A probe is a function of what it looks at and a line here. `unitsphere inspect` takes all of them
from checkpoints; a run in training takes those that say `live` (`inspection.live`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from unitsphere.config import did_you_mean
from unitsphere.errors import UserError
from unitsphere.inspection import states, updates, weights
from unitsphere.inspection.trace import Subject
from unitsphere.inspection.values import DoesNotApply, Values

ProbeForm = Literal["layers", "distribution"]
Axis = Literal["layer", "step"]
Reads = Literal["weights", "moments", "gradients", "update", "states", "records"]
"""What a probe reads in addition to the model: a live one is taken when that is there."""


@dataclass(frozen=True)
class Probe:
    """A probe: what its figure shows and in which unit, against layers or steps, log or not.

    relative: the figure shows each value divided by its sum over all steps. live: whether a
    run can take it while it trains (`inspect.probes`), which must be cheap.
    """

    title: str
    source: str
    unit: str
    look: Callable[[Subject], Values]
    """what it finds; DoesNotApply if that is nothing"""
    form: ProbeForm = "layers"
    axis: Axis = "layer"
    log: bool = False
    relative: bool = False
    reads: Reads = "weights"
    live: bool = False


PROBES: dict[str, Probe] = {
    "embedding_norms": Probe(
        "Lengths of the embeddings",
        "nGPT Figure 4, left",
        "length of a token's vector",
        lambda s: weights.embedding_norms(s.model),
        "distribution",
    ),
    "embedding_eigenvalues": Probe(
        "Eigenvalues of the embeddings' covariance",
        "nGPT Figure 4, middle",
        "eigenvalue / median",
        lambda s: weights.embedding_eigenvalues(s.model),
        "distribution",
        log=True,
    ),
    "embedding_dots": Probe(
        "Dot products of pairs of embeddings",
        "nGPT Figure 4, right",
        "dot product of two tokens' vectors",
        lambda s: weights.embedding_dots(s.model),
        "distribution",
    ),
    "condition_numbers": Probe(
        "Condition numbers of the matrices, and with renormalised vectors",
        "nGPT Figures 5 and 11",
        "condition number (attention: median of heads)",
        lambda s: weights.condition_numbers(s.model),
        log=True,
    ),
    "vector_norms": Probe(
        "Lengths of the matrices' vectors",
        "nGPT Figures 12 and 13, left",
        "length of a vector of d_model entries",
        lambda s: weights.vector_norms(s.model),
        "distribution",
    ),
    "singular_values": Probe(
        "Singular values of the matrices",
        "nGPT Figures 12 and 13, right",
        "singular value (attention: of all heads)",
        lambda s: weights.singular_values(s.model),
        "distribution",
        log=True,
    ),
    "eigen_learning_rates": Probe(
        "Eigen learning rates",
        "nGPT Figures 6, left, and 15",
        "|α|",
        lambda s: weights.eigen_learning_rates(s.model),
        "distribution",
        live=True,
    ),
    "learned_scales": Probe(
        "Learned scales and gains, as the forward pass uses them",
        "nGPT Figures 6 and 15; NormFormer Figure 4",
        "value",
        lambda s: weights.learned_scales(s.model),
        "distribution",
        live=True,
    ),
    "input_norms": Probe(
        "Length of h as it enters each layer",
        "anGPT Figures 1 and C.1",
        "mean length of h",
        lambda s: states.input_norms(s.trace),
        axis="step",
        log=True,
        reads="states",
        live=True,
    ),
    "moment_variance": Probe(
        "Variance of Adam's first moment",
        "anGPT Figure B.1",
        "variance over the entries of a matrix",
        lambda s: updates.moment_variance(s.model, s.moments),
        axis="step",
        relative=True,
        reads="moments",
        live=True,
    ),
    "gain_norms": Probe(
        "Lengths of the norms' gains",
        "anGPT Figure C.1",
        "length of a gain",
        lambda s: weights.gain_norms(s.model),
        live=True,
    ),
    "group_norms": Probe(
        "Mean length of the matrices' rows (input dimension)",
        "anGPT Figure E.1",
        "mean length of a row",
        lambda s: weights.group_norms(s.model),
        axis="step",
        live=True,
    ),
    "second_fc_gradients": Probe(
        "Gradient of the MLP's output matrix",
        "NormFormer Figure 3",
        "L1 norm of the gradient",
        lambda s: updates.second_fc_gradients(s.model, s.gradients.by_name),
        axis="step",
        log=True,
        reads="gradients",
        live=True,
    ),
    "lambda_by_depth": Probe(
        "Residual scale λ by depth",
        "NormFormer Figure 6",
        "mean λ",
        lambda s: weights.lambda_by_depth(s.model),
        live=True,
    ),
    "gradient_norms": Probe(
        "Gradients of the matrices",
        "NormFormer Figure 7 (each of its two runs)",
        "L2 norm of the gradient",
        lambda s: updates.gradient_norms(s.model, s.gradients.by_name),
        log=True,
        reads="gradients",
        live=True,
    ),
    "gradient_ratio": Probe(
        "Gradients over those of another run, each over its loss",
        "NormFormer Figure 7",
        "ratio of gradient norms",
        lambda s: updates.gradient_ratio(
            base=s.other.model,  # first: without a second run nothing is computed
            base_gradients=s.other.gradients,
            model=s.model,
            gradients=s.gradients,
        ),
        log=True,
        reads="gradients",
    ),
    "mean_gradient_ratio": Probe(
        "Mean gradients over those of another run, each over its loss",
        "NormFormer Figure 7",
        "ratio of mean gradient norms",
        lambda s: updates.mean_gradient_ratio(
            s.model, s.recorded, s.other.model, s.other.recorded, s.step - s.steps, s.step
        ),
        log=True,
        reads="records",
    ),
    "mean_gradients_by_layer": Probe(
        "Mean gradient of the MLP's output matrix, over the last layer's",
        "NormFormer Figure 3, as a mean",
        "mean L1 norm / the last layer's",
        lambda s: updates.mean_gradients_by_layer(s.recorded, s.step - s.steps, s.step),
        log=True,
        reads="records",
    ),
    "sublayer_angles": Probe(
        "Angle by which each sublayer turns h",
        "this project",
        "degrees",
        lambda s: states.sublayer_angles(s.trace),
        reads="states",
        live=True,
    ),
    "gates": Probe(
        "Gates of the sublayers' outputs, over the tokens",
        "this project",
        "2σ(⟨w, h⟩)",
        lambda s: states.gates(s.model, s.trace),
        "distribution",
        reads="states",
    ),
    "angular_updates": Probe(
        "Angle by which a step turns the matrices' vectors",
        "this project (after Kosson et al. 2023)",
        "degrees per step",
        lambda s: updates.angular_updates(s.model, s.earlier, s.parameters, s.steps),
        axis="step",
        log=True,
        reads="update",
        live=True,
    ),
    "attention_entropy": Probe(
        "Entropy of the attention of each head",
        "this project",
        "nats",
        lambda s: states.attention_entropy(s.trace),
        "distribution",
        reads="states",
    ),
    "decay_rates": Probe(
        "What recurrent mixers keep of their state after a token",
        "this project",
        "mean e^g over the tokens",
        lambda s: states.decay_rates(s.trace),
        "distribution",
        reads="states",
    ),
    "recurrent_states": Probe(
        "Lengths of recurrent states at the end of a text",
        "this project",
        "‖S‖ of a head",
        lambda s: states.recurrent_states(s.trace),
        "distribution",
        log=True,
        reads="states",
    ),
    "expert_loads": Probe(
        "Tokens of each expert",
        "this project",
        "tokens / mean of the layer's experts",
        lambda s: states.expert_loads(s.trace),
        "distribution",
        reads="states",
    ),
    "max_violation": Probe(
        "Largest load of an expert over the mean",
        "arXiv 2408.15664 (MaxVio)",
        "largest load / mean − 1",
        lambda s: states.max_violation(s.trace),
        axis="step",
        reads="states",
        live=True,
    ),
    "matrix_rank": Probe(
        "Effective rank of the matrices",
        "this project (Roy & Vetterli 2007)",
        "effective rank / largest possible",
        lambda s: weights.matrix_rank(s.model),
    ),
    "state_rank": Probe(
        "Effective rank of h over the batch",
        "this project (Roy & Vetterli 2007)",
        "effective rank / largest possible",
        lambda s: states.state_rank(s.trace),
        reads="states",
    ),
    "dead_units": Probe(
        "Hidden units that are silent",
        "this project",
        f"share at or below {states.DEAD:g} × the median unit",
        lambda s: states.dead_units(s.trace),
        reads="states",
    ),
    "logit_lens": Probe(
        "Loss if the head read h as it leaves each layer",
        "this project",
        "loss (nats per token)",
        lambda s: states.logit_lens(s.model, s.given, s.trace),
        reads="states",
        live=True,
    ),
}


def chosen(names: Iterable[str]) -> list[str]:
    """The probes of these names, all of them for none; UserError for one that is unknown."""
    wanted = list(names) or list(PROBES)
    for name in wanted:
        if name not in PROBES:
            raise UserError(f"there is no probe '{name}'{did_you_mean(name, PROBES)}")
    return wanted


def inspect(subject: Subject, names: Iterable[str] = ()) -> dict[str, Values | str]:
    """Probe -> what it finds, or why it does not apply."""
    found: dict[str, Values | str] = {}
    for name in chosen(names):
        try:
            found[name] = PROBES[name].look(subject)
        except DoesNotApply as reason:
            found[name] = str(reason)
    return found
