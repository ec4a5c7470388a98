"""transformers' own Llama as an arm of `bench generate`: the same shape, its own `generate`."""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from unitsphere.bench.arms import Sizes
from unitsphere.errors import UserError

LLAMA = "llama"
"""The arm's name."""


def llama(sizes: Sizes, device: torch.device) -> Callable[[list[list[int]], int], torch.Tensor]:
    """Continues prompts of one length greedily by a number of tokens, as its users would.

    An MLP of 4·d_model, as the other arms have it, no end token, transformers' choice of attention.
    """
    if importlib.util.find_spec("transformers") is None:
        raise UserError("the arm llama needs transformers: pip install 'unitsphere[hf]'")
    from transformers import LlamaConfig, LlamaForCausalLM

    import unitsphere.inference.hf  # noqa: F401 - it silences torchao

    config = LlamaConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.d_model,
        intermediate_size=4 * sizes.d_model,
        num_hidden_layers=sizes.n_layers,
        num_attention_heads=sizes.n_heads,
        num_key_value_heads=sizes.n_heads,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model: Any = LlamaForCausalLM(config)
    model.to(device).eval()

    def write(prompts: list[list[int]], tokens: int) -> torch.Tensor:
        ids = torch.tensor(prompts, device=device)
        seen = torch.ones_like(ids)
        return model.generate(ids, attention_mask=seen, max_new_tokens=tokens, do_sample=False)

    return write
