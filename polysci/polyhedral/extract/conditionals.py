"""Conditionals of a C text, which the compiler's own preprocessor evaluates.

The preprocessor gets the directives, and a numbered word in place of every other line. The words
that it leaves are those of the lines that count; the text itself, and so every column, stays.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from polysci.errors import UnsupportedError

_CONDITIONALS: Final = frozenset(
    {"if", "ifdef", "ifndef", "elif", "elifdef", "elifndef", "else", "endif"}
)
_KEPT: Final = frozenset({"define", "undef", "include", "error"})  # conditions may depend on them
_NAME: Final = re.compile(r"\s*#\s*(\w*)")
_COMPILERS: Final = ("cc", "gcc", "clang")
_ERROR: Final = re.compile(r"error: (.*)")
_TIMEOUT_S: Final = 20.0
_LINE: Final = "polysci_line_"


def is_conditional(directive: str) -> bool:
    """Whether a directive (``#ifdef N``) begins, divides or ends lines that may not count."""
    return _name(directive) in _CONDITIONALS


def lines_that_count(
    code: str, directives: Sequence[re.Match[str]], folder: Path
) -> frozenset[int]:
    """The lines of ``code``, from 0, that the preprocessor keeps, conditionals excluded.

    ``code`` has no comments; ``folder`` is where it includes files from. Raises UnsupportedError
    where no preprocessor can be run or it refuses the text.
    """
    text = "\n".join(_probe(code, directives)) + "\n"
    try:
        done = subprocess.run(
            [*_compiler(), "-E", "-P", "-I", str(folder), "-x", "c", "-"],
            input=text, capture_output=True, encoding="utf-8", errors="replace",
            timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"the C preprocessor cannot be run: {error}") from None
    if done.returncode:
        reason = _ERROR.search(done.stderr)
        said = reason.group(1) if reason else f"exit status {done.returncode}"
        raise UnsupportedError(f"the C preprocessor refuses the file: {said:.200}")
    return frozenset(int(number) for number in re.findall(rf"\b{_LINE}(\d+)\b", done.stdout))


def _probe(code: str, directives: Sequence[re.Match[str]]) -> Iterator[str]:
    lines, line = code.split("\n"), 0
    for directive in directives:
        start = code.count("\n", 0, directive.start())
        yield from (f"{_LINE}{number}" for number in range(line, start))
        line = start + directive.group().count("\n") + 1
        name = _name(directive.group())
        if name not in _CONDITIONALS:
            yield from (f"{_LINE}{number}" for number in range(start, line))
        if name in _CONDITIONALS | _KEPT:
            yield directive.group()
    yield from (f"{_LINE}{number}" for number in range(line, len(lines)))


def _name(directive: str) -> str:
    match = _NAME.match(directive)
    return match.group(1) if match else ""


def _compiler() -> list[str]:
    """The command of the C compiler, as builds choose it. Raises UnsupportedError."""
    chosen = os.environ.get("CC", "").strip()
    if not chosen:
        chosen = next(filter(shutil.which, _COMPILERS), "")
    try:
        command = shlex.split(chosen)
    except ValueError as error:
        raise UnsupportedError(f"environment variable CC={chosen!r}: {error}") from None
    if not command:
        raise UnsupportedError("a C compiler is needed to evaluate it, and none is in PATH")
    return command
