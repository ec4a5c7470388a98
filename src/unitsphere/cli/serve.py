"""`unitsphere serve`: a run behind an OpenAI-compatible server on this computer."""

import dataclasses
import hashlib
import importlib.util
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from unitsphere.cli.parse import parse
from unitsphere.errors import UserError
from unitsphere.files import read_bytes

if TYPE_CHECKING:
    from unitsphere.inference.hf.engine import Engine

NEEDED = ("transformers", "starlette", "uvicorn", "pydantic")


@dataclasses.dataclass(frozen=True)
class Serve:
    """Serve a run behind an OpenAI-compatible server, until Ctrl-C.

    The run is exported to a cache folder, again whenever it has changed. Any
    OpenAI client then takes http://localhost:8000/v1 and the run's name as
    model: completions continue a text; a chat's messages are put one after
    another and continued: the model has only learned to continue texts.

    example: unitsphere serve runs/quickstart/ngpt --port 8000
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """run folder, one of its checkpoints, or a folder that `unitsphere export` wrote"""
    port: int = 8000
    """port to listen on; 0: any that is free"""
    host: str = "localhost"
    """address to listen on; 0.0.0.0 lets other computers in, without any password"""
    name: str | None = None
    """the model's name for clients; by default the folder's"""
    cache: Path | None = None
    """where exports are kept; by default ~/.cache/unitsphere/serve"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""
    allow_host: Annotated[tuple[str, ...], arg(metavar="NAME [NAME …]")] = ()
    """other names that requests may use in their Host header, such as a proxy's"""
    trust_remote_code: bool = False
    """run an exported folder's own modeling file: it has all your permissions"""


def run(argv: list[str]) -> int:
    """Export, listen, answer."""
    args = parse(Serve, argv, "serve")
    check_extra()
    with listen(args.host, args.port) as listening:
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        engine = engine_of(args)

        from unitsphere.inference.hf.server import application, own_hosts, run_server

        app = application(engine, own_hosts(args.host, listening, args.allow_host))
        port = listening.getsockname()[1]
        print(f"{engine.name} at http://{args.host}:{port}/v1 (Ctrl-C ends)", flush=True)
        try:
            run_server(app, listening)
        except KeyboardInterrupt:
            print("ended", file=sys.stderr)
    return 0


def engine_of(args: Serve) -> "Engine":
    """The model that is served, on its device. Raises UserError for one that cannot be."""
    from unitsphere.inference.hf.engine import Engine, load_own, load_trusted
    from unitsphere.training.device import pick_device
    from unitsphere.training.load import read_weights

    device = pick_device(args.device)
    name = model_name(args)
    folder = exported(args.run, args.cache or default_cache())
    if args.trust_remote_code:
        model, tokenizer = load_trusted(folder)
    else:
        model, tokenizer = load_own(folder, read_weights(folder))
    return Engine(model.to(device), tokenizer, name)


def model_name(args: Serve) -> str:
    """What clients call the model; a `UserError` for what no request could say."""
    name = args.run.resolve().name if args.name is None else args.name
    if not name or not name.isprintable():
        raise UserError(f"{name!r} is not a name for a model: give another by --name")
    return name


def check_extra() -> None:
    """Raise a `UserError` unless everything that the server needs is installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"serve needs {', '.join(missing)}: pip install 'unitsphere[serve]'")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; a `UserError` if there is none."""
    try:
        return socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "there is no such port"
        raise UserError(
            f"cannot listen on {host}:{port} ({reason}): give another --port or --host; "
            "0 takes a port that is free"
        ) from error


def default_cache() -> Path:
    """In the user's cache folder; UserError for a user without a home."""
    from unitsphere.training.compile_cache import user_cache

    try:
        return user_cache() / "serve"
    except RuntimeError as error:
        raise UserError("there is no home for the export: give --cache a folder") from error


def exported(run: Path, cache: Path) -> Path:
    """The folder to serve: the run's export in the cache, made if there is none of its content.

    An exported folder is served as it is. Raises UserError for a run that cannot be served.
    """
    from unitsphere.cli.export import export, is_exported_folder, refuse_archive
    from unitsphere.training.load import load_run, pinned

    refuse_archive(run, "serve")
    if is_exported_folder(run):
        check_causal(run, load_run(run, "cpu").config.objective)
        return run
    path = pinned(run)  # a run that trains on has another one a moment later
    folder = cache / content(run, path)
    if not folder.is_dir():
        loaded = load_run(path, "cpu")
        check_causal(run, loaded.config.objective)
        print(f"exporting {run} to {folder}", file=sys.stderr)
        try:
            export(path, loaded, folder)
        except UserError:
            if not folder.is_dir():  # else another process has made it in the meantime
                raise
    return folder


def check_causal(run: Path, objective: str) -> None:
    """Raise a `UserError` for a model that does not continue texts."""
    if objective != "clm":
        raise UserError(f"serve needs a run with objective clm, and {run} has {objective}")


def content(run: Path, path: Path) -> str:
    """A key of what an export of the run or checkpoint is made of, and of the exporter.

    path: the checkpoint of `run` that is exported.
    """
    from unitsphere import __version__
    from unitsphere.inference.hf import export
    from unitsphere.training.checkpoint import store as checkpoint
    from unitsphere.training.folder import CONFIG, TOKENIZER, run_and_checkpoint
    from unitsphere.training.load import chosen_checkpoint

    folder, wanted = run_and_checkpoint(path)
    taken = chosen_checkpoint(folder, wanted)
    digest = hashlib.sha256(__version__.encode())
    modeling = Path(export.__file__).with_name(f"{export.MODELING}.py")
    for file in (taken / checkpoint.MARKER, folder / CONFIG, folder / TOKENIZER, modeling):
        digest.update(hashlib.sha256(read_bytes(file)).digest())
    return f"{run.resolve().name}-{digest.hexdigest()[:16]}"
