"""`fault_saves.py FOLDER short|long`: a checkpoint is saved, and at each of its file operations in
turn the process is killed, or the disk refuses.

Prints one JSON document: operation -> faults, what was survived, and what it was not. Survived is:
the checkpoint before, or the new one, is complete and has its tensors, nothing is left that looks
like one, and the next saving works and leaves nothing behind.
"""

import builtins
import errno
import io
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from children import DONE, USER_ERROR, fork, status_of

from unitsphere.models.registry import build
from unitsphere.training.checkpoint import store as checkpoint
from unitsphere.training.checkpoint import tensors
from unitsphere.training.checkpoint.saver import Saver
from unitsphere.training.checkpoint.store import State
from unitsphere.training.optim import OptimConfig, build_optimizer

OPERATIONS = ("mkdir", "rename", "replace", "fsync", "unlink", "rmdir")


class Written:
    """A file open for writing, whose writes are operations too."""

    def __init__(self, file: Any, operation: Callable[..., None]) -> None:
        self.file, self.operation = file, operation

    def write(self, data: Any) -> int:
        half = len(data) // 2
        self.operation("write", lambda: (self.file.write(data[:half]), self.file.flush()))
        return self.file.write(data)

    def __enter__(self) -> "Written":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class Faults:
    """Counts file operations; at number `at` the process dies, or the operation is refused."""

    def __init__(self, at: int, how: str, names: list[str]) -> None:
        self.at, self.how, self.names = at, how, names

    def __call__(self, name: str, begun: Callable[[], object] = lambda: None) -> None:
        self.names.append(name)
        if len(self.names) == self.at:
            begun()
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def install(self) -> None:
        """Put them under everything that this process does from now on."""
        for name in OPERATIONS:
            setattr(os, name, self.counted(name, getattr(os, name)))
        real = io.open

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not set(mode) & set("wax"):
                return real(file, mode, *args, **kwargs)
            self("open")
            return Written(real(file, mode, *args, **kwargs), self)

        io.open = builtins.open = opened  # type: ignore[assignment]

    def counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            self(name)
            return real(*args, **kwargs)

        return operation


def trained(steps: int) -> tuple[Any, Any]:
    """A tiny model and its optimizer after some steps, without autograd, whose threads a fork does
    not survive.
    """
    model = build("gpt", vocab_size=16, d_model=8, n_layers=1, n_heads=2)
    optimizer = build_optimizer(model, OptimConfig())
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = parameter.detach().sin()
        optimizer.step()
    return model, optimizer


def save(root: Path, step: int) -> None:
    """Save what `step` steps give, as a run does."""
    state = State(step, step, 1.0, 0, "data", torch.__version__)
    with Saver(root, 2, None, asynchronous=False) as saver:
        saver.save(state, *trained(step))


def sound(root: Path, least: int) -> str:
    """What is wrong with the checkpoints under `root`, or ""."""
    newest, damaged = checkpoint.newest(root)
    if newest is None:
        return f"no checkpoint is left: {damaged}"
    if damaged:
        return f"half a checkpoint: {damaged}"
    step = checkpoint.load_state(newest).step
    if step < least:
        return f"the newest is step {step}"
    found = tensors.empty_tensors(newest, "")
    tensors.read_tensors(newest, found)
    expected = tensors.named_tensors(*trained(step))
    same = found.keys() == expected.keys()
    return (
        "" if same and all(torch.equal(found[n], expected[n]) for n in found) else "other tensors"
    )


def one(base: Path, root: Path, step: int, at: int, how: str) -> tuple[str, str]:
    """Save with a fault at operation `at`, 0 for none: which that is, and what is wrong then."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(base, root)
    told = root.parent / "operation"
    told.unlink(missing_ok=True)

    def work() -> None:
        names: list[str] = []
        where = os.open(told, os.O_WRONLY | os.O_CREAT)
        faults = Faults(at, how, names)
        faults.install()
        try:
            save(root, step)
        finally:
            os.write(where, json.dumps(names).encode())

    status = status_of(fork(work, root.parent / "said"))
    if status == DONE:
        # Refused or not, what was to be saved is saved (rubbish that was not removed goes later).
        names = json.loads(told.read_text())
        return names[at - 1] if at else "", sound(root, step)
    allowed = -signal.SIGKILL if how == "kill" else USER_ERROR
    said = (root.parent / "said").read_text()
    if status != allowed and not (how == "refuse" and "OSError: [Errno 28]" in said):
        return "?", f"status {status}: {said}"
    name = "killed" if how == "kill" else json.loads(told.read_text())[at - 1]
    wrong = sound(root, 2 if step == 3 else 3)
    if not wrong:
        save(root, 5)
        left = sorted(p.name for p in root.iterdir() if p.name.startswith("."))
        wrong = sound(root, 5) or (f"left behind: {left}" if left else "")
    return name, wrong


def operations_of(base: Path, root: Path, step: int) -> list[str]:
    """The operations of a saving that nothing goes wrong with."""
    assert one(base, root, step, 0, "refuse") == ("", "")
    return json.loads((root.parent / "operation").read_text())


def places(names: list[str], every: bool) -> list[int]:
    """Which operations are to fail, from 1 on: every one, or the first and last of each kind."""
    if every:
        return [*range(1, len(names) + 1)]
    kinds = set(names)
    ends = {names.index(k) + 1 for k in kinds} | {len(names) - names[::-1].index(k) for k in kinds}
    return sorted(ends)


def main() -> None:
    folder = Path(sys.argv[1])
    base = folder / "base"
    for step in (1, 2, 3):
        save(base, step)
    counts: dict[str, Counter[str]] = {}
    wrongs = []
    for step in (4, 3) if sys.argv[2] == "long" else (4,):  # a new one, and one that is there
        for how in ("kill", "refuse"):
            for at in places(operations_of(base, folder / "root", step), sys.argv[2] == "long"):
                name, wrong = one(base, folder / "root", step, at, how)
                counts.setdefault(f"{how} at {name}", Counter()).update(
                    faults=1, survived=not wrong
                )
                wrongs += [f"step {step}, {how}, operation {at} ({name}): {wrong}"] if wrong else []
    print(json.dumps({"counts": counts, "wrong": wrongs}))


if __name__ == "__main__":
    main()
