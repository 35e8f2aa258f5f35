"""Closed standard streams, and Ctrl-C before the command line is there."""

import importlib.abc
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from polysci.__main__ import main

COMMAND = f"exec {sys.executable} -m polysci rank --list"


def shell(redirection: str) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", f"{COMMAND} {redirection}"]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, env=dict(os.environ))


@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&-"])
def test_a_command_without_standard_error_prints_its_table(closed: str) -> None:
    ran = shell(closed)
    assert ran.returncode == 0 and "traffic" in ran.stdout


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_a_command_without_standard_output_succeeds_silently(closed: str) -> None:
    ran = shell(closed)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


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
