"""Targets that an encoder–decoder writes for texts, and their BLEU."""

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from unitsphere.data.tokenizer import Tokenizer
from unitsphere.errors import UserError
from unitsphere.inference.beam import Hypothesis, beam_search, greedy
from unitsphere.models.trunk import Transformer


@dataclass(frozen=True)
class Search:
    """How targets are searched: the likeliest token at each step, or with a beam."""

    max_tokens: int
    beam: int = 1
    length_penalty: float = 0.6

    def __call__(
        self, model: Transformer, tokenizer: Tokenizer, sources: Sequence[Sequence[int]]
    ) -> list[Hypothesis]:
        """A target for each source (token ids), all at once."""
        separator, size = tokenizer.separator, tokenizer.vocab_size
        if self.beam == 1:
            return greedy(model, sources, self.max_tokens, separator, size)
        return beam_search(
            model, sources, self.max_tokens, separator, self.beam, self.length_penalty, size
        )


@dataclass(frozen=True)
class Answer:
    """The target that a model wrote for one source."""

    prompt: str
    text: str
    prompt_tokens: int
    """Tokens of the source that the model saw, with the separator at its end."""
    cut: bool
    """Whether the source was longer than that."""
    tokens: int
    """Tokens written, without the separator at the end."""
    stopped: bool
    """Whether the model ended the target; otherwise it used all `max_tokens`."""
    log_probability: float
    """In nats, of the target and its end."""


def answer(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    search: Search,
    context: int,
) -> list[Answer]:
    """The targets of texts, all at once; a text is cut at `context` tokens.

    Raises UserError for an empty text.
    """
    if not all(prompt.strip() for prompt in prompts):
        raise UserError("an encoder-decoder needs a source to write a target for: give a prompt")
    whole = [tokenizer.encode(prompt) for prompt in prompts]
    sources = [source[: context - 1] for source in whole]
    return [
        Answer(
            prompt=prompt,
            text=tokenizer.decode(found.tokens),
            prompt_tokens=len(source) + 1,
            cut=len(source) < len(tokens),
            tokens=len(found.tokens),
            stopped=len(found.tokens) < search.max_tokens,
            log_probability=found.log_probability,
        )
        for prompt, tokens, source, found in zip(
            prompts, whole, sources, search(model, tokenizer, sources), strict=True
        )
    ]


def write_targets(
    model: Transformer,
    tokenizer: Tokenizer,
    sources: Iterable[Sequence[int]],
    search: Search,
    context: int,
    rows: int,
) -> Iterator[str]:
    """The targets of any number of sources (token ids) in order, `rows` of them at once.

    A source is cut at `context` tokens, with the separator at its end.
    """
    waiting = iter(sources)
    while some := list(islice(waiting, rows)):
        cut = [source[: context - 1] for source in some]
        yield from (tokenizer.decode(one.tokens) for one in search(model, tokenizer, cut))


@dataclass(frozen=True)
class Bleu:
    """The score from 0 to 100, and sacrebleu's signature, which says how it was computed."""

    score: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Bleu:
    """BLEU of hypotheses with one reference each, texts as they are (sacrebleu tokenizes by "13a").

    Raises UserError if sacrebleu is not installed, ValueError unless there are as many of both.
    """
    check_sacrebleu()
    from sacrebleu.metrics.bleu import BLEU

    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    metric = BLEU()
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Bleu(score, str(metric.get_signature()))


def check_sacrebleu() -> None:
    """Raise a `UserError` unless sacrebleu is installed: call it before a long decoding."""
    if importlib.util.find_spec("sacrebleu") is None:
        raise UserError(
            "BLEU needs sacrebleu: pip install 'unitsphere[translate]', or leave it out (--beam 0)"
        )
