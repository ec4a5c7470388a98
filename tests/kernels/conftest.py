"""Kernels run on a GPU where there is one, else in Triton's interpreter (tests/conftest.py)."""

import importlib.util

import pytest

from unitsphere.kernels import using_kernels

HAS_TRITON = importlib.util.find_spec("triton") is not None


@pytest.fixture(autouse=True)
def _required():
    """A kernel that cannot serve fails the test; so does a machine without Triton."""
    if not HAS_TRITON:
        pytest.fail("tests/kernels needs Triton: pip install 'unitsphere[dev]'", pytrace=False)
    with using_kernels("require"):
        yield
