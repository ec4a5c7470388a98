"""Fine-tuning: a classifier on a trained model, by the step that training uses."""

from unitsphere.finetune.classify import TextClassifier, load_classifier
from unitsphere.finetune.data import FinetuneConfig
from unitsphere.finetune.run import finetune

__all__ = ["FinetuneConfig", "TextClassifier", "finetune", "load_classifier"]
