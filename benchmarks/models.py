"""The release files: three small trained models as archives, each with its model card.

    .venv/bin/python benchmarks/models.py            # make models

GPT+, nGPT and the best recipe, 1.3 million parameters each, trained to 20 tokens per parameter at
the rates that optim.transfer takes from the recipe's own tuned run: about 12,800 steps, an hour and
a half of one core each. Everything follows from recipe and seed. The same command resumes.

Writes dist/models/NAME.tar.gz (what `unitsphere export` writes; `unitsphere.load` and verbs that
take a run take it), NAME.md (its card) and SHA256SUMS. Settings of `unitsphere train` may follow,
for other data.
"""

import argparse
import hashlib
import shutil
import sys
from pathlib import Path

from unitsphere.cli import main as unitsphere
from unitsphere.cli.params import count
from unitsphere.training.archive import pack

MODELS = {
    "gpt-plus-1m": "quickstart/gpt-plus",
    "ngpt-1m": "quickstart/ngpt",
    "best-1m": "unitsphere/best-1m",
}
TOKENS_PER_PARAMETER = 20


class StoppedError(Exception):
    """A verb ended with this exit code, after its own message."""


def main(argv: list[str] | None = None) -> int:
    """Train, export and pack each model; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=MODELS, help="one model; default: all")
    parser.add_argument("--out", type=Path, default=Path("dist/models"), help="folder to write")
    parser.add_argument("--runs", type=Path, default=Path("runs/models"), help="training runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, help="of each; default: 20 per parameter")
    args, settings = parser.parse_known_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        for name in [args.only] if args.only else MODELS:
            print(release(name, args, settings))
    except StoppedError as stopped:
        return stopped.args[0]
    sums = [f"{digest(path)}  {path.name}\n" for path in sorted(args.out.glob("*.tar.gz"))]
    (args.out / "SHA256SUMS").write_text("".join(sums))
    return 0


def release(name: str, args: argparse.Namespace, settings: list[str]) -> Path:
    """Train or resume a model, and write its archive and its card."""
    recipe, run = MODELS[name], args.runs / name
    tokens = args.tokens or TOKENS_PER_PARAMETER * count(recipe)["parameters"]
    law = ["--optim.transfer", "nu", "--train.tokens", str(tokens)]
    verb("train", recipe, "--out", str(run), *law, "--train.seed", str(args.seed), *settings)
    folder = args.runs / "exported" / name
    shutil.rmtree(folder, ignore_errors=True)
    verb("export", str(run), "--out", str(folder))
    path = args.out / f"{name}.tar.gz"
    pack(folder, path)
    shutil.copyfile(folder / "README.md", args.out / f"{name}.md")
    return path


def verb(*argv: str) -> None:
    """Run a verb in this process; a StoppedError if it did not end well."""
    code = unitsphere(list(argv))
    if code:
        raise StoppedError(code)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
