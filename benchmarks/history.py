"""Adds the documents of benches to docs/results/speed-history.json, oldest first.

    unitsphere bench --json > bench.json
    python benchmarks/history.py bench.json

Milliseconds depend on the machine, so an entry keeps only the ratios to the first arm.
"""

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

HISTORY = Path(__file__).resolve().parent.parent / "docs/results/speed-history.json"


def entry(bench: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a bench's document."""
    environment = bench["environment"]
    return {
        "date": environment["started"][:10],
        "commit": environment["commit"],
        "command": shlex.join(["unitsphere", *environment["command"][1:]]),
        "device": environment["device"],
        "cpu": environment["cpu"],
        "torch": environment["packages"]["torch"],
        "noise": bench["noise"],
        "ratios": bench["ratios"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("benches", type=Path, nargs="+", help="what `bench --json` printed")
    parser.add_argument("--history", type=Path, default=HISTORY)
    arguments = parser.parse_args()
    entries = json.loads(arguments.history.read_text(encoding="utf-8"))
    for path in arguments.benches:
        entries.append(entry(json.loads(path.read_text(encoding="utf-8"))))
    text = json.dumps(entries, indent=2, ensure_ascii=False) + "\n"
    arguments.history.write_text(text, encoding="utf-8")
    print(f"{arguments.history}: {len(entries)} entries")


if __name__ == "__main__":
    main()
