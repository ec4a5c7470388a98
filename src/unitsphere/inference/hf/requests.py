"""The requests of OpenAI's protocol: each field's type and range, checked by pydantic.

Every mistake becomes `Refused`, status 400, with the name of the field.
"""

import json
from abc import abstractmethod
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
)
from pydantic_core import PydanticCustomError

STOPS, STOP_LENGTH = 4, 64
"""Most stop strings of a request, as OpenAI has it, and most characters of one."""
BIASES = 300
"""Most tokens of a `logit_bias`."""
DEFAULT_TOKENS = 1024
"""Tokens of an answer if the request does not say how many."""
IGNORED = {
    *("metadata", "parallel_tool_calls", "prediction", "reasoning_effort", "service_tier"),
    *("store", "stream_options", "user"),
}
"""Fields of the protocol that change no text."""
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
}
"""Fields of the protocol that ask for more than one text, with the values that do not."""
UNKNOWN = "the protocol has no such field, or this server does not"
REASONS = {
    "extra_forbidden": UNKNOWN,
    "missing": "this field is required, and null is as if it were not there",
}
"""Errors of pydantic -> what a client is told in place of its words."""


class Refused(Exception):
    """A request that is not answered: the HTTP status, why, and the field at fault."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.field = status, message, field


def as_list(value: Any) -> Any:
    """A single string as a list of it."""
    return [value] if isinstance(value, str) else value


def as_parts(content: Any) -> Any:
    """A message's content, which may be one string, as a list of parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def without_nulls(document: Any) -> Any:
    """An object without its fields that are null: a client writes those that it does not use."""
    if not isinstance(document, dict):
        return document
    return {name: value for name, value in document.items() if value is not None}


def as_text(value: str) -> str:
    """A string, if it is one that can be written as UTF-8; JSON can hold halves of characters."""
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise PydanticCustomError("unicode", "Input should be a valid string: it is not Unicode")
    return value


Text = Annotated[str, AfterValidator(as_text)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Stop = Annotated[Text, Field(min_length=1, max_length=STOP_LENGTH)]
Bias = Annotated[float, Field(ge=-100, le=100)]
TokenId = Annotated[Text, Field(pattern=r"^[0-9]{1,9}$")]
STRICT = ConfigDict(strict=True, allow_inf_nan=False)
CLOSED = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")


class Asked(BaseModel):
    """The fields that both kinds of request have."""

    model_config = STRICT

    model: Text | None = None
    max_tokens: Annotated[int, Field(ge=1)] = DEFAULT_TOKENS
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Annotated[list[Stop], FailFast(), Field(max_length=STOPS), BeforeValidator(as_list)] = []
    stream: bool = False
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=BIASES)] = {}

    @property
    @abstractmethod
    def text(self) -> str:
        """What is to be continued."""

    @property
    def most_tokens(self) -> int:
        """Tokens of the answer at most."""
        return self.max_tokens


class CompletionAsked(Asked):
    """A request to /v1/completions."""

    prompt: Text = ""

    @property
    def text(self) -> str:
        return self.prompt


class Part(BaseModel):
    """A part of a message: text and nothing else."""

    model_config = CLOSED
    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """A message of a chat; role and name change nothing, as these models have learned none.

    What else a client writes of an answer (`refusal`, `tool_calls`, `audio`, …) must be null.
    """

    model_config = CLOSED
    role: Text
    name: Text = ""
    content: Annotated[list[Part], FailFast(), BeforeValidator(as_parts)]


class ChatAsked(Asked):
    """A request to /v1/chat/completions."""

    messages: Annotated[
        list[Annotated[Message, BeforeValidator(without_nulls)]], FailFast(), Field(min_length=1)
    ]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for message in self.messages for part in message.content)

    @property
    def most_tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens


Body = TypeVar("Body", bound=Asked)


def parsed(form: type[Body], body: bytes) -> Body:
    """The request in a body of JSON; null is as if the field were not there. Raises Refused."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise Refused(400, "the body is not a JSON object")
    given = without_nulls(document)
    for name in sorted(given.keys() & UNSUPPORTED.keys()):
        if not any(type(given[name]) is type(v) and given[name] == v for v in UNSUPPORTED[name]):
            raise refusal_of(name, "this server answers with one text: leave the field out")
    if unknown := sorted(given.keys() - form.model_fields.keys() - IGNORED - UNSUPPORTED.keys()):
        raise refusal_of(unknown[0], UNKNOWN)
    try:
        return form.model_validate(given)
    except ValidationError as error:
        raise refusal_of_first(error) from error


def refusal_of_first(error: ValidationError) -> Refused:
    """The refusal of the first field at fault, of an unknown one rather than what it lacks."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    return refusal_of(".".join(map(str, first["loc"])), REASONS.get(first["type"], first["msg"]))


def refusal_of(place: str, why: str) -> Refused:
    """The refusal of a field, or of something inside it: `messages.0.content`."""
    place = place[:100]  # a client may have named it
    return Refused(400, f"{place}: {why}", place.partition(".")[0])
