"""tensor parallel (placeholder)."""

from unitsphere.models.trunk import Transformer
from unitsphere.training.parallel.layout import Layout


def share_matrices(model: Transformer, layout: Layout) -> None:
    raise NotImplementedError
