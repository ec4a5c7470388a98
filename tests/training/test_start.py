"""Runs that start with another run's weights, and finished runs that are trained longer."""

import dataclasses
import json
import shutil

import pytest
import torch
from run_folders import KilledError, die, figures, weights
from safetensors.torch import load_file, save_file

from unitsphere.cli import main
from unitsphere.errors import UserError
from unitsphere.models.constraint import constraints
from unitsphere.training.checkpoint.store import MARKER, fingerprints
from unitsphere.training.corpus import open_corpus
from unitsphere.training.folder import add_evaluation, read_evaluations
from unitsphere.training.load import chosen_checkpoint, last_state, load_run
from unitsphere.training.optim.schedule import ScheduleConfig, steps_alike
from unitsphere.training.plan import build_trainer
from unitsphere.training.run import train


def scheduled(config, kind="constant", **schedule):
    return dataclasses.replace(config, schedule=ScheduleConfig(kind=kind, **schedule))


def same_run(one, other):
    assert figures(one) == figures(other)
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def first(tiny, tmp_path_factory):
    """A finished run of 4 steps at a constant rate."""
    out = tmp_path_factory.mktemp("first") / "run"
    train(scheduled(tiny("ngpt", steps=4, save_every=2)), out)
    return out


def start_of(config, run):
    return dataclasses.replace(config, init=str(run))


def test_a_run_starts_with_the_weights_of_another(tiny, first, tmp_path):
    config = start_of(tiny("ngpt", steps=2, seed=1), first)
    train(config, tmp_path / "new")
    document = json.loads((tmp_path / "new" / "environment.json").read_text())
    assert document["init"]["step"] == 4
    assert document["init"]["run"] == str(first)
    assert json.loads((tmp_path / "new" / "config.json").read_text())["init"] == str(first)
    last, random = figures(first)[-1]["loss"], figures(first)[0]["loss"]
    assert abs(figures(tmp_path / "new")[0]["loss"] - last) < abs(random - last) / 2


def constrained(config, kind):
    constraint = dataclasses.replace(config.optim.constraint, kind=kind)
    return dataclasses.replace(
        config, optim=dataclasses.replace(config.optim, constraint=constraint)
    )


def test_the_constraint_holds_for_the_first_weights(tiny, tmp_path):
    """Weights of a run without a constraint are projected before the first step."""
    train(constrained(tiny("ngpt", steps=2, lr=0.1), "none"), tmp_path / "free")
    config = load_run(tmp_path / "free", "cpu").config
    batches = open_corpus(config).batches
    newest = chosen_checkpoint(tmp_path / "free")

    def lengths(kind):
        model = build_trainer(constrained(config, kind), batches, start=newest).model
        of = [(model.get_parameter(c.parameter), c.dim) for c in constraints(model)]
        return torch.cat([weight.detach().norm(dim=dim).flatten() for weight, dim in of])

    assert (lengths("none") - 1).abs().max() > 1e-3
    assert (lengths("declared") - 1).abs().max() < 1e-6


def test_a_norm_that_is_kept_is_that_of_the_first_weights(tiny, tmp_path):
    config = constrained(tiny("gpt", steps=2, lr=0.1), "frobenius")
    train(constrained(config, "none"), tmp_path / "free")
    train(start_of(config, tmp_path / "free"), tmp_path / "new")
    before = load_run(tmp_path / "free", "cpu").model.get_parameter("blocks.0.mlp.W_u.weight")
    after = load_run(tmp_path / "new", "cpu").model.get_parameter("blocks.0.mlp.W_u.weight")
    assert not torch.equal(before, after)
    assert after.norm().item() == pytest.approx(before.norm().item(), rel=1e-5)


def test_it_resumes_bit_for_bit_without_the_weights_it_started_with(tiny, first, tmp_path):
    shutil.copytree(first, tmp_path / "first")
    config = start_of(tiny("ngpt", steps=6, save_every=2), tmp_path / "first")
    train(config, tmp_path / "whole")
    train(config, tmp_path / "stopped")
    shutil.rmtree(tmp_path / "stopped" / "checkpoints" / "step-00000006")
    shutil.rmtree(tmp_path / "first" / "checkpoints")
    train(config, tmp_path / "stopped")
    same_run(tmp_path / "whole", tmp_path / "stopped")


def test_it_resumes_with_its_copy_of_the_tokenizer(tiny, first, tmp_path, capsys):
    shutil.copytree(first, tmp_path / "first")
    config = start_of(tiny("ngpt", steps=6, save_every=2), tmp_path / "first")
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, tokenizer=None))
    new = tmp_path / "new"
    train(config, new)
    shutil.rmtree(new / "checkpoints" / "step-00000006")
    shutil.rmtree(tmp_path / "first")
    assert main(["train", str(new)]) == 2
    said = f"the tokenizer of {new}; add --data.tokenizer {new / 'tokenizer.json'}"
    assert said in capsys.readouterr().err
    assert main(["train", str(new), "--data.tokenizer", str(new / "tokenizer.json")]) == 0
    assert main(["eval", str(new)]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "gpt"}, "architecture: 'ngpt' -> 'gpt'"),
        ({"objective": "mlm"}, "objective: 'clm' -> 'mlm'"),
        ({"d_model": 16}, "model.d_model: 32 -> 16"),
        ({"tokenizer": "bpe:300"}, "add --data.tokenizer"),
        ({"init": "nowhere"}, "nowhere is not a run folder"),
    ],
    ids=lambda change: next(iter(change)) if isinstance(change, dict) else "",
)
def test_what_differs_is_named(change, message, tiny, first, tmp_path):
    config = tiny(change.get("architecture", "ngpt"), change.get("objective", "clm"), steps=2)
    model = dataclasses.replace(config.model, d_model=change.get("d_model", 32))
    data = dataclasses.replace(config.data, tokenizer=change.get("tokenizer", "bytes"))
    config = dataclasses.replace(config, model=model, data=data)
    with pytest.raises(UserError, match=message) as caught:
        train(start_of(config, change.get("init", first)), tmp_path / "new")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_weights_that_are_nan_are_refused_before_there_is_a_folder(tiny, first, tmp_path):
    shutil.copytree(first, tmp_path / "first")
    newest = chosen_checkpoint(tmp_path / "first")
    (path,) = [p for p in newest.glob("*.safetensors") if "model.s_z.stored" in load_file(p)]
    tensors = load_file(path)
    tensors["model.s_z.stored"][0] = torch.nan
    save_file(tensors, path)
    (newest / MARKER).write_text(json.dumps(fingerprints(newest)))
    with pytest.raises(UserError, match=r"step-00000004 holds .* not finite, in s_z\.stored"):
        train(start_of(tiny("ngpt", steps=2), tmp_path / "first"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_its_tokens_are_those_of_the_other_run_where_none_are_named(tiny, first, tmp_path):
    config = tiny("ngpt", steps=1)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, tokenizer=None))
    train(start_of(config, first), tmp_path / "new")
    saved = json.loads((tmp_path / "new" / "config.json").read_text())
    assert saved["data"]["tokenizer"] == str(first / "tokenizer.json")


def test_steps_have_one_rate_up_to_where_the_schedules_part():
    constant, wsd = ScheduleConfig("constant"), ScheduleConfig("wsd", decay=0.25)
    assert steps_alike(constant, 8, constant, 12) == 8
    assert steps_alike(wsd, 8, wsd, 12) == 7  # of 8 steps the last two fall, from step 6 on
    assert steps_alike(constant, 8, wsd, 12) == 8
    assert steps_alike(ScheduleConfig("linear"), 8, ScheduleConfig("linear"), 12) == 1
    assert steps_alike(ScheduleConfig("ramp"), 8, ScheduleConfig("ramp"), 12) == 0
    warm = ScheduleConfig("constant", warmup=0.5)
    assert steps_alike(warm, 8, warm, 12) == 0


def test_a_run_at_a_constant_rate_is_made_longer_bit_for_bit(tiny, first, tmp_path):
    longer = scheduled(tiny("ngpt", steps=8, save_every=2))
    shutil.copytree(first, tmp_path / "run")
    train(longer, tmp_path / "run")
    train(longer, tmp_path / "whole")
    same_run(tmp_path / "run", tmp_path / "whole")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["steps"] == 8


@pytest.mark.parametrize(
    "fall", [{}, {"fall": "power"}, {"fall": "cool"}, {"fall": "log"}], ids=str
)
def test_every_fall_extends_from_before_its_decay(fall):
    def wsd(decay):
        return ScheduleConfig("wsd", decay=decay, **fall)

    assert steps_alike(wsd(0.25), 8, wsd(0.25), 12) == 7
    assert steps_alike(wsd(1.0), 8, wsd(1.0), 12) == 1
    assert steps_alike(wsd(0.25), 8, wsd(0.25), 8) == 8
    assert steps_alike(ScheduleConfig("constant"), 8, wsd(0.25), 12) == 8
    assert steps_alike(wsd(0.5), 8, ScheduleConfig("wsd", decay=0.5, fall="log", rho=3), 8) == 5


def test_a_run_resumes_bit_for_bit_within_its_decay(tiny, tmp_path):
    config = scheduled(tiny("ngpt", steps=4, save_every=2), "wsd", decay=1.0, fall="log")
    train(config, tmp_path / "whole")
    train(config, tmp_path / "stopped")
    shutil.rmtree(tmp_path / "stopped" / "checkpoints" / "step-00000004")
    train(config, tmp_path / "stopped")
    same_run(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.parametrize("fall", ["linear", "cool"])
def test_a_run_that_has_decayed_goes_back_and_its_end_is_kept(fall, tiny, tmp_path, capsys):
    def decaying(steps):
        config = tiny("ngpt", steps=steps, save_every=2, keep_last=4, log_every=1, eval_every=2)
        return scheduled(config, "wsd", decay=0.5, fall=fall)

    train(decaying(6), tmp_path / "run")
    before = weights(tmp_path / "run")
    for step in (4, 6):
        add_evaluation(tmp_path / "run", {"step": step, "tokens": step, "tasks": {"piqa": {}}})
    train(decaying(8), tmp_path / "run")
    assert "what came after step 4 is kept in" in capsys.readouterr().err
    train(decaying(8), tmp_path / "whole")
    same_run(tmp_path / "run", tmp_path / "whole")
    kept = tmp_path / "run" / "end-at-6"
    assert load_run(kept, "cpu").config.train.steps == 6
    assert [found["step"] for found in read_evaluations(kept)] == [4, 6]
    assert [found["step"] for found in read_evaluations(tmp_path / "run")] == [4]
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(kept).items())


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_a_run_whose_rate_has_come_down_says_what_to_do(kind, tiny, tmp_path):
    config = scheduled(tiny("gpt", steps=3, save_every=2), kind)
    train(config, tmp_path / "run")
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=6))
    with pytest.raises(UserError, match=r"--init .*train 6 steps from the start") as caught:
        train(longer, tmp_path / "run")
    assert "\n" not in str(caught.value)
    shorter = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=2))
    with pytest.raises(UserError, match="has 3 steps already"):
        train(shorter, tmp_path / "run")
    assert last_state(tmp_path / "run").step == 3


def test_a_run_that_is_to_end_where_it_was_stopped_makes_its_last_step_again(tiny, tmp_path):
    kept = {"save_every": 2, "keep_last": 3, "async_save": False}  # so 2, 4 and 6 are there

    def steady(steps, **train):
        return scheduled(tiny("ngpt", steps=steps, eval_every=4, **kept, **train))

    with pytest.raises(KilledError):
        train(steady(8, sample_every=7), tmp_path / "run", sampler=die)
    shutil.copytree(tmp_path / "run", tmp_path / "one")
    train(steady(6), tmp_path / "run")
    train(steady(6), tmp_path / "whole")
    same_run(tmp_path / "run", tmp_path / "whole")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["steps"] == 6
    for step in (2, 4):
        shutil.rmtree(tmp_path / "one" / "checkpoints" / f"step-0000000{step}")
    with pytest.raises(UserError, match=r"cannot end at step 6, its last: no checkpoint") as caught:
        train(steady(6), tmp_path / "one")
    assert "\n" not in str(caught.value)


def test_a_warm_up_that_would_grow_can_be_kept(tiny, tmp_path):
    train(scheduled(tiny("gpt", steps=4), warmup=0.5), tmp_path / "run")
    with pytest.raises(UserError, match=r"add --schedule\.warmup 2 to keep it"):
        train(scheduled(tiny("gpt", steps=8), warmup=0.5), tmp_path / "run")
    train(scheduled(tiny("gpt", steps=8), warmup=2.0), tmp_path / "run")
    assert last_state(tmp_path / "run").step == 8


def test_an_empty_text_to_validate_on_is_named(tiny, tmp_path):
    (tmp_path / "empty.txt").touch()
    config = tiny("gpt")
    data = dataclasses.replace(config.data, validation=str(tmp_path / "empty.txt"))
    with pytest.raises(UserError, match=r"empty\.txt has no text to validate on: name another"):
        train(dataclasses.replace(config, data=data), tmp_path / "run")


@pytest.mark.parametrize(("first", "then"), [(0.0, 2.0), (2.0, 0.0)])
def test_a_run_with_another_schedule_of_the_same_length_is_refused_by_its_key(
    first, then, tiny, tmp_path
):
    train(scheduled(tiny("gpt", steps=4), warmup=first), tmp_path / "run")
    told = rf"another config \(schedule\.warmup: {first} -> {then}\)"
    with pytest.raises(UserError, match=told):
        train(scheduled(tiny("gpt", steps=4), warmup=then), tmp_path / "run")


def test_train_takes_a_run_folder_and_says_how_it_ended(first, tmp_path, capsys):
    shutil.copytree(first, tmp_path / "run")
    assert main(["train", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "nothing to train" in said.err
    assert f"train {tmp_path / 'run'} --train.steps MORE" in said.err
    assert main(["train", str(tmp_path / "run"), "--train.steps", "6"]) == 0
    said = capsys.readouterr()
    last = figures(tmp_path / "run")[-1]
    assert said.out == ""
    assert f"done: loss {last['loss']:.4f}, validation loss {last['val_loss']:.4f}" in said.err
    end = said.err.splitlines()[-4:]
    assert end[0].startswith("6 steps in 0:0")
    assert end[0].endswith(f"in {tmp_path / 'run'}")
    assert end[2] == f"  unitsphere generate {tmp_path / 'run'} --prompt 'The '"
    assert end[3] == f"  unitsphere report {tmp_path / 'run'}"
