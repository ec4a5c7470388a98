"""An OpenAI-compatible server for one model: routes, what is refused before it is read, answers.

No request can load another model or change this one. It may come from anybody who reaches the
port: a body has a limit and a time, the host that it names is one that the server has, and a web
page of someone else's cannot send one that is answered. An answer is one JSON document, or a stream
of events.
"""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any, ClassVar
from urllib.parse import urlsplit
from uuid import uuid4

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from unitsphere.inference.hf.engine import Engine, Work
from unitsphere.inference.hf.requests import Asked, ChatAsked, CompletionAsked, Refused

Fields = dict[str, Any]
BODY_LIMIT = 1 << 20
"""Most bytes of a request's body."""
BODY_SECONDS = 30.0
"""Most seconds until a body is complete."""
CONNECTIONS = 256
"""Most connections at a time."""


class Completion:
    """Answers of /v1/completions."""

    asked: type[Asked] = CompletionAsked
    prefix, whole, part = "cmpl", "text_completion", "text_completion"
    opening: tuple[Fields, ...] = ()
    closing: ClassVar[Fields] = {"text": ""}

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
    closing: ClassVar[Fields] = {"delta": {}}

    def said(self, text: str) -> Fields:
        return {"message": {"role": "assistant", "content": text}}

    def news(self, text: str) -> Fields:
        return {"delta": {"content": text}}


def usage(work: Work) -> dict[str, int]:
    """How many tokens it took."""
    prompt, new = len(work.prompt), len(work.ids)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


class Answering:
    """A route that answers requests of one kind."""

    def __init__(self, engine: Engine, kind: type[Completion]) -> None:
        self.engine, self.kind = engine, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one, unless its client leaves before. Raises Refused."""
        try:
            body = await body_of(Request(scope, receive))
            answering = asyncio.ensure_future(self.answer(body, scope, receive, send))
            await until_gone(answering, receive)
        except asyncio.CancelledError:
            pass  # the server ends: uvicorn tells the client, and would print a traceback of this

    async def answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Do what the request asks for, and stop doing it when this is cancelled."""
        work = await self.engine.start(self.kind.asked, body)
        try:
            response = await self.response(work)
            await response(scope, receive, send)
        finally:
            work.stop()

    async def response(self, work: Work) -> Response:
        """The whole answer, or the stream of its pieces."""
        answer = self.kind(work, self.engine.name)
        if work.asked.stream:
            return StreamingResponse(answer.events(), media_type="text/event-stream")
        async for _ in work.pieces():
            pass
        return JSONResponse(answer.document())


async def until_gone(answering: asyncio.Future[None], receive: Receive) -> None:
    """Wait for an answer to a request whose body is read, and cancel it when its client leaves."""
    leaving = asyncio.ensure_future(receive())  # what comes after the body is that it has left
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        answering.cancel()  # nothing happens to one that is done
    if answering.done():
        answering.result()


async def body_of(request: Request) -> bytes:
    """A request's body of JSON; refused if it is another thing, too long or too slow."""
    # A foreign web page can send other types to this computer without asking the browser.
    if (
        request.headers.get("content-type", "").partition(";")[0].strip().lower()
        != "application/json"
    ):
        raise Refused(415, "give the header Content-Type: application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > BODY_LIMIT:
                    raise Refused(413, f"the body has more than {BODY_LIMIT:,} bytes")
    except TimeoutError as error:
        raise Refused(408, f"the body did not come within {BODY_SECONDS:.0f} s") from error
    return bytes(body)


class OwnHost:
    """Answers only requests whose Host header names this server.

    A web page whose name is made to lead to this computer (DNS rebinding) sends its own name.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], any_address: bool) -> None:
        self.app, self.hosts, self.any_address = app, hosts, any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] == "http" and not self.is_own(Headers(scope=scope).getlist("host")):
            names = ", ".join(sorted(self.hosts))
            why = f"this server answers to the hosts {names}; --allow-host adds another"
            response = refusal(Request(scope), Refused(403, why))
            await response(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def is_own(self, named: list[str]) -> bool:
        """Whether the Host headers are one, and name this server."""
        try:
            (host,) = (urlsplit(f"//{value}").hostname or "" for value in named)
        except ValueError:  # several, none, or not a host
            return False
        # Unlike a name, an address cannot be made to lead here by somebody else.
        return host in self.hosts or (self.any_address and is_address(host))


def is_address(host: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def own_hosts(host: str, listening: socket.socket, more: tuple[str, ...]) -> Middleware:
    """The check of the hosts that a socket listens on, and of `more`."""
    bound = ip_address(listening.getsockname()[0])
    names = {host, str(bound), *more}
    if bound.is_loopback or bound.is_unspecified:
        names |= {"localhost", "127.0.0.1", "::1"}
    if bound.is_unspecified:
        names.add(socket.gethostname())
    hosts = frozenset(name.lower() for name in names)
    return Middleware(OwnHost, hosts=hosts, any_address=bound.is_unspecified)


def application(engine: Engine, *checks: Middleware) -> Starlette:
    """The server's application; `checks` stand before all of it."""

    served = {"id": engine.name, "object": "model", "created": 0, "owned_by": "unitsphere"}

    async def models(request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [served]})

    async def model(request: Request) -> JSONResponse:
        if request.path_params["name"] != engine.name:
            raise Refused(404, f"there is no such model: this server has {engine.name!r}", "model")
        return JSONResponse(served)

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/v1/completions", Answering(engine, Completion), methods=["POST"]),
            Route("/v1/chat/completions", Answering(engine, Chat), methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/health", health),
        ],
        middleware=checks,
        exception_handlers={Refused: refusal, HTTPException: refusal, ClientDisconnect: gone},
    )


def refusal(request: Request, error: Any) -> Response:
    """What was wrong with a request, in the form in which OpenAI's clients look for it."""
    if isinstance(error, HTTPException):  # no such route, or not with this method
        error = Refused(error.status_code, error.detail)
    body = {"message": error.message, "type": "invalid_request_error"}
    body |= {"param": error.field, "code": error.status}
    # ASCII: a name that the client gave may hold what is not UTF-8.
    return Response(json.dumps({"error": body}), error.status, media_type="application/json")


def gone(request: Request, error: Exception) -> Response:
    """An answer that nobody reads: the client left while it sent its request."""
    return Response(status_code=400)


def run_server(app: Starlette, listening: socket.socket) -> None:
    """Answer on a socket until the process is interrupted, which ends in KeyboardInterrupt."""
    config = uvicorn.Config(
        app, log_level="warning", timeout_graceful_shutdown=2, limit_concurrency=CONNECTIONS
    )
    uvicorn.Server(config).run(sockets=[listening])
