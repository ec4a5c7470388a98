"""Tasks of lm-evaluation-harness, run offline on local files.

The task files in tasks/ are the harness's own format, for anyone to copy and change. A task file
is plain data (`lm_eval_files`), and its items are checked before the model sees one
(`lm_eval_data`).
"""

import contextlib
import importlib.util
import io
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from unitsphere.errors import UserError

if TYPE_CHECKING:
    from lm_eval.api.model import LM
    from lm_eval.api.task import Task

DRAWS = 1000
"""Of the bootstrap behind standard errors that have no formula (perplexity; BLEU takes 100)."""
REHEARSED = 2
"""Items of each task that go through the harness with made-up answers first."""


def check_lm_eval() -> None:
    """Raise a `UserError` unless lm-evaluation-harness is there."""
    if importlib.util.find_spec("lm_eval") is None:
        raise UserError("--tasks needs lm-eval: pip install 'unitsphere[eval]'")


def run_tasks(
    lm: "LM",
    tasks: Sequence[str],
    data: str | None = None,
    rename: Mapping[str, str] | None = None,
    shots: int | None = None,
    limit: int | None = None,
    samples: bool = False,
    trusted: bool = False,
) -> dict[str, Any]:
    """What the harness finds: its own document, with "results", "n-samples", "configs", ….

    `tasks` are names of task files in tasks/, their tags (zero_shot), or paths of task files.
    `data` and `rename` are those of `lm_eval_data.local`. `shots` examples before each item, and
    the first `limit` items, both as the task says if None. With `samples` the document has
    every item's request and answer. With `trusted` the harness itself reads the task files, which
    may then run code. Nothing is fetched: HF_HUB_OFFLINE stays set. Raises UserError for a
    task that is not there or cannot be read, and for an item that cannot be scored.
    """
    check_lm_eval()
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    with quiet():
        from unitsphere.inference.lm_eval_data import check_items, in_one_line, strict_harness
        from unitsphere.inference.lm_eval_files import load_tasks

        with strict_harness(trusted):
            loaded = load_tasks(tasks, {"data": data, "rename": dict(rename or {})}, trusted)
            for name, task in loaded.items():
                # The examples before an item are drawn from all items.
                checked = None if shots or task.config.num_fewshot else limit
                with in_one_line(f"task {name}"):
                    check_items(task, checked)
                    rehearse(task, shots, trusted)
            # Only code that was trusted can fail at an item that has been checked.
            with in_one_line("the tasks") if trusted else contextlib.nullcontext():
                return harness(
                    lm,
                    list(loaded.values()),
                    num_fewshot=shots,
                    limit=limit,
                    log_samples=samples,
                )


def rehearse(task: Any, shots: int | None, trusted: bool) -> None:
    """Evaluate the first items with made-up answers, so that bad metrics and filters fail now.

    Raises UserError for a metric without a figure, unless the task is `trusted` code,
    which may name its figures as it likes.
    """
    from unitsphere.inference.lm_eval_model import Rehearsal

    with contextlib.redirect_stderr(io.StringIO()):
        found = harness(Rehearsal(), [task], num_fewshot=shots, limit=REHEARSED)
    (figured,) = figures(found).values()
    names = {key.partition(",")[0] for key in figured["metrics"]}
    for name in task.aggregation():
        if name not in names and not trusted:
            raise UserError(f"metric '{name}' has no figure with output_type {task.OUTPUT_TYPE}")


def harness(lm: "LM", tasks: Sequence["Task"], **settings: Any) -> dict[str, Any]:
    """The harness's evaluation of a model on tasks."""
    from lm_eval import evaluator
    from lm_eval.api import metrics
    from lm_eval.tasks import TaskManager

    evaluate: Callable[..., Mapping[str, Any] | None] = evaluator.simple_evaluate
    # Nobody reads the commit that it asks git for (outside a checkout git would complain), or what
    # it finds installed, which takes seconds.
    nothing = {"get_git_commit_hash": lambda: None, "add_env_info": lambda found: None}
    # A text without spaces is one word: its perplexity may be more than a float holds, and then
    # the harness would end with an OverflowError after all items have been scored.
    exp = {"exp": lambda x: math.exp(x) if x < 700 else math.inf}
    unfailing = SimpleNamespace(**(vars(math) | exp))
    with (
        mock.patch.multiple(evaluator, create=True, **nothing),
        mock.patch.object(metrics, "math", unfailing),
    ):
        found = evaluate(
            model=lm,
            tasks=list(tasks),
            task_manager=TaskManager(include_defaults=False),
            bootstrap_iters=DRAWS,
            **settings,
        )
    assert found is not None, "one process has all results"
    return dict(found)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep stdout for the caller: the harness's prints go to stderr, and no process is forked."""
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
    """Metric -> value and standard error, from the harness's "acc,none" and "acc_stderr,none".

    Of a task with several filters each metric keeps the filter's name: "exact_match,strict".
    """
    named: dict[str, dict[str, float | None]] = {}
    filters = {key.partition(",")[2] for key in values if "," in key}
    for key, value in values.items():
        name, comma, _ = key.partition(",")
        if not comma or name.endswith("_stderr"):
            continue
        error = values.get(key.replace(name, f"{name}_stderr", 1))
        named[key if len(filters) > 1 else name] = {
            "value": value,
            "standard_error": error if isinstance(error, float) and math.isfinite(error) else None,
        }
    return named
