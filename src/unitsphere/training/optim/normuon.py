"""NorMuon: Muon whose orthogonal direction is divided by a second moment for each row.

| step | formula | source |
|---|---|---|
| direction | O, Muon's | muon.py |
| second moment | v ← β₂v + (1−β₂)·(mean of O² over the shorter side) | arXiv 2510.05491 |
| divide | O' = O/√v, row by row, or column by column of a wide W; v at least 1e-10 | |
| norm | O' ← O'·‖O‖_F/‖O'‖_F | modded-nanogpt |

v starts at 0 without Adam's correction, which the last line would cancel. Every process keeps all
of v: it is as long as the longer side.
"""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from unitsphere.errors import UserError
from unitsphere.ops.dtensor import complete, local, part_of, whole
from unitsphere.training.optim.muon import READS, Muon, MuonConfig, build_muon
from unitsphere.training.optim.registry import Definition
from unitsphere.training.optim.state import Slot, StateSpec

LEAST = 1e-10
"""Second moments below this count as this."""


@dataclass(frozen=True)
class NorMuonConfig(MuonConfig):
    """Muon's own keys and the second moment's."""

    beta2: float = 0.95
    """decay of the rows' second moment"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta2 < 1:
            raise UserError(f"optim.normuon.beta2 must be from 0 to below 1: {self.beta2}")


class NorMuon(Muon):
    """The table above."""

    own: ClassVar[dict[str, Any]] = asdict(NorMuonConfig())

    def state_spec(self, parameter: Tensor) -> StateSpec:
        """Muon's, and the second moment."""
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        *stack, rows, columns = parameter.shape
        moment = Slot((*stack, max(rows, columns)), dtype)
        return super().state_spec(parameter) | {"second_moment": moment}

    def _direction(self, weight: Tensor, direction: Tensor, group: dict[str, Any]) -> Tensor:
        direction, short = complete(direction), -1 if weight.shape[-2] >= weight.shape[-1] else -2
        wide = direction.to(torch.promote_types(weight.dtype, torch.float32))
        mean = whole(wide.square().sum(short)) / weight.shape[short]
        held = self.state[weight].setdefault("second_moment", torch.zeros_like(mean))
        held.lerp_(mean, 1 - group["beta2"])
        factors = held.clamp(min=LEAST).rsqrt()
        after = (mean * factors.square()).sum(-1, keepdim=True)
        factors *= (mean.sum(-1, keepdim=True) / after.clamp(min=LEAST)).sqrt()
        rows = factors.to(direction.dtype).unsqueeze(short).expand(direction.shape)
        local(direction).mul_(part_of(rows, direction))
        return direction


NORMUON = Definition(partial(build_muon, kind=NorMuon), READS, NorMuonConfig)
