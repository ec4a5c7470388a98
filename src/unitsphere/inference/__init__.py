"""Using a trained model: sampling text with a key-value cache."""

from unitsphere.inference.generate import Completion, generate, generate_text
from unitsphere.inference.samples import sample_text

__all__ = ["Completion", "generate", "generate_text", "sample_text"]
