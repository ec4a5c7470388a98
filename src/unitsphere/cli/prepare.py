"""`unitsphere prepare`: any text into token shards."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from unitsphere.cli.output import print_json
from unitsphere.cli.parse import given_options, parse
from unitsphere.errors import UserError


@dataclasses.dataclass(frozen=True)
class Prepare:
    """Turn text into token shards, once, for any number of runs.

    A .jsonl file holds a document per line, any other text file is one document;
    .json, .csv, .tsv and .parquet are refused. A share of the documents is held
    out for validation; of a single document the end is held out.
    Training from text does this by itself. Prepare a large source first, then train
    with --data.source DIR. The same command again does nothing if DIR holds
    its result.

    examples:
      unitsphere prepare wiki.jsonl --tokenizer bpe:32000 --out data/wiki
      unitsphere prepare "books/*.txt" --tokenizer neox.json --out data/books
    """

    source: Annotated[Positional[str], arg(metavar="SOURCE")]
    """a file, a quoted glob, a folder, stdlib (Python's own source), - or -.jsonl (stdin)"""
    tokenizer: Annotated[str, arg(metavar="T")]
    """bytes, bpe:N (a byte-level BPE of N entries, trained here), or a tokenizer.json"""
    out: Annotated[Path, arg(metavar="DIR")]
    """folder for the shards and their manifest"""
    field: str = "text"
    """the field of a JSONL line that holds the text"""
    pairs: bool = False
    """each JSONL line is a pair of texts, for objective seq2seq"""
    source_field: str = "source"
    """the field of a pair that holds the source text"""
    target_field: str = "target"
    """the field of a pair that holds the target text"""
    val_fraction: float = 0.02
    """share of the documents or pairs, or of a single document, that goes to validation"""
    validation: Annotated[str | None, arg(metavar="FILE")] = None
    """a file, a quoted glob or a folder that goes to validation, instead of a share of SOURCE"""
    json: bool = False
    """print one JSON document"""


def run(argv: list[str]) -> int:
    """Prepare; `prepare` itself says on stderr what there is."""
    args = parse(Prepare, argv, "prepare")
    given = given_options(Prepare, argv, "prepare")
    check_used(args.pairs, given)
    from unitsphere.data.documents import PairFields
    from unitsphere.data.prepare import check_scored, prepare
    from unitsphere.data.shards import read_manifest

    if "field" in given and args.validation is None:
        check_scored(args.source, [args.field])
    fields = PairFields(args.source_field, args.target_field)
    folder = prepare(
        args.source,
        args.tokenizer,
        args.out,
        field=fields if args.pairs else args.field,
        val_fraction=args.val_fraction,
        progress=True,
        validation=args.validation,
    )
    if args.json:
        manifest = read_manifest(folder)
        print_json(
            {
                "out": str(folder),
                "tokenizer": dataclasses.asdict(manifest.tokenizer),
                "train": dataclasses.asdict(manifest.train),
                "val": dataclasses.asdict(manifest.val),
                "pairs": manifest.pairs,
                "dtype": manifest.dtype,
            }
        )
    return 0


def check_used(pairs: bool, given: set[str]) -> None:
    """Raise UserError for an option that would change nothing."""
    if pairs and "field" in given:
        raise UserError(
            "--field is for documents: with --pairs give --source_field and --target_field"
        )
    for name in ("source_field", "target_field"):
        if name in given and not pairs:
            raise UserError(f"--{name} is for pairs: add --pairs")
    if {"validation", "val_fraction"} <= given:
        raise UserError("give --validation or --val_fraction, not both")
