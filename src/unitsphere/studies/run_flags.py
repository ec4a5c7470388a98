"""What is flagged of a comparison's runs once they are made; the names stand in `fairness`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from unitsphere.data.prepare import prepared
from unitsphere.data.shards import Shards
from unitsphere.studies.arms import Tuned
from unitsphere.studies.execute import Record
from unitsphere.studies.fairness import Finding
from unitsphere.training.config import RunConfig

MACHINE = ("device", "cpu", "threads")
VERSIONS = ("unitsphere", "commit", "python", "packages")


def run_flags(
    configs: Mapping[str, RunConfig],
    budgets: Sequence[int],
    seeds: Sequence[int],
    rates: Mapping[tuple[str, int], Tuned],
    records: Mapping[tuple[str, int, int], Record],
) -> Iterator[Finding]:
    """Seeds, rates, runs that did not finish, repeated data, and what the runs were made on."""
    if len(seeds) == 1:
        yield Finding("one-seed", f"seed {seeds[0]} alone: nothing is known of the spread")
    if not any(rate.rates for rate in rates.values()):
        yield Finding("untuned", "the rates are as the recipes or the study give them")
    yield from rate_flags(rates)
    for (arm, tokens, seed), record in records.items():
        if record.status != "finished":
            yield Finding(record.status, f"{arm} at {tokens:,} tokens, seed {seed}: {record.error}")
    for text in repeated(next(iter(configs.values())), budgets):
        yield Finding("repeated", text)
    if why := timing(records.values()):
        yield Finding("hardware", why)
    yield from version_flags(records.values())


def rate_flags(rates: Mapping[tuple[str, int], Tuned]) -> Iterator[Finding]:
    """How rates were come by."""
    grids = {(arm, rate.tokens): rate for (arm, _), rate in rates.items()}
    for (arm, tokens), rate in grids.items():
        if rate.lr is None:
            yield Finding("no-rate", f"{arm} at {tokens:,} tokens: no rate of its grid trained")
        elif rate.at_edge:
            tried = ", ".join(f"{lr:g}" for lr in rate.rates)
            yield Finding("edge", f"{arm} at {tokens:,} tokens: {rate.lr:g} of {tried}")
        for error in rate.errors:
            yield Finding("failed", error)
    for (arm, tokens), rate in rates.items():
        if rate.tokens != tokens:
            yield Finding("borrowed", f"{arm} at {tokens:,} tokens: tuned at {rate.tokens:,}")


def version_flags(records: Iterable[Record]) -> Iterator[Finding]:
    """Runs of different code."""
    known = list(records)
    for key in VERSIONS:
        if len(seen := values(known, key)) > 1:
            yield Finding("versions", f"runs differ in {key}: {' and '.join(seen)}")


def runs_commit(records: Iterable[Record]) -> str | None:
    """The commits that runs were made with, which need not be that of who reports them."""
    known = {place["commit"] for place in places(records) if place.get("commit")}
    return ", ".join(sorted(known)) or None


def repeated(config: RunConfig, budgets: Sequence[int]) -> Iterator[str]:
    """Budgets that go over the training split more than once."""
    folder = prepared(config.data, pairs=config.objective == "seq2seq")
    size = Shards.open(folder, "train").n_tokens
    for tokens in budgets:
        if tokens > size:
            yield f"{tokens:,} tokens go {tokens / size:.1f} times over {size:,} training tokens"


def timing(records: Iterable[Record]) -> str:
    """Why the runs' times cannot be compared; empty if they can."""
    known = list(records)
    seen = {key: values(known, key) for key in MACHINE}
    odd = [f"{key} {' and '.join(found)}" for key, found in seen.items() if len(found) > 1]
    return f"runs were timed on different hardware: {'; '.join(odd)}" if odd else ""


def values(records: Iterable[Record], key: str) -> list[str]:
    """What the runs' environments say under a key, each once."""
    return sorted({str(place.get(key)) for place in places(records)})


def places(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The environments that runs began and went on in."""
    known = [r.environment for r in records if r.environment is not None]
    return [place for first in known for place in (first, *first.get("resumed", []))]
