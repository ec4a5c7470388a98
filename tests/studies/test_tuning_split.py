"""The tuning split: training documents alone, split anew, in a folder that trains."""

import itertools
import json

import pytest
from studies.tiny import recipes

from unitsphere.data.prepare import prepared
from unitsphere.data.shards import Shards
from unitsphere.errors import UserError
from unitsphere.studies.core.plan import with_overrides
from unitsphere.studies.core.tuning_split import tuning_data
from unitsphere.training.recipes import load_recipe


def texts(shards: Shards) -> list[str]:
    """The documents of a split of bytes."""
    bounds = [*map(int, shards.document_starts), shards.n_tokens]
    decode = shards.tokenizer().decode
    return [decode(shards[a:b].tolist()) for a, b in itertools.pairwise(bounds)]


def test_reported_documents_are_not_tuned_on(tmp_path):
    data = load_recipe(recipes(tmp_path)[0]).data
    config = load_recipe(recipes(tmp_path)[0])
    own = prepared(data)
    folder = tuning_data(config, 0.2)
    train, val = (Shards.open(folder, split) for split in ("train", "val"))
    assert sorted(texts(train) + texts(val)) == sorted(texts(Shards.open(own, "train")))
    assert set(texts(val)).isdisjoint(texts(Shards.open(own, "val")))
    assert 0 < val.n_documents < train.n_documents
    for split in (train, val):
        assert split.n_bytes == sum(len(text.encode()) for text in texts(split))
        split.verify()
    assert train.tokenizer_fingerprint == Shards.open(own).tokenizer_fingerprint


def test_it_is_made_once_for_the_same_data_and_share(tmp_path):
    config = load_recipe(recipes(tmp_path)[0])
    first = tuning_data(config, 0.2)
    made = (first / "manifest.json").stat().st_mtime_ns
    assert tuning_data(config, 0.2) == first
    assert (first / "manifest.json").stat().st_mtime_ns == made
    assert tuning_data(config, 0.3) != first


def test_a_single_document_is_cut_near_its_end(tmp_path):
    source = tmp_path / "book.txt"
    source.write_text("a line of the book\n" * 60)
    changes = {"data.source": str(source), "data.cache": str(tmp_path / "cache")}
    config = with_overrides(load_recipe(recipes(tmp_path)[0]), changes)
    own = Shards.open(prepared(config.data), "train")
    assert own.n_documents == 1
    folder = tuning_data(config, 0.1)
    train, val = (Shards.open(folder, split) for split in ("train", "val"))
    assert texts(train)[0] + texts(val)[0] == texts(own)[0]
    assert len(texts(val)[0]) == round(0.1 * len(texts(own)[0]))


def pairs(folder, count: int):
    """A seq2seq config over `count` pairs."""
    source = folder / "pairs.jsonl"
    lines = [json.dumps({"source": f"say {n}", "target": f"« {n} »"}) for n in range(count)]
    source.write_text("\n".join(lines))
    changes = {
        "objective": "seq2seq",
        "data.source": str(source),
        "data.val_fraction": 0.3,
        "data.cache": str(folder / "cache"),
    }
    return with_overrides(load_recipe(recipes(folder)[0]), changes)


def test_pairs_stay_together_and_their_targets_are_counted(tmp_path):
    config = pairs(tmp_path, 40)
    own = Shards.open(prepared(config.data, pairs=True), "train")
    folder = tuning_data(config, 0.3)
    splits = [Shards.open(folder, split) for split in ("train", "val")]
    for split in splits:
        sides = texts(split)
        assert [f"« {source[4:]} »" for source in sides[::2]] == sides[1::2]
        assert split.target_bytes == sum(len(side.encode()) for side in sides[1::2])
    assert sum(split.target_bytes for split in splits) == own.target_bytes
    with pytest.raises(UserError, match="too few pairs"):
        tuning_data(pairs(tmp_path, 2), 0.3)
