"""A run trained here behind the server, asked by OpenAI's own client."""

import importlib.util
import shutil
import signal
import socket
from pathlib import Path
from types import SimpleNamespace

import httpx
import openai
import pytest
import torch
from forked import Forked, wait_for
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordLevel

import unitsphere
from unitsphere.cli import main
from unitsphere.cli.serve import Serve, check_causal, default_cache, engine_of, exported
from unitsphere.errors import UserError
from unitsphere.inference.generate import generate_text
from unitsphere.inference.hf.engine import Ended, Engine, Work, longest_text
from unitsphere.inference.hf.requests import CompletionAsked, Refused
from unitsphere.training.archive import pack

SETTINGS = {
    "model.d_model": 32,
    "model.n_layers": 1,
    "model.n_heads": 2,
    "data.source": "text.txt",
    "data.tokenizer": "bytes",
    "data.context": 32,
    "data.cache": "data",
    "train.batch_tokens": 128,
    "train.device": "cpu",
    "train.steps": 20,
}
PROMPT = "The cat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with `runs/cat` in it, trained for a few steps."""
    folder = tmp_path_factory.mktemp("serve")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("text.txt").write_text("The cat sat on the mat, and that was that.\n" * 60)
        train("runs/cat")
    return folder


def train(out: str, seed: int = 0) -> None:
    settings = SETTINGS | {"train.seed": seed, "out": out}
    flags = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    assert main(["train", "quickstart/ngpt", *flags]) == 0


@pytest.fixture(scope="module")
def server(folder):
    """The process that serves it, and its address."""
    command = ["serve", "runs/cat", "--port", "0", "--cache", "cache", "--device", "cpu"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        process = Forked(main, command, folder=folder)
    said = folder / "stdout"
    wait_for(lambda: process.poll() is not None or "\n" in said.read_text(), 120)
    line = said.read_text()
    assert line.startswith("cat at http://localhost:"), (folder / "stderr").read_text()
    yield process, line.split()[2]
    process.kill()


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server[1], api_key="none", max_retries=0)


@pytest.fixture
def expected(folder) -> str:
    """The likeliest continuation by this package alone."""
    model, tokenizer, _ = unitsphere.load(folder / "runs" / "cat", "cpu")
    return generate_text(model, tokenizer, [PROMPT], 8)[0].text


def completion(client, prompt: str | list[str] = PROMPT, **settings):
    return client.completions.create(
        **{"model": "cat", "prompt": prompt, "max_tokens": 8, "temperature": 0} | settings
    )


def chat(client, *contents, **settings):
    messages = [{"role": "user", "content": content} for content in contents]
    return client.chat.completions.create(
        model="cat", messages=messages, max_tokens=8, temperature=0, **settings
    )


def test_a_completion_is_what_generate_writes(client, expected):
    found = completion(client)
    assert found.choices[0].text == expected
    assert found.choices[0].finish_reason == "length"
    assert found.usage.prompt_tokens == 1 + len(PROMPT)
    assert found.usage.completion_tokens == 8


def test_a_stream_is_the_completion_in_pieces(client, expected):
    pieces = [chunk.choices[0].text for chunk in completion(client, stream=True)]
    assert len(pieces) > 4
    assert "".join(pieces) == expected


def test_a_stream_has_the_bytes_of_a_last_character_that_is_not_complete(client):
    first_byte = {"195": 100}  # of two
    whole = completion(client, logit_bias=first_byte, max_tokens=1).choices[0].text
    assert whole == "\ufffd"
    chunks = completion(client, logit_bias=first_byte, max_tokens=1, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole


@pytest.mark.parametrize("most", [1, 2])
def test_a_text_that_the_model_ends_has_stopped_at_whatever_length(client, most):
    found = completion(client, logit_bias={"0": 100}, max_tokens=most).choices[0]
    assert (found.text, found.finish_reason) == ("", "stop")


def test_a_chat_continues_its_messages_as_one_text(client, expected):
    found = chat(client, "The", " cat")
    assert found.choices[0].message.content == expected
    assert found.usage.prompt_tokens == 1 + len(PROMPT)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chat(client, PROMPT, stream=True)]
    assert "".join(pieces) == expected


def test_an_answer_can_be_a_message_of_the_next_request(client):
    said = {"role": "user", "content": "The"}
    answer = chat(client, "The").choices[0].message
    for message in (answer, answer.model_dump()):
        found = client.chat.completions.create(model="cat", messages=[said, message], max_tokens=1)
        assert found.usage.prompt_tokens == 1 + len("The" + answer.content)


def test_a_temperature_samples_and_a_seed_repeats_it(client):
    texts = [
        completion(client, temperature=1.5, seed=seed, max_tokens=20).choices[0].text
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_text_ends_where_the_model_s_context_does(client):
    found = completion(client, max_tokens=500)
    assert found.usage.total_tokens == 32
    assert found.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_refused_with_its_length(client, stream):
    long = r"the prompt has 41 tokens, .* at most 31"
    with pytest.raises(openai.BadRequestError, match=long) as caught:
        completion(client, "x" * 40, stream=stream)
    assert caught.value.param == "prompt"
    with pytest.raises(openai.BadRequestError, match="the prompt has 32 tokens") as caught:
        chat(client, "x" * 31, stream=stream)
    assert caught.value.param == "messages"
    assert completion(client, "x" * 30).usage.completion_tokens == 1


def test_an_unknown_model_is_refused_with_the_name_of_the_one_there_is(client):
    for model in ("gpt-4", "../other", "cat@main:x.gguf"):
        with pytest.raises(openai.BadRequestError, match="pinned to 'cat'"):
            completion(client, model=model)
    assert [model.id for model in client.models.list()] == ["cat"]


def test_a_request_that_is_wrong_is_told_so(client):
    with pytest.raises(openai.BadRequestError, match=r"prompt: .* valid string") as caught:
        completion(client, ["one", "two"])
    assert caught.value.param == "prompt"
    with pytest.raises(openai.BadRequestError, match="best: the protocol has no such field"):
        completion(client, extra_body={"best": 1})


def test_the_model_of_an_answer_is_one_that_requests_may_name(client):
    assert completion(client, model=completion(client).model).model == "cat"
    assert {chunk.model for chunk in completion(client, stream=True)} == {"cat"}
    assert chat(client, PROMPT).model == "cat"
    assert {chunk.model for chunk in chat(client, PROMPT, stream=True)} == {"cat"}


def test_the_model_is_found_by_its_name_and_no_other_is(client):
    assert client.models.retrieve("cat").id == "cat"
    with pytest.raises(openai.NotFoundError, match="this server has 'cat'"):
        client.models.retrieve("dog/fish")


def test_a_stop_string_ends_the_text(client, expected):
    stop = expected[2:4]
    until = expected[: expected.index(stop) + 2]
    found = completion(client, stop=stop)
    assert found.choices[0].text == until
    assert found.choices[0].finish_reason == "stop"
    pieces = [
        chunk.choices[0].text for chunk in completion(client, stop=["\n\n", stop], stream=True)
    ]
    assert "".join(pieces) == until


def test_no_request_loads_another_model_or_drops_this_one(server, client, expected):
    root = server[1].removesuffix("/v1")
    for path in ("/load_model", "/reset", "/v1/audio/transcriptions", "/v1/responses"):
        assert httpx.post(root + path, json={"model": "other/model"}).status_code == 404
    assert httpx.get(root + "/health").json() == {"status": "ok"}
    assert completion(client).choices[0].text == expected


def test_an_interruption_ends_it_cleanly(server):
    process, url = server
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=60)
    assert process.poll() == 0
    assert complaints.splitlines()[-1] == "ended"
    assert "Traceback" not in complaints
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_a_run_is_exported_again_only_when_it_has_changed(folder, monkeypatch):
    monkeypatch.chdir(folder)
    run, cache = Path("runs/cat"), Path("other-cache")
    first = exported(run, cache)
    written = (first / "config.json").stat().st_mtime_ns
    assert exported(run, cache) == first
    assert (first / "config.json").stat().st_mtime_ns == written
    assert exported(first, cache) == first  # an exported folder is served as it is
    newest = max((run / "checkpoints").glob("step-*"))
    same = exported(newest, cache)
    assert same.name == f"{newest.name}{first.name.removeprefix(run.name)}"
    assert (same / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    train("runs/other", seed=1)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree("runs/other/checkpoints", run / "checkpoints")
    second = exported(run, cache)
    assert second != first
    assert len(list(cache.iterdir())) == 3


def test_a_text_ends_at_the_training_context_though_positions_are_learned_for_more(
    folder, monkeypatch
):
    monkeypatch.chdir(folder)
    recipe = Path("learned.toml")
    recipe.write_text('architecture = "normformer"\n')
    more = {"model.positions": "learned", "model.max_positions": 64, "train.steps": 2}
    flags = [word for pair in (SETTINGS | more).items() for word in (f"--{pair[0]}", str(pair[1]))]
    assert main(["train", str(recipe), "--out", "runs/learned", *flags]) == 0
    for trust in (False, True):
        run = Serve(Path("runs/learned"), cache=Path("c"), device="cpu", trust_remote_code=trust)
        engine = engine_of(run)
        assert engine.model.config.max_position_embeddings == 64
        assert engine.context == 32


@pytest.mark.parametrize("settings", [None, "x", {}, {"data": 3}, {"data": {"context": "9"}}])
def test_a_folder_without_its_training_context_has_the_model_s(settings):
    config = SimpleNamespace(max_position_embeddings=64, unitsphere=settings)
    assert longest_text(config) == 64
    assert longest_text(SimpleNamespace(max_position_embeddings=64)) == 64


def test_refusals_are_one_line(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)

    def refused(*arguments: str) -> str:
        assert main(["serve", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    with socket.create_server(("localhost", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refused("runs/cat", "--port", port)
        assert "in use" in line
        assert "give another --port" in line
    assert "cannot listen" in refused("runs/cat", "--port", "99999")
    Path("empty/checkpoints").mkdir(parents=True)
    assert "has no complete checkpoint: train it first" in refused("empty", "--port", "0")
    assert "is not a run folder" in refused("nowhere", "--port", "0")
    pack(Path("runs/cat"), Path("cat.tar.gz"))
    assert "cat.tar.gz is an archive, which serve does not" in refused("cat.tar.gz", "--port", "0")
    with pytest.raises(UserError, match="objective clm, and masked has mlm"):
        check_causal(Path("masked"), "mlm")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "uvicorn" else found(n))
    assert refused("runs/cat").endswith("serve needs uvicorn: pip install 'unitsphere[serve]'")


@pytest.mark.parametrize("named", ["", "relative/cache"])
def test_exports_are_kept_in_the_user_s_cache_folder(named, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", named)  # its standard ignores a relative path
    assert default_cache() == tmp_path / ".cache" / "unitsphere" / "serve"


def test_a_user_without_a_home_is_told_to_name_the_cache(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(UserError, match="--cache"):
        default_cache()


def word_level() -> Tokenizer:
    """A tokenizer of three words that drops the space before the first."""
    names = ["</s>", "▁The", "▁cat", "▁sat"]
    backend = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="</s>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    backend.add_special_tokens(["</s>"])
    return backend


def heard(asked: CompletionAsked, pieces: list[str | None]) -> Work:
    """The work that continues "The cat", whose pieces are put into the list."""
    backend = word_level()
    work = Work(asked, [0, *backend.encode("The cat").ids], 8, backend)
    work.loop = SimpleNamespace(call_soon_threadsafe=lambda put, piece: pieces.append(piece))
    work.put(torch.tensor([work.prompt]))
    return work


def test_a_tokenizer_that_drops_the_first_space_keeps_the_one_after_the_prompt():
    pieces = []
    work = heard(CompletionAsked(), pieces)
    work.put(torch.tensor([3]))
    work.put(torch.tensor([0]))
    work.close()
    assert pieces == [work.text, None] == [" sat", None]


def byte_fallback() -> Tokenizer:
    """A tokenizer as Llama's: characters that it does not know are their bytes, and bytes in a row
    that are not UTF-8 are replacement characters, all of them."""
    names = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"x": 256, "</s>": 257}
    backend = Tokenizer(BPE(names, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return backend


@pytest.mark.parametrize(
    ("prompt", "new", "said"),
    [
        ("日本語", [*"éß".encode(), 256], ["é", "ß", "x"]),
        ("x", [*b"E", 0xE9, 256, 256], ["E", "\N{REPLACEMENT CHARACTER}x", "x"]),
    ],
)
def test_bytes_of_several_characters_in_a_row_are_streamed_too(prompt, new, said):
    backend, pieces = byte_fallback(), []
    work = Work(CompletionAsked(), [257, *backend.encode(prompt).ids], 8, backend)
    work.loop = SimpleNamespace(call_soon_threadsafe=lambda put, piece: pieces.append(piece))
    for token in new:
        work.put(torch.tensor([token]))
    work.close()
    assert pieces == [*said, None]


def test_nothing_of_a_token_comes_after_a_stop_string_within_it():
    pieces = []
    work = heard(CompletionAsked(stop=["he sa", "e s"]), pieces)  # over two tokens
    work.put(torch.tensor([1]))
    with pytest.raises(Ended):
        work.put(torch.tensor([3]))
    work.close()
    assert pieces == [" The", " s", None]
    assert (work.text, work.finish_reason) == (" The s", "stop")


@pytest.mark.parametrize("last", [[], [0]])
def test_a_stop_string_in_a_last_token_that_ends_within_a_character_ends_the_text(last):
    backend = Tokenizer(WordLevel({"</s>": 0, "xæ": 1}, unk_token="</s>"))
    backend.decoder = decoders.ByteLevel()  # of token 1: "x" and the first byte of another
    backend.add_special_tokens(["</s>"])
    pieces = []
    work = Work(CompletionAsked(stop=["x"]), [0], 1 + len(last), backend)
    work.loop = SimpleNamespace(call_soon_threadsafe=lambda put, piece: pieces.append(piece))
    for token in [1, *last]:
        work.put(torch.tensor([token]))
    work.close()
    assert pieces == ["x", None]
    assert (work.text, work.finish_reason) == ("x", "stop")


def test_a_separator_in_a_prompt_is_text_to_a_unigram_tokenizer_too():
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((c, -9.0) for c in "▁abs<>/")]
    backend = Tokenizer(Unigram(pieces, unk_id=0))
    backend.normalizer = normalizers.Replace("b", "</s>")
    backend.add_special_tokens(["<unk>", "</s>"])
    config = SimpleNamespace(max_position_embeddings=64, vocab_size=9, bos_token_id=1)
    engine = Engine(SimpleNamespace(config=config), backend, "cat")
    found = engine.tokens("a</s>a", "prompt")
    assert found[0] == 1
    assert 1 not in found[1:]
    assert engine.backend.decode(found[1:]) == "a < / s > a"
    with pytest.raises(Refused, match="the tokenizer of cat makes 'b' its separator") as refused:
        engine.tokens("ab", "prompt")
    assert (refused.value.status, refused.value.field) == (400, "prompt")
