"""A served model: an exported folder loaded without its own Python, and requests answered by it.

transformers would run the modeling file of a folder, whoever has written it. Here the package's own
classes take the weights, and of config.json only the fields that these classes declare: a config
can name code, kernels and other weights that transformers would fetch. The tokenizer is made of
tokenizer.json, and the settings of the generation are those that an export has.

Requests are read in one thread and answered in another, one after another. The event loop does
neither, so it always answers. A request occupies one of PLACES from its arrival to the end of its
generation, or until its client leaves.
"""

import asyncio
import copy
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LogitsProcessor

from unitsphere.config import read_json
from unitsphere.data.tokenizer import UNFINISHED, JsonTokenizer
from unitsphere.errors import UserError
from unitsphere.files import read_bytes, read_text
from unitsphere.inference.decode import COLDEST
from unitsphere.inference.hf.export import MODELING, generation_config
from unitsphere.inference.hf.modeling_unitsphere import UnitsphereConfig, UnitsphereForCausalLM
from unitsphere.inference.hf.requests import STOP_LENGTH, Asked, ChatAsked, Refused, parsed

PLACES = 32
"""Most requests that are answered or wait; one more is refused with status 503."""
LAST = 8
"""Tokens of a prompt that are decoded before the answer: a character has at most 4 bytes, and all
of a prompt without whole characters would take long."""


def load_trusted(folder: Path) -> tuple[Any, Backend]:
    """Model and tokenizer as transformers loads them: the folder's modeling file runs."""
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    return model.eval(), tokenizer.backend_tokenizer


def load_own(folder: Path, tensors: Mapping[str, Tensor]) -> tuple[Any, Backend]:
    """Model and tokenizer of the exported folder, by the classes of this package.

    tensors: the folder's weights by name. Raises UserError for a folder with another modeling
    file, and for one whose parts do not fit together.
    """
    fields = read_json(folder / "config.json")
    check_modeling(folder, fields)
    text = JsonTokenizer(
        read_text(folder / "tokenizer.json", folder), str(folder / "tokenizer.json")
    )
    model = own_model(folder, fields, tensors)
    if text.vocab_size > model.config.vocab_size:
        raise UserError(
            f"{folder}/tokenizer.json has ids up to {text.vocab_size - 1}, and the model takes "
            f"{model.config.vocab_size} of them: export the run again"
        )
    settings = generation_config(text.separator, text.vocab_size, model.config.vocab_size)
    model.generation_config = settings
    model.config.bos_token_id = text.separator
    model.config.unitsphere = fields.get("unitsphere")
    return model, Backend.from_str(text.json)


def check_modeling(folder: Path, fields: Mapping[str, Any]) -> None:
    """Raise UserError if the folder's code is not the modeling file that this version writes."""
    named = fields.get("auto_map") or {}
    modules = [str(name).partition(".")[0] for name in named.values()]
    file = folder / f"{MODELING}.py"
    own = Path(__file__).with_name(f"{MODELING}.py").read_bytes()
    foreign = [module for module in modules if module != MODELING]
    if file.exists() and read_bytes(file, folder) != own:
        foreign.insert(0, MODELING)
    if foreign:
        raise UserError(
            f"{folder}/{foreign[0]}.py is not the file that this version of unitsphere writes, so "
            "it is not run: export the run again, or add --trust-remote-code to run it if you "
            "trust its author"
        )


def own_model(folder: Path, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """The model of a config's fields with these weights, in fp32; a `UserError` if they differ."""
    known = {name: fields[name] for name in UnitsphereConfig.__annotations__ if name in fields}
    layers = {name.split(".")[2] for name in tensors if name.startswith("model.layers.")}
    try:
        if known.get("num_hidden_layers") != len(layers):  # before any is made: it may say 10^9
            raise ValueError(f"it has {len(layers)} layers")
        with torch.device("meta"):  # only shapes: the config may ask for any size
            model = UnitsphereForCausalLM(UnitsphereConfig(**known))
        if model.config.tie_word_embeddings:
            tensors = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
        model.load_state_dict(tensors, strict=True, assign=True)
    # A config of a stranger fails wherever its values are used first.
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise UserError(
            f"the weights of {folder} are not those of its config.json "
            f"({' '.join(line.strip() for line in lines)[:200]}): export the run again"
        ) from error
    return model.float().eval().requires_grad_(False)


def longest_text(config: Any) -> int:
    """Most tokens of a text: the training context, though a model may have learned positions for
    more."""
    positions = config.max_position_embeddings
    try:
        context = config.unitsphere["data"]["context"]
    except (AttributeError, LookupError, TypeError):  # someone else's folder
        return positions
    return min(context, positions) if isinstance(context, int) else positions


class Ended(Exception):
    """Generation must stop: the client has left, or a stop string was written."""


class Penalties(LogitsProcessor):
    """OpenAI's: a token's logit falls by frequency·(times generated) and, once, by presence."""

    def __init__(self, start: int, frequency: float, presence: float) -> None:
        self.start, self.frequency, self.presence = start, frequency, presence

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Logits [batch, vocabulary] after ids [batch, time], of which `start` are the prompt."""
        new = input_ids[:, self.start :]
        counts = torch.zeros_like(scores).scatter_add(
            1, new, torch.ones_like(new, dtype=scores.dtype)
        )
        return scores - self.frequency * counts - self.presence * (counts > 0)


def from_whole(ids: list[int], backend: Backend) -> list[int]:
    """The ids without those at the start that are the rest of a character."""
    starts = (at for at in range(len(ids)) if not backend.decode(ids[at:]).startswith(UNFINISHED))
    return ids[next(starts, len(ids)) :]


class Work:
    """One generation: what is to be done, and the pieces of its text as they come.

    The generating thread calls `put`, `end` and `close`, the event loop everything else.
    """

    def __init__(self, asked: Asked, prompt: list[int], most: int, backend: Backend) -> None:
        self.asked, self.prompt, self.most, self.backend = asked, prompt, most, backend
        self.ids: list[int] = []
        self.left = threading.Event()
        self.stopped = False
        self.tail = self.said = ""
        # Tokens are decoded with those before: some tokenizers drop the space before the first.
        self.window = from_whole(prompt[-LAST:], backend)
        self.known = len(self.window)  # of them: those whose text is said
        self.queue: asyncio.Queue[str | None] = asyncio.Queue()
        self.loop: asyncio.AbstractEventLoop
        self.done: asyncio.Future[None]

    def put(self, ids: Tensor) -> None:
        """Take the prompt's ids at first, and then each token's. Raises Ended."""
        if self.left.is_set():
            raise Ended
        if ids.dim() > 1:  # the prompt, [1, time]
            return
        for token in ids.tolist():
            self.ids.append(token)
            self.window.append(token)
            piece = self.rest()
            if piece and not piece.endswith(UNFINISHED):
                self.window, self.known = self.window[self.known :], len(self.window) - self.known
                self.give(self.up_to_stop(piece))
                if self.stopped:
                    raise Ended

    def rest(self) -> str:
        """The text of the tokens that are not said yet; its last character may be incomplete.

        tokenizers' DecodeStream fails where bytes make other characters with those after them.
        """
        before, now = map(self.backend.decode, (self.window[: self.known], self.window))
        return now[len(before) :]

    def give(self, piece: str) -> None:
        """Add a piece to those that the event loop takes."""
        self.said += piece
        self.loop.call_soon_threadsafe(self.queue.put_nowait, piece)

    def up_to_stop(self, piece: str) -> str:
        """The piece, or if a stop string ends within it, what of it is not after that.

        transformers' criterion would cost seconds of preparation for a vocabulary of 50k.
        """
        self.tail = tail = self.tail[-STOP_LENGTH:] + piece
        ends = [tail.index(stop) + len(stop) for stop in self.asked.stop if stop in tail]
        self.stopped = bool(ends)
        return piece[: len(piece) - len(tail) + min(ends)] if ends else piece

    def end(self) -> None:
        """As transformers' `generate` asks it of a streamer; `close` ends the pieces."""

    def close(self) -> None:
        """Give the bytes of an incomplete character, and mark the end, if anybody listens."""
        if not self.left.is_set():
            if not self.stopped and (rest := self.rest()):
                self.give(self.up_to_stop(rest))
            self.loop.call_soon_threadsafe(self.queue.put_nowait, None)

    async def pieces(self) -> AsyncIterator[str]:
        """The text as it is generated; raises what the generation raised."""
        while (piece := await self.queue.get()) is not None:
            yield piece
        await self.done

    def stop(self) -> None:
        """Generate no more: not at all, or no further token."""
        self.left.set()
        self.done.cancel()

    @property
    def text(self) -> str:
        """All of it, at the end."""
        if self.stopped:
            return self.said
        before, whole = map(self.backend.decode, (self.prompt, self.prompt + self.ids))
        return whole[len(before) :]

    @property
    def finish_reason(self) -> str:
        """Why it ended."""
        ended = self.stopped or self.ids[-1:] == self.prompt[:1]  # the separator begins a prompt
        return "length" if len(self.ids) >= self.most and not ended else "stop"


class Engine:
    """The model called `name`, on its device, and its tokenizer."""

    def __init__(self, model: Any, backend: Backend, name: str) -> None:
        self.model, self.backend, self.name = model, backend, name
        # As in training, "<|endoftext|>" within a text is characters.
        self.backend.encode_special_tokens = True
        self.backend.no_truncation()
        self.backend.no_padding()
        # The model of a Unigram tokenizer knows "</s>" all the same; this one splits it.
        self.tokenizer = JsonTokenizer(self.backend.to_str(), f"of {name}")
        self.context = longest_text(model.config)
        self.vocab_size: int = model.config.vocab_size
        self.longest = max(16, *map(len, self.backend.get_vocab()))
        self.reader = ThreadPoolExecutor(1, "read")
        self.writer = ThreadPoolExecutor(1, "generate")
        self.taken = 0

    async def start(self, form: type[Asked], body: bytes) -> Work:
        """Read a request and queue it. Raises Refused."""
        if self.taken >= PLACES:
            raise Refused(503, f"{PLACES} requests wait already: try again later")
        self.taken += 1
        loop = asyncio.get_running_loop()
        try:
            work = await loop.run_in_executor(self.reader, self.read, form, body)
        except BaseException:  # also when the client leaves
            self.taken -= 1
            raise
        work.loop = loop  # before the thread wants it
        work.done = loop.run_in_executor(self.writer, self.generate, work)
        work.done.add_done_callback(self.free)
        return work

    def free(self, done: Any) -> None:
        """Give up a place."""
        self.taken -= 1

    def read(self, form: type[Asked], body: bytes) -> Work:
        """The work that a request asks for. Raises Refused."""
        asked = parsed(form, body)
        if asked.model not in (None, self.name):
            wrong = f"Server is pinned to {self.name!r}; requested {asked.model[:100]!r}."
            raise Refused(400, wrong, "model")
        if foreign := [token for token in asked.logit_bias if int(token) >= self.vocab_size]:
            raise Refused(400, f"logit_bias: there is no token {foreign[0]}", "logit_bias")
        prompt = self.tokens(asked.text, "messages" if isinstance(asked, ChatAsked) else "prompt")
        return Work(asked, prompt, min(asked.most_tokens, self.context - len(prompt)), self.backend)

    def tokens(self, text: str, field: str) -> list[int]:
        """A prompt's ids after the separator; refused unless it leaves room for one token.

        field: the request's, which holds the text.
        """
        if len(text) > self.longest * self.context:
            length = f"{len(text)} characters"
        else:
            try:
                ids = self.tokenizer.encode(text)
            except UserError as error:  # what this tokenizer cannot take
                raise Refused(400, str(error), field) from error
            if len(ids) + 1 < self.context:
                return [self.model.config.bos_token_id, *ids]
            length = f"{len(ids) + 1} tokens"
        raise Refused(
            400,
            f"the prompt has {length}, and the model takes at most "
            f"{self.context - 1} tokens before the first of its own: shorten it",
            field,
        )

    def generate(self, work: Work) -> None:
        """Do the work, in the one thread for it; without a seed, chance differs each time."""
        asked, prompt = work.asked, torch.tensor([work.prompt], device=self.model.device)
        penalties = Penalties(len(work.prompt), asked.frequency_penalty, asked.presence_penalty)
        try:
            torch.seed() if asked.seed is None else torch.manual_seed(asked.seed)
            self.model.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                generation_config=self.settings(asked, work.most),
                logits_processor=[penalties],
                streamer=work,
            )
        except Ended:
            pass  # the client left, or a stop string was written
        finally:
            work.close()

    def settings(self, asked: Asked, most: int) -> GenerationConfig:
        """How to generate: plain sampling, unless the request says otherwise."""
        settings = copy.deepcopy(self.model.generation_config)
        settings.max_new_tokens, settings.top_k, settings.top_p = most, 0, asked.top_p
        settings.do_sample = asked.temperature >= COLDEST
        settings.temperature = asked.temperature if settings.do_sample else 1.0
        bias = {(int(token),): value for token, value in asked.logit_bias.items()}
        settings.sequence_bias = bias or None
        return settings
