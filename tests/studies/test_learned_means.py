"""The means of learned scales: those of their size where a sign changes nothing."""

import pytest
import torch

from unitsphere import build
from unitsphere.studies.tables import means_of


def test_a_sign_that_changes_nothing_cancels_nothing():
    model = build("ngpt", vocab_size=11, d_model=16, n_layers=2, n_heads=2)
    tokens = torch.arange(8).reshape(1, 8)
    means, logits = means_of(model), model(tokens)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.s_qk.stored[::2] *= -1
            block.alpha_A.stored[::2] *= -1
    assert torch.equal(model(tokens), logits)
    assert means_of(model) == pytest.approx(means)
    with torch.no_grad():
        model.s_z.stored[::2] *= -1
    assert not torch.allclose(model(tokens), logits)
    assert abs(means_of(model)["s_z"]) < means["s_z"] / 2
