"""Continue prompts with a model: batched, left-padded, with a key-value cache.

A row's continuation does not depend on the other rows: padding is masked, positions start after
it, and every row draws from its own generator.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from unitsphere.data.tokenizer import Tokenizer
from unitsphere.errors import UserError
from unitsphere.inference.sample import check_sampling, sample
from unitsphere.models.trunk import Transformer


@dataclasses.dataclass(frozen=True)
class Completion:
    """What a model made of one prompt."""

    prompt: str
    text: str
    """The continuation alone, without the prompt."""
    prompt_tokens: int
    """Tokens of the prompt, with the separator that it begins with."""
    tokens: int
    """Tokens drawn, without the separator that may have ended them."""
    stopped: bool
    """Whether the model ended the document, rather than running out of `max_tokens`."""


def left_pad(
    prompts: Sequence[Sequence[int]], fill: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Token rows of equal length, int64 [B, T], and the padding before each, int64 [B].

    The second is None when no row needs any.
    """
    longest = max(len(prompt) for prompt in prompts)
    rows = [[fill] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    padding = [longest - len(prompt) for prompt in prompts]
    tokens_BT = torch.tensor(rows, dtype=torch.int64, device=device)
    if not any(padding):
        return tokens_BT, None
    return tokens_BT, torch.tensor(padding, dtype=torch.int64, device=device)


@torch.no_grad()
def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: int | None = None,
    vocab_size: int | None = None,
) -> list[list[int]]:
    """Continue each prompt by up to `max_tokens` tokens; only the new tokens are returned.

    A row ends before the token `stop`; ids from `vocab_size` on are never drawn (a model's
    vocabulary is padded). Row i draws from a generator seeded with `seed + i`, so that prompt
    alone with that seed gives the same tokens. Temperature 0 is greedy.
    Raises ValueError for an empty prompt (begin with the separator) and `UserError` for settings
    out of range, or for a model that is no causal one.
    """
    if model.objective != "clm":
        raise UserError(
            f"a model trained with objective {model.objective} does not continue texts: "
            "generate needs a run with objective clm"
        )
    check_sampling(temperature, top_k, top_p)
    if max_tokens < 1:
        raise UserError(f"max_tokens must be 1 or more, not {max_tokens}")
    if not all(prompts):
        raise ValueError("a prompt needs at least one token: begin it with the separator")
    if not prompts:
        return []
    fill = 0 if stop is None else stop
    tokens_BT, padding_B = left_pad(prompts, fill, model.device)
    cache = model.new_cache(len(prompts), tokens_BT.shape[1] + max_tokens)
    generators = [torch.Generator().manual_seed(seed + row) for row in range(len(prompts))]
    drawn: list[list[int]] = [[] for _ in prompts]
    running = set(range(len(prompts)))
    for _ in range(max_tokens):
        logits_BV = model(tokens_BT, cache=cache, left_padding=padding_B)[:, -1, :vocab_size]
        uniform_B = torch.stack([torch.rand((), generator=g) for g in generators])
        next_B = sample(logits_BV, uniform_B, temperature, top_k, top_p)
        for row, token in enumerate(next_B.tolist()):
            if token == stop:
                running.discard(row)
            elif row in running:
                drawn[row].append(token)
        if not running:
            break
        tokens_BT = next_B[:, None]
    return drawn


def generate_text(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    max_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> list[Completion]:
    """Continue texts. Each begins with the separator, as every training document does.

    So an empty prompt asks for a document from its start. See `generate` for the rest.
    """
    rows = [[tokenizer.separator, *tokenizer.encode(prompt)] for prompt in prompts]
    drawn = generate(
        model,
        rows,
        max_tokens,
        temperature,
        top_k,
        top_p,
        seed,
        stop=tokenizer.separator,
        vocab_size=tokenizer.vocab_size,
    )
    return [
        Completion(
            prompt=prompt,
            text=_continuation(tokenizer, row[1:], new),
            prompt_tokens=len(row),
            tokens=len(new),
            stopped=len(new) < max_tokens,
        )
        for prompt, row, new in zip(prompts, rows, drawn, strict=True)
    ]


def sample_text(model: Transformer, tokenizer: Tokenizer, max_tokens: int = 200) -> str:
    """A document from its start at temperature 0.8, the same for the same weights.

    It draws from a generator of its own, so sampling in the middle of a training run does not
    change the run.
    """
    return generate_text(model, tokenizer, [""], max_tokens, temperature=0.8)[0].text


def _continuation(tokenizer: Tokenizer, prompt: list[int], new: list[int]) -> str:
    # Decoded together: some tokenizers drop a leading space, and bytes may join across the seam.
    return tokenizer.decode(prompt + new)[len(tokenizer.decode(prompt)) :]
