"""A training step and decoding on a GPU, without one: no tensor is left on the CPU by mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from unitsphere.models.mixers import MIXERS
from unitsphere.models.registry import ARCHITECTURES
from unitsphere.training.optim.registry import OPTIMIZERS

HERE = Path(__file__).parent
TORCH = Path(torch.__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    library = tmp_path_factory.mktemp("fake_gpu") / "fake_gpu.so"
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-std=c++20", "-shared", "-fPIC", f"-I{TORCH / 'include'}"]
    command += ["-o", library, HERE / "fake_gpu.cpp", f"-L{TORCH / 'lib'}"]
    command += ["-lc10", "-ltorch_cpu", f"-Wl,-rpath,{TORCH / 'lib'}"]
    subprocess.run(command, check=True)
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    script = [sys.executable, HERE / "fake_gpu.py", library]
    done = subprocess.run(script, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_architecture_mixer_and_optimizer_stays_on_the_gpu(found):
    wrong = "\n".join(f"{case}: {why}" for case, why in found.items() if why is not None)
    assert not wrong, wrong


def test_each_of_them_was_tried(found):
    wanted = [*ARCHITECTURES, *(f"gpt {name}" for name in OPTIMIZERS)]
    wanted += [f"{name} {mixer}" for name in ("gpt", "ngpt") for mixer in MIXERS]
    assert set(wanted) <= set(found)
