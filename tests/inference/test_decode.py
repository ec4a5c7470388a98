"""Compiled decoding: the same texts, and nothing compiled anew from token to token."""

from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from unitsphere.errors import UserError
from unitsphere.inference import decode
from unitsphere.inference.generate import generate
from unitsphere.models.registry import ARCHITECTURES, build

SIZES = {"vocab_size": 61, "d_model": 32, "n_layers": 1, "n_heads": 4}
PROMPTS = [[5, 9, 2, 40, 8, 3, 3], [7], [11, 12, 60, 1]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Graphs as the compiler gets them, run without its slow last part."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    decode.compiled_step.cache_clear()
    torch.compiler.reset()
    yield
    decode.compiled_step.cache_clear()
    torch.compiler.reset()


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_compiled_texts_are_the_eager_ones(name):
    model = build(name, seed=3, **SIZES).double()
    settings = {"temperature": 1.0, "top_k": 20, "seed": [4, 9, 1]}
    expected = generate(model, PROMPTS, 12, **settings)
    assert generate(model, PROMPTS, 12, compile=True, **settings) == expected


@pytest.mark.parametrize("changes", [{"window": 4}, {"n_kv_heads": 2}, {"tied": True}])
def test_so_are_those_of_windows_and_grouped_keys(changes):
    model = build("ngpt", seed=3, **SIZES, **changes).double()
    assert generate(model, PROMPTS, 12, compile=True) == generate(model, PROMPTS, 12)


def test_a_token_compiles_nothing_anew_and_texts_of_other_lengths_share_the_graph():
    model = build("ngpt", **(SIZES | {"n_layers": 2}))
    before = graphs()
    generate(model, PROMPTS, 3, compile=True)
    assert graphs() == before + 1
    generate(model, PROMPTS, 50, compile=True)
    generate(model, [prompt * 2 for prompt in PROMPTS], 20, compile=True)
    assert graphs() == before + 1
    generate(model, PROMPTS, 58, compile=True)  # 65 tokens: longer buffers
    assert graphs() == before + 2


def test_many_shapes_are_no_error():
    """torch refuses the ninth by default; here the third."""
    model = build("ngpt", **SIZES)
    with torch._dynamo.config.patch(recompile_limit=2):
        for rows in (1, 2, 3, 4):
            generate(model, PROMPTS[:1] * rows, 2, compile=True)


def test_buffers_have_the_next_power_of_two():
    assert [decode.rounded(n) for n in (1, 64, 65, 128, 1000)] == [64, 64, 128, 128, 1024]


def test_learned_positions_end():
    model = build("normformer", **SIZES, positions="learned", max_positions=16)
    assert generate(model, [[1, 2]], 14, compile=True) == generate(model, [[1, 2]], 14)
    with pytest.raises(UserError, match="17 tokens, but the model has learned positions for 16"):
        generate(model, [[1, 2]], 15, compile=True)


def test_a_seed_for_each_prompt():
    model = build("ngpt", **SIZES)
    draw = partial(generate, model, max_tokens=8, temperature=1.0)
    together = draw(PROMPTS, seed=[7, 3, 7])
    alone = [
        draw([prompt], seed=[seed])[0] for prompt, seed in zip(PROMPTS, [7, 3, 7], strict=True)
    ]
    assert together == alone
    assert draw([PROMPTS[0]] * 3, seed=[5, 6, 5])[0] == draw([PROMPTS[0]] * 3, seed=5)[0]
    with pytest.raises(UserError, match="2 seeds for 3 prompts"):
        draw(PROMPTS, seed=[1, 2])
