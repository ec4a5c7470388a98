"""Measure everything that needs a GPU, part by part, within a number of minutes.

    make gpu [GPU_MINUTES=25] [GPU_PARTS="step-0.5b loss"] [REHEARSE=1]
    python benchmarks/gpu.py --minutes 9 --out runs/gpu

A part is one command in a process of its own. Its figures are written to OUT/PART.json as soon as
it ends, and the next call skips it, so that a call that was cut short loses only the part it was
in. A part starts only if its estimated time is left. --rehearse runs every part on a CPU at toy
size, and collects the tests.
docs/how-to/gpu.md says how to run it; benchmarks/gpu_page.py makes the page from the JSON.
"""

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unitsphere.config import read_toml
from unitsphere.files import write_text
from unitsphere.studies.core.spec import toml_text

ROOT = Path(__file__).parent.parent
STUDY = ROOT / "benchmarks" / "compare-gpu.toml"
UNITSPHERE = (sys.executable, "-m", "unitsphere")
TESTS = {
    "tests": ("tests/kernels", "tests/ops/test_mask.py"),
    "fla": ("tests/models/mixers/test_fla.py",),
}
"""Part -> files of tests. Those of fla are apart: its kernels take minutes to tune themselves."""

STEP = "--rounds 5 --steps 3 --warmup 5"
SMALL = "--d_model 384 --layers 8 --heads 6 --micro_batch 16 " + STEP
TOY_STEP = (
    "--device cpu --d_model 32 --layers 1 --heads 2 --context 16 --tokens 32 --vocab 64 "
    "--rounds 2 --steps 1 --warmup 1"
)
STARTS = 0.7
"""Share of a part's time in which training arms and rounds start; the rest is for the last ones."""
TOY_MODEL = {"d_model": 32, "n_layers": 1, "n_heads": 2}


@dataclass(frozen=True)
class Part:
    """A `unitsphere bench`: the arms, its sizes on a GPU and in a rehearsal.

    minutes: estimated for one H200, start-up and compilation included.
    """

    minutes: float
    what: str
    sizes: str
    toy: str

    def command(self, rehearse: bool, seconds: float = math.inf) -> list[str]:
        """Its command line, for a part that is cut off after `seconds`.

        Training arms end before that with what they have. A rehearsal uses no FP8, which CPUs lack,
        and compiles nothing.
        """
        line = f"bench {self.what} {self.toy if rehearse else self.sizes} --json"
        if self.what.startswith("--arms") and seconds < math.inf:
            line += f" --minutes {STARTS * seconds / 60:.2f}"
        if rehearse:
            line = line.replace("compile=true", "compile=false").replace("=fp8", "=bf16")
        return [*UNITSPHERE, *line.split()]


BENCHES = {
    "kernels": Part(
        0.5, "kernels", "", "--device cpu --tokens 64 --d_model 32 --d_k 16 --rounds 2"
    ),
    "loss": Part(
        0.7, "loss", "--bf16 --tokens 16384", "--device cpu --tokens 64 --d_model 32 --vocab 64"
    ),
    "step-0.5b": Part(
        5.5,
        "--arms gpt-plus ngpt gpt-plus:train.precision=fp8 ngpt:train.precision=fp8 "
        "unitsphere/best-0.5b angpt ngpt:kernels=off gpt-plus:train.micro_batch=4",
        STEP,
        TOY_STEP,
    ),
    "step-50m": Part(
        2.2,
        "--arms gpt-plus ngpt angpt gpt-plus:train.compile=false ngpt:train.compile=false "
        "gpt-plus:model.window=1024 ngpt:model.window=1024 "
        "ngpt:train.recompute=selective ngpt:train.recompute=full",
        SMALL,
        TOY_STEP.replace("--context 16", "--context 2048").replace("--tokens 32", "--tokens 2048"),
    ),
    "generate": Part(
        3,
        "generate --arms gpt-plus ngpt llama ngpt:train.compile=true --batch 1 16",
        "--context 512 --rounds 4",
        "--device cpu --d_model 32 --layers 1 --heads 2 --vocab 64 --context 8 --new 16 --rounds 2",
    ),
    "optimizers": Part(
        1,
        "optimizers",
        "--rounds 5",
        "--device cpu --d_model 32 --layers 1 --heads 2 --vocab 64 --rounds 2 --steps 1",
    ),
}
MINUTES = 25
"""Of a call. All parts that come before `compare` fit in, and leave it the minutes it needs."""
ESTIMATES = {"tests": 2} | {name: part.minutes for name, part in BENCHES.items()}
ESTIMATES |= {"compare": 4, "fla": 5}
"""Part -> the minutes that must be left for it to start, in the order in which they run.

`compare` is given all that is left, so `fla` is for the next call."""

TOKENS_PER_SECOND = 200_000
"""Of the comparison's slowest arm: twelve runs at once on an H200 had 230,000 each."""
START_UP, SPARE = 45, 0.8
"""Seconds of a comparison's run before its first step; the share of the rest that is planned."""
BATCH, MOST = 8_192, 100_000_000
PATIENCE = 2
"""A part but `compare` is cut off after this many times its estimate, for the others' sake."""


class Cut(Exception):
    """The time was up before the part had ended."""


def measure(name: str, out: Path, seconds: float, options: argparse.Namespace) -> Any:
    """The figures of one part. Raises Cut, or CalledProcessError for a command that failed."""
    if name in TESTS:
        return run_tests(name, seconds, out, options.rehearse)
    if name == "compare":
        study = write_study(out, seconds, options.data, options.rehearse)
        command = [*UNITSPHERE, "compare", str(study), "--out", str(out / "compare"), "--json"]
        return json.loads(output_of(command, out / "compare.log", seconds))
    command = BENCHES[name].command(options.rehearse, seconds)
    # 1: an arm is left out, and the document says why
    return json.loads(output_of(command, out / f"{name}.log", seconds, fine=(0, 1)))


def run_tests(name: str, seconds: float, out: Path, rehearse: bool) -> dict[str, Any]:
    """How many tests of a part passed on the device, and which failed.

    The log names each as it ends, for a part that is cut off.
    """
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", *TESTS[name]]
    if importlib.util.find_spec("xdist"):  # without it pytest refuses -n
        command += ["-n", str(min(os.cpu_count() or 1, 8))]
    command += ["--collect-only"] if rehearse else []
    text = output_of(command, out / f"{name}.log", seconds, fine=(0, 1))
    lines = text.splitlines()
    if not lines:  # pytest itself did not start
        raise subprocess.CalledProcessError(1, command)
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"summary": lines[-1].strip("= "), "failed": failed}


def output_of(command: Sequence[str], log: Path, seconds: float, fine: Sequence[int] = (0,)) -> str:
    """What a command prints on stdout, which is kept in `log`; its progress stays on stderr."""
    with log.open("w") as stdout:
        process = subprocess.Popen(command, stdout=stdout, cwd=ROOT)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Cut from None
        finally:
            end(process)
    if status not in fine:
        raise subprocess.CalledProcessError(status, command)
    return log.read_text()


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a process that still runs; a study saves its run first."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def write_study(out: Path, seconds: float, data: Path | None, rehearse: bool) -> Path:
    """The comparison's file, with as many tokens per arm as there is time for.

    One that an earlier call started keeps its tokens, and is resumed.
    """
    path = out / "compare.toml"
    if (out / "compare" / "study.toml").exists() and path.exists():
        return path
    study = read_toml(STUDY)
    own = study["set"]
    if data is not None:
        own["data"] |= {
            "source": str(data.resolve() / "train.jsonl"),
            "validation": str(data.resolve() / "dev.jsonl"),
        }
    study["budgets"] = [tokens_for(seconds, len(study["arms"]))]
    if rehearse:
        study["budgets"] = [512]
        own["model"] = TOY_MODEL
        own["data"] |= {"tokenizer": "bytes", "context": 64}
        own["train"] |= {"batch_tokens": 128, "eval_tokens": 512, "device": "cpu"}
    write_text(path, toml_text(study))
    return path


def tokens_for(seconds: float, arms: int) -> int:
    """Tokens that each of the arms can be trained on: whole batches, at least 16."""
    training = max(seconds / arms - START_UP, 0) * SPARE
    return max(min(int(TOKENS_PER_SECOND * training), MOST) // BATCH, 16) * BATCH


def run_parts(
    names: Sequence[str], minutes: float, out: Path, one: Callable[[str, float], Any]
) -> list[str]:
    """Measure each part that has no JSON yet and fits in the time; returns those still to do."""
    begin = time.monotonic()
    left = []
    for name in names:
        path = out / f"{name}.json"
        seconds = 60 * minutes - (time.monotonic() - begin)
        if path.exists():
            say(f"{name}: finished earlier")
            continue
        if seconds < 60 * ESTIMATES[name]:
            say(f"{name}: left for the next call, {seconds / 60:.1f} minutes are too few")
            left.append(name)
            continue
        say(f"{name}: about {ESTIMATES[name]:g} of {seconds / 60:.1f} minutes")
        start = time.monotonic()
        limit = seconds if name == "compare" else min(seconds, 60 * PATIENCE * ESTIMATES[name])
        try:
            result = one(name, limit)
        except Cut:
            say(f"{name}: cut off after {limit / 60:.1f} minutes")
            left.append(name)
        except (subprocess.CalledProcessError, json.JSONDecodeError) as error:
            say(f"{name}: failed: {error}")
            left.append(name)
        else:
            took = round(time.monotonic() - start, 1)
            document = {"part": name, "seconds": took, "result": result}
            write_text(path, json.dumps(document, indent=1) + "\n")
            say(f"{name}: {took:g} s, {path}")
            for arm, why in result.get("left", {}).items():
                say(f"{name}: without {arm}: {why}")
    return left


def say(line: str) -> None:
    print(f"gpu: {line}", file=sys.stderr, flush=True)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of this call")
    parser.add_argument("--parts", nargs="+", default=[*ESTIMATES], choices=[*ESTIMATES])
    parser.add_argument("--out", type=Path, help="runs/gpu, or runs/gpu-rehearsal")
    parser.add_argument("--data", type=Path, help="folder of train.jsonl and dev.jsonl")
    parser.add_argument("--rehearse", action="store_true", help="toy sizes, on a CPU")
    options = parser.parse_args(argv)
    if not options.rehearse and not torch.cuda.is_available():
        parser.error("no GPU here: REHEARSE=1 make gpu runs every part at toy size on a CPU")
    if options.data is not None and not (options.data / "train.jsonl").exists():
        parser.error(f"--data {options.data} has no train.jsonl")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing; the exit status is 1 if a part is left."""
    options = parse(argv)
    out = options.out or Path("runs/gpu-rehearsal" if options.rehearse else "runs/gpu")
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    left = run_parts(
        options.parts,
        options.minutes,
        out,
        lambda name, seconds: measure(name, out, seconds, options),
    )
    if left:
        say(f"still to do: {' '.join(left)}; the same command continues")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
