"""Recurrent layers in one line of text: ``lstm:T50xN16xC256xK256 dirs=2``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from polysci.frontends.layers.model import Layer, LayeredModel, build_model
from polysci.frontends.layers.recurrent import GRU, LSTM, RNN
from polysci.ops.words import LIMIT, Line

RULE: Final = (
    "As in: lstm:T50xN16xC256xK256 dirs=2 layers=1 bwd, the steps, the batch, the columns of x and "
    "those of a direction's y."
)
CELLS: Mapping[str, Callable[..., Layer]] = MappingProxyType(
    {"lstm:": LSTM, "gru:": GRU, "rnn:": RNN}
)
_EXTENTS = re.compile(r"T([0-9]+)xN([0-9]+)xC([0-9]+)xK([0-9]+)(?=\s|\Z)")
_WORD = re.compile(r"\s+(?:(dirs)=([12])|(layers)=([1-9][0-9]{0,2})|(bwd))(?=\s|\Z)")


@dataclass(frozen=True, slots=True)
class RecurrentWords:
    """A recurrent layer of ``polysci.layers`` and the shape of its x: (steps, batch, columns).

    ``cell`` is ``lstm:``, ``gru:`` or ``rnn:``; ``backward`` asks for the gradients as well.
    """

    cell: str
    steps: int
    batch: int
    columns: int
    hidden: int
    directions: int = 1
    layers: int = 1
    backward: bool = False

    def __str__(self) -> str:
        dirs = f" dirs={self.directions}" if self.directions > 1 else ""
        layers = f" layers={self.layers}" if self.layers > 1 else ""
        extents = f"T{self.steps}xN{self.batch}xC{self.columns}xK{self.hidden}"
        return f"{self.cell}{extents}{dirs}{layers}{' bwd' * self.backward}"

    @classmethod
    def parse(cls, text: str) -> RecurrentWords:
        """Invert ``str``. Raises SpecError, with a caret under the offending part."""
        line = Line(text)
        cell = next((word for word in CELLS if text.lstrip().startswith(word)), "lstm:")
        at = line.after(cell, RULE)
        match = _EXTENTS.match(text, at)
        extents = [int(digits) for digits in match.groups()] if match else []
        if match is None or not all(0 < extent < LIMIT for extent in extents):
            raise line.error(at, "expected T, N, C and K with extents from 1 to 2^63 - 1", RULE)
        at, words = match.end(), dict[str, int]()
        while text[at:].strip():
            word = _WORD.match(text, at)
            if word is None or (word[1] or word[3] or word[5]) in words:
                start = at + len(text[at:]) - len(text[at:].lstrip())
                what = "unknown word" if word is None else "repeated word"
                raise line.error(start, f"{what} {text[start : start + 12].strip()!r}", RULE)
            words[word[1] or word[3] or word[5]] = int(word[2] or word[4] or 1)
            at = word.end()
        steps, batch, columns, hidden = extents
        return cls(
            cell, steps, batch, columns, hidden, words.get("dirs", 1), words.get("layers", 1),
            "bwd" in words,
        )  # fmt: skip

    @property
    def layer(self) -> Layer:
        """Return the layer, or as many of them as ``layers`` says."""
        cell = CELLS[self.cell]
        return cell(self.columns, self.hidden, self.layers, bidirectional=self.directions > 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of x."""
        return (self.steps, self.batch, self.columns)

    def build(self, seed: int = 0) -> LayeredModel:
        """Build the forward pass."""
        return build_model([self.layer], self.shape, seed=seed, name=self.cell[:-1])
