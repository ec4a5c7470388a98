"""What a ladder asks, from its TOML: the keys of all studies, and sizes, batches and computes.

tokens_per_parameter = 20
batches = [8192, 16384, 32768]           # tokens an update
computes = [1e15, 2e15, 4e15]            # operations; none: the grid alone
[sizes]
s = { model = { d_model = 128, n_layers = 4, n_heads = 2 } }
m = { model = { d_model = 192, n_layers = 6, n_heads = 3 } }
[arms]
gpt-plus = "quickstart/gpt-plus"
"""

import math
import re
from dataclasses import dataclass, field

from unitsphere.config import flatten
from unitsphere.errors import UserError
from unitsphere.studies.spec import OWN_KEYS, ArmSpec, Comparing, Study, check_numbers

LEAST_POINTS = 3
"""Batches, and rates of each, that an optimum can lie between."""


@dataclass(frozen=True, kw_only=True)
class LadderStudy(Comparing):
    """What `ladder` asks beside what all studies do. `tune` is of the grid, `seeds` of computes."""

    sizes: dict[str, dict[str, object]]
    """keys set at each size, such as model.d_model"""
    batches: list[int]
    """tokens an update"""
    tokens_per_parameter: float = 20.0
    """training tokens of the grid's runs, divided by the parameters"""
    computes: list[float] = field(default_factory=list)
    """operations (6·parameters·tokens) at which all sizes are trained; none: the grid alone"""
    next: list[int] = field(default_factory=list)
    """parameters of sizes to suggest rate and batch for; none: twice the largest"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers("batches", self.batches, least=1)
        if len(self.batches) < LEAST_POINTS or self.tune.points < LEAST_POINTS:
            raise UserError(
                f"'batches' and tune.points must be at least {LEAST_POINTS}: the best is looked "
                "for between them"
            )
        if self.tune.budgets:
            raise UserError("tune.budgets is not for a ladder: leave it out")
        if not self.sizes:
            raise UserError("'sizes' must name at least one size")
        if not all(0 < number < math.inf for number in (self.tokens_per_parameter, *self.computes)):
            raise UserError("'tokens_per_parameter' and 'computes' must be finite and above 0")
        if self.next:
            check_numbers("next", self.next, least=1)
        for name, keys in self.sizes.items():
            if not re.fullmatch(r"\w[\w+-]*", name, re.ASCII):
                raise UserError(
                    f"the size {name!r} must have a name of letters, digits, '-' or '_'"
                )
            check_keys(f"sizes.{name}", flatten(keys))
        check_keys("set", self.set)
        for name, arm in self.arms.items():
            check_keys(f"arms.{name}.set", arm.set)

    def rung(self, arm: str, size: str, batch: int) -> ArmSpec:
        """An arm at a size and batch."""
        spec = self.arms[arm]
        keys = {**spec.set, **flatten(self.sizes[size]), "train.batch_tokens": batch}
        return ArmSpec(spec.recipe, keys, spec.lr)

    def study(self, arms: dict[str, ArmSpec]) -> Study:
        """The study of `arms` with everything else that is this one's."""
        return Study(arms=arms, set=self.set, seeds=self.seeds, tune=self.tune, run=self.run)


def check_keys(where: str, keys: dict[str, object]) -> None:
    """Raise UserError for a key that the study itself sets."""
    own = OWN_KEYS | {"train.batch_tokens": "it belongs in `batches`"}
    for key in keys:
        if key in own:
            raise UserError(f"'{where}.{key}' cannot be set: {own[key]}")
