"""Normalized Transformers (nGPT, anGPT, NormFormer) and the baselines they are measured against.

`unitsphere.build`, `unitsphere.load` and `unitsphere.constrain` are the library, `unitsphere.nn`
has sublayers for your own models, `unitsphere.optim` optimizers for your own loop. A user's mistake
raises `unitsphere.UserError`. The command line is `unitsphere --help`. Names are imported at their
first use, so importing the package is fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unitsphere.errors import UserError
    from unitsphere.models.constraint import project_ as project
    from unitsphere.models.plans import fold_ as fold
    from unitsphere.models.registry import build
    from unitsphere.training.load import load_run as load
    from unitsphere.training.optim.constraint import constrain

__version__ = "0.1.0"
__all__ = [
    "UserError",
    "__version__",
    "build",
    "constrain",
    "fold",
    "load",
    "nn",  # pyright: ignore[reportUnsupportedDunderAll] - imported when first used
    "optim",  # pyright: ignore[reportUnsupportedDunderAll] - imported when first used
    "project",
]

_HOMES = {
    "UserError": ("unitsphere.errors", "UserError"),
    "build": ("unitsphere.models.registry", "build"),
    "constrain": ("unitsphere.training.optim.constraint", "constrain"),
    "fold": ("unitsphere.models.plans", "fold_"),
    "load": ("unitsphere.training.load", "load_run"),
    "project": ("unitsphere.models.constraint", "project_"),
}


def __getattr__(name: str) -> Any:
    if name in ("nn", "optim"):
        return importlib.import_module(f"unitsphere.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'unitsphere' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
