"""A model as lm-evaluation-harness asks it: log-likelihoods, and greedy or sampled continuations.

The tokens are those that the harness's Hugging Face backend gives the exported model: every text
begins with the separator, as every training document does, and what does not fit the context is
cut from its start. One thing differs: the separator itself is never scored. (For rolling
log-likelihoods that backend scores it too, unless it is told `add_bos_token=False`.)

Shapes: B requests, T tokens of the longest, V vocabulary entries.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor

from unitsphere.data.prepare import lost_share
from unitsphere.data.tokenizer import Sample, Tokenizer, text_lost
from unitsphere.errors import UserError
from unitsphere.inference.decode import check_sampling
from unitsphere.inference.generate import generate
from unitsphere.models.trunk import Transformer

Scored = tuple[list[int], list[int]]
"""Tokens of a context, and those of the continuation that is scored."""
Answer = tuple[float, bool]
"""The log-likelihood of a continuation in nats, and whether it is what greedy decoding gives."""

MAX_NEW = 256
"""Tokens that are generated at most where a task does not say, as in the harness."""
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


class HarnessLM(TemplateLM):
    """A causal model with its tokenizer; `max_length` tokens of context.

    `batch_tokens` go through the model at once, padding included. Sampled continuations, where a
    task asks for them, are drawn with `seed` plus the number of the request.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        max_length: int,
        batch_tokens: int = 4096,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if model.objective != "clm":
            raise UserError(
                f"a model trained with objective {model.objective} gives texts no likelihood: "
                "--tasks needs a run with objective clm"
            )
        self.model, self.text = model, tokenizer
        self.max_length, self.batch_tokens, self.seed = max_length, batch_tokens, seed

    @property
    def eot_token_id(self) -> int:
        """The separator, which begins and ends texts."""
        return self.text.separator

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: object
    ) -> list[int]:
        """The separator, unless `add_special_tokens` is False, and the ids of the text."""
        start = [] if add_special_tokens is False else [self.text.separator]
        return start + self.text.encode(string)

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-likelihood of each whole text, in windows of the context's length."""
        sample = Sample(arguments(request)[0] for request in requests)
        if lost := text_lost(self.text, sample.texts):
            raise UserError(f"the run's tokenizer loses text: {lost_share(lost)}")
        windows: list[Scored] = []
        owners: list[int] = []
        for owner, request in enumerate(requests):
            tokens = self.tok_encode(arguments(request)[0], add_special_tokens=False)
            rolling = get_rolling_token_windows(tokens, self.eot_token_id, self.max_length, 1)
            for pair in map(make_disjoint_window, rolling):
                windows.append(pair)
                owners.append(owner)
        totals = [0.0] * len(requests)
        for owner, (nats, _) in zip(owners, self.answers(windows), strict=True):
            totals[owner] += nats
        return totals

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: object
    ) -> list[Answer]:
        for (_, text), _, continuation in requests:
            if not continuation:  # its likelihood would be 1, that of the best choice
                raise UserError(
                    f"{text!r:.60} adds no token to the text before it, so it cannot be scored: "
                    "begin it with a space, or set the task's target_delimiter"
                )
        return self.answers([(context, continuation) for _, context, continuation in requests])

    def answers(self, requests: Sequence[Scored]) -> list[Answer]:
        """The answer to each request, longest first so that a batch holds equal lengths."""
        found: dict[int, Answer] = {}
        order = sorted(range(len(requests)), key=lambda i: -sum(map(len, requests[i])))
        for batch in self.batches(order, requests):
            parts = [self.cut(*requests[index]) for index in batch]
            found.update(zip(batch, self.score(parts), strict=True))
        return [found[index] for index in range(len(requests))]

    def batches(self, order: Sequence[int], requests: Sequence[Scored]) -> Iterator[list[int]]:
        """Requests, the longest first, in groups of at most `batch_tokens` tokens (or of one)."""
        start = 0
        while start < len(order):
            longest = min(sum(map(len, requests[order[start]])), self.max_length + 1)
            rows = max(self.batch_tokens // longest, 1)
            yield list(order[start : start + rows])
            start += rows

    def cut(self, context: list[int], continuation: list[int]) -> Scored:
        """The last tokens that fit the model, without the last one, and the continuation."""
        if len(continuation) > self.max_length:
            raise UserError(
                f"a text to score has {len(continuation)} tokens and the context holds "
                f"{self.max_length}: give a longer --context"
            )
        return (context + continuation)[-(self.max_length + 1) :][:-1], continuation

    @torch.no_grad()
    def score(self, parts: Sequence[Scored]) -> list[Answer]:
        """Each continuation's answer; logits are computed only where they are scored."""
        width = max(len(inputs) for inputs, _ in parts)
        rows = [inputs + [self.eot_token_id] * (width - len(inputs)) for inputs, _ in parts]
        h_BTd = self.model.features(torch.tensor(rows, device=self.model.device))
        picked = [
            h[len(inputs) - len(target) : len(inputs)]
            for h, (inputs, target) in zip(h_BTd, parts, strict=True)
        ]
        log_p = self.log_probabilities(torch.cat(picked))
        targets = torch.tensor(
            [token for _, target in parts for token in target], device=self.model.device
        )
        chosen = log_p.gather(1, targets[:, None])[:, 0]
        greedy = log_p.argmax(-1) == targets
        sizes = [len(target) for _, target in parts]
        each = zip(chosen.split(sizes), greedy.split(sizes), strict=True)
        return [(float(nats.sum()), bool(same.all())) for nats, same in each]

    def log_probabilities(self, h: Tensor) -> Tensor:
        """log p of every token after each h [N, d]: [N, V], in fp32 or wider."""
        logits = self.model.logits(h)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The continuation of each context up to the first of its stop strings."""
        found = [""] * len(requests)
        order = sorted(range(len(requests)), key=lambda i: -len(arguments(requests[i])[0]))
        rows = max(self.batch_tokens // self.max_length, 1)
        for settings, group in grouped(order, requests):
            for begin in range(0, len(group), rows):
                batch = group[begin : begin + rows]
                contexts = [arguments(requests[index])[0] for index in batch]
                seeds = [self.seed + index for index in batch]
                texts = self.continuations(contexts, settings, seeds)
                for index, text in zip(batch, texts, strict=True):
                    found[index] = text
        return found

    def continuations(
        self, contexts: Sequence[str], settings: Mapping[str, Any], seeds: Sequence[int]
    ) -> list[str]:
        """The continuations of contexts with one task's generation_kwargs, each with its seed."""
        stops, max_new, sampling = read_settings(settings)
        room = self.max_length - max_new
        if room < 1:
            raise UserError(
                f"a task generates {max_new} tokens, and the context holds {self.max_length}: "
                "give a longer --context, or less max_gen_toks in the task's generation_kwargs"
            )

        def stopped(row: int, tokens: list[int]) -> bool:
            text = self.text.decode(tokens)
            return any(stop in text for stop in stops)

        drawn = generate(
            self.model,
            [self.tok_encode(context)[-room:] for context in contexts],
            max_new,
            seed=seeds,
            stop=self.eot_token_id,
            vocab_size=self.text.vocab_size,
            watch=stopped,
            **sampling,
        )
        return [until(self.text.decode(tokens), stops) for tokens in drawn]


def grouped(
    order: Sequence[int], requests: Sequence[Instance]
) -> Iterator[tuple[Mapping[str, Any], list[int]]]:
    """The requests of each generation_kwargs together, in order."""
    groups: dict[str, list[int]] = {}
    for index in order:
        groups.setdefault(repr(sorted(arguments(requests[index])[1].items())), []).append(index)
    for group in groups.values():
        yield arguments(requests[group[0]])[1], group


def arguments(request: Instance) -> tuple[Any, ...]:
    """What a request asks: a text, or a context and its generation_kwargs."""
    return request.args


def read_settings(settings: Mapping[str, Any]) -> tuple[list[str], int, dict[str, Any]]:
    """Stop strings, tokens at most, and `generate`'s keywords of a task's generation_kwargs.

    Raises UserError for one that is not known here.
    """
    rest = dict(settings)
    stops = rest.pop("until", None) or []
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise UserError(f"generation_kwargs: 'until' must be text, or several, not {stops!r:.60}")
    max_new = rest.pop("max_gen_toks", MAX_NEW)
    if not isinstance(max_new, int) or max_new < 1:
        raise UserError(f"generation_kwargs: 'max_gen_toks' must be from 1, not {max_new!r:.60}")
    samples = rest.pop("do_sample", None)
    if samples not in (None, True, False):
        raise UserError(f"generation_kwargs: 'do_sample' must be true or false: {samples!r:.60}")
    sampling = {name: rest.pop(name) for name in SAMPLING if name in rest}
    if samples is False or "temperature" not in sampling:
        sampling["temperature"] = 1.0 if samples else 0.0
    if rest:
        raise UserError(
            f"generation_kwargs has '{next(iter(rest))}', which is not known here; known: until, "
            f"max_gen_toks, do_sample, {', '.join(SAMPLING)}"
        )
    for name, value in sampling.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"generation_kwargs: '{name}' must be a number, not {value!r:.60}")
    check_sampling(
        sampling["temperature"],
        sampling.get("top_k"),
        sampling.get("top_p"),
        sampling.get("min_p"),
        sampling.get("repetition_penalty", 1.0),
    )
    return stops, max_new, sampling


def until(text: str, stops: Sequence[str]) -> str:
    """The text before the first of the stop strings."""
    for stop in filter(None, stops):
        text = text.split(stop)[0]
    return text


class Rehearsal(LM):
    """Answers that need no model: a task's metrics and filters fail at once if they must."""

    def loglikelihood(self, requests: Sequence[Instance]) -> list[tuple[float, bool]]:
        return [(-1.0, False) for _ in requests]

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:
        return [-1.0 for _ in requests]

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        return ["an answer" for _ in requests]
