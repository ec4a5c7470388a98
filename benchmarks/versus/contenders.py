"""How ours and each peer are trained and scored on the tokens of wiki.py."""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from process import Trace

HERE = Path(__file__).parent
CONTEXT = 256
WIDTH = 152
"""Of nanoGPT and GPT-2, whose MLP has two matrices where ours has three; ours has 128."""
LITGPT_WIDTH = 144
"""Its head is not tied, as ours is not."""


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
    seed = [] if options.seed is None else [f"--seed={options.seed}"]
    first, own = ([*nanochat_peer(options, out), str(n), str(rate), *seed] for n in (1, steps))
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


def printed_parameters(pattern: str, trace: Trace, out: Path) -> int:
    """As a peer prints them: the number in the first line that begins with the pattern."""
    said = (re.match(pattern, line.text) for line in trace.lines)
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


def litgpt_score(options: argparse.Namespace, trace: Trace, out: Path) -> float:
    """Of the weights that it saved."""
    return float(subprocess.run(litgpt_peer(options, out), **PRINTED).stdout)


def run_trainer(
    options: argparse.Namespace, steps: int, rate: float, out: Path
) -> tuple[list[str], Path]:
    """transformers' GPT-2 of the same sizes by its Trainer (hf_trainer.py)."""
    words = [options.out / "tokens", CONTEXT, out / "model", WIDTH, steps, rate]
    return [options.peer_python, str(HERE / "hf_trainer.py"), *map(str, words)], Path.cwd()


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
    if options.decay is not None:
        given["optim.weight_decay"] = options.decay
    if options.seed is not None:
        given["train.seed"] = options.seed
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
NANOCHAT_PARAMETERS = partial(printed_parameters, r"total\s*: ([\d,]+)")
LITGPT_PARAMETERS = partial(printed_parameters, r"Total parameters: ([\d,]+)")
TRAINER_PARAMETERS = partial(printed_parameters, r"parameters (\d+)")
PRINTED: Any = {"check": True, "capture_output": True, "text": True}
PEERS = {
    "nanogpt": Contender(6e-4, (1, 2, 4), run_nanogpt, nanogpt_parameters, nanogpt_score),
    "nanochat": Contender(2e-2, (0.5, 1, 2), run_nanochat, NANOCHAT_PARAMETERS, nanochat_score),
    "litgpt": Contender(6e-4, (1, 2, 4), run_litgpt, LITGPT_PARAMETERS, litgpt_score),
    "trainer": Contender(5e-5, (1, 8, 32), run_trainer, TRAINER_PARAMETERS, trainer_score),
}
CONTENDERS = PEERS | {
    OURS: ours(4e-3, "quickstart/gpt-plus-muon"),
    "gpt-plus-values": ours(4e-3, str(HERE / "gpt-plus-values.toml")),
    "gpt-plus-shift": ours(4e-3, str(HERE / "gpt-plus-shift.toml")),
    "gpt-plus-offset": ours(4e-3, str(HERE / "gpt-plus-offset.toml")),
    "gpt-plus-peri": ours(4e-3, str(HERE / "gpt-plus-peri.toml")),
    "gpt-plus-bigrams": ours(4e-3, str(HERE / "gpt-plus-bigrams.toml")),
    "best": ours(1.4e-2, "quickstart/best"),
    "best-offset": ours(1.4e-2, str(HERE / "best-offset.toml")),
}
