"""A language model on Wikipedia: ours against nanoGPT, nanochat, litgpt and the HF Trainer.

    python benchmarks/versus/wiki.py --nanogpt nanoGPT --nanochat nanochat \
        --peer_python peers/bin/python --train wiki_train.jsonl --validation wiki_dev.jsonl \
        --core 1 --minutes 5 15 30

Every contender gets the same tokens (one BPE, prepared by us), one thread and, within 2%, as many
parameters. A contender is first run for a few steps: from its start-up and its time per step
follows how many steps fill the minutes, so that its schedule ends with them. It runs at its
authors' rate, and at the best of its `factors` times that, found by whole runs of the shortest
budget: a rate counts as the best once half of it and twice of it are worse. Scores are of the whole
validation split, outside the clock. Each run is written to OUT at once and not repeated by the next
call; the table is printed at the end. litgpt needs an environment of its own (with
torchmetrics and tensorboard), so it takes a call of its own:
--contenders litgpt, with that --peer_python.
"""

import argparse
import json
import math
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from process import Trace, traced

from unitsphere.config import read_json
from unitsphere.data.prepare import prepare
from unitsphere.data.shards import Shards
from unitsphere.files import write_bytes, write_text
from unitsphere.report.render.markdown import markdown_table

HERE = Path(__file__).parent
CONTEXT, TOKENIZER = 256, "bpe:1024"
WIDTH = 152
"""Of nanoGPT and GPT-2, whose MLP has two matrices where ours has three; ours has 128."""
LITGPT_WIDTH = 144
"""Its head is not tied, as ours is not."""
CLONED = ("nanogpt", "nanochat")
"""Peers that run from a clone of their repository."""
PROBE = (20, 120)
"""Steps of the two runs whose difference is the time per step."""
KEEP_MEMORY = ("env", f"MALLOC_TRIM_THRESHOLD_={2**40}", f"MALLOC_MMAP_THRESHOLD_={2**25}")
"""Settings of glibc, for all: what tensors free stays in the process, as ours sets for itself."""
TOLERANCE = 0.02
"""By how much a contender's parameters may differ from ours."""


@dataclass(frozen=True)
class Contender:
    """How to train one: its authors' rate, its command, its parameters and its whole score.

    factors: of that rate, the first that are tried. train(options, steps, rate, folder) gives a
    command and where it runs.
    """

    rate: float
    factors: tuple[float, ...]
    train: Callable[[argparse.Namespace, int, float, Path], tuple[list[str], Path]]
    parameters: Callable[[Trace, Path], int]
    score: Callable[[argparse.Namespace, Trace, Path], float]


def run_nanogpt(
    options: argparse.Namespace, steps: int, rate: float, out: Path
) -> tuple[list[str], Path]:
    """nanoGPT with 4 layers; all that is not sizes, data and length is train.py's."""
    given = {
        "device": "cpu", "compile": False, "dtype": "float32", "dataset": options.out / "tokens",
        "out_dir": out / "checkpoint", "block_size": CONTEXT, "batch_size": 8,
        "gradient_accumulation_steps": 1, "n_layer": 4, "n_head": 2, "n_embd": WIDTH,
        "max_iters": steps, "lr_decay_iters": steps, "warmup_iters": min(100, steps // 10),
        "learning_rate": rate, "min_lr": rate / 10, "eval_interval": steps, "eval_iters": 1,
    }  # fmt: skip
    words = [f"--{name}={value}" for name, value in given.items()]
    return [options.peer_python, "train.py", *words], options.nanogpt


def nanogpt_parameters(trace: Trace, out: Path) -> int:
    """As it prints them, with the positions that it leaves out."""
    said = (re.match(r"number of parameters: ([\d.]+)M", line.text) for line in trace.lines)
    count = next(match for match in said if match)
    return round(1e6 * float(count[1])) + CONTEXT * WIDTH


def nanogpt_score(options: argparse.Namespace, trace: Trace, out: Path) -> float:
    """Of its last checkpoint."""
    command = [options.peer_python, str(HERE / "nanogpt_score.py"), str(out / "checkpoint")]
    command.append(str(options.out / "tokens" / "val.bin"))
    return float(subprocess.run(command, cwd=options.nanogpt, **PRINTED).stdout)


def nanochat_peer(options: argparse.Namespace, out: Path) -> list[str]:
    """nanochat_peer.py on the tokens; without more words it scores."""
    script, tokens = HERE / "nanochat_peer.py", options.out / "tokens"
    return [options.peer_python, str(script), str(tokens), str(CONTEXT), str(out)]


def run_nanochat(
    options: argparse.Namespace, steps: int, rate: float, out: Path
) -> tuple[list[str], Path]:
    """nanochat's base_train, which compiles."""
    first, own = ([*nanochat_peer(options, out), str(n), str(rate)] for n in (1, steps))
    return compiled(options, "nanochat", options.nanochat, first, own), options.nanochat


def compiled(
    options: argparse.Namespace, name: str, where: Path, first: list[str], own: list[str]
) -> list[str]:
    """The command `own` with the cache of its compiler; `first` fills it once, not timed."""
    cache = options.out / f"compiled-{name}"
    named = ["env", f"TORCHINDUCTOR_CACHE_DIR={cache}"]
    if not cache.exists():
        subprocess.run([*named, *first], cwd=where, check=True, stdout=sys.stderr)
    return [*named, *own]


def nanochat_parameters(trace: Trace, out: Path) -> int:
    """As it prints them."""
    said = (re.match(r"total\s*: ([\d,]+)", line.text) for line in trace.lines)
    return int(next(match for match in said if match)[1].replace(",", ""))


def nanochat_score(options: argparse.Namespace, trace: Trace, out: Path) -> float:
    """Of its last checkpoint."""
    command = nanochat_peer(options, out)
    return float(subprocess.run(command, cwd=options.nanochat, **PRINTED).stdout)


def litgpt_peer(options: argparse.Namespace, out: Path) -> list[str]:
    """litgpt_peer.py on the tokens; without more words it scores."""
    words = [HERE / "litgpt_peer.py", options.out / "tokens", CONTEXT, out, LITGPT_WIDTH]
    return [options.peer_python, *map(str, words)]


def run_litgpt(
    options: argparse.Namespace, steps: int, rate: float, out: Path
) -> tuple[list[str], Path]:
    """litgpt's pretraining, which compiles."""
    first, own = ([*litgpt_peer(options, out), str(n), str(rate)] for n in (1, steps))
    return compiled(options, "litgpt", Path.cwd(), first, own), Path.cwd()


def litgpt_parameters(trace: Trace, out: Path) -> int:
    """As it prints them."""
    said = (re.match(r"Total parameters: ([\d,]+)", line.text) for line in trace.lines)
    return int(next(match for match in said if match)[1].replace(",", ""))


def litgpt_score(options: argparse.Namespace, trace: Trace, out: Path) -> float:
    """Of the weights that it saved."""
    return float(subprocess.run(litgpt_peer(options, out), **PRINTED).stdout)


def run_trainer(
    options: argparse.Namespace, steps: int, rate: float, out: Path
) -> tuple[list[str], Path]:
    """transformers' GPT-2 of the same sizes by its Trainer (hf_trainer.py)."""
    words = [options.out / "tokens", CONTEXT, out / "model", WIDTH, steps, rate]
    return [options.peer_python, str(HERE / "hf_trainer.py"), *map(str, words)], Path.cwd()


def trainer_parameters(trace: Trace, out: Path) -> int:
    """As hf_trainer.py prints them."""
    return int(next(x.text for x in trace.lines if x.text.startswith("parameters")).split()[1])


def trainer_score(options: argparse.Namespace, trace: Trace, out: Path) -> float:
    """Of the model that it saved."""
    command = [options.peer_python, str(HERE / "hf_trainer.py"), str(options.out / "tokens")]
    return float(subprocess.run([*command, str(CONTEXT), str(out / "model")], **PRINTED).stdout)


def run_ours(
    recipe: str, options: argparse.Namespace, steps: int, rate: float, out: Path
) -> tuple[list[str], Path]:
    """A recipe whose tuned `rate` the law takes to so many steps.

    Compiled, and in bf16 where the processor has such instructions.
    """
    given = {
        "data.source": options.out / "shards", "data.context": CONTEXT,
        "optim.transfer": "nu", "optim.base.lr": rate,
        "train.precision": "auto", "train.compile": True, "train.save_every": 0,
        "train.eval_every": 0, "train.eval_tokens": 16384,
    }  # fmt: skip
    words = [f"--{name}={value}" for name, value in given.items()]
    unitsphere = [sys.executable, "-m", "unitsphere", "train", recipe, *words]
    first, own = (
        [*unitsphere, f"--train.steps={n}", f"--out={out / folder}"]
        for n, folder in ((1, "first"), (steps, "run"))
    )
    return compiled(options, f"ours-{Path(recipe).stem}", Path.cwd(), first, own), Path.cwd()


def our_parameters(trace: Trace, out: Path) -> int:
    """Of the run's own config."""
    command = [sys.executable, "-m", "unitsphere", "params", str(out / "run"), "--json"]
    return json.loads(subprocess.run(command, **PRINTED).stdout)[0]["parameters"]


def our_score(options: argparse.Namespace, trace: Trace, out: Path) -> float:
    """`unitsphere eval`."""
    command = [sys.executable, "-m", "unitsphere", "eval", str(out / "run"), "--json"]
    return json.loads(subprocess.run(command, **PRINTED).stdout)["loss"]


def ours(rate: float, recipe: str) -> Contender:
    """A recipe, with its `optim.base.lr`."""
    return Contender(rate, (0.5, 1, 2), partial(run_ours, recipe), our_parameters, our_score)


OURS = "gpt-plus-muon"
PRINTED: Any = {"check": True, "capture_output": True, "text": True}
CONTENDERS = {
    "nanogpt": Contender(6e-4, (1, 2, 4), run_nanogpt, nanogpt_parameters, nanogpt_score),
    "nanochat": Contender(2e-2, (0.5, 1, 2), run_nanochat, nanochat_parameters, nanochat_score),
    "litgpt": Contender(6e-4, (1, 2, 4), run_litgpt, litgpt_parameters, litgpt_score),
    "trainer": Contender(5e-5, (1, 8, 32), run_trainer, trainer_parameters, trainer_score),
    OURS: ours(4e-3, "quickstart/gpt-plus-muon"),
    "gpt-plus-values": ours(4e-3, str(HERE / "gpt-plus-values.toml")),
    "gpt-plus-shift": ours(4e-3, str(HERE / "gpt-plus-shift.toml")),
    "gpt-plus-offset": ours(4e-3, str(HERE / "gpt-plus-offset.toml")),
    "gpt-plus-peri": ours(4e-3, str(HERE / "gpt-plus-peri.toml")),
    "best": ours(1.4e-2, "quickstart/best"),
    "best-offset": ours(1.4e-2, str(HERE / "best-offset.toml")),
}


def prepare_tokens(options: argparse.Namespace) -> float:
    """Write shards for ours and uint16 files for the peers; returns validation tokens per byte."""
    shards, flat = options.out / "shards", options.out / "tokens"
    prepare(str(options.train), TOKENIZER, shards, validation=str(options.validation))
    flat.mkdir(exist_ok=True)
    for split in ("train", "val"):
        tokens = Shards.open(shards, split)
        if not (flat / f"{split}.bin").exists():
            write_bytes(flat / f"{split}.bin", tokens[:].astype(np.uint16).tobytes())
    meta = {"vocab_size": tokens.vocab_size}
    write_bytes(flat / "meta.pkl", pickle.dumps(meta))  # the form that nanoGPT reads
    write_text(flat / "meta.json", json.dumps(meta))
    return tokens.n_tokens / tokens.n_bytes


def measured(name: str, options: argparse.Namespace, steps: int, rate: float) -> dict[str, Any]:
    """One run, or what an earlier call found."""
    label = f"{name}-{steps}-{rate:.3g}"
    path, folder = options.out / f"{label}.json", options.out / label
    if not path.exists():
        contender = CONTENDERS[name]
        folder.mkdir(exist_ok=True)
        command, where = contender.train(options, steps, rate, folder)
        trace = traced([*KEEP_MEMORY, *command], where, options.core, folder / "log")
        found = {
            "steps": steps, "rate": rate, "cpu": trace.cpu, "wall": trace.wall,
            "parameters": contender.parameters(trace, folder),
            "loss": contender.score(options, trace, folder),
        }  # fmt: skip
        write_text(path, json.dumps(found, indent=1) + "\n")
        print(f"{path}: {found['loss']:.4f}", file=sys.stderr, flush=True)
    return read_json(path)


def steps_for(name: str, options: argparse.Namespace, minutes: float) -> int:
    """How many steps fill the minutes of processor time, start-up included."""
    few, more = (measured(name, options, steps, CONTENDERS[name].rate) for steps in PROBE)
    per_step = (more["cpu"] - few["cpu"]) / (PROBE[1] - PROBE[0])
    start_up = few["cpu"] - PROBE[0] * per_step
    steps = int((60 * minutes - start_up) / per_step)
    if steps < 1:
        raise SystemExit(f"wiki.py: {minutes:g} minutes are too few for a step of {name}")
    return steps


def tuned_rate(name: str, options: argparse.Namespace) -> float:
    """The best rate at the shortest budget, with a worse one on either side."""
    steps = steps_for(name, options, options.minutes[0])
    rates = {factor * CONTENDERS[name].rate for factor in CONTENDERS[name].factors}
    while True:
        best = min(rates, key=lambda rate: measured(name, options, steps, rate)["loss"])
        missing = {best / 2, best * 2} - rates
        if not missing:
            return best
        rates |= missing


def check_sizes(options: argparse.Namespace) -> None:
    """Refuse contenders whose numbers of parameters differ from ours by more than TOLERANCE."""
    counts = {
        name: measured(name, options, PROBE[0], CONTENDERS[name].rate)["parameters"]
        for name in dict.fromkeys([OURS, *options.contenders])
    }
    for name, count in counts.items():
        if abs(count / counts[OURS] - 1) > TOLERANCE:
            raise SystemExit(f"wiki.py: {name} has {count:,} parameters, ours {counts[OURS]:,}")


def rows_of(name: str, options: argparse.Namespace, tokens_per_byte: float) -> list[list[str]]:
    """A row for each of a contender's two rates: bits per byte by budget."""
    tuned = tuned_rate(name, options)
    rows = []
    for kind, rate in (("as shipped", CONTENDERS[name].rate), ("tuned", tuned)):
        runs = [
            measured(name, options, steps_for(name, options, minutes), rate)
            for minutes in options.minutes
        ]
        bits = [f"{run['loss'] * tokens_per_byte / math.log(2):.4f}" for run in runs]
        rows.append([name, kind, f"{rate:.3g}", f"{runs[0]['parameters']:,}", *bits])
    return rows


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for peer in CLONED:
        parser.add_argument(f"--{peer}", type=Path, help=f"a clone of {peer}")
    parser.add_argument("--peer_python", default=sys.executable, help="of the peers' environment")
    parser.add_argument("--train", type=Path, required=True, help="JSONL with a key text")
    parser.add_argument("--validation", type=Path, required=True)
    parser.add_argument("--minutes", type=float, nargs="+", default=[5, 15, 30])
    together = [name for name in CONTENDERS if name != "litgpt"]
    parser.add_argument("--contenders", nargs="+", choices=[*CONTENDERS], default=together)
    parser.add_argument("--out", type=Path, default=Path("runs/versus-wiki"))
    parser.add_argument("--core", type=int, help="the core that all run on")
    options = parser.parse_args(argv)
    for peer in set(CLONED) & set(options.contenders):
        if getattr(options, peer) is None:
            parser.error(f"contender {peer}: give --{peer}, a clone of it")
        setattr(options, peer, getattr(options, peer).resolve())
    options.out = options.out.resolve()
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, and print the table."""
    options = parse(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    tokens_per_byte = prepare_tokens(options)
    check_sizes(options)
    rows = [row for name in options.contenders for row in rows_of(name, options, tokens_per_byte)]
    columns = ["", "rate", "", "parameters", *(f"{m:g} minutes" for m in options.minutes)]
    print(markdown_table(columns, rows))


if __name__ == "__main__":
    main()
