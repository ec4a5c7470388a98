"""The suite begins with the signals' own meanings: nohup and some CI runners ignore a few.

Without a GPU Triton interprets kernels. It reads that when it is imported, which the compiler does.
"""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from tiny_recipe import TEXT, tiny_recipe

# The key with which runs are signed: not the user's own.
state = tempfile.TemporaryDirectory(prefix="unitsphere-state-")
os.environ["XDG_STATE_HOME"] = state.name

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        ignored_by_default = number != signal.SIGINT
        signal.signal(number, signal.SIG_DFL if ignored_by_default else signal.default_int_handler)

settings.register_profile("no clock", deadline=None)  # a busy machine is not a failure
settings.load_profile("no clock")


@pytest.fixture(autouse=True, scope="session")
def _short_samples() -> Iterator[None]:
    """A tiny run's sample takes longer than its training: a few tokens of it do."""
    from unitsphere.inference import samples

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "TOKENS", 24)
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text.txt, tiny.toml, `run`, which was trained on both, and other `shards`.

    Tests share it: they change a copy of it, if anything.
    """
    from unitsphere.cli import main

    folder = tmp_path_factory.mktemp("trained")
    settings = {"steps": 6, "save_every": 2, "log_every": 1}
    recipe = tiny_recipe(model={"n_layers": 2}, data={"context": 32}, lr=1e-2, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("text.txt").write_text(TEXT * 200)
        Path("tiny.toml").write_text(recipe)
        assert main(["prepare", "text.txt", "--tokenizer", "bpe:300", "--out", "shards"]) == 0
        assert main(["train", "tiny.toml", "--out", "run"]) == 0
    return folder
