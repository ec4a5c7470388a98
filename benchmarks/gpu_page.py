"""Make docs/results/gpu.md from the JSON that benchmarks/gpu.py left.

    python benchmarks/gpu_page.py runs/gpu --out docs/results/gpu.md

A section for each part that has its JSON; the parts that are missing are named.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from gpu import BENCHES, ESTIMATES, TESTS

from unitsphere.bench import generate, kernels, loss, optimizers, train
from unitsphere.config import read_json
from unitsphere.files import write_text
from unitsphere.report.render.text import markdown_table

BY_VERB = {"kernels": kernels, "loss": loss, "generate": generate, "optimizers": optimizers}
"""The first word of a part -> the bench that tells its table; `train` for all others."""


def page(folder: Path) -> str:
    """The whole page as Markdown."""
    found = {name: folder / f"{name}.json" for name in ESTIMATES}
    documents = {name: read_json(path) for name, path in found.items() if path.exists()}
    missing = [name for name in ESTIMATES if name not in documents]
    lines = ["# On a GPU\n", "Measured part by part by `make gpu` ([how](../how-to/gpu.md)).\n"]
    if missing:
        lines.append(f"Not measured: {', '.join(missing)}.\n")
    for name, document in documents.items():
        lines += [f"## {name}\n", *section(name, document["result"]), ""]
    return "\n".join(lines)


def section(name: str, result: Mapping[str, Any]) -> list[str]:
    """One part: its table, what its reader must know, where and with what code."""
    if name in TESTS:
        return [f"{result['summary']}\n", *(f"- {test}" for test in result["failed"])]
    if name == "compare":
        return comparison(result)
    bench: ModuleType = BY_VERB.get(BENCHES[name].what.split()[0], train)
    where = result["environment"]
    return [
        markdown_table(list(bench.COLUMNS), bench.rows(result)),
        *(f"- {line}" for line in bench.notes(result)),
        f"- torch {where['packages']['torch']}, commit {where['commit']}",
    ]


def comparison(result: Mapping[str, Any]) -> list[str]:
    """The arms of the comparison at its budget."""
    columns = ["arm", "parameters", "rate", "tokens", "loss", "bits per byte", "seconds"]
    rows = [
        [
            name,
            f"{arm['parameters']:,}",
            f"{budget['lr']:.3g}",
            f"{budget['tokens']:,}",
            number(budget["loss"], 4),
            number(budget["bits_per_byte"], 4),
            number(budget["seconds"], 0),
        ]
        for name, arm in result["arms"].items()
        for budget in arm["budgets"]
    ]
    return [
        markdown_table(columns, rows),
        *(f"- {flag['name']}: {flag['text']}" for flag in result["flags"]),
    ]


def number(value: float | None, digits: int) -> str:
    """A figure, or n/a for a run that diverged or failed."""
    return "n/a" if value is None else f"{value:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="what benchmarks/gpu.py wrote")
    parser.add_argument("--out", type=Path, default=Path("docs/results/gpu.md"))
    options = parser.parse_args()
    write_text(options.out, page(options.folder))
    print(options.out)


if __name__ == "__main__":
    main()
