"""Probes while a run trains: every `inspect.every` steps, into the records of its log.

Nothing of it touches the training: gradients are read before they are clipped, weights are copied,
and the forward pass over a row of the validation data is one more, without dropout. A record has
the keys `probe/<probe>/<series>/<label>` (see the package `inspection`). Of several processes all
take the probes, since they gather what is spread over them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from torch.optim import Optimizer

from unitsphere.data.batch import Batch
from unitsphere.inspection import scales, states, updates, weights
from unitsphere.inspection.trace import Trace, trace
from unitsphere.inspection.values import DoesNotApply, Values, flat
from unitsphere.models.trunk import Transformer
from unitsphere.training.config import Precision
from unitsphere.training.device import autocast
from unitsphere.training.live_config import InspectConfig
from unitsphere.training.optim.state import first_moments

PREFIX = "probe/"
Look = Callable[[Transformer], Values]
OF_WEIGHTS: dict[str, Look] = {
    "eigen_learning_rates": scales.eigen_learning_rates,
    "learned_scales": scales.learned_scales,
    "gain_norms": weights.gain_norms,
    "group_norms": weights.group_norms,
    "lambda_by_depth": scales.lambda_by_depth,
}
OF_GRADIENTS = {
    "second_fc_gradients": updates.second_fc_gradients,
    "gradient_norms": updates.gradient_norms,
}
OF_STATES: dict[str, Callable[[Trace], Values]] = {
    "input_norms": states.input_norms,
    "sublayer_angles": states.sublayer_angles,
}


class Live:
    """A run's live probes: `updating` around an update, then `record`."""

    def __init__(self, config: InspectConfig | None = None) -> None:
        self.config = config or InspectConfig(every=0)
        self.names = frozenset(self.config.names())
        self.found: dict[str, float] = {}

    def due(self, step: int) -> bool:
        """Whether the probes are taken at `step`."""
        return self.config.every > 0 and step % self.config.every == 0

    @contextmanager
    def updating(self, step: int, model: Transformer) -> Iterator[None]:
        """Around clipping and update number `step`: see the gradients, and how far weights turn."""
        if not self.due(step):
            yield
            return
        self.found = {}
        named = dict(model.named_parameters())
        for name, look in OF_GRADIENTS.items():
            gradients = {key: p.grad for key, p in named.items() if p.grad is not None}
            self.take(name, partial(look, model, gradients))
        if "angular_updates" not in self.names:
            yield
            return
        before = {key: p.detach().clone() for key, p in named.items()}
        yield
        self.take("angular_updates", partial(updates.angular_updates, model, before, named))

    def record(
        self,
        step: int,
        model: Transformer,
        optimizer: Optimizer,
        batch: Batch,
        precision: Precision,
    ) -> dict[str, float]:
        """The figures of `step`, of the updates that `updating` saw too; none if none are due."""
        if not self.due(step):
            return {}
        for name, look in OF_WEIGHTS.items():
            self.take(name, partial(look, model))
        self.take(
            "moment_variance",
            lambda: updates.moment_variance(model, first_moments(model, optimizer)),
        )
        if self.names & {*OF_STATES, "logit_lens"}:
            here = batch.to(model.device)
            with autocast(model.device, precision):
                seen = trace(model, here, deep=False)
                for name, look_at in OF_STATES.items():
                    self.take(name, partial(look_at, seen))
                self.take("logit_lens", partial(states.logit_lens, model, here, seen))
        found, self.found = self.found, {}
        return found

    def take(self, name: str, look: Callable[[], Values]) -> None:
        """Take a probe, if it is wanted and applies."""
        if name not in self.names:
            return
        try:
            values = look()
        except DoesNotApply:
            return
        self.found |= {f"{PREFIX}{name}/{key}": value for key, value in flat(values).items()}
