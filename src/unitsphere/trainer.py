"""Normalized models in Hugging Face's Trainer: a callback that keeps their constraints.

    from unitsphere.trainer import Constrain

    Trainer(model, arguments, train_dataset=data, callbacks=[Constrain()])

It needs transformers (`pip install 'unitsphere[hf]'`).
"""

from typing import Any

from torch.utils.hooks import RemovableHandle
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from unitsphere.training.optim.constraint import ConstraintConfig, constrain

__all__ = ["Constrain"]


class Constrain(TrainerCallback):
    """Calls `unitsphere.constrain` when training begins, after a checkpoint has been loaded.

    From then on each step of the Trainer's optimizer is followed by the projection; accumulation,
    clipping and schedules need no change. `config` replaces the constraints that the model
    declares. The projection ends with the training.
    """

    def __init__(self, config: ConstraintConfig | None = None) -> None:
        self.config = config or ConstraintConfig()
        self.handles: list[RemovableHandle] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Project after each step of the optimizer, and now unless the training resumes."""
        self.release()
        self.handles = constrain(
            kwargs["model"],
            kwargs["optimizer"],
            config=self.config,
            warmup=args.get_warmup_steps(state.max_steps),
            now=state.global_step == 0,
        )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the optimizer as it was."""
        self.release()

    def release(self) -> None:
        """Remove what `on_train_begin` attached."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
