"""The page of a transfer: the gap to each cell's best rate, and the exponents that fit."""

from pathlib import Path

from unitsphere.report.document import Block, Page, Section, Table
from unitsphere.report.numbers import known, within
from unitsphere.report.runs import Json, data_facts, runs_of_arms
from unitsphere.report.sections.settings import flag_lines, study_details

CELLS = ("arm", "width", "depth", "tokens", "law's rate", "loss", "best rate", "best loss", "gap")
EXPONENTS = ("arm", "size", "fitted", "law")


def transfer_page(found: Json, folder: Path) -> Page:
    """What a transfer found."""
    runs = runs_of_arms(found["arms"], folder, words=1)
    return Page(
        title=folder.resolve().name,
        kind="Transfer",
        answer=answer(found),
        facts=data_facts(runs),
        caveats=flag_lines(found),
        sections=[
            Section("results", "Results", tables(found)),
            *study_details(runs, found, folder, curves=False),
        ],
        provenance=found["provenance"],
    )


def tables(found: Json) -> list[Block]:
    """The cells, and the exponents if there are any."""
    cells = Table("Nats per token at the law's rate and at the best", CELLS, cell_rows(found))
    fits = Table("Exponents of the best rates, 95% intervals", EXPONENTS, exponent_rows(found))
    return [cells, fits] if fits.rows else [cells]


def cell_rows(found: Json) -> list[list[str]]:
    """Each cell of each arm."""
    return [
        [
            name,
            f"{cell['width']:,}",
            f"{cell['depth']:,}",
            f"{cell['tokens']:,}",
            f"{cell['lr']:.3g}",
            known(cell["loss"], ".4f"),
            known(cell["best_lr"], ".3g") + (" (edge)" if cell["edge"] else ""),
            known(cell["best_loss"], ".4f"),
            known(cell["gap"], ".4f"),
        ]
        for name, arm in found["arms"].items()
        for cell in arm["cells"]
    ]


def exponent_rows(found: Json) -> list[list[str]]:
    """Each exponent of each arm."""
    return [
        [
            name,
            fit["size"],
            within(fit["value"], interval(fit), ".3f"),
            f"{fit['law']:.3f}",
        ]
        for name, arm in found["arms"].items()
        for fit in arm["exponents"]
    ]


def interval(fit: Json) -> tuple[float, float] | None:
    """The ends of an exponent's interval; None without one."""
    return None if fit["low"] is None else (fit["low"], fit["high"])


def answer(found: Json) -> str:
    """The largest gap of each arm; that of a best rate at the grid's edge is a lower bound."""
    said = []
    for name, arm in found["arms"].items():
        said.append(largest_gap(name, arm["cells"]))
        if edges := sum(cell["edge"] is not None for cell in arm["cells"]):
            said.append(f"the best rate of {edges} of its cells is at the grid's edge")
    return f"{'; '.join(said)}."


def largest_gap(name: str, cells: list[Json]) -> str:
    """An arm's largest gap to a best rate inside the grid."""
    inside = [cell for cell in cells if cell["gap"] is not None and cell["edge"] is None]
    if not inside:
        return f"{name} has no cell with a loss at the law's rate and a best rate inside the grid"
    worst = max(inside, key=lambda cell: cell["gap"])
    return (
        f"{name} at the law's rates is at most {worst['gap']:.4f} nats per token above the best "
        f"rates ({worst['width']}×{worst['depth']}, {worst['tokens']:,} tokens), in {len(inside)} "
        f"of {len(cells)} cells"
    )
