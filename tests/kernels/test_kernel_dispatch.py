"""Who serves a call: the modes, the refusals, and what an import costs."""

import logging
import subprocess
import sys

import pytest
import torch
from kernel_cases import DEVICE, heads, rates, residual, table

import unitsphere.kernels
from unitsphere.errors import UserError
from unitsphere.kernels import (
    lerp_norm,
    loss_path,
    mode,
    registry,
    rope_norm,
    use_kernels,
    using_kernels,
)
from unitsphere.ops import residual as plain


def arguments():
    return tuple(t.detach().to(DEVICE) for t in residual(3, 8))


def test_modes_are_set_and_restored():
    with using_kernels("auto"):
        assert mode() == "auto"
        with using_kernels("off"):
            assert mode() == "off"
        with pytest.raises(ZeroDivisionError), using_kernels("off"):
            raise ZeroDivisionError
        assert mode() == "auto"
    with pytest.raises(UserError, match="kernels 'on' is not a mode: use auto, off, require"):
        use_kernels("on")


def test_off_is_the_plain_function_to_the_bit(monkeypatch):
    monkeypatch.setattr(registry, "no_backend", lambda *_: pytest.fail("asked for a kernel"))
    given = arguments()
    with using_kernels("off"):
        assert torch.equal(lerp_norm(*given), plain.lerp_norm(*given))


def test_auto_leaves_cpu_tensors_to_the_plain_function_even_where_there_is_an_interpreter():
    h, x, alpha = residual(3, 8)
    with using_kernels("auto"):
        assert torch.equal(lerp_norm(h, x, alpha), plain.lerp_norm(h, x, alpha))


def test_a_refusal_is_logged_once_with_its_reason(caplog, monkeypatch):
    monkeypatch.setattr(registry, "_logged", set())
    caplog.set_level(logging.INFO, "unitsphere.kernels")
    with using_kernels("auto"):
        for _ in range(3):
            lerp_norm(*(t.detach() for t in residual(3, 8)))
            rope_norm(heads(1, 2, 3, 8).detach(), table(3, 8))
    reason = "the plain function, because the tensors are on cpu, and kernels need a GPU"
    assert caplog.messages == [f"lerp_norm: {reason}", f"rope_norm: {reason}"]
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_on_a_gpu_a_refusal_is_a_warning(caplog, monkeypatch):
    monkeypatch.setattr(registry, "_logged", set())
    with using_kernels("auto"):
        registry.refuse("lerp_norm", "of a test", "cuda")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda h, x, a: (h.double(), x, a), "float64 is not for kernels"),
        (lambda h, x, a: (h[:2], x, a), "h and x differ in shape"),
        (lambda h, x, a: (h, x, a[:1]), "α is neither a scalar nor a vector"),
        (lambda h, x, a: (h[:0], x[:0], a), "there are no elements"),
        (lambda h, x, a: (h.repeat(1, 2000), x.repeat(1, 2000), 0.1), "longer than 8192"),
    ],
)
def test_require_says_why_lerp_norm_cannot(change, reason):
    with pytest.raises(UserError, match=f"kernels 'require', but lerp_norm cannot run.*{reason}"):
        lerp_norm(*change(*arguments()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x, t, s: (x.double(), t, s), "float64 is not for kernels"),
        (lambda x, t, s: (x[0], t, s), r"x is not \[batch, H, time, d_k\]"),
        (lambda x, t, s: (x, (t[0][:2], t[1][:2]), s), "RoPE's table is neither"),
        (lambda x, t, s: (x, (t[0][:, :0], t[1][:, :0]), s), "RoPE rotates nothing"),
        (lambda x, t, s: (x, (t[0].clone().requires_grad_(), t[1]), s), "requires a gradient"),
        (lambda x, t, s: (x, t, s[0]), "the scale is neither"),
        (lambda x, t, s: (x.repeat(1, 1, 1, 100), t, None), "heads are larger than 512"),
    ],
)
def test_require_says_why_rope_norm_cannot(change, reason):
    x, t, s = heads(1, 2, 3, 8).detach(), table(3, 8), rates(2, 1, 8).detach()
    on_device = x.to(DEVICE), tuple(c.to(DEVICE) for c in t), s.to(DEVICE)
    with pytest.raises(UserError, match=f"kernels 'require', but rope_norm cannot run.*{reason}"):
        rope_norm(*change(*on_device))


@pytest.mark.parametrize(
    ("device", "reason"), [("meta", "the tensors are on meta"), ("cpu", "the tensors are on cpu")]
)
def test_require_needs_a_gpu_where_nothing_interprets(device, reason, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UserError, match=reason):
        lerp_norm(*(t.detach().to(device) for t in residual(3, 8)))


def test_missing_triton_is_said_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'unitsphere\[kernels\]'"):
        lerp_norm(*arguments())


def test_the_loss_is_compiled_where_kernels_run_unless_they_are_off(monkeypatch):
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    with using_kernels("auto"):
        assert loss_path(gpu) == "fused"
        assert loss_path(torch.device("cpu")) == "auto"
        assert loss_path(torch.device("cpu"), compiled=True) == "fused"
    with using_kernels("off"):
        assert loss_path(gpu) == "auto"
        assert loss_path(torch.device("cpu"), compiled=True) == "auto"
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda _: None)
    with using_kernels("auto"):
        assert loss_path(gpu) == "auto"  # without Triton nothing compiles there


def test_a_refusal_reaches_the_user_through_the_compiler():
    torch._dynamo.reset()
    h, x, alpha = arguments()
    with pytest.raises(UserError, match="float64 is not for kernels"):
        torch.compile(lerp_norm, backend="eager")(h.double(), x, alpha)


def test_a_refusal_leaves_a_graph_whole_and_is_logged(caplog, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(registry, "_logged", set())
    h, x, alpha = (t.double() for t in arguments())
    with using_kernels("auto"):
        compiled = torch.compile(lerp_norm, backend="eager", fullgraph=True)
        assert torch.equal(compiled(h, x, alpha), plain.lerp_norm(h, x, alpha))
    assert len(registry._logged) == 1


def test_the_mode_is_part_of_what_a_graph_was_compiled_for():
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph

    compiled = torch.compile(lerp_norm, backend=backend, fullgraph=True)
    for each in ("require", "off", "require"):
        with using_kernels(each):
            compiled(*arguments())
    assert ["unitsphere.lerp_norm" in code for code in graphs] == [True, False]


def test_triton_is_imported_by_nobody_who_needs_no_kernel():
    code = (
        "import sys, torch, unitsphere, unitsphere.kernels as k\n"
        "h = torch.ones(2, 4)\n"
        "k.lerp_norm(h, h, 0.1)\n"
        "print([m for m in ('triton', 'torch._dynamo') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert done.stderr == ""


def test_the_package_hands_on_every_kernel():
    assert set(registry.REGISTRY) <= set(unitsphere.kernels.__all__)
