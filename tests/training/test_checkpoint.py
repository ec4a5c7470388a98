"""A checkpoint is complete or absent; whatever is wrong with one, an earlier one serves."""

import errno
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from unitsphere.errors import UserError
from unitsphere.models.registry import build
from unitsphere.training.checkpoint import store, tensors
from unitsphere.training.checkpoint import store as checkpoint
from unitsphere.training.checkpoint.saver import write
from unitsphere.training.checkpoint.store import State
from unitsphere.training.optim import OptimConfig, build_optimizer


def make(seed=0, steps=1, **numbers):
    """A tiny model and an optimizer that has stepped."""
    model = build("gpt", vocab_size=64, d_model=16, n_layers=1, n_heads=2, seed=seed, **numbers)
    optimizer = build_optimizer(model, OptimConfig())
    tokens = torch.arange(12).reshape(2, 6)
    for _ in range(steps):
        model.loss(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def state(step: int) -> State:
    rng, _ = tensors.rng_state(torch.device("cpu"))
    return State(step, step * 8, 1.5, 0, "data", torch.__version__, rng)


@pytest.fixture
def root(tmp_path):
    """A folder with complete checkpoints of steps 1, 2 and 3."""
    model, optimizer = make()
    for step in (1, 2, 3):
        write(tmp_path / "checkpoints", state(step), tensors.named_tensors(model, optimizer))
    return tmp_path / "checkpoints"


@pytest.mark.parametrize("tied", [False, True])
def test_weights_optimizer_state_and_rng_come_back(tied, tmp_path):
    model, optimizer = make(tied=tied, qk_norm=True)
    folder = write(tmp_path, state(7), tensors.named_tensors(model, optimizer))
    after = torch.rand(3)

    other, other_optimizer = make(seed=1, steps=0, tied=tied, qk_norm=True)
    tensors.load_model(folder, other)
    tensors.load_optimizer(folder, other, other_optimizer)
    found = checkpoint.load_state(folder)
    tensors.set_rng_state(found.rng, found.rng_device, torch.device("cpu"))
    assert (found.step, found.tokens, found.seconds) == (7, 56, 1.5)
    assert torch.equal(torch.rand(3), after)
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
    expected = tensors.optimizer_tensors(model, optimizer)
    loaded = tensors.optimizer_tensors(other, other_optimizer)
    assert expected.keys() == loaded.keys()
    assert len(expected) == 3 * len(list(model.parameters()))
    for name, tensor in expected.items():
        assert torch.equal(loaded[name], tensor), name
        assert loaded[name].dtype == tensor.dtype


def test_nothing_in_a_checkpoint_is_a_pickle(root):
    for path in (root / "step-00000003").iterdir():
        assert path.suffix in (".safetensors", ".json") or path.name == "COMPLETE"
        with pytest.raises((pickle.UnpicklingError, ValueError, KeyError, EOFError, IndexError)):
            pickle.loads(path.read_bytes())


def test_loading_into_another_model_is_one_line(root):
    other, _ = make(steps=0, tied=True)
    with pytest.raises(UserError, match=r"does not fit the model at model\.E_out\.weight"):
        tensors.load_model(root / "step-00000003", other)


def truncate(folder):
    os.truncate(folder / "model-00001-of-00002.safetensors", 100)


def flip_a_bit(folder):
    path = folder / "model-00002-of-00002.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def drop_a_file(folder):
    (folder / "state.json").unlink()


def drop_the_marker(folder):
    (folder / "COMPLETE").unlink()


def tear_the_marker(folder):
    (folder / "COMPLETE").write_text('{"state.json": {"si')


def mislead_by_the_marker(folder):
    (folder / "COMPLETE").write_text("[]")


def name_a_file_elsewhere(folder):
    marker = json.loads((folder / "COMPLETE").read_text())
    marker["../../../etc/passwd"] = marker["state.json"]
    (folder / "COMPLETE").write_text(json.dumps(marker))


def empty_it(folder):
    shutil.rmtree(folder)
    folder.mkdir()


DAMAGES = [
    truncate,
    flip_a_bit,
    drop_a_file,
    drop_the_marker,
    tear_the_marker,
    mislead_by_the_marker,
    name_a_file_elsewhere,
    empty_it,
]


@pytest.mark.parametrize("harm", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_one_line(harm, root):
    harm(root / "step-00000003")
    found, damaged = checkpoint.newest(root)
    assert found == root / "step-00000002"
    assert len(damaged) == 1
    assert "step-00000003 is damaged" in damaged[0]
    assert "\n" not in damaged[0]


def test_leftovers_of_interrupted_savings_are_no_checkpoints_and_go(root):
    (root / ".writing-step-00000009").mkdir()
    (root / ".removing-step-00000001").mkdir()
    assert checkpoint.newest(root) == (root / "step-00000003", [])
    checkpoint.prune(root / "step-00000003", 2)
    assert sorted(p.name for p in root.iterdir()) == ["step-00000002", "step-00000003"]


def test_every_nth_checkpoint_is_kept_for_good(root):
    for step in (4, 5, 6):
        write(root, state(step), tensors.named_tensors(*make()))
    checkpoint.prune(root / "step-00000006", 1, keep_every=2)
    assert [*checkpoint.folders(root)] == [2, 4, 6]


def test_what_only_looks_like_a_checkpoint_is_left_alone(root):
    shutil.copytree(root / "step-00000003", root / "step-best")
    (root / "step-00000099").write_text("a file")
    assert checkpoint.newest(root) == (root / "step-00000003", [])
    checkpoint.prune(root / "step-00000003", 1)
    assert sorted(p.name for p in root.iterdir()) == ["step-00000003", "step-00000099", "step-best"]


def test_pruning_never_counts_a_damaged_newer_one(root):
    drop_the_marker(root / "step-00000003")
    checkpoint.prune(root / "step-00000002", 1)
    assert checkpoint.newest(root)[0] == root / "step-00000002"


def test_saving_a_step_again_replaces_a_damaged_one(root):
    truncate(root / "step-00000003")
    write(root, state(3), tensors.named_tensors(*make()))
    assert checkpoint.newest(root) == (root / "step-00000003", [])


class Killed(BaseException):
    """What no code catches."""


def test_a_kill_while_the_former_one_of_a_step_is_deleted_leaves_the_new_one(root, monkeypatch):
    real = shutil.rmtree

    def rmtree(folder, *args, **kwargs):
        if ".removing-" in folder.name:
            raise Killed
        real(folder, *args, **kwargs)

    monkeypatch.setattr(store.shutil, "rmtree", rmtree)
    with pytest.raises(Killed):
        write(root, state(3), tensors.named_tensors(*make(seed=1)))
    assert checkpoint.newest(root) == (root / "step-00000003", [])


OPERATIONS = ["mkdir", "rename", "fsync"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_whatever_operation_the_disk_refuses_the_earlier_ones_stay(operation, root, monkeypatch):
    """Each call of each kind during one save fails in turn."""
    model, optimizer = make()
    before = checkpoint.fingerprints(root / "step-00000003")
    real, calls, failing = getattr(os, operation), 0, 0

    def refuse(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, operation, refuse)
    refused = []
    while True:
        calls, failing = 0, failing + 1
        try:
            write(root, state(4), tensors.named_tensors(model, optimizer))
        except UserError as error:
            refused.append(str(error))
        if calls < failing:
            break
        assert not list(root.glob(".writing-*"))
        assert checkpoint.fingerprints(root / "step-00000003") == before
        newest, damaged = checkpoint.newest(root)
        assert not damaged
        assert newest in (root / "step-00000003", root / "step-00000004")
    assert refused
    assert all("step-00000004: No space left on device" in line for line in refused)
    assert checkpoint.newest(root) == (root / "step-00000004", [])


def test_what_a_file_manager_or_a_network_disk_leaves_in_a_checkpoint_is_ignored(root):
    for name in (".DS_Store", "._state.json", ".nfs000000000123"):
        (root / "step-00000003" / name).write_text("something")
    weights = next((root / "step-00000003").glob("model*.safetensors"))
    weights.with_name(f"._{weights.name}").write_text("what a Mac copies beside a file")
    assert checkpoint.newest(root) == (root / "step-00000003", [])
    model, optimizer = make(seed=1)
    tensors.load_model(root / "step-00000003", model)
    tensors.load_optimizer(root / "step-00000003", model, optimizer)
    assert tensors.shapes_of_shards(root / "step-00000003")  # as of several processes


def test_a_file_still_read_over_nfs_stays_until_the_next_pruning(root, monkeypatch):
    def busy(path):
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(store.shutil, "rmtree", busy)
    checkpoint.prune(root / "step-00000003", 2)
    assert [*checkpoint.folders(root)] == [2, 3]
    monkeypatch.undo()
    checkpoint.prune(root / "step-00000003", 2)
    assert sorted(p.name for p in root.iterdir()) == ["step-00000002", "step-00000003"]


def test_a_link_among_checkpoints_is_neither_followed_nor_deleted(root, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(root / "step-00000001", elsewhere)
    names = ("step-00000000", "step-00000009", ".removing-step-00000001", ".writing-step-00000007")
    for name in names:
        (root / name).symlink_to(elsewhere)
    assert checkpoint.newest(root) == (root / "step-00000003", [])
    checkpoint.prune(root / "step-00000003", 1)
    assert {p.name for p in root.iterdir()} == {*names, "step-00000003"}
    said = checkpoint.links(root)
    assert len(said) == len(names)
    assert all("is a link, which is neither followed nor deleted" in line for line in said)
    for step in (7, 9):
        with pytest.raises(UserError, match="is a link"):
            write(root, state(step), tensors.named_tensors(*make()))
    assert len([*elsewhere.iterdir()]) == len([*(root / "step-00000003").iterdir()])


def test_checkpoints_that_are_a_link_are_not_followed(root, tmp_path):
    (tmp_path / "run").mkdir()
    linked = tmp_path / "run/checkpoints"
    linked.symlink_to(root)
    for use in (checkpoint.newest, checkpoint.folders):
        with pytest.raises(UserError, match=r"run/checkpoints is a link"):
            use(linked)
    assert [*checkpoint.folders(root)] == [1, 2, 3]


def test_a_link_within_a_checkpoint_is_damage(root, tmp_path):
    (root / "step-00000003/state.json").rename(tmp_path / "state.json")
    (root / "step-00000003/state.json").symlink_to(tmp_path / "state.json")
    found, damaged = checkpoint.newest(root)
    assert found == root / "step-00000002"
    assert "is a link out of" in damaged[0]


@pytest.mark.parametrize(
    ("method", "what"), [("iterdir", "checkpoints"), ("lstat", "step-00000003/COMPLETE")]
)
def test_checkpoints_that_may_not_be_read_are_not_taken_as_missing(
    method, what, root, tmp_path, monkeypatch
):
    real = getattr(Path, method)

    def denied(path):
        if str(path).endswith(what):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, method, denied)
    with pytest.raises(UserError, match=rf"cannot read .*{what}: Permission denied"):
        checkpoint.newest(root)
    assert checkpoint.newest(tmp_path / "nothing") == (None, [])
