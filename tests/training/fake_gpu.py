"""Train and decode on a GPU that need not be there: tensors have a device and a dtype, no values.

Run by test_fake_gpu.py, with a library of fake_gpu.cpp as its argument. Prints one JSON document:
case -> what went wrong, or null. Tensors of two devices in one operation are an error, and so is
reading a value of the GPU in a step, which would wait for it.
"""

import ctypes
import itertools
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

library = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # before torch

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._subclasses import fake_impls, fake_tensor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily  # noqa: E402
from torch.nn.attention import SDPBackend, flex_attention  # noqa: E402

from unitsphere.bench.arms import RandomBatches  # noqa: E402
from unitsphere.inference import decode  # noqa: E402
from unitsphere.kernels import device_attention  # noqa: E402
from unitsphere.models import registry  # noqa: E402
from unitsphere.models.mixers import MIXERS  # noqa: E402
from unitsphere.models.registry import ARCHITECTURES  # noqa: E402
from unitsphere.ops import compiled  # noqa: E402
from unitsphere.training.config import RunConfig, read_config, run_config_type  # noqa: E402
from unitsphere.training.optim import frequency  # noqa: E402
from unitsphere.training.optim.registry import OPTIMIZERS  # noqa: E402
from unitsphere.training.plan import Trainer, build_trainer  # noqa: E402
from unitsphere.training.step import update  # noqa: E402

CONTEXT, ROWS, V = 32, 4, 64
MODEL = {"d_model": 64, "n_layers": 1, "n_heads": 2, "vocab_size": V}
TRAIN = {"device": "cuda", "precision": "bf16", "compile": False, "kernels": "auto"}
TRAIN |= {"batch_tokens": CONTEXT * ROWS, "micro_batch": 2}
SHIFTED = {"token_shift": True, "key_offset": True, "rotary_fraction": 0.5}
Changes = dict[str, dict[str, Any]]
CASES: dict[str, tuple[str, Changes]] = {
    **{name: (name, {}) for name in ARCHITECTURES},
    **{
        f"{name} {mixer}": (
            name,
            # Without kernels: those of fla would run, were it installed.
            {"model": {"mixers": f"{mixer} attention", "n_layers": 2}, "train": {"kernels": "off"}},
        )
        for name, mixer in itertools.product(("gpt", "ngpt"), MIXERS)
    },
    **{f"gpt {name}": ("gpt", {"optim": {"name": name}}) for name in OPTIMIZERS},
    "ngpt experts": ("ngpt", {"model": {"n_experts": 4, "top_k": 2, "shared_experts": 1}}),
    "ngpt window": ("ngpt", {"model": {"window": 8, "n_kv_heads": 1}}),
    "gpt documents": ("gpt", {"data": {"document_mask": True}}),
    "ngpt token shift": ("ngpt", {"model": SHIFTED}),
    "ngpt fp32": ("ngpt", {"train": {"precision": "fp32"}}),
    "ngpt fp8": ("ngpt", {"train": {"precision": "fp8"}}),
    "ngpt without kernels": ("ngpt", {"train": {"kernels": "off"}}),
    "ngpt recompute selective": ("ngpt", {"train": {"recompute": "selective"}}),
    "ngpt recompute full": ("ngpt", {"train": {"recompute": "full"}}),
    "ngpt spikes": ("ngpt", {"train": {"on_spike": "rollback", "spike_sigma": 6.0}}),
    "ngpt logit power": ("ngpt", {"optim": {"logit_power": 1.0}}),
    "ngpt average": ("ngpt", {"optim": {"average": {"kind": "ema"}}}),
    "ngpt head by frequency": (
        "ngpt",
        {"optim": {"name": "muon", "muon_head": True, "head_by_frequency": True}},
    ),
}
stepping = False
"""Whether a step is being made, in which no value of the GPU may be read."""


def scalar(mode: FakeTensorMode, func: object, x: Tensor) -> bool | int | float:
    """The value of a tensor that has none: 1, or of a count on the CPU 10."""
    if x.device.type == "cuda":
        if stepping:
            raise RuntimeError("the step reads a value of the GPU, and waits for it")
        return True if x.dtype == torch.bool else 1
    return 10


class OnHost(torch.Generator):
    """A generator of any device, on the CPU: tensors without values draw nothing."""

    def __new__(cls, device: object = "cpu") -> "OnHost":
        return super().__new__(cls)


def pretend() -> None:
    """Let torch take the machine for one with a GPU, and compile nothing."""
    library.use_guard()
    answers: dict[str, object] = {
        "is_available": True,
        "is_bf16_supported": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": (9, 0),
        "is_current_stream_capturing": False,
        "_lazy_init": None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *given, answer=answer, **more: answer)
    torch.Generator = OnHost
    fake_tensor.init_gpu_context = lambda *given: None
    FakeTensorMode.avoid_device_init = property(lambda mode: True)  # pyright: ignore
    scalars = torch.ops.aten._local_scalar_dense.default
    fake_impls.op_implementations_dict[scalars] = scalar
    device_attention.backends_of = lambda device: [SDPBackend.MATH]
    flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # pyright: ignore
    compiled._compiled = lambda function: function  # pyright: ignore
    decode.compiled_step = lambda: decode.one_token  # pyright: ignore
    registry.lay_out = with_values(registry.lay_out)


def with_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose tensors on the CPU have values."""

    def called(*given: Any) -> Any:
        with unset_fake_temporarily():
            return function(*given)

    return called


def config_of(architecture: str, changes: Changes) -> RunConfig:
    """A config of that size with the changes."""
    tables = {"model": MODEL, "train": TRAIN, "data": {"context": CONTEXT}}
    names = {*tables, *changes}
    data = {name: tables.get(name, {}) | changes.get(name, {}) for name in names}
    return read_config(run_config_type(architecture), data)


def train(config: RunConfig) -> Trainer:
    """Make two steps, the optimizer's state saved and loaded in between."""
    global stepping
    batches = with_values(RandomBatches)(V, CONTEXT, ROWS, config.data.document_mask)
    for name in ("batch", "rows"):
        setattr(batches, name, with_values(getattr(batches, name)))
    factors = with_values(frequency.row_factors)(batches, CONTEXT * ROWS, V)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        frequency.row_factors = lambda *given: mode.from_tensor(factors)
        trainer = build_trainer(config, batches)
        for step in range(2):
            stepping = True
            loss, norm, _ = update(trainer, step)
            stepping = False
            assert loss.device.type == norm.device.type == "cuda"
            assert loss.dtype == norm.dtype == torch.float32
            trainer.optimizer.load_state_dict(trainer.optimizer.state_dict())
        write(trainer)
    return trainer


def write(trainer: Trainer) -> None:
    """Decode two tokens after a prompt, with each decoder."""
    padding = torch.tensor([0, 3], device="cuda")
    with torch.no_grad():
        for decoder in (decode.eager, decode.compiled):
            following = decoder(trainer.model, 2, 16, padding)
            for time in (5, 1, 1):
                logits = following(torch.zeros(2, time, dtype=torch.int64, device="cuda"))
                assert (logits.device.type, tuple(logits.shape)) == ("cuda", (2, V))


def main() -> None:
    """Run every case."""
    pretend()
    found: dict[str, str | None] = {}
    for name, (architecture, changes) in CASES.items():
        try:
            train(config_of(architecture, changes))
            found[name] = None
        except Exception:
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
