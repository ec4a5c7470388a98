"""The state of attention while a model decodes."""

import pytest
import torch

from unitsphere.errors import UserError
from unitsphere.models.registry import build


def test_a_cache_that_is_full_takes_no_further_token():
    """One more would be lost without a word: the query would see the others, and not itself."""
    model = build("ngpt", vocab_size=20, d_model=16, n_layers=1, n_heads=2).eval()
    tokens = torch.arange(7)[None]
    cache = model.new_cache(1, 6)
    with torch.no_grad():
        found = model(tokens[:, :6], cache)
        torch.testing.assert_close(found, model(tokens[:, :6]))
        with pytest.raises(UserError, match="a cache for 6 tokens cannot take 7"):
            model(tokens[:, 6:], cache)
