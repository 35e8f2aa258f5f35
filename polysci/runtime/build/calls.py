"""Calls of the C compiler: one that hangs is waited for once, and not called again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from polysci.errors import NoCompilerError
from polysci.runtime.build import process

TIMEOUT_S = 300.0  # of each text of a whole network
CANDIDATE_S = 60.0  # of the text of one layer, or a kernel's probe
PROBE_S = 20.0  # of a question to the compiler: its version, a header, OpenMP

_hanging: dict[tuple[str, ...], str] = {}  # by command and version of the file: what happened


class CompileTimeoutError(NoCompilerError):
    """The compiler ran too long, now or earlier, and was killed with all that it had started."""


def call(
    compiler: Sequence[str], words: Sequence[str], *, timeout: float, env: Mapping[str, str]
) -> process.Completed:
    """How the compiler, a path and options, ends that is called with ``words``.

    CompileTimeoutError: it runs longer than ``timeout`` seconds, or a call of CANDIDATE_S or less
    did so before in this process. BuildError: it cannot be started.
    """
    key = (*compiler, *_version(compiler[0]))
    if message := _hanging.get(key):
        raise CompileTimeoutError(message)
    done = process.run((*compiler, *words), timeout=timeout, env=env)
    if done.timed_out:
        message = f"the C compiler {shlex.join(compiler)} {done}; name another one in CC"
        if timeout <= CANDIDATE_S:  # whole networks may be too much for a sound one
            _hanging[key] = message
        raise CompileTimeoutError(f"{message}\nto repeat: {done.command}")
    return done


def _version(path: str) -> tuple[str, ...]:
    """What changes when the file does: a repaired compiler is called again."""
    try:
        stat = Path(path).stat()
    except OSError:
        return ()
    return str(stat.st_mtime_ns), str(stat.st_size)
