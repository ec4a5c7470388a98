"""Mutation check: change one equation at a time and see which test notices.

    python benchmarks/mutations.py --out docs/results/mutations.md

Each mutant is one textual change to a copy of the source (benchmarks/mutants.toml lists them), on
which the quick tests of its folder run until the first failure. A mutant that no test kills is
either listed there as equivalent, with the reason, or a hole in the tests: then the exit code is 1.
"""

import argparse
import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src" / "unitsphere"
MODELS = [  # the cheapest first: one failure is enough
    "tests/models/test_factors.py",
    "tests/models/test_layout.py",
    "tests/models/test_folding.py",
    "tests/models/test_grouped.py",
    "tests/models/test_window.py",
    "tests/models/test_documents.py",
    "tests/models/test_designs.py",
    "tests/models/test_mistakes.py",
    "tests/models/test_oracles.py",
    "tests/models/test_contract.py",
    "tests/models/test_contract_objectives.py",
    "tests/models/test_edges_starts.py",
    "tests/models/test_edges_dtype.py",
    "tests/models/test_oracles_objectives.py",
]
TRAINING = [
    "tests/models/test_layout.py",
    "tests/training/optim/test_schedule.py",
    "tests/training/optim/test_optim_config.py",
    "tests/training/optim/test_optim_groups.py",
    "tests/training/optim/test_remembered.py",
    "tests/training/optim/test_constraint.py",
    "tests/training/optim/test_frobenius.py",
    "tests/training/optim/test_cpr.py",
    "tests/training/optim/test_muon.py",
    "tests/training/optim/test_frequency.py",
    "tests/training/optim/test_roles.py",
    "tests/training/optim/test_angle.py",
    "tests/training/optim/test_average.py",
    "tests/training/optim/test_soap.py",
    "tests/training/test_size_laws.py",
    "tests/training/optim/test_muon_kin.py",
    "tests/training/optim/test_constraint_contract.py",
]
SUITES = {
    "ops": ["tests/ops", *MODELS],
    "models": MODELS,
    "kernels": ["tests/kernels/test_device_attention.py"],
    "training": TRAINING,
    "inference": ["tests/models/test_exported.py"],
}
"""Folder of the source -> the tests that its mutants meet."""
MIXERS = ["tests/models/mixers/test_recurrent_mixers.py", "tests/protocols/test_toy_mixer.py"]
EXTRA = {
    **{f"models/mixers/{name}.py": MIXERS for name in ("gdn", "mamba2", "gla", "recurrent")},
    "models/plans.py": MIXERS,
    "models/experts.py": ["tests/models/test_experts.py"],
    "models/constraint.py": TRAINING,
    "models/context.py": ["tests/inference/test_decode.py"],
    "models/exported.py": ["tests/models/test_exported.py"],
    "models/trunk.py": ["tests/inference/test_decode.py"],
    "ops/loss.py": ["tests/training/optim/test_angle.py"],
    "training/config.py": ["tests/training/test_transfer.py"],
    "training/transfer.py": ["tests/training/test_transfer.py"],
    "training/step.py": ["tests/training/distributed/test_parallel_losses.py"],
}
LIKELY = {
    "models/context.py": "objectives",
    "models/trunk.py": "objectives",
    "training/config.py": "transfer",
    "training/step.py": "two_processes",
}
"""What the tests that most likely notice have in their names, where it is not the file's name."""


def suite(file: str) -> list[str]:
    """The tests that a mutant of `file` meets."""
    return [*SUITES[file.split("/")[0]], *EXTRA.get(file, [])]


@dataclass(frozen=True)
class Mutant:
    """One change: in `file`, the only occurrence of `old` becomes `new`."""

    file: str
    old: str
    new: str
    what: str
    equivalent: str = ""


def mutants() -> list[Mutant]:
    """All of them, each checked to apply: `old` occurs exactly once."""
    table = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text(encoding="utf-8"))
    found = [Mutant(**entry) for entry in table["mutant"]]
    for m in found:
        count = (SOURCE / m.file).read_text(encoding="utf-8").count(m.old)
        if count != 1:
            raise ValueError(f"{m.file} has {count} times, not once: {m.old!r}")
    return found


class FirstFailure:
    """A pytest plugin: likely tests first, and the name of the first that fails."""

    def __init__(self, likely: str) -> None:
        self.likely, self.name = likely, ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Tests that most likely notice come first."""
        items.sort(key=lambda item: self.likely not in item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for each phase of each test."""
        if report.failed and not self.name:
            self.name = report.nodeid.removeprefix("tests/")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Called for each collected file: one that cannot be imported fails here."""
        if report.failed and not self.name:
            self.name = f"{report.nodeid.removeprefix('tests/')} (at import)"


def killer(mutant: Mutant | None, file: str) -> str:
    """The first of the file's tests that fails on the mutant (none: as the source is), or ""."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "unitsphere"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            path = copy / mutant.file
            text = path.read_text(encoding="utf-8").replace(mutant.old, mutant.new)
            path.write_text(text, encoding="utf-8")
        return _in_child(folder, file)


def _in_child(folder: str, file: str) -> str:
    """Run the tests on the package in `folder`, in a fork: torch is imported once for all."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        plugin = FirstFailure(LIKELY.get(file, Path(file).stem))
        sys.path.insert(0, folder)
        path = os.environ.get("PYTHONPATH")  # of the processes that tests start
        os.environ["PYTHONPATH"] = folder if path is None else f"{folder}{os.pathsep}{path}"
        # torch's cache knows a custom operator by its name: it would give the unchanged gradient
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/compiled"
        with open(os.devnull, "w") as void, contextlib.redirect_stdout(void):
            options = ["-x", "-q", "-m", "not gpu", "-p", "no:cacheprovider"]
            options += ["--rootdir", str(REPOSITORY)]
            code = pytest.main([*options, *suite(file)], plugins=[plugin])
        name = plugin.name or ("" if code == 0 else f"pytest ended with {code}")
        os.write(write, name.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        name = pipe.read()
    _, status = os.waitpid(child, 0)
    return name if status == 0 else f"the tests crashed ({status})"


def commit() -> str:
    """The short hash of the checked-out commit."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()


def cell(text: str) -> str:
    """Code in a cell of a Markdown table: on one line, its bars escaped."""
    return "`" + " ⏎ ".join(line.strip() for line in text.splitlines()).replace("|", "\\|") + "`"


def row(mutant: Mutant, test: str) -> str:
    """One line of the table."""
    new = cell(mutant.new) if mutant.new.strip() else "(nothing)"
    fate = cell(test) if test else f"equivalent: {mutant.equivalent}"
    if not test and not mutant.equivalent:
        fate = "**survived**"
    return f"| {mutant.what} | `{mutant.file}` | {cell(mutant.old)} | {new} | {fate} |"


def report(fates: list[tuple[Mutant, str]], seconds: float) -> str:
    """The page: the count, the table, and how it was made."""
    killed = sum(bool(test) for _, test in fates)
    equivalent = sum(not test and bool(m.equivalent) for m, test in fates)
    machine = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    lines = [
        "# Mutation check of the equations and the optimizers",
        "",
        f"**Of {len(fates)} mutants the tests kill {killed}. Equivalent: {equivalent}. "
        f"Survivors: {len(fates) - killed - equivalent}.**",
        "",
        "| mutation | file | from | to | killed by |",
        "|---|---|---|---|---|",
        *(row(m, test) for m, test in fates),
        "",
        "## How it was measured",
        "",
        "Each mutant is one textual change of the source; the last column is the first test that "
        "fails.",
        "Made by `python benchmarks/mutations.py --out docs/results/mutations.md`",
        f"at commit {commit()} on {machine}, in {seconds / 60:.0f} minutes.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run all mutants; 0 if only equivalent ones survive."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="Markdown file to write")
    out = parser.parse_args().out.resolve()
    os.chdir(REPOSITORY)
    torch.set_num_threads(1)
    start, fates = time.perf_counter(), []
    for folder in SUITES:
        if found := killer(None, f"{folder}/"):
            print(f"the tests fail on the source as it is: {found}", file=sys.stderr)
            return 2
    for m in mutants():
        test = killer(m, m.file)
        print(f"{m.file}: {m.what}: {test or 'no test failed'}", flush=True)
        fates.append((m, test))
        out.write_text(report(fates, time.perf_counter() - start), encoding="utf-8")
    return int(any(not test and not m.equivalent for m, test in fates))


if __name__ == "__main__":
    raise SystemExit(main())
