"""What is imported by the first step of a run and by the first token of a sample.

Imports are most of the time until then (docs/results/speed.md).
"""

import subprocess
import sys

import pytest
from tiny_recipe import TEXT, tiny_recipe

SLOW = (
    *("torch._dynamo", "torch._inductor", "triton", "sympy"),
    *("torch.distributed.tensor", "torch.distributed.fsdp", "torch.distributed.checkpoint"),
    *("tensorboard", "matplotlib", "pandas", "transformers"),
)
"""Modules that take from 0.1 to 2 s, for what is no part of a step."""

FIRST_STEP = """
import sys, time
from unitsphere.cli import main
import unitsphere.training.run as run
from unitsphere.training.step import update
def first_step(trainer, step, monitor):
    update(trainer, step)
    print(time.process_time(), *(name for name in SLOW if name in sys.modules))
    raise SystemExit
run.train_steps = first_step
main(["train", "recipe.toml", "--out", "run"])
"""
FIRST_TOKEN = """
import sys, time
from unitsphere.cli import main
main(["generate", "run", "--prompt", "The", "--max_tokens", "1"])
print(time.process_time(), *(name for name in SLOW if name in sys.modules))
"""


def slow_modules(code, folder):
    """The slow modules that a new process has imported when `code` has run in `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", f"SLOW = {SLOW}\n{code}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT * 200)
    (tmp_path / "recipe.toml").write_text(tiny_recipe())
    return tmp_path


def test_the_first_step_needs_no_slow_module_of_other_work(recipe):
    assert slow_modules(FIRST_STEP, recipe) == []


def test_the_first_token_needs_none_either(recipe):
    subprocess.run(
        [sys.executable, "-m", "unitsphere", "train", "recipe.toml", "--out", "run"],
        cwd=recipe,
        check=True,
        capture_output=True,
        timeout=300,
    )
    assert slow_modules(FIRST_TOKEN, recipe) == []
