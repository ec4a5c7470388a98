"""Run folders that somebody else made, or a disk damaged: nothing runs, one line says what is."""

import json
import math
import os
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torture.damage import damaged, json_files

from unitsphere.cli.settings import read_settings
from unitsphere.cli.train import Train
from unitsphere.config import to_dict
from unitsphere.errors import UserError
from unitsphere.models.registry import build_from
from unitsphere.training import guard
from unitsphere.training.checkpoint import store as checkpoint
from unitsphere.training.checkpoint import tensors
from unitsphere.training.folder import write_environment
from unitsphere.training.load import last_state, load_run
from unitsphere.training.log import RunLog, read_metrics
from unitsphere.training.optim import build_optimizer
from unitsphere.training.recipes import load_recipe
from unitsphere.training.resolve import config_in, resolve

TORTURE = settings.get_profile("torture")


@pytest.fixture
def copy(run, tmp_path) -> Path:
    return shutil.copytree(run, tmp_path / "run")


def resume(out: Path) -> None:
    """All that a resumed run reads of its folder."""
    config = load_recipe(out / "config.json")
    state = last_state(out)
    assert state is not None
    folder = checkpoint.folder_of(out / "checkpoints", state.step)
    model = build_from(config.architecture, config.model, "cpu", objective=config.objective)
    tensors.load_model(folder, model)
    optimizer = build_optimizer(model, config.optim)
    tensors.load_optimizer(folder, model, optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    tensors.set_rng_state(state.rng, state.rng_device, torch.device("cpu"))
    guard.Guard("skip", 6.0).load(state.losses, state.losses_seen, torch.device("cpu"))
    write_environment(out, {"commit": "x"}, state.step)
    with RunLog(out, state.step, 6, state.samples):
        read_metrics(out)


def signed(folder: Path) -> None:
    """Make a checkpoint's marker fit what is there, as its author can."""
    (folder / "COMPLETE").write_text(json.dumps(checkpoint.fingerprints(folder)))


def test_the_undamaged_run_resumes(copy):
    resume(copy)
    assert load_run(copy, "cpu").config.train.steps == 6


def outside(folder: Path) -> set[Path]:
    return {p for p in folder.parent.rglob("*") if not p.is_relative_to(folder)}


@pytest.mark.parametrize("name", ["COMPLETE", "state.json"])
def test_fuzz_checkpoint_files(name, copy, cases):
    newest = copy / "checkpoints/step-00000006"
    before = (newest / name).read_bytes()

    @settings(TORTURE)
    @given(json_files(json.loads(before)))
    def check(content: bytes) -> None:
        (newest / name).write_bytes(content)
        if name != "COMPLETE":
            signed(newest)
        elsewhere = outside(copy)
        with cases:
            resume(copy)
        assert outside(copy) == elsewhere

    check()
    cases.done()


class Short(bytes):
    """Bytes that do not fill the screen."""

    def __repr__(self) -> str:
        return f"{len(self)} bytes: {self[:300]!r}"


def headers(valid: bytes) -> st.SearchStrategy[bytes]:
    """A safetensors file with another header, or damaged anywhere."""
    (size,) = struct.unpack("<Q", valid[:8])
    header, rest = json.loads(valid[8 : 8 + size]), valid[8 + size :]
    sizes = st.sampled_from([0, 1, size, size + 1, 2**31, 2**63, 2**64 - 1])
    return st.one_of(
        json_files(header).map(lambda text: Short(struct.pack("<Q", len(text)) + text + rest)),
        sizes.map(lambda n: Short(struct.pack("<Q", n) + valid[8:])),
        damaged(valid).map(Short),
    )


@pytest.mark.parametrize("part", [1, 2])
def test_fuzz_safetensors(part, copy, cases):
    newest = copy / "checkpoints/step-00000006"
    path = newest / f"model-0000{part}-of-00002.safetensors"

    @settings(TORTURE)
    @given(headers(path.read_bytes()))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        signed(newest)
        with cases:
            resume(copy)

    check()
    cases.done()


KEYS = [
    "exp_avg",
    "exp_avg_sq",
    "step",
    "radius",
    "__class__",
    "../../../../tmp/x",
    "",
    "exp_avg.x",
]
DTYPES = [torch.float64, torch.float8_e4m3fn, torch.bfloat16, torch.int8, torch.bool]
DTYPES += [torch.complex64, torch.int64]
SHAPES = [(), (1,), (1, 1), (0,), (3, 2), (320, 16), (16, 320), (16, 16)]
CHANGES = st.one_of(
    st.just(("drop", None)),
    st.tuples(st.just("key"), st.sampled_from(KEYS)),
    st.tuples(st.just("name"), st.sampled_from(["optim.", "optim.x.", "optim.../../x", "model.x"])),
    st.tuples(st.just("shape"), st.sampled_from(SHAPES)),
    st.tuples(st.just("dtype"), st.sampled_from(DTYPES)),
    st.tuples(st.just("values"), st.sampled_from([-1.0, math.nan, math.inf])),
)


def other_state(states: dict[str, torch.Tensor], place: int, how: str, value: Any) -> None:
    """Change one tensor of an optimizer's state, in place: its name, shape, type, or values."""
    name = sorted(states)[place % len(states)]
    tensor = states.pop(name)
    if how in ("key", "name"):
        states[f"{name.rpartition('.')[0]}.{value}" if how == "key" else value] = tensor
    elif how == "shape":
        states[name] = torch.zeros(value)
    elif how == "dtype":
        states[name] = tensor.to(value)
    elif how == "values":
        states[name] = torch.full(tensor.shape, value)


def test_fuzz_optimizer_states(copy, cases):
    newest = copy / "checkpoints/step-00000006"
    path = newest / "model-00002-of-00002.safetensors"
    valid = load_file(path)

    @settings(TORTURE)
    @given(st.lists(st.tuples(st.integers(0, 999), CHANGES), min_size=1, max_size=3))
    def check(changes: list[tuple[int, tuple[str, Any]]]) -> None:
        states = dict(valid)
        for place, change in changes:
            other_state(states, place, *change)
        save_file(states, path)
        signed(newest)
        elsewhere = outside(copy)
        with cases:
            resume(copy)
        assert outside(copy) == elsewhere

    check()
    cases.done()


def test_fuzz_offsets_of_shards(copy, cases):
    newest = copy / "checkpoints/step-00000006"
    path = newest / "model-00002-of-00002.safetensors"
    valid = load_file(path)
    offsets = {name: {"saved_offsets": [0] * tensor.dim()} for name, tensor in valid.items()}

    @settings(TORTURE)
    @given(json_files(offsets))
    def check(text: bytes) -> None:
        where = {"DCP_SHARDING_INFO": text.decode("utf-8", "replace"), "DCP_VERSION": "1.0"}
        save_file(valid, path, where)
        signed(newest)
        with cases:
            resume(copy)

    check()
    cases.done()


def test_what_is_no_file_is_never_read(copy):
    newest = copy / "checkpoints/step-00000006"
    for odd in (lambda p: p.mkdir(), os.mkfifo, lambda p: p.symlink_to("/dev/zero")):
        odd(newest / "x.safetensors")
        marker = json.loads((newest / "COMPLETE").read_text())
        marker["x.safetensors"] = marker["state.json"]
        (newest / "COMPLETE").write_text(json.dumps(marker))
        found, (said,) = checkpoint.newest(copy / "checkpoints")
        assert found == copy / "checkpoints/step-00000003"
        assert "x.safetensors cannot be read: it is not a file" in said
        odd_one = newest / "x.safetensors"
        odd_one.rmdir() if odd_one.is_dir() else odd_one.unlink()


@pytest.mark.parametrize("name", ["config.json", "environment.json"])
def test_fuzz_run_files(name, copy, cases):
    valid = json.loads((copy / name).read_text())

    @settings(TORTURE)
    @given(json_files(valid))
    def check(content: bytes) -> None:
        (copy / name).write_bytes(content)
        elsewhere = outside(copy)
        with cases:
            if name == "config.json":
                config_in(copy)
            else:
                resume(copy)
        assert outside(copy) == elsewhere

    check()
    cases.done()


def test_fuzz_metrics(copy, cases):
    path = copy / "metrics.jsonl"
    valid = path.read_bytes()

    @settings(TORTURE)
    @given(st.one_of(damaged(valid), st.lists(json_files({"step": 1})).map(b"\n".join)))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        with cases:
            resume(copy)
        steps = [r["step"] for r in map(json.loads, path.read_text().splitlines())]
        assert max(steps, default=0) <= 6

    check()
    cases.done()


def toml(valid: dict) -> str:
    """A config as TOML, flat enough for one."""
    lines = []
    for section, values in valid.items():
        if isinstance(values, dict):
            lines += [f"[{section}]"]
            lines += [f"{k} = {json.dumps(v)}" for k, v in values.items() if v is not None]
    return f'architecture = "{valid["architecture"]}"\n' + "\n".join(lines)


def test_fuzz_recipes(tiny_config, tmp_path, cases):
    path = tmp_path / "recipe.toml"
    simple = {k: v for k, v in to_dict(tiny_config).items() if k in ("architecture", "train")}
    text = toml(simple).encode()
    deep = ["a = " + "[" * 5000, "[" + "a." * 5000 + "a]", f"a = {'9' * 5000}"]

    @settings(TORTURE)
    @given(st.one_of(damaged(text), st.sampled_from(range(3)).map(lambda i: deep[i].encode())))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        with cases:
            load_recipe(path)

    check()
    cases.done()


FLAGS = ["--train.steps", "--optim.lr", "--model.d_model", "--data.source", "--out", "--train.seed"]
FLAGS += ["--train.time_limit", "--model.n_heads", "--data.context", "--train.device", "--x", "-o"]
WORDS = ["", "0", "-1", "nan", "inf", "1e999", "9" * 5000, "None", "True", "../..", "=", "--", "\n"]


def test_fuzz_flags(tiny_config, cases):
    words = st.one_of(st.sampled_from(WORDS), st.text(max_size=10), st.integers().map(str))
    pairs = st.lists(st.tuples(st.sampled_from(FLAGS), words), max_size=3)

    @settings(TORTURE)
    @given(pairs, st.booleans())
    @example([("--data.context", "0")], False)
    def check(given_pairs, joined) -> None:
        argv = [w for f, v in given_pairs for w in ([f"{f}={v}"] if joined else [f, v])]
        with cases:
            found = read_settings("train", "recipe.toml", tiny_config, argv, Train)
            resolve(found.config, None)

    check()
    cases.done()


class Bomb:
    """A pickle that makes a folder when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_no_pickle_is_read(copy, tmp_path, tally):
    """Under any name that torch, or anybody, might look for."""
    newest, owned = copy / "checkpoints/step-00000006", tmp_path / "owned"
    bomb = pickle.dumps(Bomb(owned))
    names = [".metadata", "pytorch_model.bin", "model.pt", "__0_0.distcp", "state.json"]
    names += ["model-00001-of-00002.safetensors"]
    for name in names:
        whole = (newest / name).read_bytes() if (newest / name).exists() else None
        (newest / name).write_bytes(bomb)
        signed(newest)
        try:
            resume(copy)
        except UserError:
            assert whole is not None
        assert not owned.exists()
        (newest / name).unlink()
        if whole is not None:
            (newest / name).write_bytes(whole)
    pickle.loads(bomb)
    assert owned.exists()
    tally("pickles in a checkpoint", len(names), len(names))
