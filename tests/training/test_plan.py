"""What a plan decides, once, before anything is built."""

import dataclasses

import pytest
import torch

from unitsphere.training import device
from unitsphere.training.distributed.layout import SINGLE
from unitsphere.training.forecast import shapes_of, size
from unitsphere.training.plan import make_plan, plan_run, rows_at_once


@pytest.fixture
def config(tiny):
    found = tiny("ngpt")
    return dataclasses.replace(found, model=dataclasses.replace(found.model, vocab_size=256))


def test_a_plan_is_decided_once(config):
    plan = plan_run(config, SINGLE)
    assert plan == make_plan(config)
    assert (plan.device, plan.precision) == (torch.device("cpu"), "fp32")
    assert (plan.compiled, plan.micro_batch) == (False, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.precision = "bf16"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(("free", "rows"), [(1 << 30, 4), (0, 1)])
def test_on_a_gpu_as_many_sequences_go_at_once_as_fit(free, rows, config, monkeypatch):
    gpu = torch.device("cuda")
    weights = sum(p.numel() * p.element_size() for p in shapes_of(config).parameters())
    monkeypatch.setattr(device, "local_device", lambda name: gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (weights + free, 0))
    assert rows_at_once(config, plan_run(config, SINGLE)) == rows
    given = dataclasses.replace(config, train=dataclasses.replace(config.train, micro_batch=2))
    assert rows_at_once(given, plan_run(given, SINGLE)) == 2


def test_bytes_just_below_a_unit_are_written_in_it():
    """Three digits of 999,600 are 1,000 kB, which Python writes as 1e+03."""
    assert [size(n) for n in (0, 999, 999_499, 999_600, 999_600_000_000)] == [
        "0 B",
        "999 B",
        "999 kB",
        "1 MB",
        "0.9996 TB",
    ]
