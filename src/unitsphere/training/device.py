"""Where a run computes: its device, its precision, and what environment.json records of both.

`pick_device`, `pick_precision` and `autocast` choose; `keep_freed_memory` saves time on a CPU;
`peak_flops` is what the device could do at most; `environment` lists versions, commit, threads and
the command line.
"""

import ctypes
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, cast

import torch

import unitsphere
from unitsphere.errors import UserError

Precision = Literal["fp32", "bf16", "fp8", "bf16-storage"]
FP8_SINCE = (8, 9)
"""The first NVIDIA compute capability that multiplies in FP8: Ada and Hopper."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h."""
FP8_NEEDS = "needs an NVIDIA GPU of compute capability 8.9 or newer"


@dataclass
class _Setting:
    emulated_fp8: bool = False


_setting = _Setting()


def keep_freed_memory(device: torch.device) -> None:
    """On a CPU, let the C library keep what tensors free, for the rest of the process.

    By default glibc gives much of it back to the system and asks for it again in the next step,
    which takes up to a seventh of a step in bf16. Other C libraries have no such setting.
    """
    if device.type == "cpu" and sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_TRIM_THRESHOLD, -1)  # never give memory back
            mallopt(M_MMAP_THRESHOLD, 2**25)  # 32 MiB, the largest value that every glibc takes


def pick_device(name: str) -> torch.device:
    """The device of that name; "auto" is the first GPU, or the CPU if there is none.

    Raises UserError for any other than cpu, cuda and cuda:N, and for a GPU that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise UserError(
            f"the device '{name}' is not supported: use cpu, cuda (an NVIDIA or AMD GPU; cuda:1 "
            "for the second) or auto"
        )
    if name != "cpu" and int(name[5:] or 0) >= torch.cuda.device_count():
        raise UserError(
            f"the device '{name}' is not there: this machine has {torch.cuda.device_count()} "
            "usable GPUs; use auto or cpu"
        )
    return torch.device(name)


def local_rank() -> int:
    """The process's number on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def local_device(name: str) -> torch.device:
    """`train.device` for this process: of several GPUs, the one with its number on the machine."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and name in ("auto", "cuda") and torch.cuda.is_available():
        device = pick_device(f"cuda:{local_rank()}")
        torch.cuda.set_device(device)
        return device
    return pick_device(name)


def computes_in_bf16(device: torch.device) -> bool:
    """Whether the device multiplies in bf16 itself; elsewhere autocast only costs time."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):  # older torch: not asked
        return False
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def computes_in_fp8(device: torch.device) -> bool:
    """Whether runs may have `train.precision` fp8 on the device."""
    if device.type == "cuda":
        return torch.version.hip is None and torch.cuda.get_device_capability(device) >= FP8_SINCE
    return device.type == "cpu" and _setting.emulated_fp8


@contextmanager
def emulated_fp8() -> Iterator[None]:
    """Inside, a CPU takes `train.precision` fp8: the numbers of a GPU, slower than fp32.

    For tests, and for studies of what the rounding does to a model.
    """
    former = _setting.emulated_fp8
    _setting.emulated_fp8 = True
    try:
        yield
    finally:
        _setting.emulated_fp8 = former


def pick_precision(name: str, device: torch.device) -> Precision:
    """`train.precision` for the device: "auto" resolved, and fp8 as auto where it has none."""
    if name == "auto" or (name == "fp8" and not computes_in_fp8(device)):
        return "bf16" if computes_in_bf16(device) else "fp32"
    return cast(Precision, name)


def device_and_precision(name: str, asked: str) -> tuple[torch.device, Precision]:
    """This process's device and precision; a `UserError` for fp8 where the device has none."""
    device = local_device(name)
    precision = pick_precision(asked, device)
    if asked == "fp8" and precision != "fp8":
        raise UserError(
            f"train.precision fp8 {FP8_NEEDS}, and this is {device}: take bf16; a run started in "
            "fp8 resumes only in fp8, or starts over with another --out"
        )
    return device, precision


def resolve_precision(asked: str, before: str | None, device: torch.device) -> Precision:
    """The precision that config.json names; a line on stderr where it cannot be fp8 as asked.

    before: that of a run which resumes. If it is fp8, it stays so, and `device_and_precision`
    refuses it where there is none.
    """
    if asked == "auto" and before is not None:
        asked = before
    if asked == before == "fp8":
        return "fp8"
    picked = pick_precision(asked, device)
    if asked == "fp8" and picked != "fp8":
        print(f"train.precision fp8 {FP8_NEEDS}: {picked} on {device} instead", file=sys.stderr)
    return picked


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """The context of a forward pass: bf16 autocast for bf16 and fp8, else nothing."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision in ("bf16", "fp8"))


PEAK_BF16 = {
    "B200": 2250e12,  # NVIDIA B200 and GB200
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,  # SXM
    "A100": 312e12,
    "L40S": 362e12,
}
"""Dense bf16 operations per second by a part of the GPU's name, from the makers' data sheets."""


def peak_flops(device: torch.device, precision: Precision) -> float | None:
    """Peak operations per second of the device in that precision, or None where it is not known.

    That of bf16 for fp8 too: attention and the head stay in bf16, so one definition serves both.
    """
    if device.type != "cuda" or precision == "fp32":
        return None
    return peak_of_chip(torch.cuda.get_device_name(device))


def peak_of_chip(name: str) -> float | None:
    """Peak bf16 operations per second of a GPU by its driver's name for it, if known."""
    return next((peak for part, peak in PEAK_BF16.items() if part in name), None)


def check_memory(parameters: int, world: int, device: str) -> None:
    """Raise UserError for weights that no CPU's memory holds; a GPU says so itself.

    Weights and gradients in fp32, shared by all processes, are the least that training needs.
    """
    need = 8 * parameters / world
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device == "cpu" and need > have:
        raise UserError(
            f"a model of {parameters:,} parameters needs at least {need / 2**30:,.0f} GiB to be "
            f"trained, and this machine has {have / 2**30:,.0f}: lower model.d_model, "
            "model.n_layers or model.vocab_size"
        )


PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "triton", "liger-kernel", "fla-core")


def environment(device: torch.device) -> dict[str, Any]:
    """Plain values for environment.json; what is not there is None."""
    on_gpu = device.type == "cuda"
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "unitsphere": unitsphere.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if on_gpu else device.type,
        "cuda": torch.version.cuda if on_gpu else None,
    }


def package_version(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """Commit of the checkout that the package runs from, "-dirty" with changes; None elsewhere."""
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    try:
        tracked = subprocess.run(
            [*git, "ls-files", "--error-unmatch", __file__], capture_output=True, check=False
        )
        if tracked.returncode != 0:  # installed, perhaps inside somebody else's checkout
            return None
        command = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git on this machine
        return None
    return said.stdout.strip() or None


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
