"""The papers' ablation tables, one data file each in `ablations/`, and the sizes to train at."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from unitsphere.config import did_you_mean, from_dict, read_toml
from unitsphere.errors import UserError
from unitsphere.inspection.weights import EIGEN, effective
from unitsphere.models.parts import Scale
from unitsphere.models.trunk import Transformer
from unitsphere.studies.core.execute import Record
from unitsphere.studies.core.statistics import paired
from unitsphere.training.evaluate.text import perplexity
from unitsphere.training.load import load_run

FOLDER = Path(__file__).parent / "ablations"
SIZES = "sizes"
PAPER = "paper"
"""the size of the recipes as they are"""

Rates = Literal["shared", "each", "given"]
"""shared: tuned on one row and used for all; each: tuned for every row; given: not tuned"""

BY_SIZE: dict[str, Callable[[int, int, int], float]] = {
    "1/sqrt(d)": lambda d, n_layers, context: 1 / math.sqrt(d),
    "sqrt(d)": lambda d, n_layers, context: math.sqrt(d),
    "4*d": lambda d, n_layers, context: 4 * d,
    "1/n_layers": lambda d, n_layers, context: 1 / n_layers,
    "2*context": lambda d, n_layers, context: 2 * context,
}
"""The values of a row that depend on the size, by width, depth and context."""
SIZES_OF = ("model.d_model", "model.n_layers", "data.context")
"""the keys of those three"""


@dataclass(frozen=True)
class Row:
    """A row of a table: its recipe, and what the paper reports.

    `figure` is what the paper prints in the table's measure, `change` the relative change in
    percent against the row named by `against` (the first one unless it says otherwise; "none": no
    other). `share` of the tokens and `rate` (a factor) set a row apart from others of its table.
    `small` are keys that it sets at sizes other than the paper's; text is looked up in BY_SIZE.
    `means` are those of the learned scales after training, by their names.
    """

    name: str
    label: str
    recipe: str
    figure: float | None = None
    change: float | None = None
    against: str | None = None
    accuracy: float | None = None
    seconds: float | None = None
    share: float = 1.0
    rate: float = 1.0
    small: dict[str, object] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTable:
    """A table: where it stands, how the paper came by it, and its rows.

    `small` are keys of every row at sizes other than the paper's, `smaller` says in words what is
    not as in the paper there.
    """

    title: str
    paper: str
    arxiv: str
    place: str
    measure: Literal["loss", "perplexity"]
    rates: Rates
    tuned_on: str
    protocol: str
    smaller: str
    rows: list[Row]
    small: dict[str, object] = field(default_factory=dict)

    def reference(self, row: Row) -> Row | None:
        """The row that a row is measured against; None for one that is measured against none."""
        name = row.against or self.rows[0].name
        return None if name in ("none", row.name) else self.row(name)

    def row(self, name: str) -> Row:
        """The row of a name."""
        return next(row for row in self.rows if row.name == name)

    def paper_change(self, row: Row) -> float | None:
        """The paper's relative change in percent; lower is better."""
        other = self.reference(row)
        if other is None or row.change is not None:
            return row.change
        if row.figure is None or other.figure is None:
            return None
        return 100 * (row.figure / other.figure - 1)


@dataclass(frozen=True)
class ForArchitecture:
    """What a size gives to the rows of an architecture."""

    lr: float
    set: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class TableSize:
    """A size to train a table at."""

    about: str
    tokens: int
    set: dict[str, object]
    architectures: dict[str, ForArchitecture]

    def keys(
        self, table: PaperTable, row: Row, architecture: str, settings: Mapping[str, object]
    ) -> dict[str, object]:
        """Everything that a row sets at this size: a user's settings before what it is about."""
        common = {**self.set, **self.architectures[architecture].set}
        given = {"model.d_ff": "4*d", **common, **table.small, **settings}
        sizes = tuple(given[key] for key in SIZES_OF)
        for key, number in zip(SIZES_OF, sizes, strict=True):
            if not (isinstance(number, int) and number > 0):
                raise UserError(f"{key} must be at least 1: {number!r}")
        return {key: by_size(value, *sizes) for key, value in {**given, **row.small}.items()}


def by_size(value: object, width: int, n_layers: int, context: int) -> object:
    """A value, looked up in BY_SIZE if it is there."""
    if isinstance(value, str) and value in BY_SIZE:
        return BY_SIZE[value](width, n_layers, context)
    return value


def table_names() -> list[str]:
    """Every table."""
    return sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != SIZES)


def load_table(name: str) -> PaperTable:
    """A table by its name ("ngpt-table4"); a `UserError` for an unknown one."""
    if name not in table_names():
        raise UserError(f"unknown table '{name}'{did_you_mean(name, table_names())}")
    return from_dict(PaperTable, read_toml(FOLDER / f"{name}.toml"))


def load_sizes() -> dict[str, TableSize]:
    """Every size but the paper's own, by name."""
    found = read_toml(FOLDER / f"{SIZES}.toml")
    return {name: from_dict(TableSize, table) for name, table in found.items()}


def load_size(name: str) -> TableSize | None:
    """A size by its name, None for the paper's own; a `UserError` for an unknown one."""
    sizes = load_sizes()
    if name not in sizes and name != PAPER:
        raise UserError(f"unknown size '{name}'{did_you_mean(name, [*sizes, PAPER])}")
    return sizes.get(name)


def only(table: PaperTable, rows: list[str]) -> PaperTable:
    """The table with some of its rows, and those that they are measured against or tuned on.

    A row is known by its name, or the part before its first dash ("02"). Raises UserError for an
    unknown one.
    """
    if not rows:
        return table
    names = {row.name.partition("-")[0]: row.name for row in table.rows}
    names |= {row.name: row.name for row in table.rows}
    for row in rows:
        if row not in names:
            raise UserError(f"unknown row '{row}'{did_you_mean(row, names)}")
    wanted = {names[row] for row in rows} | {table.tuned_on}
    wanted |= {r.name for name in wanted if (r := table.reference(table.row(name)))}
    return dataclasses.replace(table, rows=[row for row in table.rows if row.name in wanted])


Change = dict[str, float | int | None]
"""A relative change in percent: `mean`, `low` and `high` of its 95% interval, `seeds`."""
SIGNLESS = (*EIGEN, "s_qk")
"""Scales whose sign changes nothing: |α| is used, and q and k both have s_qk."""


def learned_means(runs: Iterable[Path]) -> dict[str, float]:
    """Scale ("s_qk") -> its mean over elements, layers and runs; of those in SIGNLESS of |s|."""
    every = [means_of(load_run(run, device="cpu").model) for run in runs]
    names = every[0] if every else {}
    return {name: statistics.mean(one[name] for one in every) for name in names}


def means_of(model: Transformer) -> dict[str, float]:
    """Of one model, by the values that its forward pass uses."""
    found: dict[str, list[float]] = {}
    for place, module in model.named_modules():
        if isinstance(module, Scale):
            name, value = place.rpartition(".")[2], effective(module)
            value = value.abs() if name in SIGNLESS else value
            found.setdefault(name, []).append(value.mean().item())
    return {name: statistics.mean(values) for name, values in found.items()}


def means(row: Row, records: Mapping[int, Record]) -> dict[str, dict[str, float | None]]:
    """Of each scale whose mean the paper gives: the paper's, and ours over the finished seeds."""
    done = [r.planned.folder for r in records.values() if r.status == "finished"]
    ours = learned_means(done) if row.means else {}
    return {name: {"paper": mean, "ours": ours.get(name)} for name, mean in row.means.items()}


def figures(records: Mapping[int, Record]) -> dict[str, Any]:
    """A row's own figures: means over the finished seeds, and each seed."""
    done = [record for record in records.values() if record.status == "finished"]
    losses = [record.loss for record in done if record.loss is not None]
    bits = [record.bits_per_byte for record in done if record.bits_per_byte is not None]
    speeds = [r.tokens_per_second for r in done if r.tokens_per_second is not None]
    loss = statistics.mean(losses) if losses else None
    batch = next(iter(records.values())).planned.config.train.batch_tokens if records else 0
    return {
        "loss": loss,
        "perplexity": None if loss is None else perplexity(loss),
        "bits_per_byte": statistics.mean(bits) if bits else None,
        "seconds_a_step": batch / statistics.median(speeds) if speeds else None,
        "runs": {
            str(seed): {"status": r.status, "loss": r.loss, "error": r.error}
            for seed, r in records.items()
        },
    }


def agreement(paper: float | None, change: Change | None) -> str:
    """Whether the sign is the paper's, beyond the spread of the seeds."""
    if change is None:
        return "not finished"
    low, high = change["low"], change["high"]
    if low is None or high is None:
        return "one seed"
    if low <= 0 <= high:
        return "within noise"
    if not paper:
        return "better" if high < 0 else "worse"
    return "same" if (high < 0) == (paper < 0) else "opposite"


def change_of(own: Mapping[int, Record], base: Mapping[int, Record], measure: str) -> Change | None:
    """A row's change against another, by their records of each seed; None if no seed finished both.

    Of the perplexity it is exp(difference of losses) − 1, of the loss its ratio to the mean of the
    other's.
    """
    pairs = [
        (b, a)
        for seed in own
        if (a := own[seed].loss) is not None and seed in base and (b := base[seed].loss) is not None
    ]
    if not pairs:
        return None
    gap = paired([b for b, _ in pairs], [a for _, a in pairs])
    level = statistics.mean(b for b, _ in pairs)

    def percent(difference: float | None) -> float | None:
        if difference is None:
            return None
        if measure == "perplexity":
            return 100 * math.expm1(min(difference, 700.0))  # a float holds no more
        return 100 * difference / level

    means = {"mean": percent(gap.mean), "low": percent(gap.low), "high": percent(gap.high)}
    return {**means, "seeds": gap.n}
