"""Kernels are tested on a GPU where there is one, else by Triton's interpreter."""

import importlib.util
import os
import sys

import pytest
import torch

from unitsphere.kernels import using_kernels

HAS_TRITON = importlib.util.find_spec("triton") is not None
if not torch.cuda.is_available() and "TRITON_INTERPRET" not in os.environ:
    if "triton" in sys.modules:
        raise pytest.UsageError("Triton was imported before tests/kernels: set TRITON_INTERPRET=1")
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported


@pytest.fixture(autouse=True)
def _required():
    """A kernel that cannot serve fails the test; so does a machine without Triton."""
    if not HAS_TRITON:
        pytest.fail("tests/kernels needs Triton: pip install 'unitsphere[dev]'", pytrace=False)
    with using_kernels("require"):
        yield
