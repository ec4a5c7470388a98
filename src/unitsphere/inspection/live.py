"""Probes while a run trains: every `inspect.every` steps, into the records of its log.

A probe whose line in `probes.PROBES` says `live` can be taken here. What it reads says when: its
gradients before they are clipped, an update after it with the weights from before, everything else
when the step is recorded.

Nothing here touches the training: gradients are only read, weights are copied, and the forward pass
over a row of the validation data is an additional one, without dropout. A record has the keys
`probe/<probe>/<series>/<label>` (see the package `inspection`). Of several processes all take the
probes, since they gather what is spread over them.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from torch import Tensor

from unitsphere.config import did_you_mean
from unitsphere.data.batch import Batch
from unitsphere.errors import UserError
from unitsphere.inspection.probes import PROBES, Reads
from unitsphere.inspection.trace import Subject
from unitsphere.inspection.updates import Gradients
from unitsphere.inspection.values import DoesNotApply, flat
from unitsphere.models.trunk import Transformer

PREFIX = "probe/"
DEFAULT = (
    "input_norms",
    "sublayer_angles",
    "second_fc_gradients",
    "moment_variance",
    "angular_updates",
    "eigen_learning_rates",
    "gain_norms",
    "group_norms",
)
"""Those of the papers' figures over training, and the angles."""


def live_probes() -> list[str]:
    """The probes that a run can take: the cheap ones (no singular values, no full attention)."""
    return [name for name, probe in PROBES.items() if probe.live]


@dataclass(frozen=True)
class InspectConfig:
    """Probes while the run trains; `unitsphere inspect` has all of them, from checkpoints."""

    every: int = 50
    """steps between records of the probes; 0: never"""
    probes: str | None = None
    """their names, separated by commas; none: those of the papers' figures over training"""

    def __post_init__(self) -> None:
        if self.every < 0:
            raise UserError(f"inspect.every must not be negative: {self.every}")
        known = live_probes()
        for name in self.names():
            if name not in known:
                raise UserError(
                    f"inspect.probes: '{name}' is not a live probe{did_you_mean(name, known)}"
                )

    def names(self) -> tuple[str, ...]:
        """The probes to take."""
        if self.probes is None:
            return DEFAULT
        return tuple(name.strip() for name in self.probes.split(",") if name.strip())


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
        gradients = {key: p.grad for key, p in named.items() if p.grad is not None}
        self.take("gradients", Subject(model, of_step=Gradients(gradients, math.nan)))
        if not self.wanted("update"):
            yield
            return
        before = {key: p.detach().clone() for key, p in named.items()}
        yield
        self.take("update", Subject(model, before=before))

    def record(
        self,
        step: int,
        model: Transformer,
        moments: Callable[[], Mapping[str, Tensor]],
        batch: Batch,
        precision: AbstractContextManager[object],
    ) -> dict[str, float]:
        """The figures of `step`, with those that `updating` saw; empty if no probes are due.

        moments: gives Adam's first moments by parameter.
        precision: the context in which the run's forward passes are computed.
        """
        if not self.due(step):
            return {}
        self.take("weights", Subject(model))
        if self.wanted("moments"):
            self.take("moments", Subject(model, moments=moments()))
        if self.wanted("states"):
            with precision:
                self.take("states", Subject(model, batch.to(model.device), deep=False))
        found, self.found = self.found, {}
        return found

    def wanted(self, reads: Reads) -> list[str]:
        """The probes of this run that read a kind of thing."""
        return [n for n, probe in PROBES.items() if n in self.names and probe.reads == reads]

    def take(self, reads: Reads, subject: Subject) -> None:
        """Take the wanted probes that read a kind of thing, where they apply."""
        for name in self.wanted(reads):
            try:
                values = PROBES[name].look(subject)
            except DoesNotApply:
                continue
            self.found |= {f"{PREFIX}{name}/{key}": value for key, value in flat(values).items()}
