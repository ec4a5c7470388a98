"""The sublayers alone: nGPT's own, their norms, and what a user's model must say of the rest."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import unitsphere
from unitsphere import nn as unit
from unitsphere.errors import UserError
from unitsphere.kernels.registry import using_kernels
from unitsphere.models.constraint import constraints, roles

D = 32


def sphere(*shape):
    return unit.unit_norm(torch.randn(*shape, generator=torch.Generator().manual_seed(1)))


def lengths(module):
    return torch.cat(
        [module.get_parameter(c.parameter).norm(dim=c.dim).flatten() for c in constraints(module)]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: unit.UnitLinear(D, 3 * D),
        lambda: unit.UnitLinear(3 * D, D, dim=0),
        lambda: unit.UnitEmbedding(7, D),
        lambda: unit.NormalizedAttention(D, 4, n_kv_heads=2),
        lambda: unit.NormalizedMLP(D),
    ],
)
def test_weights_start_as_unit_vectors_that_the_seed_decides(make):
    torch.manual_seed(3)
    one = make()
    torch.manual_seed(3)
    same, other = make(), make()
    assert (lengths(one) - 1).abs().max() < 1e-6
    values = [torch.cat([p.flatten() for p in m.parameters()]) for m in (one, same, other)]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])
    with torch.device("meta"):
        assert next(make().parameters()).device.type == "meta"


def test_unit_linear_is_the_product_along_either_axis():
    x = torch.randn(5, D)
    for linear, dim in ((unit.UnitLinear(D, 8), 1), (unit.UnitLinear(D, 8, dim=0), 0)):
        W = linear.state_dict()["weight"]
        assert W.shape == (8, D)
        assert (W.norm(dim=dim) - 1).abs().max() < 1e-6
        torch.testing.assert_close(linear(x), x @ W.T)


def test_the_sublayers_make_ngpt_s_block():
    """The same weights in a model of `build` and in the sublayers: the same h."""
    model = unitsphere.build("ngpt", vocab_size=40, d_model=D, n_layers=1, n_heads=4)
    block = model.blocks[0]
    attention, mlp = unit.NormalizedAttention(D, 4, causal=True), unit.NormalizedMLP(D)
    steps = [unit.SphereResidual(D) for _ in range(2)]
    attention.attention.load_state_dict(block.attention.state_dict())
    mlp.mlp.load_state_dict(block.mlp.state_dict())
    tokens = torch.randint(40, (2, 9))
    h = model.E_in(tokens)
    h = steps[0](h, attention(h))
    h = steps[1](h, mlp(h))
    torch.testing.assert_close(h, model.features(tokens))
    torch.testing.assert_close(h.norm(dim=-1), torch.ones(2, 9))


def test_attention_sees_what_it_may_see():
    h, changed = sphere(2, 6, D), sphere(2, 6, D).clone()
    changed[:, 4] = -changed[:, 4]
    causal = unit.NormalizedAttention(D, 4, causal=True)
    both = unit.NormalizedAttention(D, 4)
    torch.testing.assert_close(causal(h)[:, :4], causal(changed)[:, :4])
    assert not torch.allclose(both(h)[:, :4], both(changed)[:, :4])
    mask = torch.ones(6, 6, dtype=torch.bool).index_fill(1, torch.tensor([4]), False)
    torch.testing.assert_close(both(h, mask)[:, :4], both(changed, mask)[:, :4])
    with pytest.raises(UserError, match=r"take mask\.bool\(\)"):
        both(h, mask.float())  # SDPA would add it to the logits


def test_without_rope_the_order_of_tokens_is_nothing():
    h, order = sphere(2, 6, D), torch.tensor([3, 1, 5, 0, 2, 4])
    plain = unit.NormalizedAttention(D, 4, rotary_fraction=0)
    torch.testing.assert_close(plain(h)[:, order], plain(h[:, order]))
    turned = unit.NormalizedAttention(D, 4)
    assert not torch.allclose(turned(h)[:, order], turned(h[:, order]))


def test_a_scale_begins_at_its_value_and_moves_by_its_start():
    scale = unit.Scale(D, init=2.0, start=0.5)
    assert torch.equal(scale(), torch.full((D,), 2.0))
    optimizer = torch.optim.Adam(scale.parameters(), lr=0.01)
    scale().sum().backward()
    optimizer.step()
    torch.testing.assert_close(scale(), torch.full((D,), 2.0 - 0.01 * 2.0 / 0.5))


def test_the_residual_steps_by_the_kernel():
    step = unit.SphereResidual(8)
    refusal = pytest.raises(UserError, match="lerp_norm cannot run")
    with using_kernels("require"), refusal:
        step(torch.ones(1, 8).double(), torch.ones(1, 8).double())  # not for kernels


def test_a_step_of_all_the_way_is_the_norm_of_what_is_stepped_to():
    h, x = sphere(3, D), 5 * sphere(3, D).roll(1, 0)
    torch.testing.assert_close(unit.SphereResidual(D, alpha=1.0)(h, x), unit.unit_norm(x))
    torch.testing.assert_close(unit.UnitNorm()(x), x / x.norm(dim=-1, keepdim=True))


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.Linear(6, D)
        self.mlp, self.step = unit.NormalizedMLP(D), unit.SphereResidual(D)
        self.write = nn.Linear(D, 6, bias=False)

    def forward(self, x):
        h = unit.unit_norm(self.read(x))
        return self.write(self.step(h, self.mlp(h)))


def train(model, optimizer, steps=3):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        (model(x) - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_model_of_one_s_own_says_what_is_free_and_what_is_bound():
    model = Own()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    with pytest.raises(ValueError, match=r"'read\.weight' of Linear is declared neither"):
        unitsphere.constrain(model, optimizer)
    unit.free(model.read)
    unit.declare(model.write, weight=unit.Bound(dim=1, kind="ball", radius=2.0))
    unitsphere.constrain(model, optimizer)
    assert {c.parameter for c in constraints(model)} == {
        "mlp.mlp.W_u.weight",
        "mlp.mlp.W_nu.weight",
        "mlp.mlp.W_oMLP.weight",
        "write.weight",
    }
    train(model, optimizer)
    assert (lengths(model.mlp) - 1).abs().max() < 1e-6
    assert model.write.weight.norm(dim=1).max() < 2 + 1e-6
    assert model.read.weight.norm(dim=1).max() > 0
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert constraints(twin) == constraints(model)


def test_free_reaches_all_of_a_model_but_what_declares_itself():
    model = unit.free(nn.Sequential(nn.Conv2d(1, 4, 3), nn.MultiheadAttention(D, 4), Own()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unitsphere.constrain(model, optimizer)
    assert len(constraints(model)) == 3


def test_free_frees_what_a_module_left_undeclared():
    layer = unit.declare(nn.Linear(D, D), weight=unit.Bound(dim=1))
    model = unit.free(nn.Sequential(layer, nn.LayerNorm(D)))
    unitsphere.constrain(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert [c.parameter for c in constraints(model)] == ["0.weight"]


def test_a_name_that_is_no_parameter_is_refused():
    with pytest.raises(UserError, match=r"Linear has no parameter 'wieght' of its own"):
        unit.declare(nn.Linear(2, 2), wieght=None)


def test_heads_must_divide_the_width():
    with pytest.raises(UserError, match="not divisible"):
        unit.NormalizedAttention(D, 5)


@pytest.mark.parametrize("name", ["ngpt", "angpt"])
def test_project_puts_averaged_weights_where_the_constraint_wants_them(name):
    model = unitsphere.build(name, vocab_size=40, d_model=D, n_layers=1, n_heads=2)
    other = unitsphere.build(name, vocab_size=40, d_model=D, n_layers=1, n_heads=2, seed=1)
    with torch.no_grad():
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            p.lerp_(q, 0.5)
    middle = [p.detach().clone() for p in model.parameters()]
    assert abs(lengths(model).mean() - math.sqrt(0.5)) < 0.02
    unitsphere.project(model)
    if name == "ngpt":
        assert (lengths(model) - 1).abs().max() < 1e-6
    else:  # a ball holds the averages of what it holds
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), middle, strict=True))


def test_a_run_that_shall_be_trained_on_is_no_exported_folder(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "unitsphere"}')
    with pytest.raises(UserError, match="continue from the run folder"):
        unitsphere.load(tmp_path, trainable=True)


def test_a_declared_embedding_is_one_to_the_optimizers():
    table = unit.declare(nn.Embedding(8, D), weight=unit.Bound(dim=1))
    model = nn.Sequential(table, unit.UnitLinear(D, D))
    assert roles(model) == {"0.weight": "embedding", "1.weight": "matrix"}


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"kind": "spher"}, "kind 'sphere' or 'ball', not 'spher'"),
        ({"radius": -1.0}, "a radius above 0, not -1"),
        ({"radius": 0.0}, "a radius above 0, not 0"),
        ({"radius": math.inf}, "a radius above 0, not inf"),
    ],
)
def test_a_bound_that_cannot_be_is_refused(numbers, said):
    with pytest.raises(UserError, match=said):
        unit.Bound(1, **numbers)
