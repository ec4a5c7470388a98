"""Run folders with made-up records, as training writes them: for pages, without any training."""

import dataclasses
import json
import math
from pathlib import Path

from unitsphere.config import to_dict
from unitsphere.training.log import HEADER
from unitsphere.training.recipes import load_recipe

NASTY = "</script><img src=x onerror=alert(1)>"
"""What no page may take for markup."""


def make_run(folder: Path, recipe: str, steps: int = 200, until: int | None = None, **more) -> Path:
    """A run folder of `steps` steps, of which `until` are done; `more` goes into its command."""
    config = load_recipe(recipe)
    config = dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, steps=steps),
        model=dataclasses.replace(config.model, vocab_size=1024),
    )
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(to_dict(config)))
    command = ["/somewhere/unitsphere", "train", recipe, *(f"--{k}={v}" for k, v in more.items())]
    environment = {"command": command, "commit": "abc", "packages": {"torch": "2.13.0"}}
    (folder / "environment.json").write_text(json.dumps(environment))
    done = steps if until is None else until
    gain = 0.1 * (10 - len(folder.name))
    lines = [json.dumps(record(step, gain)) for step in range(1, done + 1)]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    texts = (f"{HEADER}{step}\ndef f{step}():\n    pass\n\n" for step in range(50, done + 1, 50))
    (folder / "samples.txt").write_text("".join(texts))
    return folder


def record(step: int, gain: float) -> dict:
    """A record that falls as losses do, validated each 20th step."""
    loss = 2 + 5 * step**-0.3 - gain + 0.05 * math.sin(7 * step)
    found = {"step": step, "tokens": 2048 * step, "time": 0.4 * step, "loss": loss}
    found |= {"grad_norm": 1 + 1 / step, "lr": 1e-2 * (1 - step / 400), "tokens_per_second": 5000.0}
    if step % 20 == 0:
        found |= {"val_loss": loss + 0.1, "val_bits_per_byte": (loss + 0.1) / 1.7}
    return found


def make_quickstart(folder: Path, nasty: str = "") -> Path:
    """A finished quickstart of two arms; `nasty` stands wherever a user's words may."""
    rows = []
    for name in ("gpt-plus", "ngpt"):
        run = make_run(
            folder / name, f"quickstart/{name}", **({"data.source": nasty} if nasty else {})
        )
        if nasty:
            (run / "samples.txt").write_text(f"{HEADER}200\n{nasty}\n\n")
            config = json.loads((run / "config.json").read_text())
            config["data"]["source"] = nasty + name
            (run / "config.json").write_text(json.dumps(config))
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        rows.append(
            {
                "name": name,
                "recipe": f"quickstart/{name}",
                "run": str(run),
                "parameters": 1_300_000 + len(rows),
                "lr": 0.01,
                "steps": 200,
                "tokens": last["tokens"],
                "bits_per_byte": last["val_bits_per_byte"],
                "steps_to_baseline": 180,
                "ms_per_step": 400.0 - len(rows),
                "seconds": 80.0,
            }
        )
    failed = [{"name": "angpt", "error": nasty or "the disk is full", "log": "angpt.log"}]
    summary = {"baseline": "gpt-plus", "arms": rows, "failed": failed, "samples": {}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder
