"""The playground of a page: what it holds of a model, and what it refuses."""

import base64
import json

import numpy as np
import pytest
import torch
from report.made_up import make_run
from torch import Tensor

import unitsphere
from unitsphere.data.tokenizer import ByteTokenizer, JsonTokenizer, train_bpe
from unitsphere.errors import UserError
from unitsphere.inference.quantize import Format, dequantised
from unitsphere.models.exported import exported_tensors
from unitsphere.models.plans import fold_
from unitsphere.models.trunk import Transformer
from unitsphere.report.sections.texts import model_document
from unitsphere.report.write import write_page

SHAPE = {"d_model": 64, "n_layers": 2, "n_heads": 2, "vocab_size": 320}
ARMS = {
    "gpt-plus": ("gpt", {"qk_norm": True, "rotary_fraction": 0.5}),
    "ngpt": ("ngpt", {}),
    "best": ("ngpt", {"residual": "gated"}),
}
"""Architecture and switches of what most pages show."""
OTHERS = {
    "angpt": ("angpt", {}),
    "rezero": ("rezero", {}),
    "dyt": ("dyt", {}),
    "lnscaling": ("lnscaling", {}),
    "grouped, in a window, tied": ("gpt", {"n_kv_heads": 1, "window": 7, "tied": True}),
}


def made(architecture: str, more: dict, seed: int = 0) -> Transformer:
    """A model whose parameters are all away from their starts."""
    torch.manual_seed(seed)
    model = unitsphere.build(architecture, **{**SHAPE, **more}, device="cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() < 2 or "stored" in name:
                parameter.mul_(1 + 0.3 * noise).add_(0.05 * noise)
            elif architecture not in ("ngpt", "angpt"):
                parameter.add_(0.08 * noise)
    return model.eval()


def tensors_of(document: dict) -> dict[str, Tensor]:
    """The weights that a page holds, as numbers: codes times their scales."""
    codes = np.frombuffer(base64.b64decode(document["codes"]), np.int8)
    floats = np.frombuffer(base64.b64decode(document["floats"]), "<f4").copy()
    found = {}
    for name, shape in document["tensors"]:
        size = int(np.prod(shape))
        if len(shape) == 2:
            scales, floats = floats[: shape[0], None], floats[shape[0] :]
            found[name] = torch.tensor(codes[:size].reshape(shape) * scales)
            codes = codes[size:]
        else:
            found[name], floats = torch.tensor(floats[:size].reshape(shape)), floats[size:]
    assert len(codes) == len(floats) == 0
    return found


@pytest.mark.parametrize("name", ARMS)
def test_the_page_holds_the_folded_weights_as_int8(name):
    architecture, more = ARMS[name]
    document = model_document(name, architecture, made(architecture, more), ByteTokenizer())
    model = fold_(made(architecture, more))
    expected, _ = exported_tensors(architecture, model)
    found = tensors_of(json.loads(json.dumps(document)))
    assert found.keys() == expected.keys()
    for key, tensor in found.items():
        like = expected[key]
        rounded = dequantised(like, Format("int8", 8)) if like.dim() == 2 else like
        assert torch.equal(tensor, rounded)


def test_the_tokenizer_is_the_run_s():
    tokenizer = train_bpe(["the cat sat on the mat, and that was that"] * 9, 300)
    document = model_document("m", "gpt", made("gpt", {}), tokenizer)["tokenizer"]
    assert document["kind"] == "bpe"
    assert document["separator"] == tokenizer.separator
    assert document["vocab"] == json.loads(tokenizer.json)["model"]["vocab"]
    assert len(document["merges"]) == len(json.loads(tokenizer.json)["model"]["merges"])


@pytest.mark.parametrize(
    ("architecture", "more", "said"),
    [
        ("ngpt", {"objective": "mlm"}, "objective is mlm"),
        ("ngpt", {"residual": "slerp"}, "residual 'slerp'"),
        ("gpt", {"softcap": 15.0}, "softcap"),
        ("normformer", {}, "no block 'normformer'"),
        ("ngpt", {"token_shift": True}, r"does not know model\.token_shift"),
        ("ngpt", {"key_offset": True, "rotary_fraction": 0.5}, r"not know model\.key_offset"),
        ("ngpt", {"n_experts": 4}, r"does not know model\.n_experts"),
        ("ngpt", {"mixers": "gdn attention"}, r"does not know model\.mixers"),
        ("gpt", {"output_norm": True}, r"does not know model\.output_norm"),
    ],
)
def test_a_model_that_the_page_cannot_run_is_refused_in_one_line(architecture, more, said):
    model = unitsphere.build(architecture, **{**SHAPE, **more}, device="cpu")
    with pytest.raises(UserError, match=said) as raised:
        model_document("m", architecture, model, ByteTokenizer())
    assert "\n" not in str(raised.value)


def test_another_kind_of_tokenizer_is_refused():
    document = json.loads(train_bpe(["some text"], 280).json)
    document["normalizer"] = {"type": "NFC"}
    tokenizer = JsonTokenizer(json.dumps(document), "other")
    with pytest.raises(UserError, match="not a byte-level BPE"):
        model_document("m", "gpt", made("gpt", {}), tokenizer)


def test_a_page_without_a_playground_does_not_grow(tmp_path):
    page = write_page(make_run(tmp_path / "run", "quickstart/ngpt")).path.read_text()
    assert "class Panel" not in page
    assert ".written" not in page


def test_what_is_not_a_run_or_has_no_checkpoint_is_refused(tmp_path):
    run = make_run(tmp_path / "runs/one", "quickstart/ngpt")
    with pytest.raises(UserError, match="no complete checkpoint"):
        write_page(run, playground=True)
    with pytest.raises(UserError, match="--playground needs run folders"):
        write_page(tmp_path / "runs", playground=True)
