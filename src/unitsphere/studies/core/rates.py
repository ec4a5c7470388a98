"""The runs of a study's arms: tuning runs on a split of their own, and final ones.

runs/<arm>/<tokens>/lr-<rate>-seed-<seed>          reported: on the validation split
runs/<arm>/tune-<tokens>/lr-<rate>-seed-<seed>     on the tuning split, see tuning_split
"""

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unitsphere.errors import UserError
from unitsphere.report.numbers import short
from unitsphere.studies.core.execute import Executor, Record, execute
from unitsphere.studies.core.jobs import Job
from unitsphere.studies.core.plan import Planned, plan, with_overrides
from unitsphere.studies.core.results import RUNS
from unitsphere.studies.core.spec import Study
from unitsphere.studies.core.tuning_split import tuning_data
from unitsphere.training.config import RunConfig, steps_for
from unitsphere.training.recipes import load_recipe
from unitsphere.training.resolve import resolve


@dataclass
class Search:
    """The search of one rate: `found` maps each rate to the results of its runs, one per seed.

    `plan` gives the runs of a rate; `name` is for people.
    """

    name: str
    rates: list[float]
    plan: Callable[[float], Sequence[Planned]]
    found: dict[float, list[Record]] = field(default_factory=dict)

    def losses(self) -> dict[float, float]:
        """Each rate's mean loss over its runs; infinite where one diverged, absent where failed."""
        return {
            rate: mean_loss(records)
            for rate, records in self.found.items()
            if all(record.status != "failed" for record in records)
        }

    def best(self) -> float | None:
        """The rate of the lowest mean; None if every rate diverged or failed."""
        losses = self.losses()
        known = [rate for rate in sorted(losses) if math.isfinite(losses[rate])]
        return min(known, key=losses.__getitem__, default=None)

    def next(self, ratio: float) -> float | None:
        """The rate to add: beyond a best one at an edge, below where all diverged; else None.

        None too if the rate beyond has been tried and its run failed.
        """
        losses, best = self.losses(), self.best()
        rate = grown(list(losses), best if best is not None else min(losses, default=None), ratio)
        return None if rate in self.found else rate

    def at_edge(self) -> bool:
        """Whether no worse rate is known on both sides of the best."""
        losses, best = sorted(self.losses()), self.best()
        return best is None or best in (losses[0], losses[-1])


def grid(centre: float, points: int, ratio: float) -> list[float]:
    """`points` rates around `centre`, each `ratio` times the one before, to three digits.

    An even number has one more below than above. Of a single one no digit is lost.
    """
    if points == 1:
        return [centre]
    return [rounded(centre * ratio ** (i - points // 2)) for i in range(points)]


def rounded(rate: float) -> float:
    """Three significant digits."""
    return float(f"{rate:.3g}")


def grown(rates: Sequence[float], best: float | None, ratio: float) -> float | None:
    """The rate to add when the best lies at an edge of the grid; None when it is bracketed."""
    if best is None:
        return None
    if best == min(rates):
        return rounded(best / ratio)
    return rounded(best * ratio) if best == max(rates) else None


def search(
    searches: Sequence[Search],
    executor: Executor,
    ratio: float,
    growths: int,
    later: Sequence[Job] = (),
) -> None:
    """Run the grids side by side, and grow each, `growths` times at most, until it is bracketed.

    `later`: the runs that will follow, for the time left.
    """
    for round_ in range(growths + 1):
        run_missing(searches, executor, later)
        if round_ == growths:
            return
        added = {s.name: s.next(ratio) for s in searches}
        for s in searches:
            rate = added[s.name]
            if rate is not None:
                print(f"{s.name}: best at an edge of its grid, adds {rate:g}", file=sys.stderr)
                s.rates.append(rate)
        if not any(added.values()):
            return


def run_missing(searches: Sequence[Search], executor: Executor, later: Sequence[Job] = ()) -> None:
    """Run every rate that has no result yet: every search's first, then every second, and so on."""
    due = [(s, rate) for s in searches for rate in s.rates if rate not in s.found]
    due.sort(key=lambda pair: pair[0].rates.index(pair[1]))
    plans = [s.plan(rate) for s, rate in due]
    records = iter(execute([run for runs in plans for run in runs], executor, later=later))
    for (s, rate), runs in zip(due, plans, strict=True):
        s.found[rate] = [next(records) for _ in runs]


def mean_loss(records: Sequence[Record]) -> float:
    """Mean over the runs; infinite if one of them diverged."""
    losses = [record.loss for record in records if record.loss is not None]
    return statistics.mean(losses) if len(losses) == len(records) else math.inf


@dataclass(frozen=True)
class Tuned:
    """The rate of an arm at a budget (None: at none did it train) and how it was come by.

    tokens: the budget at which it was tuned. rates: each rate of the grid with its mean loss on the
    tuning split, None where it diverged or failed; empty if nothing was tuned. errors: why tuning
    runs failed that did not diverge.
    """

    lr: float | None
    tokens: int
    rates: Mapping[float, float | None]
    at_edge: bool
    errors: tuple[str, ...] = ()


def arm_config(study: Study, arm: str) -> RunConfig:
    """An arm's config as recipe and keys give it, with the rate that tuning starts from."""
    spec = study.arms[arm]
    keys = study.keys(arm) | ({} if spec.lr is None else {"optim.lr": spec.lr})
    try:
        return with_overrides(load_recipe(spec.recipe), keys)
    except UserError as error:
        raise UserError(f"arm {arm}: {error}") from error


def at_budget(study: Study, arm: str, tokens: int) -> RunConfig:
    """An arm's config at a budget, everything decided."""
    config = arm_config(study, arm)
    keys = run_keys(study, arm, tokens, config.optim.lr, study.seeds[0])
    return resolve(with_overrides(config, keys), None)


def final_run(out: Path, study: Study, arm: str, tokens: int, lr: float, seed: int) -> Planned:
    """A run over the whole budget whose validation is reported."""
    name = f"{arm} {short(tokens)} {lr:g} #{seed}"
    folder = out / RUNS / arm / str(tokens) / f"lr-{lr:g}-seed-{seed}"
    return plan(name, study.arms[arm].recipe, run_keys(study, arm, tokens, lr, seed), folder)


def tuning_run(
    out: Path, study: Study, arm: str, tokens: int, lr: float, seed: int, data: Path
) -> Planned:
    """The same on `data`, a prepared folder with the tuning split."""
    name = f"{arm} {short(tokens)} {lr:g} #{seed} tune"
    folder = out / RUNS / arm / f"tune-{tokens}" / f"lr-{lr:g}-seed-{seed}"
    changed: dict[str, object] = {"data.source": str(data)}
    if arm_config(study, arm).data.validation is not None:
        changed["data.validation"] = None
    keys = run_keys(study, arm, tokens, lr, seed) | changed
    return plan(name, study.arms[arm].recipe, keys, folder)


def to_come(study: Study, arm: str, tokens: int, runs: int) -> list[Job]:
    """An arm's runs at a budget before their rate is known, as far as the time left goes."""
    steps = steps_for(tokens, arm_config(study, arm).train.batch_tokens)
    return [Job(f"{arm} {short(tokens)}", (), Path(), steps=steps, arm=arm)] * runs


def run_keys(study: Study, arm: str, tokens: int, lr: float, seed: int) -> dict[str, object]:
    """What a run sets in its arm's recipe."""
    config = arm_config(study, arm)
    steps = steps_for(tokens, config.train.batch_tokens)
    own = {"train.steps": steps, "train.seed": seed}
    return {**study.keys(arm), **own, **rate_keys(config, lr)}


def rate_keys(config: RunConfig, lr: float) -> dict[str, object]:
    """The keys that set the peak rate: `optim.adam_lr` keeps its ratio to `optim.lr`."""
    adam, own = config.optim.adam_lr, config.optim.lr
    if adam is None or lr == own:
        return {"optim.lr": lr}
    return {"optim.lr": lr, "optim.adam_lr": float(f"{adam * lr / own:.6g}")}


def tuned_rates(
    out: Path,
    study: Study,
    budgets: Sequence[int],
    executor: Executor,
    later: Sequence[Job] = (),
) -> dict[tuple[str, int], Tuned]:
    """The rate of each arm at each budget, by (arm, budget): tuned, or with one point as given.

    `later`: the runs that will follow, for the time left.
    """
    if study.tune.points == 1:
        return {
            (arm, tokens): Tuned(arm_config(study, arm).optim.lr, tokens, {}, at_edge=False)
            for arm in study.arms
            for tokens in budgets
        }
    at = study.tune.budgets or budgets
    searches = {
        (arm, tokens): arm_search(out, study, arm, tokens) for arm in study.arms for tokens in at
    }
    search(list(searches.values()), executor, study.tune.ratio, study.tune.growths, later)
    found = {place: tuned(s, place[1]) for place, s in searches.items()}
    return {
        (arm, tokens): found[arm, nearest(tokens, at)] for arm in study.arms for tokens in budgets
    }


def arm_search(out: Path, study: Study, arm: str, tokens: int) -> Search:
    """The search of an arm's rate at a budget."""
    config = arm_config(study, arm)
    data = tuning_data(config, study.tune.fraction)

    def runs(rate: float) -> list[Planned]:
        return [tuning_run(out, study, arm, tokens, rate, s, data) for s in study.tune.seeds]

    rates = grid(config.optim.lr, study.tune.points, study.tune.ratio)
    return Search(f"{arm} {short(tokens)}", rates, runs)


def tuned(found: Search, tokens: int) -> Tuned:
    """What a search came to."""
    losses = found.losses()
    rates = {rate: losses.get(rate, math.inf) for rate in sorted(found.found)}
    known = {rate: loss if math.isfinite(loss) else None for rate, loss in rates.items()}
    failed = [r for records in found.found.values() for r in records if r.status == "failed"]
    errors = tuple(f"{record.planned.name}: {record.error}" for record in failed)
    return Tuned(found.best(), tokens, known, found.at_edge(), errors)


def nearest(tokens: int, budgets: Sequence[int]) -> int:
    """The budget that differs least by its ratio."""
    return min(budgets, key=lambda budget: abs(math.log(budget / tokens)))
