"""What was run for a comparison, and what its models are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unitsphere.models.registry import build_from
from unitsphere.studies.arms import Tuned
from unitsphere.studies.execute import Record
from unitsphere.studies.plan import steps_for
from unitsphere.training.config import RunConfig
from unitsphere.training.forecast import flops_per_token


@dataclass(frozen=True)
class Comparison:
    """What was run: configs by arm (at the smallest budget), rates by (arm, budget), and records by
    (arm, budget, seed).
    """

    baseline: str
    budgets: Sequence[int]
    seeds: Sequence[int]
    configs: Mapping[str, RunConfig]
    rates: Mapping[tuple[str, int], Tuned]
    records: Mapping[tuple[str, int, int], Record]

    def finished(self, arm: str, tokens: int, seed: int) -> Record | None:
        """A run's record, if it came to its end."""
        record = self.records.get((arm, tokens, seed))
        return record if record is not None and record.status == "finished" else None

    def common(self, arm: str, budgets: Sequence[int]) -> list[int]:
        """The seeds of which both the baseline and the arm finished at all the budgets."""
        return [
            seed
            for seed in self.seeds
            if all(self.finished(a, t, seed) for a in (self.baseline, arm) for t in budgets)
        ]

    def tokens(self, arm: str, budget: int) -> int:
        """The tokens of an arm's runs at a budget, which is rounded to whole steps."""
        batch = self.configs[arm].train.batch_tokens
        return steps_for(budget, batch) * batch

    def losses(self, arm: str, tokens: int, seeds: Sequence[int]) -> list[float]:
        """The losses of finished runs."""
        found = [self.finished(arm, tokens, seed) for seed in seeds]
        return [record.loss for record in found if record is not None and record.loss is not None]


@dataclass(frozen=True)
class Size:
    """A model's parameters, and its operations a training token."""

    parameters: int
    flops_per_token: int


def size_of(config: RunConfig) -> Size:
    """Counted without allocating the model."""
    model = build_from(config.architecture, config.model, "meta", objective=config.objective)
    count = sum(parameter.numel() for parameter in model.parameters())
    return Size(count, flops_per_token(model, config.data.context))
