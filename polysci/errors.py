"""The errors polysci raises; each message says what, where, the likely cause and what to do.

Somebody's text of any length is cut in a message to what a person reads; its length is told.
"""

from __future__ import annotations

import re
from typing import Final

LONGEST: Final = 200  # characters of somebody's text in a message
_LONGEST_LINE: Final = 1000  # of a message; no rule of ours is as long
_LONGEST_MESSAGE: Final = 8000  # compilers, and lists of nodes, take many lines
# Apostrophes within words open and close nothing. What was cut already is left as it is.
_QUOTED: Final = re.compile(r"""(?<!\w)(?:'[^'\n]*'|"[^"\n]*")(?!\w)""")
_CUT: Final = r"(?!\.\.\. \(\d)"
_WORDS: Final = (
    re.compile(rf"""(?<![^\s'"])[^\s'"]{{{LONGEST}}}{_CUT}[^\s'"]+"""),
    re.compile(rf"(?<!\S)\S{{{LONGEST}}}{_CUT}\S{{{LONGEST // 4},}}"),  # with quotes in it
)


class PolysciError(Exception):
    """Every error that polysci raises on purpose.

    What it repeats of a text that came in, be it of megabytes, is cut.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(cut_message(str(message)))


class SpecError(PolysciError, ValueError):
    """A description (layer words, C nest, model file, option) breaks a rule of its grammar."""


class SizeError(PolysciError, ValueError):
    """Data asked a run for more elements or steps than its network has room for."""


class IllegalScheduleError(PolysciError):
    """A schedule does not cover the domain exactly once or reverses a dependence."""


class UnsupportedError(PolysciError):
    """A valid request that polysci does not implement."""


class BuildError(PolysciError):
    """The compiler is absent, failed, ran too long or produced something unusable."""


class NoCompilerError(BuildError):
    """There is no C compiler, or the one that is named does not run, or hangs."""


class CheckError(PolysciError):
    """A compiled candidate crashed, looped or returned a wrong result."""


class WisdomError(PolysciError):
    """The record file cannot be read, written or trusted."""


class FarmError(PolysciError):
    """A scheduler or its workers are gone, or cannot do what is asked."""


class UnexpectedError(PolysciError):
    """A fault of polysci itself; the message asks to report it, ``__cause__`` is the error."""


def cut(text: str, longest: int = LONGEST) -> str:
    """Return the text, or its first ``longest`` characters and its length."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} characters)"


def cut_line(text: object) -> str:
    """Return the text in one line, as a name of a file need not be, cut."""
    return cut("\\n".join(str(text).splitlines()))


def cut_quoted(text: str) -> str:
    """Return a quoted text, or its first LONGEST characters in the same quotes and its length."""
    if len(text) <= LONGEST + 2:
        return text
    return f"{text[: LONGEST + 1]}{text[-1]}... ({len(text) - 2} characters)"


def cut_message(message: str) -> str:
    """Return the message, with every text that it repeats cut: what is quoted, and unbroken words.

    Of a longer line, or message, the middle is left out: its beginning says what is wrong, and its
    end the rule.
    """
    if len(message) <= LONGEST:
        return message
    message = _QUOTED.sub(lambda match: cut_quoted(match[0]), message)
    for pattern in _WORDS:
        message = pattern.sub(lambda match: _cut_word(match[0]), message)
    lines = [_cut_middle(line, _LONGEST_LINE, 2 * LONGEST) for line in message.split("\n")]
    return _cut_middle("\n".join(lines), _LONGEST_MESSAGE, _LONGEST_MESSAGE // 2)


def _cut_word(word: str) -> str:
    """Return the word cut, with one or two signs of punctuation that follow it."""
    end = word[-2:]
    punctuation = end[len(end.rstrip(".,:;)")) :]
    return cut(word[: len(word) - len(punctuation)]) + punctuation


def _cut_middle(text: str, longest: int, end: int) -> str:
    """Return at most ``longest`` characters, of which the last are ``end`` of the text."""
    if len(text) <= longest:
        return text
    return f"{cut(text, longest - end - 100)} ... {text[-end:]}"
