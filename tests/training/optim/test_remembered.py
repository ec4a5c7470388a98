"""Which parameters each constraint acts on, by the roles that its authors name."""

import pytest
import torch

from unitsphere.models.constraint import overridden, roles
from unitsphere.models.registry import ARCHITECTURES, build
from unitsphere.training.optim.constraint import ConstraintConfig, constrain
from unitsphere.training.optim.cpr import CPRConfig

WIDE = {"matrix", "embedding", "head"}
ACTS_ON = {"frobenius": WIDE, "hyperball": {"matrix"}, "cpr": {"matrix", "head"}}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_is_remembered_is_of_these_roles(name):
    """All wide tensors; Muon's; linear layers, as CPR's authors regularize."""
    for kind, wanted in ACTS_ON.items():
        model = build(name, vocab_size=24, d_model=16, n_layers=1, n_heads=2, tied=False)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        config = ConstraintConfig(kind=kind, cpr=CPRConfig("Kappa-kI0"))
        constrain(model, optimizer, config=config)
        x = torch.arange(24)[None]
        model.loss(x, x.roll(-1, 1)).backward()
        optimizer.step()
        key = "lambda" if kind == "cpr" else "radius"
        for parameter, role in roles(model).items():
            state = optimizer.state[model.get_parameter(parameter)]
            assert (key in state) == (role in wanted), (kind, parameter)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_override_takes_every_wide_tensor(name):
    model = build(name, vocab_size=24, d_model=16, n_layers=1, n_heads=2, tied=False)
    wanted = {parameter for parameter, role in roles(model).items() if role in WIDE}
    assert {c.parameter for c in overridden(model, "ball")} == wanted
