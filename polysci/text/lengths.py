"""Texts of any length, cut to what a person reads; the length that was is told."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 200  # characters of somebody's text in a message
_LONGEST_LINE: Final = 1000  # of a message; no rule of ours is as long
_LONGEST_MESSAGE: Final = 8000  # compilers, and lists of nodes, take many lines


def cut(text: str, longest: int = LONGEST) -> str:
    """The text, or its first ``longest`` characters and its length."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} characters)"


def cut_message(message: str) -> str:
    """The message, with the middle left out of each line in which a text is repeated whole.

    Its beginning says what is wrong, and its end the rule.
    """
    if len(message) <= _LONGEST_LINE:
        return message
    lines = [_cut_middle(line, _LONGEST_LINE, 2 * LONGEST) for line in message.split("\n")]
    return _cut_middle("\n".join(lines), _LONGEST_MESSAGE, _LONGEST_MESSAGE // 2)


def _cut_middle(text: str, longest: int, end: int) -> str:
    """At most ``longest`` characters, of which the last are ``end`` of the text."""
    if len(text) <= longest:
        return text
    return f"{cut(text, longest - end - 100)} ... {text[-end:]}"
