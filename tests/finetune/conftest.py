"""The same small runs as the tests of training have."""

from training.conftest import one_thread, source, tiny

__all__ = ["one_thread", "source", "tiny"]
