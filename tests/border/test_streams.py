"""Closed standard streams, and Ctrl-C before the command line is there."""

import importlib.abc
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from polysci.__main__ import main

PROGRAM = f"{sys.executable} -m polysci"
COMMAND = f"exec {PROGRAM} rank --list"


def shell(redirection: str) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", f"{COMMAND} {redirection}"]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, env=dict(os.environ))


@pytest.mark.exhaustive
@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&-"])
def test_a_command_without_standard_error_prints_its_table(closed: str) -> None:
    ran = shell(closed)
    assert ran.returncode == 0 and "traffic" in ran.stdout


@pytest.mark.sampled(every=10)
@pytest.mark.parametrize(
    ("lost", "why"),
    [(">&-", "Bad file descriptor"), ("<&- >&-", "Bad file descriptor"),
     (">/dev/full", "No space left on device")],
)  # fmt: skip
@pytest.mark.parametrize(
    "words", ["rank --list", "--help", "--version", "optimize --help", "doctor", ""]
)
def test_output_that_nobody_gets_is_an_error(words: str, lost: str, why: str) -> None:
    wait = f"(sleep 0.5; {PROGRAM} {words}; echo $? >&2) {lost}"
    ran = subprocess.run(["sh", "-c", wait], capture_output=True, text=True, timeout=60)
    *said, status = ran.stderr.splitlines()
    assert status == "1"
    assert said[-1].startswith("polysci: error: ") and said[-1].endswith(why)


@pytest.mark.exhaustive
def test_a_command_with_every_stream_closed_fails() -> None:
    assert shell("<&- >&- 2>&-").returncode == 1


class Interrupting(importlib.abc.MetaPathFinder):
    """Ctrl-C in the middle of an import."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name == "polysci.cli":
            raise KeyboardInterrupt


def test_ctrl_c_during_imports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import polysci

    monkeypatch.delitem(sys.modules, "polysci.cli", raising=False)
    monkeypatch.delattr(polysci, "cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert main() == 130
    assert capsys.readouterr().err == "polysci: interrupted\n"
