"""The page over HTTP, only for this machine: always the latest, while a run trains."""

import contextlib
import errno
import hashlib
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from unitsphere.errors import UserError
from unitsphere.report.runs import Folders, files_below, listed
from unitsphere.report.write import build

HOST = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")
"""Names that a browser may ask by: any other is a foreign page that reaches for this machine."""
WATCHED = ("*.json", "*.jsonl", "*.txt", "*.svg", "*.toml")
"""Files that the page is made of."""


class Latest:
    """The page of a folder, made again when what it is made of has changed."""

    def __init__(self, folders: Folders) -> None:
        self.folders = listed(folders)
        self.lock = threading.Lock()
        self.made = ("", "")

    def version(self) -> str:
        """Changes when a file of the page's does."""
        found = hashlib.sha256()
        for path in sorted(each for top in self.folders for each in files_below(top, *WATCHED)):
            try:
                state = path.stat()
            except FileNotFoundError:  # renamed since it was listed
                continue
            found.update(f"{path} {state.st_mtime_ns} {state.st_size}\n".encode())
        return found.hexdigest()[:16]

    def page(self) -> str:
        """The page of this moment."""
        with self.lock:
            version = self.version()
            if self.made[0] != version:
                self.made = version, build(self.folders, live=version)
            return self.made[1]


def server(folders: Folders, port: int) -> ThreadingHTTPServer:
    """A server of the folders' page, bound but not serving yet.

    Raises UserError for a folder without a run or study, or a port that is taken.
    """
    latest = Latest(folders)
    latest.page()

    class Handler(BaseHTTPRequestHandler):
        """Answers `/` and `/version`."""

        def do_GET(self) -> None:
            """The page, or its version; a browser may leave before it has all of it."""
            with contextlib.suppress(ConnectionError):
                answer(self, latest)

        def log_message(self, format: str, *args: object) -> None:
            """Silent: a line for each look of the page would hide what matters."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise UserError(
            f"port {port} cannot be used ({error.strerror}): give --port another, or 0"
        ) from error


def answer(request: BaseHTTPRequestHandler, latest: Latest) -> None:
    """Answer one request."""
    host = (request.headers.get("Host") or "").rpartition(":")[0] or request.headers.get("Host")
    if host not in HOSTS:
        send(request, HTTPStatus.FORBIDDEN, "text/plain", "this page is only for this machine\n")
    elif request.path == "/version":
        send(request, HTTPStatus.OK, "text/plain", latest.version())
    elif request.path == "/":
        try:
            send(request, HTTPStatus.OK, "text/html", latest.page())
        except UserError as error:
            send(request, HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n")
    else:
        send(request, HTTPStatus.NOT_FOUND, "text/plain", "there is only one page: /\n")


def send(request: BaseHTTPRequestHandler, status: HTTPStatus, kind: str, text: str) -> None:
    """A whole answer; nobody keeps a copy."""
    body = text.encode("utf-8")
    request.send_response(status)
    request.send_header("Content-Type", f"{kind}; charset=utf-8")
    request.send_header("Content-Length", str(len(body)))
    request.send_header("Cache-Control", "no-store")
    request.send_header("X-Content-Type-Options", "nosniff")
    request.end_headers()
    request.wfile.write(body)


def serve(folders: Folders, port: int) -> None:
    """Serve until Ctrl-C, which ends with a line."""
    with server(folders, port) as serving:
        address = f"http://{HOST}:{serving.server_address[1]}/"
        print(
            f"{' '.join(map(str, listed(folders)))} at {address} until Ctrl-C",
            file=sys.stderr,
            flush=True,
        )
        try:
            serving.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("report: stopped serving", file=sys.stderr, flush=True)
