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


@pytest.mark.parametrize("mixers", ["attention", "gdn"])
def test_a_cache_takes_only_the_batch_that_it_is_for(mixers):
    """A single row would be broadcast to all of them; `reorder` changes the batch."""
    model = build("ngpt", vocab_size=20, d_model=16, n_layers=1, n_heads=2, mixers=mixers).eval()
    tokens = torch.arange(6).reshape(2, 3)
    cache = model.new_cache(2, 6)
    with torch.no_grad():
        model(tokens, cache)
        with pytest.raises(UserError, match="a cache for 2 rows cannot take 1"):
            model(tokens[:1], cache)
        cache.reorder(torch.tensor([1]))
        torch.testing.assert_close(
            model(tokens[1:], cache), model(tokens[1:].repeat(1, 2))[:, 3:], rtol=1e-4, atol=1e-5
        )
