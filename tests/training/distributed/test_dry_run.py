"""Layouts without their machines: shards, memory and FLOPs from shapes alone."""

import dataclasses
import json
import math
from functools import partial

import pytest
import torch

from unitsphere.bench.arms import RandomBatches
from unitsphere.bench.measure import peak_of
from unitsphere.cli import main
from unitsphere.errors import UserError
from unitsphere.models.config import RecurrenceConfig
from unitsphere.models.registry import build, build_from
from unitsphere.ops.chunked_loss import CHUNK_BYTES
from unitsphere.ops.loss import linear_cross_entropy
from unitsphere.training.checkpoint import store as checkpoint
from unitsphere.training.cost import cost, dry_run
from unitsphere.training.distributed.layout import SINGLE, Degrees, ParallelConfig, degrees
from unitsphere.training.distributed.parallelize import gathered_dtype
from unitsphere.training.forecast import fitting_rows, forecast, head_bytes, size
from unitsphere.training.monitor import due
from unitsphere.training.optim import OptimConfig
from unitsphere.training.plan import build_trainer
from unitsphere.training.resolve import resolve
from unitsphere.training.step import update


@pytest.fixture(autouse=True)
def _no_long_measurement(monkeypatch):
    monkeypatch.setattr("unitsphere.training.cost.SAMPLE", 1e6)


def laid_out(tiny, world, precision="fp32", **parallel):
    rows = 256 // parallel.get("tp", 1)
    config = tiny("ngpt", batch_tokens=32 * rows, precision=precision)
    config = dataclasses.replace(config, parallel=ParallelConfig(**parallel))
    return dry_run(resolve(config, None), world)


@pytest.mark.parametrize(
    "parallel",
    [{"dp_shard": 256}, {"dp_replicate": 8, "dp_shard": 32}, {"dp_shard": 128, "tp": 2}, {}],
)
def test_256_processes_hold_what_one_would(tiny, parallel):
    found, alone = laid_out(tiny, 256, **parallel), laid_out(tiny, 1)
    assert math.prod(found.degrees) == 256
    assert found.cost.parameters == alone.cost.parameters
    assert [s.whole for s in found.shards] == [s.whole for s in alone.shards]
    cut = found.degrees.dp_shard > 1
    for shard in found.shards:
        parts = found.degrees.dp_shard * (found.degrees.tp if "tp" in shard.placements else 1)
        assert math.prod(shard.part) * parts >= math.prod(shard.whole)
        assert ("dp_shard" in shard.placements) == (cut and shard.name.endswith(".weight"))
    assert (found.forecast.weights < alone.forecast.weights) == cut


def test_what_is_held_is_what_was_predicted(tiny):
    config = resolve(tiny("ngpt"), None)
    model = build_from("ngpt", config.model)
    found = forecast(config, model, SINGLE)
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    assert (found.weights, found.gradients, found.optimizer) == (held, held, 2 * held)
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    tokens = torch.zeros((4, config.data.context), dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        features = model.features(tokens)
    for parameter in model.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    assert found.activations == pytest.approx(sum(kept.values()), rel=0.1)
    assert features.requires_grad


def test_blocks_are_gathered_in_bf16(tiny):
    found = {how: laid_out(tiny, 2, dp_shard=2, precision=how) for how in ("fp32", "bf16")}
    wide, narrow = (found[how].forecast.gathered for how in ("fp32", "bf16"))
    assert wide // 2 < narrow < wide  # embedding and head are not
    for settings, dtype in (({}, torch.bfloat16), ({"normalize_in_forward": True}, None)):
        model = build("ngpt", vocab_size=64, d_model=32, n_heads=2, device="meta", **settings)
        assert gathered_dtype(model, "bf16") == dtype
        assert gathered_dtype(model, "fp8") is None


@pytest.mark.parametrize("architecture", ["gpt", "ngpt"])
@pytest.mark.parametrize(("rows", "width"), [(4, 32), (24, 640)])
def test_the_head_takes_what_is_forecast(tiny, architecture, rows, width):
    """Few tokens have fewer logits than a chunk may have, a wide model has larger chunks."""
    vocabulary, cpu = 4096, torch.device("cpu")
    config = tiny(architecture, batch_tokens=32 * rows)
    sizes = dataclasses.replace(config.model, d_model=width, vocab_size=vocabulary)
    config = dataclasses.replace(config, model=sizes)
    model = build_from(architecture, config.model)
    found = head_bytes(config, model, SINGLE, rows, cpu)
    h = torch.randn(rows, 32, width, requires_grad=True)
    targets = torch.randint(vocabulary, (rows, 32))
    head = model.head()

    def call() -> None:
        linear_cross_entropy(h, head.weight, targets, head.scale).backward()

    weight = 4 * head.weight.numel()  # its gradient is forecast among the gradients
    assert 0.75 * (found - weight) <= peak_of(call, cpu) <= 1.05 * (found + weight)
    chunk = CHUNK_BYTES["cpu"]
    assert (found < chunk) == (rows == 4)
    assert found > 4 * 32 * rows * vocabulary


def test_recomputing_keeps_less(tiny):
    kept = []
    for how in ("full", "selective", "none"):
        config = resolve(tiny("ngpt", recompute=how), None)
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, n_layers=12))
        kept.append(forecast(config, build_from("ngpt", config.model, "meta"), SINGLE).activations)
    assert kept[0] < kept[1] < kept[2]


def test_attention_dropout_is_forecast_as_a_gpu_s_kernels_keep_it(tiny):
    found = []
    for share in (0.0, 0.1):
        config = resolve(tiny("normformer"), None)
        model = dataclasses.replace(config.model, attention_dropout=share)
        config = dataclasses.replace(config, model=model)
        found.append(forecast(config, build_from("normformer", model, "meta"), SINGLE))
    assert found[0] == found[1]


def test_the_copy_by_which_a_step_is_undone_is_forecast(tiny):
    config = resolve(tiny("ngpt", on_spike="skip"), None)
    batches = RandomBatches(config.model.vocab_size, config.data.context, config.rows)
    trainer = build_trainer(config, batches)
    for step in range(2):
        update(trainer, step)
    kept = sum(tensor.nbytes for tensor in trainer.guard.kept.values() if tensor.dim())
    found = forecast(config, trainer.model, SINGLE)
    assert found.undo == kept == found.weights + found.optimizer
    plain = dataclasses.replace(config, train=dataclasses.replace(config.train, on_spike="stop"))
    assert forecast(plain, trainer.model, SINGLE).memory == found.memory - kept


def test_as_many_rows_as_fit(tiny):
    config = resolve(tiny("gpt", batch_tokens=32 * 12), None)
    model = build_from("gpt", config.model)
    whole = forecast(config, model, SINGLE)
    enough = whole.memory * 2
    assert fitting_rows(config, model, SINGLE, enough) == 12
    assert fitting_rows(config, model, SINGLE, 0) == 1
    less = whole.memory - whole.activations // 3
    assert fitting_rows(config, model, SINGLE, less) in (2, 3, 4, 6)


@pytest.mark.parametrize(
    ("parallel", "world", "parameters", "expected"),
    [
        ({}, 1, 10, Degrees(1, 1, 1)),
        ({}, 8, 10, Degrees(8, 1, 1)),
        ({}, 8, 10**9, Degrees(1, 8, 1)),
        ({"tp": 2}, 8, 10, Degrees(1, 4, 2)),
        ({"dp_shard": 4}, 8, 10, Degrees(2, 4, 1)),
        ({"dp_replicate": 2}, 8, 10, Degrees(2, 4, 1)),
        ({"dp_replicate": 2, "tp": 2}, 8, 10, Degrees(2, 2, 2)),
    ],
)
def test_degrees(parallel, world, parameters, expected):
    assert degrees(ParallelConfig(**parallel), world, parameters) == expected


def test_degrees_that_do_not_multiply_are_refused():
    with pytest.raises(UserError, match="is 6, but there are 4 processes"):
        degrees(ParallelConfig(dp_replicate=3, dp_shard=2), 4, 10)
    with pytest.raises(UserError, match="tp 2 is 2, but there are 1 processes"):
        degrees(ParallelConfig(tp=2), 1, 10)


@pytest.mark.parametrize("name", ["cp", "pp"])
def test_what_is_not_there_is_refused(name):
    with pytest.raises(UserError, match=r"is not supported.* use "):
        ParallelConfig(**{name: 2})


def test_sizes_that_do_not_fit_are_refused(tiny):
    with pytest.raises(UserError, match="tp 4 does not divide 2 heads of queries and 2 of keys"):
        laid_out(tiny, 4, tp=4)
    with pytest.raises(UserError, match=r"tp does not go with model.value_embeddings: take paral"):
        laid_out(partial(tiny, model={"value_embeddings": True}), 2, tp=2)
    with pytest.raises(
        UserError, match=r"tp does not go with model.bigram_rows: take parallel.dp_s"
    ):
        laid_out(partial(tiny, model={"bigram_rows": 50}), 2, tp=2)
    with pytest.raises(UserError, match="64 sequences an update, which 96 processes"):
        laid_out(tiny, 384, tp=4)


@pytest.mark.parametrize("mixer", ["gdn", "gla", "mamba2"])
def test_heads_of_a_recurrent_mixer_that_tp_does_not_divide_are_refused(mixer, tiny):
    """In GLA with an even width no matrix is that small, so only the heads say it."""
    model = {"mixers": mixer, "recurrence": RecurrenceConfig(n_heads=3, d_key=8, d_value=8)}
    with pytest.raises(UserError, match="tp 2 does not divide the 3 heads of a recurrent mixer"):
        laid_out(partial(tiny, model=model), 2, tp=2)


def test_a_constraint_that_does_not_fit_the_layout_is_refused(tiny):
    def muonh(*name, **settings):
        config = tiny(*name, model={"n_experts": 4}, **settings)
        return dataclasses.replace(config, optim=OptimConfig(name="muonh"))

    with pytest.raises(UserError, match="norm of each expert is not kept over several processes"):
        laid_out(muonh, 2, dp_shard=2)


EXPERTS = ["--model.n_experts=4", "--model.top_k=2"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([*EXPERTS, "--optim.constraint.kind=cpr"], "constraint 'cpr' has no form for experts"),
        ([*EXPERTS, "--train.precision=bf16-storage"], "needs routers and their bias in fp32"),
        (["--optim.constraint.kind=cpr", "--train.precision=bf16-storage"], "weights of 32 bits"),
        (["--train.precision=fp8", "--parallel.tp=2"], "fp8 does not go with parallel.tp"),
        (
            ["--model.zero_outputs=all", "--optim.name=muonh", "--optim.weight_decay=0"],
            "model.zero_outputs all starts matrices at zero",
        ),
        (
            ["--model.zero_outputs=branches", "--optim.constraint.kind=frobenius"],
            "starts matrices at zero, whose norm frobenius would keep",
        ),
    ],
)
def test_a_dry_run_refuses_what_a_run_refuses(options, why, source, tmp_path, capsys):
    recipe = "gpt-plus" if "zero_outputs" in options[0] else "ngpt"
    command = ["train", f"quickstart/{recipe}", "--data.source", str(source)]
    command += ["--data.tokenizer=bytes"]
    said = []
    for end in (["--dry_run", "--world_size=2"], ["--out", str(tmp_path / "run")]):
        assert main([*command, *options, *end]) == 2
        said.append(capsys.readouterr().err.splitlines()[-1])
    assert why in said[0]
    assert said[0] == said[1]
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_as_a_run_does_which_settings_have_no_effect(source, tmp_path, capsys):
    command = ["train", "quickstart/ngpt", "--data.source", str(source), "--data.tokenizer=bytes"]
    command += ["--model.n_layers=1", "--train.steps=2", "--train.batch_tokens=256"]
    command += ["--schedule.warmup=5", "--schedule.decay=0.5", "--optim.ns_steps=3"]
    command += ["--optim.average.decay=0.9"]
    for end in (["--dry_run"], ["--out", str(tmp_path / "run")]):
        assert main([*command, *end]) == 0
        said = capsys.readouterr().err
        for why in ("warm-up of 5 steps is longer", "schedule.decay 0.5 is for", "ns_steps 3 is"):
            assert why in said
        assert "optim.average.decay 0.9 is for optim.average.kind ema" in said


def test_a_dry_run_refuses_the_folder_that_a_run_refuses(source, tmp_path, capsys):
    train = ["train", "quickstart/ngpt", "--data.source", str(source), "--data.tokenizer=bytes"]
    train += ["--model.n_layers=1", "--train.steps=1", "--train.batch_tokens=256"]
    run, other, file = tmp_path / "run", tmp_path / "other", tmp_path / "file"
    other.mkdir()
    for path in (other / "mine.txt", file):
        path.write_text("mine")
    assert main([*train, "--out", str(run)]) == 0
    assert main([*train, "--out", str(run), "--dry_run"]) == 0
    for out, changed, why in (
        (run, "--train.seed=5", "holds a run of another config"),
        (other, "--train.seed=0", "is not empty and holds no run"),
        (file, "--train.seed=0", "it is a file"),
    ):
        said = []
        for end in ([], ["--dry_run"]):
            capsys.readouterr()
            assert main([*train, changed, "--out", str(out), *end]) == 2
            said.append(capsys.readouterr().err)
        assert why in said[0]
        assert said[0] == said[1]


@pytest.mark.parametrize(
    ("save_every", "keep_every", "keep_last"),
    [(0, None, 2), (3, None, 2), (5, None, 9), (0, 4, 1), (3, 4, 2), (2, 4, 3), (5, 5, 1)],
)
def test_the_disk_holds_the_checkpoints_that_a_run_keeps(
    tiny, tmp_path, save_every, keep_every, keep_last
):
    config = tiny(
        "ngpt", steps=12, save_every=save_every, keep_every=keep_every, keep_last=keep_last
    )
    for step in range(1, 13):
        if step == 12 or due(step, save_every) or due(step, keep_every or 0):
            checkpoint.folder_of(tmp_path, step).mkdir()
            checkpoint.prune(checkpoint.folder_of(tmp_path, step), keep_last, keep_every)
    one = cost(resolve(tiny("ngpt", steps=12, save_every=0, keep_last=1), None))
    kept = len(checkpoint.folders(tmp_path))
    assert cost(resolve(config, None)).disk == kept * one.disk


def test_the_command(capsys):
    command = ["train", "quickstart/ngpt", "--data.tokenizer", "bytes", "--dry-run"]
    sizes = ["--world-size", "256", "--train.batch_tokens", "65536", "--parallel.dp_shard=256"]
    assert main([*command, *sizes, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["world_size"], found["dp_shard"], found["sequences_per_process"]) == (256, 256, 1)
    assert found["step_flops"] > 0
    assert found["total_flops"] == 240 * found["step_flops"]
    assert "assumed: 40% of the fp32 peak" in found["throughput"]["how"]
    assert found["hours"] > 0
    assert found["disk"] > found["parameters"] * 12
    assert main([*command, *sizes]) == 0
    said = capsys.readouterr().out
    assert " FLOPs in all" in said
    assert f"mean learning rate {found['schedule_area']:.4f} of its peak" in said
    assert " of training (assumed: " in said
    assert "256 processes: dp_replicate 1 · dp_shard 256 · tp 1; sequences per process: 1" in said
    assert "blocks.0.attention.W_q.weight" in said
    assert size(found["memory"]["total"]) in said
    assert "first rank's shard" in said
    assert main([*command, "--world_size", "1"]) == 0
    assert capsys.readouterr().out.startswith("1 process: ")
    assert main(["train", "quickstart/ngpt", "--schedule.kind=wsd", "--schedule.area"]) == 0
    assert capsys.readouterr().out.startswith("schedule.area 0.90")
    assert main(["train", "quickstart/ngpt", "--world-size", "4"]) == 2
    assert main([*command, "--world-size", "four"]) == 2
