"""Rounding to few bits by closed forms, and what it does to models and runs."""

import io
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_recipe import tiny_recipe
from typed import refused

from unitsphere.cli import main
from unitsphere.errors import UserError
from unitsphere.inference.quantize import (
    E2M1,
    bits_per_weight,
    dequantised,
    e2m1,
    quantize_,
    read_format,
)
from unitsphere.models.constraint import Bound, constraints
from unitsphere.models.registry import ARCHITECTURES, build
from unitsphere.report.registry import page_of

SMALL = {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 2}


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def back(weight: torch.Tensor, name: str, bound: Bound | None = None) -> torch.Tensor:
    return dequantised(weight, read_format(name), bound)


@pytest.mark.parametrize("name", ["int8", "int8:32", "int4"])
def test_small_weights_lose_no_more_than_large_ones(name):
    weight = drawn(16, 64)
    error = float((back(weight, name) - weight).norm() / weight.norm())
    for size in (2e-2, 2e-3, 2e-4):  # the scales of the last two are below fp16's normal numbers
        small = weight * size
        found = float((back(small, name) - small).norm() / small.norm())
        assert found == pytest.approx(error, rel=0.3)


@given(st.integers(2, 8), st.floats(1e-3, 1e3), st.sampled_from(["", ":4", ":2"]))
def test_integers_times_a_scale_come_back_as_they_are(bits, scale, group):
    scale = float(torch.tensor(scale).half())
    q = 2 ** (bits - 1) - 1
    weight = torch.tensor([[q, -q, 1, 0], [0, 1, -q, -1]][:1] * 2) * scale
    weight[:, 2:] = torch.tensor([q, 1 - q]) * scale  # each group has the largest in it
    torch.testing.assert_close(back(weight, f"int{bits}{group}"), weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_the_error_of_a_uniform_row_is_that_of_rounding(bits):
    weight = torch.rand(1, 100_000, generator=torch.Generator().manual_seed(1)) * 2 - 1
    step = 1 / (2 ** (bits - 1) - 1)
    error = (back(weight, f"int{bits}") - weight).square().mean().sqrt()
    assert float(error) == pytest.approx(step / math.sqrt(12), rel=0.02)


def test_a_group_has_its_own_scale_and_a_row_one():
    weight = torch.tensor([[7.0, -3.0, 0.07, -0.03]])
    assert back(weight, "int4").tolist() == [[7.0, -3.0, 0.0, 0.0]]
    torch.testing.assert_close(back(weight, "int4:2"), weight, rtol=1e-3, atol=0)


def test_e2m1_takes_the_nearest_and_ties_go_to_even():
    values = torch.tensor([-x for x in E2M1] + list(E2M1))
    assert e2m1(values).tolist() == values.tolist()
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert e2m1(ties).tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert e2m1(-ties).tolist() == [0, -1, -1, -2, -2, -4, -4]
    assert e2m1(torch.tensor([0.26, 0.74, 5.1, 9.0])).tolist() == [0.5, 0.5, 6.0, 6.0]


def test_nvfp4_is_exact_where_blocks_hold_its_numbers():
    block = torch.tensor([*E2M1, *(-x for x in E2M1)])
    scales = torch.tensor([448.0, 1.0, 0.5, 2.0**-6])  # of E4M3, the largest among them
    weight = (scales[:, None] * block).reshape(2, 32) * 2.0**-9
    torch.testing.assert_close(back(weight, "nvfp4"), weight, rtol=1e-6, atol=0)
    assert not back(torch.zeros(1, 16), "nvfp4").any()


def test_fp8_is_static_under_a_bound():
    values = torch.tensor([[1.0, 0.5, 0.4375, -0.0625]])  # three bits of mantissa, times 256
    assert back(values, "fp8", Bound(1)).tolist() == values.tolist()
    weight = drawn(8, 64) / 8
    same = (weight * 256).to(torch.float8_e4m3fn).float() / 256
    assert torch.equal(back(weight, "fp8", Bound(1)), same)
    largest = weight.abs().max()
    assert float(back(weight, "fp8").abs().max()) == pytest.approx(float(largest))
    assert not torch.equal(back(weight, "fp8"), same)


def test_bits_count_scales():
    found = {
        name: bits_per_weight(read_format(name), 128)
        for name in ("int8", "int4", "int4:32", "fp8", "nvfp4")
    }
    assert found == {"int8": 8.125, "int4": 4.125, "int4:32": 4.5, "fp8": 8, "nvfp4": 4.5}


@pytest.mark.parametrize("name", ["int9", "int", "int4:", "int4:0", "fp4", "int4:x"])
def test_an_unknown_format_is_one_line(name):
    with pytest.raises(UserError, match="unknown format"):
        read_format(name)


def test_a_group_must_divide_the_row():
    with pytest.raises(UserError, match="do not divide a row of 32"):
        quantize_(build("gpt", **SMALL), read_format("int4:24"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_matrix_of_the_layers_is_rounded_as_it_is_used_and_nothing_else(architecture):
    model = build(architecture, **SMALL)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = quantize_(model, read_format("int3"))
    after = model.state_dict()
    matrices = {name for name in before if name.startswith("blocks") and before[name].dim() == 2}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in matrices if name.endswith("weight")}
    for name in changed:  # state_dict has W as it is used: [d_out, d_in]
        torch.testing.assert_close(after[name], back(before[name], "int3"))
    assert found.weights == sum(before[name].numel() for name in changed)
    sums = [(after[n] - before[n]).square().sum() for n in changed]
    size = sum(before[n].square().sum() for n in changed)
    assert found.error == pytest.approx(math.sqrt(sum(sums) / size), rel=1e-4)


@pytest.mark.parametrize("architecture", ["ngpt", "angpt"])
def test_renormalised_weights_keep_their_constraint(architecture):
    norms = {}
    for renormalize in (False, True):
        model = build(architecture, **SMALL)
        quantize_(model, read_format("int2"), renormalize, roles=("matrix", "embedding", "head"))
        norms[renormalize] = torch.cat(
            [model.get_parameter(c.parameter).norm(dim=c.dim) for c in constraints(model)]
        )
    assert not torch.allclose(norms[False], torch.ones(()), atol=1e-3)
    if architecture == "ngpt":
        torch.testing.assert_close(norms[True], torch.ones_like(norms[True]))
    else:
        torch.testing.assert_close(norms[True], norms[False].clamp(max=1))


def test_embeddings_and_head_are_rounded_where_asked():
    model = build("ngpt", **SMALL)
    embedding, head = model.E_in.weight.clone(), model.E_out.weight.clone()
    quantize_(model, read_format("int4"), roles=("embedding", "head"))
    torch.testing.assert_close(model.E_in.weight.data, back(embedding, "int4"))
    torch.testing.assert_close(model.E_out.weight.data, back(head, "int4"))


def test_a_role_that_no_weight_has_is_one_line():
    model = build("normformer", **SMALL)  # its head is its embedding
    with pytest.raises(UserError, match=r"no weight of NormFormer has one of the roles \['head'\]"):
        quantize_(model, read_format("int4"), roles=("head",))


def test_torchao_s_int8_and_nvfp4_agree():
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
    from torchao.quantization import Int8WeightOnlyConfig
    from torchao.quantization import quantize_ as torchao_quantize_

    weight = drawn(32, 64)
    linear = torch.nn.Linear(64, 32, bias=False)
    linear.weight.data.copy_(weight)
    torchao_quantize_(linear, Int8WeightOnlyConfig())
    step = weight.abs().amax(1, keepdim=True) / 127
    assert ((linear.weight.dequantize() - back(weight, "int8")).abs() <= 1.1 * step).all()
    scale = per_tensor_amax_to_scale(weight.abs().max())
    theirs = NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=scale).dequantize(torch.float32)
    torch.testing.assert_close(theirs, back(weight, "nvfp4"), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("quantize")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("text.txt").write_text("The cat sat on the mat, and that was that.\n" * 100)
        for architecture in ("gpt", "ngpt"):
            Path("tiny.toml").write_text(
                tiny_recipe(architecture, lr=2e-2, steps=30, batch_tokens=256)
            )
            assert main(["train", "tiny.toml", "--out", architecture]) == 0
    return folder


def test_loss_against_bits_in_one_command(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    capsys.readouterr()
    argv = ["quantize", "a=gpt", "b=ngpt", "--formats", "int8", "int3", "int2:16", "nvfp4"]
    assert main([*argv, "--tokens", "512", "--out", "out", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads(Path("out/results.json").read_text()) == found
    (gpt,), (ngpt,) = (found["arms"][arm]["runs"] for arm in "ab")
    assert [entry["format"] for entry in gpt["formats"]] == ["int8", "int3", "int2:16", "nvfp4"]
    assert len(ngpt["formats"]) == 8  # each renormalised too
    for run in (gpt, ngpt):
        by_name = {e["format"]: e for e in run["formats"] if not e["renormalized"]}
        assert abs(by_name["int8"]["increase"]) < 0.01 < by_name["int2:16"]["increase"]
        assert by_name["int3"]["loss"] == pytest.approx(run["loss"] + by_name["int3"]["increase"])
        assert by_name["int8"]["error"] < by_name["nvfp4"]["error"] < by_name["int2:16"]["error"]
    assert "| b | int2:16 | 3.00 |" in Path("out/results.md").read_text()
    assert Path("out/quantize.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_of_a_text_with_the_embeddings(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    argv = ["quantize", "gpt", "--formats", "int4", "--data", "text.txt", "--embeddings"]
    assert main([*argv, "--out", "out-text"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    table = [row for row in rows if row[:1] == ["gpt"]]
    assert [row[:2] for row in table] == [["gpt", "fp32"], ["gpt", "int4"]]
    assert table[1][-1] == "–"  # nothing of GPT is constrained
    assert main(["quantize", "gpt", "--formats", "int1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_that_does_not_fit_is_refused_before_anything_is_scored(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    capsys.readouterr()
    monkeypatch.setattr("unitsphere.training.evaluate.text.evaluate_shards", None)
    argv = ["quantize", "gpt", "--out", "out-odd"]
    assert "gpt: int4:24 has 24 weights" in refused(capsys, *argv, "--formats", "int8", "int4:24")
    assert "no-run is not a run folder" in refused(capsys, *argv, "no-run", "--formats", "int8")


def test_all_runs_are_scored_on_the_text_of_standard_input(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    argv = ["quantize", "gpt", "ngpt", "--formats", "int8", "--json"]
    assert main([*argv, "--data", "text.txt", "--out", "out-file"]) == 0
    from_file = json.loads(capsys.readouterr().out)["arms"]
    text = Path("text.txt").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main([*argv, "--data", "-", "--out", "out-stdin"]) == 0
    assert json.loads(capsys.readouterr().out)["arms"] == from_file


def test_runs_of_other_data_or_another_tokenizer_are_flagged(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    for name, key, value in (
        ("held-out", "val_fraction", "0.3"),
        ("bpe", "tokenizer", "bpe:300"),
    ):
        argv = ["train", "tiny.toml", f"--data.{key}", value, "--train.steps", "1", "--out", name]
        assert main(argv) == 0
    capsys.readouterr()
    argv = ["quantize", "gpt", "ngpt", "--formats", "int8", "--out", "out-flags"]
    data = "[other-data] held-out has other data than gpt: their losses do not compare"
    tokenizer = "[other-tokenizer] bpe has another tokenizer than gpt: their losses do not compare"
    for more, said in (
        ([], []),
        (["held-out", "bpe"], [data, tokenizer]),
        (["held-out", "bpe", "--data", "text.txt"], [tokenizer]),
    ):
        assert main([*argv, *more]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if line.startswith("[")] == said
        flags = json.loads(Path("out-flags/results.json").read_text())["flags"]
        assert [f"[{flag['name']}] {flag['text']}" for flag in flags] == said


def test_the_page_of_earlier_results_has_no_flags(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["quantize", "gpt", "--formats", "int8", "--out", "out-earlier"]) == 0
    results = Path("out-earlier/results.json")
    found = json.loads(results.read_text())
    del found["flags"]
    results.write_text(json.dumps(found))
    assert page_of(results.parent).caveats == []
