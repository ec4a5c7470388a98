"""torch.compile of the whole model, in one graph: the same loss and the same gradients."""

import pytest
import torch
from design_cases import DESIGNS, OBJECTIVES, make, source_of, tokens

pytestmark = pytest.mark.timeout(900)  # a C++ compiler on a busy machine

SCALAR = {"cpp.simdlen": 1}
"""The C++ of scalar kernels compiles in half the time of vectorised ones."""


@pytest.fixture(autouse=True)
def _fresh(tmp_path_factory, monkeypatch):
    """Compiled code of this session alone, shared by its tests."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "compiled"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check(model, compiled):
    """`compiled` is the model's loss, and the gradients through it are the model's."""
    x, source = tokens(2, 6), source_of(model)
    arguments = {"tokens": x, "targets": x.roll(-1, 1), "label_smoothing": 0.1, **source}
    wanted = model.loss(**arguments)
    wanted.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    largest = max(g.abs().max() for g in gradients.values())
    model.zero_grad()
    found = compiled(**arguments)
    found.backward()
    assert abs(found - wanted) < 1e-5 * wanted
    for name, p in model.named_parameters():
        assert (p.grad - gradients[name]).abs().max() < 1e-5 * largest, name


@pytest.mark.parametrize("name", ["gpt", "ngpt", "angpt", "normformer"])
def test_compiled_in_one_graph_by_inductor(name):
    """The papers' architectures: the others are these with other norms and factors."""
    model = make(name)
    check(model, torch.compile(model.loss, fullgraph=True, dynamic=False, options=SCALAR))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("design", DESIGNS)
def test_traced_in_one_graph(design, objective):
    """No design breaks the graph with any objective."""
    model = make(design, objective)
    check(model, torch.compile(model.loss, fullgraph=True, dynamic=False, backend="eager"))
