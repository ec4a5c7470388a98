"""The server in strangers' hands, and with a stranger's folder: one process, no socket."""

import asyncio
import json
import math
import shutil
import socket
import threading
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unitsphere.cli import main
from unitsphere.cli.serve import Serve, engine_of, model_name
from unitsphere.config import to_dict
from unitsphere.data.tokenizer import ByteTokenizer
from unitsphere.errors import UserError
from unitsphere.inference.hf import engine as engines
from unitsphere.inference.hf import server
from unitsphere.inference.hf.engine import Engine, Penalties
from unitsphere.inference.hf.export import export_hf
from unitsphere.inference.hf.requests import (
    IGNORED,
    UNSUPPORTED,
    ChatAsked,
    CompletionAsked,
)
from unitsphere.models.registry import build_from
from unitsphere.training.recipes import load_recipe

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
JSON = (b"content-type", b"application/json")
HOST = (b"host", b"localhost:8000")
SAID = [{"role": "user", "content": "The cat"}]


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """A folder as `unitsphere export` writes it, of a model that has learned nothing."""
    config = load_recipe("quickstart/ngpt")
    shape = replace(config.model, vocab_size=256, d_model=32, n_layers=1, n_heads=2)
    config = replace(config, model=shape, data=replace(config.data, tokenizer="bytes", context=32))
    model = build_from("ngpt", shape, "cpu").eval()
    folder = tmp_path_factory.mktemp("abuse") / "cat"
    export_hf(model, ByteTokenizer(), "ngpt", 32, to_dict(config), folder, lambda made: "card")
    return folder


@pytest.fixture(scope="module")
def engine(exported) -> Engine:
    return engine_of(Serve(exported, device="cpu"))


class Client:
    """One request to an application, by the ASGI protocol alone."""

    def __init__(self, app, path: str, *pieces: bytes, headers=(HOST, JSON), method="POST"):
        self.app, self.pieces = app, list(pieces)
        self.scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}}
        self.scope |= {"http_version": "1.1", "method": method, "scheme": "http", "path": path}
        self.scope |= {"raw_path": path.encode(), "query_string": b"", "headers": list(headers)}
        self.left, self.status, self.body = asyncio.Event(), None, b""

    async def receive(self):
        if self.pieces:
            piece = self.pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")

    async def run(self):
        """Status, and the answer as a document."""
        await self.app(self.scope, self.receive, self.send)
        return self.status, json.loads(self.body) if self.body else None


def ask(app, path: str, body, **settings):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return asyncio.run(Client(app, path, raw, **settings).run())


@pytest.fixture(scope="module")
def app(engine):
    return server.application(engine)


# A stranger's folder.


def refused(*arguments: object, capsys) -> str:
    assert main(["serve", *map(str, arguments), "--port", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.fixture
def foreign(exported, tmp_path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "foreign"))


def touching(file: Path) -> str:
    return f"open({str(file)!r}, 'w').close()\n"


def test_a_folder_s_own_python_is_refused_and_does_not_run(foreign, tmp_path, capsys):
    modeling, ran = foreign / "modeling_unitsphere.py", tmp_path / "ran"
    modeling.write_text(touching(ran) + modeling.read_text())
    line = refused(foreign, capsys=capsys)
    assert "modeling_unitsphere.py is not the file that this version of unitsphere writes" in line
    assert "--trust-remote-code" in line
    assert not ran.exists()
    engine_of(Serve(foreign, device="cpu", trust_remote_code=True))
    assert ran.exists()


@pytest.mark.parametrize("linked", [False, True])
def test_code_that_a_config_names_is_refused(foreign, tmp_path, capsys, linked):
    config = json.loads((foreign / "config.json").read_text())
    if linked:
        (tmp_path / "modeling_unitsphere.py").write_bytes(
            (foreign / "modeling_unitsphere.py").read_bytes()
        )
        (foreign / "modeling_unitsphere.py").unlink()
        (foreign / "modeling_unitsphere.py").symlink_to("../modeling_unitsphere.py")
    else:
        config["auto_map"]["AutoModelForCausalLM"] = "somebody/else--evil.Model"
        (foreign / "config.json").write_text(json.dumps(config))
    assert ("link out of" if linked else "somebody/else--evil") in refused(foreign, capsys=capsys)


def test_of_a_folder_only_shapes_weights_and_tokens_count(foreign, engine, tmp_path):
    """Everything else by which transformers might run or fetch something is not looked at."""
    ran = tmp_path / "ran"
    (foreign / "modeling_unitsphere.py").unlink()
    for name in ("custom_generate/generate.py", "tokenization_evil.py", "evil.py"):
        (foreign / name).parent.mkdir(exist_ok=True)
        (foreign / name).write_text(touching(ran))
    config = json.loads((foreign / "config.json").read_text())
    config |= {"attn_implementation": "somebody/kernel", "quantization_config": {"a": 1}}
    config |= {"_attn_implementation": "somebody/kernel", "transformers_weights": "evil.bin"}
    (foreign / "config.json").write_text(json.dumps(config))
    for name, fields in {
        "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["tokenization_evil.T", None]}},
        "generation_config.json": {"num_beams": 10**9, "prompt_lookup_num_tokens": 5},
        "adapter_config.json": {"base_model_name_or_path": "somebody/else"},
    }.items():
        (foreign / name).write_text(json.dumps(fields))
    other = engine_of(Serve(foreign, device="cpu"))
    body = {"prompt": "The cat", "max_tokens": 8, "temperature": 0}
    answers = [ask(server.application(e), COMPLETIONS, body)[1] for e in (engine, other)]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert not ran.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": 10**9},
        {"hidden_size": 2**40},
        {"vocab_size": "many"},
        {"head_dim": -1},
        {"block": "none"},
        {"vocab_size": 2**62},
    ],
)
def test_a_config_that_its_weights_do_not_have_is_one_line(foreign, capsys, fields):
    config = json.loads((foreign / "config.json").read_text())
    (foreign / "config.json").write_text(json.dumps(config | fields))
    assert "are not those of its config.json" in refused(foreign, capsys=capsys)


def test_a_tokenizer_with_more_ids_than_the_model_is_one_line(foreign, capsys):
    document = json.loads((foreign / "tokenizer.json").read_text())
    document["model"]["vocab"]["beyond"] = 300
    (foreign / "tokenizer.json").write_text(json.dumps(document))
    line = refused(foreign, capsys=capsys)
    assert "tokenizer.json has ids up to 300, and the model takes 256" in line


def test_a_name_that_no_request_can_say_is_refused():
    for name in ("", "a\ud800", "a\x1b[2J"):
        with pytest.raises(UserError, match="give another by --name"):
            model_name(Serve(Path("cat"), name=name))


# Bad requests.

BAD = [
    ("max_tokens", 0),
    ("max_tokens", -5),
    ("max_tokens", "a"),
    ("temperature", -1),
    ("temperature", math.nan),
    ("temperature", "hot"),
    ("top_p", -1),
    ("seed", 10**30),
    ("stop", 5),
    ("stop", ["a"] * 5),
    ("stop", "a" * 65),
    ("stop", ""),
    ("frequency_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("presence_penalty", math.inf),
    ("logit_bias", {"256": 1}),
    ("logit_bias", {"a": 1}),
    ("stream", "yes"),
    ("generation_config", '{"num_beams": 100000}'),
    ("chat_template_kwargs", {"chat_template": "{{ 1 }}"}),
    ("model", "gpt-4"),
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_is_a_400_with_the_field_s_name(app, path, field, value):
    rest = {"prompt": "The cat"} if path == COMPLETIONS else {"messages": SAID}
    status, document = ask(app, path, rest | {field: value})
    assert status == document["error"]["code"] == 400
    assert document["error"]["param"] == field
    assert document["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("prompt", ["\ud800", "a\udc00", 5, ["a"], {}])
def test_a_prompt_that_is_no_text_is_a_400_with_its_name(app, prompt):
    status, document = ask(app, COMPLETIONS, {"prompt": prompt})
    assert (status, document["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hi",
        [5],
        [{"content": "a"}],
        [{"role": "user", "content": "\ud800"}],
        [{"role": "user", "content": "a", "a\ud800": 1}],
        [{"role": "user", "content": [{"type": "image_url", "text": "a"}]}],
    ],
)
def test_messages_that_are_none_are_a_400_with_their_name(app, messages):
    status, document = ask(app, CHAT, {"messages": messages})
    assert (status, document["error"]["param"]) == (400, "messages")


@pytest.mark.parametrize(
    ("message", "place", "why"),
    [
        ({"contents": "a"}, "contents", "the protocol has no such field"),
        ({"content": None, "tool_calls": [{"id": "a"}]}, "tool_calls", "or this server does not"),
        ({"content": "a", "refusal": "no"}, "refusal", "or this server does not"),
        ({"content": "a", "audio": {"id": "a"}}, "audio", "or this server does not"),
        ({"content": "a", "function_call": {}}, "function_call", "or this server does not"),
        ({"content": None, "refusal": None}, "content", "this field is required, and null is as"),
        ({}, "content", "this field is required"),
        ({"content": "a", "name": 5}, "name", "valid string"),
        ({"content": [{"type": "text", "text": "a", "b": 1}]}, "content.0.b", "no such field"),
    ],
)
def test_a_message_with_a_field_that_is_not_read_is_a_400_with_its_place(app, message, place, why):
    said = [*SAID, {"role": "assistant"} | message]
    status, document = ask(app, CHAT, {"messages": said, "max_tokens": 1})
    assert (status, document["error"]["param"]) == (400, "messages")
    assert document["error"]["message"].startswith(f"messages.1.{place}")
    assert why in document["error"]["message"]


def test_a_message_may_have_a_name_and_nulls(app):
    nulls = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls"))
    said = [SAID[0] | {"name": "ann"}, {"role": "assistant", "content": "sat"} | nulls]
    assert ask(app, CHAT, {"messages": said, "max_tokens": 1})[0] == 200


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b"\xff", b'"a"', b"[" * 9999, b"1" * 9999])
def test_a_body_that_is_no_json_object_is_a_400(app, body):
    status, document = ask(app, COMPLETIONS, body)
    assert status == 400
    assert document["error"]["message"].startswith("the body is not")


@pytest.mark.parametrize(
    ("field", "asks", "plain"),
    [
        ("n", 2, 1),
        ("best_of", 3, 1),
        ("echo", True, False),
        ("logprobs", 0, False),
        ("logprobs", True, None),
        ("top_logprobs", 5, 0),
        ("tools", [{"type": "function"}], []),
        ("response_format", {"type": "json_object"}, {"type": "text"}),
        ("tool_choice", "required", "auto"),
        ("audio", {"voice": "a"}, None),
    ],
)
def test_what_this_server_cannot_answer_is_refused_and_not_left_out(app, field, asks, plain):
    body = {"prompt": "The", "max_tokens": 2}
    status, document = ask(app, COMPLETIONS, body | {field: asks})
    assert (status, document["error"]["param"]) == (400, field)
    assert "one text" in document["error"]["message"]
    assert ask(app, COMPLETIONS, body | {field: plain, "user": "a"})[0] == 200


FIELDS = sorted(
    {
        *CompletionAsked.model_fields,
        *ChatAsked.model_fields,
        *IGNORED,
        *UNSUPPORTED,
        "other",
    }
)
ANY_TEXT = st.text(st.characters(codec=None), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.just(SAID),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)
BODIES = st.dictionaries(st.sampled_from(FIELDS) | ANY_TEXT, VALUES, max_size=5)


@settings(max_examples=80, deadline=None)
@given(body=BODIES, path=st.sampled_from([COMPLETIONS, CHAT]))
def test_no_body_is_answered_by_an_error_of_the_server_s_own(app, body, path):
    status, document = ask(app, path, body | {"stream": False, "max_tokens": 2})
    assert status in (200, 400)
    assert ("error" in document) == (status == 400)


@settings(max_examples=30, deadline=None)
@given(body=st.binary(max_size=60))
def test_no_bytes_are_answered_by_an_error_of_the_server_s_own(app, body):
    assert ask(app, COMPLETIONS, body)[0] in (200, 400)


@settings(max_examples=25, deadline=None)
@given(
    st.fixed_dictionaries(
        {"prompt": st.text(max_size=5), "max_tokens": st.integers(1, 4)},
        optional={
            "temperature": st.floats(0, 2),
            "top_p": st.floats(0, 1),
            "frequency_penalty": st.floats(-2, 2),
            "presence_penalty": st.floats(-2, 2),
            "seed": st.integers(-(2**63), 2**63 - 1),
            "stop": st.lists(st.text(min_size=1, max_size=64), max_size=4),
            "logit_bias": st.dictionaries(
                st.integers(0, 255).map(str), st.floats(-100, 100), max_size=3
            ),
        },
    )
)
def test_every_value_that_the_api_allows_is_answered(app, body):
    status, document = ask(app, COMPLETIONS, body)
    assert status == 200, document
    assert document["choices"][0]["finish_reason"] in ("length", "stop")


def test_frequency_and_presence_are_openai_s():
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, c counted after the prompt."""
    scores = Penalties(2, 0.5, 0.25)(torch.tensor([[1, 1, 3, 3, 0]]), torch.zeros(1, 4))
    assert scores.tolist() == [[-0.75, 0.0, 0.0, -1.25]]


def test_a_negative_frequency_repeats_what_was_said(app):
    body = {"prompt": "The", "max_tokens": 20, "temperature": 0, "logit_bias": {"65": 100}}
    _, document = ask(app, COMPLETIONS, body | {"frequency_penalty": -2})
    assert document["choices"][0]["text"] == "A" * 20


# Limits.


@pytest.mark.parametrize("size", [server.BODY_LIMIT, server.BODY_LIMIT + 1])
def test_a_body_is_read_up_to_a_limit(app, size):
    pieces = [b"x" * 65536] * (size // 65536) + [b"x" * (size % 65536), b"y" * 65536 * 99]
    client = Client(app, COMPLETIONS, *pieces)
    assert asyncio.run(client.run())[0] == 413
    one = ask(app, COMPLETIONS, b"x" * size)[0]
    assert one == (400 if size == server.BODY_LIMIT else 413)


def test_a_body_that_does_not_come_is_not_waited_for(app, monkeypatch):
    monkeypatch.setattr(server, "BODY_SECONDS", 0.01)
    assert asyncio.run(Client(app, COMPLETIONS).run())[0] == 408


def test_a_body_of_another_type_is_refused(app):
    """A web page of anybody's can send such a one without the browser asking."""
    for headers in ([HOST], [HOST, (b"content-type", b"text/plain")]):
        assert ask(app, COMPLETIONS, {}, headers=headers)[0] == 415
    typed = (b"content-type", b"Application/JSON; charset=utf-8")
    assert ask(app, COMPLETIONS, {"max_tokens": 1}, headers=[HOST, typed])[0] == 200


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(app, engine, monkeypatch):
    monkeypatch.setattr(engine, "backend", None)
    status, document = ask(app, COMPLETIONS, {"prompt": "x" * (engine.longest * 32 + 1)})
    assert status == 400
    assert (
        "the prompt has 513 characters, and the model takes at most 31 tokens"
        in (document["error"]["message"])
    )


class Slow:
    """In place of a model's `generate`: a token again and again until it is stopped."""

    def __init__(self):
        self.started, self.ended, self.calls = threading.Event(), threading.Event(), 0

    def __call__(self, input_ids, streamer, **others):
        self.calls += 1
        try:
            streamer.put(input_ids)
            while True:
                streamer.put(torch.tensor([65]))
                self.started.set()
                self.ended.wait(0.001)
        finally:
            self.ended.set()


@pytest.fixture
def slow(engine, monkeypatch) -> Slow:
    made = Slow()
    monkeypatch.setattr(engine.model, "generate", made)
    return made


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 60)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_work_stops_when_the_client_leaves(app, engine, slow, path, stream):
    async def leave():
        body = {"prompt": "a"} if path == COMPLETIONS else {"messages": SAID}
        client = Client(app, path, json.dumps(body | {"stream": stream}).encode())
        running = asyncio.ensure_future(client.app(client.scope, client.receive, client.send))
        await until(slow.started)
        client.left.set()
        await running
        await until(slow.ended)
        return client.status

    assert asyncio.run(leave()) == (200 if stream else None)
    assert engine.taken == 0


def test_work_stops_when_the_server_ends(app, engine, slow):
    async def end():
        client = Client(app, COMPLETIONS, b"{}")
        running = asyncio.ensure_future(client.app(client.scope, client.receive, client.send))
        await until(slow.started)
        running.cancel()
        await running  # without an error, which uvicorn would print
        await until(slow.ended)

    asyncio.run(end())
    assert engine.taken == 0


@pytest.mark.parametrize("stream", [False, True])
def test_work_that_waits_is_not_started_when_the_client_leaves(app, engine, slow, stream):
    async def leave():
        body = json.dumps({"stream": stream}).encode()
        clients = [Client(app, COMPLETIONS, body) for _ in range(3)]
        running = [asyncio.ensure_future(c.app(c.scope, c.receive, c.send)) for c in clients]
        await until(slow.started)
        while engine.taken < 3:
            await asyncio.sleep(0.001)
        for client, served in reversed(list(zip(clients, running, strict=True))):
            client.left.set()  # those that wait leave first, and are gone before the first ends
            await served
        await until(slow.ended)

    asyncio.run(leave())
    assert slow.calls == 1
    assert engine.taken == 0


def test_one_more_than_the_places_is_told_to_come_again(app, engine, slow, monkeypatch):
    monkeypatch.setattr(engines, "PLACES", 1)

    async def two():
        client = Client(app, COMPLETIONS, b"{}")
        running = asyncio.ensure_future(client.app(client.scope, client.receive, client.send))
        await until(slow.started)
        status, document = await Client(app, COMPLETIONS, b"{}").run()
        assert status == 503
        assert "try again later" in document["error"]["message"]
        client.left.set()
        await running

    asyncio.run(two())
    monkeypatch.undo()
    for body in ({"max_tokens": 1}, {"max_tokens": 0}, {"max_tokens": 1}):
        ask(app, COMPLETIONS, body)
    assert engine.taken == 0


def test_the_event_loop_answers_while_a_prompt_is_tokenized(app, engine, monkeypatch):
    reading, go = threading.Event(), threading.Event()
    tokens = engine.tokens

    def slowly(text, field):
        reading.set()
        assert go.wait(60)
        return tokens(text, field)

    monkeypatch.setattr(engine, "tokens", slowly)

    async def meanwhile():
        asked = asyncio.ensure_future(Client(app, COMPLETIONS, b'{"max_tokens": 1}').run())
        await until(reading)
        health = await Client(app, "/health", b"", method="GET").run()
        go.set()
        return health, await asked

    health, (status, _) = asyncio.run(meanwhile())
    assert (health, status) == ((200, {"status": "ok"}), 200)


class AtOnce(Executor):
    """Does its work within `submit`, as a thread does that is faster than its caller."""

    def submit(self, work, *arguments):
        done = Future()
        done.set_result(work(*arguments))
        return done


def test_a_generation_that_ends_at_once_is_answered(app, engine, monkeypatch):
    monkeypatch.setattr(engine, "writer", AtOnce())
    assert ask(app, COMPLETIONS, {"max_tokens": 1})[0] == 200


def test_an_error_of_the_generation_is_not_swallowed(app, engine, monkeypatch):
    def broken(**_):
        raise RuntimeError("the model is broken")

    monkeypatch.setattr(engine.model, "generate", broken)
    for stream in (False, True):
        with pytest.raises(RuntimeError, match="the model is broken"):
            ask(app, COMPLETIONS, {"stream": stream})
    assert engine.taken == 0


# Hosts.


@pytest.mark.parametrize(
    ("host", "hosts", "answered"),
    [
        ("localhost", ["localhost:8000"], True),
        ("localhost", ["LOCALHOST"], True),
        ("localhost", ["127.0.0.1:1"], True),
        ("localhost", ["[::1]:8000"], True),
        ("localhost", ["proxy.example"], True),
        ("localhost", ["evil.example:8000"], False),
        ("localhost", ["localhost.evil.example"], False),
        ("localhost", ["192.0.2.7"], False),
        ("localhost", [], False),
        ("localhost", [""], False),
        ("localhost", ["[::1"], False),
        ("localhost", ["localhost", "evil.example"], False),
        ("0.0.0.0", ["192.0.2.7:8000"], True),
        ("0.0.0.0", ["localhost"], True),
        ("0.0.0.0", ["evil.example"], False),
    ],
)
def test_only_hosts_that_it_listens_on_are_answered(engine, host, hosts, answered):
    with socket.create_server((host, 0)) as listening:
        guarded = server.application(engine, server.own_hosts(host, listening, ("Proxy.example",)))
    headers = [(b"host", name.encode()) for name in hosts]
    client = Client(guarded, "/v1/models", b"", method="GET", headers=headers)
    status, document = asyncio.run(client.run())
    assert status == (200 if answered else 403)
    assert answered or "--allow-host" in document["error"]["message"]
