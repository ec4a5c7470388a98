"""A run with the objective mlm: what it writes, what it is scored for, and what it refuses."""

import dataclasses
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from run_folders import figures

from unitsphere.config import to_dict
from unitsphere.data.batch import EVALUATION_SEED, Batch, Masked
from unitsphere.data.config import DataConfig, MaskConfig
from unitsphere.data.prepare import prepared
from unitsphere.data.shards import Shards
from unitsphere.data.tokenizer import ByteTokenizer
from unitsphere.errors import UserError
from unitsphere.inference.generate import generate_text
from unitsphere.inference.samples import fill_text, write_sample
from unitsphere.models.registry import build
from unitsphere.training.corpus import open_corpus
from unitsphere.training.evaluate.text import evaluate, evaluate_shards, evaluating
from unitsphere.training.forecast import flops_per_token
from unitsphere.training.load import load_run
from unitsphere.training.recipes import load_recipe
from unitsphere.training.resolve import resolve
from unitsphere.training.run import train

TEXT = "The cat sat on the mat, and that was that. " * 20
MASK = ByteTokenizer.vocab_size


def form(context: int = 32, seed: int = EVALUATION_SEED) -> Masked:
    return Masked(context, ByteTokenizer.separator, MASK, MaskConfig(), seed)


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """A finished run of ngpt as an encoder."""
    out = tmp_path_factory.mktemp("runs") / "run"
    result = train(tiny("ngpt", "mlm", steps=60, eval_every=20), out, sampler=write_sample)
    return out, result


def test_the_records_have_loss_and_accuracy_and_no_bits_per_byte(finished):
    out, result = finished
    validated = [record for record in figures(out) if "val_loss" in record]
    assert [record["step"] for record in validated] == [20, 40, 60]
    for record in validated:
        assert 0 <= record["val_accuracy"] <= 1
        assert "val_bits_per_byte" not in record
    assert validated[-1]["val_loss"] < validated[0]["val_loss"] < math.log(320)
    assert result.val_bits_per_byte is None
    assert result.val_accuracy == validated[-1]["val_accuracy"] > 0.15
    assert "of the masked tokens right" in result.validation()


def test_the_config_says_what_the_run_is_for_and_its_model_has_a_mask_token(finished):
    saved = json.loads((finished[0] / "config.json").read_text())
    assert saved["objective"] == "mlm"
    assert saved["model"]["vocab_size"] == 320  # 256 bytes and the mask, in multiples of 64
    run = load_run(finished[0], "cpu")
    assert run.model.objective == run.config.objective == "mlm"


def test_the_sample_shows_what_the_masks_were_filled_with(finished):
    sample = (finished[0] / "samples.txt").read_text()
    assert sample.startswith("--- step 60\n")
    assert "[" in sample


def test_a_config_from_before_there_were_objectives_is_a_causal_one(tiny, tmp_path):
    old = to_dict(tiny())
    del old["objective"], old["data"]["mask"], old["train"]["label_smoothing"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(old))
    assert load_recipe(path) == tiny()
    assert load_recipe(path).objective == "clm"


def test_a_run_of_another_objective_is_refused(finished, tiny):
    with pytest.raises(UserError, match="objective: 'mlm' -> 'clm'"):
        train(tiny("ngpt", steps=60, eval_every=20), finished[0])


def test_a_model_without_room_for_the_mask_token_is_one_line(tiny, tmp_path):
    config = tiny("gpt", "mlm")
    small = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=256))
    with pytest.raises(UserError, match=r"vocab_size 256 is smaller.*mask token, 257"):
        train(small, tmp_path / "run")
    fits = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=257))
    assert open_corpus(resolve(fits, None)).batches.batch(0).inputs.max() == MASK


def test_an_encoder_does_not_continue_texts(finished):
    model, tokenizer, _ = load_run(finished[0], "cpu")
    with pytest.raises(UserError, match="objective mlm") as caught:
        generate_text(model, tokenizer, ["The"], 4)
    assert "\n" not in str(caught.value)


class Knows(torch.nn.Module):
    """Is sure of token `sure` everywhere."""

    device = torch.device("cpu")

    def __init__(self, sure: int) -> None:
        super().__init__()
        self.sure = sure

    def forward(self, tokens, mask=None):
        logits = torch.zeros(*tokens.shape, MASK + 1)
        logits[..., self.sure] = 50.0
        return logits


def test_accuracy_and_loss_are_those_of_the_hidden_tokens():
    text = "a" * 900 + "b" * 100
    found = evaluate(Knows(ord("a")), [text], ByteTokenizer(), form(101), 3)
    targets = torch.cat([batch.targets for batch in windows_of(text, 101)])
    hidden = targets[targets >= 0]
    assert found.tokens == len(hidden) == pytest.approx(150, abs=10)
    assert found.bytes == 1000
    assert found.accuracy == pytest.approx(float((hidden == ord("a")).double().mean()))
    assert found.loss == pytest.approx(50 * (1 - found.accuracy), rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    assert found.bits_per_byte is None


def windows_of(text: str, context: int) -> list[Batch]:
    from unitsphere.training.evaluate.text import in_groups, stream_windows

    windows = stream_windows([text], ByteTokenizer(), form(context))
    return list(map(form(context).batch, in_groups(windows, 4)))


def test_shards_are_scored_as_their_text_is_and_the_same_each_time(tiny):
    shards = Shards.open(prepared(tiny().data, progress=False), "val")
    texts = np.split(shards[0 : shards.n_tokens], shards.document_starts[1:].astype(int))
    documents = [ByteTokenizer().decode(text.tolist()) for text in texts]
    model = build("ngpt", objective="mlm", vocab_size=320, d_model=32, n_layers=2, n_heads=2)
    first = evaluate_shards(model, shards, form(), 4)
    assert first == evaluate_shards(model, shards, form(), 4)
    other = evaluate(model, documents, ByteTokenizer(), form(), 3)
    assert (first.tokens, first.bytes) == (other.tokens, other.bytes)
    assert first.loss == pytest.approx(other.loss, rel=1e-5)
    assert evaluate_shards(model, shards, form(seed=1), 4).loss != first.loss
    part = evaluate_shards(model, shards, form(), 4, max_tokens=5 * 31)
    assert part.bytes < first.bytes
    assert part.tokens < first.tokens


def test_padding_is_not_looked_at():
    model = build("angpt", objective="mlm", vocab_size=320, d_model=32, n_layers=2, n_heads=2)
    tokens = torch.tensor([[0, 65, 66, 67, 0, 0]])
    real = torch.tensor([[True, True, True, True, False, False]])
    targets = torch.tensor([[-100, -100, 66, -100, -100, -100]])
    padded = model.loss(tokens, targets, "sum", mask=real[:, None, None])
    alone = model.loss(tokens[:, :4], targets[:, :4], "sum")
    assert padded.item() == pytest.approx(alone.item(), rel=1e-5)
    assert model.loss(tokens, targets, "sum").item() != pytest.approx(alone.item(), rel=1e-5)


def test_an_encoder_s_attention_costs_twice_a_causal_one_s():
    numbers = {"vocab_size": 320, "d_model": 32, "n_layers": 3, "n_heads": 2}
    causal, encoder = (build("ngpt", objective=o, **numbers) for o in ("clm", "mlm"))
    more = flops_per_token(encoder, 64) - flops_per_token(causal, 64)
    assert more == 6 * 3 * 32 * 64


def test_filled_in_text_tells_right_from_wrong():
    inputs = torch.tensor([[0, ord("c"), MASK, ord("t"), MASK]])
    targets = torch.tensor([[-100, -100, ord("a"), -100, ord("s")]])
    assert fill_text(Knows(ord("a")), ByteTokenizer(), Batch(inputs, targets)) == "c[a]t[a|s]"


def test_a_model_evaluates_without_its_training_mode_and_gets_it_back():
    model = build("gpt", vocab_size=64, d_model=32, n_layers=1, n_heads=2).train()
    with evaluating(model):
        assert not model.training
    assert model.training
    with evaluating(model.eval()):
        pass
    assert not model.training


@pytest.mark.parametrize("extra", [{"label_smoothing": 0.5}, {"z_loss": 0.1}])
def test_what_is_added_to_the_training_loss_is_in_no_validation(tiny, tmp_path, extra):
    plain = train(tiny("gpt", "mlm", steps=1), tmp_path / "plain")
    smooth = train(tiny("gpt", "mlm", steps=1, **extra), tmp_path / "smooth")
    assert smooth.loss != plain.loss
    # Both models are one step from the same start, and evaluated on the same plain targets.
    found = load_run(smooth.out, "cpu")
    again = open_corpus(found.config).validate(found.model, precision="fp32")
    assert again.loss == pytest.approx(smooth.val_loss, rel=1e-6)


@pytest.mark.data
def test_wikipedia_is_learned_in_a_few_steps(tmp_path):
    source = Path(os.environ["UNITSPHERE_DATA"]) / "text" / "wiki_dev.jsonl"
    config = load_recipe("quickstart/ngpt-mlm")
    data = DataConfig(
        source=str(source), tokenizer="bpe:1024", context=64, cache=str(tmp_path / "cache")
    )
    model = dataclasses.replace(config.model, d_model=64, n_layers=2)
    settings = dataclasses.replace(
        config.train, steps=30, batch_tokens=2048, eval_every=0, eval_tokens=8192, device="cpu"
    )
    config = dataclasses.replace(config, data=data, model=model, train=settings)
    result = train(config, tmp_path / "run")
    assert result.val_loss < 6.3 < math.log(1024)
    assert result.val_accuracy > 10 / 1024  # ten times as often as by chance: 30 steps are few
