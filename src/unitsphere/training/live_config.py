"""Which probes a run takes while it trains, and how often."""

from dataclasses import dataclass

from unitsphere.config import did_you_mean
from unitsphere.errors import UserError

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
LIVE = (*DEFAULT, "gradient_norms", "learned_scales", "lambda_by_depth", "logit_lens")
"""Probes that cost little enough: no singular values, no attention's weights in full."""


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
        for name in self.names():
            if name not in LIVE:
                raise UserError(
                    f"inspect.probes: '{name}' is no probe to take live{did_you_mean(name, LIVE)}"
                )

    def names(self) -> tuple[str, ...]:
        """The probes to take."""
        if self.probes is None:
            return DEFAULT
        return tuple(name.strip() for name in self.probes.split(",") if name.strip())
