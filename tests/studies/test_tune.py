"""The search of a rate, its runs played by a formula; the split that it is tuned on."""

import itertools
import json
import math
from collections.abc import Callable
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from studies.tiny import recipes
from tokenizers import Tokenizer, models

from unitsphere.data.prepare import prepared
from unitsphere.data.shards import Shards
from unitsphere.data.writer import workspace
from unitsphere.errors import UserError
from unitsphere.studies.core import tune
from unitsphere.studies.core.execute import Record
from unitsphere.studies.core.plan import with_overrides
from unitsphere.studies.core.tune import Search, grid, grown, search, tuning_data
from unitsphere.training.recipes import load_recipe

Outcome = float | str
"""A loss, "diverged" or "failed"."""


def record(outcome: Outcome) -> Record:
    if isinstance(outcome, str):
        return Record(None, outcome, error="it was played")
    return Record(None, "finished", loss=outcome)


@pytest.fixture
def play(monkeypatch):
    """Searches whose runs are (rate, seed), with what a formula makes of them."""
    ran: list[tuple[float, int]] = []

    def begin(formula: Callable[[float, int], Outcome], rates, seeds=(0,)) -> Search:
        def pretend(runs, executor, later=()):
            ran.extend(runs)
            return [record(formula(*run)) for run in runs]

        monkeypatch.setattr(tune, "execute", pretend)
        return Search("ngpt", list(rates), lambda rate: [(rate, seed) for seed in seeds])

    begin.ran = ran
    return begin


def test_the_grid_is_geometric_and_centred():
    assert grid(1e-2, 5, math.sqrt(2)) == [0.005, 0.00707, 0.01, 0.0141, 0.02]
    assert grid(1e-2, 4, 2.0) == [0.0025, 0.005, 0.01, 0.02]
    assert grid(0.0123456, 1, 2.0) == [0.0123456]


def test_it_grows_only_at_its_edges():
    assert grown([1, 2, 4], 4, math.sqrt(2)) == 5.66
    assert grown([1, 2, 4], 1, 2.0) == 0.5
    assert grown([1, 2, 4], 2, 2.0) is None


@given(st.floats(1e-4, 1.0), st.sampled_from([1.5, 2.0, 3.0]), st.integers(2, 5))
def test_the_best_of_a_bowl_is_bracketed_wherever_it_lies(middle, ratio, points):
    with pytest.MonkeyPatch.context() as patch:

        def pretend(runs, executor, later=()):
            return [record(math.log(rate / middle) ** 2) for rate in runs]

        patch.setattr(tune, "execute", pretend)
        found = Search("a", grid(0.01, points, ratio), lambda rate: [rate])
        search([found], None, ratio, growths=40)
    best = found.best()
    assert not found.at_edge()
    # Grid points are rounded to three digits.
    assert abs(math.log(best / middle)) <= 0.5 * math.log(ratio) + 0.02
    assert len(found.found) == len(found.rates)


def test_no_rate_is_run_twice_and_every_first_rate_comes_first(play):
    first = play(lambda rate, seed: abs(rate - 4), [1, 2, 4], seeds=(5, 6))
    second = Search("gpt", [10, 20], first.plan)
    search([first, second], None, 2.0, growths=1)
    assert play.ran[:4] == [(1, 5), (1, 6), (10, 5), (10, 6)]
    assert len(set(play.ran)) == len(play.ran)
    assert (8.0, 5) in play.ran


def test_searches_of_one_name_grow_each_by_its_own_rate(play):
    """Budgets that differ in the fourth digit are written alike."""
    first = play(lambda rate, seed: abs(rate - 4), [1, 2, 4])
    second = Search(first.name, [3, 4, 5], first.plan)
    search([first, second], None, 2.0, growths=1)
    assert (first.rates, second.rates) == ([1, 2, 4, 8.0], [3, 4, 5])


def test_seeds_are_averaged(play):
    found = play(
        lambda rate, seed: {1: 3, 2: 1.9, 4: 2}[rate] + seed * {1: 1, 2: 1, 4: 0}[rate],
        [1, 2, 4],
        (0, 1),
    )
    search([found], None, 2.0, growths=0)
    assert found.losses() == {1: 3.5, 2: 2.4, 4: 2.0}
    assert found.best() == 4
    assert found.at_edge()


def test_a_rate_that_diverged_once_is_not_the_best_but_brackets(play):
    found = play(lambda r, seed: "diverged" if r >= 4 and seed else 2 - r / 100, [1, 2, 4], (0, 1))
    search([found], None, 2.0, growths=3)
    assert found.best() == 2
    assert not found.at_edge()
    assert len(found.rates) == 3


def test_where_all_diverge_it_goes_down(play):
    found = play(lambda rate, seed: "diverged" if rate > 0.3 else 1.0 + abs(rate - 0.2), [1, 2, 4])
    search([found], None, 2.0, growths=5)
    assert found.best() == 0.25
    assert not found.at_edge()


def test_a_broken_run_tells_nothing_and_ends_nothing(play):
    found = play(lambda rate, seed: "failed" if rate == 4 else 5.0 - rate, [1, 2, 4])
    search([found], None, 2.0, growths=3)
    assert found.best() == 2
    assert found.at_edge()
    assert found.rates == [1, 2, 4]
    nothing = play(lambda rate, seed: "failed", [1, 2, 4])
    search([nothing], None, 2.0, growths=3)
    assert nothing.best() is None
    assert nothing.rates == [1, 2, 4]


def test_growth_is_bounded(play):
    found = play(lambda rate, seed: 1 / rate, [1, 2])
    search([found], None, 2.0, growths=3)
    assert found.rates == [1, 2, 4, 8, 16]
    assert found.at_edge()


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


def test_what_another_study_has_made_while_this_one_waited_is_taken(tmp_path, monkeypatch):
    config = load_recipe(recipes(tmp_path)[0])

    @contextmanager
    def after_another(out):
        with monkeypatch.context() as patch:
            patch.setattr(tune, "workspace", workspace)
            tuning_data(config, 0.2)
        with workspace(out) as partial:
            yield partial

    monkeypatch.setattr(tune, "workspace", after_another)
    assert Shards.open(tuning_data(config, 0.2), "val").n_documents > 0


def test_what_a_tokenizer_loses_is_known_there_too(tmp_path):
    """Bits per byte are void there too: a sweep is judged by the loss that it reports."""
    lossy = Tokenizer(models.WordLevel({"[UNK]": 0, "</s>": 1}, "[UNK]"))
    lossy.add_special_tokens(["</s>"])
    lossy.save(str(tmp_path / "lossy.json"))
    changes = {"data.tokenizer": str(tmp_path / "lossy.json"), "model.vocab_size": None}
    config = with_overrides(load_recipe(recipes(tmp_path)[0]), changes)
    assert Shards.open(tuning_data(config, 0.2), "val").text_lost == 1


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
