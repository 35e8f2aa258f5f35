"""Calls of the C compiler: where it hangs twice, it is not called again with that text, or any."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from polysci.errors import NoCompilerError
from polysci.runtime.build import process

# Seconds of CPU time:
TIMEOUT_S = 300.0  # of each text of a whole network
CANDIDATE_S = 60.0  # of the text of one layer, or a kernel's probe
PROBE_S = 20.0  # of a question to the compiler: its version, a header, OpenMP
CALLS = 2  # with the same text: what hangs once may be the disk's or the network's doing
LEAST = "int least;\n"  # a text: where it hangs too, no other will do better

_refused: dict[tuple[str, ...], str] = {}  # by compiler, version of its file and text: why


class CompileTimeoutError(NoCompilerError):
    """The compiler ran too long, now or earlier, and was killed with all that it had started."""


def call(
    compiler: Sequence[str], words: Sequence[str], *, about: str, timeout: float,
    env: Mapping[str, str],
) -> process.Completed:  # fmt: skip
    """How the compiler, a path and options, ends that is called with ``words``.

    It may work for ``timeout`` seconds, and is called once more if it does not end.
    CompileTimeoutError: nor does it then, or did before in this process with a text that is
    ``about`` the same, or with the least there is. BuildError: it cannot be started.
    """
    whole = (*compiler, *_version(compiler[0]))
    if message := _refused.get(whole) or _refused.get((*whole, about)):
        raise CompileTimeoutError(message)
    for _ in range(CALLS):
        done = process.run((*compiler, *words), timeout=timeout, env=env, working=True)
        if not done.timed_out:
            return done
    message = f"the C compiler {shlex.join(compiler)} {done}, {CALLS} times; name another one in CC"
    least = (*compiler, "-x", "c", "-S", "-o", os.devnull, "-")
    limit = min(timeout, PROBE_S)
    again = process.run(least, timeout=limit, input=LEAST, env=env, working=True)
    _refused[whole if again.timed_out else (*whole, about)] = message
    raise CompileTimeoutError(f"{message}\nto repeat: {done.command}")


def _version(path: str) -> tuple[str, ...]:
    """What changes when the file does: a repaired compiler is called again."""
    try:
        stat = Path(path).stat()
    except OSError:
        return ()
    return str(stat.st_mtime_ns), str(stat.st_size)
