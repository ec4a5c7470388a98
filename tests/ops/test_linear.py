"""Look-ups: compiled, they have the same bits every time. The products are tested by the models."""

import pytest
import torch

from unitsphere.ops.linear import lookup


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_two_threads")
def test_a_compiled_look_up_has_the_same_gradient_every_time_the_eager_one_s():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(1024, 128, generator=generator, requires_grad=True)
    tokens = torch.randint(0, 50, (8, 257), generator=generator)  # each row many times
    above = torch.randn(8, 257, 128, generator=generator)

    def gradient(function):
        weight.grad = None
        out = function(tokens, weight)
        out.backward(above)
        return out.detach(), weight.grad

    compiled = torch.compile(lambda tokens, weight: 2 * lookup(tokens, weight), fullgraph=True)
    plain = gradient(lambda tokens, weight: 2 * lookup(tokens, weight))
    for _ in range(20):
        for own, other in zip(gradient(compiled), plain, strict=True):
            assert torch.equal(own, other)


def test_the_operators_keep_what_torch_asks_of_them():
    tokens = torch.tensor([[3, 0, 3], [1, 1, 2]])
    weight = torch.randn(5, 4, requires_grad=True)
    torch.library.opcheck(torch.ops.unitsphere.lookup.default, (tokens, weight))
    torch.library.opcheck(
        torch.ops.unitsphere.lookup_sums.default, (torch.ones(2, 3, 4), tokens, 5)
    )
