"""A run's checkpoints through the probes, one after the other, as one document."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unitsphere.config import read_json
from unitsphere.data.batch import Batch
from unitsphere.data.prepare import check_scored
from unitsphere.data.tokenizer import load_tokenizer
from unitsphere.errors import UserError
from unitsphere.inspection.probes import PROBES, chosen, inspect
from unitsphere.inspection.trace import Base, Subject
from unitsphere.inspection.updates import Recorded
from unitsphere.inspection.values import Series, Values
from unitsphere.models.registry import build_from
from unitsphere.models.trunk import Transformer
from unitsphere.report.runs import document, live_values
from unitsphere.training.checkpoint import store as checkpoint
from unitsphere.training.checkpoint.tensors import empty_tensors, load_model, read_tensors
from unitsphere.training.config import RunConfig
from unitsphere.training.corpus import given_rows, open_corpus
from unitsphere.training.device import pick_device
from unitsphere.training.folder import CHECKPOINTS, CONFIG, ENVIRONMENT, TOKENIZER, check_own_data
from unitsphere.training.load import check_checkpoint, is_exported
from unitsphere.training.log import read_metrics
from unitsphere.training.optim import build_optimizer
from unitsphere.training.optim.state import first_moment_keys
from unitsphere.training.recipes import load_recipe, no_run
from unitsphere.training.resolve import check_same_data

TOKENS = 2048
"""About how many tokens of the validation data the probes look at, at least a row."""


def inspect_run(
    run: Path,
    names: Sequence[str] = (),
    steps: Sequence[int] = (),
    against: Path | None = None,
    device: str = "auto",
    data: str | None = None,
) -> dict[str, Any]:
    """Every probe (or those named) at every complete checkpoint (or those of `steps`) of a run.

    Returns the document that the package `inspection` describes.

    Before the first stands the start, step 0, where it can be drawn again: the weights depend on
    the seed and the kind of device, and a run with `init` did not draw them. `against` is the run
    that gradients are compared with, where it has a checkpoint of the same step; the last of the
    one with the last of the other. `data` is what the probes look at; none: the run's validation
    split.
    Raises UserError for a folder without a run or the checkpoint, a start that is named and cannot
    be drawn again, an unknown probe, and without `data` for a run that somebody else made.
    """
    names = chosen(names)
    config = run_config(run)
    places = checkpoints(run, steps)
    if places:
        check_checkpoint(config, places[max(places)])
    on = pick_device(device)
    drawn = starts_alike(run, config, on)
    if 0 in steps and not drawn:
        raise UserError(f"{run} has no step 0: its start cannot be drawn again here, leave it out")
    batch, why = probed_batch(run, config, data, on)
    bases = {} if against is None else bases_of(against, data, on)
    last, recorded = max(places, default=None), records_of(run)
    scenes: dict[int, Mapping[str, Values | str]] = {}
    for subject in subjects(start(config, on), config, places, drawn):
        step = subject.step
        if steps and step not in steps:  # the start, which the next one is compared with
            continue
        base = bases.get(max(bases) if step == last else step) if bases else None
        full = replace(
            subject,
            batch=batch,
            no_batch=why,
            recorded=recorded,
            base=base and base(),
            against=bool(bases),
        )
        scenes[step] = inspect(full, names)
        print(f"{run}: step {step}", file=sys.stderr)
    rows, tokens = (0, 0) if batch is None else (len(batch), batch.inputs.numel())
    return {
        "run": str(run),
        "architecture": config.architecture,
        "checkpoints": list(scenes),
        "batch": {"rows": rows, "tokens": tokens},
        "probes": {
            name: probe_document(
                name,
                {step: found[name] for step, found in scenes.items()},
                recorded.probes.get(name, {}),
            )
            for name in names
        },
    }


def probe_document(
    name: str, found: Mapping[int, Values | str], live: Mapping[int, Values]
) -> dict[str, Any]:
    """A probe's part of the document.

    found: step -> what it found there, or why it does not apply. live: what the run recorded.
    """
    probe, last = PROBES[name], found[max(found)]
    shown = {step: values for step, values in found.items() if not isinstance(values, str)}
    applies = bool(shown or live)
    return {
        "title": probe.title,
        "source": probe.source,
        "applies": applies,
        "why": "" if applies else last,
        "values": {
            "form": probe.form,
            "axis": probe.axis,
            "unit": probe.unit,
            "log": probe.log,
            "steps": list(shown),
            "series": list(shown.values()),
            "live": {"steps": list(live), "series": list(live.values())},
        },
    }


def run_config(run: Path) -> RunConfig:
    """The config of a run folder; UserError for anything else."""
    if not (run / CONFIG).is_file():
        raise UserError(no_run(run))
    if is_exported(read_json(run / CONFIG)):
        raise UserError(f"{run} is an exported model without checkpoints: inspect its run instead")
    return load_recipe(run / CONFIG)


def checkpoints(run: Path, steps: Sequence[int]) -> dict[int, Path]:
    """Step -> folder of the complete checkpoints that are wanted, oldest first.

    A damaged one is passed over with a line on stderr. Step 0, the start, has none.
    """
    found = checkpoint.folders(run / CHECKPOINTS)
    for step in steps:
        if step and step not in found:
            known = ", ".join(map(str, found)) or "none"
            raise UserError(f"{run} has no checkpoint of step {step} (it has: {known})")
    places: dict[int, Path] = {}
    for step, folder in found.items():
        if steps and step not in steps:
            continue
        wrong = checkpoint.damage(folder)
        if wrong is None:
            places[step] = folder
        else:
            print(f"checkpoint {folder} is damaged ({wrong}): left out", file=sys.stderr)
    if not places and 0 not in steps:
        why = " of these steps" if found else ": train it first"
        raise UserError(f"{run} has no complete checkpoint{why}")
    return places


def subjects(
    model: Transformer, config: RunConfig, places: Mapping[int, Path], drawn: bool
) -> Iterator[Subject]:
    """The model at its start, if it was drawn so, and at each checkpoint.

    Each with what is known of the one before.
    """
    before, last = None, 0
    if drawn:
        yield Subject(model)
        before = copies(model)
    for step, folder in places.items():
        load_model(folder, model)
        moments = moments_of(folder, model, config)
        yield Subject(model, moments=moments, before=before, steps=step - last, step=step)
        before, last = copies(model), step


def start(config: RunConfig, device: torch.device) -> Transformer:
    """A run's model as it is drawn from the seed; its weights are not trained."""
    kind, seed = config.architecture, config.train.seed
    model = build_from(kind, config.model, device, seed, config.objective)
    if config.train.precision == "bf16-storage":
        model.to(torch.bfloat16)
    return model.eval().requires_grad_(False)


def copies(model: Transformer) -> dict[str, Tensor]:
    """The weights as they are now."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def starts_alike(run: Path, config: RunConfig, device: torch.device) -> bool:
    """Whether `start` gives the run's first weights: drawn in one process, on such a device."""
    if config.init is not None:  # the weights of another run, and nothing keeps that one as it was
        return False
    found = document(run / ENVIRONMENT)
    processes = found.get("processes", {})
    if not isinstance(processes, dict) or any(count != 1 for count in processes.values()):
        return False
    on_cpu = found.get("device") == "cpu"
    return "device" in found and on_cpu == (device.type == "cpu")


def moments_of(folder: Path, model: Transformer, config: RunConfig) -> dict[str, Tensor]:
    """Adam's first moment by parameter; none of what Muon trains."""
    keys = first_moment_keys(model, build_optimizer(model, config.optim))
    empty = empty_tensors(folder, "optim.")
    named = {name: f"optim.{name}.{key}" for name, key in keys.items()}
    wanted = {stored: empty[stored] for stored in named.values() if stored in empty}
    read_tensors(folder, wanted)
    return {name: wanted[stored] for name, stored in named.items() if stored in wanted}


def probed_batch(
    run: Path, config: RunConfig, data: str | None, device: torch.device
) -> tuple[Batch | None, str]:
    """About TOKENS of `data`, or of the run's validation split; or none, and why there are none.

    Raises UserError for `data` that cannot be used, and for a context without tokens.
    """
    context = config.data.context
    if context < 1:
        raise UserError(f"{run / CONFIG}: data.context must be at least 1: {context}")
    rows = max(TOKENS // context, 1)
    if data is not None:
        check_scored(data)
        return given_rows(config, load_tokenizer(run / TOKENIZER, run), data, rows).to(device), ""
    check_own_data(run, config)
    try:
        check_same_data(run, config)
        corpus = open_corpus(config)
    except UserError as error:
        return None, f"it needs data, and the run's data cannot be read: {error}"
    return corpus.validation_rows(rows).to(device), ""


def bases_of(run: Path, data: str | None, device: torch.device) -> dict[int, Callable[[], Base]]:
    """Step -> the run that gradients are compared with as it was then, on `data` or its own."""
    config = run_config(run)
    places = checkpoints(run, ())
    check_checkpoint(config, places[max(places)])
    batch, why = probed_batch(run, config, data, device)
    if batch is None:
        raise UserError(f"cannot compare with {run}: {why}")
    recorded = records_of(run)

    def base(folder: Path | None) -> Base:
        model = start(config, device)
        if folder is not None:
            load_model(folder, model)
        return Base(model, batch, recorded)

    found = {step: partial(base, folder) for step, folder in places.items()}
    return ({0: partial(base, None)} if starts_alike(run, config, device) else {}) | found


def records_of(run: Path) -> Recorded:
    """The losses and live probes that the run recorded while it trained."""
    losses: dict[int, float] = {}
    found: dict[str, dict[int, Values]] = {}
    for record in read_metrics(run):
        if "loss" in record:
            losses[record["step"]] = record["loss"]
        for probe, name, label, value in live_values(record):
            at = found.setdefault(probe, {}).setdefault(record["step"], {})
            series: Series = at.setdefault(name, {"labels": [], "values": []})
            series["labels"].append("" if label == "all" else label)
            series["values"].append(value)
    return Recorded(losses, found)
