"""The command line: in this process, and as a process that is interrupted and always ended."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from polysci.cli import main


def polysci(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """What the command says and returns; ``env`` is added to the environment."""
    command = list(map(str, words))
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, env),
    ):
        try:
            status = main(command)
        except SystemExit as end:  # argparse
            status = int(end.code or 0)
    return subprocess.CompletedProcess(command, status, out.getvalue(), err.getvalue())


def done(*words: str | Path, **env: str) -> str:
    """Standard output of a command that succeeds."""
    ran = polysci(*words, **env)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def process(
    *words: str | Path, timeout: float = 120, **env: str
) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "polysci", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=os.environ | env
    )


@contextlib.contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A running process; it and the children of its group end with the block."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as running:  # fmt: skip
        try:
            yield running
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
