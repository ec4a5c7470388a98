"""Text in, batches of tokens out: sources, tokenizers, shards, batches.

Heavy libraries are imported inside the functions that need them: these names cost little.
"""

from unitsphere.data.batch import IGNORED, Batch, Masked, NextToken
from unitsphere.data.batches import Batches
from unitsphere.data.config import DataConfig, MaskConfig
from unitsphere.data.documents import PairFields, Piece, read_documents
from unitsphere.data.pairs import Pair, PairBatches, Pairs
from unitsphere.data.prepare import prepare, prepared
from unitsphere.data.shards import Shards
from unitsphere.data.sources import source_files
from unitsphere.data.tokenizer import Tokenizer, load_tokenizer, vocab_size_of

__all__ = [
    "IGNORED",
    "Batch",
    "Batches",
    "DataConfig",
    "MaskConfig",
    "Masked",
    "NextToken",
    "Pair",
    "PairBatches",
    "PairFields",
    "Pairs",
    "Piece",
    "Shards",
    "Tokenizer",
    "load_tokenizer",
    "prepare",
    "prepared",
    "read_documents",
    "source_files",
    "vocab_size_of",
]
