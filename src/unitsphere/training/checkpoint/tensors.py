"""The tensors of a run on the disk, as safetensors.

Model tensors are named `model.<name>` and lie in one file, so that a reader of only the model
skips the rest; the optimizer's are `optim.<parameter>.<state>`. No pickle is written or read.
torch.distributed.checkpoint writes them, and puts together what several processes wrote. It takes a
second to import, so what one process wrote is read without it.
"""

import json
import warnings
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from unitsphere.errors import UserError
from unitsphere.ops.dtensor import local, placements
from unitsphere.training.checkpoint.store import parts
from unitsphere.training.distributed.layout import SINGLE, Layout
from unitsphere.training.optim.state import check_state

if TYPE_CHECKING:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""A tensor's type as safetensors names it -> torch's."""
SUFFIX = ".safetensors"
PLACES = "DCP_SHARDING_INFO"
"""In a file's header: where in the whole tensors its parts begin, as JSON."""


def named_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """All tensors of a checkpoint by their names there."""
    return model_tensors(model) | optimizer_tensors(model, optimizer)


def write_named(folder: Path, tensors: dict[str, Tensor], layout: Layout = SINGLE) -> None:
    """Write what `named_tensors` gave, or a copy of it: the model's into one safetensors file, the
    optimizer's into another.

    Of several processes each writes its shards into two files: call it in all of them.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    files = {name: 1 if name.startswith("model.") else 2 for name in tensors}
    several = layout.world > 1
    with single_process():
        writer = HuggingFaceStorageWriter(
            str(folder), fqn_to_index_mapping=files, save_distributed=several
        )
        save(tensors, storage_writer=writer, no_dist=not several, process_group=layout.group)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """`model.<name>` -> tensor, each tensor once however often it is tied."""
    named = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(list(named.items()))}
    kept = set(first.values())
    return {f"model.{name}": named[name].detach() for name in named if name in kept}


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """`optim.<parameter>.<state>` -> tensor, for every parameter that has been stepped."""
    found = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                raise TypeError(f"optimizer state '{key}' of {name} is not a tensor: {value!r}")
            found[f"optim.{name}.{key}"] = value
    return found


def load_model(folder: Path, model: nn.Module) -> None:
    """Fill the model's tensors, in place, from a complete checkpoint.

    Raises UserError if the names or shapes are not those of the model.
    """
    tensors = model_tensors(model)
    check_tensors(tensors, empty_tensors(folder, "model.", "meta"), f"checkpoint {folder}")
    read_tensors(folder, tensors)


def check_tensors(wanted: Mapping[str, Tensor], stored: Mapping[str, Tensor], where: str) -> None:
    """Raise UserError unless `stored` has the names and shapes of `wanted`, and holds floats.

    where: what holds them, for the message.
    """
    odd = sorted(
        name
        for name in stored.keys() | wanted.keys()
        if name not in stored
        or name not in wanted
        or stored[name].shape != wanted[name].shape
        or not stored[name].is_floating_point()
    )
    if odd:
        raise UserError(
            f"{where} does not fit the model at {', '.join(odd[:3])}: its config declares another "
            "one, or another version wrote it"
        )


def check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise UserError if a weight is NaN or infinite: nothing that it computes has a meaning."""
    odd = next((name for name, t in tensors.items() if not local(t).isfinite().all()), None)
    if odd is not None:
        raise UserError(f"{where} holds numbers that are not finite, in {odd}: train it again")


def load_optimizer(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Give the optimizer the state that a complete checkpoint holds.

    Raises UserError if that is not what such an optimizer keeps.
    """
    parameters = dict(model.named_parameters())
    stored = empty_tensors(folder, "optim.", "meta")
    slots = check_state(folder, stored, parameters, optimizer)
    of = {name: name.removeprefix("optim.").rpartition(".")[::2] for name in slots}
    tensors = {name: slot.empty(parameters[of[name][0]]) for name, slot in slots.items()}
    read_tensors(folder, tensors)
    states: dict[str, dict[str, Tensor]] = {}
    for name, (parameter, key) in of.items():
        states.setdefault(parameter, {})[key] = tensors[name]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    packed = optimizer.state_dict()
    packed["state"] = {i: states[name] for i, name in enumerate(order) if name in states}
    optimizer.load_state_dict(packed)
    for name, (parameter, key) in of.items():  # torch rounds what it loads to the weight's dtype
        weight = parameters[parameter]
        if optimizer.state[weight][key].dtype != slots[name].dtype:
            optimizer.state[weight][key] = tensors[name].to(weight.device)


def empty_tensors(folder: Path, prefix: str, device: str = "cpu") -> dict[str, Tensor]:
    """An empty tensor of the stored shape and dtype for each stored name with `prefix`.

    Raises UserError if the files cannot be read, or claim more than they hold.
    """
    with readable(folder):
        whole = whole_tensors(folder)
        if whole is None:
            stored = shapes_of_shards(folder)
        else:
            stored = {name: tensor for name, (tensor, _) in whole.items()}
        shapes = {name: tensor for name, tensor in stored.items() if name.startswith(prefix)}
        size = sum(path.stat().st_size for path in parts(folder) if path.suffix == SUFFIX)
        if sum(tensor.nbytes for tensor in shapes.values()) > size:
            raise ValueError("its tensors are larger than its files")
        return {  # `empty_like` of a tensor without values imports sympy
            name: torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
            for name, tensor in shapes.items()
        }


Stored = dict[str, tuple[Tensor, Path]]
"""Stored name -> a tensor on the meta device of its shape and dtype, and its file."""


def whole_tensors(folder: Path) -> Stored | None:
    """What one process has stored; None where several have stored their shards."""
    found: Stored = {}
    for path in (path for path in parts(folder) if path.suffix == SUFFIX):
        with safe_open(path, framework="pt") as file:
            places = json.loads((file.metadata() or {}).get(PLACES, "{}"))
            if any(any(place["saved_offsets"]) for place in places.values()):
                return None
            found |= {name: (tensor, path) for name, tensor in meta_tensors(file).items()}
    return found


def meta_tensors(file: Any) -> dict[str, Tensor]:
    """Name -> a tensor on the meta device of the shape and dtype that a safetensors file has of it.

    What is of a type that is never written is taken for int8, which nothing that is read has.
    """
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    return {
        name: torch.empty(
            part.get_shape(), dtype=DTYPES.get(part.get_dtype(), torch.int8), device="meta"
        )
        for name, part in slices.items()
    }


def shapes_of_shards(folder: Path) -> dict[str, Tensor]:
    """Stored name -> a tensor on the meta device, of which processes have stored their shards."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    stored = reader(folder).read_metadata().state_dict_metadata
    return {
        name: torch.empty(found.size, dtype=found.properties.dtype, device="meta")
        for name, found in stored.items()
        if isinstance(found, TensorStorageMetadata)
    }


def read_tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Fill `tensors` in place from a checkpoint's files; a UserError if they cannot be read."""
    with readable(folder):
        whole = whole_tensors(folder)
        if whole is not None and not any(map(placements, tensors.values())):
            return read_whole(whole, tensors)
    from torch.distributed.checkpoint.state_dict_loader import load

    with readable(folder), single_process():
        load(tensors, storage_reader=reader(folder), no_dist=True)


def reader(folder: Path) -> "HuggingFaceStorageReader":
    """torch's reader of shards, of the files that are a checkpoint's: it opens hidden ones too."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    found = HuggingFaceStorageReader(str(folder))
    found.fs.ls = lambda path: [str(file) for file in parts(folder)]
    return found


@torch.no_grad()
def read_whole(whole: Stored, tensors: Mapping[str, Tensor]) -> None:
    """Fill ordinary `tensors` from what one process has stored, a file at a time."""
    for path in sorted({whole[name][1] for name in tensors}):
        with safe_open(path, framework="pt") as file:
            for name, tensor in tensors.items():
                stored, where = whole[name]
                if stored.shape != tensor.shape:
                    raise ValueError(f"{name} is {tuple(stored.shape)}, not {tuple(tensor.shape)}")
                if where == path:
                    tensor.copy_(file.get_tensor(name))


def dcp_error() -> "type[CheckpointException]":
    """What torch.distributed.checkpoint raises: `except` asks when there is an error."""
    from torch.distributed.checkpoint.api import CheckpointException

    return CheckpointException


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Raise as a `UserError` whatever torch raises for files that were not written here.

    torch looks up what a header says without checking that it is there.
    """
    try:
        yield
    except (
        SafetensorError,
        dcp_error(),
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        RuntimeError,
        MemoryError,
    ) as error:
        first = str(error).strip().partition("\n")[0]
        raise UserError(f"checkpoint {folder} cannot be read: {first}") from error


@contextmanager
def single_process() -> Iterator[None]:
    """Silence torch's warning that nothing is distributed: here that is intended."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def rng_state(device: torch.device) -> tuple[str, str | None]:
    """The generators' states as text: the CPU's and, if the device has its own, the device's."""
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return encode(torch.get_rng_state()), None if on_gpu is None else encode(on_gpu)


def set_rng_state(cpu: str, gpu: str | None, device: torch.device) -> None:
    """Put the generators where `rng_state` found them; UserError if that is not a state."""
    try:
        torch.set_rng_state(decode(cpu))
        if gpu is not None and device.type == "cuda":
            torch.cuda.set_rng_state(decode(gpu), device)
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"the checkpoint's random generator cannot be set: {error}") from error


def encode(state: Tensor) -> str:
    """Bytes as base64 text."""
    return b64encode(state.numpy().tobytes()).decode("ascii")


def decode(text: str) -> Tensor:
    """`encode` undone."""
    return torch.frombuffer(bytearray(b64decode(text)), dtype=torch.uint8)
