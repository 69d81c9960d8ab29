"""A headless Chromium, driven over the two pipes of its DevTools protocol: no driver, no port, no network."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

SECONDS = 60.0  # that an answer may take

COMMAND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip


class CannotStart(Exception):
    """There is a browser, and this machine does not let it run."""


class Browser:
    """One page in a browser of its own.

    Attributes:
        complaints: what the page has written on the console as a warning or an error, exceptions, and what it has asked
            the network for.
    """

    def __init__(self, width: int = 1400, height: int = 800):
        assert COMMAND
        self.profile = tempfile.mkdtemp()
        hears, self.to_browser = os.pipe()
        self.from_browser, says = os.pipe()
        # The browser wants them as its handles 3 and 4: a shell puts them there.
        script = f'exec "$@" 3<&{hears} 4>&{says}'
        command = ["bash", "-c", script, "-", COMMAND, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"]
        self.process = subprocess.Popen(
            command,
            pass_fds=(hears, says),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(hears)
        os.close(says)
        self.buffer, self.number, self.session = b"", 0, None
        self.complaints: list[str] = []
        try:
            self.call("Browser.getVersion")
        except (AssertionError, OSError) as error:
            self.__exit__()
            raise CannotStart(str(error)) from None
        (target,) = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command of the protocol."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.number:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.from_browser], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            some = os.read(self.from_browser, 1 << 20)
            assert some, "the browser has ended"
            self.buffer += some
        line, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        """Keep what the page complains of."""
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif (method == "Runtime.consoleAPICalled" and parameters["type"] in ("warning", "error")) or (
            method == "Log.entryAdded" and parameters["entry"]["level"] in ("warning", "error")
        ):
            self.complaints.append(str(parameters))
        elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith(("file:", "data:")):
            self.complaints.append(parameters["request"]["url"])

    def open(self, path: Path) -> None:
        """Load a page, and wait for its first picture."""
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self.get("document.readyState") != "complete" or not self.get("location.href").startswith("file:"):
            time.sleep(0.02)
        self.settle()

    def get(self, expression: str) -> Any:
        """The value of an expression of the page, promises awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def settle(self) -> None:
        """Until the page has drawn what it was asked for."""
        self.get("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move, press or release the mouse, or turn its wheel: `mouseMoved`, `mousePressed` ..."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.settle()

    def drag(self, x: float, y: float, to: float) -> None:
        """Press, move sideways and let go."""
        held = {"button": "left", "buttons": 1, "clickCount": 1}
        self.mouse("mousePressed", x, y, **held)
        self.mouse("mouseMoved", (x + to) / 2, y, **held)
        self.mouse("mouseMoved", to, y, **held)
        self.mouse("mouseReleased", to, y, **held)

    def click(self, selector: str) -> None:
        """Click on the middle of an element."""
        x, y = self.get(
            f"(() => {{ const b = document.querySelector('{selector}').getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def resize(self, width: int, height: int) -> None:
        """The size of the window, in pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def photograph(self, path: Path) -> None:
        """A screenshot, as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
