import subprocess
import sys

import pytest

from unitsphere.errors import UserError
from unitsphere.training.device import pick_device


@pytest.mark.parametrize("name", ["meta", "mps", "xla", "cpu:0", "cuda:-1", "cuda:١", "", "CPU"])
def test_a_device_that_is_not_supported_is_one_line(name):
    with pytest.raises(UserError, match="is not supported: use cpu, cuda"):
        pick_device(name)


@pytest.mark.parametrize("name", ["cuda:999", "cuda:99999999999999999999"])
def test_a_gpu_that_is_not_there_is_one_line(name):
    with pytest.raises(UserError, match="is not"):
        pick_device(name)


FAULTS = """
import resource, torch
from unitsphere.training.device import keep_freed_memory
keep_freed_memory(torch.device("cpu"))
def faults():
    made = [torch.ones(3 << 20) for _ in range(3)]  # 12 MiB each
    del made
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
for _ in range(10):
    after = faults()
print(after - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_memory_that_tensors_free_is_kept():
    said = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
    )
    assert int(said.stdout) < 9 * 3 * 1024  # a third of the pages; by default all of them
