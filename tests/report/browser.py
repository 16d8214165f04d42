"""Chromium without a driver: the DevTools protocol over two pipes, JSON messages that end in a zero byte."""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
"""The browser's path; None where there is none, and then the tests that need it are skipped (tests/conftest.py)."""
MISSING = "no chromium was found: apt-get install chromium, or set CHROMIUM to its path"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
SECONDS = 30.0
KEYS = {
    "Enter": (13, "\r"),
    " ": (32, " "),
    "Tab": (9, ""),
    "Escape": (27, ""),
    "ArrowRight": (39, ""),
    "ArrowLeft": (37, ""),
    "ArrowDown": (40, ""),
    "ArrowUp": (38, ""),
    "Home": (36, ""),
    "End": (35, ""),
}


class Browser:
    """One headless chromium with one page; use it in a `with` statement.

    `requests` are the addresses asked for since the last `open`, `errors` what the console and uncaught exceptions
    said, `dialogs` the messages of alerts.
    """

    def __init__(self):
        if CHROMIUM is None or not Path(CHROMIUM).exists():
            raise FileNotFoundError(MISSING)
        self.requests, self.errors, self.dialogs = [], [], []
        self._events, self._loaded = [], False
        self._numbers = itertools.count(1)
        self._buffer = b""

    def __enter__(self):
        self._profile = tempfile.mkdtemp(prefix="normscope-chromium-")
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # Chromium reads from descriptor 3 and writes to 4; the shell puts ours there whatever their numbers are.
        command = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            [
                "/bin/bash",
                "-c",
                command,
                "chromium",
                CHROMIUM,
                *FLAGS,
                f"--user-data-dir={self._profile}",
                "about:blank",
            ],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        target = self._call("Target.createTarget", url="about:blank", session=None)["targetId"]
        self._session = None
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError, TimeoutError):
            self._call("Browser.close", session=None)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, path, *, width=1280, height=900, dark=False):
        """Load a file, or a page of this machine, at a window size and with a preference for light or dark."""
        self.size(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=scheme)
        self._drain()
        self.requests.clear()
        self.errors.clear()
        self.dialogs.clear()
        self._loaded = False
        address = path if str(path).startswith("http://127.0.0.1:") else Path(path).resolve().as_uri()
        self._call("Page.navigate", url=address)
        self._until(lambda: self._loaded, "the page did not load")

    def size(self, width, height):
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def evaluate(self, expression):
        """Return the value of a JavaScript expression (promises are awaited); an exception there is one here."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", str(answer)))
        return answer["result"].get("value")

    def until(self, expression):
        """Wait until a JavaScript expression holds."""
        deadline = time.monotonic() + SECONDS
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {SECONDS:.0f} s: {expression}")
            time.sleep(0.02)

    def drag(self, start, stop):
        """Press the left button at one place and release it at another."""
        self._mouse("mouseMoved", start)
        self._mouse("mousePressed", start, button="left", clickCount=1)
        self._mouse("mouseMoved", [(a + b) / 2 for a, b in zip(start, stop, strict=True)], button="left")
        self._mouse("mouseMoved", stop, button="left")
        self._mouse("mouseReleased", stop, button="left", clickCount=1)

    def hover(self, selector):
        """Move the pointer to the middle of the first element that matches, scrolled into view."""
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});"
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self.settle()
        self._mouse("mouseMoved", place)
        return place

    def click(self, selector):
        """Press and release the left button on the first element that matches."""
        place = self.hover(selector)
        self._mouse("mousePressed", place, button="left", clickCount=1)
        self._mouse("mouseReleased", place, button="left", clickCount=1)

    def press(self, key):
        """Press and release one key: a name of `KEYS` or a character."""
        code, text = KEYS.get(key, (0, key))
        common = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text):
        """Type text, a character at a time."""
        for character in text:
            self.press(character)

    def settle(self):
        """Wait until the page has painted twice, so that scrolling and observers are done."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def screenshot(self, path=None, *, whole=False):
        """Return the window (or the whole page) as PNG bytes, written to `path` if given."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        data = base64.b64decode(answer["data"])
        if path is not None:
            Path(path).write_bytes(data)
        return data

    def _clip(self, whole):
        if not whole:
            return {}
        size = self.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        return {"clip": {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}}

    def _mouse(self, kind, place, **more):
        self._call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], **more)

    def _call(self, method, session="", **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session is not None and getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = {}

        def answered():
            nonlocal answer
            found = [event for event in self._events if event.get("id") == number]
            if found:
                answer = found[0]
                self._events.remove(answer)
            return bool(found)

        self._until(answered, f"no answer to {method}")
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _drain(self):
        while self._receive(0.0):
            pass

    def _until(self, done, complaint):
        deadline = time.monotonic() + SECONDS
        while not done():
            if not self._receive(max(deadline - time.monotonic(), 0.0)):
                raise TimeoutError(f"{complaint} within {SECONDS:.0f} s")

    def _receive(self, seconds):
        if b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], seconds)
            if not ready:
                return False
            data = os.read(self._read, 1 << 20)
            if not data:
                raise OSError("chromium has gone")
            self._buffer += data
        *messages, self._buffer = self._buffer.split(b"\0")
        for message in messages:
            self._note(json.loads(message))
        return True

    def _note(self, event):
        params = event.get("params", {})
        match event.get("method"):
            case None:
                self._events.append(event)
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(params["entry"]["text"])
            case "Page.javascriptDialogOpening":
                self.dialogs.append(params["message"])
                number = next(self._numbers)
                accept = {"id": number, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
                os.write(self._write, json.dumps(accept | {"sessionId": self._session}).encode() + b"\0")
