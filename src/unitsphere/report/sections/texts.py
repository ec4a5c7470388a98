"""Texts on the page: what runs wrote in training, new ones, and models that its reader writes with.

The models (`playground_section`) are int8 weights, config and tokenizer, for static/model.js. What
is rounded is the folded model that `unitsphere export` writes, each row of a matrix to int8 with a
scale in fp16 (`inference.quantize`), so the browser needs no other form of an architecture.
"""

import base64
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unitsphere.config import parse_json
from unitsphere.data.tokenizer import ByteTokenizer, Tokenizer
from unitsphere.errors import UserError
from unitsphere.inference.generate import generate_text
from unitsphere.inference.hf.export import config_fields
from unitsphere.inference.quantize import codes
from unitsphere.models.exported import exported_tensors, is_tied, not_exportable
from unitsphere.models.plans import fold_
from unitsphere.models.trunk import Transformer
from unitsphere.ops.rope import rope_frequencies
from unitsphere.report.document import Page, Playground, Sample, Samples, Section
from unitsphere.report.runs import Run, is_run, name_of
from unitsphere.training.load import load_run

MOST = 6
"""Texts of a run that the page shows: its first and its last ones."""
TOKENS = 200
"""Tokens of a new text."""


def sample_sections(runs: Sequence[Run], each: int = MOST) -> list[Section]:
    """What the runs wrote, `each` texts of each; no section if they wrote none."""
    shown = []
    for run in runs:
        texts = run.samples
        kept = texts if len(texts) <= each else [*texts[: each // 2], *texts[-(each - each // 2) :]]
        shown += [Sample(f"{run.name}, step {step:,}", text) for step, text in kept]
    return [samples_section(shown)] if shown else []


def samples_section(samples: Sequence[Sample]) -> Section:
    """The texts under their heading."""
    told = "Written by the model, not chosen."
    return Section("samples", "Samples", [Samples(samples)], told, detail=True)


def fresh_samples(folder: Path, count: int) -> list[Sample]:
    """Texts by the newest checkpoint of a run, at a temperature of 0.8 as those in training.

    Each has another seed.

    Raises UserError for a folder without a run, a run without a checkpoint, or one that writes no
    text from nothing.
    """
    if not is_run(folder):
        raise UserError(f"{folder} holds no run: --samples needs one")
    loaded = load_run(folder)
    if loaded.model.objective != "clm":
        raise UserError(f"the model in {folder} writes no text by itself: leave --samples out")
    write = partial(generate_text, loaded.model, loaded.tokenizer, [""], TOKENS, temperature=0.8)
    return [
        Sample(f"From the last checkpoint, seed {seed}", write(seed=seed)[0].text)
        for seed in range(count)
    ]


def with_samples(page: Page, samples: Sequence[Sample]) -> Page:
    """The page with more texts, at the end of its own or in a new part before the settings."""
    own = [each for b in page.blocks() if isinstance(b, Samples) for each in b.samples]
    return page.with_section(samples_section([*own, *samples]))


MOST_PARAMETERS = 50_000_000
"""Of the models of a page: they make it about 70 MB large."""
INTRO = (
    "Give the beginning of a text, and the model continues it here, in the browser: nothing is "
    "sent anywhere. Its weights are rounded to int8, so losses above are not quite its own."
)
FIELDS = {
    "architecture", "attention_scale", "block", "head_dim", "hidden_act", "hidden_size",
    "initializer_range", "intermediate_size", "is_causal", "layer_types", "logit_gain",
    "max_position_embeddings", "norm", "norm_bias", "norm_eps", "num_attention_heads",
    "num_hidden_layers", "num_key_value_heads", "qk_norm", "qk_scale", "residual_gate",
    "rope_theta", "rotary_dim", "sliding_window", "step", "tie_word_embeddings", "vocab_size",
}  # fmt: skip
"""What model.js knows of an exported config, or may ignore."""
KEYS = {
    "attention_output_norm": "model.output_norm",
    "key_offset": "model.key_offset",
    "mixer_conv": "model.mixers",
    "num_experts": "model.n_experts",
    "token_shift": "model.token_shift",
}
"""Field that model.js does not know -> the key that the run was trained with."""
VALUES = {
    "block": {"pre_norm", "step"},
    "norm": {"rms", "dyt", "none"},
    "hidden_act": {"silu", "relu2"},
    "step": {"lerp_norm", "lerp_nu", "lerp", "add_norm"},
}
"""Field -> the values that model.js knows."""


def playground_section(folders: Sequence[Path]) -> Section:
    """The part of the page in which its reader writes with the runs' models.

    Raises UserError for a folder that is not a run, or whose model or tokenizer model.js does not
    have, or for models that are too large for a page.
    """
    for folder in folders:
        if not is_run(folder):
            raise UserError(f"{folder} is not a run: --playground needs run folders")
    models = [run_document(folder) for folder in folders]
    return Section("playground", "Write with the model", [Playground(models)], INTRO, detail=True)


def run_document(folder: Path) -> dict[str, Any]:
    """`model_document` of the newest checkpoint of a run."""
    model, tokenizer, config = load_run(folder, "cpu")
    try:
        return model_document(name_of(folder.resolve()), config.architecture, model, tokenizer)
    except UserError as error:
        raise UserError(f"the model of {folder} does not run in a page: {error}") from error


def model_document(
    name: str, architecture: str, model: Transformer, tokenizer: Tokenizer
) -> dict[str, Any]:
    """What model.js runs, as JSON; `model` is folded by it, in fp32.

    codes: the matrices' int8. floats: for each tensor its scales, if it is a matrix, or its values;
    little-endian fp32. Both in base64 and in the order of `tensors`, names with shapes.
    frequencies: RoPE's, as torch computes them: the browser's own may differ in the last bit.
    """
    refuse(model)
    tied = is_tied(fold_(model.float()))
    tensors, _ = exported_tensors(architecture, model)
    fields = config_fields(architecture, model, tied, 0)
    refuse_fields(fields)
    whole, floats = [], []
    for tensor in tensors.values():
        if tensor.dim() == 2:
            tensor, scale = codes(tensor, 8)
            whole.append(tensor.to(torch.int8))
            floats.append(scale)
        else:
            floats.append(tensor)
    return {
        "name": name,
        "config": fields,
        "tokenizer": tokenizer_document(tokenizer),
        "tensors": [(key, list(tensor.shape)) for key, tensor in tensors.items()],
        "frequencies": rope_frequencies(model.d_rot, model.rope_base).tolist(),
        "codes": encoded(whole, "<i1"),
        "floats": encoded(floats, "<f4"),
    }


def encoded(tensors: Iterable[Tensor], dtype: str) -> str:
    """The elements of tensors, one after another, in base64."""
    parts = [np.ascontiguousarray(tensor.numpy(), dtype).tobytes() for tensor in tensors]
    return base64.b64encode(b"".join(parts)).decode()


def refuse(model: Transformer) -> None:
    """Raise UserError for a model that has no exported form, that writes no text, or is large."""
    if model.objective != "clm":
        raise UserError(f"its objective is {model.objective}, and only clm continues a text")
    if reason := not_exportable(model):
        raise UserError(f"it has {reason}")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters > MOST_PARAMETERS:
        raise UserError(f"it has {parameters:,} parameters, of at most {MOST_PARAMETERS:,}")


def refuse_fields(fields: dict[str, Any]) -> None:
    """Raise UserError for an exported config of which model.js does not know everything."""
    for key, known in VALUES.items():
        if key in fields and fields[key] not in known:
            raise UserError(f"static/model.js has no {key} '{fields[key]}'")
    if unknown := sorted(fields.keys() - FIELDS):
        raise UserError(f"static/model.js does not know {KEYS.get(unknown[0], unknown[0])}")


def tokenizer_document(tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokenizer for model.js: bytes, or a byte-level BPE as `data.tokenizer.train_bpe` makes.

    Raises UserError for any other.
    """
    shared = {"size": tokenizer.vocab_size, "separator": tokenizer.separator}
    if isinstance(tokenizer, ByteTokenizer):
        return shared | {"kind": "bytes"}
    document = parse_json(tokenizer.json)
    model, split = document["model"], document.get("pre_tokenizer") or {}
    plain = {"add_prefix_space": False, "use_regex": True}
    odd = (
        model.get("type") != "BPE"
        or document.get("normalizer")
        or split.get("type") != "ByteLevel"
        or any(split.get(key) != value for key, value in plain.items())
        or (document.get("decoder") or {}).get("type") != "ByteLevel"
        or any(model.get(key) for key in BPE_OPTIONS)
    )
    if odd:
        raise UserError("its tokenizer is not a byte-level BPE as 'bpe:N' trains it")
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    return shared | {"kind": "bpe", "vocab": model["vocab"], "merges": pairs}


BPE_OPTIONS = (
    "dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges",
)  # fmt: skip
"""Of a tokenizer.json's BPE: with one of them it encodes in another way."""
