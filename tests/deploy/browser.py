"""A headless Chromium, driven over its DevTools protocol by clicking and typing."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 20.0
# Keys that have no text: name, then Windows' code, which Chromium acts on.
KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Space": 32,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}
TEXTS = {"Enter": "\r", "Space": " "}
SHIFT, CONTROL = 8, 2
# What the page wrote to the console as a warning or error, and what it threw.
TROUBLE = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
# What Chromium answers to a question that a change of pages overtakes.
LEFT = (
    "Inspected target navigated or closed",
    "Execution context was destroyed",
    "Cannot find default execution context",
)


def chromium() -> str | None:
    """The path of an installed Chromium or Chrome."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class PageError(AssertionError):
    """What was expected of the page did not come about."""


class LeftError(PageError):
    """The page was left for another while it was asked something."""


class Browser:
    """One browser with one tab. A context manager."""

    def __init__(self) -> None:
        executable = chromium()
        assert executable, "no Chromium is installed"
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        flags = [
            "--headless=new",
            "--remote-debugging-port=0",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--hide-scrollbars",
            f"--user-data-dir={self._folder.name}",
        ]
        self._process = subprocess.Popen(
            [executable, *flags, "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._count = 0
        self.events: list[dict[str, Any]] = []
        self._open = ExitStack()
        # A test may leave the browser alone for long: no pings, and room for all its events.
        address = f"ws://127.0.0.1:{self._address()}"
        self._browser = self._open.enter_context(
            connect(address, max_size=None, max_queue=None, ping_interval=None)
        )
        target = self._ask("Target.createTarget", {"url": "about:blank"}, session=False)
        attached = self._ask(
            "Target.attachToTarget",
            {"targetId": target["targetId"], "flatten": True},
            session=False,
        )
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._process.terminate()
        self._process.wait(PATIENCE)
        self._folder.cleanup()

    def go(self, url: str) -> None:
        """Load a page and wait until it is loaded; what was recorded before is forgotten."""
        self.events.clear()
        answer = self._ask("Page.navigate", {"url": url})
        if "loaderId" in answer:  # Else only the part behind # changed, and nothing is loaded.
            self._until(lambda: any(e["method"] == "Page.loadEventFired" for e in self.events), url)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._ask(
            "Runtime.evaluate",
            {"expression": script, "returnByValue": True, "awaitPromise": True},
        )
        if "exceptionDetails" in answer:
            raise PageError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, script: str) -> Any:
        """The value of an expression, once it is true; pages may come and go meanwhile."""
        found: list[Any] = []

        def holds() -> bool:
            try:
                found[:] = [self.run(script)]
            except LeftError:
                found[:] = [None]
            return bool(found[0])

        self._until(holds, script)
        return found[0]

    def text(self, selector: str) -> str:
        """The text of an element."""
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def value(self, selector: str) -> str:
        """The value of a field."""
        return self.run(f"document.querySelector({json.dumps(selector)}).value")

    def click(self, selector: str) -> None:
        """Click on the middle of an element, which must be in sight and on top."""
        place = self.run(
            f"""(() => {{
              const element = document.querySelector({json.dumps(selector)});
              element.scrollIntoView({{block: "center", behavior: "instant"}});
              const box = element.getBoundingClientRect();
              const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
              const top = document.elementFromPoint(x, y);
              return element.contains(top) || top?.contains(element) ? [x, y] : null;
            }})()"""
        )
        if place is None:
            raise PageError(f"{selector} is hidden behind something")
        mouse = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", {"type": kind, **mouse})

    def press(
        self, key: str, times: int = 1, modifiers: int = 0, command: str | None = None
    ) -> None:
        """Press a key of `KEYS`, or a letter. `command` is what an editor makes of it."""
        code = KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
        stroke = {
            "key": " " if key == "Space" else key,
            "windowsVirtualKeyCode": code,
            "modifiers": modifiers,
            "commands": [command] if command else [],
        }
        for _ in range(times):
            down = {**stroke, "type": "keyDown", "text": TEXTS[key]} if key in TEXTS else None
            self._ask("Input.dispatchKeyEvent", down or {**stroke, "type": "rawKeyDown"})
            self._ask("Input.dispatchKeyEvent", {**stroke, "type": "keyUp"})

    def type(self, text: str) -> None:
        """Type text into what has the focus, a key at a time."""
        for letter in text:
            stroke = {"key": letter, "text": letter, "unmodifiedText": letter}
            self._ask("Input.dispatchKeyEvent", {**stroke, "type": "keyDown"})
            self._ask("Input.dispatchKeyEvent", {**stroke, "type": "keyUp"})

    def fill(self, selector: str, text: str) -> None:
        """Click into a field, select what is there and type over it."""
        self.click(selector)
        self.press("a", modifiers=CONTROL, command="selectAll")
        self.type(text)

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Set the size of the page's window."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            {
                "width": width,
                "height": height,
                "deviceScaleFactor": 2 if phone else 1,
                "mobile": phone,
            },
        )

    def scheme(self, name: str) -> None:
        """Prefer the colour scheme `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self._ask("Emulation.setEmulatedMedia", {"features": [feature]})

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Save a picture of what is in sight, or of the whole page."""
        options = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            metrics = self._ask("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {**metrics, "x": 0, "y": 0, "scale": 1}
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", options)["data"]))

    @property
    def trouble(self) -> list[str]:
        """Warnings, errors and exceptions since the page was loaded."""
        said = []
        for event in self.events:
            if event["method"] not in TROUBLE:
                continue
            params = event["params"]
            kind = params.get("type") or params.get("entry", {}).get("level") or "exception"
            if kind in ("exception", "error", "warning", "assert"):
                said.append(json.dumps(params))
        return said

    @property
    def addresses(self) -> list[str]:
        """Every address that the page asked for since it was loaded."""
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def _address(self) -> str:
        """Port and path that the browser listens on, once it has written them down."""
        place = Path(self._folder.name) / "DevToolsActivePort"
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if place.exists() and len(lines := place.read_text().split()) == 2:
                return "".join(lines)
            time.sleep(0.02)
        raise PageError("Chromium did not start")

    def _ask(
        self, method: str, params: dict[str, Any] | None = None, *, session: bool = True
    ) -> dict[str, Any]:
        """Send a command and return its answer; events that come meanwhile are kept."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = self._session
        self._browser.send(json.dumps(message))
        while True:
            answer = json.loads(self._browser.recv(PATIENCE))
            if answer.get("id") == self._count:
                if "error" in answer:
                    left = any(words in answer["error"]["message"] for words in LEFT)
                    raise (LeftError if left else PageError)(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > until:
                raise PageError(f"waited {PATIENCE:g} s in vain for: {what}")
            time.sleep(0.02)
            # Also reads the events that came.
            with suppress(LeftError):
                self._ask("Runtime.evaluate", {"expression": "0"})
