"""Continue prompts with a model: batched, left-padded, with a key-value cache; texts as a stream.

A row's continuation does not depend on the other rows: padding is masked, positions start after
it, and every row draws from its own generator.
"""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unitsphere.data.tokenizer import UNFINISHED, Tokenizer
from unitsphere.errors import UserError
from unitsphere.inference import decode
from unitsphere.inference.decode import check_length, check_sampling, penalize, sample
from unitsphere.models.trunk import Transformer


@dataclasses.dataclass(frozen=True)
class Completion:
    """The continuation of one prompt."""

    prompt: str
    text: str
    """Only the continuation, without the prompt."""
    prompt_tokens: int
    """Tokens of the prompt, with the separator before it."""
    tokens: int
    """Tokens drawn, without the separator at the end."""
    stopped: bool
    """Whether the model ended the document or wrote a stop string; otherwise it used all
    `max_tokens`, or its learned positions."""


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


Watch = Callable[[int, list[int]], bool]
"""Given a row's number and the tokens drawn for it so far; whether the row ends with the last."""


@torch.no_grad()
def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | Sequence[int] = 0,
    stop: int | None = None,
    vocab_size: int | None = None,
    *,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    watch: Watch | None = None,
    compile: bool = False,
) -> list[list[int]]:
    """Continue each prompt by up to `max_tokens` tokens; only the new tokens are returned.

    A row ends before the token `stop`, and all rows end where the longest comes to the end of
    learned positions. Ids from `vocab_size` up are never drawn (a model's vocabulary is padded).
    `seed` is one for each prompt, or one number: then row i draws with
    `seed + i`, and that prompt by itself with that seed gives the same tokens. Temperature 0 is
    greedy. `repetition_penalty` makes tokens less likely that are in a row's prompt or were drawn.
    `watch` sees every token as it is drawn. With `compile` each token after the first is one
    compiled graph (`inference.decode`), which pays off for many tokens.
    Raises ValueError for an empty prompt (begin with the separator) and `UserError` for settings
    out of range, or for a model that is not causal.
    """
    check_sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    check_request(model, prompts, max_tokens)
    if not prompts:
        return []
    seeds = seeds_of(seed, len(prompts))
    tokens_BT, padding_B = left_pad(prompts, stop or 0, model.device)
    longest = tokens_BT.shape[1]
    if model.max_length is not None:  # the last token is drawn, and not read
        max_tokens = min(max_tokens, max(model.max_length - longest, 0) + 1)
    decoder = decode.compiled if compile else decode.eager
    following = decoder(model, len(prompts), longest + max_tokens, padding_B)
    generators = [torch.Generator().manual_seed(one) for one in seeds]
    drawn: list[list[int]] = [[] for _ in prompts]
    running = set(range(len(prompts)))
    seen_BV = seen(prompts, model.config.vocab_size, model.device)[:, :vocab_size]
    for _ in range(max_tokens):
        logits_BV = following(tokens_BT)[:, :vocab_size]
        if repetition_penalty != 1:
            logits_BV = penalize(logits_BV, seen_BV, repetition_penalty)
        next_B = sample(logits_BV, uniform(generators), temperature, top_k, top_p, min_p)
        seen_BV.scatter_(1, next_B[:, None], True)
        for row, token in enumerate(next_B.tolist()):
            if token == stop:
                running.discard(row)
            elif row in running:
                drawn[row].append(token)
                if watch is not None and watch(row, drawn[row]):
                    running.discard(row)
        if not running:
            break
        tokens_BT = next_B[:, None]
    return drawn


def uniform(generators: Sequence[torch.Generator]) -> Tensor:
    """A number in [0, 1) from each generator, [B]."""
    return torch.stack([torch.rand((), generator=generator) for generator in generators])


def check_request(model: Transformer, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
    """Raise the errors of `generate` about the model, the prompts and the length."""
    if model.objective != "clm":
        raise UserError(
            f"a model trained with objective {model.objective} does not continue texts: "
            "generate needs a run with objective clm"
        )
    check_length(max_tokens)
    if not all(prompts):
        raise ValueError("a prompt needs at least one token: begin it with the separator")


def seeds_of(seed: int | Sequence[int], rows: int) -> list[int]:
    """A seed for each of `rows` prompts; a `UserError` for another number of them."""
    seeds = [seed + row for row in range(rows)] if isinstance(seed, int) else list(seed)
    if len(seeds) != rows:
        raise UserError(f"{len(seeds)} seeds for {rows} prompts: give one, or one for each prompt")
    for one in seeds:
        if not -(2**63) <= one < 2**63:
            raise UserError(f"a seed must fit 64 bits, from {-(2**63)} to {2**63 - 1}: {one}")
    return seeds


def seen(prompts: Sequence[Sequence[int]], vocab_size: int, device: torch.device) -> Tensor:
    """Which tokens occur in each prompt, bool [B, V]."""
    found_BV = torch.zeros(len(prompts), vocab_size, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        found_BV[row, torch.tensor(prompt)] = True
    return found_BV.to(device)


def generate_text(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    max_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | Sequence[int] = 0,
    *,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stops: Sequence[str] = (),
    show: Callable[[int, str], None] | None = None,
    compile: bool = False,
) -> list[Completion]:
    """Continue texts. Each begins with the separator, as every training document does.

    So an empty prompt asks for a document from its start. A continuation ends before the first of
    `stops`. `show` is called with the number of a prompt and the text added to its
    continuation, as soon as no later token can change that text. See `generate` for the rest.
    """
    if isinstance(prompts, str):  # else each character is a prompt
        raise UserError("give a list of prompts, not a single string")
    check_stops(stops)
    rows = [[tokenizer.separator, *tokenizer.encode(prompt)] for prompt in prompts]
    texts = [Text(tokenizer, row[1:], stops) for row in rows]
    watch = TextWatch(texts, show) if stops or show is not None else None
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
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        watch=watch,
        compile=compile,
    )
    if watch is not None:
        watch.finish(drawn)
    return [
        Completion(
            prompt=prompt,
            text=text.whole(new),
            prompt_tokens=len(row),
            tokens=len(new),
            stopped=len(new) < max_tokens or text.stops_in(new),
        )
        for prompt, row, new, text in zip(prompts, rows, drawn, texts, strict=True)
    ]


def check_stops(stops: Sequence[str]) -> None:
    """Raise a `UserError` for a stop string that is empty, and for one without its list."""
    if isinstance(stops, str):  # else each character is one
        raise UserError("give a list of stop strings, not a single string")
    if not all(stops):
        raise UserError("a stop string must not be empty")


class Text:
    """The text of the tokens that continue a prompt, up to the first of the stop strings."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self.tokenizer, self.prompt, self.stops = tokenizer, list(prompt), stops
        self.before = len(tokenizer.decode(self.prompt))
        self.decoded: tuple[list[int], str] | None = None

    def whole(self, new: Sequence[int]) -> str:
        """The continuation, without a stop string and what follows it."""
        text = self._all(new)
        return text[: self._cut(text)]

    def stops_in(self, new: Sequence[int]) -> bool:
        """Whether there is a stop string."""
        text = self._all(new)
        return self._cut(text) < len(text)

    def certain(self, new: Sequence[int]) -> str:
        """The part of the continuation that further tokens cannot change.

        It leaves out the bytes of an incomplete character, and what may start a stop string.
        """
        text = self.whole(new).rstrip(UNFINISHED)
        if self.stops_in(new):
            return text
        starts = [stop[:n] for stop in self.stops for n in range(1, len(stop))]
        held = max((len(start) for start in starts if text.endswith(start)), default=0)
        return text[: len(text) - held]

    def _all(self, new: Sequence[int]) -> str:
        ids = list(new)  # a copy, because the caller's list grows
        # The last text is kept: each token asks for it several times, and decoding takes long.
        if self.decoded is None or self.decoded[0] != ids:
            # Decoded together: some tokenizers drop a leading space, and bytes may join at the seam
            text = self.tokenizer.decode([*self.prompt, *ids])[self.before :]
            self.decoded = ids, text
        return self.decoded[1]

    def _cut(self, text: str) -> int:
        found = (text.find(stop) for stop in self.stops)
        return min((at for at in found if at >= 0), default=len(text))


class TextWatch:
    """Shows the texts of rows as their tokens are drawn, and ends a row at its stop string."""

    def __init__(self, texts: Sequence[Text], show: Callable[[int, str], None] | None) -> None:
        self.texts, self.show = texts, show
        self.shown = [0] * len(texts)

    def __call__(self, row: int, new: list[int]) -> bool:
        """Whether the tokens `new` of a row hold a stop string."""
        if self.show is not None:
            self._show(row, self.texts[row].certain(new))
        return self.texts[row].stops_in(new)

    def finish(self, drawn: Sequence[Sequence[int]]) -> None:
        """Show the text that was held back."""
        for row, new in enumerate(drawn):
            self._show(row, self.texts[row].whole(new))

    def _show(self, row: int, text: str) -> None:
        if self.show is not None and len(text) > self.shown[row]:
            self.show(row, text[self.shown[row] :])
            self.shown[row] = len(text)
