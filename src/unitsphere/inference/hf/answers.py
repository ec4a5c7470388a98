"""Answers in the form of OpenAI's protocol: as one document, or as a stream of events."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from unitsphere.inference.hf.engine import Work
from unitsphere.inference.hf.requests import Asked, ChatAsked, CompletionAsked

Fields = dict[str, Any]


class Completion:
    """Answers of /v1/completions."""

    asked: type[Asked] = CompletionAsked
    prefix, whole, part = "cmpl", "text_completion", "text_completion"
    opening: tuple[Fields, ...] = ()
    closing: Fields = {"text": ""}  # noqa: RUF012

    def __init__(self, work: Work, model: str) -> None:
        self.work = work
        identity = f"{self.prefix}-{uuid4().hex}"
        self.shared = {"id": identity, "created": int(time.time()), "model": model}

    def said(self, text: str) -> Fields:
        """The whole text, in a choice."""
        return {"text": text}

    def news(self, text: str) -> Fields:
        """A piece of it, in an event's choice."""
        return {"text": text}

    def document(self) -> Fields:
        """The whole answer, when the work is done."""
        choice = self.choice(self.said(self.work.text), self.work.finish_reason)
        return self.shared | {"object": self.whole, "choices": [choice], "usage": usage(self.work)}

    async def events(self) -> AsyncIterator[str]:
        """The answer in pieces, as server-sent events; the last has the usage."""
        for first in self.opening:
            yield self.event(self.choice(first))
        async for piece in self.work.pieces():
            yield self.event(self.choice(self.news(piece)))
        last = self.choice(self.closing, self.work.finish_reason)
        yield self.event(last, usage=usage(self.work))
        yield "data: [DONE]\n\n"

    def event(self, choice: Fields, **more: Any) -> str:
        """One event."""
        fields = self.shared | {"object": self.part, "choices": [choice]} | more
        return f"data: {json.dumps(fields)}\n\n"

    @staticmethod
    def choice(said: Fields, finish: str | None = None) -> Fields:
        """The only one."""
        return {"index": 0, **said, "logprobs": None, "finish_reason": finish}


class Chat(Completion):
    """Answers of /v1/chat/completions."""

    asked = ChatAsked
    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"
    opening = ({"delta": {"role": "assistant", "content": ""}},)
    closing: Fields = {"delta": {}}  # noqa: RUF012

    def said(self, text: str) -> Fields:
        return {"message": {"role": "assistant", "content": text}}

    def news(self, text: str) -> Fields:
        return {"delta": {"content": text}}


def usage(work: Work) -> dict[str, int]:
    """How many tokens it took."""
    prompt, new = len(work.prompt), len(work.ids)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
