"""Kernels, generation and data: what is reported of very little."""

import dataclasses
import json

import pytest
import torch

from unitsphere.bench import kernels, optimizers
from unitsphere.bench.arms import ON_CPU
from unitsphere.bench.data import bench_data
from unitsphere.bench.generate import (
    Load,
    Times,
    bench_generation,
    built,
    check_longer,
    llama,
    random_prompts,
)
from unitsphere.bench.kernels import CASES, Shape, bench_kernels
from unitsphere.bench.loss import Head, bench_loss
from unitsphere.bench.optimizers import bench_optimizers
from unitsphere.cli import main
from unitsphere.errors import UserError
from unitsphere.kernels.registry import REGISTRY
from unitsphere.training.optim.registry import OPTIMIZERS

TINY = dataclasses.replace(
    ON_CPU, d_model=16, n_layers=1, n_heads=2, context=8, tokens=16, vocab_size=32, device="cpu"
)
SHAPE = Shape(tokens=32, d=64, d_k=16, dtype=torch.float32, device=torch.device("cpu"))


def test_every_registered_kernel_has_a_case_that_it_takes():
    assert set(CASES) == set(REGISTRY)
    for name, case in CASES.items():
        made = case(SHAPE)
        assert REGISTRY[name].refusal(*made.arguments) is None
        assert made.moved > 0


@pytest.mark.parametrize("name", ["lerp_norm", "rope_norm"])
def test_the_bytes_are_those_of_what_goes_in_and_comes_out(name):
    case = CASES[name](SHAPE)
    large = [t for t in case.leaves if t.numel() > 64]
    out = REGISTRY[name].plain(*case.arguments)
    assert case.moved == 4 * (out.numel() + sum(t.numel() for t in large))


def test_kernels_are_reported_as_shares_of_a_copy(monkeypatch):
    monkeypatch.setattr(kernels, "copy_rate", lambda device: 1e9)
    monkeypatch.setattr(kernels, "own_time", lambda call, device: 2.0 + 0 * (call() is None))
    report = bench_kernels(SHAPE, rounds=1)
    json.dumps(report)
    found = {(row["name"], row["pass"]) for row in report["kernels"]}
    ways = {(name, way) for name in ("lerp_norm", "rope_norm") for way in ("forward", "backward")}
    assert found == ways | {("adam_project_", "forward")}
    for row in report["kernels"]:
        assert row["ms"] == 2
        assert row["share_of_copy"] == pytest.approx(row["bytes"] / 2e-3 / 1e9)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(UserError, match="--d_k 128 does not divide --d_model 64"):
        bench_kernels(dataclasses.replace(SHAPE, d_k=128), rounds=1)


def test_the_loss_in_chunks_needs_less_memory_than_the_plain_one():
    head = Head(tokens=8192, d=8, vocab_size=512, bf16=False, device=torch.device("cpu"))
    report = bench_loss(head, rounds=1)
    paths = report["paths"]
    assert report["logits_bytes"] == 4 * 8192 * 512
    assert paths["plain"]["peak_bytes"] > 2 * report["logits_bytes"]
    assert paths["chunked"]["peak_bytes"] < 0.6 * report["logits_bytes"]  # two chunks of half
    assert set(report["refused"]) | set(paths) == {"plain", "chunked", "fused", "torch", "liger"}
    assert "GPU" in report["refused"]["liger"]


def test_generation_is_reported_by_load():
    loads = [Load(1, 4), Load(3, 4)]
    report = bench_generation(["gpt-plus", "ngpt"], TINY, loads, tokens=16, rounds=2)
    json.dumps(report)
    assert [(load["batch"], load["context"]) for load in report["loads"]] == [(1, 4), (3, 4)]
    for load in report["loads"]:
        arm = load["arms"]["ngpt"]
        assert arm["tokens_per_second"] == pytest.approx(1e3 * load["batch"] / arm["ms_a_token"])
        assert set(load["ratios"]) == {"ngpt/gpt-plus"}
    prompts = random_prompts(Load(3, 4), 32, 0)
    assert (len(prompts), len(prompts[0])) == (3, 4)
    assert prompts != random_prompts(Load(3, 4), 32, 1)
    assert not built("ngpt", TINY, torch.device("cpu")).training


def test_an_arm_that_writes_no_text_has_no_generation():
    with pytest.raises(UserError, match="objective mlm, and writes no text"):
        built("quickstart/ngpt-mlm", TINY, torch.device("cpu"))


def test_tokens_that_take_no_time_have_no_rate():
    times = {"ngpt": Times([2.0, 2.0, 2.0], [-0.1, 0.1, 0.2])}
    check_longer(times, 4)
    times["gpt"] = Times([2.0, 2.0, 2.0], [-0.2, -0.1, 0.2])
    with pytest.raises(UserError, match=r"gpt: 4 tokens after the first .* give --new more"):
        check_longer(times, 4)


def test_muon_is_timed_once_on_a_gpu_which_batches_its_matrices_in_any_case():
    on_gpu = optimizers.default_arms("cuda:1")
    assert [name for name in on_gpu if name.startswith("muon:")] == []
    assert set(on_gpu) == set(OPTIMIZERS)


def test_each_optimizer_s_step_is_reported_beside_the_first():
    arms = optimizers.default_arms("cpu")
    report = bench_optimizers(arms, "gpt-plus", TINY, rounds=2, steps=1)
    json.dumps(report)
    assert set(report["optimizers"]) == {*OPTIMIZERS, "muon:muon.batched=true"}
    assert set(report["ratios"]) == {f"{n}/adamw" for n in arms if n != "adamw"}
    state = {name: figures["state_bytes"] for name, figures in report["optimizers"].items()}
    assert state["muon"] < state["adamw"] < state["soap"]
    assert [row[0] for row in optimizers.rows(report)] == list(arms)
    assert "gpt-plus with 1 layers of 16" in optimizers.notes(report)[0]
    with pytest.raises(UserError, match="unknown key 'optim"):
        bench_optimizers(["adamw:rate=1"], "gpt-plus", TINY, rounds=1, steps=1)


def test_data_is_reported_as_a_share_of_a_step(tmp_path):
    text = tmp_path / "text.jsonl"
    text.write_text("".join(f'{{"text": "the {n} brown foxes"}}\n' for n in range(50)))
    report = bench_data(str(text), "bytes", "ngpt", TINY, batches=3, steps=2)
    json.dumps(report)
    loader = report["loader"]
    assert report["prepare"]["bytes"] == sum(len(f"the {n} brown foxes") for n in range(50))
    assert loader["share_of_step"] == pytest.approx(loader["ms"] / loader["step_ms"])


@pytest.mark.parametrize(
    "command",
    [
        "bench loss --tokens 64 --d_model 16 --vocab 512 --rounds 1 --device cpu",
        "bench kernels --tokens 32 --d_model 64 --rounds 1 --device cpu",
        "bench generate --d_model 16 --layers 1 --heads 2 --vocab 32 --batch 1 --context 4 "
        "--new 16 --rounds 1 --device cpu --arms gpt-plus ngpt",
        "bench data --source TEXT --tokenizer bytes --tokens 16 --context 8 --batches 2 --steps 1 "
        "--device cpu",
    ],
)
def test_each_part_prints_a_table_or_json(command, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "copy_rate", lambda device: 1e9)
    text = tmp_path / "text.jsonl"
    text.write_text("".join(f'{{"text": "the {n} brown foxes"}}\n' for n in range(50)))
    words = [str(text) if word == "TEXT" else word for word in command.split()]
    assert main(words) == 0
    assert len(capsys.readouterr().out.splitlines()) > 3
    assert main([*words, "--json"]) == 0
    assert "environment" in json.loads(capsys.readouterr().out)


def test_a_mistake_in_a_part_is_one_line(capsys):
    for words in ("kernels --rounds 0", "generate --batch 4 0", "data --source nowhere.txt"):
        assert main(["bench", *words.split()]) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith("unitsphere: error: ")


def test_llama_is_of_the_arms_shape_and_writes_as_many_tokens():
    write = llama(TINY, torch.device("cpu"))
    found = write([[1, 2, 3], [4, 5, 6]], 5)
    assert found.shape == (2, 8)
    assert found[:, :3].tolist() == [[1, 2, 3], [4, 5, 6]]
    report = bench_generation(["llama", "ngpt"], TINY, [Load(2, 3)], tokens=16, rounds=2)
    assert set(report["loads"][0]["ratios"]) == {"ngpt/llama"}
