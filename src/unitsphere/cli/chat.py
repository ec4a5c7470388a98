"""`unitsphere chat`: a text that a person and a model write in turns."""

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from unitsphere.cli.output import print_piece
from unitsphere.cli.parse import parse
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.training.load import LoadedRun

HELP = (
    "an empty line: the model continues\n/new: start another text   /undo: remove the last turn   "
    "/show: the text so far\n/quit or Ctrl-D: the end   Ctrl-C: stop the model"
)
TAIL = 60
"""Characters of a text's end that say which text it is."""


@dataclasses.dataclass(frozen=True)
class Chat:
    """Write a text in turns with the model of a run.

    You write a line and the model continues it, then it is your turn again. The
    model has learned to continue texts, not to answer. Ctrl-C stops it.

    example: unitsphere chat runs/quickstart/ngpt --stop "\\n\\n"
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """run folder"""
    max_tokens: int = 128
    """most tokens of a turn"""
    temperature: float = 0.8
    """0: always the likeliest token; 1: the model's own distribution"""
    top_k: int | None = None
    """draw from the k likeliest tokens only"""
    top_p: float | None = None
    """draw from the likeliest tokens that together have this probability"""
    min_p: float | None = None
    """draw only from tokens with at least this share of the likeliest token's probability"""
    repetition_penalty: float = 1.0
    """above 1: tokens that are already in the text become less likely"""
    stop: Annotated[UseAppendAction[list[str]], arg(metavar="S")] = dataclasses.field(
        default_factory=list
    )
    """end a turn before this text (\\n: a line's end); may be given several times"""
    seed: int = 0
    """the answer to line i (from 0, commands included) draws with seed + i"""
    weights: Literal["last", "average"] = "last"
    """last: of the last step; average: averaged as the run's optim.average says, and projected"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""


def run(argv: list[str]) -> int:
    """Take turns until the input ends."""
    args = parse(Chat, argv, "chat")
    from unitsphere.inference.decode import check_length, check_sampling
    from unitsphere.inference.generate import check_stops, seeds_of
    from unitsphere.models.plans import fold_
    from unitsphere.training.load import load_run

    check_sampling(args.temperature, args.top_k, args.top_p, args.min_p, args.repetition_penalty)
    check_length(args.max_tokens)
    check_stops(args.stop)
    seeds_of(args.seed, 1)
    loaded = load_run(args.run, args.device, weights=args.weights)
    if loaded.config.objective != "clm":
        raise UserError(
            f"chat needs a run with objective clm, and {args.run} has {loaded.config.objective}"
        )
    fold_(loaded.model)
    print(f"{args.run}\n{HELP}", file=sys.stderr)
    texts = [""]  # before each turn, and now
    for number, line in enumerate(lines()):
        if line == "/quit":
            break
        if line.startswith("/"):
            texts = command(line, texts)
        else:
            texts.append(turn(args, loaded, texts[-1] + line, number))
    return 0


def command(line: str, texts: list[str]) -> list[str]:
    """Apply a line that begins with / to the texts before each turn, and say what it did."""
    if line == "/new":
        texts = [""]
    elif line == "/undo":
        texts = texts[:-1] or [""]
    elif line == "/show":
        print_piece(texts[-1] + "\n")
        return texts
    else:
        print(HELP if line == "/help" else f"unknown: {line}\n{HELP}", file=sys.stderr)
        return texts
    end = " ".join(texts[-1].split())[-TAIL:]
    print(f"the text ends: …{end}" if end else "a new text", file=sys.stderr)
    return texts


def lines() -> Iterator[str]:
    """What the person writes, line by line."""
    terminal = sys.stdin.isatty()
    if terminal:
        importlib.import_module("readline")  # input() then edits lines
    while True:
        try:
            line = input("\n> " if terminal else "")
            line.encode()  # in some locales Python reads undecodable bytes as surrogates
        except (EOFError, KeyboardInterrupt):
            return
        except UnicodeError as error:
            raise UserError("standard input is not valid UTF-8: check its encoding") from error
        yield line


def turn(args: Chat, loaded: "LoadedRun", text: str, number: int) -> str:
    """The text with the model's continuation, which is printed while it is written."""
    from unitsphere.inference.generate import generate_text

    written: list[str] = []

    def show(row: int, piece: str) -> None:
        written.append(piece)
        print_piece(piece)

    try:
        generate_text(
            loaded.model,
            loaded.tokenizer,
            [fitting(loaded, text, args.max_tokens)],
            args.max_tokens,
            args.temperature,
            args.top_k,
            args.top_p,
            args.seed + number,
            min_p=args.min_p,
            repetition_penalty=args.repetition_penalty,
            stops=[stop.replace("\\n", "\n") for stop in args.stop],
            show=show,
        )
    except KeyboardInterrupt:
        print_piece(" …")
    print_piece("\n")
    return text + "".join(written)


def fitting(loaded: "LoadedRun", text: str, max_tokens: int) -> str:
    """The end of the text that leaves room for a turn in what the model was trained on."""
    from unitsphere.data.tokenizer import UNFINISHED

    room = max(loaded.config.data.context - max_tokens - 1, loaded.config.data.context // 2)
    ids = loaded.tokenizer.encode(text)
    if len(ids) <= room:
        return text
    # The first token may be the end of a character; encoded again, what it became is longer.
    return loaded.tokenizer.decode(ids[-room:]).lstrip(UNFINISHED)
