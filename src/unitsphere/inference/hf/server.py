"""transformers' own OpenAI-compatible server, for one model that is loaded once.

Its request handlers, streaming and generation are used as they are. What differs: the model is
one that comes with its own code, which `transformers serve` cannot load; no request can load
another; a prompt that does not fit is refused; sampling is on, so that a request's temperature
counts; and every text begins with the separator, in a chat too.
"""

import inspect
import socket
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager, TimedModel
from transformers.cli.serving.server import build_server
from transformers.cli.serving.utils import GenerateManager, GenerationState

ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health")
"""What is served; the server's routes for audio, or to load other models, are not."""
TURNS = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""The chat template of a model that has learned to continue texts: one text, as it was written."""


class OneModel(ModelManager):
    """The model of a folder under a name; any other is unknown."""

    def __init__(self, folder: Path, name: str, device: torch.device) -> None:
        super().__init__(device=str(device))
        model: Any = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        tokenizer.chat_template = TURNS
        settings = model.generation_config
        settings.do_sample, settings.temperature, settings.top_k = True, 1.0, 0
        self.force_model = name
        served = TimedModel(model.to(device).eval(), -1, tokenizer)  # never unloaded
        self.loaded_models = {self.process_model_name(name): served}
        listed = [{"id": name, "object": "model", "created": 0, "owned_by": "unitsphere"}]
        self.get_gen_models = lambda cache_dir=None: listed  # pyright: ignore[reportAttributeAccessIssue]


class Fitting(GenerateManager):
    """Generation within the length that the model was trained on.

    Further arguments are handed on by name: they are not the same in all versions of transformers.
    """

    def generate_streaming(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, model: Any, processor: Any, inputs: Any, gen_config: Any, **others: Any
    ) -> Any:
        """As transformers does it, if the prompt fits."""
        inputs = fitted(inputs, gen_config, model.config)
        return super().generate_streaming(model, processor, inputs, gen_config, **others)

    async def generate_non_streaming(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, model: Any, processor: Any, inputs: Any, gen_config: Any, **others: Any
    ) -> Any:
        """As transformers does it, if the prompt fits."""
        inputs = fitted(inputs, gen_config, model.config)
        return await super().generate_non_streaming(model, processor, inputs, gen_config, **others)


class OneGeneration(GenerationState):
    """One generation at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = Fitting()

    def get_manager(self, model_id: str, use_cb: bool = False) -> Fitting:
        """The same for every request."""
        return self.manager


def fitted(inputs: Any, gen_config: Any, config: Any) -> dict[str, torch.Tensor]:
    """A prompt's ids [1, time] with the separator at its start, and no more tokens than fit.

    Raises HTTPException, status 400, for a prompt that leaves no room for one.
    """
    ids = inputs["input_ids"].long()
    if ids.shape[1] == 0 or ids[0, 0] != config.bos_token_id:
        ids = torch.cat([ids.new_full((1, 1), config.bos_token_id), ids], dim=1)
    room = config.max_position_embeddings - ids.shape[1]
    if room < 1:
        raise HTTPException(
            400,
            f"the prompt has {ids.shape[1]} tokens, and the model takes at most "
            f"{config.max_position_embeddings - 1} before the first of its own: shorten it",
        )
    gen_config.max_new_tokens = min(gen_config.max_new_tokens, room)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def application(folder: Path, name: str, device: torch.device) -> FastAPI:
    """The server's application for the exported folder, whose model is called `name`."""
    models, state = OneModel(folder, name, device), OneGeneration()
    handlers: dict[str, Any] = {
        "chat_handler": ChatCompletionHandler(models, state),
        "completion_handler": CompletionHandler(models, state),
    }
    unserved = [n for n in inspect.signature(build_server).parameters if n.endswith("_handler")]
    handlers = dict.fromkeys(unserved) | handlers
    app = build_server(models, generation_state=state, **handlers)
    app.add_exception_handler(HTTPException, refusal)
    app.router.routes[:] = [r for r in app.routes if getattr(r, "path", None) in ROUTES]
    return app


def refusal(request: Request, error: Exception) -> JSONResponse:
    """What was wrong with a request, in the form in which OpenAI's clients look for it."""
    assert isinstance(error, HTTPException)
    told = {"message": error.detail, "type": "invalid_request_error", "code": error.status_code}
    return JSONResponse({"error": told}, error.status_code)


def run_server(app: FastAPI, listening: socket.socket) -> None:
    """Answer on a socket until the process is interrupted, which ends in KeyboardInterrupt."""
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listening])
