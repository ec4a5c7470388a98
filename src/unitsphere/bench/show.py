"""The reports of `unitsphere bench` for people: rows of tables, and the lines below them."""

from collections.abc import Mapping
from typing import Any

KERNEL_COLUMNS = ("function", "pass", "by", "ms", "rate", "÷ copy")
LOSS_COLUMNS = ("path", "ms", "÷ plain", "95%", "peak")
GENERATE_COLUMNS = (
    "batch", "context", "arm", "latency ms", "ms a token", "tokens/s", "÷ baseline", "95%"
)  # fmt: skip
DATA_COLUMNS = ("what", "figure")
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


def kernel_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """A row a function and pass."""
    return [
        [
            row["name"],
            row["pass"],
            row["function"],
            f"{row['ms']:.3g}",
            f"{si(row['bytes_per_second'])}B/s",
            f"{row['share_of_copy']:.0%}",
        ]
        for row in report["kernels"]
    ]


def kernel_notes(report: Mapping[str, Any]) -> list[str]:
    """What a reader of the table must know."""
    environment = report["environment"]
    sizes = environment["sizes"]
    return [
        f"{sizes['tokens']:,} tokens of {sizes['d']:,}, heads of {sizes['d_k']}, "
        f"{environment['dtype']} on {environment['device']}; {environment['clock']}; "
        f"a copy: {si(report['copy'])}B/s"
    ]


def loss_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """A row a path."""
    return [
        [
            name,
            f"{path['ms']:,.1f}",
            f"{path['ratio']['median']:.3f}",
            f"{path['ratio']['low']:.3f}–{path['ratio']['high']:.3f}",
            size(path["peak_bytes"]),
        ]
        for name, path in report["paths"].items()
    ]


def loss_notes(report: Mapping[str, Any]) -> list[str]:
    """What a reader of the table must know."""
    environment = report["environment"]
    sizes = environment["sizes"]
    return [
        f"{sizes['tokens']:,} tokens of {sizes['d']:,}, V = {sizes['vocab_size']:,}, "
        f"{environment['precision']} on {environment['device']}; the logits in fp32 are "
        f"{size(report['logits_bytes'])}, the weight's gradient is "
        f"{size(4 * sizes['d'] * sizes['vocab_size'])}",
        *(f"{path}: {why}" for path, why in report["refused"].items()),
    ]


def generate_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """A row a load and arm."""
    return [
        [
            str(load["batch"]),
            f"{load['context']:,}",
            name,
            f"{arm['latency_ms']:.1f}",
            f"{arm['ms_a_token']:.2f}",
            f"{arm['tokens_per_second']:,.0f}",
            *ratio_cells(load["ratios"].get(f"{name}/{load['noise']['arm']}")),
        ]
        for load in report["loads"]
        for name, arm in load["arms"].items()
    ]


def generate_notes(report: Mapping[str, Any]) -> list[str]:
    """What a reader of the table must know."""
    environment = report["environment"]
    sizes, protocol = environment["sizes"], environment["protocol"]
    return [
        f"{sizes['n_layers']} layers of {sizes['d_model']}, V = {sizes['vocab_size']:,}, on "
        f"{environment['device']}, {environment['threads']} threads; {environment['clock']}; "
        f"{protocol['rounds']} rounds, {protocol['tokens']} tokens after the first",
        *(
            f"noise at batch {load['batch']}, context {load['context']:,}: "
            f"within {load['noise']['floor']:.1%} of 1 is a tie"
            for load in report["loads"]
        ),
    ]


def data_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Preparing, then loading."""
    prepare, loader = report["prepare"], report["loader"]
    return [
        ["source", f"{prepare['source']}, {prepare['bytes'] / 1e6:,.1f} MB"],
        ["tokenizer", prepare["tokenizer"]],
        ["prepare", f"{prepare['bytes_per_second'] / 1e6:.2f} MB/s ({prepare['seconds']:.1f} s)"],
        ["loader", f"{loader['batches_per_second']:,.0f} batches/s ({loader['ms']:.2f} ms each)"],
        ["step", f"{loader['step_ms']:,.1f} ms ({loader['arm']})"],
        ["loader ÷ step", f"{loader['share_of_step']:.2%}"],
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
    if any(arm["precision"] == "fp8" for arm in report["arms"].values()):
        lines.append("MFU of an arm in fp8 is over the bf16 peak too: above 100% is possible")
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
