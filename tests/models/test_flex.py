"""Models through FlexAttention: what a GPU takes for windows and documents, in its plain form."""

import pytest
import torch
from design_cases import make, scattered, tokens
from torch._dynamo.utils import counters
from torch.nn.attention import flex_attention as flex

from unitsphere.errors import UserError
from unitsphere.models import trunk
from unitsphere.ops import attention as attentions

PLAIN_FLEX = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
TIME = 10
NARROW = {"n_layers": 2, "d_model": 32, "n_heads": 4, "n_kv_heads": 2, "window": 4}


@pytest.fixture
def on_blocks(monkeypatch):
    """Call it, and the models that follow are given a `BlockMask`, on a CPU, gradients too."""

    def begin():
        monkeypatch.setattr(trunk, "takes_blocks", lambda *arguments: True)
        monkeypatch.setattr(attentions, "compiled", lambda function: function)
        monkeypatch.setattr(flex, "_validate_device", lambda q, k, v: None)

    torch._dynamo.reset()
    counters.clear()
    yield begin
    torch._dynamo.reset()


def results(model, step):
    """Loss and gradients on a batch whose documents depend on the step."""
    x = tokens(2, TIME, seed=step)
    documents = (x < 5).cumsum(1)
    model.zero_grad()
    loss = model.loss(x, x.roll(-1, 1), documents=documents)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def numbers_of(design):
    own = {"attention_factor": True} if design == "angpt" else {}
    return NARROW | own


@PLAIN_FLEX
@pytest.mark.parametrize("design", ["ngpt", "angpt"])
def test_blocks_of_a_compiled_model_give_what_a_mask_gives_in_one_graph(design, on_blocks):
    model = scattered(make(design, **numbers_of(design)))
    wanted = [results(model, step) for step in range(3)]
    on_blocks()
    for block in model.blocks:
        block.compile(fullgraph=True, backend="aot_eager")
    for step in range(3):
        for found, expected in zip(results(model, step), wanted[step], strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert counters["stats"]["unique_graphs"] == 1  # all layers and all documents share it
    assert not counters["graph_break"]


@PLAIN_FLEX
def test_the_blocks_are_made_once_for_all_layers(on_blocks, monkeypatch):
    made, create = [], trunk.attention_mask
    monkeypatch.setattr(trunk, "attention_mask", lambda *a: made.append(create(*a)) or made[-1])
    on_blocks()
    model = make("ngpt", **NARROW).requires_grad_(False)
    model(tokens(2, TIME))
    assert [type(mask).__name__ for mask in made] == ["BlockMask"]
    model(tokens(2, TIME), model.new_cache(2, TIME))  # compiling would cost more than a prompt
    assert type(made[-1]).__name__ == "Tensor"


@PLAIN_FLEX
def test_weights_are_dropped_under_a_mask_that_is_not_in_blocks(on_blocks, monkeypatch):
    made, create = [], trunk.attention_mask
    monkeypatch.setattr(trunk, "attention_mask", lambda *a: made.append(create(*a)) or made[-1])
    model = make("normformer", **NARROW, attention_dropout=0.5).requires_grad_(False)
    on_blocks()
    for training, kind in ((True, "Tensor"), (False, "BlockMask")):
        model.train(training)(tokens(2, TIME))
        assert type(made[-1]).__name__ == kind
    q = torch.zeros(2, 4, TIME, 8)
    with pytest.raises(UserError, match="FlexAttention drops no weights"):
        attentions.attention(q, q, q, 1.0, made[-1], causal=False, dropout=0.5)
