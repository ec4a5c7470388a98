"""`unitsphere quickstart`: a comparison with its own settings and layout.

Five matched arms on the standard library's source text, one budget, one seed, the recipes' own
rates. Each arm is an ordinary run in a folder of its name. Calling it again resumes the arms
that were interrupted, and reuses those that finished.
"""

import dataclasses
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unitsphere.config import json_text
from unitsphere.errors import Preempted, UserError
from unitsphere.files import write_text
from unitsphere.inference.generate import generate_text
from unitsphere.report.document import Page, Section, Text
from unitsphere.report.kinds.quickstart import Arm, validation_figures
from unitsphere.report.registry import SUMMARY
from unitsphere.report.render.picture import write_picture
from unitsphere.report.write import FILE as REPORT
from unitsphere.report.write import write_page
from unitsphere.studies.compare import CompareStudy
from unitsphere.studies.core.execute import Executor, Record, execute, executor_of
from unitsphere.studies.core.jobs import Interrupted
from unitsphere.studies.core.kind import Kind
from unitsphere.studies.core.local import available_cores
from unitsphere.studies.core.plan import Planned, is_finished, wanted
from unitsphere.studies.core.spec import ArmSpec, Execution, Tune
from unitsphere.training.config import RunConfig
from unitsphere.training.folder import CHECKPOINTS, CONFIG, locked
from unitsphere.training.forecast import size_of
from unitsphere.training.load import load_run
from unitsphere.training.log import read_metrics
from unitsphere.training.recipes import load_recipe
from unitsphere.training.result import result

# The first is the baseline that the others are measured against.
RECIPES = (
    "quickstart/gpt-plus",
    "quickstart/gpt-plus-muon",
    "quickstart/ngpt",
    "quickstart/angpt",
    "quickstart/best",
)
SAMPLE_LINES, WIDTH = 8, 76
PROMPT = (
    "class Reader:\n"
    "    def __init__(self, file):\n"
    "        self.file = file\n"
    "        self.lines = []\n\n"
    "    def read"
)
"""What every model continues: small models write readable code once they are inside of some."""
SAMPLE_TOKENS, TEMPERATURE, MIN_P = 120, 0.5, 0.2
"""Tokens below `MIN_P` of the likeliest one are left out: one odd token makes a line unreadable."""


@dataclass(frozen=True)
class Finished:
    """A finished run: its config, its row of the table, its evaluations, what it writes."""

    config: RunConfig
    arm: Arm
    evaluations: Mapping[int, float]
    """Step -> bits per byte of the validation split."""
    sample: str


@dataclass(frozen=True)
class Found:
    """The results of the arms: records of all, and the figures of those that finished."""

    out: Path
    records: Mapping[str, Record]
    runs: Sequence[Finished]
    baseline: Finished | None


def quickstart_study(
    recipes: Sequence[str] = RECIPES,
    overrides: Mapping[str, Any] | None = None,
    workers: int | None = None,
) -> CompareStudy:
    """The comparison of some recipes at one budget, untuned; the first is the baseline.

    Args:
        overrides: keys set in every arm, such as {"train.steps": 20}.
        workers: arms at a time; by default one per core.
    """
    train = load_recipe(recipes[0]).train
    steps = (overrides or {}).get("train.steps", train.steps)
    # Arms that run side by side must not share one GPU: their times would tell nothing.
    return CompareStudy(
        arms={arm_name(recipe): ArmSpec(recipe) for recipe in recipes},
        set={"train.device": "cpu", **(overrides or {})},
        budgets=[steps * train.batch_tokens],
        seeds=[(overrides or {}).get("train.seed", train.seed)],
        tune=Tune(points=1),
        run=Execution(workers=workers or min(len(recipes), len(available_cores()))),
    )


def arm_name(recipe: str) -> str:
    """The last part of a recipe's name or path: "quickstart/ngpt" -> "ngpt"."""
    return recipe.rpartition("/")[2].removesuffix(".toml")


def quickstart(study: CompareStudy, out: Path, executor: Executor | None = None) -> Found:
    """Train the arms that are not finished under `out`, and read the results of all of them.

    Raises `Preempted` when stopped: the arms have saved, and the same call resumes.
    """
    with locked(out):
        check_folder(out, study)
        planned = [planned_arm(study, name, out / name) for name in study.arms]
        try:
            found = execute(planned, executor or executor_of(study.run, out))
        except Interrupted as stopped:
            raise Preempted(f"{out}: {stopped}") from None
    records = dict(zip(study.arms, found, strict=True))
    runs = []
    for name in [name for name, record in records.items() if record.status == "finished"]:
        try:
            runs.append(read_finished(name, study.arms[name].recipe, out / name))
        except UserError as error:  # its folder is damaged: the other arms still have a result
            records[name] = dataclasses.replace(records[name], status="failed", error=str(error))
    baseline = runs[0] if runs and runs[0].arm.name == study.reference else None
    return Found(out, records, runs, baseline)


def check_folder(out: Path, study: CompareStudy) -> None:
    """Raise UserError for a folder of something else: a run, or another study."""
    names = [found.name for found in out.iterdir() if not found.name.startswith(".")]
    own = (SUMMARY, *study.arms)  # an arm has a folder, and a log of its name
    if names and not any(name.startswith(own) for name in names):
        raise UserError(f"{out} is not empty and holds no quickstart: give --out another folder")


def planned_arm(study: CompareStudy, name: str, run: Path) -> Planned:
    """An arm's run, with all that its recipe says; says what is known of it already."""
    recipe, keys = study.arms[name].recipe, study.set
    config = wanted(recipe, keys, run)
    if is_finished(run):
        say(f"{name}: finished earlier, reused; delete {run} to train it again")
    elif (run / CHECKPOINTS).exists():
        say(f"{name}: resumes from its last checkpoint in {run}")
    return Planned(name, recipe, keys, run, config)


def read_finished(name: str, recipe: str, run: Path) -> Finished:
    """The figures of a finished run; `steps_to_baseline` is still open (see `against`).

    Raises UserError if its records lack a figure.
    """
    config = load_recipe(run / CONFIG)
    records = read_metrics(run)
    evaluations = having("val_bits_per_byte", records, run)
    last = result(run, trained=False)
    arm = Arm(
        name=name,
        recipe=recipe,
        run=str(run),
        parameters=size_of(config).parameters,
        lr=config.optim.lr,
        steps=last.step,
        tokens=last.tokens,
        bits_per_byte=evaluations[-1]["val_bits_per_byte"],
        steps_to_baseline=None,
        ms_per_step=milliseconds(config, having("tokens_per_second", records, run)),
        seconds=last.seconds,
    )
    curve = {record["step"]: record["val_bits_per_byte"] for record in evaluations}
    return Finished(config, arm, curve, continued(run))


def having(key: str, records: Sequence[dict[str, Any]], run: Path) -> list[dict[str, Any]]:
    """The records with a figure; a `UserError` if there are none."""
    found = [record for record in records if key in record]
    if not found:
        raise UserError(
            f"{run} is finished, but its metrics.jsonl has no {key}: delete {run} to train it again"
        )
    return found


def milliseconds(config: RunConfig, timed: Sequence[dict[str, Any]]) -> float:
    """Median milliseconds per step over the records that tell it; evaluations are not in it."""
    rates = [record["tokens_per_second"] for record in timed]
    return 1000 * config.train.batch_tokens / statistics.median(rates)


def continued(run: Path) -> str:
    """`PROMPT` and what the trained model writes after it, the same for the same weights."""
    model, tokenizer, _ = load_run(run, "cpu")
    (text,) = generate_text(
        model, tokenizer, [PROMPT], SAMPLE_TOKENS, temperature=TEMPERATURE, min_p=MIN_P
    )
    return PROMPT + text.text


def against(baseline: Finished | None, runs: Sequence[Finished]) -> list[Arm]:
    """The runs' rows, each with the steps it took to the baseline's last bits per byte.

    That is the first evaluation at or below it: nothing is interpolated or extrapolated.
    """
    if baseline is None:
        return [run.arm for run in runs]
    target = baseline.arm.bits_per_byte
    reached = {run.arm.name: first_step_below(run.evaluations, target) for run in runs}
    return [dataclasses.replace(r.arm, steps_to_baseline=reached[r.arm.name]) for r in runs]


def first_step_below(evaluations: Mapping[int, float], target: float) -> int | None:
    """The step of the first evaluation at or below `target`, or None if there is none."""
    return next((step for step, bits in evaluations.items() if bits <= target), None)


def document(study: CompareStudy, found: Found) -> dict[str, Any]:
    """The figures, which summary.json keeps."""
    return {
        "baseline": found.baseline.arm.name if found.baseline else None,
        "title": title(found),
        "arms": [dataclasses.asdict(arm) for arm in against(found.baseline, found.runs)],
        "failed": [
            {"name": name, "error": record.error, "log": str(record.planned.job().log)}
            for name, record in found.records.items()
            if record.status != "finished"
        ],
        "samples": {run.arm.name: run.sample for run in found.runs},
        "curves": str(found.out / "curves.png") if found.runs else None,
        "report": str(found.out / REPORT),
    }


def title(found: Found) -> str:
    """What was trained on what, and for how long; empty where nothing finished."""
    if not found.runs:
        return ""
    first = found.runs[0]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    source = first.config.data.source
    what = f"Source text of Python {version}" if source == "stdlib" else source
    return f"{what}, {first.arm.tokens:,} training tokens per arm, one seed"


def write(document: dict[str, Any], out: Path) -> tuple[Page, list[Path]]:
    """Write summary.json, the picture and the HTML page.

    The page for the terminal has the beginning of what each arm wrote.
    """
    write_text(out / SUMMARY, json_text(document) + "\n")
    written = write_page(out)
    curves = validation_figures(written.page)
    if curves is not None:
        write_picture(curves.figures, [out / "curves.png"], curves.columns, document["title"])
    sections = [*written.page.sections, Section("wrote", "Samples", wrote(document["samples"]))]
    files = [Path(arm["run"]) for arm in document["arms"]]
    files += [out / SUMMARY, *([out / "curves.png"] if curves else []), written.path]
    return dataclasses.replace(written.page, sections=sections), files


def wrote(samples: Mapping[str, str]) -> list[Text]:
    """The first lines of what each arm wrote, with the last line of the prompt."""
    found = []
    for name, sample in samples.items():
        shown = sample[PROMPT.rindex("\n") + 1 :].split("\n")
        lines = [line[:WIDTH] for line in shown if line.strip()][:SAMPLE_LINES]
        found.append(Text([f"{name} wrote:", *(f"  {line}" for line in lines)]))
    return found


def failures(found: Found) -> list[str]:
    """A line for each arm that did not finish."""
    return [
        f"{name}: {record.error} (log: {record.planned.job().log})"
        for name, record in found.records.items()
        if record.status != "finished"
    ]


def say(line: str) -> None:
    """Tell on stderr."""
    print(line, file=sys.stderr, flush=True)


KIND = Kind("quickstart", CompareStudy, quickstart, document, failures, write=write)
