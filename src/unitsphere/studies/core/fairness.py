"""What makes a comparison unfair, each by its name: refused before a run is made, or flagged.

So in `compare`, `ladder`, `ablate` and `lr-ramp` (whose rates climb, so that none is annealed).

Refused, since figures of such runs answer another question. `allow` in the study takes a name, and
the refusal becomes a flag:

    data        another source, field, split or mask: other text is learned or scored
    tokenizer   another tokenizer or vocabulary: the loss is of other tokens
    context     another length of sequences
    batch       another number of tokens per step
    objective   another task
    evaluation  another part of the validation split is scored
    weights     weights stored in bf16 in some arms only: they lose small updates
    precision   another precision of computation
    init        the weights of another run to start with: what it has learned is not in the count
    un-annealed the rate does not come down to a tenth of its peak, or only in the last twentieth of
                the run: such a loss has yet to fall
    start       compare: a free arm by Muon, or a free baseline by Adam or AdamW, starts far wider
                than 0.02; one by MuonH or AdamH, which keep its norm, far narrower than 1/√d
    tied-rates  compare: such an arm gives embedding, head and scales the matrices' rate

(The last two together cost GPT+ with Muon 0.35 nats, and with AdamW 0.13; only the start 0.05
(docs/results/baselines.md), MuonH 0.25 (docs/log.md). A study may tune these keys.)

Flagged, shown with the figures:

    one-seed    nothing can be said of the spread
    untuned     the rates are those of the recipes
    edge        the best rate is at the edge of its grid: a better one may be beyond; where
                other keys are tuned, the best value of one
    untried     a key of an arm's [tune] keys was trained at only one of its values
    fewer-runs  an arm was tuned by fewer points, or rates of its grid, than another at a budget
    borrowed    the rate was tuned at another budget
    no-rate     an arm diverged or failed at every rate of its grid
    diverged    a reported run diverged
    failed      a run failed
    weights     every arm's weights are stored in bf16
    parameters  counts differ from the baseline's by more than 2%
    schedule    another form of the learning rate
    spikes      another treatment of spikes: it may leave out steps
    average     an arm keeps an average of its weights: its last weights are scored, not the average
    rising      an arm is worse after more tokens: its speedups rest on the mean of both
    repeated    a budget is larger than the training split
    hardware    runs of the arms were timed on different devices, processors or threads
    speed       arms differ in what changes only their speed
    versions    runs are of different versions of the code or of torch
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from unitsphere.config import did_you_mean, flatten, to_dict
from unitsphere.data.prepare import lost_share, source_text_lost, tokenizer_spec
from unitsphere.errors import UserError
from unitsphere.studies.core.execute import Record, timing, values
from unitsphere.studies.core.tune import Point, Tuned
from unitsphere.training.config import RunConfig
from unitsphere.training.corpus import epoch_tokens
from unitsphere.training.optim.schedule import decay_end, fall_begins

SAME = {
    "data": (
        "data.source",
        "data.field",
        "data.source_field",
        "data.target_field",
        "data.validation",
        "data.val_fraction",
        "data.document_mask",
        "data.mask.fraction",
        "data.mask.masked",
        "data.mask.random",
    ),
    "tokenizer": ("data.tokenizer", "model.vocab_size"),
    "context": ("data.context",),
    "batch": ("train.batch_tokens",),
    "objective": ("objective",),
    "evaluation": ("train.eval_tokens",),
    "precision": ("train.precision",),
    "init": ("init",),
}
"""Keys that must be the same in all arms, by the name of the refusal."""
SCHEDULE = ("schedule.kind", "schedule.warmup", "schedule.final", "schedule.end", "schedule.decay")
SCHEDULE += ("schedule.fall", "schedule.power", "schedule.rho")
SPIKES = ("train.on_spike", "train.spike_sigma")
SPEED = ("train.compile", "train.kernels", "train.micro_batch", "train.recompute", "train.device")
SPEED += ("inspect.", "parallel.")
EACH = ("un-annealed", "start", "tied-rates")  # of one arm, also if the others are like it
REFUSALS = (*SAME, "weights", *EACH)
MUON = ("muon", "normuon")
"""Optimizers whose step has the same size in all directions of a matrix."""
ADAM = ("adam", "adamw")
WIDEST = 0.04
"""Spread of the start up to which no arm is known to lose: twice the best, 0.02."""
NARROWEST = 0.5
"""The start's spread times √d from which no arm whose norms stay is known to lose much."""
RATES = ("optim.rates.", "optim.adam_lr")
"""Keys that give embedding, head and scales a rate of their own."""
FLOOR = 0.1
"""Last rate divided by the peak up to which a run counts as annealed."""
FALL = 0.05
"""Share of a run over which its rate falls, from which on it counts as annealed."""
PARAMETERS = 0.02
"""Difference of parameter counts, as a share of the baseline's, up to which nothing is said."""


@dataclass(frozen=True)
class Finding:
    """Something that a reader of the figures must know: its name, and what it is here."""

    name: str
    text: str


def check_fair(
    configs: Mapping[str, RunConfig],
    baseline: str,
    allow: Sequence[str] | None,
    annealed: bool = True,
    tuned: Mapping[str, Iterable[str]] | None = None,
) -> list[Finding]:
    """The refusals that `allow` lets through, as flags; a UserError for any other.

    configs: each arm's, at its smallest budget, resolved. annealed: whether runs must be.
    tuned: the keys of each arm of which several values are tried; None: arms may be mis-set. allow
    None: the study has no such key, so the error does not advise it.
    """
    for name in allow or ():
        if name not in REFUSALS:
            raise UserError(f"'allow' knows no {name!r}{did_you_mean(name, REFUSALS)}")
    found = list(unfair(configs, baseline, annealed))
    if tuned is not None:
        for arm, config in configs.items():
            found += mis_set(arm, config, tuned[arm], is_baseline=arm == baseline)
    refused = [finding for finding in found if finding.name not in (allow or ())]
    if refused:
        known = dict.fromkeys(finding.name for finding in refused)
        todo = "change that" if known.keys() <= set(EACH) else "make the arms alike"
        if allow is not None:
            names = ", ".join(f'"{name}"' for name in known)
            todo += f", or set allow = [{names}] to have it flagged instead"
        raise UserError(f"unfair: {'; '.join(f'{f.name}: {f.text}' for f in refused)}: {todo}")
    check_lossless(configs)
    return found


def check_lossless(configs: Mapping[str, RunConfig]) -> None:
    """Raise UserError for arms of several tokenizers of which one loses text.

    Losses of different tokens compare only as bits per byte, which are then void.
    """
    if len({tokenizer_spec(config.data) for config in configs.values()}) < 2:
        return
    for arm, config in configs.items():
        if lost := source_text_lost(config.data, config.objective == "seq2seq"):
            raise UserError(
                f"{arm}: its tokenizer loses text ({lost_share(lost)}), which cannot be "
                "compared with another tokenizer: give all arms one tokenizer"
            )


def unfair(
    configs: Mapping[str, RunConfig], baseline: str, annealed: bool = True
) -> Iterator[Finding]:
    """What is refused."""
    for name, keys in SAME.items():
        yield from differing(configs, baseline, name, keys)
    stored = [arm for arm, c in configs.items() if c.train.precision == "bf16-storage"]
    if stored and len(stored) < len(configs):
        yield Finding("weights", f"only {', '.join(stored)}: train.precision bf16-storage")
    for arm, config in configs.items() if annealed else ():
        why = un_annealed(config)
        if why:
            yield Finding("un-annealed", f"{arm}: {why}")


def mis_set(
    arm: str, config: RunConfig, tuned: Iterable[str], is_baseline: bool
) -> Iterator[Finding]:
    """What is known to be wrong with a free arm by Muon or a free baseline, unless it is tuned."""
    start = free_start(config)
    if start is None:
        return
    held = config.optim.brought == "hyperball"  # it keeps the norm of matrices and head
    narrow = start * math.sqrt(config.model.d_model) < NARROWEST
    if held and narrow and "model.init_std" not in tuned:
        text = f"{arm} keeps the norms of model.init_std {start:.3g}, and 1/√d to 2/√d is better"
        yield Finding("start", text)
    if config.optim.name not in (MUON + ADAM if is_baseline else MUON):
        return
    if start > WIDEST and "model.init_std" not in tuned:
        text = f"{arm} starts its matrices at model.init_std {start:.3g}"
        yield Finding("start", f"{text}: 0.02, with rates by role, is known to be better")
    yield from tied_rates(arm, config, tuned)


def free_start(config: RunConfig) -> float | None:
    """The spread that matrices without constraints start with; None where they have any."""
    free = config.optim.constraint.kind in ("declared", "none")
    return getattr(config.model, "init_std", None) if free else None


def tied_rates(arm: str, config: RunConfig, tuned: Iterable[str]) -> Iterator[Finding]:
    """A finding for a free arm with one rate for all roles, unless they are tuned."""
    optim = config.optim
    tied = {optim.rates.embedding, optim.rates.head, optim.rates.scale} == {1.0}
    tied = tied and optim.adam_lr in (None, optim.lr)
    if tied and not any(key.startswith(RATES) for key in tuned if key != "optim.rates.router"):
        text = f"{arm} trains embedding, head and scales at the rate of its matrices"
        yield Finding("tied-rates", f"{text}: optim.rates of 2.5 to 4 are known to be better")


def un_annealed(config: RunConfig) -> str:
    """Why a run's learning rate does not come down by its end; empty if it does."""
    schedule, steps = config.schedule, config.train.steps
    if schedule.kind in ("constant", "ramp"):
        return f'schedule.kind is "{schedule.kind}"'
    if schedule.final > FLOOR:
        return f"schedule.final {schedule.final:g} is above {FLOOR:g}"
    falls = decay_end(schedule, steps) - fall_begins(schedule, steps)
    if falls < FALL * steps - 1e-6:  # 1 − 0.95 is not 0.05
        return f"the rate falls over {max(falls, 0):g} of {steps} steps"
    return ""


def setting_flags(
    configs: Mapping[str, RunConfig], parameters: Mapping[str, int], baseline: str
) -> Iterator[Finding]:
    """What is flagged of the arms' settings."""
    yield from differing(configs, baseline, "schedule", SCHEDULE)
    yield from differing(configs, baseline, "spikes", SPIKES)
    yield from differing(configs, baseline, "speed", SPEED)
    if all(config.train.precision == "bf16-storage" for config in configs.values()):
        yield Finding("weights", "all weights are stored in bf16: they lose small updates")
    yield from unscored_averages(configs)
    for arm, count in parameters.items():
        share = count / parameters[baseline] - 1
        if abs(share) > PARAMETERS:
            yield Finding("parameters", f"{arm} has {share:+.1%} of {baseline}'s parameters")


def unscored_averages(configs: Mapping[str, RunConfig]) -> Iterator[Finding]:
    """A finding for each arm that keeps an average of its weights."""
    for arm, config in configs.items():
        if config.optim.average.kind != "none":
            text = f"{arm}: the last weights are scored, not their average (optim.average)"
            yield Finding("average", text)


def differing(
    configs: Mapping[str, RunConfig], baseline: str, name: str, keys: Iterable[str]
) -> Iterator[Finding]:
    """A finding for each arm that differs from the baseline in some of the keys.

    A key that ends with a dot stands for all below it.
    """
    flat = {arm: flatten(to_dict(config)) for arm, config in configs.items()}
    every = [name for key in keys for name in below(key, flat[baseline])]
    for arm, own in flat.items():
        odd = [key for key in every if own[key] != flat[baseline][key]]
        if odd:
            said = ", ".join(f"{key} {own[key]} against {flat[baseline][key]}" for key in odd)
            yield Finding(name, f"{arm} and {baseline} differ in {said}")


def below(key: str, known: Iterable[str]) -> list[str]:
    """The key, or all that begin with it if it ends with a dot."""
    return [name for name in known if name.startswith(key)] if key.endswith(".") else [key]


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
        yield Finding("one-seed", f"only seed {seeds[0]}: nothing is known of the spread")
    if not any(rate.tried > 1 for rate in rates.values()):
        yield Finding("untuned", "the rates are as the recipes or the study give them")
    yield from rate_flags(rates)
    for (arm, tokens, seed), record in records.items():
        if record.status != "finished":
            yield Finding(record.status, f"{arm} at {tokens:,} tokens, seed {seed}: {record.error}")
    yield from made_on(configs, budgets, list(records.values()))


def rate_flags(rates: Mapping[tuple[str, int], Tuned]) -> Iterator[Finding]:
    """How rates were chosen."""
    grids = {(arm, rate.tokens): rate for (arm, _), rate in rates.items()}
    most = {at: max(r.results for r in grids.values() if r.tokens == at) for _, at in grids}
    for (arm, tokens), rate in grids.items():
        if rate.lr is None:
            yield Finding("no-rate", f"{arm} at {tokens:,} tokens: no rate of its grid trained")
        elif rate.point:
            for key in rate.point.edges:
                text = f"{key} {rate.point.params[key]} is the last of its values"
                yield Finding("edge", f"{arm} at {tokens:,} tokens: {text}")
            for key in untried(rate, rate.point):
                text = f"{key} {rate.point.params[key]} is the only one of its values that ran"
                yield Finding("untried", f"{arm} at {tokens:,} tokens: {text}: raise tune.trials")
        elif rate.at_edge:
            tried = ", ".join(f"{lr:g}" for lr in rate.rates)
            yield Finding("edge", f"{arm} at {tokens:,} tokens: {rate.lr:g} of {tried}")
        for error in rate.errors:
            yield Finding("failed", error)
        if rate.results < most[tokens]:
            text = f"{rate.results} points have a result, of another arm {most[tokens]}"
            yield Finding("fewer-runs", f"{arm} at {tokens:,} tokens: {text}")
    for (arm, tokens), rate in rates.items():
        if rate.tokens != tokens:
            law = f", its rates carried by the law {rate.law}" if rate.law else ""
            yield Finding("borrowed", f"{arm} at {tokens:,} tokens: tuned at {rate.tokens:,}{law}")


def untried(rate: Tuned, point: Point) -> list[str]:
    """The keys of which the search has trained one value and left out others."""
    keys = dict.fromkeys(neighbour["key"] for neighbour in point.neighbours)
    return [key for key in keys if len({trial["params"][key] for trial in rate.trials}) == 1]


def made_on(
    configs: Mapping[str, RunConfig], budgets: Sequence[int], records: Sequence[Record]
) -> Iterator[Finding]:
    """Budgets that go over the training split more than once, and runs of different machines."""
    splits = {(config.data, config.objective): arm for arm, config in configs.items()}
    sizes = {arm: epoch_tokens(configs[arm]) for arm in splits.values()}  # `allow` permits several
    for tokens in budgets:
        for arm, size in sizes.items():
            if (times := tokens / size) > 1:
                text = f"{tokens:,} tokens go {times:.1f} times over {size:,} training tokens"
                yield Finding("repeated", f"{arm}: {text}" if len(sizes) > 1 else text)
    if why := timing(records):
        yield Finding("hardware", why)
    yield from version_flags(records)


def version_flags(records: Iterable[Record]) -> Iterator[Finding]:
    """Runs of different code."""
    known = list(records)
    for key in VERSIONS:
        if len(seen := values(known, key)) > 1:
            yield Finding("versions", f"runs differ in {key}: {' and '.join(seen)}")
