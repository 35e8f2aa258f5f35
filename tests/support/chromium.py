"""Pages in headless Chromium, by its DevTools protocol over a pipe (file descriptors 3 and 4)."""

import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
SCHEMES = ("light", "dark")
_SCRIPT = Path(__file__).parents[1] / "data" / "page_faults.js"
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-extensions", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
_MESSAGES = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
_SECONDS = 60.0  # for an answer; a busy machine starts Chromium in ten


def executable() -> str | None:
    """The browser's path; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Browser:
    """A running browser; ``events`` are what it has told since the last page was opened."""

    to_browser: int
    from_browser: int
    rest: bytes = b""
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command; events that come before it are kept."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])

    def wait_for(self, event: str) -> None:
        while not any(told["method"] == event for told in self.events):
            self._read()

    def _read(self) -> dict[str, Any]:
        """The next message; events are kept."""
        deadline = time.monotonic() + _SECONDS
        while b"\0" not in self.rest:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self.from_browser], [], [], left)[0], "Chromium does not answer"
            part = os.read(self.from_browser, 1 << 20)
            assert part, "Chromium ended"
            self.rest += part
        text, _, self.rest = self.rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def faults(self, page: Path, width: int, scheme: str) -> list[str]:
        """Console messages, what overflows and what is hard to read in a window ``width`` wide."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        preference = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[preference])
        self.events.clear()
        self.ask("Page.navigate", url=page.absolute().as_uri())
        self.wait_for("Page.loadEventFired")
        script = _SCRIPT.read_text(encoding="utf-8")
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return self.console() + answer["result"]["value"]

    def console(self) -> list[str]:
        """What a page has said there, and its errors."""
        messages = [told["params"] for told in self.events if told["method"] in _MESSAGES]
        return [f"console: {json.dumps(told)}" for told in messages]


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with one empty page; it and its children end with the block."""
    path = executable()
    assert path
    with contextlib.ExitStack() as stack:
        ends = [end for _ in range(2) for end in _pipe(stack)]
        commands_out, commands_in, answers_out, answers_in = ends
        null = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
        process = os.posix_spawn(
            path, [path, *_FLAGS, f"--user-data-dir={profile}", "about:blank"], os.environ,
            file_actions=[
                null, (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, commands_out, 3), (os.POSIX_SPAWN_DUP2, answers_in, 4),
            ],
            setsid=True,
        )  # fmt: skip
        stack.callback(_end, process)
        running = Browser(commands_in, answers_out)
        target = running.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = running.ask("Target.attachToTarget", targetId=target, flatten=True)
        running.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            running.ask(f"{domain}.enable")
        yield running


def _pipe(stack: contextlib.ExitStack) -> Iterator[int]:
    """Both ends of a pipe, with numbers that the browser's descriptors do not meet."""
    for low in os.pipe():
        end = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 10)
        os.close(low)
        stack.callback(os.close, end)
        yield end


def _end(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
