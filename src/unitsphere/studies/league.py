"""`unitsphere compare league`: anyone's designs and optimizers next to those that are published.

Every entry is trained by the same rules (shipped/league/rules.toml): size, tokens, seeds, and as
many runs to tune its rate. The published rows (shipped/league/rows.json) are such entries. They are
ranked with those that are trained on the same tokens.

An entry is an arm in a file of its own:

    [arms.my-design]
    recipe = "quickstart/ngpt"
    set = { optim = { name = "muon" } }
    lr = 2e-2                            # the middle of the rates to try
    [set]
    data = { source = "wiki.jsonl", validation = "dev.jsonl" }

Places: Tukey's test of all pairs. Its one estimate of the noise comes from all entries,
since the few seeds of two entries say little of it. With n entries an entry stands between place
1 + (entries that are significantly better) and n − (entries that are significantly worse).
"""

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy import stats

from unitsphere.config import flatten, read_json, read_toml
from unitsphere.data.prepare import prepared
from unitsphere.data.shards import Shards
from unitsphere.errors import UserError
from unitsphere.studies.compare import SHIPPED, final_records
from unitsphere.studies.core.execute import Executor, Record, failure_lines
from unitsphere.studies.core.fairness import check_fair, made_on, unscored_averages
from unitsphere.studies.core.kind import Kind, Part, provenance, study_folder, tuning
from unitsphere.studies.core.plan import at_budget, to_come
from unitsphere.studies.core.spec import ArmSpec, Comparing, as_table, study_from
from unitsphere.studies.core.tune import Tuned, tuned_rates
from unitsphere.training.config import RunConfig
from unitsphere.training.forecast import size_of

NAME: Final = "league"
REFERENCE: Final = "the rules"
"""The arm that has the rules' data and sizes; it is not trained. No entry can have such a name."""
LARGER = 0.1
"""How many more parameters than the reference an entry may have, as a share."""
TEXT = ("data.source", "data.field", "data.validation", "data.cache")
"""What an entry's file may set for all of its arms."""
SIGNIFICANT = 0.05
"""p below which two entries differ."""


@dataclass(frozen=True, kw_only=True)
class LeagueStudy(Comparing):
    """The rules, with the entries that are to be added as its arms."""

    tokens: int
    """training tokens of every run"""


@dataclass(frozen=True)
class Entries:
    """What the entries of a study came to; `text` fingerprints their tokens and the rules."""

    configs: Mapping[str, RunConfig]
    rates: Mapping[str, Tuned]
    records: Mapping[str, Mapping[int, Record]]
    text: str


def league_study(files: Sequence[Path]) -> LeagueStudy:
    """The rules with the entries of some files.

    Raises UserError for a file that says more than arms and their text, and for two arms of a name.
    """
    arms: dict[str, object] = {}
    text: dict[str, object] = {}
    for path in files:
        table = read_toml(path)
        odd = [key for key in table if key not in ("arms", "set")]
        try:
            entries = as_table(table.get("arms", {}), "arms")
            own = flatten(as_table(table.get("set", {}), "set"))
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        odd += [f"set.{key}" for key in own if key not in TEXT]
        if odd:
            raise UserError(f"{path}: '{odd[0]}' is for the league's rules: leave it out")
        twice = sorted(set(arms) & set(entries))
        if twice:
            raise UserError(f"{path}: the entry '{twice[0]}' is in another file too: rename it")
        if any(text.get(key, value) != value for key, value in own.items()):
            raise UserError(f"{path}: another file has another text: add this file by itself")
        arms |= entries
        text |= own
    table = {**rules(), "arms": arms}
    table["set"] = {**flatten(table["set"]), **text}
    return study_from(LeagueStudy, table)


def rules() -> dict[str, Any]:
    """What all entries share."""
    return read_toml(SHIPPED / NAME / "rules.toml")


def published() -> dict[str, Any]:
    """The rows that come with the package and their provenance: what --json printed of them."""
    return read_json(SHIPPED / NAME / "rows.json")


def published_standings() -> dict[str, Any]:
    """The published rows, ranked."""
    found = published()
    ranked = standings(found["rows"], found["rows"][0]["text"])
    return {"kind": NAME, **ranked, "rules": rules(), "provenance": found["provenance"]}


def league(study: LeagueStudy, out: Path, executor: Executor | None = None) -> Entries:
    """Train what is missing of the entries in the folder `out`.

    Raises UserError for an entry that is unfair (see core/fairness.py) or unusable data, and
    `Preempted` when stopped; the same call then resumes.
    """
    configs = checked(study)
    with study_folder(out, study, executor) as executor:
        later = to_come(study, product(study.arms, [study.tokens]), len(study.seeds))
        rates = tuned_rates(out, study, [study.tokens], executor, later)
        found = final_records(out, study, [study.tokens], rates, executor)
    records = {
        arm: {seed: r for (name, _, seed), r in found.items() if name == arm} for arm in study.arms
    }
    config = next(iter(configs.values()))
    chosen = {arm: rates[arm, study.tokens] for arm in study.arms}
    return Entries(configs, chosen, records, fingerprint(config))


def fingerprint(config: RunConfig) -> str:
    """What two rows must share to be ranked together: both splits, and the rules."""
    folder = prepared(config.data)
    splits = [Shards.open(folder, split).fingerprint for split in ("train", "val")]
    said = json.dumps([*splits, rules()], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()


def checked(study: LeagueStudy) -> dict[str, RunConfig]:
    """Each entry's config; a UserError for one that breaks the rules."""
    measure = dataclasses.replace(study, arms={"gpt-plus": ArmSpec("quickstart/gpt-plus")})
    configs = {REFERENCE: at_budget(measure, "gpt-plus", study.tokens)}
    configs |= {arm: at_budget(study, arm, study.tokens) for arm in study.arms}
    check_fair(configs, REFERENCE, None, tuned=dict.fromkeys(configs, ()))
    counts = {arm: size_of(config).parameters for arm, config in configs.items()}
    for arm, count in counts.items():
        if count > (1 + LARGER) * counts[REFERENCE]:
            raise UserError(
                f"{arm} has {count:,} parameters, the rules allow {LARGER:.0%} more than "
                f"{counts[REFERENCE]:,}: make it smaller"
            )
    return {arm: configs[arm] for arm in study.arms}


def document(study: LeagueStudy, found: Entries) -> dict[str, Any]:
    """The entries, ranked with the published ones of the same text."""
    own = [row(study, found, arm) for arm in study.arms]
    others = [
        entry | {"name": f"{entry['name']} (published)"} if entry["name"] in study.arms else entry
        for entry in published()["rows"]
    ]
    records = [record for by_seed in found.records.values() for record in by_seed.values()]
    ranked = standings([*others, *own], found.text)
    made = made_on(found.configs, [study.tokens], records)
    flags = (*unscored_averages(found.configs), *made)
    ranked["flags"] += [dataclasses.asdict(flag) for flag in flags]
    return {**ranked, "rules": rules(), "provenance": provenance(records)}


def row(study: LeagueStudy, found: Entries, arm: str) -> dict[str, Any]:
    """One entry."""
    config, rate, spec = found.configs[arm], found.rates[arm], study.arms[arm]
    done = {
        seed: record for seed, record in found.records[arm].items() if record.status == "finished"
    }
    bits = [r.bits_per_byte for r in done.values() if r.bits_per_byte is not None]
    speeds = [r.tokens_per_second for r in done.values() if r.tokens_per_second]
    return {
        "name": arm,
        "recipe": spec.recipe,
        "set": spec.set,
        "architecture": config.architecture,
        "optimizer": config.optim.name,
        **dataclasses.asdict(size_of(config)),
        "lr": rate.lr,
        "at_edge": rate.lr is not None and rate.at_edge,
        "rates": {f"{lr:g}": loss for lr, loss in rate.rates.items()},
        "losses": {str(seed): record.loss for seed, record in done.items()},
        "unfinished": {
            str(seed): record.status
            for seed, record in found.records[arm].items()
            if record.status != "finished"
        },
        "bits_per_byte": statistics.mean(bits) if bits else None,
        "tokens_per_second": statistics.median(speeds) if speeds else None,
        "text": found.text,
    }


def standings(rows: Sequence[dict[str, Any]], text: str) -> dict[str, Any]:
    """Rows of one text and one set of rules, best first, each with its places.

    What is left out is among the flags.
    """
    others = [entry["name"] for entry in rows if entry["text"] != text]
    ranked, flags = [], []
    if others:
        apart = f"trained on another text or by other rules, so not ranked: {', '.join(others)}"
        flags.append(("other-text", apart))
    for entry in (entry for entry in rows if entry["text"] == text):
        if entry["unfinished"]:
            why = ", ".join(f"seed {seed} {how}" for seed, how in entry["unfinished"].items())
            flags.append(("no-rank", f"{entry['name']}: {why}: not ranked"))
        elif len(entry["losses"]) < 2:
            flags.append(("no-rank", f"{entry['name']} has fewer than two finished runs"))
        else:
            ranked.append(entry)
        if entry["at_edge"]:
            flags.append(("edge", f"{entry['name']}: the best rate is at the edge of its grid"))
    ranked.sort(key=lambda entry: statistics.mean(entry["losses"].values()))
    return {
        "rows": [
            entry | place
            for entry, place in zip(ranked, places([r["losses"] for r in ranked]), strict=True)
        ],
        "flags": [{"name": name, "text": text} for name, text in flags],
    }


def places(losses: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Mean, standard error and places of some entries, which come best first.

    best, worst: the places between which no significant difference decides.
    """
    samples = [list(by_seed.values()) for by_seed in losses]
    means = np.array([statistics.mean(sample) for sample in samples])
    differ = differing(samples)
    return [
        {
            "loss": float(means[i]),
            "standard_error": statistics.stdev(sample) / len(sample) ** 0.5,
            "place": i + 1,
            "best": 1 + int((differ[i] & (means < means[i])).sum()),
            "worst": len(samples) - int((differ[i] & (means > means[i])).sum()),
        }
        for i, sample in enumerate(samples)
    ]


def differing(samples: Sequence[Sequence[float]]) -> np.ndarray:
    """Which pairs of samples differ by Tukey's test, bool [samples, samples].

    The pairs are compared with one critical value: scipy's tukey_hsd integrates a p for each pair,
    which takes a minute for seventy samples.
    """
    if len(samples) < 2:
        return np.zeros((len(samples), len(samples)), bool)
    sizes = np.array([len(sample) for sample in samples])
    spare = sizes.sum() - len(samples)
    noise = sum(float(np.var(sample)) * len(sample) for sample in samples) / spare
    errors = np.sqrt(noise / 2 * (1 / sizes[:, None] + 1 / sizes))
    critical = stats.studentized_range.ppf(1 - SIGNIFICANT, len(samples), spare)
    means = np.array([statistics.mean(sample) for sample in samples])
    return np.abs(means[:, None] - means) > critical * errors


def failures(found: Entries) -> list[str]:
    """A line for each run that failed."""
    tuning_errors = [error for rate in found.rates.values() for error in rate.errors]
    records = [record for by_seed in found.records.values() for record in by_seed.values()]
    return [*dict.fromkeys(tuning_errors), *failure_lines(records)]


def parts(study: LeagueStudy) -> list[Part]:
    """What would be trained."""
    checked(study)
    return tuning(study, [study.tokens], study.arms) + [
        Part(arm, len(study.seeds), at_budget(study, arm, study.tokens)) for arm in study.arms
    ]


KIND = Kind(NAME, LeagueStudy, league, document, failures, parts)
