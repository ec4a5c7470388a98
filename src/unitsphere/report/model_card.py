"""The README.md of an exported model: what its run folder says, and nothing else."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unitsphere import __version__
from unitsphere.config import flatten, read_json, to_dict
from unitsphere.errors import UserError
from unitsphere.inference.hf.export import Exported
from unitsphere.models.registry import architecture
from unitsphere.training import checkpoint
from unitsphere.training.config import RunConfig
from unitsphere.training.folder import ENVIRONMENT
from unitsphere.training.log import read_metrics

KINDS = {
    "clm": ("A causal language model", "text-generation", "AutoModelForCausalLM"),
    "mlm": ("A masked language model", "fill-mask", "AutoModelForMaskedLM"),
}

CARD = """\
---
library_name: transformers
pipeline_tag: {task}
tags:
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
part of them, so they are no unit vectors.

## Use

```python
from transformers import AutoTokenizer, {auto}

tokenizer = AutoTokenizer.from_pretrained("{name}", trust_remote_code=True)
model = {auto}.from_pretrained("{name}", trust_remote_code=True)
```

`trust_remote_code` runs `modeling_unitsphere.py` of this folder, which imports PyTorch and
transformers only. The tokenizer puts the separator before a text, as in training.

## Training

```json
{config}
```
"""


def model_card(run: Path, config: RunConfig, trained: int, made: Exported) -> str:
    """The card of the model exported from the run folder `run`; `trained` counts its parameters."""
    kind, task, auto = KINDS[config.objective]
    title = sys.modules[architecture(config.architecture).model.__module__].__doc__ or ""
    rows = figures(run, config, trained, made)
    return CARD.format(
        task=task,
        architecture=config.architecture,
        name=Path(made.out).name,
        kind=kind,
        title=title.partition("\n")[0],
        auto=auto,
        figures="\n".join(f"| {name} | {value} |" for name, value in rows.items()),
        config=json.dumps(to_dict(config), indent=2),
    )


def figures(run: Path, config: RunConfig, trained: int, made: Exported) -> dict[str, str]:
    """What the table says; a figure that the run folder does not hold is left out."""
    folder, _ = checkpoint.newest(run / "checkpoints")
    if folder is None:
        raise UserError(f"{run} has no complete checkpoint: train it first")
    state = checkpoint.load_state(folder)
    environment = read_json(run / ENVIRONMENT) if (run / ENVIRONMENT).is_file() else {}
    return {
        "parameters, trained": f"{trained:,}",
        "parameters, in this folder": f"{made.parameters:,}",
        "training tokens": f"{state.tokens:,}",
        "steps": f"{state.step:,} of {config.train.steps:,}",
        "training time": f"{state.seconds:,.0f} s",
        **validation(run, state.step),
        "validated on": f"{config.train.eval_tokens:,} tokens, evenly spread over the split"
        if config.train.eval_tokens
        else "the whole split",
        "context": f"{config.data.context:,} tokens",
        "data": config.data.source,
        **machine(environment),
        "largest difference to the run's own logits": f"{made.difference:.1e} "
        f"(of logits up to {made.largest_logit:.1f}, {made.compared} tokens, fp32)",
    }


def validation(run: Path, step: int) -> dict[str, str]:
    """The last validation up to a step; empty if there was none."""
    records = [r for r in read_metrics(run) if "val_loss" in r and r["step"] <= step]
    if not records:
        return {}
    last = records[-1]
    names = {"val_loss": "loss", "val_bits_per_byte": "bits per byte", "val_accuracy": "accuracy"}
    return {
        f"validation {name} (step {last['step']:,})": f"{last[key]:.4f}"
        for key, name in names.items()
        if key in last
    }


def machine(environment: Mapping[str, Any]) -> dict[str, str]:
    """Where and with what the run was begun."""
    known = flatten(environment)
    rows = {
        "device": known.get("device"),
        "torch": known.get("packages.torch"),
        "unitsphere": " ".join(filter(None, (known.get("unitsphere", __version__), _at(known)))),
        "begun": known.get("started"),
    }
    return {name: str(value) for name, value in rows.items() if value}


def _at(known: Mapping[str, Any]) -> str | None:
    return f"(commit {known['commit']})" if known.get("commit") else None
