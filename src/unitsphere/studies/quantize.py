"""Loss against bits: what runs lose when their weights are rounded, runs side by side."""

import copy
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from unitsphere.errors import UserError
from unitsphere.inference.quantize import check_group, quantize_, read_format
from unitsphere.models.constraint import MATRICES, Role, constraints
from unitsphere.studies.core.execute import Executor
from unitsphere.studies.core.fairness import Finding
from unitsphere.studies.core.kind import Kind, check_results, provenance
from unitsphere.training.evaluate.text import Scorer, scorers
from unitsphere.training.folder import check_own_data
from unitsphere.training.load import LoadedRun, load_run
from unitsphere.training.resolve import check_same_data, same_data

FORMATS = (
    *("int8", "int6", "int5", "int4", "int3"),
    *("int8:32", "int6:32", "int5:32", "int4:32", "int3:32", "int2:32"),
    *("fp8", "nvfp4"),
)
LAYERS: tuple[Role, ...] = ("matrix",)

Arms = Mapping[str, Sequence[Path]]


@dataclasses.dataclass(frozen=True)
class QuantizationStudy:
    """What is rounded, and what it is scored on.

    `data` None: each run's validation split, of which `tokens` tokens are scored. With `embeddings`
    the embedding and the output head are rounded too, not only the layers' matrices.
    """

    arms: Arms
    formats: Sequence[str]
    data: str | None
    field: str
    tokens: int
    embeddings: bool
    device: str


def quantize(
    study: QuantizationStudy, out: Path, executor: Executor | None = None
) -> dict[str, Any]:
    """Score every run as it is and in every format, a line on stderr for each; the document.

    A format counts twice where the model constrains its matrices: as it comes back, and
    renormalised. The document flags runs whose losses do not compare with the first's. Raises
    UserError for a run or format that cannot be scored, or if `out` holds something else.
    """
    check_results(out, KIND.name)
    for name in study.formats:
        read_format(name)
    flags = [dataclasses.asdict(flag) for flag in check_runs(study)]
    with scorers(study.data, study.field, study.tokens) as scorer:
        arms = {
            name: {"runs": [run_figures(path, study, scorer) for path in paths]}
            for name, paths in study.arms.items()
        }
    return {
        "data": study.data,
        "tokens": study.tokens,
        "rounded": list(roles_of(study)),
        "arms": arms,
        "flags": flags,
        "provenance": provenance(),
    }


def check_runs(study: QuantizationStudy) -> Iterator[Finding]:
    """Check every run; gives those whose losses do not compare with the first's."""
    whose, *others = chain.from_iterable(study.arms.values())
    first = check_run(whose, study)
    for path in others:
        run = check_run(path, study)
        if run.tokenizer.fingerprint != first.tokenizer.fingerprint:
            name, what = "other-tokenizer", "another tokenizer"
        elif study.data is None and not same_data(path, run.config, whose, first.config):
            name, what = "other-data", "other data"
        else:
            continue
        yield Finding(name, f"{path} has {what} than {whose}: their losses do not compare")


def check_run(path: Path, study: QuantizationStudy) -> LoadedRun:
    """The run; raises UserError if it cannot be scored, or if a format does not fit it."""
    run = load_run(path, "cpu")
    if run.config.objective != "clm":
        raise UserError(f"{path} has objective {run.config.objective}: quantize takes clm runs")
    if study.data is None:
        check_own_data(path, run.config)
        check_same_data(path, run.config)
    for name in study.formats:
        try:
            check_group(run.model, read_format(name), roles_of(study))
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
    return run


def roles_of(study: QuantizationStudy) -> tuple[Role, ...]:
    """The roles of the weights that are rounded."""
    return MATRICES if study.embeddings else LAYERS


def run_figures(
    path: Path, study: QuantizationStudy, scorer: Callable[[LoadedRun], Scorer]
) -> dict[str, Any]:
    """A run's loss in fp32, and in each format with its bits, its error and its increase."""
    run, roles = load_run(path, study.device), roles_of(study)
    model, context, score = run.model.float(), run.config.data.context, scorer(run)
    whole = score(model, context)
    found = []
    for name in study.formats:
        for renormalize in (False, True) if constraints(model) else (False,):
            rounded = copy.deepcopy(model)
            done = quantize_(rounded, read_format(name), renormalize, roles)
            loss = score(rounded, context).loss
            found.append(
                {
                    "format": name,
                    "renormalized": renormalize,
                    "bits": done.bits,
                    "error": done.error,
                    "loss": loss,
                    "increase": loss - whole.loss,
                }
            )
            told = f"{path} {name}{' renormalised' * renormalize}: {loss - whole.loss:+.5f} nats"
            print(told, file=sys.stderr, flush=True)
    return {
        "run": str(path),
        "seed": run.config.train.seed,
        "loss": whole.loss,
        "bits_per_byte": whole.bits_per_byte,
        "tokens": whole.tokens,
        "formats": found,
    }


KIND = Kind("quantize", QuantizationStudy, quantize, lambda study, found: found)
