"""A run trained here, exported, and used through transformers alone."""

import dataclasses
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import unitsphere
from unitsphere.cli import main
from unitsphere.inference.generate import generate, generate_text
from unitsphere.report.model_card import origin, sample, without_folders
from unitsphere.training import load
from unitsphere.training.archive import pack
from unitsphere.training.recipes import load_recipe

pytest.importorskip("transformers")
# Its pipelines and its Trainer take seconds to import: that is left to their tests.
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
)

from unitsphere.inference.hf.engine import load_own
from unitsphere.inference.hf.modeling_unitsphere import (
    UnitsphereConfig,
    UnitsphereModel,
    rope_table,
)

RECIPE = """
architecture = "{architecture}"
objective = "{objective}"
[model]
d_model = 32
n_layers = 2
n_heads = 4
n_kv_heads = 2
{more}
[data]
source = "text.txt"
tokenizer = "{tokenizer}"
context = 24
cache = "cache"
[optim]
lr = 2e-2
[train]
steps = 20
batch_tokens = 192
device = "cpu"
precision = "fp32"
"""
RUNS = {
    "ngpt": ("ngpt", "clm", "bpe:300"),
    "gpt": ("gpt", "clm", "bytes"),
    "angpt": ("angpt", "clm", "bytes"),
    "normformer": ("normformer", "clm", "bpe:300"),
    "rezero": ("rezero", "clm", "bytes"),
    "lnscaling": ("lnscaling", "clm", "bytes"),
    "dyt": ("dyt", "clm", "bytes"),
    "windowed": ("ngpt", "clm", "bytes"),
    "masked": ("ngpt", "mlm", "bpe:300"),
    "experts": ("ngpt", "clm", "bytes"),
    "hybrid": ("ngpt", "clm", "bpe:300"),
    "recurrent": ("normformer", "clm", "bytes"),
    "shifted": ("ngpt", "clm", "bytes"),
    "shifted-gpt": ("gpt", "clm", "bpe:300"),
    "shifted-angpt": ("angpt", "clm", "bytes"),
    "offset": ("ngpt", "clm", "bytes"),
    "offset-gpt": ("gpt", "clm", "bpe:300"),
    "peri-ln": ("gpt", "clm", "bpe:300"),
}
SIZES = "\nrecurrence = { d_key = 8, d_value = 16 }"
MORE = {
    "windowed": "window = 6",
    "experts": "n_experts = 4\nd_ff = 48\nbalance = 0.05",
    "hybrid": 'mixers = "gdn attention"\nwindow = 16' + SIZES,
    "recurrent": 'mixers = "mamba2 gla"' + SIZES,
    "shifted": "token_shift = true",
    "shifted-gpt": "token_shift = true\nembedding_norm = true",
    "shifted-angpt": "token_shift = true",
    "offset": "key_offset = true\nrotary_fraction = 0.5",
    "offset-gpt": "key_offset = true\nrotary_fraction = 0.5\ntoken_shift = true",
    "peri-ln": "output_norm = true\nembedding_norm = true\nbranch = 0.4",
}
"""What a run sets beside its architecture."""
CAUSAL = [name for name, (_, objective, _) in RUNS.items() if objective == "clm"]
TEXT = "The cat sat on the mat, and that was that. Ünïcode too!\n"
PROMPTS = ["The cat", "The cat sat on the mat, and"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Every run of RUNS in `run-NAME`, exported to `hf-NAME`."""
    folder = tmp_path_factory.mktemp("export")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("text.txt").write_text(TEXT * 60, encoding="utf-8")
        for name, (architecture, objective, tokenizer) in RUNS.items():
            settings = {"architecture": architecture, "objective": objective}
            settings |= {"tokenizer": tokenizer, "more": MORE.get(name, "")}
            Path("tiny.toml").write_text(RECIPE.format(**settings))
            assert main(["train", "tiny.toml", "--out", f"run-{name}"]) == 0
            assert main(["export", f"run-{name}", "--out", f"hf-{name}"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def loaded(path: Path, auto=AutoModelForCausalLM):
    """Model and tokenizer of an exported folder."""
    model = auto.from_pretrained(path, trust_remote_code=True).eval()
    return model, AutoTokenizer.from_pretrained(path, trust_remote_code=True)


def some(run, rows=2, length=20):
    """Random tokens that begin with the separator."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, run.tokenizer.vocab_size, (rows, length), generator=generator)
    tokens[:, 0] = run.tokenizer.separator
    return tokens


@pytest.mark.parametrize("name", RUNS)
@torch.no_grad()
def test_the_exported_model_says_what_the_run_says(folder, name):
    run = unitsphere.load(folder / f"run-{name}", "cpu")
    masked = run.config.objective == "mlm"
    auto = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    model, _ = loaded(folder / f"hf-{name}", auto)
    tokens = some(run)
    expected = run.model(tokens)
    assert (model(tokens).logits - expected).abs().max() < 1e-5 * max(1, expected.abs().max())
    base = AutoModel.from_pretrained(folder / f"hf-{name}", trust_remote_code=True).eval()
    assert base(tokens).last_hidden_state.shape == (*tokens.shape, 32)


@pytest.mark.parametrize("name", RUNS)
@torch.no_grad()
def test_an_exported_folder_comes_back_exactly(folder, name):
    run = unitsphere.load(folder / f"run-{name}", "cpu")
    back = unitsphere.load(folder / f"hf-{name}", "cpu")
    tokens = some(run)
    assert torch.equal(back.model(tokens), unitsphere.fold(run.model)(tokens))
    assert back.tokenizer.json == run.tokenizer.json
    assert back.tokenizer.fingerprint == run.tokenizer.fingerprint
    assert back.config.data == without_folders(run.config).data
    assert not back.model.training


@pytest.mark.parametrize("name", CAUSAL)
def test_generation_with_a_cache_without_one_and_by_the_run_is_the_same(folder, name):
    run = unitsphere.load(folder / f"run-{name}", "cpu")
    model, tokenizer = loaded(folder / f"hf-{name}")
    sep = run.tokenizer.separator
    rows = [[sep, *run.tokenizer.encode(prompt)] for prompt in PROMPTS]
    own = generate(run.model, rows, 12, stop=sep, vocab_size=run.tokenizer.vocab_size)
    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    settings = {"max_new_tokens": 12, "do_sample": False}
    cached = model.generate(**batch, **settings)
    assert torch.equal(model.generate(**batch, **settings, use_cache=False), cached)
    start = batch["input_ids"].shape[1]
    for row, expected, prompt in zip(cached, own, PROMPTS, strict=True):
        new = [token for token in row[start:].tolist() if token != sep]
        assert new == expected
        alone = tokenizer(prompt, return_tensors="pt")
        single = model.generate(**alone, **settings)[0, alone["input_ids"].shape[1] :]
        assert [token for token in single.tolist() if token != sep] == expected


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_left_padding_changes_nothing(folder, name):
    model, tokenizer = loaded(folder / f"hf-{name}")
    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    assert (batch["attention_mask"][0] == 0).any()
    padded = model(**batch).logits[0, batch["attention_mask"][0].bool()]
    alone = model(**tokenizer(PROMPTS[0], return_tensors="pt")).logits[0]
    assert torch.allclose(padded, alone, atol=1e-5 * max(1, alone.abs().max().item()))


@pytest.mark.parametrize(
    "name", ["angpt", "windowed", "hybrid", "recurrent", "shifted", "offset-gpt"]
)
def test_beams_find_what_is_at_least_as_likely_as_the_greedy_text(folder, name):
    model, tokenizer = loaded(folder / f"hf-{name}")
    batch = tokenizer("The", return_tensors="pt")
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    settings |= {"return_dict_in_generate": True, "output_scores": True}

    def nats(**extra) -> float:
        found = model.generate(**batch, **settings, **extra).sequences
        with torch.no_grad():
            return -model(found, labels=found).loss.item()

    assert model.generate(**batch, **settings, num_beams=3).sequences.shape[1] == (
        batch["input_ids"].shape[1] + 6
    )
    assert nats(num_beams=8) >= nats() - 0.05  # the cut-off ids are in the sum


def test_a_repetition_penalty_is_transformers_own(folder):
    prompt = "The cat sat on the mat, and that was that. The cat"
    run = unitsphere.load(folder / "run-ngpt", "cpu")
    model, tokenizer = loaded(folder / "hf-ngpt")
    batch = tokenizer(prompt, return_tensors="pt")
    found = model.generate(**batch, max_new_tokens=12, do_sample=False, repetition_penalty=2.0)
    own = generate_text(run.model, run.tokenizer, [prompt], 12, repetition_penalty=2.0)[0]
    assert tokenizer.decode(found[0], skip_special_tokens=True) == own.prompt + own.text
    assert own.text != generate_text(run.model, run.tokenizer, [prompt], 12)[0].text


def test_only_ids_with_a_token_behind_them_are_drawn(folder):
    run = unitsphere.load(folder / "run-ngpt", "cpu")
    model, tokenizer = loaded(folder / "hf-ngpt")
    assert model.config.vocab_size > run.tokenizer.vocab_size
    batch = tokenizer(["The"] * 16, return_tensors="pt")
    torch.manual_seed(0)
    drawn = model.generate(**batch, max_new_tokens=20, do_sample=True, temperature=50.0, top_k=0)
    assert drawn.max() < run.tokenizer.vocab_size


@pytest.mark.parametrize("name", ["ngpt", "gpt", "masked"])
def test_the_tokenizer_is_the_run_s_with_the_separator_before_a_text(folder, name):
    run = unitsphere.load(folder / f"run-{name}", "cpu")
    tokenizer = AutoTokenizer.from_pretrained(folder / f"hf-{name}", trust_remote_code=True)
    sep = run.tokenizer.separator
    for text in (TEXT, "", " two  spaces \n", "ж 漢 🙂 \x7f"):
        ids = run.tokenizer.encode(text)
        assert tokenizer(text)["input_ids"] == [sep, *ids]
        assert tokenizer.decode([sep, *ids], skip_special_tokens=True) == text
    if name != "masked":
        assert tokenizer("a<|endoftext|>b")["input_ids"] == [
            sep,
            *run.tokenizer.encode("a<|endoftext|>b"),
        ]


@pytest.mark.parametrize("name", ["ngpt", "normformer", "experts", "hybrid", "shifted"])
@torch.no_grad()
def test_saved_again_it_is_the_same_here_and_there(folder, tmp_path, name):
    model, tokenizer = loaded(folder / f"hf-{name}")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, tokens_again = loaded(tmp_path)
    batch = tokenizer(PROMPTS[1], return_tensors="pt")
    assert tokens_again(PROMPTS[1])["input_ids"] == batch["input_ids"][0].tolist()
    assert torch.equal(again(**batch).logits, model(**batch).logits)
    back = unitsphere.load(tmp_path, "cpu")
    first = unitsphere.load(folder / f"hf-{name}", "cpu")
    assert torch.equal(back.model(batch["input_ids"]), first.model(batch["input_ids"]))


@pytest.mark.parametrize("name", ["experts", "hybrid", "recurrent"])
@torch.no_grad()
def test_the_package_s_own_classes_take_the_weights(folder, name):
    path = folder / f"hf-{name}"
    model, _ = load_own(path, load_file(path / "model.safetensors"))
    tokens = some(unitsphere.load(folder / f"run-{name}", "cpu"))
    assert torch.equal(model(tokens).logits, loaded(path)[0](tokens).logits)


def test_the_text_generation_pipeline_continues_as_the_run_does(folder):
    from transformers import pipeline

    run = unitsphere.load(folder / "run-ngpt", "cpu")
    path = str(folder / "hf-ngpt")
    write = pipeline("text-generation", model=path, trust_remote_code=True, device="cpu")
    found = write(PROMPTS, max_new_tokens=10, do_sample=False, batch_size=2)
    expected = generate_text(run.model, run.tokenizer, PROMPTS, 10)
    assert [one[0]["generated_text"] for one in found] == [c.prompt + c.text for c in expected]


@torch.no_grad()
def test_the_fill_mask_pipeline_guesses_what_the_run_guesses(folder):
    from transformers import pipeline

    run = unitsphere.load(folder / "run-masked", "cpu")
    path = str(folder / "hf-masked")
    fill = pipeline("fill-mask", model=path, trust_remote_code=True, device="cpu")
    assert fill.tokenizer.mask_token_id == run.tokenizer.vocab_size
    guess = fill("The cat<mask> on the mat")[0]
    before, after = (run.tokenizer.encode(part) for part in ("The cat", " on the mat"))
    ids = [run.tokenizer.separator, *before, run.tokenizer.vocab_size, *after]
    logits = run.model(torch.tensor([ids]))[0, 1 + len(before)]
    assert guess["token"] == logits.argmax().item()
    assert guess["score"] == pytest.approx(logits.softmax(-1).max().item(), rel=1e-4)


@pytest.mark.parametrize("name", ["ngpt", "masked", "experts", "hybrid", "shifted"])
def test_trainer_learns_on_and_what_it_saves_comes_back(folder, tmp_path, name):
    from transformers import Trainer, TrainingArguments

    auto = AutoModelForMaskedLM if name == "masked" else AutoModelForCausalLM
    model, tokenizer = loaded(folder / f"hf-{name}", auto)
    ids = tokenizer([TEXT] * 8)["input_ids"]
    rows = [{"input_ids": row, "labels": row} for row in ids]
    before = model(torch.tensor(ids), labels=torch.tensor(ids)).loss.item()
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        learning_rate=1e-3,
        report_to=[],
        save_steps=2,
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model, arguments, train_dataset=rows, processing_class=tokenizer).train()
    model.eval()
    assert model(torch.tensor(ids), labels=torch.tensor(ids)).loss.item() < before
    back = unitsphere.load(tmp_path / "checkpoint-2", "cpu")
    run = unitsphere.load(folder / f"run-{name}", "cpu")
    assert back.tokenizer.encode(TEXT) == run.tokenizer.encode(TEXT)
    assert back.tokenizer.vocab_size == run.tokenizer.vocab_size
    tokens = torch.tensor(ids)
    with torch.no_grad():
        assert torch.allclose(back.model(tokens), model(tokens).logits, atol=1e-4)


@pytest.mark.parametrize("name", ["ngpt", "masked"])
@torch.no_grad()
def test_trainer_passes_on_which_tokens_are_padding(folder, tmp_path, name):
    """It drops the fields of a row that the model's `forward` does not name."""
    from transformers import Trainer, TrainingArguments

    auto = AutoModelForMaskedLM if name == "masked" else AutoModelForCausalLM
    model, tokenizer = loaded(folder / f"hf-{name}", auto)
    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    expected = model(**batch, labels=labels).loss.item()
    assert model(batch["input_ids"], labels=labels).loss.item() != pytest.approx(expected, rel=1e-4)
    rows = [{**{k: v[i] for k, v in batch.items()}, "labels": labels[i]} for i in range(2)]
    arguments = TrainingArguments(str(tmp_path), report_to=[], disable_tqdm=True, use_cpu=True)
    found = Trainer(model, arguments, eval_dataset=rows).evaluate()
    assert found["eval_loss"] == pytest.approx(expected, rel=1e-6)


def test_the_loss_of_labels_is_that_of_the_run(folder):
    run = unitsphere.load(folder / "run-ngpt", "cpu")
    model, _ = loaded(folder / "hf-ngpt")
    tokens = some(run)
    expected = run.model.loss(tokens[:, :-1], tokens[:, 1:])
    assert model(tokens, labels=tokens).loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("name", ["ngpt", "hybrid", "recurrent"])
def test_what_padding_predicts_gives_finite_gradients(folder, name):
    """A collator that hides only the padding scores a text's first token after the last of it."""
    model, tokenizer = loaded(folder / f"hf-{name}")
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    assert not inputs["attention_mask"][0, 0]
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    model(**inputs, labels=labels).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_the_folder_needs_no_package_but_torch_and_transformers(folder):
    run = unitsphere.load(folder / "run-ngpt", "cpu")
    script = (
        "import sys; sys.modules['unitsphere'] = None\n"
        "from transformers import AutoModelForCausalLM as A, AutoTokenizer as T\n"
        "m = A.from_pretrained('hf-ngpt', trust_remote_code=True)\n"
        "t = T.from_pretrained('hf-ngpt', trust_remote_code=True)\n"
        "b = t('The cat', return_tensors='pt')\n"
        "o = m.generate(**b, max_new_tokens=10, do_sample=False)\n"
        "print(t.decode(o[0], skip_special_tokens=True), end='')"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = generate_text(run.model, run.tokenizer, ["The cat"], 10)[0]
    assert found.stdout == "The cat" + expected.text


def test_half_precision_generates(folder):
    path = folder / "hf-angpt"
    model = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=True)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    out = model.generate(**tokenizer("The", return_tensors="pt"), max_new_tokens=4)
    assert out.shape[1] > 4


def test_the_card_says_what_the_run_s_folder_says(folder):
    card = (folder / "hf-ngpt" / "README.md").read_text(encoding="utf-8")
    assert str(folder) not in card + (folder / "hf-ngpt" / "config.json").read_text()
    last = [
        json.loads(line)
        for line in (folder / "run-ngpt" / "metrics.jsonl").read_text().splitlines()
    ][-1]
    assert f"{last['val_loss']:.4f}" in card
    assert f"{last['val_bits_per_byte']:.4f}" in card
    assert f"| training tokens | {20 * 192:,} |" in card
    run = unitsphere.load(folder / "run-ngpt", "cpu")
    trained = sum(p.numel() for p in run.model.parameters())
    assert f"| parameters, trained | {trained:,} |" in card
    here = sum(t.numel() for t in load_file(folder / "hf-ngpt" / "model.safetensors").values())
    assert f"| parameters, in this folder | {here:,} |" in card
    assert here < trained


def letters(text: str) -> list[str]:
    return [c for c in text if c.isprintable() and c != "\N{REPLACEMENT CHARACTER}"]


def test_the_card_s_head_is_what_the_hub_reads_and_unknowns_are_said_plainly(folder):
    from huggingface_hub import ModelCard

    card = ModelCard.load(folder / "hf-ngpt" / "README.md")
    assert card.data.license == "unknown"
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-generation"
    assert card.data.tags == ["unitsphere", "ngpt"]
    assert "| licence of the weights | not known" in card.text
    assert "| language | not known" in card.text
    assert "| data | `text.txt` |" in card.text
    samples = (folder / "run-ngpt" / "samples.txt").read_text(encoding="utf-8")
    (written,) = re.findall(r"after step 20, .*?\n```text\n(.*?)\n```", card.text, re.DOTALL)
    shown = samples.partition("--- step 20\n")[2]
    assert letters(written) == letters(shown) != []


def test_the_card_of_a_run_on_python_s_source_knows_its_language(tmp_path):
    config = load_recipe("quickstart/ngpt")
    assert origin(config)["licence of the data"].startswith("PSF-2.0")
    assert origin(config)["language"] == "English and Python"
    assert origin(config)["held out for validation"] == "2% of it"
    few = dataclasses.replace(config, data=dataclasses.replace(config.data, val_fraction=4e-4))
    assert origin(few)["held out for validation"] == "0.04% of it"
    (tmp_path / "samples.txt").write_text("--- step 3\na ```` b\x1b\n\n--- step 9\nlater\n\n")
    assert sample(tmp_path, 5).endswith("`````text\na ```` b\N{REPLACEMENT CHARACTER}\n`````")
    assert "no sample" in sample(tmp_path, 2)


def test_what_torchao_says_at_its_import_is_kept_out_and_no_more(caplog):
    said = {
        "torchao": ["Failed to load _C.so: no", "something else"],
        "torch.utils._pytree": ["<enum 'X'> is an Enum subclass and is", "another thing"],
    }
    for logger, messages in said.items():
        for message in messages:
            logging.getLogger(logger).warning(message)
    assert [r.getMessage() for r in caplog.records] == ["something else", "another thing"]


class Engine:
    """The attention of one layer in a serving engine, which keeps keys and values itself."""

    def __init__(self):
        self.keys, self.values = [], []

    def __call__(self, q, k, v, scale):
        """Heads of new tokens [H, new, d_k] against all so far -> [new, H·d_k]."""
        self.keys.append(k)
        self.values.append(v)
        k, v = (torch.cat(kept, dim=1) for kept in (self.keys, self.values))
        k, v = (x.repeat_interleave(len(q) // len(x), dim=0) for x in (k, v))
        scores = q @ k.mT * scale
        past = k.shape[1] - q.shape[1]
        unseen = torch.ones_like(scores, dtype=torch.bool).triu(past + 1)
        y = scores.masked_fill(unseen, -torch.inf).softmax(-1) @ v
        return y.transpose(0, 1).flatten(1)


def engine_attention(module, q, k, v, attention_mask, scaling, attention_instances, **kwargs):
    """As vLLM's Transformers backend puts its own attention in a model's place."""
    assert attention_mask is None
    return attention_instances[module.layer_idx](q[0], k[0], v[0], scaling), None


NO_ENGINE = {"windowed", "hybrid", "recurrent", "shifted", "shifted-gpt", "shifted-angpt"}
NO_ENGINE |= {"offset", "offset-gpt"}


@pytest.mark.parametrize("name", sorted({*CAUSAL} - NO_ENGINE))
@torch.no_grad()
def test_an_engine_s_attention_takes_the_place_of_its_own(folder, name):
    AttentionInterface.register("engine", engine_attention)
    path, run = folder / f"hf-{name}", unitsphere.load(folder / f"run-{name}")
    tokens = some(run, rows=1)
    expected = loaded(path)[0](tokens).logits
    model = AutoModelForCausalLM.from_pretrained(
        path, trust_remote_code=True, attn_implementation="engine"
    ).eval()
    layers = {layer: Engine() for layer in range(model.config.num_hidden_layers)}
    parts = []
    for begin, end in ((0, 13), (13, 14), (14, 20)):  # a prompt, a token, some tokens
        (h,) = model.model(
            input_ids=tokens[:, begin:end],
            position_ids=torch.arange(begin, end)[None],
            use_cache=False,
            attention_instances=layers,
            return_dict=False,
        )
        parts.append(model.lm_head(h))
    assert all(len(engine.keys) == 3 for engine in layers.values())
    assert torch.allclose(torch.cat(parts, 1), expected, atol=1e-4)


def test_a_token_shift_says_what_it_needs(folder):
    model, _ = loaded(folder / "hf-shifted")
    tokens = torch.tensor([[5, 9, 2, 40, 8]])
    whole = model(tokens).logits
    cache = model(tokens[:, :3]).past_key_values
    with pytest.raises(ValueError, match="needs previous_ids with a cache"):
        model(tokens[:, 3:], past_key_values=cache)
    rest = model(tokens[:, 3:], past_key_values=cache, previous_ids=tokens[:, 2:3]).logits
    torch.testing.assert_close(rest, whole[:, 3:], rtol=0, atol=1e-5)
    AttentionInterface.register("vllm", engine_attention)
    with pytest.raises(ValueError, match="vllm does not tell the token before"):
        AutoModelForCausalLM.from_pretrained(
            folder / "hf-shifted", trust_remote_code=True, attn_implementation="vllm"
        )


def test_an_engine_that_keeps_the_keys_gets_no_key_offset(folder):
    AttentionInterface.register("vllm", engine_attention)
    with pytest.raises(ValueError, match="vllm keeps the keys: no key_offset"):
        AutoModelForCausalLM.from_pretrained(
            folder / "hf-offset", trust_remote_code=True, attn_implementation="vllm"
        )


@pytest.mark.parametrize("name", ["shifted", "offset"])
def test_continuous_batching_refuses_what_reads_the_token_before(folder, name):
    model, _ = loaded(folder / f"hf-{name}")
    with pytest.raises(ValueError, match="continuous batching does not pass on the previous token"):
        model.init_continuous_batching()  # as `generate_batch` does


@torch.no_grad()
def test_continuous_batching_gives_the_text_of_a_prompt_alone(folder):
    from transformers import ContinuousBatchingConfig

    model, _ = loaded(folder / "hf-windowed")
    prompts = [[0, *b"The cat sat on the mat, and"], [0, *b"that"]]
    sizes = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64)
    together = model.generate_batch(
        prompts, max_new_tokens=5, continuous_batching_config=sizes, warmup=False
    )
    for prompt, found in zip(prompts, together.values(), strict=True):
        alone = model.generate(torch.tensor([prompt]), max_new_tokens=5, do_sample=False)
        assert found.generated_tokens == alone[0, len(prompt) :].tolist()


def test_auto_map_names_what_other_engines_ask_for(folder):
    config = AutoConfig.from_pretrained(folder / "hf-ngpt", trust_remote_code=True)
    assert set(config.auto_map) == {"AutoConfig", "AutoModel", "AutoModelForCausalLM"}
    masked = AutoConfig.from_pretrained(folder / "hf-masked", trust_remote_code=True)
    assert set(masked.auto_map) == {"AutoConfig", "AutoModel", "AutoModelForMaskedLM"}


@torch.no_grad()
def test_shards_by_the_tensor_parallel_plan_add_up_to_the_layer():
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = UnitsphereConfig(**shape, intermediate_size=48, num_hidden_layers=1, rotary_dim=8)
    whole = UnitsphereModel(config).eval().layers[0]
    plan = {name.removeprefix("layers.*."): how for name, how in config.base_model_tp_plan.items()}
    assert {n.removesuffix(".weight") for n in whole.state_dict() if "proj" in n} == plan.keys()
    halved = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24}
    x, angles = torch.randn(2, 5, 32), rope_table(torch.arange(5)[None], 8, 10000.0)
    mask = torch.full((5, 5), -torch.inf).triu(1)
    found = []
    for rank in range(2):
        part = UnitsphereModel(UnitsphereConfig(**config.to_dict() | halved)).eval().layers[0]
        for name, weight in whole.state_dict().items():
            how = plan.get(name.removesuffix(".weight"))
            mine = weight.chunk(2, dim=0 if how == "colwise" else 1)[rank] if how else weight
            part.get_parameter(name).copy_(mine)
        found.append((part.self_attn(x, angles, attention_mask=mask)[0], part.mlp(x)))
    sums = [torch.stack(shards).sum(0) for shards in zip(*found, strict=True)]
    expected = whole.self_attn(x, angles, attention_mask=mask)[0], whole.mlp(x)
    for one, other in zip(sums, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    assert UnitsphereConfig(logit_gain=True).base_model_tp_plan is None
    assert UnitsphereConfig(block="step").base_model_tp_plan is None


def test_verbs_take_an_exported_folder_for_a_run(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    found = []
    for argv in (["run-ngpt"], ["run-ngpt", "--fold"], ["hf-ngpt"]):
        capsys.readouterr()
        assert main(["eval", *argv, "--data", "text.txt", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[1]["loss"] == pytest.approx(found[0]["loss"], abs=1e-5)
    assert found[2] == found[1] | {"run": "hf-ngpt"}


def test_an_earlier_checkpoint_is_exported_with_its_own_figures(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    recipe = Path("twice.toml")
    recipe.write_text(
        RECIPE.format(architecture="ngpt", objective="clm", more="", tokenizer="bytes")
    )
    more = ["--train.save_every", "10", "--train.eval_every", "10", "--train.sample_every", "10"]
    assert main(["train", str(recipe), "--out", "run-twice", *more]) == 0
    early, last = sorted(Path("run-twice/checkpoints").glob("step-*"))
    for given, out, step in ((early, "hf-early", 10), (last, "hf-last", 20)):
        assert main(["export", str(given), "--out", out]) == 0
        card = Path(out, "README.md").read_text()
        assert f"| steps | {step} of 20 |" in card
        assert f"(step {step})" in card
        assert ("after step 20, and not chosen" in card) == (step == 20)
        wanted = unitsphere.load(given).model
        tokens = torch.arange(24)[None]
        found = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)(tokens).logits
        assert torch.allclose(found, wanted(tokens), atol=1e-4)
    assert main(["export", "run-twice", "--out", "hf-newest"]) == 0
    newest = [load_file(Path(out, "model.safetensors")) for out in ("hf-newest", "hf-last")]
    early = load_file(Path("hf-early", "model.safetensors"))
    assert all(torch.equal(newest[0][name], newest[1][name]) for name in newest[0])
    assert any(not torch.equal(newest[0][name], early[name]) for name in early)
    # A run that trains on: its last checkpoint is written after the one before was loaded.
    hidden = last.rename("hidden")
    load_run = load.load_run

    def and_train_on(*arguments, **settings):
        found = load_run(*arguments, **settings)
        hidden.rename(last)
        return found

    monkeypatch.setattr(load, "load_run", and_train_on)
    assert main(["export", "run-twice", "--out", "hf-live"]) == 0
    live = load_file(Path("hf-live", "model.safetensors"))
    assert all(torch.equal(live[name], early[name]) for name in early)
    assert "| steps | 10 of 20 |" in Path("hf-live", "README.md").read_text()
    shutil.rmtree("run-twice")
    capsys.readouterr()


def test_json_and_refusals_are_one_line(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert main(["export", "run-angpt", "--out", str(tmp_path / "new"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["difference"] <= 1e-5 * max(1, document["largest_logit"])
    pack(Path("run-ngpt"), tmp_path / "run.tar.gz")
    for argv, why in (
        ([str(tmp_path / "run.tar.gz"), "--out", str(tmp_path / "e")], "is an archive, which"),
        (["run-ngpt", "--out", "hf-gpt"], "is not empty"),
        (["run-ngpt", "--out", str(tmp_path / "run.tar.gz")], "is a file"),
        (["hf-ngpt", "--out", str(tmp_path / "b")], "exported folder already"),
        (["cache", "--out", str(tmp_path / "c")], "is not a run folder"),
    ):
        assert main(["export", *argv]) == 2
        error = capsys.readouterr().err
        assert why in error
        assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "run.tar.gz"]
