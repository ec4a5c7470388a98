"""What a run records: metrics.jsonl, TensorBoard events, samples.txt, and a line for the eye."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from unitsphere.config import parse_json
from unitsphere.files import append_to, read_bytes, write_text
from unitsphere.training.tracking import Events

METRICS = "metrics.jsonl"
SAMPLES = "samples.txt"
EVENTS = "tensorboard"
LIMIT = 4 << 30
"""Most bytes of a metrics.jsonl: about ten million records."""


def read_metrics(out: Path) -> list[dict[str, Any]]:
    """The records of a run folder's metrics.jsonl, oldest first; a torn line is left out."""
    path = out / METRICS
    lines = read_bytes(path, within=out, limit=LIMIT).splitlines() if path.exists() else []
    return [record for record in map(parse, lines) if record is not None]


FIGURES = (
    "tokens",
    "time",
    "loss",
    "val_loss",
    "val_bits_per_byte",
    "val_accuracy",
    "val_text_lost",
    "lr",
    "tokens_per_second",
)
"""Keys of a record that are numbers where they are there."""


def parse(line: bytes) -> dict[str, Any] | None:
    """A line of metrics.jsonl as a record, or None if it is torn or not a record."""
    try:
        record = parse_json(line)
    except ValueError:  # JSON or UTF-8: the line was being written when the run was killed
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        return None
    numbers = all(isinstance(record.get(name, 0), int | float) for name in FIGURES)
    return record if numbers else None


def line_of(record: Mapping[str, Any]) -> str:
    """A record as a line of JSON, which has no NaN and no infinity: such figures are left out."""
    return json.dumps(finite(record), allow_nan=False) + "\n"


def finite(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without the figures that are NaN or infinite; inside a list they become None."""
    return {key: _finite(value) for key, value in record.items() if not _is_bad(value)}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return finite(value)
    if isinstance(value, list):
        return [None if _is_bad(one) else _finite(one) for one in value]
    return value


def _is_bad(value: Any) -> bool:
    return isinstance(value, float) and not isfinite(value)


def cut(out: Path, step: int, samples: int) -> None:
    """Drop what a killed run logged after its last checkpoint: those steps come again.

    The checkpoint knows its step and the bytes that samples.txt had then.
    """
    kept = [record for record in read_metrics(out) if record["step"] <= step]
    write_text(out / METRICS, "".join(line_of(record) for record in kept))
    with append_to(out / SAMPLES) as file:
        if os.fstat(file.fileno()).st_size > samples:
            file.truncate(samples)


HEADER = "--- step "
"""Begins each sample in samples.txt."""


def read_samples(out: Path) -> list[tuple[int, str]]:
    """(step, text) of each sample in a run folder's samples.txt, oldest first."""
    path = out / SAMPLES
    found = read_bytes(path, within=out) if path.exists() else b""
    text = found.decode(errors="replace")
    parts = re.split(rf"^{re.escape(HEADER)}(\d+)\n", text, flags=re.MULTILINE)[1:]
    return [
        (int(step), sample.strip("\n"))
        for step, sample in zip(parts[::2], parts[1::2], strict=True)
    ]


class RunLog:
    """The open log of a run. Close it, or use it as a context manager.

    On a terminal one line is kept up to date; elsewhere each record is a line. Both on stderr.
    `also` gets every record too.
    """

    def __init__(
        self,
        out: Path,
        step: int,
        steps: int,
        samples: int = 0,
        also: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.out, self.steps, self.also = out, steps, also
        cut(out, step, samples)
        self.metrics = append_to(out / METRICS)
        self.first = step
        self.console = Console(stderr=True, highlight=False)
        self.live = Live(console=self.console, auto_refresh=False) if sys.stderr.isatty() else None
        self.pace: tuple[float, int] | None = None
        self.events: Events | None = None

    def __enter__(self) -> "RunLog":
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.live is not None:
            self.live.stop()
        self.metrics.close()
        if self.events is not None:
            self.events.close()

    def record(self, record: Mapping[str, Any]) -> None:
        """Add one record: `step`, `tokens`, `time` and whatever was measured at that step."""
        record = finite(record)
        self.metrics.write(line_of(record))
        self.metrics.flush()
        if self.events is None:  # not before: tensorboard is slow to import
            self.events = Events(self.out / EVENTS, self.first)
        place = ("step", "tokens", "time")
        self.events.add(record["step"], {k: v for k, v in record.items() if k not in place})
        self.events.flush()
        if self.also is not None:
            self.also(record)
        line = self.line(record)
        if self.live is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self.live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)

    def line(self, record: Mapping[str, Any]) -> str:
        """A record for the eye, with the time that is left at the pace of this session.

        It fits the terminal, or WIDTH columns elsewhere: what is least needed is left out.
        """
        parts = {"step": f"step {record['step']}/{self.steps}"}
        parts |= {name: f.format(record[name]) for name, f in FORMS.items() if name in record}
        if self.pace is None:
            self.pace = record["time"], record["step"]
        since, done = record["time"] - self.pace[0], record["step"] - self.pace[1]
        left = self.steps - record["step"]
        if done and left:
            parts["ETA"] = f"ETA {duration(since / done * left)}"
        width = WIDTH if self.live is None else self.console.width
        for name in LEAST_NEEDED:
            if len("  ".join(parts.values())) > width:
                parts.pop(name, None)
        return "  ".join(parts.values())

    def say(self, text: str) -> None:
        """A plain line on stderr, above the live one; on a terminal wrapped between words."""
        self.console.print(text, markup=False, soft_wrap=self.live is None)

    def sample(self, step: int, text: str) -> None:
        """Add sampled text to samples.txt."""
        with append_to(self.out / SAMPLES) as file:
            file.write(f"{HEADER}{step}\n{text}\n\n")

    def samples_size(self) -> int:
        """Bytes of samples.txt."""
        path = self.out / SAMPLES
        return path.stat().st_size if path.exists() else 0

    def sync(self) -> None:
        """Wait until the disk has every record: a checkpoint must not be ahead of its metrics."""
        os.fsync(self.metrics.fileno())
        if self.events is not None:
            self.events.sync()


WIDTH = 80
LEAST_NEEDED = ("lr", "tokens_per_second", "val_bits_per_byte", "slowest_ratio", "loss")
"""What a line that is too long goes without, in this order: metrics.jsonl has all of it."""
FORMS = {
    "loss": "loss {:.4f}",
    "val_loss": "val {:.4f}",
    "val_loss_average": "average {:.4f}",
    "val_bits_per_byte": "({:.4f} bits/byte)",
    "val_accuracy": "({:.1%} right)",
    "lr": "lr {:.2e}",
    "tokens_per_second": "{:,.0f} tokens/s",
    "slowest_rank": "slowest rank {:.0f}",
    "slowest_ratio": "×{:.1f}",
}


def duration(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class QuietLog(RunLog):
    """A run's log that neither opens, writes nor prints anything."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def __enter__(self) -> "QuietLog":
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is open."""

    def record(self, record: Mapping[str, Any]) -> None:
        """The first process writes the record."""

    def say(self, text: str) -> None:
        """The first process says it."""

    def sample(self, step: int, text: str) -> None:
        """The first process writes the sample."""

    def samples_size(self) -> int:
        """The first process knows."""
        return 0

    def sync(self) -> None:
        """Nothing is written."""
