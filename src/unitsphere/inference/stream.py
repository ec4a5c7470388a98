"""A continuation as text while it is drawn: what is certain already, and where it stops."""

from collections.abc import Callable, Sequence

from unitsphere.data.tokenizer import Tokenizer

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer makes of bytes that do not, or not yet, make a character."""


class Text:
    """The text of the tokens that continue a prompt, up to the first of the stop strings."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self.tokenizer, self.prompt, self.stops = tokenizer, list(prompt), stops
        self.before = len(tokenizer.decode(self.prompt))

    def whole(self, new: Sequence[int]) -> str:
        """The continuation, without a stop string and what follows it."""
        text = self._all(new)
        return text[: self._cut(text)]

    def stops_in(self, new: Sequence[int]) -> bool:
        """Whether there is a stop string."""
        text = self._all(new)
        return self._cut(text) < len(text)

    def certain(self, new: Sequence[int]) -> str:
        """What of the continuation further tokens cannot change.

        Not the bytes of a character that is not whole, nor what may be the start of a stop string.
        """
        text = self.whole(new).rstrip(UNFINISHED)
        if self.stops_in(new):
            return text
        starts = [stop[:n] for stop in self.stops for n in range(1, len(stop))]
        held = max((len(start) for start in starts if text.endswith(start)), default=0)
        return text[: len(text) - held]

    def _all(self, new: Sequence[int]) -> str:
        # Decoded together: some tokenizers drop a leading space, and bytes may join at the seam.
        return self.tokenizer.decode([*self.prompt, *new])[self.before :]

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
        self._show(row, self.texts[row].certain(new))
        return self.texts[row].stops_in(new)

    def finish(self, drawn: Sequence[Sequence[int]]) -> None:
        """Show what has been held back."""
        for row, new in enumerate(drawn):
            self._show(row, self.texts[row].whole(new))

    def _show(self, row: int, text: str) -> None:
        if self.show is not None and len(text) > self.shown[row]:
            self.show(row, text[self.shown[row] :])
            self.shown[row] = len(text)
