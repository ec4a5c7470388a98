"""What a run trains on."""

from dataclasses import dataclass

from unitsphere.errors import UserError

DEFAULT_TOKENIZER = "bpe:1024"
MOST_AHEAD = 1000
"""Most batches that are read ahead: all of them are in memory."""


@dataclass(frozen=True)
class MaskConfig:
    """What masked language modelling hides (objective mlm)."""

    fraction: float = 0.15
    """share of the tokens that the model must predict"""
    masked: float = 0.8
    """of these: share that is replaced by the mask token"""
    random: float = 0.1
    """of these: share that is replaced by a random token; the rest stay as they are"""

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise UserError(f"data.mask.fraction must be above 0, up to 1: {self.fraction}")
        if not (self.masked >= 0 and self.random >= 0 and self.masked + self.random <= 1):
            raise UserError(
                "data.mask.masked and data.mask.random must be shares that add up to at most 1: "
                f"{self.masked} and {self.random}"
            )


@dataclass(frozen=True)
class DataConfig:
    """The [data] table of a recipe."""

    source: str = "stdlib"
    """"stdlib" (the running Python's own source text), a file, a glob, a folder, or a folder made
    by `unitsphere prepare`; *.jsonl holds one document per line, any other file is one document"""
    field: str = "text"
    """the key that holds the text in JSONL"""
    source_field: str = "source"
    """the key that holds the source, in JSONL with one pair per line (objective seq2seq)"""
    target_field: str = "target"
    """the key that holds the target"""
    validation: str | None = None
    """a file, a glob or a folder to validate on; none: val_fraction of the source"""
    tokenizer: str | None = None
    """bytes, bpe:N (a byte-level BPE of N entries trained on the source), or the path of a Hugging
    Face tokenizer.json; none: the prepared folder's, for other sources bpe:1024"""
    context: int = 256
    """sequence length in tokens; of each side of a pair, with the separator"""
    document_mask: bool = False
    """tokens attend only to their own document, not to others in the same sequence (objective
    clm)"""
    val_fraction: float = 0.02
    """share of the documents or pairs that is held out for validation; a prepared folder has its
    own"""
    cache: str = "runs/data"
    """folder in which prepared sources are kept"""
    verify: bool = False
    """read every shard before training and compare its sha256; sizes and ends always are"""
    prefetch: int = 2
    """batches that a thread reads ahead, at most 1000; 0: none"""
    mask: MaskConfig = MaskConfig()
    """what is hidden, with objective mlm"""

    def __post_init__(self) -> None:
        if not 0 <= self.prefetch <= MOST_AHEAD:
            raise UserError(f"data.prefetch must be from 0 to {MOST_AHEAD}: {self.prefetch}")
        for name in ("source", "validation", "tokenizer", "cache"):
            if getattr(self, name) == "":  # as a path it would be the working directory
                raise UserError(f"data.{name} is empty: give a name, or leave it out")
