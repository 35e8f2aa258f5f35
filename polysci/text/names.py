"""Names from outside as safe, distinct identifiers in C, C++, Python and file systems; suggestions.

An identifier has ASCII letters, digits and single underscores, starts with a letter and is no
keyword; what a name loses on the way can make two names equal, and then the later one is numbered.
Misspelt names are told of those most like them.
"""

from __future__ import annotations

import keyword
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

LONGEST = 60  # characters of a layer's identifier, before a number that tells it from others
LONGEST_PROJECT = 40
_LONGEST = 60  # characters; nobody misspells a longer name, and matching takes quadratic time
_CLOSE = 0.6  # similarity, difflib's default


def _read_names(name: str) -> frozenset[str]:
    """Return the words of a text file beside this module."""
    text = Path(__file__).with_name(name).read_text(encoding="ascii")
    return frozenset(text.split())


# Of C and C++ in the file.
_KEYWORDS = _read_names("keywords.txt") | frozenset(keyword.kwlist)

# Functions with an underscore in the headers that the self-test includes.
_LIBRARY = frozenset({"aligned_alloc", "at_quick_exit", "quick_exit"})

# What the exported code defines itself beside the layers, without the project's name; lower case.
_OWN = frozenset({"supported", "ok", "no_isa", "h"})

# A header, module or build target of this name would hide another one; lower case.
_TAKEN = _read_names("taken.txt") | {
    name.lower() for name in (*sys.stdlib_module_names, *_KEYWORDS)
}

# Generated code adds these to a layer's symbol; one layer's symbol must not be another's helper.
_HELPER = re.compile(
    r"_(?:workspace_size|packed_size|pack_weights|pack|isa|t[0-9]+"
    r"|(?:X|W|Y|PACKED|WORKSPACE)_SIZE)\Z"
)

# What a project of several units defines besides begins so, or with a unit's key; lower case.
_OWN_STARTS = ("without", "units")


def underscore(text: str, longest: int = LONGEST) -> str:
    """Return the letters and digits of a text, accents removed, joined by single underscores."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[^A-Za-z0-9]+", "_", plain).strip("_")[:longest].strip("_")


def project(text: str) -> str:
    """The identifier of a project: prefix of its symbols, name of its files and of its package."""
    name = underscore(text, LONGEST_PROJECT)
    if not name or not name[0].isalpha() or f"{name}_".lower().startswith("ps_"):
        name = f"layers_{name}".rstrip("_")  # ps_ begins the names of the microkernels
    return f"{name}_layers" if name.lower() in _TAKEN else name


def layers(names: Sequence[str], prefix: str, units: Sequence[str] = ()) -> list[str]:
    """One identifier a name, in order; ``prefix_identifier`` is free to use as a symbol as well.

    A name that is an identifier already keeps it, whatever comes before it; an empty one becomes
    ``layer_`` and its position, counted from 1. With ``units``, ``prefix_UNIT_identifier`` is free
    as well.
    """
    claimed = _Claimed(prefix)
    identifiers: dict[int, str] = {}
    taken = tuple(f"{start.lower()}_" for start in _starts(units)) if units else ()
    plain = [underscore(name) for name in names]
    order = sorted(range(len(names)), key=lambda at: names[at] != plain[at])
    for at in order:
        identifiers[at] = claimed.claim(_start(plain[at], at + 1, taken))
    return [identifiers[at] for at in range(len(names))]


def remark(text: str, longest: int = 200) -> str:
    """A text as it may stand inside a C comment, a Makefile's or Markdown: harmless ASCII."""
    return re.sub(r"[^A-Za-z0-9 .,:;+()=>/-]", "_", text)[:longest]


def _starts(units: Sequence[str]) -> list[str]:
    """Return the beginnings that no identifier may have: units, their suffixes, our words.

    ``avx512_`` and ``i8_u8_u8_conv`` would make what ``avx512_i8_u8_u8_`` and ``conv`` make.
    """
    beyond = [
        unit.removeprefix(f"{other}_") for unit in units for other in units
        if unit.startswith(f"{other}_")
    ]  # fmt: skip
    return [*units, *beyond, *_OWN_STARTS]


def _start(plain: str, position: int, taken: tuple[str, ...]) -> str:
    if not plain:
        return f"layer_{position}"
    bad = not plain[0].isalpha() or plain in _KEYWORDS or plain.lower() in _OWN
    bad = bad or plain.lower().startswith(taken)
    return f"layer_{plain}" if bad else plain


@dataclass(slots=True)
class _Claimed:
    """Identifiers given so far; ``owners`` are those whose helper one of them would be."""

    prefix: str
    identifiers: set[str] = field(default_factory=set)
    owners: set[str] = field(default_factory=set)

    def claim(self, wanted: str) -> str:
        """``wanted``, or the first of ``wanted_2, wanted_3 ...`` that is free."""
        identifier, number = wanted, 1
        while not self._free(identifier):
            number += 1
            identifier = f"{wanted}_{number}"
        self.identifiers.add(identifier)
        self.owners.add(_HELPER.sub("", identifier))
        return identifier

    def _free(self, identifier: str) -> bool:
        symbol = f"{self.prefix}_{identifier}"
        if symbol in _KEYWORDS or symbol in _LIBRARY or symbol.endswith("_t"):  # POSIX: types
            return False
        helped = {identifier, _HELPER.sub("", identifier)} & self.identifiers
        return not helped and identifier not in self.owners


def known_name(word: str, names: Iterable[str]) -> str:
    """Return the name that is ``word`` but for case; ``word`` itself where there is none."""
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
