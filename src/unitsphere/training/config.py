"""The typed config of a run: architecture, model, data, optimizer, schedule, training."""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from unitsphere.config import check_seed, field_types, flatten, from_dict, to_dict
from unitsphere.data.config import DataConfig
from unitsphere.errors import UserError
from unitsphere.inspection.live import InspectConfig
from unitsphere.kernels import Mode
from unitsphere.models.config import check_shape
from unitsphere.models.mixers import ATTENTION, mixer_names
from unitsphere.models.registry import architecture
from unitsphere.models.trunk import Objective
from unitsphere.training.by_size import at_sizes, read_forms
from unitsphere.training.distributed.layout import ParallelConfig, Recompute
from unitsphere.training.guard import OnSpike
from unitsphere.training.optim import (
    OptimConfig,
    RoleConfig,
    optim_config_type,
    with_sections,
)
from unitsphere.training.optim.schedule import ScheduleConfig, decay_end
from unitsphere.training.stop import seconds_of
from unitsphere.training.transfer import opened, transferred

MOST_BATCH_TOKENS = 2**30
"""Eight times the largest published batch (MiniMax-01, arXiv 2501.08313): 10^14 would not end."""


@dataclass(frozen=True)
class TrainConfig:
    """How long, how large a batch, in what precision, and what is written when."""

    steps: int = 300
    """optimizer updates; the schedule is stretched over them"""
    tokens: float | None = None
    """training tokens, in place of steps: sets steps to the nearest number of batches"""
    batch_tokens: int = 2048
    """tokens an update: a multiple of data.context; a pair (seq2seq) counts as data.context"""
    micro_batch: int | None = None
    """sequences that go through the model at once on a process, the rest accumulates; none: as
    many as are predicted to fit a GPU, on a CPU all"""
    seed: int = 0
    """of the initial weights and of the order of the data"""
    label_smoothing: float = 0.0
    """share of each training target that is spread over the whole vocabulary; the loss of a record
    includes it, validations and evaluations never do"""
    z_loss: float = 0.0
    """weight of (log Σ exp logits)², added to each training target's loss (PaLM: 1e-4); the loss of
    a record includes it, validations and evaluations never do"""
    precision: Literal["auto", "fp32", "bf16", "fp8", "bf16-storage"] = "auto"
    """bf16: autocast over fp32 master weights; auto: bf16 where the device computes in it, else
    fp32; fp8: bf16, and the blocks' matrices multiply in FP8 where the GPU can, else as auto;
    bf16-storage: the weights themselves in bf16 (loses small updates, not recommended)"""
    eval_every: int = 100
    """steps between validations; 0: at the end only"""
    eval_tokens: int | None = None
    """tokens of the validation split to score each time, evenly spread; none: all"""
    save_every: int = 100
    """steps between checkpoints; 0: at the end only"""
    keep_last: int = 2
    """checkpoints to keep"""
    keep_every: int | None = None
    """steps between checkpoints that are saved and always kept"""
    async_save: bool = True
    """train on while a copy of the state is written; it takes as much of the host's memory"""
    hang_timeout: str | None = "30m"
    """time without headway after which the run says where it stands; none: never"""
    on_spike: OnSpike = "stop"
    """what happens with an update whose loss or gradient is not finite, or whose loss is a spike:
    stop; skip: leave it out; rollback: go back to the last checkpoint and leave it out"""
    spike_sigma: float | None = None
    """a loss is a spike above the mean of the last 100 by this many standard deviations, 6 for
    example; none: only what is not finite is one"""
    stop_at_divergence: bool = False
    """the run is over when its loss diverges (training/guard.py), without being an error"""
    time_limit: str | None = None
    """wall-clock time of a session, such as 90m, 2h30m or seconds: the run saves and exits with
    status 75 before it is over"""
    log_every: int = 10
    """steps between records in metrics.jsonl"""
    wandb: str | None = None
    """project of Weights & Biases to which the records go too; WANDB_MODE=offline: into the run
    folder; none: off"""
    sample_every: int = 0
    """steps between samples of text; 0: at the end only"""
    recompute: Recompute = "none"
    """what of the blocks is computed again in the backward pass instead of kept: none; selective:
    all but matrix products and attention; full"""
    compile: bool | None = None
    """compile the blocks and the loss with torch.compile; none: on a GPU"""
    kernels: Mode = "auto"
    """auto: Triton kernels where they serve, on a GPU; off; require: an error where one does not"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UserError(
                f"train.label_smoothing must be at least 0 and below 1: {self.label_smoothing}"
            )
        if not 0 <= self.z_loss < math.inf:
            raise UserError(f"train.z_loss must be a number from 0 on: {self.z_loss}")
        if self.tokens is not None:
            self.set_steps(self.tokens)
        counts = ("steps", "batch_tokens", "micro_batch", "eval_tokens", "keep_last", "keep_every")
        for name in counts:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"train.{name} must be at least 1: {value}")
        if self.batch_tokens > MOST_BATCH_TOKENS:
            raise UserError(
                f"train.batch_tokens must be at most {MOST_BATCH_TOKENS:,}: {self.batch_tokens:,}"
            )
        if self.spike_sigma is not None and not 0 < self.spike_sigma < math.inf:
            raise UserError(f"train.spike_sigma must be a number above 0: {self.spike_sigma}")
        for name in ("time_limit", "hang_timeout"):
            if getattr(self, name) is not None:
                seconds_of(getattr(self, name), f"train.{name}")
        if self.log_every < 1:
            raise UserError(f"train.log_every must be at least 1: {self.log_every}")
        for name in ("seed", "eval_every", "save_every", "sample_every"):
            if getattr(self, name) < 0:
                raise UserError(f"train.{name} must not be negative: {getattr(self, name)}")
        check_seed("train.seed", self.seed)

    def set_steps(self, tokens: float) -> None:
        """Turn `tokens` into `steps`, so that a config has one length."""
        if not 0 < tokens < math.inf:
            raise UserError(f"train.tokens must be a number above 0: {tokens}")
        if self.batch_tokens >= 1:  # else refused by what follows
            object.__setattr__(self, "steps", steps_for(tokens, self.batch_tokens))
        object.__setattr__(self, "tokens", None)


def steps_for(tokens: float, batch_tokens: int) -> int:
    """The number of updates that comes nearest to a budget of training tokens.

    Raises UserError for a budget that comes nearer to no update than to one.
    """
    steps = round(tokens / batch_tokens)
    if steps < 1:
        raise UserError(
            f"{tokens:,.0f} training tokens are less than a step of {batch_tokens:,}: "
            "take more tokens or a lower train.batch_tokens"
        )
    return steps


def one_length(table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """A layer of settings whose `train.steps` replaces a `train.tokens` of the layers below it.

    Raises UserError for a layer with both.
    """
    train = table.get("train")
    if not isinstance(train, Mapping) or "steps" not in train:
        return table
    if train.get("tokens") is not None:
        raise UserError(f"{where}: give train.steps or train.tokens, not both")
    return {**table, "train": {**train, "tokens": None}}


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run. `run_config_type` gives the type with an architecture's own model."""

    architecture: str
    model: Any
    objective: Objective = "clm"
    """clm: predict the next token; mlm: a bidirectional encoder that predicts masked tokens;
    seq2seq: an encoder and a decoder, from source to target"""
    init: str | None = None
    """folder of the run whose newest weights this one starts with; none: with random ones"""
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    inspect: InspectConfig = field(default_factory=InspectConfig)

    def __post_init__(self) -> None:
        check_shape(self.model)  # before a law divides by these
        object.__setattr__(self, "model", at_sizes(self.model))
        object.__setattr__(self, "optim", with_sections(self.optim))
        model, optim = transferred(self)
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "optim", optim)
        if self.data.document_mask and self.objective != "clm":
            raise UserError(
                f"data.document_mask is for objective clm, not {self.objective}: leave it out"
            )
        if self.train.precision == "bf16-storage" and self.model.n_experts:
            raise UserError(
                "model.n_experts needs routers and their bias in fp32: take train.precision bf16 "
                "instead of bf16-storage"
            )
        if self.train.precision == "fp8" and self.parallel.tp > 1:
            raise UserError("train.precision fp8 does not go with parallel.tp: take bf16")
        decay_end(self.schedule, self.train.steps)  # refuses one after the run
        self.check_roles()
        if self.optim.head_by_frequency and self.model.tied:
            raise UserError(
                "optim.head_by_frequency is for a head of its own: set model.tied false, or leave "
                "it out"
            )

    @property
    def rows(self) -> int:
        """Sequences of a batch, over all processes."""
        return self.train.batch_tokens // self.data.context

    @property
    def special_ids(self) -> int:
        """Ids that the model needs beyond its tokenizer's: the mask token."""
        return 1 if self.objective == "mlm" else 0

    def unread(self) -> list[str]:
        """A line for each number of model, data or rates that is set and that nothing reads.

        No error: a run that was trained with one, to no effect, still loads.
        """
        model, optim = self.model, self.optim
        held = {
            "model": model,
            "data": self.data,
            "optim.rates": optim.rates,
            "optim.roles.router": optim.roles.router,
        }
        keys = flatten({name: to_dict(part) for name, part in held.items()})
        plain = flatten({name: to_dict(type(part)()) for name, part in held.items()})
        experts = ("model.top_k", "model.shared_experts", "model.balance")
        router = ("optim.rates.router", "optim.roles.router.")
        recurrent = set(mixer_names(model)) != {ATTENTION}
        parts = [
            (experts + router, model.n_experts, "model.n_experts"),
            (("optim.rates.head",), not model.tied, "model.tied false"),
            (("model.bigram_dim",), keys.get("model.bigram_rows"), "model.bigram_rows"),
            (("model.recurrence.",), recurrent, "recurrent model.mixers"),
            (("data.mask.",), self.objective == "mlm", "objective mlm"),
        ]
        return [
            f"{key} {value} is for {what}: it is not used"
            for names, used, what in parts
            if not used
            for key, value in keys.items()
            if key.startswith(names) and value != plain[key]
        ]

    def check_roles(self) -> None:
        """A `UserError` for numbers in `optim.roles` that neither schedule nor model reads."""
        numbers = self.optim.roles
        if numbers.cooldowns and self.schedule.kind != "wsd":
            raise UserError(
                "a cool-down in optim.roles is for schedule.kind wsd, not "
                f"{self.schedule.kind}: set that, with schedule.decay 1 for a linear schedule"
            )
        if numbers.head != RoleConfig() and self.model.tied:
            raise UserError(
                "optim.roles.head is for a head that is not tied: set model.tied false, or "
                "optim.roles.embedding, which has the tied head too"
            )


def run_config_type(name: str) -> type[RunConfig]:
    """`RunConfig` whose `model` has the config type of architecture `name`, every key defaulted.

    Raises UserError with the nearest match for an unknown architecture.
    """
    return _run_config_type(name, optim_config_type())


@functools.cache
def _run_config_type(name: str, optim: type[OptimConfig]) -> type[RunConfig]:
    """`run_config_type` for one set of registered optimizers."""
    model = architecture(name).config
    fields = [
        ("architecture", Literal[name], field(default=name)),
        ("model", model, field(default_factory=model)),
        ("optim", optim, field(default_factory=optim)),
    ]
    made = dataclasses.make_dataclass(
        f"{model.__name__.removesuffix('Config')}RunConfig",
        fields,
        bases=(RunConfig,),
        frozen=True,
    )
    made.__doc__ = f"All settings of a run of {name}."
    return cast(type[RunConfig], made)


def read_config(
    kind: type[RunConfig], data: Mapping[str, Any], given: Collection[str] | None = None
) -> RunConfig:
    """`from_dict` of a run's config, whose model may have numbers by its sizes ("sqrt(d)").

    given: the keys that the user has set, which optim.transfer leaves as they are; none: all.
    """
    model = data.get("model")
    if isinstance(model, Mapping):
        data = {**data, "model": read_forms(field_types(kind)["model"], model)}
    return opened(from_dict(kind, data), flatten(data) if given is None else given)
