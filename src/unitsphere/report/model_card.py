"""The README.md of an exported model: what its run folder says, and nothing else."""

import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unitsphere import __version__
from unitsphere.config import flatten, to_dict
from unitsphere.data.config import DataConfig
from unitsphere.data.shards import is_prepared
from unitsphere.inference.hf.export import Exported
from unitsphere.models.registry import architecture
from unitsphere.report.runs import document, is_number
from unitsphere.training.checkpoint import store as checkpoint
from unitsphere.training.checkpoint.store import State
from unitsphere.training.config import RunConfig
from unitsphere.training.folder import ENVIRONMENT, run_and_checkpoint
from unitsphere.training.load import Weights, chosen_checkpoint
from unitsphere.training.log import read_metrics, read_samples

KINDS = {
    "clm": ("A causal language model", "text-generation", "AutoModelForCausalLM"),
    "mlm": ("A masked language model", "fill-mask", "AutoModelForMaskedLM"),
}

STDLIB = "stdlib"
"""The data source whose text is known."""

CARD = """\
---
library_name: transformers
pipeline_tag: {task}
license: unknown
{language}tags:
- unitsphere
- {architecture}
---

# {name}

{kind}, trained with unitsphere. Architecture: {title}

| | |
|---|---|
{figures}

The figures are those of the training run: the loss in nats per token on its own validation split,
nothing else has been measured. The weights are folded: constants and scales of the training are
part of them, so they are not unit vectors any more.

## Licence, language, data

| | |
|---|---|
{origin}

{sample}

## Use

```python
from transformers import AutoTokenizer, {auto}

tokenizer = AutoTokenizer.from_pretrained("{name}", trust_remote_code=True)
model = {auto}.from_pretrained("{name}", trust_remote_code=True)
```

`trust_remote_code` runs `modeling_unitsphere.py` of this folder, which imports PyTorch and
transformers only. The tokenizer puts the separator before a text, as in training.

## Training

<details>
<summary>All settings</summary>

```json
{config}
```

</details>
"""


def model_card(
    run: Path, config: RunConfig, trained: int, made: Exported, weights: Weights = "last"
) -> str:
    """The card of the model exported from the run folder or checkpoint `run`.

    trained: how many parameters the run trained.
    """
    run, wanted = run_and_checkpoint(run)
    state = checkpoint.load_state(chosen_checkpoint(run, wanted))
    kind, task, auto = KINDS[config.objective]
    title = sys.modules[architecture(config.architecture).model.__module__].__doc__ or ""
    return CARD.format(
        task=task,
        architecture=config.architecture,
        name=Path(made.out).name,
        kind=kind,
        title=title.partition("\n")[0],
        auto=auto,
        figures=table(figures(run, config, trained, made, state, weights)),
        language="language:\n- en\n- code\n" if config.data.source == STDLIB else "",
        origin=table(origin(config)),
        sample=sample(run, state.step),
        config=json.dumps(to_dict(without_folders(config)), indent=2),
    )


def table(rows: Mapping[str, str]) -> str:
    """The rows of a table of two columns in Markdown."""
    return "\n".join(f"| {name} | {value.replace('|', '&#124;')} |" for name, value in rows.items())


def without_folders(config: RunConfig) -> RunConfig:
    """The config with only the names of its data: a card does not show folders of this machine."""

    def name(path: str | None) -> str | None:
        return None if path is None else Path(path).name

    data = config.data
    named = dataclasses.replace(
        data,
        source=Path(data.source).name,
        validation=name(data.validation),
        tokenizer=name(data.tokenizer),
        cache=DataConfig().cache,
    )
    return dataclasses.replace(config, data=named, init=name(config.init))


def origin(config: RunConfig) -> dict[str, str]:
    """What is known of licence, language and data, and plainly what is not."""
    named, shipped = without_folders(config), config.data.source == STDLIB
    data, start = named.data, named.init
    unknown = "not known: the run does not record it; say it here and in the head of this file"
    share = f"{100 * data.val_fraction:.3g}%"
    held_out = f"{share} of it" if data.validation is None else data.validation
    if is_prepared(config.data.source):
        held_out = "the validation split that it was prepared with"
    return {
        "licence of the weights": unknown,
        "licence of the data": "PSF-2.0, Python's own" if shipped else unknown,
        "language": "English and Python" if shipped else unknown,
        "data": "the source text of Python's standard library" if shipped else f"`{data.source}`",
        "held out for validation": held_out,
        "tokenizer": f"`{data.tokenizer}`",
        "first weights": "random" if config.init is None else f"those of `{start}`",
    }


def sample(run: Path, step: int) -> str:
    """The last text that the run wrote up to a step, fenced, or that there is none."""
    written = [(at, text) for at, text in read_samples(run) if at <= step and text]
    if not written:
        return "The run's folder has no sample of text."
    at, text = written[-1]
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`+", text))])
    text = "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
    head = f"Written by the model in training, after step {at:,}, and not chosen:"
    return f"{head}\n\n{fence}text\n{text}\n{fence}"


def figures(
    run: Path, config: RunConfig, trained: int, made: Exported, state: State, weights: Weights
) -> dict[str, str]:
    """What the first table says; a figure that the run folder does not hold is left out."""
    return {
        "parameters, trained": f"{trained:,}",
        "parameters, in this folder": f"{made.parameters:,}",
        **({} if weights == "last" else {"weights": f"averaged ({config.optim.average.kind})"}),
        "training tokens": f"{state.tokens:,}",
        "steps": f"{state.step:,} of {config.train.steps:,}",
        "training time": f"{state.seconds:,.0f} s",
        **validation(run, state.step, weights),
        "validated on": f"at most {config.train.eval_tokens:,} tokens, evenly spread over the split"
        if config.train.eval_tokens
        else "the whole split",
        "context": f"{config.data.context:,} tokens",
        **machine(document(run / ENVIRONMENT)),
        "largest difference to the run's own logits": f"{made.difference:.1e} "
        f"(of logits up to {made.largest_logit:.1f}, {made.compared} tokens, fp32)",
    }


def validation(run: Path, step: int, weights: Weights) -> dict[str, str]:
    """The last validation of these weights up to a step; empty if there was none."""
    names = {"val_loss": "loss", "val_bits_per_byte": "bits per byte", "val_accuracy": "accuracy"}
    if weights == "average":
        names = {"val_loss_average": "loss"}
    first = next(iter(names))
    records = [r for r in read_metrics(run) if is_number(r.get(first)) and r["step"] <= step]
    if not records:
        return {}
    last = records[-1]
    return {
        f"validation {name} (step {last['step']:,})": f"{last[key]:.4f}"
        for key, name in names.items()
        if is_number(last.get(key))
    }


def machine(environment: Mapping[str, Any]) -> dict[str, str]:
    """Where and with what the run was started."""
    known = flatten(environment)
    commit = f" (commit {known['commit']})" if known.get("commit") else ""
    rows = {
        "device": known.get("device"),
        "torch": known.get("packages.torch"),
        "unitsphere": f"{known.get('unitsphere', __version__)}{commit}",
        "started": known.get("started"),
    }
    return {name: str(value) for name, value in rows.items() if value}
