"""A real browser for tests: Chromium without a window, driven over its debugging pipe.

Chromium reads commands from file descriptor 3 and answers on 4, one JSON text after another, each
ended by a zero byte (the Chrome DevTools Protocol); so no driver and no further package is needed.
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
MISSING = "there is no chromium here; `apt-get install --no-install-recommends chromium` brings it"

# As root in a container there is no sandbox; surfaces are drawn without a graphics card.
FLAGS = """
    --headless=new --no-sandbox --remote-debugging-pipe --disable-dev-shm-usage --mute-audio
    --no-first-run --disable-background-networking --disable-component-update --disable-sync
    --disable-extensions --hide-scrollbars --force-color-profile=srgb
    --use-angle=swiftshader --enable-unsafe-swiftshader
""".split()

# The pipe's ends get the numbers 3 and 4 in a process of its own, which then becomes Chromium.
BECOME = """
import os, sys
read, write, *command = sys.argv[1:]
os.dup2(int(read), 3)
os.dup2(int(write), 4)
os.execv(command[0], command)
"""

WIDE, NARROW = (1400, 900), (390, 844)


class Browser:
    """A running Chromium; use it in a ``with`` statement."""

    def __enter__(self) -> Self:
        assert CHROMIUM is not None, MISSING
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands, answers)]
        profile = f"--user-data-dir={self._folder.name}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", BECOME, *map(str, ends), CHROMIUM, *FLAGS, profile],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (commands, answers, *ends):
            os.close(end)
        self._rest, self._numbers = b"", itertools.count(1)
        self._events: list[dict[str, Any]] = []
        self._answers: dict[int, dict[str, Any]] = {}
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (ConnectionError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def open(self, path: Path, size: tuple[int, int] = WIDE, *, dark: bool = False) -> Tab:
        """Load a file in a new tab of this size, with everything it says and asks for recorded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session, size)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.resize(*size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.call("Page.navigate", url=path.resolve().as_uri())
        tab.wait_for("Page.loadEventFired")
        return tab

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """One command and its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while number not in self._answers:
            self._receive()
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def events(self, session: str) -> list[dict[str, Any]]:
        """All that has been said in this session so far."""
        return [event for event in self._events if event.get("sessionId") == session]

    def _receive(self, timeout: float = 60.0) -> None:
        """Take in what the browser says next."""
        if not select.select([self._in], [], [], timeout)[0]:
            raise TimeoutError(f"the browser said nothing for {timeout:g} s")
        content = os.read(self._in, 1 << 20)
        if not content:
            raise ConnectionError(f"{CHROMIUM} has ended")
        *messages, self._rest = (self._rest + content).split(b"\0")
        for text in messages:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._events.append(message)


class Tab:
    """One page in the browser."""

    def __init__(self, browser: Browser, session: str, size: tuple[int, int]) -> None:
        self.browser, self.session, self.size = browser, session, size

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, as data; promises are waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description"))
        return answer["result"].get("value")

    def wait_for(self, method: str) -> None:
        while not any(event["method"] == method for event in self.browser.events(self.session)):
            self.browser._receive()

    def wait_until(self, expression: str, seconds: float = 60.0) -> None:
        """Ask until the expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression} did not become true")
            time.sleep(0.02)

    @property
    def complaints(self) -> list[str]:
        """Console messages, exceptions and refusals of the security policy."""
        self.evaluate("new Promise(requestAnimationFrame).then(() => 0)")
        found = []
        for event in self.browser.events(self.session):
            params = event["params"]
            if event["method"] == "Runtime.consoleAPICalled":
                found.append(str([a.get("value", a.get("description")) for a in params["args"]]))
            elif event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded":
                found.append(params["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """What was asked for besides the page itself and data inside it."""
        asked = [
            event["params"]["request"]["url"]
            for event in self.browser.events(self.session)
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked[1:] if not url.startswith(("data:", "blob:"))]

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def place(self, selector: str, x: float = 0.5, y: float = 0.5) -> tuple[float, float]:
        """Where an element is in the window, after scrolling to it."""
        box = self.evaluate(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            f" return [b.left + {x} * b.width, b.top + {y} * b.height]; }})"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        return box[0], box[1]

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str) -> None:
        self.drag(self.place(selector))

    def drag(self, start: tuple[float, float], *stops: tuple[float, float]) -> None:
        """Press the left button, move over the stops, and let go at the last."""
        pressed = {"button": "left", "buttons": 1, "clickCount": 1}
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, **pressed)
        for stop in stops:
            self.mouse("mouseMoved", *stop, **pressed)
        self.mouse("mouseReleased", *(stops[-1] if stops else start), **pressed)

    def hover(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        self.mouse("mouseMoved", *self.place(selector, x, y))

    def press(self, *keys: str) -> None:
        """Press keys, by the names that JavaScript gives them, such as ``"ArrowLeft"``."""
        texts = {"Enter": "\r", " ": " "}
        codes = {"Enter": 13, " ": 32, "Tab": 9}
        for key in keys:
            text = texts.get(key, key if len(key) == 1 else "")
            about = {"key": key, "windowsVirtualKeyCode": codes.get(key, 0)}
            down = "keyDown" if text else "rawKeyDown"
            self.call("Input.dispatchKeyEvent", type=down, text=text, **about)
            self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def focus(self, selector: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")

    def screenshot(self, path: Path, *, full: bool = False) -> bytes:
        """The window, or the whole page, as a PNG file."""
        options: dict[str, Any] = {"format": "png", "captureBeyondViewport": full}
        if full:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {"x": 0, "y": 0, **_size(size), "scale": 1}
        content = base64.b64decode(self.call("Page.captureScreenshot", **options)["data"])
        path.write_bytes(content)
        return content

    def pdf(self, path: Path) -> bytes:
        """The page as it is printed."""
        content = base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])
        path.write_bytes(content)
        return content


def _size(metrics: dict[str, float]) -> dict[str, float]:
    return {name: metrics[name] for name in ("width", "height")}
