"""Speed and memory of `prepare`, compared with the `tokenizers` batch encoder on the same texts.

    python benchmarks/prepare.py wiki.jsonl tokenizer.json --megabytes 60 --rounds 5

Prints one JSON document. Each measurement is a new process; the arms take turns, so that other
load on the machine affects all of them. MB/s counts the file's bytes (10^6) by the wall clock;
CPU seconds are those of the whole process, including loading. The encoder's arms hold the parsed
texts in memory before their clock starts and discard the tokens.
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BARE = ("encode_batch", "encode_batch_fast")
ARMS = ("prepare", *BARE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="JSONL with a 'text' field")
    parser.add_argument("tokenizer", type=Path, help="a tokenizer.json")
    parser.add_argument("--megabytes", type=float, help="use only so much of the file")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        print(json.dumps(measure(options.arm, options.file, options.tokenizer)))
        return
    with tempfile.TemporaryDirectory() as folder:
        file = options.file
        if options.megabytes:
            file = shorten(file, options.megabytes, Path(folder, file.name))
        print(json.dumps(compare(file, options.tokenizer, options.rounds), indent=2))


def shorten(file: Path, megabytes: float, out: Path) -> Path:
    """The first lines of a file, about so many megabytes."""
    with file.open("rb") as lines, out.open("wb") as short:
        short.writelines(itertools.takewhile(lambda _: short.tell() < megabytes * 1e6, lines))
    return out


def compare(file: Path, tokenizer: Path, rounds: int) -> dict:
    """Medians of each arm over `rounds`, the arms interleaved."""
    runs: dict[str, list[dict]] = {arm: [] for arm in ARMS}
    for _ in range(rounds):
        for arm in ARMS:
            command = [sys.executable, __file__, str(file), str(tokenizer), "--arm", arm]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            runs[arm].append(json.loads(done.stdout))
            print(arm, runs[arm][-1], file=sys.stderr)
    megabytes = file.stat().st_size / 1e6
    arms = {
        arm: {
            "megabytes_per_second": round(
                megabytes / statistics.median(run["seconds"] for run in results), 2
            ),
            "seconds": [run["seconds"] for run in results],
            "cpu_seconds": [run["cpu_seconds"] for run in results],
            "peak_mib": max(run["peak_mib"] for run in results),
        }
        for arm, results in runs.items()
    }
    wall, cpu = (
        {arm: statistics.median(run[key] for run in results) for arm, results in runs.items()}
        for key in ("seconds", "cpu_seconds")
    )
    return {
        "file": file.name,
        "megabytes": round(megabytes, 1),
        "cores": len(os.sched_getaffinity(0)),
        "rounds": rounds,
        "arms": arms,
        "prepare/ceiling": round(min(wall[arm] for arm in BARE) / wall["prepare"], 3),
        "prepare/ceiling, by CPU time": round(min(cpu[arm] for arm in BARE) / cpu["prepare"], 3),
    }


def measure(arm: str, file: Path, tokenizer: Path) -> dict:
    """Seconds and peak resident memory of one arm, in this process."""
    seconds = prepare(file, tokenizer) if arm == "prepare" else bare(arm, file, tokenizer)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cpu = time.process_time()
    return {"seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), "peak_mib": round(peak)}


def prepare(file: Path, tokenizer: Path) -> float:
    from unitsphere.data import prepare

    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        prepare(str(file), str(tokenizer), Path(folder, "out"), progress=False)
        return time.perf_counter() - begun


def bare(method: str, file: Path, tokenizer: Path) -> float:
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(tokenizer))
    encode = getattr(backend, method)
    with file.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    begun = time.perf_counter()
    for start in range(0, len(texts), 1000):
        encode(texts[start : start + 1000], add_special_tokens=False)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
