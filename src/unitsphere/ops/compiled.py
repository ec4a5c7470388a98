"""Functions that are compiled wherever they run."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """A function that needs the compiler, for instance not to hold all scores of attention.

    Inside a function that is being compiled it is a part of that one. Otherwise it is compiled
    separately, at its first use: the compiler takes seconds to import.
    """
    return function if torch.compiler.is_compiling() else _compiled(function)


@functools.cache
def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    return torch.compile(function)
