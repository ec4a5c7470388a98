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
