"""The page of the results of benchmarks/designs.py."""

from collections.abc import Mapping
from typing import Any

from unitsphere.report.render.markdown import markdown_table


def page(found: Mapping[str, Any]) -> str:
    """The same as Markdown, for people."""
    head = ["design", "parameters", "optimizer", "bits per byte", "at the rate", "every rate"]
    ran = [arm for arm in sorted(found["arms"], key=lowest) if not untouched(arm)]
    rows = [row(arm) for arm in ran]
    size, data = found["shared"]["model"], found["shared"]["data"]
    missing = ", ".join(arm["title"] for arm in found["arms"] if untouched(arm))
    ends = [f"{low:.2f}" for arm in ran if (low := lowest(arm)) < float("inf")]
    reached = f"{ends[0]} to {ends[-1]}" if ends else "no"
    return (
        "# Every design at one small size\n\n"
        f"**The designs that were run reach {reached} bits per byte; the page "
        "does not rank them.**\n\n"
        f"{markdown_table(head, rows)}\n"
        + (f"Not run: {missing}.\n\n" if missing else "")
        + "“edge”: the best rate is the lowest or highest that was run, so a better one may lie "
        "beyond it; “the only one”: no other was run; “not run”: the command would run it and has "
        "not. [quickstart-sweep.md](quickstart-sweep.md) has several seeds at the quickstart's "
        "size, with their spread.\n\n"
        "## How it was measured\n\n"
        f"Validation bits per byte after {found['steps']} steps, {found['tokens']:,} tokens, "
        f"annealed to zero, on the standard library of Python {found['python']}: width "
        f"{size['d_model']}, {size['n_layers']} layers, {size['n_heads']} heads, "
        f"{data['tokenizer']}, context {data['context']}, fp32, the same batches in the same "
        "order and the same schedule (10% warm-up, then linear) for all. Each design's settings "
        "are in the JSON next to this page.\n\n"
        "It shows that each design trains here and, where it has several rates, how its result "
        "depends on the rate. It does not rank the designs: "
        f"one seed, {found['tokens'] / 1e6:.1f}M tokens, one size, the best of a few rates on "
        "the reported documents, and initial scales that were tuned only for GPT+ and nGPT (the "
        "other unconstrained designs use GPT+'s).\n\n"
        f"Command: `{found['command']}`  \nCommit: {found['commit']}  \n"
        f"Machine: {found['machine']}, torch {found['torch']}\n"
    )


def untouched(arm: Mapping[str, Any]) -> bool:
    """Whether none of the arm's rates was run."""
    return all(rate["bits_per_byte"] == "not run" for rate in arm["rates"])


def lowest(arm: Mapping[str, Any]) -> float:
    """The best figure of a recorded arm; infinite if there is none."""
    values = [rate["bits_per_byte"] for rate in arm["rates"]]
    return min((value for value in values if isinstance(value, float)), default=float("inf"))


def row(arm: Mapping[str, Any]) -> list[str]:
    """One line of the table."""
    best = arm["best"]
    figure = ["–", "–"] if best is None else [f"{lowest(arm):.3f}", f"{best:g}{mark(arm)}"]
    cells = ", ".join(rate_cell(rate, best) for rate in arm["rates"])
    return [arm["title"], f"{arm['parameters']:,}", arm["optim"]["name"], *figure, cells]


def mark(arm: Mapping[str, Any]) -> str:
    """What is to be said of an arm's best rate: nothing, if lower and higher ones were run."""
    ran = [rate["lr"] for rate in arm["rates"] if rate["bits_per_byte"] != "not run"]
    if len(ran) == 1:
        return " (the only one)"
    return " (edge)" if arm["best"] in (min(ran), max(ran)) else ""


def rate_cell(rate: Mapping[str, Any], best: float | None) -> str:
    """A rate and what it came to, in bold if it is the best."""
    value = rate["bits_per_byte"]
    text = f"{rate['lr']:g}: " + (f"{value:.3f}" if isinstance(value, float) else value)
    return f"**{text}**" if rate["lr"] == best else text
