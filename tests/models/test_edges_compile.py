"""torch.compile of the whole model, in one graph: the same loss and the same gradients."""

import pytest
import torch
from design_cases import DESIGNS, make, source_of, tokens

from unitsphere.models.config import RecurrenceConfig
from unitsphere.models.mixers import MIXERS
from unitsphere.models.registry import ARCHITECTURES

pytestmark = pytest.mark.timeout(900)  # a C++ compiler on a busy machine

SCALAR = {"cpp.simdlen": 1}
"""The C++ of scalar kernels compiles in half the time of vectorised ones."""


@pytest.fixture(autouse=True)
def _fresh():
    """No graph of another session; C++ headers are compiled once for all tests of a machine."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(fx_graph_cache=False):
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


def test_compiled_in_one_graph_by_inductor():
    """Our own operations, in one layer: the C++ compiler takes long."""
    model = make("ngpt", n_layers=1)
    check(model, torch.compile(model.loss, fullgraph=True, dynamic=False, options=SCALAR))


@pytest.mark.parametrize("name", ["gpt", "angpt", "normformer"])
def test_graphs_for_inductor(name):
    """The papers' other architectures: the graphs of forward and backward that it is given."""
    model = make(name)
    check(model, torch.compile(model.loss, fullgraph=True, dynamic=False, backend="aot_eager"))


@pytest.mark.parametrize("mixer", MIXERS)
def test_graphs_for_inductor_of_recurrences(mixer):
    model = make("ngpt", mixers=mixer, recurrence=RecurrenceConfig(d_key=4, d_value=8))
    check(model, torch.compile(model.loss, fullgraph=True, dynamic=False, backend="aot_eager"))


@pytest.mark.parametrize(
    ("design", "objective"),
    [(design, "seq2seq" if design in ARCHITECTURES else "clm") for design in DESIGNS]
    + [("ngpt", "mlm")],
)
def test_traced_in_one_graph(design, objective):
    """No design breaks the graph; an encoder and decoder have the blocks of all objectives."""
    model = make(design, objective)
    check(model, torch.compile(model.loss, fullgraph=True, dynamic=False, backend="eager"))


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_exported_for_texts_of_any_length(name, window):
    """By torch.export, once, with the batch and the time free."""
    model = make(name, n_layers=1, window=window).eval().requires_grad_(False)
    free = {n: torch.export.Dim(size, min=2, max=64) for n, size in enumerate(("batch", "time"))}
    exported = torch.export.export(model, (tokens(2, 6),), dynamic_shapes=(free,)).module()
    for batch, time in ((2, 3), (3, 9), (8, 60)):  # the last has more than five for each of d
        text = tokens(batch, time)
        torch.testing.assert_close(exported(text), model(text), rtol=0, atol=1e-5)
