"""The torture suite: a short form in every test run, the long one with `make torture`.

Each test reports what it did to whom: faults tried, how many were survived (the run went on, or the
last good state was there), and how many bytes of the result differ from the undisturbed one.
"""

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_config as tiny
from hypothesis import HealthCheck, settings

from unitsphere.config import to_dict
from unitsphere.errors import UserError
from unitsphere.training.config import RunConfig
from unitsphere.training.optim import OptimConfig
from unitsphere.training.run import train

LONG = os.environ.get("TORTURE") == "long"
Tally = Callable[..., None]

settings.register_profile(
    "torture",
    deadline=None,
    max_examples=700 if LONG else 25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def tally(record_property) -> Tally:
    """`tally("SIGKILL", faults=6, survived=6, lost=0)`: counts for the summary."""

    def count(what: str, faults: int, survived: int, lost: int = 0) -> None:
        record_property("torture", json.dumps([what, faults, survived, lost]))
        assert survived == faults
        assert lost == 0

    return count


class Cases:
    """Counts the cases of a test; an error that is no UserError ends it."""

    def __init__(self) -> None:
        self.tried = 0

    def __enter__(self) -> None:
        self.tried += 1

    def __exit__(self, kind, error, trace) -> bool:
        if isinstance(error, UserError):
            assert str(error).strip()
            return True
        return False


@pytest.fixture
def cases(tally, request):
    """Reports the cases of a test when it is done."""
    found = Cases()
    found.done = lambda: tally(f"fuzz: {request.node.name[10:]}", found.tried, found.tried)
    return found


def pytest_terminal_summary(terminalreporter) -> None:
    found: dict[str, Counter[str]] = {}
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, value in report.user_properties:
            if name == "torture":
                what, faults, survived, lost = json.loads(value)
                counts = found.setdefault(what, Counter())
                counts.update(faults=faults, survived=survived, lost=lost)
    if found:
        terminalreporter.section("torture")
        for what, c in [*found.items(), ("all", sum(found.values(), Counter()))]:
            line = f"{what:<44}{c['faults']:>7} faults {c['survived']:>7} survived "
            terminalreporter.write_line(line + f"{c['lost']:>4} bytes lost")


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A small nGPT on a few kilobytes of text: a step takes milliseconds."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("".join(f"{n} times {n} is {n * n}.\n" for n in range(400)))
    return tiny.tiny_config(
        folder / "text.txt",
        folder / "cache",
        model={"d_model": 16, "n_layers": 1},
        context=16,
        optim=OptimConfig(lr=1e-2),
        steps=40,
        batch_tokens=64,
        micro_batch=2,
        save_every=3,
        eval_every=20,
        eval_tokens=256,
        log_every=2,
        sample_every=7,
    )


@pytest.fixture(scope="session")
def config_file(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_config` as a file."""
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(json.dumps(to_dict(tiny_config)))
    return path


@pytest.fixture(scope="session")
def run(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    out = tmp_path_factory.mktemp("runs") / "run"
    shorter = dataclasses.replace(tiny_config.train, steps=6, save_every=3, sample_every=0)
    train(dataclasses.replace(tiny_config, train=shorter), out, sampler=lambda *_: "text")
    return out
