"""`unitsphere VERB …`: finds the verb, runs it, turns a mistake into one line and an exit status.

Exit status: 0 for success; 1 if a run failed, as by a NaN loss (in a study, where divergence is a
result, if one failed otherwise); 2 for a user's mistake or what the system refuses; 75 for a run
that was stopped and saved its state; 130 for any other interruption.
"""

import importlib
import sys
from collections.abc import Sequence

from unitsphere import __version__
from unitsphere.cli import output
from unitsphere.config import did_you_mean
from unitsphere.errors import Preempted, RunFailed, UserError
from unitsphere.report.render.text import harmless
from unitsphere.studies.core.local import end_with_parent

EXIT_OK, EXIT_RUN_FAILED, EXIT_USER_ERROR, EXIT_PREEMPTED = 0, 1, 2, 75

# verb -> (module with `run(argv) -> exit status`, what it does)
VERBS = {
    "quickstart": ("quickstart", "train five matched models on this computer and compare them"),
    "recipes": ("recipes", "the recipes that can be trained by name, paper by paper"),
    "params": ("params", "exact parameter counts; --show: a recipe resolved"),
    "prepare": ("prepare", "text, JSONL or files -> token shards to train on"),
    "train": ("train", "train a recipe; the same command again resumes"),
    "eval": ("evaluate", "loss, perplexity and bits per byte of a run on any text"),
    "replay": ("replay", "what a training step saw, to explain a jump of the loss"),
    "finetune": ("finetune", "train a run as a classifier: GLUE-format TSV or JSONL"),
    "inspect": ("inspect", "look inside a run: the papers' probes, as figures"),
    "generate": ("generate", "sample text from a run"),
    "compare": ("compare", "arms × token budgets × seeds: who learns more, how much faster"),
    "sweep": ("sweep", "search config keys: grid, random or Optuna"),
    "ablate": ("ablate", "a paper's ablation table, ours compared with the paper's"),
    "context": ("context", "perplexity of runs by context length and position"),
    "lr-ramp": ("lr_ramp", "how high the learning rate climbs before the loss diverges"),
    "ladder": ("ladder", "best batch and rate by size, and scaling laws"),
    "transfer": ("transfer", "how close optim.transfer's rates are to each size's best"),
    "report": ("report", "one HTML page of a run or a study; --serve follows it"),
    "chat": ("chat", "take turns with a run in writing a text"),
    "quantize": ("quantize", "how much the loss rises with int8, int4, FP8, NVFP4 weights"),
    "export": ("export", "write a run as a folder that transformers loads"),
    "serve": ("serve", "serve a run behind an OpenAI-compatible API"),
    "bench": ("bench", "the cost of a step, a token, a kernel, arm against arm"),
    "doctor": ("doctor", "what is installed, what would be used, what is missing"),
}

USAGE = """\
usage: unitsphere VERB …

Train normalized Transformers (nGPT, anGPT, NormFormer) and the GPT baselines
that they are compared with.

verbs:
{verbs}

examples:
  unitsphere quickstart
  unitsphere train quickstart/ngpt --train.steps 200 --out runs/first
  unitsphere generate runs/first --prompt "def main("

unitsphere VERB --help explains a verb; unitsphere --version prints the version."""


def run_line(argv: Sequence[str] | None) -> int:
    """What `unitsphere.cli.main` does, apart from Ctrl-C."""
    if argv is None:
        argv = sys.argv[1:]
        output.secure_streams()
        end_with_parent()
    argv = list(argv)
    try:
        status = _dispatch(argv)
        sys.stdout.flush()
        return status
    except RunFailed as error:
        return _fail(str(error), EXIT_RUN_FAILED)
    except UserError as error:
        return _fail(str(error))
    except Preempted as stopped:
        print(f"unitsphere: {stopped}", file=sys.stderr)
        return EXIT_PREEMPTED
    except OSError as error:
        if isinstance(error, BrokenPipeError) and output.reader_has_left(sys.stdout):
            _drop_output()
            return EXIT_OK  # the reader has all that it needs, as in `… | head`
        _drop_output()
        path = error.filename2 or error.filename  # of a renaming the place that was asked for
        return _fail(f"cannot use {path or 'the output'}: {error.strerror}")


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE.format(verbs="\n".join(f"  {v:<12}{text}" for v, (_, text) in VERBS.items())))
        return EXIT_OK if argv else EXIT_USER_ERROR
    if argv[0] == "--version":
        print(f"unitsphere {__version__}")
        return EXIT_OK
    verb = argv[0]
    if verb not in VERBS:
        kind = "option" if verb.startswith("-") else "verb"
        longer = [name for name in VERBS if verb.startswith(name)]  # "evaluate", "training"
        raise UserError(f"unknown {kind} '{verb}'{did_you_mean(verb, longer or VERBS)}")
    module = importlib.import_module(f"unitsphere.cli.{VERBS[verb][0]}")
    return module.run(argv[1:])


def _drop_output() -> None:
    """Drop what stdout (a pipe without a reader, a full disk) does not accept."""
    try:
        sys.stdout.flush()
    except OSError:
        output.drop(sys.stdout)


def _fail(message: str, status: int = EXIT_USER_ERROR) -> int:
    print(f"unitsphere: error: {harmless(' '.join(message.split()))}", file=sys.stderr)
    return status
