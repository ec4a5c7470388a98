"""`unitsphere eval --tasks`: lm-evaluation-harness on local files."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unitsphere.cli.output import print_table
from unitsphere.cli.parse import check_positive
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.cli.evaluate import Eval
    from unitsphere.training.load import LoadedRun

FIELDS = {"source": "source_field", "target": "target_field", "text": "field"}
"""Fields of the tasks translation and text -> the option that gives another name."""


def check_task_options(args: "Eval") -> None:
    """Raise UserError for options that contradict each other, or if lm-eval is missing."""
    if not args.tasks:
        for name in ("task_data", "shots", "limit", "trust_task_code"):
            if getattr(args, name) not in (None, False):
                raise UserError(f"--{name} is of --tasks: give both, or leave it out")
        return
    from unitsphere.inference.lm_eval_tasks import check_lm_eval

    check_lm_eval()
    check_positive(limit=args.limit)
    if args.shots is not None and args.shots < 0:
        raise UserError(f"--shots must be 0 or more: {args.shots}")
    if len(args.context) > 1:
        raise UserError("--tasks takes one --context: the tokens that the model sees of an item")
    if args.by_position or args.beam is not None or args.length_penalty is not None:
        raise UserError("--tasks goes without --by_position, --beam and --length_penalty")
    if args.task_data is not None and not args.task_data.exists():
        raise UserError(f"--task_data {args.task_data}: no such file or folder")


def task_figures(args: "Eval", run: "LoadedRun") -> dict[str, Any]:
    """Task -> items, shots and metrics with their standard errors; the model in fp32.

    A run keeps them too, in tasks.jsonl: `report` draws accuracy over training tokens from it.
    """
    from unitsphere.inference.lm_eval_tasks import figures, quiet, run_tasks

    with quiet():
        from unitsphere.inference.lm_eval_model import HarnessLM

    context = args.context[0] if args.context else run.config.data.context
    lm = HarnessLM(run.model.float(), run.tokenizer, context)
    print(f"tasks: {', '.join(args.tasks)}", file=sys.stderr, flush=True)
    found = figures(
        run_tasks(
            lm,
            args.tasks,
            data=None if args.task_data is None else str(args.task_data),
            rename=renamed(args),
            shots=args.shots,
            limit=args.limit,
            trusted=args.trust_task_code,
        )
    )
    keep(args.run, context, found)
    return found


def keep(path: Path, context: int, found: Mapping[str, Any]) -> None:
    """Add the figures to the run's tasks.jsonl; an exported model has no step and keeps nothing."""
    from unitsphere.training.checkpoint.store import load_state
    from unitsphere.training.folder import add_evaluation, run_and_checkpoint
    from unitsphere.training.load import chosen_checkpoint

    folder, wanted = run_and_checkpoint(path)
    if not (folder / "checkpoints").is_dir():
        return
    state = load_state(chosen_checkpoint(folder, wanted))
    record = {"step": state.step, "tokens": state.tokens, "context": context, "tasks": dict(found)}
    try:
        add_evaluation(folder, record)
    except OSError as error:
        print(f"cannot keep the figures in {folder}: {error.strerror}", file=sys.stderr)


def renamed(args: "Eval") -> dict[str, str]:
    """Field of a task -> field of the file, where an option gives another name."""
    given = {field: getattr(args, option) for field, option in FIELDS.items()}
    return {field: name for field, name in given.items() if name not in (None, field)}


def print_tasks(tasks: Mapping[str, Mapping[str, Any]]) -> None:
    """A row a task and metric."""
    rows = [
        [
            task if first else "",
            f"{found['items']:,}" if first else "",
            str(found["shots"]) if first else "",
            name,
            f"{metric['value']:.4f}",
            "" if metric["standard_error"] is None else f"{metric['standard_error']:.4f}",
        ]
        for task, found in tasks.items()
        for first, (name, metric) in zip(
            [True, *[False] * len(found["metrics"])], found["metrics"].items(), strict=False
        )
    ]
    print_table(["task", "items", "shots", "metric", "value", "± stderr"], rows)
