"""Every verb over the folder of a stranger: it ends, in one line if it must, and harms nothing.

What is planted: files that are links out of the folder, FIFOs, devices, folders, endless or empty;
configs that declare more than the weights hold; links wherever a verb writes.
"""

import json
import os
import random
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from torture.conftest import LONG

from unitsphere.cli import main

FILES = [
    "config.json",
    "environment.json",
    "metrics.jsonl",
    "samples.txt",
    "tokenizer.json",
    "checkpoints/step-00000006/COMPLETE",
    "checkpoints/step-00000006/state.json",
    "checkpoints/step-00000006/model-00001-of-00002.safetensors",
]
VERBS: dict[str, list[str]] = {
    "eval": ["eval", "RUN", "--data", "TEXT"],
    "generate": ["generate", "RUN", "--prompt", "1", "--max_tokens", "2"],
    "inspect": ["inspect", "RUN", "--probes", "vector_norms"],
    "report": ["report", "RUN"],
    "export": ["export", "RUN", "--out", "OUT"],
    "train": ["train", "RUN", "--train.steps", "6"],
    "init": ["train", "RUN", "--init", "RUN", "--train.steps", "2", "--out", "OUT"],
    "quantize": ["quantize", "RUN", "--data", "TEXT"],
    "recipe": ["train", "RUN/config.json", "--dry_run"],
    "context": ["context", "RUN", "--data", "TEXT", "--context", "8", "--out", "OUT"],
    "replay": ["replay", "RUN", "--step", "2"],
    "finetune": ["finetune", "RUN", "--data", "LABELS", "--lr", "0.01", "--epochs", "1"],
    "params": ["params", "RUN/config.json"],
}
EXPORTED = ["config.json", "model.safetensors", "tokenizer.json", "run_tokenizer.json"]
EXPORTED_VERBS = ("eval", "generate", "quantize", "context")
SECRET = "what nobody may read or change\n"
MOST_MEMORY = 4 << 30
"""Bytes that a verb may take beside what the tests hold."""


def to_link(path: Path, victim: Path) -> None:
    """The same bytes, but outside: nothing but the link is wrong."""
    shutil.copyfile(path, victim)
    replaced(path, lambda: path.symlink_to(victim))


def replaced(path: Path, make: Callable[[], Any]) -> None:
    path.unlink()
    make()


HARMS: dict[str, Callable[[Path, Path], None]] = {
    "a link out": to_link,
    "a link to /dev/zero": lambda p, _: replaced(p, lambda: p.symlink_to("/dev/zero")),
    "a FIFO": lambda p, _: replaced(p, lambda: os.mkfifo(p)),
    "a folder": lambda p, _: replaced(p, p.mkdir),
    "a terabyte": lambda p, _: os.truncate(p, 1 << 40),
    "empty": lambda p, _: os.truncate(p, 0),
    "gone": lambda p, _: p.unlink(),
    "no text": lambda p, _: p.write_bytes(b"\xff\xfe\x00" * 9),
    "a number": lambda p, _: p.write_text("1"),
    "a list": lambda p, _: p.write_text("[[], {}]"),
    "deep": lambda p, _: p.write_text("[" * 100_000),
}


@pytest.fixture
def place(run, tmp_path, monkeypatch) -> Path:
    """A working folder with a copy of the run, a text, and a victim outside of all that."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    work = tmp_path / "work"
    shutil.copytree(run, work / "run")
    (work / "text.txt").write_text("1 times 1 is 1.\n" * 40)
    rows = [json.dumps({"text": f"{n}", "label": n % 2}) for n in range(20)]
    (work / "labels.jsonl").write_text("\n".join(rows))
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/secret").write_text(SECRET)
    monkeypatch.chdir(work)
    return tmp_path


def afresh(place: Path, run: Path) -> None:
    """The working folder as it was."""
    shutil.rmtree(place / "work/run")
    shutil.copytree(run, place / "work/run", symlinks=True)
    shutil.rmtree(place / "work/out", ignore_errors=True)
    for path in (place / "work").glob(".*"):
        path.unlink() if path.is_symlink() else shutil.rmtree(path)


@contextmanager
def limited_memory() -> Iterator[None]:
    """A verb that takes what a config declares fails here, and not the machine."""
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (own + MOST_MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def call(verb: str, capsys) -> tuple[int, str]:
    """Exit status and last words; anything but an exit is the test's failure."""
    words = {"RUN": "run", "TEXT": "text.txt", "OUT": "out", "LABELS": "labels.jsonl"}
    argv = [words.get(w, w.replace("RUN/", "run/")) for w in VERBS[verb]]
    try:
        with limited_memory():
            status = main(argv)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 2
    return status, capsys.readouterr().err


def ends_well(status: int, said: str) -> None:
    assert status in (0, 1, 2), status
    assert "Traceback" not in said
    if status == 2:
        line = said.strip().splitlines()[-1]
        assert line.startswith("unitsphere: error:"), said
        assert len(line) < 1000


def some(cases: list[Any], count: int) -> list[Any]:
    """All of them in the long form, a sample of them otherwise."""
    return cases if LONG else random.Random(0).sample(cases, count)


def test_fuzz_planted_files(place, run, capsys, cases):
    """Nothing outside is read or changed, nothing hangs, and mistakes are one line."""
    for verb, name, harm in some(list(product(VERBS, FILES, HARMS)), 12):
        afresh(place, run)
        copied = place / "victim/copied"
        copied.unlink(missing_ok=True)
        HARMS[harm](place / "work/run" / name, copied)
        before = copied.read_bytes() if copied.exists() else None
        cases.tried += 1
        status, said = call(verb, capsys)
        ends_well(status, said)
        assert (copied.read_bytes() if copied.exists() else None) == before, (verb, name, harm)
        assert (place / "victim/secret").read_text() == SECRET
    cases.done()


LINKED = ["config.json", "tokenizer.json"]


@pytest.mark.parametrize(("verb", "name"), list(product(["eval", "generate", "export"], LINKED)))
def test_a_file_beyond_the_folder_is_not_read(verb, name, place, capsys):
    HARMS["a link out"](place / "work/run" / name, place / "victim/copied")
    status, said = call(verb, capsys)
    assert status == 2
    assert re.search(r"is a link out of (\S*/)?run[ ,:]", said)  # a checkpoint's run is absolute


def test_fuzz_planted_files_of_an_export(place, run, capsys, cases):
    """The same of what `export` wrote, which has no checkpoints."""
    assert call("export", capsys)[0] == 0
    export = shutil.copytree(place / "work/out", place / "export")
    for verb, name, harm in some(list(product(EXPORTED_VERBS, EXPORTED, HARMS)), 10):
        afresh(place, export)
        HARMS[harm](place / "work/run" / name, place / "victim/copied")
        cases.tried += 1
        ends_well(*call(verb, capsys))
        (place / "victim/copied").unlink(missing_ok=True)
        assert (place / "victim/secret").read_text() == SECRET
    cases.done()


DECLARED: list[tuple[str, Any]] = [
    ("d_model", 4096),
    ("d_model", 1 << 40),
    ("n_layers", 10**9),
    ("n_layers", 2_000 if LONG else 50),
    ("vocab_size", 10**11),
    ("d_ff", 1 << 45),
    ("n_heads", 1 << 40),
]


@pytest.mark.parametrize(("key", "value"), DECLARED)
def test_a_config_that_declares_more_than_the_weights_hold(key, value, place, capsys):
    """It is refused before memory is taken."""
    path = place / "work/run/config.json"
    config = json.loads(path.read_text())
    config["model"][key] = value
    path.write_text(json.dumps(config))
    for verb in VERBS if LONG else ("generate", "init", "report"):
        status, said = call(verb, capsys)
        ends_well(status, said)
        assert status == 2 or verb in ("report", "recipe", "params"), (verb, said)


OUTPUTS = [
    "run/report.html",
    "run/.report.html.writing",
    "run/samples.txt",
    "run/metrics.jsonl",
    "run/.metrics.jsonl.writing",
    "run/config.json",
    "run/environment.json",
    "run/tokenizer.json",
    "run/tasks.jsonl",
    "run/inspect/inspect.json",
    "run/inspect/vector_norms.svg",
    "run/quantization.json",
    ".out.partial",
    "run/inspect",
    "run/tensorboard",
    "run/compiled",
    "run/checkpoints",
    "run/checkpoints/step-00000003",
    "run/checkpoints/.writing-step-00000006",
]


def test_fuzz_planted_outputs(place, run, capsys, cases):
    """No verb writes, empties or deletes through a link, whatever its name."""
    victim = place / "victim"
    for verb, name in some(list(product(VERBS, OUTPUTS)), 12):
        afresh(place, run)
        planted = place / "work" / name
        planted.parent.mkdir(parents=True, exist_ok=True)
        of_folder = planted.suffix in ("", ".partial") or planted.name.startswith(".writing-")
        if planted.exists():
            shutil.rmtree(planted) if planted.is_dir() else planted.unlink()
        planted.symlink_to(victim if of_folder else victim / "secret")
        if verb == "train":  # so that it trains and writes on
            shutil.rmtree(place / "work/run/checkpoints/step-00000006", ignore_errors=True)
        cases.tried += 1
        ends_well(*call(verb, capsys))
        assert (victim / "secret").read_text() == SECRET, (verb, name)
        assert [p.name for p in victim.iterdir()] == ["secret"], (verb, name)
    cases.done()
