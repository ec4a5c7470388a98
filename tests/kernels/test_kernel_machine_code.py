"""The interpreter forgives what a GPU does not: every kernel is compiled for one as well."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unitsphere.kernels.registry import REGISTRY

SCRIPT = Path(__file__).parent / "machine_code.py"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("triton"))
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, SCRIPT], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_kernel_compiles_for_hopper_at_the_papers_sizes_and_spills_nothing(report):
    assert {name.split()[0].removesuffix("_backward") for name in report} == set(REGISTRY)
    assert {name: operator["stack"] for name, operator in report.items()} == dict.fromkeys(
        report, 0
    )


def test_the_compiler_sees_which_inputs_a_kernel_writes(report):
    """It copies what it must take for written: Adam's state and nothing else."""
    held = ["weight_ptr", "exp_avg_ptr", "exp_avg_sq_ptr", "shadow_ptr"]
    for name, operator in report.items():
        assert sorted(operator["written"]) == (sorted(held) if "adam" in name else [])
