"""Scripts may import `load_classifier` from here; its home is `unitsphere.finetune`."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("unitsphere.finetune"), name)
