"""Which kernel of SDPA comes first, by what a chip says of itself."""

import pytest
import torch
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends

from unitsphere.kernels.device_attention import OPT_OUT, attention_backends, use_attention_of

CUDNN, FLASH = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION
H200, B200, B300, A100, L40S, RTX5090 = (9, 0), (10, 0), (10, 3), (8, 0), (8, 9), (12, 0)


@pytest.fixture(autouse=True)
def _no_wish(monkeypatch):
    monkeypatch.delenv(OPT_OUT, raising=False)


def order():
    return _cur_sdpa_kernel_backends(with_priority=True)


@pytest.mark.parametrize("chip", [H200, B200, B300])
def test_cudnn_comes_first_on_hopper_and_blackwell_if_it_is_fixed(chip, monkeypatch):
    assert attention_backends(chip, 91501)[:2] == [CUDNN, FLASH]
    for old in (91500, 90100, None):
        assert attention_backends(chip, old)[0] == FLASH
    monkeypatch.setenv(OPT_OUT, "1")
    assert attention_backends(chip, 91501)[0] == FLASH


@pytest.mark.parametrize("chip", [A100, L40S, RTX5090])
def test_flash_comes_first_elsewhere(chip):
    assert attention_backends(chip, 92000)[0] == FLASH


@pytest.mark.parametrize("chip", [H200, A100])
def test_every_kernel_stays_allowed(chip):
    found = attention_backends(chip, 91501)
    assert len(found) == len(set(found)) == 4
    assert found.index(SDPBackend.MATH) > found.index(SDPBackend.EFFICIENT_ATTENTION)


def test_the_order_is_set_for_a_gpu_and_taken_back_for_a_cpu(monkeypatch):
    before = order()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: H200)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91501)
    use_attention_of(torch.device("cuda"))
    assert order()[:4] == attention_backends(H200, 91501)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: A100)
    use_attention_of(torch.device("cuda"))
    assert order()[:4] == attention_backends(A100, 91501)
    use_attention_of(torch.device("cpu"))
    assert order() == before
