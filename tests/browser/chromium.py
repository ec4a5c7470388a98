"""A headless Chromium, driven by its DevTools protocol over a websocket: one page, no framework."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from websocket import create_connection

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--mute-audio",
    "--disable-dev-shm-usage",
    "--remote-allow-origins=*",
    "--remote-debugging-port=0",
)
SECONDS = 30.0


class Chromium:
    """A browser with one page. `errors` and `requests` are what it told since the last `open`."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None, "no chromium: make test-browser installs it"
        command = [PROGRAM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        place = profile / "DevToolsActivePort"
        wait(lambda: place.is_file() and len(place.read_text().split()) == 2)
        port, path = place.read_text().split()
        self.socket = create_connection(f"ws://127.0.0.1:{port}{path}", timeout=SECONDS)
        self.sent = 0
        self.session = ""
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attach = {"targetId": page, "flatten": True}
        self.session = self.call("Target.attachToTarget", attach)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(SECONDS)

    def call(self, method: str, values: Mapping[str, Any] | None = None) -> Any:
        """A command's result; what is told meanwhile is kept in `events`."""
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": dict(values or {})}
        if self.session:
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while True:
            said = json.loads(self.socket.recv())
            if said.get("id") == self.sent:
                assert "error" not in said, said["error"]
                return said["result"]
            self.events.append(said)

    def open(self, address: str, width: int = 1440, height: int = 900, dark: bool = False) -> None:
        """Load a page at a width, in a colour scheme, and wait until it has drawn."""
        self.view(width, height, dark)
        self.events.clear()
        self.call("Page.navigate", {"url": address})
        wait(lambda: self.run("document.readyState === 'complete'"))
        self.settle()

    def view(self, width: int, height: int = 900, dark: bool = False, scale: float = 1) -> None:
        """The window's size and colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme]})

    def settle(self) -> None:
        """Wait for two frames: observers have run, and plots are drawn."""
        self.run("new Promise(f => requestAnimationFrame(() => requestAnimationFrame(() => f(1))))")

    def run(self, script: str) -> Any:
        """The value of an expression on the page; a promise is waited for."""
        asked = {"expression": script, "awaitPromise": True, "returnByValue": True}
        found = self.call("Runtime.evaluate", asked)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """A key, as a person would press it."""
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, "End": 35, "Escape": 27}
        what = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0]))}
        down = {"type": "keyDown", **what, **({"text": text} if text else {})}
        self.call("Input.dispatchKeyEvent", down)
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", **what})
        self.settle()

    def click(self, selector: str) -> None:
        """A click in the middle of an element, where a person would see it."""
        x, y = self.middle(selector)
        self.mouse("mousePressed", x, y, 1)
        self.mouse("mouseReleased", x, y, 1)
        self.settle()

    def drag(self, selector: str, start: float, end: float) -> None:
        """A drag over an element, from one part of its width to another."""
        self.middle(selector)
        box = self.run(
            f"(r => [r.x, r.y, r.width, r.height])(document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect())"
        )
        y = box[1] + box[3] / 2
        xs = [box[0] + part * box[2] for part in (start, (start + end) / 2, end)]
        self.mouse("mouseMoved", xs[0], y)
        self.mouse("mousePressed", xs[0], y, 1)
        self.mouse("mouseMoved", xs[1], y, 1)
        self.mouse("mouseMoved", xs[2], y, 1)
        self.mouse("mouseReleased", xs[2], y, 1)
        self.settle()

    def middle(self, selector: str) -> tuple[float, float]:
        """Where an element's middle is, scrolled into view."""
        where = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{where}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.settle()
        x, y = self.run(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])({where}.getBoundingClientRect())"
        )
        return x, y

    def mouse(self, kind: str, x: float, y: float, clicks: int = 0) -> None:
        """A mouse event."""
        button = {"button": "left", "buttons": 1, "clickCount": clicks} if clicks else {}
        self.call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **button})

    def picture(self, path: Path, whole: bool = True) -> Path:
        """A screenshot, of the whole page or of what is in view."""
        asked = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            asked["clip"] = {
                "x": 0,
                "y": 0,
                "scale": 1,
                **{k: size[k] for k in ("width", "height")},
            }
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", asked)["data"]))
        return path

    def pdf(self, path: Path) -> Path:
        """The page as it is printed."""
        made = self.call("Page.printToPDF", {"printBackground": True, "preferCSSPageSize": True})
        path.write_bytes(base64.b64decode(made["data"]))
        return path

    def errors(self) -> list[str]:
        """Errors and warnings of the console, uncaught exceptions, and what the policy refused."""
        self.run("1")
        found = []
        for event in self.events:
            said = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(said["exceptionDetails"]))
            if event.get("method") == "Runtime.consoleAPICalled" and said["type"] != "log":
                found.append(str(said["args"]))
            if event.get("method") == "Log.entryAdded":
                found.append(said["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """The addresses asked for since the page was opened, but for what it holds itself."""
        self.run("1")
        asked = [e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        urls = [each["request"]["url"] for each in asked]
        return [url for url in urls if not url.startswith("data:")]


def wait(ready: Any, seconds: float = SECONDS) -> None:
    """Wait until something is so; AssertionError if it does not come to be."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)
