"""Task files of --tasks as plain data: nothing in them runs.

The format is lm-evaluation-harness's YAML. Of its keys those are read that say how an item becomes
a prompt and a figure. The others can run code in the harness (functions, classes, loaders of data,
metrics from elsewhere): a file that has them is read only by the harness itself, and only where the
user says so (`--trust-task-code`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from lm_eval.api.registry import (
    aggregation_registry,
    filter_registry,
    metric_agg_registry,
    metric_registry,
)
from lm_eval.api.task import ConfigurableTask, Task  # imports what fills the registries
from lm_eval.tasks import TaskManager

from unitsphere.config import did_you_mean
from unitsphere.errors import UserError
from unitsphere.files import read_text
from unitsphere.inference.lm_eval_data import (
    fitting_options,
    in_one_line,
    local,
    marked_pronouns,
)
from unitsphere.inference.lm_eval_model import read_settings

TASKS = Path(__file__).parent / "tasks"
"""The task files that come with the package."""
LIMIT = 1 << 20
"""Most bytes of a task file."""
MOST_REPEATS = 100
FUNCTIONS = {
    f"{function.__module__}.{function.__name__}": function
    for function in (local, marked_pronouns, fitting_options)
}
"""The functions that a task file may name: this package's own."""
REQUIRED = ("task", "custom_dataset", "dataset_kwargs", "output_type", "doc_to_target")
OUTPUT_TYPES = ("loglikelihood", "loglikelihood_rolling", "generate_until", "multiple_choice")
CODE = (
    "class",
    "dataset_name",
    "dataset_path",
    "doc_to_audio",
    "doc_to_decontamination_query",
    "doc_to_image",
    "fewshot_config",
    "group",
    "include",
    "process_results",
    "should_decontaminate",
    "unsafe_code",
    "use_prompt",
)
"""Keys of the harness that run code, or read files outside the folder."""


@dataclass(frozen=True)
class Function:
    """What `!function` names in a task file; it is not imported."""

    name: str


KINDS: dict[str, tuple[type, ...]] = {
    "task": (str,),
    "task_alias": (str,),
    "tag": (str, list),
    "custom_dataset": (Function,),
    "dataset_kwargs": (dict,),
    "training_split": (str,),
    "validation_split": (str,),
    "test_split": (str,),
    "fewshot_split": (str,),
    "process_docs": (Function,),
    "doc_to_text": (str, int),
    "doc_to_target": (str, int, list),
    "doc_to_choice": (str, list, dict),
    "description": (str,),
    "target_delimiter": (str,),
    "fewshot_delimiter": (str,),
    "gen_prefix": (str,),
    "num_fewshot": (int,),
    "metric_list": (list,),
    "output_type": (str,),
    "generation_kwargs": (dict,),
    "repeats": (int,),
    "filter_list": (list,),
    "metadata": (dict,),
}
"""The keys of a task file, and what each may hold."""
NAMES = {str: "text", int: "a whole number", list: "a list", dict: "a table", Function: "!function"}


class PlainLoader(yaml.SafeLoader):
    """YAML's plain values, and `!function` as a name; a key that comes twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) != len(node.value):
            raise yaml.YAMLError(f"a key comes twice, {node.start_mark}")
        return found

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        # A few aliases of aliases are a billion values.
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(f"aliases (*name) are not read, {self.peek_event().start_mark}")
        return super().compose_node(parent, index)


def _function(loader: yaml.SafeLoader, node: yaml.Node) -> Function:
    if not isinstance(node, yaml.ScalarNode):
        raise yaml.YAMLError(f"!function takes a name, {node.start_mark}")
    return Function(str(loader.construct_scalar(node)))


PlainLoader.add_constructor("!function", _function)


def read_task(path: Path) -> dict[str, Any]:
    """The task in a file, checked and without code; the harness builds a task of it.

    Raises UserError, without the file's name, for what is not plain data or not a task.
    """
    text = read_text(path, limit=LIMIT)
    try:
        document = yaml.load(text, PlainLoader)
    # ValueError: a date or a number that cannot be.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"it is not valid YAML: {error}") from error
    check_task(document)
    for key in ("custom_dataset", "process_docs"):
        if key in document:
            document[key] = FUNCTIONS[document[key].name]
    return document


def check_task(document: Any) -> None:
    """Raise UserError, without the file's name, unless a task can be read as plain data."""
    if not isinstance(document, dict):
        raise UserError("it holds no table of keys such as 'task' and 'doc_to_text'")
    check_keys(document)
    check_functions(document)
    check_data(document)
    if document["output_type"] not in OUTPUT_TYPES:
        hint = did_you_mean(document["output_type"], OUTPUT_TYPES)
        raise UserError(f"unknown output_type '{document['output_type']}'{hint}")
    if document["output_type"] == "multiple_choice" and "doc_to_choice" not in document:
        raise UserError("it has no 'doc_to_choice', which multiple_choice needs")
    if "doc_to_text" not in document:
        raise UserError("it has no 'doc_to_text'")
    check_metrics(document.get("metric_list"))
    check_filters(document.get("filter_list"))
    check_numbers(document)


def check_keys(document: Mapping[Any, Any]) -> None:
    """Refuse keys that are unknown, run code, are missing, or hold another type."""
    for key, value in document.items():
        if key in CODE:
            raise UserError(needs_trust(f"'{key}'", "can run code, or read other files"))
        if key not in KINDS:
            raise UserError(f"unknown key '{key}'{did_you_mean(str(key), KINDS)}")
        elif isinstance(value, Function) and Function not in KINDS[key]:
            raise UserError(needs_trust(f"'{key}'", f"is the function {value.name}"))
        elif isinstance(value, bool) or not isinstance(value, KINDS[key]):
            wanted = " or ".join(NAMES[kind] for kind in KINDS[key])
            raise UserError(f"'{key}' must be {wanted}, not {value!r:.60}")
    for key in REQUIRED:
        if key not in document:
            raise UserError(f"it has no '{key}'")
    if not document["task"].strip():
        raise UserError("'task' is an empty name")


def check_functions(document: Mapping[str, Any]) -> None:
    """Refuse functions other than this package's, anywhere."""
    for key, function in functions(document, ""):
        if key not in ("custom_dataset", "process_docs") or function.name not in FUNCTIONS:
            raise UserError(needs_trust(f"'{key}'", f"is the function {function.name}"))
    if FUNCTIONS.get(document["custom_dataset"].name) is not local:
        raise UserError(f"'custom_dataset' must be !function {local.__module__}.local")
    if "process_docs" in document and FUNCTIONS[document["process_docs"].name] is local:
        raise UserError("'process_docs' cannot be the function that reads the file")


def functions(value: Any, key: str) -> Iterator[tuple[str, Function]]:
    """Every function below a value, with its dotted key."""
    if isinstance(value, Function):
        yield key, value
    elif isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, one in pairs:
            yield from functions(one, f"{key}.{name}" if key else str(name))


def needs_trust(what: str, why: str) -> str:
    """The line about what is not plain data."""
    return f"{what} {why}: read the file, and add --trust-task-code if you trust it"


def check_data(document: Mapping[str, Any]) -> None:
    """Refuse a file's name that leads elsewhere, and splits that there are not."""
    file = document["dataset_kwargs"].get("file")
    if list(document["dataset_kwargs"]) != ["file"] or not isinstance(file, str) or not file:
        raise UserError("'dataset_kwargs' must hold only 'file', the JSONL file's name or pattern")
    elif Path(file).is_absolute() or ".." in Path(file).parts or "\0" in file:
        raise UserError(f"file '{file}' lies elsewhere: name it with --task_data")
    splits = [key for key in document if key.endswith("_split")]
    for key in splits:
        if document[key] != "test":
            raise UserError(f"'{key}' must be test, not '{document[key]}'")
    if not {"test_split", "validation_split"} & set(splits):
        raise UserError("it has no 'test_split'")
    for key in document.get("metadata", {}):
        if key in ("file", "data", "rename", "config_source") or not isinstance(key, str):
            raise UserError(f"'metadata' may not have the key '{key}'")


def check_metrics(metrics: list[Any] | None) -> None:
    """Refuse metrics and aggregations that the harness itself does not have."""
    if metrics == []:
        raise UserError("'metric_list' names no metric")
    for one in metrics or ():
        if not isinstance(one, dict) or not isinstance(one.get("metric"), str):
            raise UserError(f"'metric_list' must hold tables with 'metric', not {one!r:.60}")
        name, aggregation = one["metric"], one.get("aggregation")
        if name not in metric_registry:
            raise UserError(f"unknown metric '{name}'{did_you_mean(name, metric_registry)}")
        if "hf_evaluate" in one:
            raise UserError(needs_trust("'hf_evaluate'", "loads a metric's code"))
        if aggregation is None and name not in metric_agg_registry:
            raise UserError(f"metric '{name}' needs an 'aggregation'")
        if aggregation is not None and aggregation not in list(aggregation_registry):
            known = did_you_mean(str(aggregation), aggregation_registry)
            raise UserError(f"unknown aggregation {aggregation!r:.60}{known}")


def check_filters(filters: list[Any] | None) -> None:
    """Refuse filters of answers that the harness itself does not have."""
    if filters == []:
        raise UserError("'filter_list' is empty: leave it out")
    for one in filters or ():
        steps = one.get("filter") if isinstance(one, dict) else None
        if not isinstance(one, dict) or not isinstance(one.get("name"), str) or not steps:
            raise UserError(f"'filter_list' must hold 'name' and 'filter', not {one!r:.60}")
        for step in steps if isinstance(steps, list) else [steps]:
            name = step.get("function") if isinstance(step, dict) else None
            if not isinstance(name, str):
                raise UserError(f"a 'filter' must hold tables with 'function', not {steps!r:.60}")
            elif name not in filter_registry:
                raise UserError(f"unknown filter '{name}'{did_you_mean(name, filter_registry)}")


def check_numbers(document: Mapping[str, Any]) -> None:
    """Refuse counts and settings of generation that cannot be."""
    if document.get("num_fewshot", 0) < 0:
        raise UserError(f"'num_fewshot' must be 0 or more, not {document['num_fewshot']}")
    if not 1 <= document.get("repeats", 1) <= MOST_REPEATS:
        raise UserError(f"'repeats' must be from 1 to {MOST_REPEATS}, not {document['repeats']}")
    read_settings(document.get("generation_kwargs", {}))


def load_tasks(names: Sequence[str], metadata: Mapping[str, Any], trusted: bool) -> dict[str, Task]:
    """Task name -> task, of names, tags and paths of task files.

    `metadata` goes to whatever reads the items. Where `trusted`, the harness itself reads files
    that are not this package's. Raises UserError for a task that is not there or cannot be read.
    """
    found: dict[str, Task] = {}
    for path in dict.fromkeys(chain.from_iterable(map(task_files, names))):
        with in_one_line(f"task file {path}"):
            if trusted and path.parent != TASKS:
                manager = TaskManager(include_defaults=False, metadata=dict(metadata))
                tasks = dict(manager.load([str(path)])["tasks"])
            else:
                document = read_task(path)
                tasks = {document["task"]: build_task(document, path, metadata)}
        if twice := sorted(found.keys() & tasks.keys()):
            raise UserError(f"two tasks are named '{twice[0]}', one of them in {path}: rename it")
        found |= tasks
    return found


def shipped_tasks() -> dict[str, Path]:
    """The tasks that come with the package, by name."""
    return {path.stem: path for path in sorted(TASKS.glob("*.yaml"))}


def task_files(name: str) -> list[Path]:
    """The files of a task, of a tag, or the file that is named."""
    shipped = shipped_tasks()
    if name in shipped:
        return [shipped[name]]
    if name.endswith(".yaml"):
        if not Path(name).exists():
            raise UserError(f"no such task file: {name}")
        return [Path(name)]
    tagged = [path for path in shipped.values() if name in tags_of(read_task(path))]
    if not tagged:
        known = [*shipped, "zero_shot", "ngpt2024", "normformer2021"]
        raise UserError(f"unknown task '{name}'{did_you_mean(name, known)}: give a name or a file")
    return tagged


def tags_of(document: Mapping[str, Any]) -> list[str]:
    """The tags of a task: one, several or none."""
    tags = document.get("tag", [])
    return [tags] if isinstance(tags, str) else tags


def build_task(document: Mapping[str, Any], path: Path, metadata: Mapping[str, Any]) -> Task:
    """The harness's task of what `read_task` has read."""
    settings = {key: value for key, value in document.items() if key != "tag"}
    own = dict(document.get("metadata", {}))
    settings["metadata"] = own | dict(metadata) | {"config_source": str(path)}
    return ConfigurableTask(config=settings)
