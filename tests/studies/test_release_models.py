"""The release files: archives that load, each with its card and its checksum."""

import hashlib

import pytest
import torch
from scripts import load_script
from tiny_recipe import TEXT

import unitsphere


@pytest.fixture(scope="module")
def models():
    return load_script("models")


def test_a_model_is_trained_packed_and_described_by_one_command(models, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT * 40)
    argv = ["--only", "ngpt-1m", "--out", str(tmp_path / "dist"), "--runs", str(tmp_path / "runs")]
    argv += ["--tokens", "256", "--data.source", str(tmp_path / "text.txt")]
    argv += ["--data.cache", str(tmp_path / "cache"), "--data.tokenizer", "bytes"]
    argv += ["--data.context", "16", "--train.batch_tokens", "128", "--model.d_model", "32"]
    argv += ["--model.n_layers", "1", "--model.n_heads", "2", "--train.device", "cpu"]
    assert models.main(argv) == 0
    path = tmp_path / "dist/ngpt-1m.tar.gz"
    first = path.read_bytes()
    sums = (tmp_path / "dist/SHA256SUMS").read_text()
    assert sums == f"{hashlib.sha256(first).hexdigest()}  ngpt-1m.tar.gz\n"
    assert "# ngpt-1m" in (tmp_path / "dist/ngpt-1m.md").read_text()
    tokens = torch.arange(8)[None]
    with torch.inference_mode():
        expected = unitsphere.fold(unitsphere.load(tmp_path / "runs/ngpt-1m", "cpu").model)(tokens)
        assert torch.equal(unitsphere.load(path, "cpu").model(tokens), expected)
    assert models.main(argv) == 0  # the run is finished: only packed again
    assert path.read_bytes() == first


def test_an_unknown_setting_ends_with_its_exit_code(models, tmp_path):
    out = ["--out", str(tmp_path / "dist"), "--runs", str(tmp_path / "runs")]
    assert models.main([*out, "--model.nothing", "1"]) == 2
