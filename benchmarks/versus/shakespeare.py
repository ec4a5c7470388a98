"""nanoGPT's CPU example, character-level Shakespeare, against ours: time to its loss of 1.88.

    git clone https://github.com/karpathy/nanoGPT && pip install numpy torch    # in its own venv
    python benchmarks/versus/shakespeare.py --nanogpt nanoGPT --text tinyshakespeare.txt \
        --peer_python nanoGPT/.venv/bin/python --core 1 --repeats 2

nanoGPT runs the command of its README, with nothing changed. Ours is shakespeare.toml: the same
characters, split and context, layers and width, and a validation on as many characters. Both take
turns on one thread. Times are from the start of the process. Afterwards, outside the clock, both
models are scored on the whole validation split. Each run is written to OUT at once and not
repeated by the next call; ours with --steps or --lr is a run of its own. The table of all of them
is printed at the end, and --json writes their figures to one file.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from process import Score, Trace, first_at, traced

from unitsphere.config import read_json
from unitsphere.files import write_text
from unitsphere.report.render.text import markdown_table
from unitsphere.training.recipes import load_recipe

HERE = Path(__file__).parent
TARGET = 1.88
TRAIN = 0.9
"""The share of the text that both train on, from its beginning, as nanoGPT splits it."""
NANOGPT = (
    "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 "
    "--log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 "
    "--max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)
"""The line of nanoGPT's README."""


def split_text(text: Path, out: Path) -> None:
    """Write the training and the validation characters as two files for ours."""
    characters = text.read_text()
    cut = int(TRAIN * len(characters))
    write_text(out / "train.txt", characters[:cut])
    write_text(out / "val.txt", characters[cut:])


def prepare_peer(options: argparse.Namespace) -> None:
    """Give nanoGPT the text, and let it make its own files."""
    folder = options.nanogpt / "data" / "shakespeare_char"
    if not (folder / "val.bin").exists():
        shutil.copyfile(options.text, folder / "input.txt")
        subprocess.run([options.peer_python, "prepare.py"], cwd=folder, check=True)


def nanogpt_scores(trace: Trace) -> list[Score]:
    """Its own validations: "step 250: train loss 2.4, val loss 2.5"."""
    found = []
    for line in trace.lines:
        match = re.search(r"^step \d+: train loss [\d.]+, val loss ([\d.]+)", line.text)
        if match:
            found.append(Score(line.wall, line.cpu, float(match[1])))
    return found


def our_scores(trace: Trace, run: Path) -> list[Score]:
    """The validation at the end of the run, known when the process ends."""
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return [Score(trace.wall, trace.cpu, last["val_loss"])]


def run_nanogpt(options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """One run of nanoGPT's line."""
    command = [options.peer_python, *NANOGPT.split(), f"--out_dir={out / 'checkpoint'}"]
    trace = traced(command, options.nanogpt, options.core, out / "log")
    score = [options.peer_python, str(HERE / "nanogpt_score.py"), str(out / "checkpoint")]
    score.append("data/shakespeare_char/val.bin")
    said = subprocess.run(score, cwd=options.nanogpt, check=True, capture_output=True, text=True)
    return result(trace, nanogpt_scores(trace), float(said.stdout))


def run_ours(options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """One run of ours."""
    unitsphere = [sys.executable, "-m", "unitsphere"]
    data = [f"--data.{name}={options.out / value}" for name, value in SOURCES.items()]
    run = out / "run"
    train = [*unitsphere, "train", str(HERE / "shakespeare.toml"), *data, "--out", str(run)]
    given = {"train.steps": options.steps, "optim.lr": options.lr}
    train += [f"--{name}={value}" for name, value in given.items() if value]
    trace = traced(train, Path.cwd(), options.core, out / "log")
    score = [*unitsphere, "eval", str(run), "--json"]
    said = subprocess.run(score, check=True, capture_output=True, text=True)
    recipe = load_recipe(str(HERE / "shakespeare.toml"))
    own = {"steps": options.steps or recipe.train.steps, "lr": options.lr or recipe.optim.lr}
    return own | result(trace, our_scores(trace, run), json.loads(said.stdout)["loss"])


SOURCES = {"source": "train.txt", "validation": "val.txt", "cache": "cache"}
CONTENDERS = {"nanogpt": run_nanogpt, "ours": run_ours}


def result(trace: Trace, scores: Sequence[Score], whole: float) -> dict[str, Any]:
    """A run's figures: when the target was reached, the last loss, and that of the whole split."""
    first = first_at(scores, TARGET)
    return {
        "wall": trace.wall,
        "cpu": trace.cpu,
        "to_target": asdict(first) if first else None,
        "last": asdict(scores[-1]),
        "whole_split": whole,
        "scores": [asdict(score) for score in scores],
    }


def label(name: str, options: argparse.Namespace) -> str:
    """A contender's name, and for ours the steps and the rate that are not its recipe's."""
    given = [options.steps, options.lr] if name == "ours" else []
    return "-".join([name, *(f"{value:g}" for value in given if value)])


def all_runs(out: Path) -> dict[str, dict[str, Any]]:
    """The figures of every run so far, by label and number."""
    return {path.stem: read_json(path) for path in sorted(out.glob("*-*.json"))}


def table(found: Mapping[str, dict[str, Any]]) -> str:
    """A row for each contender, nanoGPT first: medians over its runs."""
    rows = []
    for name in sorted({run.rpartition("-")[0] for run in found}):
        runs = [run for key, run in found.items() if key.rpartition("-")[0] == name]
        reached = [run["to_target"] for run in runs]
        to = ["not reached"] * 2
        if all(reached):
            to = [f"{median([x[clock] for x in reached]):.0f}" for clock in ("cpu", "wall")]
        ends = [f"{median([run[clock] for run in runs]):.0f}" for clock in ("cpu", "wall")]
        losses = [median([run["last"]["loss"] for run in runs])]
        losses.append(median([run["whole_split"] for run in runs]))
        rows.append([name, str(len(runs)), *to, *ends, *(f"{loss:.3f}" for loss in losses)])
    columns = ["", "runs", f"CPU s to {TARGET}", "wall s", "CPU s in all", "wall s in all"]
    return markdown_table([*columns, "last loss", "whole split"], rows)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nanogpt", type=Path, required=True, help="a clone of nanoGPT")
    parser.add_argument("--text", type=Path, required=True, help="tinyshakespeare, 1,115,394 bytes")
    parser.add_argument("--peer_python", default=sys.executable, help="that of nanoGPT's venv")
    parser.add_argument("--out", type=Path, default=Path("runs/versus-shakespeare"))
    parser.add_argument("--core", type=int, help="the core that both run on")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--steps", type=int, help="of ours, in place of the recipe's")
    parser.add_argument("--lr", type=float, help="of ours, in place of the recipe's")
    parser.add_argument("--json", type=Path, help="a file for the figures of all runs in OUT")
    parser.add_argument("--only", choices=[*CONTENDERS])
    options = parser.parse_args(argv)
    options.nanogpt, options.text = options.nanogpt.resolve(), options.text.resolve()
    options.out = options.out.resolve()
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, in turns, and print the table."""
    options = parse(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    split_text(options.text, options.out)
    if options.only != "ours":
        prepare_peer(options)
    for number in range(options.repeats):
        for name, run in CONTENDERS.items():
            run_name = f"{label(name, options)}-{number}"
            path = options.out / f"{run_name}.json"
            if path.exists() or options.only not in (None, name):
                continue
            folder = options.out / run_name
            folder.mkdir(exist_ok=True)
            found = run(options, folder)
            write_text(path, json.dumps(found, indent=1) + "\n")
            print(f"{path}: {found['last']}", file=sys.stderr, flush=True)
    found = all_runs(options.out)
    if options.json is not None:
        write_text(options.json, json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
