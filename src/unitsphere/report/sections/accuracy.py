"""Accuracy on tasks over training tokens (nGPT Figures 3 and 8), from what `eval --tasks` kept."""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from unitsphere.report.document import Figure, Figures, Section, Series, Table
from unitsphere.report.numbers import round_off
from unitsphere.report.runs import Run, alike, common_name, is_number
from unitsphere.training.folder import read_evaluations

AVERAGE = "average"
INTRO = (
    "Accuracy on tasks, from `unitsphere eval RUN --tasks …` of each run or of its checkpoints: a "
    "line per arm, a point per evaluation. Of several seeds the mean, the band from the lowest to "
    "the highest; of one seed the band is the standard error over the items. Scores with examples "
    "before each item say how many (shots), and have their own average. Of several evaluations "
    "with one task the one with the most items is shown; if they have as many, the one at the "
    "context of the training."
)
FEW_PLACES = 8
"""Budgets that become the ticks of the axis."""


class Score(NamedTuple):
    """An accuracy, its standard error, and the number of items that it is of."""

    accuracy: float
    error: float | None
    items: int = 0


Scores = dict[str, Score]
"""Task and shots, by `label` -> score."""
Points = dict[int, list[Score]]
"""Tokens -> the score of each seed."""
Grouping = Callable[[Sequence[Run]], Mapping[str, Sequence[Run]]]


def by_budget(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Arms that go over budgets: runs whose configs differ only in the steps and the seed."""
    groups = alike(runs, "train.seed", "train.steps")
    names = [common_name([run.name for run in several]) for several in groups]
    return {
        name if name and names.count(name) == 1 else several[0].arm: several
        for name, several in zip(names, groups, strict=True)
    }


def accuracy_sections(runs: Sequence[Run], arms_of: Grouping = by_budget) -> list[Section]:
    """The accuracy of each task, a line per arm, and their average; none without an evaluation."""
    scores = {name: scores_of(several) for name, several in arms_of(runs).items()}
    names = list(dict.fromkeys(t for each in scores.values() for _, tasks in each for t in tasks))
    if not names:
        return []
    arms = {name: points_of(each, names) for name, each in scores.items() if each}
    averages = [
        name for name in averages_of(names) if any(name in tasks for tasks in arms.values())
    ]
    shown = [*names, *averages]
    colours = list(scores)  # of every arm, as in the other figures
    series = [
        line(arm, task, tasks[task], colours.index(arm))
        for task in shown
        for arm, tasks in arms.items()
        if task in tasks
    ]
    places = sorted({int(place) for one in series for place in one.x["tokens"]})
    figure = Figure(
        name="accuracy",
        title="Accuracy on tasks against training tokens",
        y="accuracy",
        xs={"tokens": "training tokens"},
        series=series,
        log_x=len(places) > 1 and places[-1] > 4 * places[0] > 0,
        places={"tokens": places} if len(places) <= FEW_PLACES else {},
        data="unitsphere eval RUN --tasks TASK … --task_data DIR",
    )
    table = Table("Accuracy", ["arm", "tokens", *shown], rows(arms, shown), notes(arms, names))
    return [Section("accuracy", "Accuracy", [Figures([figure]), table], INTRO, detail=True)]


def scores_of(runs: Sequence[Run]) -> list[tuple[int, Scores]]:
    """Tokens and scores of each run and checkpoint that was evaluated.

    Of each task the score of the most items; of as many, that at the context of the training, and
    the newest. A checkpoint at whose tokens another run ends is left out: that run is
    annealed there, so the two are not seeds of one arm.
    """
    found: dict[tuple[str, int], Scores] = {}
    ends: set[tuple[str, int]] = set()
    for run in runs:
        for evaluation in own_context_last(run, read_evaluations(run.folder)):
            place = run.name, evaluation["tokens"]
            if scores := accuracies(evaluation):
                keep_most_items(found.setdefault(place, {}), scores)
                ends |= {place} if evaluation.get("step") == run.steps else set()
    budgets = {tokens for _, tokens in ends}
    return [(p[1], scores) for p, scores in found.items() if p in ends or p[1] not in budgets]


def own_context_last(run: Run, evaluations: Sequence[Any]) -> list[Any]:
    """The evaluations in their order, those at the context of the training after the others."""
    own = run.settings.get("data", {}).get("context")
    return sorted(evaluations, key=lambda evaluation: evaluation.get("context") == own)


def keep_most_items(found: Scores, scores: Scores) -> None:
    """Put later scores in the place of those of as many or fewer items."""
    for task, score in scores.items():
        if task not in found or score.items >= found[task].items:
            found[task] = score


def points_of(scores: Sequence[tuple[int, Scores]], names: Sequence[str]) -> dict[str, Points]:
    """Task -> its points; of evaluations that have all tasks of as many shots their average too."""
    found: dict[str, Points] = {}
    for tokens, tasks in scores:
        told = dict(tasks)
        for average, of in averages_of(names).items():
            if all(task in tasks for task in of):
                told[average] = Score(statistics.fmean(tasks[task].accuracy for task in of), None)
        for task, score in told.items():
            found.setdefault(task, {}).setdefault(tokens, []).append(score)
    return found


def label(task: str, shots: Any) -> str:
    """The name of a task's accuracies with this many examples before each item."""
    if not isinstance(shots, int) or shots < 1:  # what a file of another version may hold
        return task
    return f"{task}, {shots} shot{'s' if shots > 1 else ''}"


def averages_of(names: Sequence[str]) -> dict[str, list[str]]:
    """Name of an average -> the tasks that it is of: two or more with as many shots."""
    groups: dict[str, list[str]] = {}
    for name in names:
        shots = re.search(r", \d+ shots?$", name)
        groups.setdefault(AVERAGE + (shots[0] if shots else ""), []).append(name)
    return {average: of for average, of in groups.items() if len(of) > 1}


def accuracies(evaluation: Mapping[str, Any]) -> Scores:
    """Task -> score, of the tasks that have an accuracy."""
    found = {}
    for task, result in evaluation["tasks"].items():
        metric = result.get("metrics", {}).get("acc", {})
        if is_number(metric.get("value")):
            name, items = label(task, result.get("shots")), result.get("items")
            known = items if isinstance(items, int) else 0  # a file of another version
            found[name] = Score(metric["value"], metric.get("standard_error"), known)
    return found


def line(arm: str, task: str, points: Points, colour: int) -> Series:
    """An arm's line in a task's panel, with its band."""
    tokens = sorted(points)
    means, lows, highs = [], [], []
    for place in tokens:
        values = [score.accuracy for score in points[place]]
        mean = statistics.fmean(values)
        error = points[place][0].error if len(values) == 1 else None
        low, high = (mean, mean) if error is None else (mean - error, mean + error)
        means.append(round_off(mean))
        lows.append(round_off(min(*values, low)))
        highs.append(round_off(max(*values, high)))
    x = {"tokens": [float(place) for place in tokens]}
    return Series(arm, x, means, colour, "both", low=lows, high=highs, group=arm, panel=task)


def rows(arms: Mapping[str, Mapping[str, Points]], names: Sequence[str]) -> list[list[str]]:
    """A row for each arm and number of tokens: means over the seeds."""
    found = []
    for arm, tasks in arms.items():
        for place in sorted({tokens for points in tasks.values() for tokens in points}):
            cells = [
                f"{statistics.fmean(score.accuracy for score in points[place]):.4f}"
                if place in (points := tasks.get(name, {}))
                else ""
                for name in names
            ]
            found.append([arm, f"{place:,}", *cells])
    return found


def notes(arms: Mapping[str, Mapping[str, Points]], names: Sequence[str]) -> list[str]:
    """A line for each task whose scores are not all of as many items."""
    found = []
    for name in names:
        places = [points for tasks in arms.values() for points in tasks.get(name, {}).values()]
        items = sorted({score.items for scores in places for score in scores})
        if len(items) > 1:
            found.append(
                f"{name}: the evaluations have {items[0]:,} to {items[-1]:,} items, and so compare "
                "little: evaluate all with the same --limit."
            )
    return found
