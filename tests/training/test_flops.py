import pytest
import torch

from unitsphere.models.registry import build
from unitsphere.training.device import peak_flops, peak_of_chip
from unitsphere.training.forecast import flops_per_token


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GB200", 2250e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA GeForce RTX 4090", None),
        ("AMD Instinct MI300X", None),
    ],
)
def test_the_peak_of_a_chip_is_known_by_its_name(name, peak):
    assert peak_of_chip(name) == peak


def test_a_cpu_and_fp32_have_no_known_peak():
    assert peak_flops(torch.device("cpu"), "bf16") is None
    assert peak_flops(torch.device("cuda"), "fp32") is None


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ["gpt", "ngpt", "angpt"])
def test_a_token_costs_what_the_matrix_products_of_a_step_cost(architecture, tied):
    """Counted from shapes: q, k, v, o, u, ν, out and the head; attention over T/2 keys."""
    d, layers, V, T = 32, 3, 64, 16
    model = build(architecture, vocab_size=V, d_model=d, n_layers=layers, n_heads=2, tied=tied)
    forward = layers * (2 * (4 * d * d + 3 * 4 * d * d) + 2 * 2 * d * T / 2) + 2 * d * V
    assert flops_per_token(model, T) == 3 * forward


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("architecture", "settings", "plain"),
    [
        ("gpt", {"value_embeddings": True}, {}),
        ("ngpt", {"value_embeddings": True}, {}),
        ("normformer", {"positions": "learned"}, {"positions": "sinusoidal"}),
    ],
)
def test_an_embedding_that_is_only_looked_up_costs_no_product(architecture, settings, plain, tied):
    sizes = {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 2, "tied": tied}
    more, less = (build(architecture, **sizes, **each) for each in (settings, plain))
    assert flops_per_token(more, 16) == flops_per_token(less, 16)


def test_shared_heads_of_keys_have_smaller_products_and_the_same_scores():
    d, layers, T = 32, 3, 16
    sizes = {"vocab_size": 64, "d_model": d, "n_layers": layers, "n_heads": 4}
    full, shared = (build("ngpt", n_kv_heads=n, **sizes) for n in (None, 1))
    saved = 2 * (d - d // 4) * d
    assert flops_per_token(full, T) - flops_per_token(shared, T) == 6 * layers * saved


@pytest.mark.parametrize("objective", ["clm", "mlm", "seq2seq"])
def test_a_window_hides_what_it_does_not_reach_and_nothing_across(objective):
    d, layers, T = 32, 3, 1024
    sizes = {"vocab_size": 64, "d_model": d, "n_layers": layers, "n_heads": 2}

    def count(window):
        return flops_per_token(build("ngpt", objective=objective, window=window, **sizes), T)

    weights = count(None) - {"clm": 6, "mlm": 12, "seq2seq": 30}[objective] * layers * d * T
    assert count(T) == count(5 * T) == count(None)
    away = abs(torch.arange(T)[:, None] - torch.arange(T))
    seen = (away < 64).double().mean().item()
    within, across = {"clm": (6, 0), "mlm": (12, 0), "seq2seq": (18, 12)}[objective]
    expected = (within * seen + across) * layers * d * T
    assert count(64) - weights == pytest.approx(expected, rel=0.01)


def test_an_encoder_sees_everything_and_an_encoder_decoder_is_two_stacks_and_looks_across():
    d, layers, V, T = 32, 3, 64, 16
    sizes = {"vocab_size": V, "d_model": d, "n_layers": layers, "n_heads": 2}
    mlm, both = (build("ngpt", objective=objective, **sizes) for objective in ("mlm", "seq2seq"))
    block, attention, head = 2 * 16 * d * d, 2 * 2 * d * T, 2 * d * V
    assert flops_per_token(mlm, T) == 3 * (layers * (block + attention) + head)
    across = 2 * 4 * d * d + attention
    decoder, encoder = block + attention // 2 + across, block + attention
    assert flops_per_token(both, T) == 3 * (layers * (encoder + decoder) + head)
