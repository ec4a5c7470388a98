"""A run's tokenizer as the files that transformers' AutoTokenizer reads.

It puts the separator before a text, as every training document has it, and, of a causal model,
encodes "<|endoftext|>" within a text as ordinary characters, as the training did.
"""

import json
from pathlib import Path
from typing import Any

from unitsphere.data.tokenizer import SEPARATOR, ByteTokenizer, Tokenizer
from unitsphere.errors import UserError
from unitsphere.files import write_text
from unitsphere.models.exported import MASK_TOKEN, OWN_TOKENIZER
from unitsphere.models.trunk import Objective


def write_tokenizer(out: Path, tokenizer: Tokenizer, objective: Objective, context: int) -> None:
    """Write tokenizer.json, tokenizer_config.json, and the run's own file.

    Raises UserError for a masked model whose mask token cannot be added.
    """
    tokenizer.save(out / OWN_TOKENIZER)
    text = bytes_json() if isinstance(tokenizer, ByteTokenizer) else tokenizer.json
    if objective == "mlm":
        check_mask(text, tokenizer)
    text, separator = with_separator(text, tokenizer.separator)
    write_text(out / "tokenizer.json", text)
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), separator)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        **({"mask_token": MASK_TOKEN} if objective == "mlm" else {}),
        "padding_side": "left" if objective == "clm" else "right",
        "model_max_length": context,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": objective == "clm",
    }
    write_text(out / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")


def with_separator(text: str, separator: int) -> tuple[str, str]:
    """A tokenizer.json that puts the separator before a text, and the separator's name."""
    from tokenizers import Tokenizer as Backend
    from tokenizers.processors import TemplateProcessing

    backend = Backend.from_str(text)
    name = backend.id_to_token(separator)
    assert name is not None, "a separator is a token"
    backend.post_processor = TemplateProcessing(  # type: ignore[assignment]
        single=[name, "$A"], pair=[name, "$A", "$B:1"], special_tokens=[(name, separator)]
    )
    return backend.to_str(pretty=True), name


def check_mask(text: str, tokenizer: Tokenizer) -> None:
    """Raise a `UserError` unless an added token gets the id of the mask in training.

    That is the first id after the tokenizer's own.
    """
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_str(text)
    if (
        backend.get_vocab_size() != tokenizer.vocab_size
        or backend.token_to_id(MASK_TOKEN) is not None
    ):
        raise UserError(
            "cannot export this tokenizer for a masked model: it has gaps in its ids, or a "
            f"{MASK_TOKEN} of its own; keep the run folder for it"
        )


def bytes_json() -> str:
    """A tokenizer.json that does what `ByteTokenizer` does: a byte is its own id, 0 separates."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    names = {character: byte for byte, character in enumerate(byte_characters())}
    names = {SEPARATOR: 0} | {name: byte for name, byte in names.items() if byte}
    backend = Backend(models.BPE(vocab=names, merges=[], unk_token=SEPARATOR))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(  # type: ignore[assignment]
        add_prefix_space=False, use_regex=False
    )
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    backend.add_special_tokens([AddedToken(SEPARATOR, special=True)])
    return backend.to_str(pretty=True)


def byte_characters() -> list[str]:
    """The character of each byte in a byte-level tokenizer (GPT-2's).

    Printable bytes are their own characters, the others those from U+0100 up, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
