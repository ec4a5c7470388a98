"""Every mistake a user can make, through the command line: one clear line, nothing lost."""

import json
import os
import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from forked import Forked, wait_for
from tiny_recipe import tiny_recipe
from typed import refused

from unitsphere.cli import main


@pytest.fixture
def place(trained, tmp_path, monkeypatch, capfd) -> Path:
    """A copy of that folder of a test's own, and the current one."""
    folder = tmp_path / "place"
    shutil.copytree(trained, folder)
    monkeypatch.chdir(folder)
    capfd.readouterr()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder and what is in it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


TRAIN = ("train", "tiny.toml", "--out", "new")

SOURCES = {
    "missing": ("nope.txt", None, ["nope.txt", "no such file"]),
    "empty": ("empty.txt", b"", ["empty.txt", "empty"]),
    "wrong field": ("x.jsonl", b'{"txet": "a"}\n', ["line 1", "x.jsonl", "'text'", "'txet'"]),
    "no JSON": ("x.jsonl", b'{"text": "a"}\n{"te\n', ["line 2", "x.jsonl", "JSON"]),
    "no UTF-8": ("latin.txt", b"caf\xe9 " * 99, ["latin.txt", "UTF-8", "byte 3"]),
    "binary": ("program", b"\x7fELF\0\1", ["program", "binary"]),
}


@pytest.mark.parametrize("verb", ["train", "prepare", "eval"])
@pytest.mark.parametrize("case", sorted(SOURCES))
def test_unusable_text(place, capfd, case, verb):
    name, written, words = SOURCES[case]
    if written is not None:
        Path(name).write_bytes(written)
    before = contents(place)
    argv = {
        "train": [*TRAIN, "--data.source", name],
        "prepare": ["prepare", name, "--tokenizer", "bytes", "--out", "new"],
        "eval": ["eval", "run", "--data", name],
    }[verb]
    message = refused(capfd, *argv)
    for word in words:
        assert word in message
    assert contents(place) == before
    assert not Path("new").exists()


def test_fewer_tokens_than_one_sequence(place, capfd):
    Path("short.txt").write_text("hello\nyou\n")
    assert main(["prepare", "short.txt", "--tokenizer", "bytes", "--out", "few"]) == 0
    capfd.readouterr()
    message = refused(capfd, *TRAIN, "--data.source", "few")
    assert "tokens" in message
    assert "33" in message
    assert not Path("new").exists()


MISTAKES = {
    "a tokenizer that is not the shards'": (
        [*TRAIN, "--data.source", "shards", "--data.tokenizer", "bytes"],
        ["shards", "bpe:300", "bytes", "shards/tokenizer.json"],
    ),
    "NUL in a path": ([*TRAIN[:-1], "a\0b"], ["must not hold a NUL character", r"'a\x00b'"]),
    "a repeated flag": (
        [*TRAIN, "--train.steps", "5", "--train.steps", "many"],
        ["--train.steps must be an integer", "not 'many'"],
    ),
    "a seed beyond 64 bits": (
        [*TRAIN, "--train.seed", "99999999999999999999999"],
        ["train.seed must be from 0 to 2^64 - 1", "99999999999999999999999"],
    ),
    "a vocabulary that no memory holds": (
        [*TRAIN, "--model.vocab_size", "99999999999"],
        ["parameters needs at least", "GiB", "model.vocab_size"],
    ),
    "a device that is none": ([*TRAIN, "--train.device", "meta"], ["meta", "use cpu, cuda"]),
    "nan in a key": ([*TRAIN, "--optim.lr", "nan"], ["optim.lr must be a number above 0: nan"]),
    "nan in a key that has no limits": (
        [*TRAIN, "--model.s_z.init", "nan"],
        ["model.s_z.init must be a number, not nan"],
    ),
    "a recipe without its folder": (["train", "angpt-1b"], ["did you mean 'angpt2025/angpt-1b'?"]),
    "a text without its option": (["generate", "run", "hello"], ["'hello'", "takes RUN"]),
    "unknown recipe": (["train", "angpt2025/ngpt-32n"], ["unknown recipe", "angpt2025/ngpt-32m"]),
    "a folder that is no run": (["train", "."], [". is a folder without config.json"]),
    "a text as recipe": (["train", __file__], ["is not a recipe", f"--data.source {__file__}"]),
    "another program's name of a key": (
        [*TRAIN, "--learning_rate", "1"],
        ["--learning_rate", "did you mean '--optim.lr'"],
    ),
    "missing recipe file": (["train", "mine.toml"], ["mine.toml"]),
    "the last part of several keys": ([*TRAIN, "--lr", "1"], ["did you mean '--optim.lr'?"]),
    "unknown key": ([*TRAIN, "--optim.lrr", "1"], ["--optim.lrr", "did you mean '--optim.lr'"]),
    "wrong type": ([*TRAIN, "--train.steps", "many"], ["--train.steps", "integer", "many"]),
    "heads that do not divide": ([*TRAIN, "--model.d_model", "33"], ["33", "divisible", "n_heads"]),
    "a model beyond 64 bits": (
        [*TRAIN, "--model.d_model", str(2**32)],
        ["a model of these sizes cannot be built"],
    ),
    "a width beyond 64 bits": (
        [*TRAIN, "--model.d_model", str(10**30)],
        ["a model of these sizes cannot be built"],
    ),
    "more than a head": ([*TRAIN, "--model.rotary_fraction", "2"], ["rotary_fraction", "2"]),
    "batch of no whole sequences": ([*TRAIN, "--train.batch_tokens", "100"], ["100", "32", "96"]),
    "another config": (
        ["train", "tiny.toml", "--out", "run", "--optim.lr", "2e-2"],
        ["run", "another config", "optim.lr: 0.01 -> 0.02", "--out"],
    ),
    "a file as run folder": (["train", "tiny.toml", "--out", "text.txt"], ["text.txt"]),
    "no run folder": (["generate", "shards"], ["shards", "not a run folder", "no config.json"]),
    "no folder": (["generate", "nowhere"], ["nowhere is not a run folder", "no such folder"]),
    "no run to start from": ([*TRAIN, "--init", "nowhere"], ["init: nowhere is not a run folder"]),
    "no GPU of that number": (["generate", "run", "--device", "cuda:99"], ["cuda:99"]),
    "temperature": (["generate", "run", "--temperature", "-1"], ["temperature", "-1"]),
    "tokenizer": (
        ["prepare", "text.txt", "--tokenizer", "nope.json", "--out", "new"],
        ["nope.json", "bpe:N"],
    ),
    "shards over a run": (
        ["prepare", "text.txt", "--tokenizer", "bytes", "--out", "run"],
        ["run", "--out"],
    ),
    "shards over others": (
        ["prepare", "text.txt", "--tokenizer", "bytes", "--out", "shards"],
        ["shards", "holds other data"],
    ),
}


@pytest.mark.parametrize("case", sorted(MISTAKES))
def test_a_mistake_leaves_everything_as_it_was(place, capfd, case):
    argv, words = MISTAKES[case]
    before = contents(place)
    message = refused(capfd, *argv)
    for word in words:
        assert word in message
    assert contents(place) == before


FINETUNE = ("finetune", "run", "--data", "labels.jsonl", "--text", "text", "--label", "label")
ON_A_DEVICE = {
    "train": (*TRAIN, "--train.device"),
    "train --dry-run": (*TRAIN, "--dry-run", "--train.device"),
    "eval": ("eval", "run", "--device"),
    "context": ("context", "run", "--device"),
    "generate": ("generate", "run", "--device"),
    "chat": ("chat", "run", "--device"),
    "export": ("export", "run", "--out", "new", "--device"),
    "inspect": ("inspect", "run", "--device"),
    "quantize": ("quantize", "run", "--device"),
    "replay": ("replay", "run", "--step", "2", "--device"),
    "serve": ("serve", "run", "--device"),
    "finetune": (*FINETUNE, "--device"),
    "bench": ("bench", "--device"),
    "bench kernels": ("bench", "kernels", "--device"),
}


@pytest.mark.parametrize("device", ["mps", "meta", "foo"])
def test_a_device_that_is_not_supported(trained, monkeypatch, capfd, device):
    """Refused in one line by every verb that takes a device, whether torch knows it or not."""
    monkeypatch.chdir(trained)
    lines = [json.dumps({"text": f"word {n}", "label": n % 2}) for n in range(20)]
    Path("labels.jsonl").write_text("\n".join(lines))
    before = contents(trained)
    for verb, argv in ON_A_DEVICE.items():
        message = refused(capfd, *argv, device)
        assert f"the device '{device}' is not supported: use cpu, cuda" in message, verb
    assert contents(trained) == before


def test_a_recipe_in_the_place_of_a_run(tmp_path, monkeypatch, capfd):
    """Every verb that takes a run says how to get one of the recipe."""
    monkeypatch.chdir(tmp_path)
    told = (
        "quickstart/ngpt is a recipe, not a run folder: train it first by `unitsphere train "
        "quickstart/ngpt --out runs/quickstart/ngpt`, and give that folder"
    )
    takes_run = [argv[:-1] for argv in ON_A_DEVICE.values() if argv[1] == "run"]
    for verb, _, *options in (*takes_run, ("report", "run")):
        assert told in refused(capfd, verb, "quickstart/ngpt", *options), verb


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (tiny_recipe("ngtp"), ["mine.toml", "'ngtp'", "did you mean 'ngpt'"]),
        (tiny_recipe() + "stepz = 3\n", ["train.stepz", "'steps'"]),
        (tiny_recipe() + "seed = 'x'\n", ["train.seed", "int"]),
        ("steps = 3", ["mine.toml", "architecture"]),
        ("= 3", ["mine.toml", "TOML"]),
    ],
    ids=["architecture", "key", "type", "no architecture", "no TOML"],
)
def test_a_recipe_that_cannot_be(place, capfd, text, words):
    Path("mine.toml").write_text(text)
    message = refused(capfd, "train", "mine.toml", "--out", "new")
    for word in words:
        assert word in message
    assert not Path("new").exists()


def shard() -> Path:
    """The file of the training tokens."""
    return next(Path("shards").glob("train-0*.bin"))


SHARD_TRAIN = (*TRAIN, "--data.source", "shards", "--data.tokenizer", "bpe:300")


def test_a_truncated_shard(place, capfd):
    os.truncate(shard(), shard().stat().st_size - 10)
    message = refused(capfd, *SHARD_TRAIN)
    assert str(shard()) in message
    assert "truncated" in message
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("size", "place_of_it", "argv", "said"),
    [
        (200, 7, SHARD_TRAIN, "its first or last bytes differ"),
        (60_000, 30_000, (*SHARD_TRAIN, "--verify"), "its sha256 differs"),
    ],
)
def test_a_tampered_shard(place, capfd, size, place_of_it, argv, said):
    """At its ends it is found at once, in between by --verify, which reads everything."""
    text = "".join(f"{number} is a number of its own. " for number in range(size))
    Path("text.txt").write_text(text)
    shutil.rmtree("shards")
    assert main(["prepare", "text.txt", "--tokenizer", "bpe:300", "--out", "shards"]) == 0
    capfd.readouterr()
    tokens = np.fromfile(shard(), "<u2")
    tokens[place_of_it * len(tokens) // size] ^= 1
    tokens.tofile(shard())
    message = refused(capfd, *argv)
    assert str(shard()) in message
    assert said in message
    assert not Path("new").exists()


def test_a_damaged_manifest(place, capfd):
    manifest = Path("shards/manifest.json")
    manifest.write_text(manifest.read_text()[:-20])
    assert "manifest.json" in refused(capfd, *SHARD_TRAIN)


def losses(run: str) -> dict[int, float]:
    """Step -> loss from a run's metrics."""
    records = map(json.loads, (Path(run) / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if "loss" in record}


def damage(checkpoint: Path) -> None:
    """What a crash in the middle of writing could leave."""
    largest = max(checkpoint.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


def test_a_half_written_checkpoint_is_passed_over(place, capfd):
    expected = losses("run")
    damage(Path("run/checkpoints/step-00000006"))
    assert main(["train", "tiny.toml", "--out", "run"]) == 0
    said = "".join(capfd.readouterr())
    assert "step-00000006" in said
    assert "step-00000004" in said
    assert losses("run") == expected
    assert main(["generate", "run", "--max-tokens", "3"]) == 0


def test_only_half_written_checkpoints(place, capfd):
    for checkpoint in Path("run/checkpoints").iterdir():
        damage(checkpoint)
    before = contents(place)
    assert "step-0000000" in refused(capfd, "train", "tiny.toml", "--out", "run")
    assert "step-0000000" in refused(capfd, "generate", "run")
    assert contents(place) == before


def on_a_small_disk(argv: list[str]) -> int:
    """The program where no file may be large."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    return main(argv)


def test_a_full_disk_while_saving(place, capfd, tmp_path):
    out, err = Forked(on_a_small_disk, [*TRAIN], folder=tmp_path).communicate(timeout=120)
    last = err.splitlines()[-1]
    assert last.startswith("unitsphere: error: ")
    assert "step-00000002" in last
    assert "earlier checkpoints are kept" in last
    assert "the same command" in last
    assert "Traceback" not in err + out
    assert [*Path("new/checkpoints").iterdir()] == []
    # With room again, the same command trains to the end, as if nothing had been.
    assert main(list(TRAIN)) == 0
    assert losses("new") == losses("run")


def test_ctrl_c_saves_and_says_how_to_resume(place, tmp_path):
    command = [*TRAIN, "--train.steps", "2000"]

    def interrupted(beyond: int) -> str:
        """What it says on stderr when it is interrupted some steps later."""
        process = Forked(main, command, folder=tmp_path)
        metrics = Path("new/metrics.jsonl")
        wait_for(lambda: process.poll() or (metrics.exists() and len(losses("new")) > beyond), 60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.poll() == 75, err
        assert "Traceback" not in out + err
        return err

    last = interrupted(beyond=3).splitlines()[-1]
    assert "saved" in last
    assert "the same command" in last
    newest = max(path.name for path in Path("new/checkpoints").iterdir())
    step = int(newest.removeprefix("step-"))
    assert f"step {step} of 2000" in last
    assert f"from step {step}" in interrupted(beyond=step)


def test_the_home_of_nobody(tmp_path, capsys):
    out = str(tmp_path / "shards")
    assert main(["prepare", "~nobody-of-that-name/x", "--tokenizer", "bytes", "--out", out]) == 2
    assert capsys.readouterr().err.startswith("unitsphere: error: no such file: ~nobody")
