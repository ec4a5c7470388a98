"""Tries chosen points of each arm on a separate split: rates by role, the start, decay, warm-up.

    .venv/bin/python benchmarks/tune_by_role.py benchmarks/tune-1m.toml

`compare` tunes one rate. This script first searches what else a baseline needs: the start of its
matrices and a rate for each role. Every point is a run annealed to its end and scored on documents
that no comparison reports (studies.core.tune). The points are chosen by hand, equally many
for each arm; the file keeps all that were tried. Finished runs are reused.

The TOML is a study's (`arms`, `set`, `tune`) with the points of each arm:

    [points.gpt-plus]
    491_520 = [                          # training tokens of these runs
        { lr = 4e-3, others = 2.5 },     # others: optim.rates of embedding, head and scale
        { lr = 4e-3, others = 2.5, "optim.weight_decay" = 0.3 },
        { lr = 4e-3, others = 3, seeds = [0, 1, 2] },        # seeds: those of `tune` if left out
    ]

Writes docs/results/NAME.json and .md, NAME being the TOML's.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unitsphere.config import flatten, read_toml
from unitsphere.errors import UserError
from unitsphere.report.render.markdown import markdown_table
from unitsphere.studies.core.execute import Local, Record, execute
from unitsphere.studies.core.kind import provenance
from unitsphere.studies.core.local import Interrupted
from unitsphere.studies.core.plan import Planned, arm_config, tuning_run
from unitsphere.studies.core.spec import Study, study_from
from unitsphere.studies.core.tune import tuning_data

ROLES = ("embedding", "head", "scale")
BITS = "bits_per_byte"
Point = dict[str, Any]


def read(path: Path) -> tuple[Study, list[tuple[str, int, Point]]]:
    """The study, and its points as (arm, tokens, what is set)."""
    table = read_toml(path)
    points = [
        (arm, int(tokens), point)
        for arm, budgets in table.pop("points").items()
        for tokens, some in budgets.items()
        for point in some
    ]
    return study_from(Study, table), points


def keys_of(point: Point) -> dict[str, Any]:
    """The keys that a point sets in addition to `optim.lr`."""
    own = ("lr", "others", "seeds")
    keys = flatten({key: value for key, value in point.items() if key not in own})
    if "others" in point:
        keys |= {f"optim.rates.{role}": float(point["others"]) for role in ROLES}
    return keys


def planned(study: Study, arm: str, tokens: int, point: Point, out: Path) -> list[Planned]:
    """The runs of a point, one per seed; points that set other keys have other folders."""
    keys = keys_of(point)
    words = [f"{key.rpartition('.')[2]}-{value}" for key, value in keys.items()]
    name = "+".join([arm, *words])
    varied = replace(study.arms[arm], set={**study.arms[arm].set, **keys}, lr=float(point["lr"]))
    alone = replace(study, arms={name: varied})
    data = tuning_data(arm_config(alone, name), study.tune.fraction)
    seeds = point.get("seeds", study.tune.seeds)
    return [tuning_run(out, alone, name, tokens, point["lr"], seed, data) for seed in seeds]


def row_of(point: Point, records: Sequence[Record]) -> dict[str, Any]:
    """The results of a point: means over its seeds, None if one did not finish."""
    row: dict[str, Any] = {"point": point, "statuses": [record.status for record in records]}
    for name in ("loss", BITS):
        values = [getattr(record, name) for record in records]
        known = [value for value in values if value is not None]
        row[name] = statistics.mean(known) if len(known) == len(values) else None
        row[f"{name}_by_seed"] = values
    return row


def document(
    path: Path, points: Sequence[tuple[str, int, Point]], rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Each arm's points at each budget with their results, best first."""
    arms: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for (arm, tokens, _), row in zip(points, rows, strict=True):
        arms.setdefault(arm, {}).setdefault(str(tokens), []).append(row)
    for budgets in arms.values():
        for some in budgets.values():
            some.sort(key=lambda row: (row["loss"] is None, row["loss"]))
    return {**provenance(f"python benchmarks/tune_by_role.py benchmarks/{path.name}"), "arms": arms}


def page(path: Path, found: Mapping[str, Any]) -> str:
    """All that was tried, best first, as Markdown."""
    parts = [
        f"# Points tried for {path.stem}\n",
        "**The first row of each table is the best point of that arm and budget.**\n",
    ]
    for arm, budgets in found["arms"].items():
        for tokens, rows in budgets.items():
            parts.append(f"## {arm}, {int(tokens):,} tokens\n")
            cells = [[shown(r["point"]), mean_cell(r, "loss"), mean_cell(r, BITS)] for r in rows]
            parts.append(markdown_table(["point", "nats per token", "bits per byte"], cells))
    parts += [
        "## How it was measured\n",
        "Complete runs, annealed to their end, scored on documents that no comparison reports. "
        "`others`: the factor of the rate of embedding, head and scales. With several seeds, a "
        "mean has its standard error.\n",
        f"Command: `{found['command']}`  \nCommit: {found['commit']}  \n"
        f"Machine: {found['machine']}, torch {found['torch']}\n",
    ]
    return "\n".join(parts)


def shown(point: Point) -> str:
    """A point in a line."""
    words = [f"{key.rpartition('.')[2]} {value}" for key, value in point.items() if key != "seeds"]
    return ", ".join(words)


def mean_cell(row: Mapping[str, Any], name: str) -> str:
    """Mean ± standard error, or what became of the runs."""
    values = row[f"{name}_by_seed"]
    if row[name] is None:
        return ", ".join(status for status in row["statuses"] if status != "finished")
    error = f" ± {statistics.stdev(values) / len(values) ** 0.5:.4f}" if len(values) > 1 else ""
    return f"{row[name]:.4f}{error}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was not run before; write and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path)
    parser.add_argument("--out", type=Path, help="of the runs (default runs/NAME)")
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    parser.add_argument("--only", nargs="+", help="train the points of these arms only")
    args = parser.parse_args(argv)
    try:
        study, points = read(args.study)
        points = [p for p in points if not args.only or p[0] in args.only]
        out = args.out or Path("runs") / args.study.stem
        runs = [planned(study, arm, tokens, point, out) for arm, tokens, point in points]
        records = iter(execute([run for some in runs for run in some], Local(study.run.workers)))
    except UserError as error:
        print(f"tune_by_role: error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return 75
    rows = [
        row_of(point, [next(records) for _ in some])
        for (*_, point), some in zip(points, runs, strict=True)
    ]
    found = document(args.study, points, rows)
    args.results.mkdir(parents=True, exist_ok=True)
    (args.results / f"{args.study.stem}.json").write_text(json.dumps(found, indent=2) + "\n")
    text = page(args.study, found)
    (args.results / f"{args.study.stem}.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
