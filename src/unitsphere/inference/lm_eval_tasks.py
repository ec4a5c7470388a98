"""Tasks of lm-evaluation-harness, run offline on local files.

The task files in tasks/ are the harness's own format, for anyone to copy and change.
"""

import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from unitsphere.config import did_you_mean
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

TASKS = Path(__file__).parent / "tasks"
DRAWS = 1000
"""Of the bootstrap behind standard errors that have no formula (perplexity; BLEU takes 100)."""


def check_lm_eval() -> None:
    """Raise a `UserError` unless lm-evaluation-harness is there."""
    if importlib.util.find_spec("lm_eval") is None:
        raise UserError("--tasks needs lm-eval: pip install 'unitsphere[eval]'")


def task_names() -> list[str]:
    """The tasks that come with the package."""
    return sorted(path.stem for path in TASKS.glob("*.yaml"))


def run_tasks(
    lm: "LM",
    tasks: Sequence[str],
    data: str | None = None,
    rename: Mapping[str, str] | None = None,
    shots: int | None = None,
    limit: int | None = None,
    samples: bool = False,
) -> dict[str, Any]:
    """What the harness finds: its own document, with "results", "n-samples", "configs", ….

    `tasks` are names of task files in tasks/, their tags (zero_shot), or paths of task files.
    `data` and `rename` are those of `lm_eval_data.local`. `shots` examples before each item, and
    the first `limit` items, both as the task says if None. With `samples` the document has
    every item's request and answer. Nothing is fetched: HF_HUB_OFFLINE is set, for good. Raises
    UserError for a task that is not there.
    """
    check_lm_eval()
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    with quiet():
        from lm_eval import evaluator
        from lm_eval.tasks import TaskManager

        evaluate: Callable[..., Mapping[str, Any] | None] = evaluator.simple_evaluate

        metadata: dict[str, Any] = {"data": data, "rename": dict(rename or {})}
        manager = TaskManager(include_path=TASKS, include_defaults=False, metadata=metadata)
        check_tasks(tasks, manager)
        # Nobody reads the commit that it asks git for: outside a checkout git would complain.
        with mock.patch.object(evaluator, "get_git_commit_hash", create=True, return_value=None):
            found = evaluate(
                model=lm,
                tasks=list(tasks),
                task_manager=manager,
                num_fewshot=shots,
                limit=limit,
                log_samples=samples,
                bootstrap_iters=DRAWS,
            )
    assert found is not None, "one process has all results"
    return dict(found)


def check_tasks(tasks: Sequence[str], manager: "TaskManager") -> None:
    """Raise UserError for a task that is neither known nor a file."""
    for task in tasks:
        if task in manager.all_tasks or (task.endswith(".yaml") and Path(task).is_file()):
            continue
        if task.endswith(".yaml"):
            raise UserError(f"no such task file: {task}")
        raise UserError(
            f"unknown task '{task}'{did_you_mean(task, manager.all_tasks)}: give a name or a file"
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """stdout is the caller's alone: the harness's prints go to stderr, and no process is forked."""
    former = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # of a hint that no local task needs
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if former is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = former


def figures(found: Mapping[str, Any]) -> dict[str, Any]:
    """Task -> items, shots, and each metric with its standard error, for JSON.

    A standard error that the harness has no way to estimate is None.
    """
    return {
        task: {
            "items": found["n-samples"][task]["effective"],
            "shots": found["n-shot"][task],
            "version": found["versions"].get(task),
            "metrics": metrics(values),
        }
        for task, values in found["results"].items()
        if task in found["n-samples"]
    }


def metrics(values: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Metric -> value and standard error, from the harness's "acc,none" and "acc_stderr,none"."""
    named: dict[str, dict[str, float | None]] = {}
    for key, value in values.items():
        name, comma, _ = key.partition(",")
        if not comma or name.endswith("_stderr"):
            continue
        error = values.get(key.replace(name, f"{name}_stderr", 1))
        named[name] = {
            "value": value,
            "standard_error": error if isinstance(error, float) else None,
        }
    return named
