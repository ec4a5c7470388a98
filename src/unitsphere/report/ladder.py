"""A ladder's figures as tables, from its document: optima, laws, best sizes, tests, suggestions."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unitsphere.report.origin import origin
from unitsphere.report.table import markdown

Document = Mapping[str, Any]
NAMES = {
    "lr": "rate(N)",
    "batch": "batch(N)",
    "loss": "loss(C)",
    "parameters": "N_opt(C)",
    "tokens": "D_opt(C)",
}
"""The laws, of parameters N and of compute C = 6·N·D."""


class Table(NamedTuple):
    """A table with its title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def ladder_tables(found: Document) -> list[Table]:
    """Those of the study's tables that have rows."""
    tables = [
        Table("Best batch and rate", SIZE_COLUMNS, size_rows(found)),
        Table("Best size at a compute", BEST_COLUMNS, best_rows(found)),
        Table("Laws: coefficient · x^exponent, 95% intervals", LAW_COLUMNS, law_rows(found)),
        Table("Exponents against the first arm's (Z-test)", TEST_COLUMNS, test_rows(found)),
        Table("Suggested by the laws, 95% intervals", NEXT_COLUMNS, suggestion_rows(found)),
    ]
    return [table for table in tables if table.rows]


SIZE_COLUMNS = ("arm", "size", "parameters", "tokens", "batch", "rate", "loss", "at edge")


def size_rows(found: Document) -> list[list[str]]:
    """Each size's optimum."""
    return [
        [
            name,
            size["size"],
            f"{size['parameters']:,}",
            f"{size['tokens']:,}",
            number(size["batch"], ",.0f"),
            number(size["lr"], ".3g"),
            number(size["loss"], ".4f"),
            ", ".join(key for key in ("batch", "lr") if size[f"{key}_edge"]).replace("lr", "rate"),
        ]
        for name, arm in found["arms"].items()
        for size in arm["sizes"]
    ]


BEST_COLUMNS = ("arm", "compute", "N_opt", "D_opt", "loss", "at edge")


def best_rows(found: Document) -> list[list[str]]:
    """Each compute's best size."""
    return [
        [
            name,
            f"{best['compute']:.3g}",
            f"{best['parameters']:,.0f}",
            f"{best['tokens']:,.0f}",
            f"{best['loss']:.4f}",
            best["edge"] or "",
        ]
        for name, arm in found["arms"].items()
        for best in arm["allocations"]
    ]


LAW_COLUMNS = ("arm", "law", "points", "coefficient", "exponent")


def law_rows(found: Document) -> list[list[str]]:
    """Each law."""
    return [
        [
            name,
            NAMES[key],
            str(law["points"]),
            spread(law["coefficient"], law["coefficient_interval"], ".3g"),
            spread(law["exponent"], law["exponent_interval"], ".3f"),
        ]
        for name, arm in found["arms"].items()
        for key, law in arm["laws"].items()
        if law
    ]


TEST_COLUMNS = ("arms", "law", "difference", "z", "p")


def test_rows(found: Document) -> list[list[str]]:
    """Each test."""
    return [
        [
            " − ".join(test["arms"]),
            NAMES[test["law"]],
            f"{test['difference']:+.4f}",
            f"{test['z']:.2f}",
            f"{test['p']:.3g}",
        ]
        for test in found["tests"]
    ]


NEXT_COLUMNS = ("arm", "parameters", "batch", "rate")


def suggestion_rows(found: Document) -> list[list[str]]:
    """What is suggested for each size asked for."""
    return [
        [
            name,
            f"{each['parameters']:,}",
            spread(each["batch"], each["batch_interval"], ",.0f"),
            spread(each["lr"], each["lr_interval"], ".3g"),
        ]
        for name, arm in found["arms"].items()
        for each in arm["suggestions"]
    ]


def number(value: float | None, form: str) -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def spread(value: float, interval: Sequence[float] | None, form: str) -> str:
    """A figure with its interval, if there is one."""
    if interval is None:
        return format(value, form)
    return f"{value:{form}} [{interval[0]:{form}}, {interval[1]:{form}}]"


def ladder_page(found: Document, pictures: Sequence[str]) -> str:
    """The tables, notes and pictures in Markdown."""
    parts = ["# ladder\n", origin(found["provenance"])]
    for title, columns, rows in ladder_tables(found):
        parts.append(f"## {title}\n\n{markdown(columns, rows)}")
    parts.append("".join(f"- {note}\n" for note in notes(found)))
    parts += [f"![{name.partition('.')[0]}]({name})\n" for name in pictures]
    return "\n".join(parts)


def notes(found: Document) -> list[str]:
    """The flags, a line each."""
    return [f"[{flag['name']}] {flag['text']}" for flag in found["flags"]]
