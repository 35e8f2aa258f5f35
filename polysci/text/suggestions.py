"""Names in any case, and suggestions for misspelt ones."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 60  # characters; nobody misspells a longer name, and matching takes quadratic time
_CLOSE = 0.6  # similarity, difflib's default


def known_name(word: str, names: Iterable[str]) -> str:
    """The name that is ``word`` but for case; ``word`` itself where there is none."""
    return {name.lower(): name for name in names}.get(word.lower(), word)


def suggest(word: str, names: Iterable[str]) -> str:
    """``; did you mean 'traffic'?`` for the names most like ``word``, two at most; else empty.

    Case does not matter; a name of the same letters in another order is as close as any. The text
    is made to follow an error that lists the known names.
    """
    by_lower = {name.lower(): name for name in names}
    if len(word) > _LONGEST:
        return ""
    anagrams = [name for name in by_lower if sorted(name) == sorted(word.lower())]
    matches = anagrams[:2] or get_close_matches(word.lower(), by_lower, n=2, cutoff=_CLOSE)
    return f"; did you mean {' or '.join(repr(by_lower[m]) for m in matches)}?" if matches else ""
