"""`unitsphere eval`: loss, perplexity, and bits per byte or accuracy of a run on any text."""

import dataclasses
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from unitsphere.cli.checks import check_contexts, check_positive
from unitsphere.cli.output import print_json, print_table, progress
from unitsphere.cli.parse import parse
from unitsphere.cli.scores import (
    check_needs,
    check_sacrebleu,
    figures,
    keep,
    pair_figures,
    pair_source,
    pinned_state,
    print_positions,
    print_tasks,
    refuse_pair_options,
    search_of,
)
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.training.checkpoint.store import State
    from unitsphere.training.config import RunConfig
    from unitsphere.training.load import LoadedRun


NOTHING = ("loss", "perplexity", "bits_per_byte", "tokens", "bytes")
"""Figures of the text, which are null where only tasks were asked for."""
FIELDS = {"source": "source_field", "target": "target_field", "text": "field"}
"""Fields of the tasks translation and text -> the option that gives another name."""


@dataclasses.dataclass(frozen=True)
class Eval:
    """Score a run on text: loss (nats per token), perplexity, bits per byte.

    A masked language model is scored on hidden tokens, the same tokens each time:
    loss, pseudo-perplexity and accuracy; it has no bits per byte.
    An encoder-decoder (seq2seq) is scored on the targets of pairs, and by BLEU on
    the targets that it writes.

    Without --data the whole validation split is scored, in fp32. The losses that
    train shows are of --train.eval_tokens of it (all by default) and in the run's
    precision, so they may differ a little.

    examples:
      unitsphere eval runs/quickstart/ngpt --json
      unitsphere eval RUN --data wiki.jsonl --field text --context 256 1024
      unitsphere eval RUN --data pairs.jsonl --beam 4 --json
      unitsphere eval RUN --data books.jsonl --context 1024 8192 --by_position
      unitsphere eval RUN --tasks zero_shot --task_data data/eval
      unitsphere eval RUN --tasks translation --task_data pairs.jsonl --json
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """run folder"""
    data: Annotated[str | None, arg(metavar="FILE")] = None
    """what to score: a file, JSONL, a folder, a quoted glob, or the validation split of a folder
    that prepare made; by default the run's validation split"""
    objective: Literal["clm", "mlm", "seq2seq"] | None = None
    """the run's objective, as a check: a run is scored only for the one it was trained with"""
    field: Annotated[str | None, arg(metavar="STR")] = None
    """the field of a JSONL line that holds the text, by default text"""
    source_field: Annotated[str | None, arg(metavar="STR")] = None
    """the field of a pair's line that holds the source; by default as in training"""
    target_field: Annotated[str | None, arg(metavar="STR")] = None
    """the field of a pair's line that holds the target; by default as in training"""
    beam: Annotated[int | None, arg(metavar="K")] = None
    """seq2seq: width of the beam, by default 1; 0: write no targets, no BLEU"""
    length_penalty: Annotated[float | None, arg(metavar="A")] = None
    """length penalty of a beam of at least 2: 0 ranks by probability, more prefers longer targets;
    by default 0.6"""
    context: Annotated[tuple[int, ...], arg(metavar="N [N …]")] = ()
    """tokens that the model sees at once, by default as in training; a result for each"""
    by_position: bool = False
    """also give perplexity by position in the context; every context is then scored on the same
    pieces of documents, each as long as the longest context; memory stays bounded"""
    per_document: Annotated[int | None, arg(metavar="N")] = None
    """by position: use only the first N tokens of each document; by default all"""
    chunk: Annotated[int | None, arg(metavar="N")] = None
    """by position: tokens that go through the model at a time, by default 1024"""
    tasks: Annotated[tuple[str, ...], arg(metavar="TASK [TASK …]")] = ()
    """lm-evaluation-harness tasks: hellaswag, …, zero_shot for nine of them, translation,
    text, or YAML files of your own; the text is then scored only with --data"""
    task_data: Annotated[Path | None, arg(metavar="DIR")] = None
    """the folder of the tasks' JSONL files, or the file of one task; by default the YAML
    file's folder"""
    shots: Annotated[int | None, arg(metavar="N")] = None
    """examples before each item of a task; by default as the task says"""
    limit: Annotated[int | None, arg(metavar="N")] = None
    """only the first N items of each task"""
    trust_task_code: bool = False
    """let task files of your own run code (!function, classes, templates outside a sandbox)"""
    fold: bool = False
    """fold constants and scales into the weights first, as generate and export do: the figures are
    the same except for rounding"""
    weights: Literal["last", "average"] = "last"
    """last: those of the last step; average: their average by the run's optim.average, projected"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""
    json: bool = False
    """print one JSON document"""


def run(argv: list[str]) -> int:
    """Evaluate once for each context, and on the tasks, and print."""
    args = parse(Eval, argv, "eval")
    check_contexts(args.context)
    check_task_options(args)
    check_needs(args, "by_position", "chunk", "per_document")
    if not args.tasks:
        check_needs(args, "data", *FIELDS.values())
    from unitsphere.data.prepare import check_scored
    from unitsphere.models.plans import fold_
    from unitsphere.training.folder import check_own_data
    from unitsphere.training.load import load_run
    from unitsphere.training.resolve import check_same_data

    fields = [] if args.tasks else [getattr(args, option) for option in FIELDS.values()]
    check_scored(args.data, fields)  # a task has fields of its own
    path, state = pinned_state(args.run) if args.tasks else (args.run, None)
    loaded = load_run(path, args.device, weights=args.weights)
    own = loaded.config.objective
    if args.objective not in (None, own):
        raise UserError(
            f"{args.run} was trained with objective {own} and cannot be scored as "
            f"{args.objective}: leave --objective out"
        )
    if args.fold:
        fold_(loaded.model)
    if args.data is None and not args.tasks:
        check_own_data(args.run, loaded.config)
        check_same_data(args.run, loaded.config)
    found = {} if args.tasks and args.data is None else evaluations(args, loaded)
    tasks = on_tasks(args, loaded, state) if args.tasks else {}
    if args.json:
        first = next(iter(found.values()), dict.fromkeys(NOTHING))
        named = subject(args, loaded.config, [*found])
        print_json(named | first | {"by_context": found if args.context else {}, "tasks": tasks})
        return 0
    if found:
        _print(found)
        if args.data is None:
            _print_difference(loaded.config, found, args.by_position)
    if args.by_position:
        print_positions(found)
    if tasks:
        print_tasks(tasks)
    return 0


def subject(args: Eval, config: "RunConfig", contexts: list[int]) -> dict[str, Any]:
    """What the figures are of: the run, the source, which split of it, and the first context.

    `contexts` are those that a text was scored at. data is None where only tasks were asked for,
    split where all of the text was scored.
    """
    from unitsphere.data.shards import is_prepared

    held_out = contexts and (args.data is None or is_prepared(args.data))
    return {
        "run": str(args.run),
        "data": args.data or (config.data.source if contexts else None),
        "split": "validation" if held_out else None,
        "context": next(iter([*contexts, *args.context]), config.data.context),
        **({} if args.weights == "last" else {"weights": args.weights}),
    }


def evaluations(args: Eval, run: "LoadedRun") -> dict[int, dict[str, Any]]:
    """Context -> figures, in fp32 on every device, so that they can be compared."""
    from unitsphere.training.by_position import check_causal

    own = run.config.objective
    contexts = args.context or (run.config.data.context,)
    if args.by_position:
        check_causal(own)
        refuse_pair_options(args, own)
        return position_evaluations(args, run, contexts)
    if own == "seq2seq":
        return pair_evaluations(args, run, contexts)
    if not args.tasks:
        refuse_pair_options(args, own)
    from unitsphere.training.evaluate.text import scorers

    with scorers(args.data, args.field or "text") as scorer:
        score = scorer(run)
        return {context: figures(score(run.model, context)) for context in contexts}


def position_evaluations(
    args: Eval, run: "LoadedRun", contexts: tuple[int, ...]
) -> dict[int, dict[str, Any]]:
    """Context -> figures, all on the same tokens, each with its figures by position."""
    from unitsphere.training.by_position import CHUNK, losses_by_position, open_documents

    check_positive(chunk=args.chunk, per_document=args.per_document)
    with open_documents(run, args.data, args.field or "text") as documents:
        found = losses_by_position(
            run.model,
            documents(),
            run.tokenizer.separator,
            contexts,
            args.chunk or CHUNK,
            args.per_document,
            progress(str(args.run)),
        )
    return {context: one.record() for context, one in found.items()}


def on_tasks(args: Eval, run: "LoadedRun", state: "State | None") -> dict[str, Any]:
    """Task -> items, shots and metrics with their standard errors; the model in fp32.

    The run's folder keeps the figures too, under the `state` of the checkpoint that was loaded,
    unless they are of averaged weights.
    """
    from unitsphere.inference import lm_eval_tasks

    with lm_eval_tasks.quiet():
        from unitsphere.inference.lm_eval_model import HarnessLM

    given = {field: getattr(args, option) for field, option in FIELDS.items()}
    context = args.context[0] if args.context else run.config.data.context
    lm = HarnessLM(run.model.float(), run.tokenizer, context)
    print(f"tasks: {', '.join(args.tasks)}", file=sys.stderr, flush=True)
    document = lm_eval_tasks.run_tasks(
        lm,
        args.tasks,
        data=None if args.task_data is None else str(args.task_data),
        rename={field: name for field, name in given.items() if name not in (None, field)},
        shots=args.shots,
        limit=args.limit,
        trusted=args.trust_task_code,
    )
    found = lm_eval_tasks.figures(document)
    if args.weights == "last":
        keep(args.run, state, context, found)
    return found


def pair_evaluations(
    args: Eval, run: "LoadedRun", contexts: tuple[int, ...]
) -> dict[int, dict[str, Any]]:
    """Context -> figures of an encoder–decoder."""
    from unitsphere.data.documents import PairFields

    if args.field is not None and not args.tasks:
        raise UserError(
            f"--field is for text, and {args.run} has objective seq2seq: give --source_field and "
            "--target_field instead"
        )
    trained = run.config.data
    fields = PairFields(
        args.source_field or trained.source_field, args.target_field or trained.target_field
    )
    search = search_of(args, max_tokens=1)
    beam, penalty = search.beam, search.length_penalty
    if beam < 0 or not 0 <= penalty < float("inf"):
        raise UserError(f"--beam and --length_penalty must be 0 or more: {beam} and {penalty}")
    if beam:
        check_sacrebleu()
    with pair_source(run, args.data, fields) as source:
        return {
            context: pair_figures(run, source, context, search_of(args, max(context - 1, 1)))
            for context in contexts
        }


def _print_difference(
    config: "RunConfig", found: dict[int, dict[str, Any]], by_position: bool
) -> None:
    """Say why the figures of the validation split may not be those that the run has shown."""
    contexts = list(found)
    scored = "whole validation split"
    if by_position:  # short documents and the rest of a long one are left out
        scored = f"pieces of {max(contexts):,} tokens of the documents of the validation split"
    train, trained = config.train, config.data.context
    odd = []
    # Those that are scored are all of the split's, except for masks and for pairs.
    every = config.objective == "clm" and not by_position
    tokens = max(one["tokens"] for one in found.values()) if every else math.inf
    if train.eval_tokens is not None and train.eval_tokens < tokens:
        odd.append(f"on at most {train.eval_tokens:,} tokens of it (train.eval_tokens)")
    if train.precision != "fp32":
        odd.append(f"in {train.precision}")
    if contexts != [trained]:
        odd.append(f"with a context of {trained:,} tokens")
    if by_position:
        odd.append("in windows that cross documents")
    if odd:
        print(f"{scored}, fp32; train validated {', '.join(odd)}")


def _print(found: dict[int, dict[str, Any]]) -> None:
    masked = any("accuracy" in one for one in found.values())
    perplexity, last = ("pseudo-perplexity", "accuracy") if masked else ("perplexity", "bits/byte")
    bleu = ["BLEU"] if any("bleu" in one for one in found.values()) else []
    columns = ("context", "loss", perplexity, last, "tokens", "bytes", *bleu)
    rows = [
        [
            str(context),
            f"{one['loss']:.4f}",
            f"{one['perplexity']:,.3f}",
            f"{one['accuracy']:.2%}" if masked else bits(one),
            f"{one['tokens']:,}",
            f"{one['bytes']:,}",
            *([f"{one['bleu']:.2f}"] if bleu else []),
        ]
        for context, one in found.items()
    ]
    print_table(columns, rows)
    if lost := max(one.get("text_lost", 0.0) for one in found.values()):
        from unitsphere.data.prepare import lost_share

        print(f"the tokenizer loses text: {lost_share(lost)}")
    for signature in dict.fromkeys(one["bleu_signature"] for one in found.values() if bleu):
        print(f"BLEU: {signature}")


def bits(figures: dict[str, Any]) -> str:
    """The bits per byte of a table's cell; "void" where the tokenizer loses text."""
    found = figures["bits_per_byte"]
    return "void" if found is None else f"{found:.4f}"


def check_task_options(args: "Eval") -> None:
    """Raise UserError for options that contradict each other, or if lm-eval is missing."""
    if not args.tasks:
        check_needs(args, "tasks", "task_data", "shots", "limit", "trust_task_code")
        return
    from unitsphere.inference.lm_eval_tasks import check_lm_eval

    check_lm_eval()
    check_positive(limit=args.limit)
    if args.shots is not None and args.shots < 0:
        raise UserError(f"--shots must be 0 or more: {args.shots}")
    if len(args.context) > 1:
        raise UserError("--tasks takes one --context: the tokens that the model sees of an item")
    if args.by_position or args.beam is not None or args.length_penalty is not None:
        raise UserError("--tasks goes without --by_position, --beam and --length_penalty")
    if args.task_data is not None and not args.task_data.exists():
        raise UserError(f"--task_data {args.task_data}: no such file or folder")
