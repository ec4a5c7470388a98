"""What a run would cost before it is trained: operations, hours, and what it leaves on the disk.

On a CPU the speed is measured: a forward and a backward pass of the model, made smaller until it
takes about a second. A GPU is not asked, since most plans are made elsewhere: its speed is assumed.
"""

import dataclasses
import time
from dataclasses import dataclass

import torch

from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Transformer
from unitsphere.training.config import RunConfig
from unitsphere.training.device import autocast, pick_device, pick_precision
from unitsphere.training.flops import PEAK_BF16, flops_per_token, peak_flops
from unitsphere.training.parallel.forecast import optimizer_bytes

SHARE = 0.4
"""Of a GPU's peak, what training is assumed to reach."""
PEAK_FP32 = 67e12
"""Operations a second of an H100 in fp32, from its data sheet."""
SAMPLE = 2e10
"""Operations of the pass that is timed, at most: well below a second of a core."""


@dataclass(frozen=True)
class Speed:
    """Floating-point operations a second of a process, and where the figure comes from."""

    flops: float
    how: str


@dataclass(frozen=True)
class Cost:
    """A run: parameters, training tokens, operations, and what its checkpoints take.

    disk: bytes of those that are kept at the end.
    """

    parameters: int
    tokens: int
    flops: int
    disk: int

    def hours(self, speed: Speed, world: int = 1) -> float:
        """Hours of training on `world` processes; validations and saving come on top."""
        return self.flops / speed.flops / world / 3600


def cost(config: RunConfig) -> Cost:
    """What training `config` (resolved) would cost, from shapes alone."""
    model = shapes(config)
    train = config.train
    tokens = train.steps * train.batch_tokens
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    checkpoint = weights + optimizer_bytes(config, model)
    kept = train.keep_last + (train.steps // train.keep_every if train.keep_every else 0)
    if train.save_every:
        kept = min(kept, -(-train.steps // train.save_every))
    return Cost(
        parameters=sum(p.numel() for p in model.parameters()),
        tokens=tokens,
        flops=tokens * flops_per_token(model, config.data.context),
        disk=checkpoint * (kept if train.save_every else 1),
    )


def shapes(config: RunConfig) -> Transformer:
    """The config's model, its tensors without values."""
    return build_from(config.architecture, config.model, "meta", objective=config.objective)


def planned_device(config: RunConfig, world: int) -> torch.device:
    """Where a run would be trained: `auto` with several processes means GPUs, also from afar."""
    if config.train.device == "auto" and world > 1:
        return torch.device("cuda")
    return pick_device(config.train.device)


def speed(config: RunConfig, device: torch.device) -> Speed:
    """A process's speed on the device: measured on a CPU, assumed of a GPU."""
    if device.type == "cuda":
        return assumed(config, device)
    small = sample(config)
    model = build_from(small.architecture, small.model, device, objective=small.objective)
    shape = small.train.batch_tokens // small.data.context, small.data.context
    tokens = torch.randint(small.model.vocab_size, shape)
    source = tokens if small.objective == "seq2seq" else None
    precision = pick_precision(small.train.precision, device)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        with autocast(device, precision):
            loss = model.loss(tokens, tokens, source=source)
        loss.backward()
        seconds.append(time.perf_counter() - began)
    flops = flops_per_token(model, small.data.context) * small.train.batch_tokens
    rate = flops / min(seconds)
    return Speed(rate, f"measured here: {rate / 1e9:,.0f} GFLOP/s in a forward and backward pass")


def assumed(config: RunConfig, device: torch.device) -> Speed:
    """The speed of a GPU: SHARE of its peak, of an H100's if it is not known or not here."""
    precision = "fp32" if config.train.precision == "fp32" else "bf16"
    peak = peak_flops(device, precision) if torch.cuda.is_available() else None
    chip = torch.cuda.get_device_name(device) if peak else "H100"
    peak = peak or (PEAK_FP32 if precision == "fp32" else PEAK_BF16[chip])
    return Speed(
        SHARE * peak,
        f"assumed: {SHARE:.0%} of the {precision} peak of a GPU like {chip}, a process",
    )


def sample(config: RunConfig) -> RunConfig:
    """The config with fewer sequences, layers and tokens, until a step has SAMPLE operations."""
    model, data, train = config.model, config.data, config.train

    def flops() -> int:
        made = build_from(config.architecture, model, "meta", objective=config.objective)
        return flops_per_token(made, data.context)

    def batch() -> int:
        return max(int(SAMPLE / flops()) // data.context, 1) * data.context

    if flops() * data.context > SAMPLE:
        model = dataclasses.replace(model, n_layers=1)
    if flops() * data.context > SAMPLE:
        data = dataclasses.replace(data, context=max(int(SAMPLE / flops()), 16))
    train = dataclasses.replace(train, batch_tokens=min(train.batch_tokens, batch()))
    return dataclasses.replace(config, model=model, data=data, train=train)
