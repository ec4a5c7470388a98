"""The learning rate over a run: warm-up, then cosine, linear, warmup-stable-decay or constant.

The decay may end before the run does (`end`): GPT-3's cosine ends after 260 of 300 billion tokens.
Or a ramp, which climbs to the last step: how high until the loss diverges (`unitsphere lr-ramp`)?

The decay of `wsd` takes the last `decay` of the run, or all of it, in one of four forms (`fall`).
Embeddings, head and scales may have another share (`optim.roles.*.cooldown`).
With t from 0 to 1 over the decay, the rate goes from the peak to `final` as

    linear  1 − t
    power   1 − t^p                        1 − √t (Hägele et al. 2024, arXiv 2405.18392), 1 − t^0.4
    cool    (1 − t)^p                      the power cool-down of modded-nanogpt's track 3
    log     1 − log(1 + t/ρ)/log(1 + 1/ρ)  Training nGPT, arXiv 2608.01284

Forms are compared fairly at equal area: `area` is the mean of a form, to scale its peak by.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from unitsphere.config import check_choices
from unitsphere.errors import UserError

POWERS = {"power": 0.5, "cool": 1.2}
"""Exponents of the forms that have one, unless `power` names another."""


@dataclass(frozen=True)
class ScheduleConfig:
    """The form of the learning rate; `optim.lr` is its peak."""

    kind: Literal["cosine", "linear", "wsd", "constant", "ramp"] = "cosine"
    """form after the warm-up; wsd: constant, then falling over the last `decay` of the run;
    ramp: up to the peak at the last step, without a warm-up"""
    warmup: float = 0.0
    """steps of linear warm-up if 1 or more, else a fraction of the run"""
    final: float = 0.0
    """last rate divided by the peak"""
    end: float = 1.0
    """where the rate has come down to `final`, at which it then stays: steps if above 1, else a
    fraction of the run; 1: the end of the run"""
    decay: float = 0.2
    """wsd: fraction of the run over which the rate falls, up to `end`"""
    fall: Literal["linear", "power", "cool", "log"] = "linear"
    """wsd: form of the decay, t from 0 to 1 over it; power: 1 - t^p; cool: (1 - t)^p; log: falls
    fast, then slowly"""
    power: float | None = None
    """wsd: the exponent p; none: 0.5 for power, which is 1 - sqrt(t), and 1.2 for cool"""
    rho: float = 0.1
    """wsd: rho of log; the smaller, the faster the rate falls at first"""
    start: float = 0.0
    """ramp: first rate divided by the peak, and each a ratio above the one before; 0: each the same
    amount above the one before, from 0"""

    def __post_init__(self) -> None:
        check_choices(self, "schedule.")
        if not 0 <= self.warmup < math.inf:
            raise UserError(f"schedule.warmup must be a number from 0 on: {self.warmup}")
        if not 0 <= self.final <= 1:
            raise UserError(f"schedule.final must be between 0 and 1: {self.final}")
        if not 0 < self.decay <= 1:
            raise UserError(f"schedule.decay must be above 0 and at most 1: {self.decay}")
        if not 0 <= self.start < 1:
            raise UserError(f"schedule.start must be at least 0 and below 1: {self.start}")
        self.check_fall()
        self.check_end()
        if self.kind == "ramp" and self.warmup:
            raise UserError(f"schedule.warmup must be 0 for a ramp, which is one: {self.warmup}")

    def check_fall(self) -> None:
        """Raises UserError for a form of the decay that cannot be, or that would not be used."""
        if self.kind != "wsd" and self.fall != "linear":
            raise UserError(
                f"schedule.fall {self.fall} is for schedule.kind wsd, not {self.kind}: set that, "
                "with schedule.decay 1 for the whole run"
            )
        if self.power is not None and self.fall not in POWERS:
            raise UserError(
                f"schedule.power {self.power:g} is for schedule.fall power or cool, not "
                f"{self.fall}: leave it out"
            )
        for name, value in {"power": self.power, "rho": self.rho}.items():
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"schedule.{name} must be a number above 0: {value}")

    def check_end(self) -> None:
        """Raises UserError for an end that cannot be, whatever the length of the run."""
        if not 0 < self.end < math.inf:
            raise UserError(f"schedule.end must be a number above 0: {self.end}")
        if self.end == 1:
            return
        if self.kind in ("constant", "ramp"):
            raise UserError(
                f"schedule.end {self.end:g} is where a decay ends, but a {self.kind} schedule has "
                "none: set it to 1"
            )
        alike = (self.warmup >= 1) == (self.end > 1)  # both steps, or both fractions
        if alike and self.warmup >= self.end:
            raise UserError(
                f"schedule.end {self.end:g} comes before the warm-up of {self.warmup:g} is over: "
                "make it larger, or schedule.warmup smaller"
            )

    def unread(self) -> list[str]:
        """A line for each number that is set and that the form does not read.

        No error: a run that was trained with one, to no effect, still loads.
        """
        readers = {
            "decay": ("kind", "wsd"),
            "rho": ("fall", "log"),
            "start": ("kind", "ramp"),
        }
        return [
            f"schedule.{name} {getattr(self, name):g} is for schedule.{key} {form}, not "
            f"{getattr(self, key)}: it is not used"
            for name, (key, form) in readers.items()
            if getattr(self, name) != getattr(ScheduleConfig, name) and getattr(self, key) != form
        ]


def factor(config: ScheduleConfig, step: int, steps: int) -> float:
    """The rate divided by its peak for update `step` (0 … steps−1) of a run of `steps` updates.

    With a warm-up of w steps the factors start at 1/w, 2/w, …; the last update of the run, if the
    decay takes up to there, has a rate one step short of `final`, so it is not zero.
    """
    if config.kind == "ramp":
        return ramp(config.start, step, steps)
    warmup = warmup_steps(config, steps)
    if step < warmup:
        return (step + 1) / warmup
    if config.kind == "constant":
        return 1.0
    start = fall_begins(config, steps)
    progress = min(max((step - start) / max(decay_end(config, steps) - start, 1), 0.0), 1.0)
    if config.kind == "cosine":
        progress = (1 - math.cos(math.pi * progress)) / 2
    elif config.fall != "linear":
        progress = fallen(config, progress)
    return 1 - progress * (1 - config.final)


def with_decay(config: ScheduleConfig, share: float | None) -> ScheduleConfig:
    """The schedule with another share of the run over which the rate falls; none: as it is."""
    return config if share is None else replace(config, decay=share)


def area(config: ScheduleConfig, steps: int) -> float:
    """The mean of the factors of a run of `steps` updates.

    Times the peak and `steps` it is the sum of the rates. Two schedules have equal areas if the
    peaks are in inverse ratio to it.
    """
    return math.fsum(factor(config, step, steps) for step in range(steps)) / steps


def fallen(config: ScheduleConfig, t: float) -> float:
    """How far from the peak (0) to `final` (1) the rate is after the part `t` of the decay."""
    if config.fall == "log":
        return math.log1p(t / config.rho) / math.log1p(1 / config.rho)
    p = POWERS[config.fall] if config.power is None else config.power
    return 1 - (1 - t) ** p if config.fall == "cool" else t**p


def steps_alike(
    before: ScheduleConfig,
    steps: int,
    after: ScheduleConfig,
    more: int,
    cooldowns: Iterable[float] = (),
    momentum_cooldown: int = 0,
) -> int:
    """How many updates from the first on have one rate in a run of `steps` and in one of `more`.

    `cooldowns` are the shares of the run over which the rates of some parameters fall;
    `momentum_cooldown` the last steps of a run, in which the momentum changes.
    """
    alike = min(steps, more)
    if steps != more:
        alike = max(alike - momentum_cooldown, 0)
    for share in (None, *cooldowns):
        old, new = with_decay(before, share), with_decay(after, share)
        differs = (n for n in range(alike) if factor(old, n, steps) != factor(new, n, more))
        alike = next(differs, alike)
    return alike


def fall_begins(config: ScheduleConfig, steps: int) -> float:
    """The step from which the rate of a run of `steps` updates falls (cosine, linear, wsd)."""
    warmup = warmup_steps(config, steps)
    falls = steps * (1 - config.decay) - (steps - decay_end(config, steps))
    return max(warmup, falls) if config.kind == "wsd" else warmup


def decay_end(config: ScheduleConfig, steps: int) -> int:
    """The step of a run of `steps` updates from which the rate stays `final` (cosine, linear, wsd).

    Raises UserError if it is after the run, or in a warm-up that the run leaves.
    """
    end = round(config.end if config.end > 1 else config.end * steps)
    if end > steps:
        raise UserError(
            f"schedule.end {config.end:g} is after the run's {steps} steps: give a fraction of the "
            "run, or 1 for its end"
        )
    warmup = warmup_steps(config, steps)
    if config.end != 1 and end <= warmup < steps:  # a shortened run may only warm up
        raise UserError(
            f"schedule.end {config.end:g} comes before the warm-up of {warmup} steps is over: "
            "make it larger, or schedule.warmup smaller"
        )
    return end


def ramp(start: float, step: int, steps: int) -> float:
    """The factor of a ramp: 1/steps, 2/steps, …, 1; or from `start` to 1 in equal ratios."""
    if start == 0:
        return (step + 1) / steps
    return start ** (1 - step / max(steps - 1, 1))


def warmup_steps(config: ScheduleConfig, steps: int) -> int:
    """Updates of warm-up in a run of `steps` updates."""
    return round(config.warmup if config.warmup >= 1 else config.warmup * steps)
