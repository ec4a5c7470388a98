"""What probes look at: a model with whatever else there is of its training, made when asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from unitsphere.data.batch import Batch
from unitsphere.inspection.trace import Trace, trace
from unitsphere.inspection.updates import Gradients, Recorded, gradients_of
from unitsphere.inspection.values import DoesNotApply
from unitsphere.models.trunk import Transformer

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
