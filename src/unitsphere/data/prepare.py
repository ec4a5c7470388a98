"""Token shards made once: in a folder of the user's choice, or in the cache of a config."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable
from os.path import exists, expanduser, isdir, realpath  # they raise nothing for odd names
from pathlib import Path

from unitsphere.data.config import DEFAULT_TOKENIZER, DataConfig
from unitsphere.data.documents import PairFields, is_json_lines
from unitsphere.data.encode import write_shards
from unitsphere.data.job import ShardsJob
from unitsphere.data.shards import (
    SPLITS,
    Manifest,
    Shards,
    TokenizerEntry,
    is_prepared,
    read_manifest,
)
from unitsphere.data.sources import STANDARD_INPUT, find_files, source_files
from unitsphere.data.tokenizer import is_name, load_tokenizer
from unitsphere.data.writer import publish, workspace
from unitsphere.errors import UserError


def prepare(
    source: str,
    tokenizer: str,
    out: str | Path,
    field: str | PairFields = "text",
    val_fraction: float = 0.02,
    progress: bool = True,
    validation: str | None = None,
) -> Path:
    """Turn a source into token shards in the folder `out`; returns `out`.

    source: "stdlib", a file, a glob, a folder, "-" (standard input as one text) or "-.jsonl"
    (standard input, a JSON object a line). tokenizer: "bytes", "bpe:N" or a tokenizer.json.
    field: the key of the text in JSONL; or `PairFields`, the keys of the two sides of a pair.
    val_fraction: share of the documents held out for validation, chosen by a hash of their index;
    the first document is never held out and the second always, so that neither split is empty. Of
    a source of one document that share of its end is held out, from where a line or word begins;
    one of a few characters may be held out whole.
    With 0 or 1, one split is empty.
    validation: a file, a glob or a folder that is held out instead of a share of the source.

    If `out` already holds the shards of this input, they are read once, to see that none was
    changed, and nothing else is done. `out` appears only once it is complete. Raises a `UserError`
    for unusable input, or if `out` holds anything else.
    """
    if is_prepared(source):
        raise UserError(f"{source} is prepared already: train on it as it is")
    out = Path(expanduser(out))
    if "\0" in str(out):
        raise UserError("the name of --out holds a NUL character")
    check_apart(out, source, "--out")
    with source_files(source) as files:
        job = ShardsJob(
            source, files, field, tokenizer, val_fraction, _validation_files(validation)
        )
        made = _make(job, job.fingerprint(), out, progress)
    if not made:
        for split in SPLITS:
            Shards.open(out, split).verify()
    if progress:
        state = "prepared" if made else "nothing to do, it holds this input already"
        print(f"{out}: {state}\n{summary(read_manifest(out))}", file=sys.stderr)
    return out


def check_apart(out: Path, source: str | None, option: str) -> None:
    """Raise UserError if `out` is inside a folder of text: it would be read as text the next time.

    option: what names `out`.
    """
    if source is None or source == "stdlib" or is_prepared(source):
        return
    folder = expanduser(source)
    if isdir(folder) and Path(realpath(out)).is_relative_to(realpath(folder)):
        raise UserError(f"{out} is inside the source {source}: choose another {option}")


def summary(manifest: Manifest) -> str:
    """What each split amounts to, a line each, and what is special."""
    whole = max(manifest.train.bytes + manifest.val.bytes, 1)
    lines = []
    for split in SPLITS:
        counts = manifest.counts(split)
        number, of = counts.documents, "document"
        if manifest.pairs:
            number, of = number // 2, "pair"
        lines.append(
            f"{split:<7}{counts.tokens:,} tokens in {number:,} {of}{'' if number == 1 else 's'}, "
            f"{counts.bytes / whole:.1%} of the text"
        )
    if manifest.text_lost:
        lines.append(f"the tokenizer loses text: {lost_share(manifest.text_lost)}")
    return "\n".join([*lines, manifest.note] if manifest.note else lines)


def lost_share(lost: float) -> str:
    """What a share of `tokenizer.text_lost` means, in words."""
    return (
        f"{lost:.0%} of a sample does not come back when it is decoded, so bits per byte are void"
    )


def tokenizer_spec(config: DataConfig) -> str:
    """The tokenizer that a config means: the one it names, a prepared folder's own, the default."""
    if config.tokenizer is not None:
        return config.tokenizer
    folder = Path(expanduser(config.source))
    return str(folder / "tokenizer.json") if is_prepared(folder) else DEFAULT_TOKENIZER


def located(config: DataConfig) -> DataConfig:
    """The config with paths that mean the same from any working directory."""
    source, validation, tokenizer = config.source, config.validation, config.tokenizer
    if source != "stdlib" and source not in STANDARD_INPUT:
        source = absolute(source)
    if tokenizer is not None and not is_name(tokenizer):
        tokenizer = absolute(tokenizer)
    return dataclasses.replace(
        config,
        source=source,
        validation=None if validation is None else absolute(validation),
        tokenizer=tokenizer,
        cache=absolute(config.cache),
    )


def absolute(path: str) -> str:
    """A path from the root; "./" and a last "/" are left out, and ".." stays."""
    return str(Path(expanduser(path)).absolute())


def input_fingerprint(config: DataConfig, pairs: bool = False) -> str:
    """Equal where a config's shards are made of the same contents in the same way, anywhere.

    The source is read, or the manifest of a prepared folder.
    """
    if is_prepared(config.source):
        folder = Path(expanduser(config.source))
        _check_prepared_for(folder, config, pairs)
        return read_manifest(folder).input
    return _job(config, pairs).fingerprint()


def prepared(config: DataConfig, progress: bool = True, pairs: bool = False) -> Path:
    """The folder of shards that a config asks for: its source if that is one, else in its cache.

    `pairs`: of the source's pairs rather than of its documents. The name in the cache follows from
    the contents, which are read to find it.
    """
    folder = Path(expanduser(config.source))
    if is_prepared(folder):
        _check_prepared_for(folder, config, pairs)
        return folder
    for source in (config.source, config.validation):
        check_apart(Path(expanduser(config.cache)), source, "--data.cache")
    job = _job(config, pairs)
    wanted = job.fingerprint()
    # A name has at most 255 bytes, a character up to 4 of them.
    name = re.sub(r"[^\w.]+", "-", Path(config.source).name)[:50]
    out = Path(expanduser(config.cache)) / f"{name}-{wanted[:16]}"
    _make(job, wanted, out, progress)
    return out


def _job(config: DataConfig, pairs: bool) -> ShardsJob:
    """What a config asks to be prepared of a source that is not."""
    if config.source in STANDARD_INPUT:
        raise UserError(
            "a run cannot be resumed from standard input: "
            "prepare it first ('unitsphere prepare - --out DIR') and train on DIR"
        )
    files = find_files(config.source)
    field = PairFields(config.source_field, config.target_field) if pairs else config.field
    held_out = _validation_files(config.validation)
    return ShardsJob(
        config.source, files, field, tokenizer_spec(config), config.val_fraction, held_out
    )


def source_text_lost(config: DataConfig, pairs: bool = False) -> float:
    """`ShardsJob.text_lost` of the tokenizer and the text of a config."""
    if is_prepared(config.source):
        return read_manifest(Path(expanduser(config.source))).text_lost or 0.0
    if is_name(tokenizer_spec(config)):  # bytes, and BPE that begins with all of them
        return 0.0
    job = _job(config, pairs)
    return job.text_lost(load_tokenizer(job.tokenizer))


def scored_split(data: str | None, config: DataConfig, pairs: bool = False) -> Shards | None:
    """The validation split that `data` means: a prepared folder's; None: `config`'s.

    None if `data` is text. Raises UserError for a split that holds nothing.
    """
    if data is not None:
        if not is_prepared(data):
            return None
        config = dataclasses.replace(config, source=data, validation=None, tokenizer=None)
    shards = Shards.open(prepared(config, pairs=pairs), "val")
    if not shards.n_documents:
        raise UserError(
            f"{shards.folder} has no validation split: prepare it with a --val_fraction above 0, "
            "or give the text itself"
        )
    return shards


def check_scored(data: str | None, fields: Iterable[str | None] = ()) -> None:
    """Raise UserError if `data` is neither a prepared folder nor files of text that can be read.

    Also for the name of a field (`fields`, None: not given) where no file holds lines of JSON.
    """
    if data is None:
        return
    files: list[Path] = []
    if data in STANDARD_INPUT:
        files = [Path(data)]
    elif data and is_prepared(data):
        read_manifest(Path(expanduser(data)))
    else:
        files = find_files(data)
    given = [field for field in fields if field is not None]
    if given and not any(map(is_json_lines, files)):
        raise UserError(
            f"the field {given[0]!r} is of a line of JSON, and {data} holds no JSON lines: leave "
            "it out"
        )


def _validation_files(validation: str | None) -> list[Path]:
    if validation is None:
        return []
    if validation in STANDARD_INPUT or is_prepared(validation):
        raise UserError(f"validation is a file, a glob or a folder of text, not {validation}")
    return find_files(validation)


def _check_prepared_for(folder: Path, config: DataConfig, pairs: bool) -> None:
    manifest = read_manifest(folder)
    if manifest.pairs != pairs:
        held, wanted = ("pairs", "documents") if manifest.pairs else ("documents", "pairs")
        raise UserError(
            f"{folder} was prepared as {held}, and this objective needs {wanted}: "
            f"{'train with objective seq2seq, or ' if manifest.pairs else ''}prepare {wanted}"
        )
    if config.validation is not None:
        raise UserError(
            f"{folder} is prepared and has its own validation split: leave data.validation out, "
            "or give the text itself as data.source"
        )
    _check_prepared_with(manifest.tokenizer, folder, tokenizer_spec(config))


def _check_prepared_with(made_with: TokenizerEntry, folder: Path, spec: str) -> None:
    if not is_name(spec):
        Shards.open(folder).check_tokenizer(load_tokenizer(spec))
    elif spec != made_with.spec:
        raise UserError(
            f"{folder} was prepared with the tokenizer {made_with.spec}, not {spec}: "
            f"set data.tokenizer to {folder / 'tokenizer.json'}"
        )


def _make(job: ShardsJob, wanted: str, out: Path, progress: bool) -> bool:
    """Makes the shards `wanted` in `out`; False if they are there already."""
    if _holds(out, wanted):
        return False
    with workspace(out) as partial:
        if _holds(out, wanted):  # Made by another process while this one waited.
            return False
        write_shards(job, wanted, partial, progress)
        publish(partial, out)
    return True


def _holds(out: Path, wanted: str) -> bool:
    if not is_prepared(out):
        if exists(out) and not (out.is_dir() and not any(out.iterdir())):
            raise UserError(f"{out} exists and is not a prepared folder: choose another --out")
        return False
    manifest = read_manifest(out)
    if manifest.input != wanted:
        raise UserError(
            f"{out} holds other data (from {manifest.source}, {manifest.tokenizer.spec}): "
            "choose another --out or delete it"
        )
    for split in SPLITS:
        Shards.open(out, split)  # Raises if a file is missing or truncated.
    return True
