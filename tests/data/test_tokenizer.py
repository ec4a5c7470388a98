"""Every tokenizer: any text there and back, and no text that reads as a separator."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from unitsphere.data.documents import PIECE, read_documents
from unitsphere.data.sources import find_files
from unitsphere.data.tokenizer import Tokenizer, load_tokenizer, train_bpe, vocab_size_of
from unitsphere.errors import UserError

TEXTS = [path.read_text() for path in find_files("stdlib")[:3]]
BPE = train_bpe(TEXTS, 300)
BYTES = load_tokenizer("bytes")
any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@pytest.mark.parametrize("tokenizer", [BPE, BYTES])
@settings(max_examples=50, deadline=None)
@given(texts=st.lists(any_text, max_size=4))
def test_there_and_back(tokenizer: Tokenizer, texts: list[str]) -> None:
    batch = tokenizer.encode_batch(texts)
    for text, tokens in zip(texts, batch, strict=True):
        assert tokens.tolist() == tokenizer.encode(text)
        assert tokenizer.decode(tokens.tolist()) == text
        assert tokenizer.separator not in tokens
        assert np.all(tokens < tokenizer.vocab_size)


def test_separators_in_text_are_text() -> None:
    text = "a<|endoftext|>b"
    assert BPE.separator not in BPE.encode(text)
    assert BPE.decode(BPE.encode(text)) == text
    assert BPE.decode([BPE.separator, *BPE.encode("x")]) == "x"
    assert BYTES.decode([0, 104, 105]) == "hi"


def unigram() -> Backend:
    """As T5's: the model itself knows the separator as a piece of text, the likeliest of all."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((c, -9.0) for c in "▁abs<>/")]
    backend = Backend(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    backend.add_special_tokens(["<unk>", "</s>"])
    return backend


def test_a_separator_that_the_model_itself_knows_is_text_too(tmp_path: Path) -> None:
    unigram().save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    text = "<s>a</s></s> b</s>"
    assert loaded.separator == 1
    assert loaded.separator not in loaded.encode(text)
    assert loaded.decode(loaded.encode(text)) == text
    found = loaded.encode_batch(["a b", text])
    assert [ids.tolist() for ids in found] == [loaded.encode("a b"), loaded.encode(text)]


def test_a_separator_that_is_not_special_is_text_too(tmp_path: Path) -> None:
    document = json.loads(BPE.json)
    document["added_tokens"][0]["special"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    loaded, text = load_tokenizer(tmp_path), "a<|endoftext|>b"
    assert loaded.separator not in loaded.encode(text)
    assert loaded.decode(loaded.encode(text)) == text


def test_a_character_that_is_the_separator_is_refused(tmp_path: Path) -> None:
    backend = unigram()
    backend.normalizer = normalizers.Replace("b", "</s>")
    backend.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    with pytest.raises(UserError, match="makes 'b' its separator, which no text may hold"):
        loaded.encode("ab")


def test_half_a_character_decodes_to_a_replacement() -> None:
    for tokenizer in (BYTES, train_bpe(["a"], 257)):
        assert tokenizer.decode(tokenizer.encode("é")[:1]) == "�"


def test_bpe_has_the_size_asked_for() -> None:
    assert BPE.vocab_size == 300
    assert len(BPE.encode(TEXTS[0])) < 0.7 * len(TEXTS[0])


def test_training_is_deterministic() -> None:
    code = "from test_tokenizer import BPE; print(BPE.fingerprint)"
    here = str(Path(__file__).parent)
    environment = os.environ | {"PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "3"}
    other = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=here, capture_output=True, text=True
    )
    assert other.stdout.strip() == BPE.fingerprint, other.stderr


def test_saved_ones_load(tmp_path: Path) -> None:
    for tokenizer in (BPE, BYTES):
        tokenizer.save(tmp_path / "tokenizer.json")
        for place in (tmp_path, tmp_path / "tokenizer.json"):
            loaded = load_tokenizer(place)
            assert loaded.fingerprint == tokenizer.fingerprint
            assert loaded.encode("xyz") == tokenizer.encode("xyz")


def test_settings_of_the_file_change_nothing(tmp_path: Path) -> None:
    """Truncation, padding and a template's special tokens do not get into the stream."""
    from tokenizers import Tokenizer as Backend
    from tokenizers.processors import TemplateProcessing

    backend = Backend.from_str(BPE.json)
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    backend.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", BPE.separator)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert loaded.encode(TEXTS[0]) == BPE.encode(TEXTS[0])
    assert loaded.encode_batch(TEXTS[:1])[0].tolist() == BPE.encode(TEXTS[0])


def test_pieces_have_the_tokens_of_the_whole(tmp_path: Path) -> None:
    text = "".join(f"def f{i}(a, b):\n    # it's {i}\n\n    return  a\n" for i in range(8000))
    assert len(text) > 4 * PIECE
    path = tmp_path / "long.py"
    path.write_text(text)
    pieces = [piece.text for piece in read_documents([path])]
    assert len(pieces) > 4
    assert np.concatenate(BPE.encode_batch(pieces)).tolist() == BPE.encode(text)


def test_vocabulary_sizes_without_training(tmp_path: Path) -> None:
    BPE.save(tmp_path / "bpe.json")
    BYTES.save(tmp_path / "bytes.json")
    specs = (
        "bytes",
        "bpe:1024",
        "bpe:1000",
        str(tmp_path / "bpe.json"),
        str(tmp_path / "bytes.json"),
    )
    assert [vocab_size_of(spec) for spec in specs] == [256, 1024, 1024, 320, 256]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("bpe:100", "from 257"),
        ("bpe:many", "from 257"),
        ("bpe:1024", "unitsphere prepare"),
        ("missing.json", "cannot read missing.json: No such file"),
        ("broken.json", "not valid JSON"),
        ("config.json", "has no 'model'"),
        ("odd.json", "not a tokenizer.json that can be read"),
        ("bare.json", "no separator token"),
    ],
)
def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text("{")
    Path("config.json").write_text('{"vocab_size": 5}')
    Path("odd.json").write_text('{"model": {"type": "New"}}')
    bare = json.loads(BPE.json)
    bare["added_tokens"] = []
    bare["model"]["vocab"]["<|other|>"] = bare["model"]["vocab"].pop("<|endoftext|>")
    Path("bare.json").write_text(json.dumps(bare))
    with pytest.raises(UserError, match=said) as error:
        load_tokenizer(spec)
    assert "\n" not in str(error.value)


@pytest.mark.data
def test_neox() -> None:
    path = Path(os.environ["UNITSPHERE_DATA"]) / "tok" / "gpt_neox_20b_tokenizer.json"
    assert vocab_size_of(str(path)) == 50304
    neox = load_tokenizer(path)
    assert neox.separator == 0
    assert neox.separator not in neox.encode("a<|endoftext|>b<|padding|>")


@pytest.mark.parametrize("text", ["words", "สวัสดีชาวโลก 你好", "🏳️\u200d🌈 e\u0301", "\ufffd b"])
def test_the_sizes_of_parts_are_that_of_the_whole(text: str) -> None:
    """A part may begin and end within a character."""
    merges = train_bpe([text] * 5, 270)
    for tokenizer in (load_tokenizer("bytes"), train_bpe(["other"], 257), merges):
        ids = tokenizer.encode(text)
        assert tokenizer.size(ids) == len(text.encode())
        for width in (1, 2, 3):
            parts = (ids[begin : begin + width] for begin in range(0, len(ids), width))
            assert sum(map(tokenizer.size, parts)) == len(text.encode())
        assert tokenizer.size([tokenizer.separator]) == 0
