"""Headers for several choices of element types in one text: what differs has a name for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from polysci.printers.definitions import Definition, definitions
from polysci.target.microkernels import HeaderSet

_WORD: Final = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Variants:
    """The definitions of several choices of headers, each once.

    ``headers`` are their texts in an order that compiles. ``names`` mean something else by choice:
    ``rename`` gives a text those of one.
    """

    headers: tuple[str, ...]
    names: frozenset[str]

    @classmethod
    def of(cls, choices: Mapping[HeaderSet, Sequence[str]]) -> Variants:
        """Return those of choices, whose headers each compile alone."""
        if len(choices) == 1:
            return cls(tuple(*choices.values()), frozenset())
        pieces = {
            unit: [piece for text in texts for piece in definitions(text)]
            for unit, texts in choices.items()
        }
        names = _differing([*pieces.values()])
        texts = [
            _rename(piece.text, unit, names if (piece.names | piece.uses) & names else frozenset())
            for unit, own in pieces.items() for piece in own
        ]  # fmt: skip
        return cls(tuple(dict.fromkeys(texts)), names)

    def rename(self, text: str, unit: HeaderSet) -> str:
        """Return a text that uses the headers of a choice."""
        return _rename(text, unit, self.names)


def _rename(text: str, unit: HeaderSet, names: frozenset[str]) -> str:
    end = f"_of_{unit}"
    return _WORD.sub(lambda word: word[0] + end if word[0] in names else word[0], text)


def _differing(choices: Sequence[Sequence[Definition]]) -> frozenset[str]:
    """Return the names whose definitions differ, and those of all that uses such ones."""
    texts = [_by_name(pieces) for pieces in choices]
    known = [name for own in texts for name in own]
    names = {name for name in known if len({own[name] for own in texts if name in own}) > 1}
    pieces = [piece for own in choices for piece in own if piece.names]
    while more := {
        name
        for piece in pieces
        if (piece.names | piece.uses) & names
        for name in piece.names - names
    }:
        names |= more
    return frozenset(names)


def _by_name(pieces: Iterable[Definition]) -> dict[str, tuple[str, ...]]:
    """Return the texts that define each name."""
    texts: dict[str, tuple[str, ...]] = {}
    for piece in pieces:
        for name in piece.names:
            texts[name] = (*texts.get(name, ()), piece.text)
    return texts
