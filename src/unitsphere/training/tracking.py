"""Records for other programs: TensorBoard's event files, and Weights & Biases if asked for.

The run continues whatever goes wrong with W&B. A separate thread does all that concerns W&B, so
that neither its service nor the network can hold up a step. The first error is one line and ends
the sending, never the run.
"""

import importlib
import json
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from unitsphere.config import read_json
from unitsphere.errors import UserError
from unitsphere.files import own_folder, write_text


class Events:
    """A new event file in `folder`; readers drop what others hold of steps after `step`."""

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.pb: Any = event_pb2
        self.summary: Any = summary_pb2.Summary  # pyright: ignore[reportAttributeAccessIssue]
        own_folder(folder)
        self.file = (folder / f"events.out.tfevents.{time.time_ns()}").open("xb")
        self.writer = RecordWriter(self.file)
        self._write(self.pb.Event(file_version="brain.Event:2"))
        start = self.pb.SessionLog(status=self.pb.SessionLog.START)
        self._write(self.pb.Event(step=step + 1, session_log=start))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars of one step; on the disk after `flush` or `close`."""
        made = self.summary
        scalars = [made.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(self.pb.Event(step=step, summary=made(value=scalars)))

    def flush(self) -> None:
        """Hand everything to the system, so that TensorBoard shows it."""
        self.file.flush()

    def sync(self) -> None:
        """Wait until the disk has everything."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Write what is left, and close the file."""
        self.file.close()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self.writer.write(event.SerializeToString())


PLACE = "wandb.json"
"""In a run folder: the id of its W&B run, and the last step sent there."""
BEGIN, END = 30.0, 5.0
"""Seconds that W&B has to begin a run, and to send what is left at its end."""


def check_installed(project: str | None) -> None:
    """Raise UserError if records are to go to W&B, but its package is missing."""
    spec = None if project is None else find_spec("wandb")
    if project is not None and (spec is None or spec.origin is None):  # none: its folder of records
        raise UserError(
            "train.wandb needs the package wandb: pip install 'unitsphere[wandb]', or leave it out"
        )


class Tracker:
    """Sends the records of the run in `out`, whose settings are `config`, to a W&B project.

    A run that resumes continues its W&B run. No step is sent twice: what was sent of a step that
    comes again stays. Close it, which waits a few seconds for what is left.
    """

    def __init__(self, project: str, out: Path, config: Mapping[str, Any]) -> None:
        self.project, self.out, self.config = project, out, config
        self.records: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="wandb", daemon=True)
        self.thread.start()

    def add(self, record: Mapping[str, Any]) -> None:
        """Send a record, some time."""
        if self.thread.is_alive():
            self.records.put(dict(record))

    def close(self) -> None:
        """End the sending; a line on stderr if W&B does not come to an end."""
        self.records.put(None)
        self.thread.join(2 * END)
        if self.thread.is_alive():
            tell(f"not done after {2 * END:.0f} s")

    def _run(self) -> None:
        with Told():
            name, last = read_sent(self.out)
            run = begin(self.project, self.out, name, self.config)
            while (record := self.records.get()) is not None:
                step = record.pop("step")
                if step > last:
                    run.log(record, step=step)
                    last = step
                    write_sent(self.out, name, last)
            run.finish()


class Told:
    """Within: an error becomes one line on stderr, and does not propagate."""

    def __enter__(self) -> "Told":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is not None:
            tell(f"{type(error).__name__}: {' '.join(str(error).split())}")
        return True


def tell(why: str) -> None:
    """Say that the run continues without W&B."""
    line = f"W&B: {why}; the run continues without it, metrics.jsonl has every record"
    print(line, file=sys.stderr, flush=True)


def begin(project: str, out: Path, name: str, config: Mapping[str, Any]) -> Any:
    """Returns the W&B run `name`, started or continued; its files are in the run folder.

    Never asks for a key: without one, the error says so.
    """
    wandb = importlib.import_module("wandb")
    if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False):
        raise UserError("no key: log in by `wandb login`, or set WANDB_MODE=offline")
    settings = wandb.Settings(
        silent=True,
        console="off",
        init_timeout=BEGIN,
        finish_timeout=END,
        finish_timeout_raises=True,
    )
    return wandb.init(
        project=project,
        id=name,
        name=out.resolve().name,
        resume="allow",
        dir=str(out),
        config=dict(config),
        settings=settings,
    )


def read_sent(out: Path) -> tuple[str, int]:
    """The id of the W&B run of a run folder, new if it has none, and the last step sent there."""
    if not (out / PLACE).is_file():
        name = secrets.token_hex(4)
        write_sent(out, name, 0)
        return name, 0
    found = read_json(out / PLACE)
    match found:
        case {"id": str(name), "step": int(step)} if re.fullmatch("[0-9a-f]{8}", name):
            return name, step
    raise UserError(f"{out / PLACE} is not what was written: delete it for a new W&B run")


def write_sent(out: Path, name: str, step: int) -> None:
    """Write down how far the W&B run has come."""
    write_text(out / PLACE, json.dumps({"id": name, "step": step}) + "\n")
