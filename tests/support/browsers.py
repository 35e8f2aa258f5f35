"""Pages in headless Chromium and Firefox: what an element says in the end, and what goes wrong.

A server puts a script ahead of those of a page, which posts to it what it has seen.
"""

import contextlib
import functools
import http.server
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.support import chromium

PROGRAMS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "chromium": chromium.NAMES,
        "firefox": ("firefox-esr", "firefox"),
    }
)
_SCRIPT = Path(__file__).parents[1] / "data/page_watch.js"
_ISOLATED = MappingProxyType(
    {
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Embedder-Policy": "require-corp",
    }
)
_CHROMIUM = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-extensions",
)  # fmt: skip
_FIREFOX = """\
user_pref("app.normandy.enabled", false);
user_pref("app.update.enabled", false);
user_pref("browser.aboutwelcome.enabled", false);
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("extensions.enabledScopes", 0);
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
user_pref("services.settings.server", "data:,");
user_pref("toolkit.telemetry.enabled", false);
"""
_SECONDS = 120.0  # for a page; a busy machine starts a browser in ten


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a folder: ``text`` of an element once it is another than ``first``.

    ``expression``: JavaScript whose value is then told as well. ``isolated``: the server sends what
    gives pages shared memory.
    """

    folder: Path
    selector: str
    first: str
    expression: str = "null"
    isolated: bool = False
    name: str = "index.html"


@dataclass(slots=True)
class Seen:
    """What a browser has shown, and messages of errors and consoles."""

    text: str
    value: Any = None
    faults: list[str] = field(default_factory=list)


def parameters() -> list[Any]:
    """The browsers, as parameters of a test that skips those that are not installed."""
    return [
        pytest.param(
            name, marks=pytest.mark.skipif(executable(name) is None, reason=f"no {name.title()}")
        )
        for name in PROGRAMS
    ]


def executable(browser: str) -> str | None:
    """The path of a browser; None where it is not installed."""
    return next((path for name in PROGRAMS[browser] if (path := shutil.which(name))), None)


def look(browser: str, page: Page, profile: Path) -> Seen:
    """What a browser shows, with a profile of its own; it ends."""
    told: queue.Queue[dict[str, Any]] = queue.Queue()
    missing: list[str] = []
    with _served(page, told, missing) as address, _running(browser, address, profile):
        try:
            seen = told.get(timeout=_SECONDS)
        except queue.Empty:
            raise AssertionError(f"{browser}: {page} says nothing new; {missing}") from None
    return Seen(seen["text"], seen["value"], seen["faults"] + missing)


@contextlib.contextmanager
def _running(browser: str, address: str, profile: Path) -> Iterator[None]:
    """A browser at an address; it and its children end with the block."""
    program = executable(browser)
    assert program
    profile.mkdir(parents=True, exist_ok=True)
    if browser == "firefox":
        (profile / "user.js").write_text(_FIREFOX)
        words = ["--headless", "--no-remote", "--profile", str(profile)]
    else:
        words = [*_CHROMIUM, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [program, *words, address], start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def _served(page: Page, told: "queue.Queue[dict[str, Any]]", missing: list[str]) -> Iterator[str]:
    """The address of a page; ``told`` gets what is posted, ``missing`` what a server lacks."""
    handler = functools.partial(_Handler, page, told, missing)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{page.name}"
        server.shutdown()


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, the page with a script ahead, and what that posts."""

    def __init__(
        self, page: Page, told: "queue.Queue[dict[str, Any]]", missing: list[str], *rest: Any
    ) -> None:
        self.page, self.told, self.missing = page, told, missing
        super().__init__(*rest, directory=str(page.folder))

    def do_GET(self) -> None:
        """Send a file."""
        if self.path != f"/{self.page.name}":
            super().do_GET()
            return
        asked = {"selector": self.page.selector, "first": self.page.first,
                 "expression": self.page.expression}  # fmt: skip
        script = f"const WATCH = {json.dumps(asked)};\n{_SCRIPT.read_text(encoding='utf-8')}"
        text = (self.page.folder / self.page.name).read_text(encoding="utf-8")
        content = text.replace("<head>", f"<head><script>{{\n{script}}}</script>", 1).encode()
        self._send(200, "text/html; charset=utf-8", content)

    def do_POST(self) -> None:
        """Take what the script has seen."""
        self.told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._send(200, "text/plain", b"")

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def end_headers(self) -> None:
        """Add those of an isolated page."""
        for name, value in _ISOLATED.items() if self.page.isolated else ():
            self.send_header(name, value)
        super().end_headers()

    def log_error(self, form: str, *words: Any) -> None:
        """Note it."""
        self.missing.append(f"{self.path}: {form % words}")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
