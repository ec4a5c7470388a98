"""A run folder: what it holds, and every way in which a run is refused."""

import dataclasses
import errno
import json
import math
import threading
from contextlib import nullcontext

import pytest
import torch
from run_folders import figures, weights

from unitsphere.config import to_dict
from unitsphere.data.config import DataConfig
from unitsphere.data.prepare import prepare
from unitsphere.errors import Preempted, RunFailed, UserError
from unitsphere.models.constraint import constraints
from unitsphere.models.registry import ARCHITECTURES
from unitsphere.studies.core.jobs import DIVERGED
from unitsphere.training import run
from unitsphere.training.config import run_config_type
from unitsphere.training.corpus import open_corpus
from unitsphere.training.evaluate import text as evaluate
from unitsphere.training.folder import locked
from unitsphere.training.load import load_run
from unitsphere.training.log import read_metrics
from unitsphere.training.monitor import RunMonitor
from unitsphere.training.recipes import load_recipe
from unitsphere.training.resolve import resolve
from unitsphere.training.run import train


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """A finished run of ngpt."""
    out = tmp_path_factory.mktemp("runs") / "run"
    train(tiny("ngpt"), out, sampler=lambda *_: "sampled")
    return out


def test_a_run_folder_holds_what_the_contract_says(finished):
    names = {path.name for path in finished.iterdir()}
    assert names == {
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "checkpoints",
        "tensorboard",
        "samples.txt",
        "tokenizer.json",
    }
    assert [p.name for p in sorted((finished / "checkpoints").iterdir())] == [
        "step-00000006",
        "step-00000008",
    ]
    environment = json.loads((finished / "environment.json").read_text())
    assert {"command", "commit", "cpu", "device", "packages", "python", "threads"} <= set(
        environment
    )
    assert environment["packages"]["torch"]


def test_records_have_the_fields_of_the_contract_and_each_step_once(finished):
    records = read_metrics(finished)
    assert [r["step"] for r in records] == list(range(1, 9))
    for record in records:
        assert {"step", "tokens", "time", "loss", "lr", "grad_norm", "tokens_per_second"} <= set(
            record
        )
        assert record["tokens"] == record["step"] * 128
        assert "mfu" not in record  # the processor's peak is not known
    assert [r["step"] for r in records if "val_loss" in r] == [4, 8]
    last = records[-1]
    assert last["val_bits_per_byte"] == pytest.approx(last["val_loss"] / math.log(2))
    assert last["loss"] < records[0]["loss"]


def test_the_saved_config_is_resolved_and_reloads_to_the_same_run(finished, tiny, tmp_path):
    saved = load_recipe(finished / "config.json")
    assert saved.model.vocab_size == 256
    assert json.loads((finished / "config.json").read_text()) == to_dict(saved)
    train(saved, tmp_path / "again")
    assert figures(tmp_path / "again") == figures(finished)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_is_saved_satisfies_the_constraints(architecture, tiny, tmp_path):
    train(tiny(architecture, steps=3, lr=0.3), tmp_path / "run")
    model = load_run(tmp_path / "run", "cpu").model
    for constraint in constraints(model):
        norms = model.get_parameter(constraint.parameter).norm(dim=constraint.dim)
        assert norms.max() <= 1 + 1e-6
        if constraint.kind == "sphere":
            assert norms.min() >= 1 - 1e-6


def test_a_loaded_run_has_the_trained_weights(finished):
    model, tokenizer, config = load_run(finished, "cpu")
    assert tokenizer.decode(tokenizer.encode("größer")) == "größer"
    assert config.architecture == "ngpt"
    trained = weights(finished)
    for name, tensor in model.state_dict().items():
        assert torch.equal(trained[f"model.{name}"], tensor)


def test_loading_what_is_no_run_is_one_line(tmp_path, tiny, finished):
    with pytest.raises(UserError, match="is not a run folder"):
        load_run(tmp_path)
    (tmp_path / "config.json").write_text((finished / "config.json").read_text())
    with pytest.raises(UserError, match=r"config\.json is not a run folder: it is a file; give"):
        load_run(tmp_path / "config.json")
    with pytest.raises(UserError, match="has no complete checkpoint"):
        load_run(tmp_path)


def test_another_config_is_refused_and_names_the_keys(finished, tiny):
    config = tiny("ngpt", lr=0.02, steps=9)
    with pytest.raises(UserError, match=r"optim.lr: 0.01 -> 0.02; train.steps: 8 -> 9") as caught:
        train(config, finished)
    assert "--out" in str(caught.value)
    with pytest.raises(UserError, match="architecture: 'ngpt' -> 'gpt'"):
        train(tiny("gpt"), finished)


def test_keys_that_do_not_change_what_is_learned_may_differ(finished, tiny):
    config = tiny("ngpt", log_every=3, save_every=5, keep_last=1)
    assert not train(config, finished).trained


def test_a_run_that_continues_keeps_its_new_logging_settings(tiny, tmp_path):
    def interrupt(*_):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        train(tiny(sample_every=5), tmp_path / "run", sampler=interrupt)
    train(tiny(log_every=2), tmp_path / "run")
    assert [r["step"] for r in figures(tmp_path / "run")] == [1, 2, 3, 4, 6, 8]
    assert load_recipe(tmp_path / "run/config.json").train.log_every == 2
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert [entry["step"] for entry in environment["resumed"]] == [3]


def test_a_folder_that_is_no_run_is_refused_and_left_alone(tiny, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty and holds no run"):
        train(tiny(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(UserError, match=r"cannot use .*thesis\.txt as folder: it is a file"):
        train(tiny(), tmp_path / "thesis.txt")


def test_two_processes_do_not_train_in_one_folder(tiny, tmp_path):
    with (
        locked(tmp_path / "run"),
        pytest.raises(UserError, match="another process trains in"),
    ):
        train(tiny(), tmp_path / "run")


def test_a_file_system_without_locks_is_told(tiny, tmp_path, monkeypatch):
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(UserError, match=r"cannot lock .*run \(No locks available\)"):
        train(tiny(), tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.batch_tokens": 100}, "not a multiple of data.context 32: 96"),
        ({"train.device": "gpu"}, "'gpu' is not supported: use cpu, cuda"),
        ({"train.device": "cuda:99"}, "usable GPUs"),
        ({"model.n_heads": 3}, "not divisible"),
        ({"model.vocab_size": 100}, "vocab_size 100 is smaller than the tokenizer's 256"),
        ({"data.source": "nowhere.txt"}, "nowhere.txt"),
        ({"data.source": "-"}, "standard input"),
        ({"data.field": "txt"}, "txt"),
        ({"data.context": 4096, "train.batch_tokens": 4096}, "fewer than"),
    ],
)
def test_what_cannot_be_trained_is_one_line_and_leaves_no_folder(changes, message, tiny, tmp_path):
    config = tiny()
    for key, value in changes.items():
        section, name = key.split(".")
        part = dataclasses.replace(getattr(config, section), **{name: value})
        config = dataclasses.replace(config, **{section: part})
    with pytest.raises(UserError, match=message) as caught:
        train(config, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_data_that_changed_under_a_run_are_refused(tiny, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("one line of text\n" * 500)
    config = tiny(sample_every=5)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, source=str(text)))

    def interrupt(*_):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        train(config, tmp_path / "run", sampler=interrupt)
    text.write_text("another line of text\n" * 500)
    with pytest.raises(UserError, match="the data are not those"):
        train(config, tmp_path / "run")


@pytest.mark.parametrize("log_every", [1, 100])
def test_a_loss_that_is_no_number_stops_and_names_the_step(log_every, tiny, tmp_path):
    def spoil(model, *_):
        with torch.no_grad():
            model.get_parameter("norm.gain").fill_(math.nan)
        return ""

    config = tiny("gpt", sample_every=5, save_every=3, log_every=log_every, eval_every=0)
    with pytest.raises(UserError, match=r"step 6: loss nan.*optim.lr") as caught:
        train(config, tmp_path / "run", sampler=spoil)
    assert "\n" not in str(caught.value)
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000003"]


def test_a_damaged_checkpoint_is_passed_over_and_said(tiny, tmp_path, capsys):
    config = tiny()
    train(config, tmp_path / "whole")
    train(config, tmp_path / "run")
    (tmp_path / "run/checkpoints/step-00000008/state.json").write_text("{}")
    capsys.readouterr()
    train(config, tmp_path / "run")
    assert "step-00000008 is damaged (state.json" in capsys.readouterr().err.splitlines()[0]
    assert figures(tmp_path / "run") == figures(tmp_path / "whole")


def test_with_damaged_checkpoints_alone_nothing_starts_over_in_silence(tiny, tmp_path):
    train(tiny(keep_last=1), tmp_path / "run")
    (tmp_path / "run/checkpoints/step-00000008/COMPLETE").unlink()
    with pytest.raises(UserError, match="no other is complete"):
        train(tiny(keep_last=1), tmp_path / "run")


def test_weights_stored_in_bf16_train_and_the_log_advises_against(tiny, tmp_path, capsys):
    train(tiny("ngpt", precision="bf16-storage", steps=2), tmp_path / "run")
    assert "not recommended" in capsys.readouterr().err
    assert {p.dtype for p in load_run(tmp_path / "run", "cpu").model.parameters()} == {
        torch.bfloat16
    }


def test_a_run_in_a_thread_leaves_the_signals_alone(tiny, tmp_path):
    results = []
    worker = threading.Thread(target=lambda: results.append(train(tiny(), tmp_path / "run")))
    worker.start()
    worker.join()
    assert results[0].step == 8


def test_accumulated_runs_agree_with_whole_batches(tiny, tmp_path):
    whole = train(tiny("angpt"), tmp_path / "whole")
    parts = train(tiny("angpt", micro_batch=3), tmp_path / "parts")
    assert parts.loss == pytest.approx(whole.loss, rel=1e-4)
    assert run_config_type("angpt") is type(tiny("angpt"))


def test_a_run_validates_as_many_sequences_at_once_as_it_trains(tiny, tmp_path, monkeypatch):
    """On a GPU as many as are predicted to fit: a whole batch may not."""
    rows, losses = [], evaluate.losses

    def counted(model, batch):
        rows.append(len(batch))
        return losses(model, batch)

    monkeypatch.setattr(evaluate, "losses", counted)
    monkeypatch.setattr(run, "rows_at_once", lambda config, plan: 1)
    train(tiny(steps=1), tmp_path / "run")
    assert set(rows) == {1}
    assert json.loads((tmp_path / "run/config.json").read_text())["train"]["micro_batch"] == 1


def test_a_prepared_folder_brings_its_own_tokenizer(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("def f(x):\n    return x\n" * 400)
    folder = prepare(str(text), "bpe:300", tmp_path / "shards", progress=False)
    config = dataclasses.replace(
        load_recipe("quickstart/ngpt"), data=DataConfig(source=str(folder))
    )
    resolved = resolve(config, None)
    assert resolved.data.tokenizer == str(folder / "tokenizer.json")
    assert resolved.model.vocab_size == 320
    assert open_corpus(resolved).tokenizer.vocab_size <= 300


def test_a_shard_that_changes_under_a_run_stops_it_with_its_name(tiny, tmp_path):
    """It continues when the shard is restored, and batches read ahead or not are the same."""
    config = tiny(sample_every=4)
    folder = prepare(config.data.source, "bytes", tmp_path / "shards", progress=False)
    data = dataclasses.replace(config.data, source=str(folder), prefetch=0)
    config = dataclasses.replace(config, data=data)
    shard = folder / "train-00000.bin"
    whole, content = (
        train(config, tmp_path / "whole", sampler=lambda *_: "").out,
        shard.read_bytes(),
    )

    def change(*_):
        shard.write_bytes(content)
        return ""

    with pytest.raises(UserError, match=r"train-00000\.bin was changed while it was in use"):
        train(config, tmp_path / "run", sampler=change)
    ahead = dataclasses.replace(config, data=dataclasses.replace(data, prefetch=3))
    train(ahead, tmp_path / "run", sampler=lambda *_: "")
    assert figures(tmp_path / "run") == figures(whole)


def strictly(line):
    def refuse(name):
        raise AssertionError(name)

    return json.loads(line, parse_constant=refuse)


def test_weights_that_are_no_numbers_are_not_saved(tiny, tmp_path):
    def spoil(model, *_):
        with torch.no_grad():
            model.get_parameter("norm.gain").fill_(math.inf)
        return ""

    config = tiny("gpt", sample_every=6, save_every=3, eval_every=0)
    with pytest.raises(RunFailed, match=r"step 6: weights that are NaN or infinite; start a new"):
        train(config, tmp_path / "run", sampler=spoil)
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000003"]
    assert DIVERGED.search("step 6: weights that are NaN or infinite; start")


def test_a_run_that_ends_in_nan_is_no_success(tiny, tmp_path, monkeypatch):
    figures = {"val_loss": math.nan, "val_bits_per_byte": math.inf}
    monkeypatch.setattr(RunMonitor, "validate", lambda self: figures)
    with pytest.raises(RunFailed, match=r"step 8: validation loss nan; start a new run") as caught:
        train(tiny(eval_every=0), tmp_path / "run")
    assert DIVERGED.search(str(caught.value))
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()][-1:] != ["step-00000008"]
    records = [strictly(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    assert records[-1]["step"] == 8
    assert "val_loss" not in records[-1]

    stopping = tiny(eval_every=0, stop_at_divergence=True)
    assert math.isnan(train(stopping, tmp_path / "stopping").val_loss)
    assert read_metrics(tmp_path / "stopping")[-1]["diverged"] == 8
    assert not train(stopping, tmp_path / "stopping").trained


def test_a_model_larger_than_the_memory_is_refused_before_it_is_built(tiny, tmp_path):
    config = tiny()
    config = dataclasses.replace(
        config, model=dataclasses.replace(config.model, vocab_size=99999999999)
    )
    with pytest.raises(UserError, match=r"parameters needs at least .* GiB"):
        train(config, tmp_path / "run")


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_that_no_generator_takes_is_refused(seed, tiny):
    with pytest.raises(UserError, match=r"train\.seed must"):
        tiny(seed=seed)


@pytest.mark.parametrize(("steps", "limit"), [(8, None), (4000, "1s")])
def test_a_run_says_how_often_it_reads_its_data(tiny, tmp_path, capsys, steps, limit):
    config = resolve(tiny(steps=steps, time_limit=limit), None)
    times = steps * config.train.batch_tokens / open_corpus(config).batches.shards.n_tokens
    with pytest.raises(Preempted) if limit else nullcontext():
        train(config, tmp_path / "run")
    said = f"reads the training data {times:.3g} times" in capsys.readouterr().err
    assert said is (times > 1) is bool(limit)
