"""The reports of `unitsphere bench` for people: rows of tables, and the lines below them."""

from collections.abc import Mapping
from typing import Any

COLUMNS = ("arm", "ms", "tokens/s", "FLOP/s", "MFU", "peak", "kernels", "÷ baseline", "95%")


def training_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """A row an arm, the baseline first."""
    baseline = report["noise"]["arm"]
    return [
        [
            name,
            f"{arm['ms']:,.1f}",
            f"{arm['tokens_per_second']:,.0f}",
            si(arm["flops_per_second"]),
            "n/a" if arm["mfu"] is None else f"{arm['mfu']:.1%}",
            size(arm["peak_bytes"]),
            "n/a" if arm["kernels"] is None else f"{arm['kernels']:,}",
            *ratio_cells(report["ratios"].get(f"{name}/{baseline}")),
        ]
        for name, arm in report["arms"].items()
    ]


def ratio_cells(ratio: Mapping[str, Any] | None) -> list[str]:
    """The median, "tie" behind it where it is one, and the interval."""
    if ratio is None:
        return ["1", ""]
    tie = " tie" if ratio["tie"] else ""
    return [f"{ratio['median']:.3f}{tie}", f"{ratio['low']:.3f}–{ratio['high']:.3f}"]


def training_notes(report: Mapping[str, Any]) -> list[str]:
    """What a reader of the table must know."""
    noise, found, environment = report["noise"], report["ceilings"], report["environment"]
    sizes, protocol = environment["sizes"], environment["protocol"]
    lines = [
        f"{sizes['n_layers']} layers of {sizes['d_model']}, context {sizes['context']:,}, "
        f"{sizes['tokens']:,} tokens a step, V = {sizes['vocab_size']:,}, {sizes['precision']} on "
        f"{environment['device']}, {environment['threads']} threads; {environment['clock']}, "
        f"{protocol['rounds']} rounds of {protocol['steps']} steps",
        f"noise: a second {noise['arm']} took {noise['median']:.3f} of the first's time "
        f"({noise['low']:.3f}–{noise['high']:.3f}): within {noise['floor']:.1%} of 1 is a tie",
        f"ceilings: copy {si(found['last']['copy'])}B/s, "
        f"matmul {si(found['last']['matmul'])}FLOP/s",
    ]
    if found["drifted"]:
        lines.append(
            f"the ceilings moved by {found['drift']:.1%} meanwhile: only ratios can be trusted"
        )
    return lines


def si(rate: float) -> str:
    """A rate with three digits and G or T: "86.3 G"."""
    scale, unit = (1e12, "T") if rate >= 1e12 else (1e9, "G")
    return f"{rate / scale:.3g} {unit}"


def size(count: float) -> str:
    """Bytes in MiB or GiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
