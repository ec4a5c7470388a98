"""The commands of README.md and docs/how-to run as they are written, in order, in one folder.

Commands are the lines of ```bash blocks, and those of ```console blocks that begin with `$ `. They
go through `unitsphere.cli.main` in this process. What makes them cheap is done to their inputs:
shipped recipes and the studies' files are made smaller as they are read, a few files are the
standard library, long contexts are divided, and a study trains its runs here (`small`). A command
that is not run is named in NOT_RUN, PARSED or PLANNED, with the reason.
"""

import contextlib
import io
import json
import random
import re
import runpy
import shlex
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from studies.inprocess import trained_here

from unitsphere.cli import app, main, parse
from unitsphere.config import read_toml
from unitsphere.data.prepare import prepare

ROOT = Path(__file__).parents[2]
PAGES = [
    "README",
    *("train", "hybrids", "objectives", "inspect", "evaluate", "generate", "export", "serve"),
    *("finetune", "compare", "context", "quantize", "report", "sweep", "ablate", "ladder"),
    *("transfer", "lr-ramp", "optimizers", "experts", "trainer", "migrate"),
    *("one-node", "many-nodes", "slurm", "gpu"),
]
"""In the order in which they are run: a page may use the runs of those before it."""

NOT_RUN = {
    "make test": "the suite itself",
    "make gpu": "a GPU: tests/bench/test_gpu_parts.py",
    "python benchmarks/gpu_page": "the page of a GPU's figures: tests/bench/test_gpu_parts.py",
    "pip": "installs",
    "compare league": "published entries and a budget of hours: tests/studies/test_league.py",
    "PYTHONPATH=examples torchrun": "torchtitan: tests/examples/test_torchtitan.py",
    "tar": "packs a folder: tests/training/test_archive.py",
    "vllm": "another program",
    "python examples/": "tests/examples runs them",
    "grep": "reads a job's log",
    "job=": "a SLURM cluster",
    "for _ in": "a SLURM cluster",
}
PARSED = {
    "serve": "serves until it is stopped: tests/inference/test_serve.py",
    "report .* --serve": "serves until it is stopped: tests/report/test_page_serve.py",
    r"generate .*\.tar\.gz": "an archive that is not made: tests/training/test_archive.py",
    "torchrun": "several processes: tests/training/distributed",
    "train .* --submit": "a SLURM cluster: tests/test_cli_submit.py",
    "compare league": "its rules' own sizes: tests/studies/test_league.py",
    "eval .* --tasks": "lm-eval takes long to import: tests/inference/test_lm_eval.py",
}
PLANNED = {
    "ablate": "dozens of runs: tests/studies/test_ablate.py",
    "ladder": "dozens of runs: tests/studies/test_ladder.py",
    "transfer": "dozens of runs: tests/studies/test_transfer_study.py",
    "lr-ramp normformer2021": "thousands of steps: tests/studies/test_ramp.py",
    "lr-ramp .* --set": "as the page's first, with a third arm",
    "compare .* --out": "as with --json, in another folder",
    "sweep .* --out": "as without it, in another folder",
    "sweep sweep.toml": "my-sweep.toml by another name",
}
"""Run with --dry_run instead, which reads the command, its files and recipes."""

FEWER = {"benchmarks/number_words.py": ["--train", "300", "--test", "8"]}
INSTEAD = {"make quickstart": "unitsphere quickstart"}


GIVEN = {
    "context": {"runs/gpt-plus": "runs/quickstart/gpt-plus"},
}
"""Runs that a page takes for granted, and what stands for them."""


def commands(page: str) -> list[str]:
    """A page's commands, each in one line, without comments."""
    path = ROOT / "README.md" if page == "README" else ROOT / f"docs/how-to/{page}.md"
    found = []
    for kind, block in re.findall(r"^```(bash|console)\n(.*?)^```", path.read_text(), re.M | re.S):
        if block.startswith("#!"):  # a script of its own
            continue
        lines = block.replace("\\\n", " ").splitlines()
        typed = lines if kind == "bash" else [x[2:] for x in lines if x.startswith("$ ")]
        found += [" ".join(x.split()) for x in typed if x.strip()]
    return [INSTEAD.get(command, command) for command in found]


def toml_blocks(page: str) -> list[str]:
    """The TOML files that a page shows."""
    text = (ROOT / f"docs/how-to/{page}.md").read_text()
    return re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)


def named(command: str, table: dict[str, str]) -> bool:
    """Whether a table names the command by how it begins, without `unitsphere`."""
    words = command.removeprefix("unitsphere ")
    return any(re.match(pattern, words) for pattern in table)


def write_files() -> None:
    """What a reader brings along."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 9))) for _ in range(3000)]

    def text(count: int) -> str:
        return " ".join(draw.choices(words, k=count))

    def lines(name: str, count: int, **fields: Any) -> None:
        rows = [{k: f() if callable(f) else f for k, f in fields.items()} for _ in range(count)]
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    lines("wiki.jsonl", 200, text=lambda: text(60))
    lines("books.jsonl", 3, text=lambda: text(900))
    lines("other.jsonl", 9, body=lambda: text(60))
    lines("pairs.jsonl", 60, source=lambda: text(3), target=lambda: text(2))
    lines("test.jsonl", 3, source=lambda: text(3), target=lambda: text(2))
    Path("other.txt").write_text(text(300))
    Path("notes.txt").write_text(text(3000))
    made = prepare("wiki.jsonl", "bpe:512", "made", progress=False)
    shutil.copy(made / "tokenizer.json", "tokenizer.json")
    for name, count in (("train", 24), ("dev", 8)):
        rows = [f"{text(5)}\t{n % 2}\n" for n in range(count)]
        Path(f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    Path("lib").mkdir()
    for n in range(12):
        Path(f"lib/m{n}.py").write_text(f"def f{n}():\n    return '{text(80)}'\n")
    Path("strong.toml").write_text(toml_blocks("optimizers")[0])
    Path("my-study.toml").write_text(toml_blocks("compare")[0])
    Path("my-sweep.toml").write_text(toml_blocks("sweep")[0])
    Path("sweep.toml").write_text(toml_blocks("sweep")[0])
    Path("my-transfer.toml").write_text(toml_blocks("transfer")[1])
    for name, block in zip(("my-ladder", "toy"), toml_blocks("ladder"), strict=True):
        Path(f"{name}.toml").write_text(block)
    Path("tiny.toml").write_text('architecture = "ngpt"\n')


TINY: dict[str, Any] = {
    "model": {"d_model": 32, "n_layers": 1, "n_heads": 1},
    "data": {"context": 32, "val_fraction": 0.1},
    "train": {"steps": 2, "batch_tokens": 64, "eval_tokens": 64, "precision": "fp32"},
}


def small_recipe(path: Path) -> dict[str, Any]:
    """`read_toml`, of a recipe so small that it trains in a second or two."""
    table = read_toml(path)
    return table | {section: {**table.get(section, {}), **keys} for section, keys in TINY.items()}


def small_study(path: Path) -> dict[str, Any]:
    """`read_toml`, of a study with small budgets and one seed."""
    table = read_toml(path) | {"seeds": [0], "run": {"workers": 1}}
    if "budgets" in table:
        table |= {"budgets": [2048, 4096], "tune": {"points": 1}}
    if "search" in table:
        table |= {"tokens": 512, "trials": 2, "tune": {"seeds": [100], "fraction": 0.1}}
        table.pop("stop", None)
    return table


def undrawn(figures: Any, files: list[Path], *_: Any) -> None:
    """Empty files where pictures would be."""
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.touch()


@contextlib.contextmanager
def small(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within, everything is small, and a study trains its runs in this process."""
    with patch.context() as own, trained_here():
        own.setattr("unitsphere.training.recipes.read_toml", small_recipe)
        own.setattr("unitsphere.studies.core.spec.read_toml", small_study)
        # Drawing takes longer than all else: tests/report draws every figure.
        own.setattr("unitsphere.report.write.picture", lambda *_: b"")
        for module in ("report.write", "studies.quickstart"):
            own.setattr(f"unitsphere.{module}.write_picture", undrawn)
        own.setattr("unitsphere.report.write.write_pictures", lambda *_: {})
        own.setattr("unitsphere.report.write.write_film", lambda frames, path: path.touch())
        library = types.SimpleNamespace(get_path=lambda name: "lib")
        own.setattr("unitsphere.data.sources.sysconfig", library)
        own.setattr(sys, "stdin", io.StringIO("hello\n"))
        yield


SHORTER = dict.fromkeys(("--context", "--per_document", "--tokens"), 16) | dict.fromkeys(
    ("--steps", "--train.steps", "--train.save_every", "--inspect.every"), 40
)
"""Options whose numbers are divided, and by how much."""


def shorter(argv: list[str]) -> list[str]:
    """The words with smaller numbers of steps and tokens."""
    found, by = [], None
    for word in argv:
        by = SHORTER.get(word) if word.startswith("--") else by
        found.append(str(max(int(word) // by, 1)) if by and word.isdecimal() else word)
    return found


class Parsed(Exception):
    """The options were read; the command is not run."""


def only_parse(patch: pytest.MonkeyPatch, argv: list[str]) -> None:
    """Read a command's options as its verb does."""

    def read(*args: Any, **kwargs: Any) -> None:
        parse.parse(*args, **kwargs)
        raise Parsed

    with patch.context() as own:
        module = "settings" if argv[0] == "train" else app.VERBS[argv[0]][0]
        own.setattr(f"unitsphere.cli.{module}.parse", read)
        with pytest.raises(Parsed):
            main(argv)


def run(patch: pytest.MonkeyPatch, command: str) -> None:
    """Run a command as its page has it, or what stands for it."""
    if named(command, NOT_RUN):
        return
    words = shlex.split(command, comments=True)
    ours = words[words.index("unitsphere") + 1 :] if "unitsphere" in words else []
    if words[0] == "python":
        patch.setattr(sys, "argv", [*words[1:], *FEWER[words[1]]])
        runpy.run_path(str(ROOT / words[1]), run_name="__main__")
        return
    assert ours, "not a command of ours: NOT_RUN has to say why"
    if named(command, PARSED):
        only_parse(patch, ours)
    elif "--dry_run" in ours:
        assert main(ours + ["--model.n_layers", "2"] * (ours[0] == "train")) == 0
    else:
        with small(patch):
            assert main(shorter(ours) + ["--dry_run"] * named(command, PLANNED)) == 0


@pytest.mark.timeout(900)
def test_every_documented_command_runs(tmp_path, monkeypatch, capsys):
    """One after the other; a page that is not in PAGES, or a reason that names nothing, fails."""
    pages = {path.stem for path in (ROOT / "docs/how-to").glob("*.md")}
    assert {*PAGES} == {"README", *pages}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("unitsphere.training.cost.SAMPLE", 1e6)
    write_files()
    failed, every = [], []
    for page in PAGES:
        for copy, run_given in GIVEN.get(page, {}).items():
            shutil.copytree(run_given, copy)
        for command in commands(page):
            every.append(command)
            try:
                run(monkeypatch, command)
            except (AssertionError, Exception, SystemExit) as error:
                said = capsys.readouterr().err.splitlines()[-1:] or [repr(error)]
                failed.append(f"{page}: {command}\n    {said[0]}")
            capsys.readouterr()
    assert not failed, "\n".join(failed)
    for table in (NOT_RUN, PARSED, PLANNED):
        for pattern in table:
            assert any(named(command, {pattern: ""}) for command in every), pattern
