"""`unitsphere generate`: sample text from a run."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from unitsphere.cli.output import print_json, print_piece
from unitsphere.cli.parse import parse
from unitsphere.cli.scores import refuse_pair_options, search_of
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.training.load import LoadedRun

Written = tuple[list[dict[str, Any]], list[str]]
"""What is printed for each prompt: as JSON, and as text."""


@dataclasses.dataclass(frozen=True)
class Generate:
    """Continue prompts with the model of a run.

    Several prompts are continued at once, each as if it were the only one.
    For an encoder-decoder (objective seq2seq) a prompt is a source, and its target
    is written: the likeliest token at each step, or by a beam.

    examples:
      unitsphere generate runs/quickstart/ngpt --prompt "def main("
      unitsphere generate RUN --prompt "import " --prompt "class " --temperature 0
      unitsphere generate RUN --prompt "a source" --beam 4
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """run folder"""
    prompt: Annotated[UseAppendAction[list[str]], arg(metavar="P")] = dataclasses.field(
        default_factory=list
    )
    """text to continue; may be given several times; without it the model starts a document"""
    max_tokens: int = 128
    """most tokens to add to each prompt"""
    temperature: float = 0.8
    """0: always the likeliest token; 1: the model's own distribution"""
    top_k: int | None = None
    """draw from the k likeliest tokens only"""
    top_p: float | None = None
    """draw from the likeliest tokens that together have this probability"""
    min_p: float | None = None
    """draw only from tokens with at least this share of the likeliest token's probability"""
    repetition_penalty: float = 1.0
    """above 1: tokens of the text so far, also of the prompt, become less likely"""
    stop: Annotated[UseAppendAction[list[str]], arg(metavar="S")] = dataclasses.field(
        default_factory=list
    )
    """end before this text; may be given several times"""
    stream: bool = False
    """print text as it is written (one prompt)"""
    seed: Annotated[tuple[int, ...], arg(metavar="S [S …]")] = (0,)
    """one: prompt number i draws with seed + i; or one for each prompt"""
    compile: bool = False
    """compile the model first: takes about a minute, worth it for many tokens"""
    beam: Annotated[int | None, arg(metavar="K")] = None
    """seq2seq: width of the beam, by default 1"""
    length_penalty: Annotated[float | None, arg(metavar="A")] = None
    """length penalty of a beam of at least 2: 0 ranks by probability, more prefers longer targets;
    by default 0.6"""
    weights: Literal["last", "average"] = "last"
    """last: those of the last step; average: their average by the run's optim.average, projected"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""
    json: bool = False
    """print one JSON document"""


def run(argv: list[str]) -> int:
    """Load the run, continue the prompts, print."""
    args = parse(Generate, argv, "generate")
    for prompt in args.prompt:
        if any("\ud800" <= c <= "\udfff" for c in prompt):  # Python's form of undecodable bytes
            raise UserError(f"--prompt {prompt!r} is not valid UTF-8: check its encoding")
    from unitsphere.models.plans import fold_
    from unitsphere.training.load import load_run

    if args.stream and (args.json or len(args.prompt) > 1):
        raise UserError("--stream prints one prompt's text as it is written: give one, no --json")
    loaded = load_run(args.run, args.device, weights=args.weights)
    fold_(loaded.model)
    if loaded.config.objective == "seq2seq":
        found, texts = answers(args, loaded)
    else:
        found, texts = completions(args, loaded)
    if args.json:
        print_json(found)
        return 0
    if args.stream:
        return 0
    for number, text in enumerate(texts):
        if len(texts) > 1:
            print(f"{'' if number == 0 else chr(10)}[{number + 1}]")
        print_piece(text + "\n")
    return 0


def completions(args: Generate, loaded: "LoadedRun") -> Written:
    """The prompts continued."""
    from unitsphere.inference.generate import generate_text

    refuse_pair_options(args, loaded.config.objective)
    prompts = args.prompt or [""]
    unshown = iter(prompts)  # printed with the first token: a refused option comes before it

    def show(row: int, piece: str) -> None:
        print_piece(next(unshown, "") + piece)

    found = generate_text(
        loaded.model,
        loaded.tokenizer,
        prompts,
        args.max_tokens,
        args.temperature,
        args.top_k,
        args.top_p,
        args.seed[0] if len(args.seed) == 1 else args.seed,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        stops=args.stop,
        show=show if args.stream else None,
        compile=args.compile,
    )
    if args.stream:
        show(0, "\n")  # with the prompt of a text without a token
    longest = max(c.prompt_tokens + c.tokens for c in found)
    if longest > loaded.config.data.context:
        trained = loaded.config.data.context
        said = f"note: the text has {longest} tokens, and the model was trained on {trained}"
        print(said, file=sys.stderr)
    return [dataclasses.asdict(one) for one in found], [one.prompt + one.text for one in found]


def answers(args: Generate, loaded: "LoadedRun") -> Written:
    """The targets of the prompts."""
    from unitsphere.inference.translate import answer

    plain = Generate(args.run)
    sampling = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    for name in (*sampling, "stop", "stream", "compile"):
        if getattr(args, name) != getattr(plain, name):
            raise UserError(
                f"--{name} is for sampling, and {args.run} (objective seq2seq) writes the "
                "likeliest target: leave it out"
            )
    context, search = loaded.config.data.context, search_of(args, args.max_tokens)
    found = answer(loaded.model, loaded.tokenizer, args.prompt or [""], search, context)
    if cut := sum(one.cut for one in found):
        print(f"note: {cut} of the prompts were cut at {context} tokens", file=sys.stderr)
    return [dataclasses.asdict(one) for one in found], [one.text for one in found]
