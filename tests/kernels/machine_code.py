"""Trace every kernel's operators for a GPU that need not be there, and compile them for it.

Run without TRITON_INTERPRET, by test_kernel_machine_code.py. Prints one JSON document:
operator -> {"written": inputs that its kernel writes, "stack": bytes that a thread spills}.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path

import torch
import triton
from torch import Tensor
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import __file__ as nvidia
from triton.compiler import ASTSource

from unitsphere.kernels.registry import REGISTRY

H100 = GPUTarget("cuda", 90, 32)
TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}


class Driver:
    """What Triton asks of a GPU's driver while it traces."""

    def get_current_target(self) -> GPUTarget:
        return H100


def on_gpu(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, device="cuda", dtype=dtype)


def calls() -> dict[str, tuple]:
    """Operator's arguments at the size of the papers' 0.5B models, 4k context, in bf16."""
    bf16 = torch.bfloat16
    h, rows = on_gpu(16, 4096, 1024, dtype=bf16), on_gpu(65536)
    heads = on_gpu(16, 4096, 16, 64, dtype=bf16).transpose(1, 2)
    r, s_qk = on_gpu(16, 16, 4096), on_gpu(16, 64)
    full, half = (on_gpu(4096, 32),) * 2, (on_gpu(4096, 16),) * 2
    numbers = 1e-3, 0.9, 0.95, 1e-8, 1.0, 0.0, True

    def adam(d_out: int, d_in: int, dim: int) -> tuple:
        held = [on_gpu(d_out, d_in) for _ in range(4)]
        shadow = on_gpu(d_out, d_in, dtype=bf16)
        return (*held, on_gpu(), shadow, *numbers, dim, 1.0)

    return {
        "lerp_norm": (h, h, on_gpu(1024)),
        "lerp_norm_backward": (h, h, h, on_gpu(1024), rows, rows),
        "rope_norm": (heads, *full, s_qk),
        "rope_norm half": (heads, *half, None),
        "rope_norm_backward": (heads, heads, *full, s_qk, r),
        "rope_norm_backward half": (heads, heads, *half, s_qk, r),
        "adam_project_ rows": adam(4096, 1024, 1),
        "adam_project_ columns": adam(1024, 4096, 0),
    }


def launches(op, arguments: tuple) -> list[Node]:
    """The kernel launches that the compiler finds inside an operator."""
    tensors = [a for a in arguments if isinstance(a, Tensor)]

    def call(*given: Tensor):
        left = iter(given)
        op(*(next(left) if isinstance(a, Tensor) else a for a in arguments))

    graph = make_fx(dispatch_functionalize(call))(*tensors)
    return [n for n in graph.graph.nodes if n.target is triton_kernel_wrapper_functional]


def machine_code(launch: Node) -> bytes:
    """The launch's kernel, compiled as Triton would for these arguments."""
    tuned = kernel_side_table.get_kernel(launch.kwargs["kernel_idx"])
    (config,), kernel = tuned.configs, tuned.fn  # torch keeps the number of warps so
    constant = kernel_side_table.get_constant_args(launch.kwargs["constant_args_idx"])
    given = {**constant, **launch.kwargs["kwargs"]}
    signature, constexprs, attributes = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        value = given[parameter.name]
        if isinstance(value, Node):
            signature[parameter.name] = TYPES[value.meta["val"].dtype]
        elif isinstance(value, float) and not parameter.is_constexpr:
            signature[parameter.name] = "fp32"
        elif type(value) is int and value != 1 and not parameter.is_constexpr:
            signature[parameter.name] = "i32"
        else:
            signature[parameter.name], constexprs[(i,)] = "constexpr", value
        if signature[parameter.name][0] == "*" or (
            signature[parameter.name] == "i32" and value % 16 == 0
        ):
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs, attributes)
    return triton.compile(source, H100, {"num_warps": config.num_warps}).asm["cubin"]


def stack_bytes(cubin: bytes) -> int:
    """Memory that each thread spills to, by the disassembler that comes with Triton."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        tool = Path(nvidia).parent / "bin" / "cuobjdump"
        usage = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.findall(r"STACK:(\d+)", usage)
    assert len(found) == 1, usage
    return int(found[0])


def main() -> None:
    """Trace, compile and print."""
    for kernel in REGISTRY.values():
        kernel.load()
    triton.runtime.driver.set_active(Driver())
    report = {}
    with FakeTensorMode():
        traced = {
            name: launches(getattr(torch.ops.unitsphere, name.split()[0]).default, arguments)
            for name, arguments in calls().items()
        }
        for name, (launch,) in traced.items():
            given, written = launch.kwargs["kwargs"], launch.kwargs["tensors_to_clone"]
            inputs = [argument for argument in written if given[argument].op == "placeholder"]
            report[name] = {"written": inputs, "stack": stack_bytes(machine_code(launch))}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
