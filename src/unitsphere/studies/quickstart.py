"""`unitsphere quickstart`: four matched arms on the standard library's source, and what they gain.

One arm a core, each an ordinary `unitsphere train` in a folder of its own. Calling it again goes
on with arms that were interrupted, keeps those that finished, and says so.
"""

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unitsphere.data.prepare import prepared
from unitsphere.errors import Preempted
from unitsphere.files import write_text
from unitsphere.report.curves import Curve, validation_curves
from unitsphere.report.table import Arm, arms_table, duration
from unitsphere.report.write import FILE as REPORT
from unitsphere.report.write import write_page
from unitsphere.studies.core.local import Interrupted, State, available_cores, run_jobs
from unitsphere.studies.core.plan import is_finished, size_of, train_job, wanted
from unitsphere.studies.core.progress import display
from unitsphere.training.config import RunConfig
from unitsphere.training.folder import locked
from unitsphere.training.log import read_metrics, read_samples
from unitsphere.training.recipes import load_recipe


@dataclass(frozen=True)
class Finished:
    """A finished run: its resolved config, its row of the table, its curve, its last sample."""

    config: RunConfig
    arm: Arm
    curve: Curve
    sample: str


def read_finished(name: str, recipe: str, run: Path) -> Finished:
    """The figures of a finished run; `steps_to_baseline` is still open (see `against`)."""
    config = load_recipe(run / "config.json")
    records = read_metrics(run)
    evaluations = [record for record in records if "val_bits_per_byte" in record]
    last = evaluations[-1]
    arm = Arm(
        name=name,
        recipe=recipe,
        run=str(run),
        parameters=size_of(config).parameters,
        lr=config.optim.lr,
        steps=last["step"],
        tokens=last["tokens"],
        bits_per_byte=last["val_bits_per_byte"],
        steps_to_baseline=None,
        ms_per_step=milliseconds(config, records),
        seconds=last["time"],
    )
    curve = Curve(
        name,
        [record["step"] for record in evaluations],
        [record["time"] for record in evaluations],
        [record["val_bits_per_byte"] for record in evaluations],
    )
    return Finished(config, arm, curve, last_sample(run))


def milliseconds(config: RunConfig, records: Sequence[dict[str, Any]]) -> float:
    """Median milliseconds a step over a run's records; evaluations are not in it."""
    rates = [r["tokens_per_second"] for r in records if "tokens_per_second" in r]
    return 1000 * config.train.batch_tokens / statistics.median(rates)


def last_sample(run: Path) -> str:
    """The last text of samples.txt; empty if there is none."""
    written = read_samples(run)
    return written[-1][1] if written else ""


def against(baseline: Finished | None, runs: Sequence[Finished]) -> list[Arm]:
    """The runs' rows, each with the steps it took to the baseline's last bits per byte.

    That is the first evaluation at or below it: nothing is interpolated or extrapolated.
    """
    if baseline is None:
        return [run.arm for run in runs]
    target = baseline.arm.bits_per_byte
    return [replace(run.arm, steps_to_baseline=first_step_below(run.curve, target)) for run in runs]


def first_step_below(curve: Curve, target: float) -> int | None:
    """The step of the first evaluation at or below `target`, or None if there is none."""
    reached = (s for s, b in zip(curve.steps, curve.bits_per_byte, strict=True) if b <= target)
    return next(reached, None)


# The first is the baseline that the others are measured against.
RECIPES = (
    "quickstart/gpt-plus",
    "quickstart/gpt-plus-muon",
    "quickstart/ngpt",
    "quickstart/angpt",
)
SAMPLE_LINES = 6


def quickstart(
    out: Path = Path("runs/quickstart"),
    recipes: Sequence[str] = RECIPES,
    overrides: Mapping[str, Any] | None = None,
    workers: int | None = None,
    as_json: bool = False,
) -> int:
    """Train the arms that are not finished under `out`, then report all of them.

    Args:
        out: the study's folder; each arm's run folder lies in it.
        recipes: the arms; the first is the baseline.
        overrides: keys set in every arm alike, such as {"train.steps": 20}.
        workers: arms at a time; by default one a core.
        as_json: print the summary as one JSON document instead of the report.

    Returns:
        The exit status: 0, or 1 if an arm failed.

    Raises:
        Preempted: when stopped; the arms have saved, the same call goes on.
    """
    began = time.monotonic()
    workers = workers or min(len(recipes), len(available_cores()))
    arms = {arm_name(recipe): recipe for recipe in recipes}
    # Arms that run side by side must not share one GPU: their times would tell nothing.
    with locked(out):
        failed = _train(arms, out, {"train.device": "cpu", **(overrides or {})}, workers)
    done = [name for name in arms if is_finished(out / name)]
    runs = [read_finished(name, arms[name], out / name) for name in done]
    baseline = runs[0] if runs and runs[0].arm.recipe == recipes[0] else None
    summary = _summary(out, runs, baseline, failed)
    if as_json:
        print(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        _report(summary, runs, baseline, time.monotonic() - began)
    for state in failed:
        _say(f"{state.job.name} failed: {state.error} (log: {state.job.log})")
    return 1 if failed else 0


def arm_name(recipe: str) -> str:
    """The last part of a recipe's name or path: "quickstart/ngpt" -> "ngpt"."""
    return recipe.rpartition("/")[2].removesuffix(".toml")


def _train(
    arms: Mapping[str, str], out: Path, overrides: Mapping[str, Any], workers: int
) -> list[State]:
    """Train the arms that are not finished; the states of those that failed."""
    jobs = []
    for name, recipe in arms.items():
        run = out / name
        config = wanted(recipe, overrides, run)
        if is_finished(run):
            _say(f"{name}: finished earlier, reused; delete {run} to train it anew")
            continue
        if (run / "checkpoints").exists():
            _say(f"{name}: goes on from its last checkpoint in {run}")
        jobs.append(train_job(name, recipe, overrides, run, config.train.steps))
        prepared(config.data)
    if not jobs:
        return []
    _say(f"training {', '.join(job.name for job in jobs)}: {workers} at a time, one thread each")
    try:
        with display(workers, sys.stderr) as show:
            states = run_jobs(jobs, workers, show)
    except Interrupted as stopped:
        raise Preempted(f"{out}: {stopped}") from None
    return [state for state in states if state.status != "done"]


def _summary(
    out: Path, runs: Sequence[Finished], baseline: Finished | None, failed: Sequence[State]
) -> dict[str, Any]:
    """The figures as one document, kept in summary.json with curves.png and the page beside it."""
    curves = out / "curves.png"
    if runs:
        title = f"{_setting(runs[0])}, {runs[0].arm.tokens:,} training tokens, one seed"
        validation_curves([run.curve for run in runs], title, curves)
    summary = {
        "baseline": baseline.arm.name if baseline else None,
        "arms": [dataclasses.asdict(arm) for arm in against(baseline, runs)],
        "failed": [{"name": s.job.name, "error": s.error, "log": str(s.job.log)} for s in failed],
        "samples": {run.arm.name: run.sample for run in runs},
        "curves": str(curves) if runs else None,
        "report": str(out / REPORT),
    }
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary, indent=2, ensure_ascii=False)
    write_text(out / "summary.json", text + "\n")
    write_page(out)
    return summary


def _report(
    summary: Mapping[str, Any],
    runs: Sequence[Finished],
    baseline: Finished | None,
    seconds: float,
) -> None:
    """Print what was found: table, samples, and where everything lies."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    if runs:
        title = f"{_setting(runs[0])}, {runs[0].arm.tokens:,} training tokens an arm, one seed"
        name = baseline.arm.name if baseline else None
        console.print(arms_table(against(baseline, runs), name, title), soft_wrap=False)
    for run in runs:
        console.print(f"[bold]{run.arm.name}[/bold] wrote:")
        lines = [line for line in run.sample.split("\n") if line.strip()]
        for line in lines[:SAMPLE_LINES]:
            console.print(f"  {escape(line)}", soft_wrap=False, no_wrap=True, overflow="ellipsis")
        console.print()
    places = {run.arm.name: run.arm.run for run in runs}
    places |= {"curves": summary["curves"]} if runs else {}
    places["report"] = summary["report"]
    width = max(map(len, places)) + 2
    for name, place in places.items():
        console.print(f"{name:<{width}}{place}", markup=False)
    _say(f"quickstart took {duration(seconds)}")


def _setting(run: Finished) -> str:
    source = run.config.data.source
    if source == "stdlib":
        return f"Source text of Python {sys.version_info.major}.{sys.version_info.minor}"
    return source


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
