"""`unitsphere sweep`: the best of a grid, of random points, or of Optuna's, over config keys.

Trials are trained and judged on a split of the training documents that is not the reported one; so
are those that are stopped early. Only the best point, and the recipe as it is, are then trained on
the whole training split and reported on the validation split, with `seeds`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from unitsphere.config import to_dict
from unitsphere.errors import UserError
from unitsphere.files import write_text
from unitsphere.report.numbers import short
from unitsphere.studies.core.execute import Executor, Record, execute, failure_lines
from unitsphere.studies.core.fairness import SAME, check_lossless
from unitsphere.studies.core.jobs import Job
from unitsphere.studies.core.kind import Kind, Part, provenance, study_folder
from unitsphere.studies.core.local import available_slots
from unitsphere.studies.core.plan import (
    DEFAULTS,
    RUNS,
    Planned,
    arm_config,
    of_length,
    plan,
    to_come,
    with_overrides,
)
from unitsphere.studies.core.space import (
    MOST_POINTS,
    SEEDS,
    Asked,
    Params,
    Space,
    count_points,
    grid_points,
    random_points,
    space_of,
    without_grid,
)
from unitsphere.studies.core.spec import Study, Tune, toml_text
from unitsphere.studies.core.tune import tuning_data
from unitsphere.studies.trials import (
    EarlyStop,
    MedianRule,
    Swept,
    Trial,
    arm_document,
    best_of,
    rivals_of,
    told_of,
)
from unitsphere.training.config import RunConfig, steps_for
from unitsphere.training.resolve import resolve

LOOKED_AT = 32


@dataclass(frozen=True, kw_only=True)
class SweepStudy(Study):
    """What `sweep` asks in addition to all studies. [tune] says what the trials are judged on."""

    tokens: int
    """training tokens of every run"""
    search: dict[str, object]
    """key -> a list of values, or a range (core/space.py)"""
    method: Literal["grid", "random", "optuna"] = "grid"
    """grid: every combination; random: points drawn alike; optuna: by what was found so far"""
    trials: int | None = None
    """points of each arm, of random and optuna"""
    search_seed: int = 0
    """of the points that are drawn"""
    stop: EarlyStop = field(default_factory=EarlyStop)
    """when trials are given up early"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.search:
            raise UserError("[search] names no key: give it a list of values, or a range")
        if self.tokens < 1:
            raise UserError(f"'tokens' must be at least 1: {self.tokens}")
        if not 0 <= self.search_seed < SEEDS:
            raise UserError(f"'search_seed' must be from 0 to {SEEDS - 1}: {self.search_seed}")
        if Tune(fraction=self.tune.fraction, seeds=self.tune.seeds) != self.tune:
            raise UserError(
                "a sweep takes 'fraction' and 'seeds' of [tune] only: rates to try belong in "
                '[search], as "optim.lr"'
            )
        for key in ("train.steps", "train.tokens", "train.seed"):
            if key in self.space:
                raise UserError(f"'search.{key}' cannot be searched: 'tokens' and 'seeds' say it")
        for name in ("data", "objective", "evaluation"):
            for key in SAME[name]:
                if key in self.space:
                    raise UserError(
                        f"'search.{key}' cannot be searched: trials would be scored on other text"
                    )
        self.check_method()

    def check_method(self) -> None:
        """Raise UserError unless method, trials and space go together."""
        if self.method == "grid":
            points = count_points(self.space)
            if self.trials is not None or points > MOST_POINTS:
                raise UserError(
                    f"a grid tries every combination, here {points} (at most {MOST_POINTS}): leave "
                    "'trials' out, or use method = \"random\""
                )
        elif self.trials is None or not 1 <= self.trials <= MOST_POINTS:
            raise UserError(f"method = \"{self.method}\" needs 'trials', from 1 to {MOST_POINTS}")

    @property
    def space(self) -> Space:
        """What may be chosen from."""
        space = space_of(self.search)
        return space if self.method == "grid" else without_grid(space)


def sweep(study: SweepStudy, out: Path, executor: Executor | None = None) -> dict[str, Swept]:
    """Train what is missing of the study in the folder `out`; what was found, by arm.

    Raises UserError for a mistake in the study or unusable data, `Preempted` when stopped; the same
    call then resumes.
    """
    check_keys(study)
    with study_folder(out, study, executor) as executor:
        trials = all_trials(study, out, executor)
        best = {arm: best_of(found) for arm, found in trials.items()}
        reported = report_runs(study, out, best, executor)
    return {
        arm: Swept(found, best[arm], reported[arm, "as-is"], reported[arm, "best"])
        for arm, found in trials.items()
    }


def check_keys(study: SweepStudy) -> None:
    """Raise UserError for a key that an arm's recipe lacks, or values that make no model.

    So for several tokenizers of which one loses text. Points that are drawn for it are looked at,
    not the whole space.
    """
    by_tokenizer: dict[str, RunConfig] = {}
    for arm in study.arms:
        for point in random_points(study.space, LOOKED_AT, seed=0):
            config = with_overrides(arm_config(study, arm), point)
            resolve(config, None)
            by_tokenizer[f"{arm} with data.tokenizer {config.data.tokenizer}"] = config
    check_lossless(by_tokenizer)


def all_trials(study: SweepStudy, out: Path, executor: Executor) -> dict[str, list[Trial]]:
    """Every trial of every arm: all at once, or of Optuna in turns of as many as run at a time."""
    done: dict[str, list[Trial]] = {arm: [] for arm in study.arms}
    turn = max(1, (study.run.workers or available_slots()) // len(study.arms))
    while True:
        points = {arm: points_so_far(study, out, arm, done[arm], turn) for arm in study.arms}
        if all(len(points[arm]) == len(done[arm]) for arm in study.arms):
            return done
        runs = {
            (arm, number): trial_runs(study, out, arm, number, params)
            for arm in study.arms
            for number, params in enumerate(points[arm])
        }
        new = {(arm, n): own for (arm, n), own in runs.items() if n >= len(done[arm])}
        due = [run for own in new.values() for run in own]
        later = [job for arm in study.arms for job in runs_left(study, arm, len(points[arm]))]
        found = iter(execute(due, executor, MedianRule(study.stop, rivals_of(runs)), later))
        for (arm, number), own in new.items():
            records = [next(found) for _ in own]
            done[arm].append(Trial(number, points[arm][number], records))


def runs_left(study: SweepStudy, arm: str, points: int) -> list[Job]:
    """The runs of trials beyond `points`, and those that are reported, for the time left."""
    trials = (study.trials or points) - points
    runs = trials * len(study.tune.seeds) + 2 * len(study.seeds)
    return to_come(study, [(arm, study.tokens)], runs)


def points_so_far(
    study: SweepStudy, out: Path, arm: str, done: Sequence[Trial], turn: int
) -> list[Params]:
    """An arm's points so far and those of the next turn; what was drawn is kept."""
    if study.method == "grid":
        return grid_points(study.space)
    assert study.trials is not None
    drawn = Asked(out / RUNS / arm, study.search, study.search_seed)
    if study.method == "random":
        asked = drawn.read()
        if len(asked) < study.trials:  # none so far, or as many as an earlier study of it asked
            more = random_points(study.space, study.trials, study.search_seed)
            asked = [*asked, *more[len(asked) :]]
            drawn.keep(asked)
        return asked[: study.trials]
    told = [found for trial in done if (found := told_of(trial)) is not None]
    missing = min(turn, study.trials - len(done))
    return drawn.after(study.space, told, len(done), missing)[: study.trials]


def trial_runs(
    study: SweepStudy, out: Path, arm: str, number: int, params: Params
) -> list[Planned]:
    """A trial's runs on the split that is searched on, one per seed."""
    config = point_config(study, arm, params)
    data = tuning_data(config, study.tune.fraction)
    keys: dict[str, object] = {"data.source": str(data)}
    if config.data.validation is not None:
        keys["data.validation"] = None
    steps = steps_for(study.tokens, config.train.batch_tokens)
    if study.stop.rule != "none":
        keys["train.eval_every"] = study.stop.spacing(steps)
    folder = out / RUNS / arm / f"trial-{number:04}"
    return [
        planned(study, arm, params, f"trial {number} #{seed}", folder / f"seed-{seed}", seed, keys)
        for seed in study.tune.seeds
    ]


def report_runs(
    study: SweepStudy, out: Path, best: Mapping[str, Trial | None], executor: Executor
) -> dict[tuple[str, str], dict[int, Record]]:
    """By arm, the reported runs of its recipe as it is and of its best point, each by seed.

    A best point that is the recipe as it is has the same runs: they are trained once.
    """
    runs: dict[tuple[str, str, int], Planned] = {}
    same = {arm for arm, b in best.items() if b and is_recipe(study, arm, b.params)}
    for arm in study.arms:
        points = {"as-is": Params()}
        if (b := best[arm]) and arm not in same:
            points["best"] = b.params
        for kind, params in points.items():
            for seed in study.seeds:
                name, folder = f"{kind} {short(study.tokens)} #{seed}", out / RUNS / arm / kind
                place = folder / f"trial-{b.number:04}" if kind == "best" and b else folder
                runs[arm, kind, seed] = planned(
                    study, arm, params, name, place / f"seed-{seed}", seed, {}
                )
    records = dict(zip(runs, execute(list(runs.values()), executor), strict=True))
    return {
        (arm, kind): {s: r for (a, k, s), r in records.items() if (a, k) == (arm, trained)}
        for arm in study.arms
        for kind, trained in (("as-is", "as-is"), ("best", "as-is" if arm in same else "best"))
    }


def planned(
    study: SweepStudy,
    arm: str,
    params: Params,
    name: str,
    folder: Path,
    seed: int,
    keys: Mapping[str, object],
) -> Planned:
    """A run of an arm at a point."""
    config = of_length(point_config(study, arm, params), study.tokens)
    lr, steps = float(config.optim.lr), config.train.steps
    settings = {**study.keys(arm), "optim.lr": lr, **params}
    settings |= {"train.steps": steps, "train.seed": seed}
    return plan(f"{arm} {name}", study.arms[arm].recipe, {**settings, **keys}, folder)


def point_config(study: SweepStudy, arm: str, params: Params) -> RunConfig:
    """An arm's config at a point."""
    return with_overrides(arm_config(study, arm), params)


def is_recipe(study: SweepStudy, arm: str, params: Params) -> bool:
    """Whether a point is the arm's recipe as it is."""
    return point_config(study, arm, params) == point_config(study, arm, Params())


def document(study: SweepStudy, found: Mapping[str, Swept]) -> dict[str, Any]:
    """Everything that was found."""
    reported = [r for swept in found.values() for r in swept.reported]
    return {
        "method": study.method,
        "tokens": study.tokens,
        "search": study.search,
        "arms": {
            arm: arm_document(study.arms[arm].recipe, study.space, swept)
            for arm, swept in found.items()
        },
        "provenance": provenance(reported),
    }


def parts(study: SweepStudy) -> list[Part]:
    """What would be trained; the points of Optuna are known only as they are found."""
    check_keys(study)
    found = []
    for arm in study.arms:
        if study.method == "grid":
            points = grid_points(study.space)
        elif study.method == "random":
            points = random_points(study.space, study.trials or 0, study.search_seed)
        else:
            points = [{}] * (study.trials or 0)
        runs = {f"{arm} trial {n}": (len(study.tune.seeds), one) for n, one in enumerate(points)}
        runs[f"{arm} as is, and best"] = 2 * len(study.seeds), {}
        for name, (count, point) in runs.items():
            config = point_config(study, arm, point)
            steps = {"train.steps": steps_for(study.tokens, config.train.batch_tokens)}
            keys = {**DEFAULTS, **study.keys(arm), **point, **steps}
            found.append(Part(name, count, resolve(with_overrides(config, keys), None)))
    return found


def write_best(study: SweepStudy, found: Mapping[str, Swept], out: Path) -> list[Path]:
    """Write the config of each arm's best point, with the length at which it was the best."""
    best = {out / f"{arm}-best.toml": (arm, s.best) for arm, s in found.items() if s.best}
    for path, (arm, trial) in best.items():
        config = of_length(point_config(study, arm, trial.params), study.tokens)
        write_text(path, toml_text(to_dict(config)))
    return list(best)


def failures(found: Mapping[str, Swept]) -> list[str]:
    """A line for each run that failed."""
    return failure_lines(record for swept in found.values() for record in swept.records)


KIND = Kind("sweep", SweepStudy, sweep, document, failures, parts, more=write_best)
