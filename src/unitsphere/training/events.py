"""TensorBoard events of a run, written in the caller's thread.

torch's SummaryWriter writes in a thread of its own, where a full disk ends in a traceback and
not in the run's one line.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.record_writer import RecordWriter

from unitsphere.files import own_folder


class Events:
    """A new event file in `folder`; readers drop what others hold of steps after `step`."""

    def __init__(self, folder: Path, step: int) -> None:
        own_folder(folder)
        self.file = (folder / f"events.out.tfevents.{time.time_ns()}").open("xb")
        self.writer = RecordWriter(self.file)
        self._write(Event(file_version="brain.Event:2"))
        self._write(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars of one step; on the disk after `flush` or `close`."""
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(Event(step=step, summary=Summary(value=scalars)))

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

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self.writer.write(event.SerializeToString())
