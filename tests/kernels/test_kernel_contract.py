"""What holds of every registered kernel: the plain function's results, exactly as often."""

import pytest
import torch
from kernel_cases import CASES, SMALLEST, Recorder, results
from torch.utils.checkpoint import checkpoint

import unitsphere.kernels
from unitsphere.kernels.registry import REGISTRY

FP32 = 1e-6
BF16, WIDE = 2.5e-3, 1e-5  # of tensors in bf16, and of fp32 gradients beside them
DIFFERENTIABLE = [case for case in SMALLEST if not case.written]


def fast(case):
    return getattr(unitsphere.kernels, case.kernel)


def errors(found, expected):
    """‖found − expected‖/‖expected‖ for each pair."""
    assert len(found) == len(expected)
    pairs = [
        (f.detach().double(), e.detach().double()) for f, e in zip(found, expected, strict=True)
    ]
    return [((f - e).norm() / e.norm().clamp(min=1e-30)).item() for f, e in pairs]


def same(found, expected):
    return all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


def test_every_kernel_has_cases():
    assert {case.kernel for case in CASES} == set(REGISTRY)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_and_gradients_are_those_of_the_plain_function_in_fp64(case):
    recorder = Recorder()
    with recorder:
        found = results(fast(case), case, case.arguments())
    assert case.kernel in recorder.names()
    expected = results(REGISTRY[case.kernel].plain, case, case.arguments(torch.float64))
    assert [f.shape for f in found] == [e.shape for e in expected]
    assert max(errors(found, expected)) <= FP32


def bf16_errors(case):
    """Errors of tensors in bf16, and of those beside them in fp32."""
    found = results(fast(case), case, case.arguments(torch.bfloat16))
    expected = results(REGISTRY[case.kernel].plain, case, case.arguments(torch.float64))
    apart = list(zip(found, errors(found, expected), strict=True))
    return [[e for f, e in apart if f.dtype is d] for d in (torch.bfloat16, torch.float32)]


@pytest.mark.parametrize("case", [case for case in SMALLEST if case.narrow], ids=str)
def test_bf16_is_computed_in_fp32(case):
    """The interpreter cuts fp32 off to bf16 instead of rounding, so it errs by twice as much."""
    narrow, wide = bf16_errors(case)
    assert 0 < max(narrow) <= 2 * BF16
    assert all(error <= WIDE for error in wide)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [case for case in CASES if case.narrow], ids=str)
def test_bf16_is_rounded_once(case):
    narrow, wide = bf16_errors(case)
    assert max(narrow) <= BF16
    assert all(error <= WIDE for error in wide)


@pytest.mark.parametrize("case", SMALLEST, ids=str)
def test_two_calls_agree_to_the_bit(case):
    first, second = (results(fast(case), case, case.arguments()) for _ in range(2))
    assert same(first, second)


@pytest.mark.parametrize("case", SMALLEST, ids=str)
def test_its_operators_are_sound_for_torch(case):
    """Schema, fake tensors, autograd's registration and the compiler's dispatch."""
    recorder = Recorder()
    with recorder:
        results(fast(case), case, case.arguments())
    for op, arguments in recorder.calls:
        arguments = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in arguments)
        if op.name() == f"unitsphere::{case.kernel}" and not case.written:
            for argument in arguments:
                argument is None or argument.requires_grad_()
        torch.library.opcheck(op, arguments)


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
def test_activation_checkpointing_computes_it_again(case):
    def around(function, *arguments):
        return checkpoint(function, *arguments, use_reentrant=False)

    plain = results(fast(case), case, case.arguments())
    recorder = Recorder()
    with recorder:
        found = results(fast(case), case, case.arguments(), around)
    assert recorder.names() == [case.kernel, case.kernel, f"{case.kernel}_backward"]
    assert same(found, plain)


@pytest.mark.parametrize("case", SMALLEST, ids=str)
def test_the_compiler_takes_it_into_one_graph(case):
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def around(function, *arguments):
        return torch.compile(function, backend=backend, fullgraph=True)(*arguments)

    found = results(fast(case), case, case.arguments(), around)
    assert len(graphs) == 1
    assert f"unitsphere.{case.kernel}" in graphs[0].code
    assert same(found, results(fast(case), case, case.arguments()))
