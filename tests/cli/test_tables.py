"""Tables in a pipe have 80 columns, ``--wide`` ones all; progress vanishes from a terminal."""

import contextlib
import io
import os
import pty
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from polysci.cli.display import Display
from polysci.ops import parse_problem
from polysci.tune import Progress
from tests.support.command import done, polysci

LAYERS = ('mb1ic8ih10oc24oh10kh3ph1n"a_layer_with_a_long_name"', "mb1ic16ih20oc32oh20kh3ph1dh0")
pytestmark = pytest.mark.usefixtures("fresh_cache")


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


@pytest.mark.parametrize(
    "words",
    [
        ("optimize", *LAYERS, "--level", "estimate"),
        ("rank", *LAYERS, "--ranker", "traffic", "--ranker", "rules"),
    ],
)
def test_tables_fit_a_pipe(words: tuple[str, ...]) -> None:
    narrow, wide = done(*words), done(*words, "--wide")
    assert widest(narrow) <= min(80, widest(wide))
    assert "\x1b" not in narrow + wide
    assert "predicted" in wide
    assert words[0] != "optimize" or "predicted" not in narrow


def test_a_wide_terminal_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "200")
    from polysci.cli import main

    assert main(["optimize", *LAYERS, "--level", "estimate"]) == 0
    assert widest(screen.getvalue()) > 80 and "predicted" in screen.getvalue()
    assert shutil.get_terminal_size().columns == 200


def test_a_failure_is_told_below_the_table() -> None:
    ran = polysci("optimize", LAYERS[0], "--level", "wisdom-only")
    _, row, fault = ran.stdout.splitlines()
    assert "FAILED" in row and widest(row) <= 80 and "no record for" in fault


def progress(stream: io.TextIOBase, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a search of one layer shows on ``stream``, before and after a table."""
    monkeypatch.setattr(sys, "stderr", stream)
    problem = parse_problem(LAYERS[0])
    with Display(1) as display:
        for at in range(3):
            display.watch(problem, Progress("calibrating", at, 3))
        display.done("one layer is done [bold]")


def test_progress_in_a_pipe_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    progress(stream, monkeypatch)
    assert stream.getvalue().splitlines() == [
        "measuring this machine once (less than a minute)",
        "[1/1] one layer is done [bold]",
    ]


def read_to_the_end(terminal: int) -> str:
    parts = []
    with contextlib.suppress(OSError):  # Linux: EIO once the other side is closed
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    return b"".join(parts).decode()


def test_progress_on_a_terminal_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_to_the_end, master)
        progress(stream, monkeypatch)
        stream.close()  # the reader sees the end of a terminal that nobody has open
        shown = reading.result()
    os.close(master)
    assert "one layer is done [bold]" in shown
    assert shown.rstrip().endswith("\x1b[2K") and "\x1b[1A" in shown  # its lines are erased
