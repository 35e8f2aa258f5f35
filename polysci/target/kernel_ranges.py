"""The lines of a ``kernels.def``: each is a range of register tiles of one width."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from polysci.errors import SpecError
from polysci.numerics.dtypes import COMPUTES

MOST_ROWS, MOST_VECTORS = 64, 8  # of a tile: a row mask has 64 bits at most
_FAMILY = re.compile(r"brgemm|depthwise|stacked|grouped[1-9][0-9]?|stencil2?")
_LINE = re.compile(r"KERNELS\((\w+), (\w+), (\w+), rows (\d+)\.\.(\d+), vectors (\d+)\)")
FORM = "KERNELS(family, isa, compute, rows FIRST..LAST, vectors COUNT)"


@dataclass(frozen=True, slots=True)
class KernelRange:
    """Register tiles of ``first`` to ``last`` rows by ``vectors`` vectors of columns."""

    family: str
    isa: str
    compute: str
    first: int
    last: int
    vectors: int

    def __str__(self) -> str:
        head = f"{self.family}, {self.isa}, {self.compute}"
        return f"KERNELS({head}, rows {self.first}..{self.last}, vectors {self.vectors})"

    @property
    def width(self) -> tuple[str, str, str, int]:
        """What ranges that may overlap have in common."""
        return self.family, self.isa, self.compute, self.vectors


def parse_ranges(text: str, source: str, isas: Collection[str]) -> tuple[KernelRange, ...]:
    """The ranges of a ``kernels.def``, in its order; ``#`` begins a line that is a comment.

    ``isas`` are the names of instruction sets. SpecError: ``source``, and the line that is no range
    or the two that overlap.
    """
    ranges: list[KernelRange] = []
    for number, line in _lines(text):
        try:
            ranges.append(_parse_range(line, isas))
        except SpecError as error:
            raise SpecError(f"{source}, line {number}: {error}") from None
    try:
        refuse_overlap(ranges)
    except SpecError as error:
        raise SpecError(f"{source}: {error}") from None
    return tuple(ranges)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.rstrip()


def _parse_range(line: str, isas: Collection[str]) -> KernelRange:
    match = _LINE.fullmatch(line)
    if match is None:
        raise SpecError(f"expected {FORM}, got {line!r:.100}")
    family, isa, compute, *numbers = match.groups()
    tiles = KernelRange(family, isa, compute, *map(int, numbers))
    if isa not in isas:
        raise SpecError(f"isa: no instruction set {isa!r}; known: {', '.join(isas)}")
    if not _FAMILY.fullmatch(family):
        raise SpecError(
            "family: expected brgemm, depthwise, stacked, groupedN, stencil or stencil2, got "
            f"{family!r}"
        )
    if compute not in COMPUTES:
        raise SpecError(f"compute: expected one of {', '.join(COMPUTES)}, got {compute!r}")
    if not 1 <= tiles.first <= tiles.last <= MOST_ROWS:
        rule = f"expected 1 <= FIRST <= LAST <= {MOST_ROWS}"
        raise SpecError(f"rows: {rule}, got {tiles.first}..{tiles.last}")
    if not 1 <= tiles.vectors <= MOST_VECTORS:
        raise SpecError(f"vectors: expected 1 to {MOST_VECTORS}, got {tiles.vectors}")
    return tiles


def refuse_overlap(ranges: Sequence[KernelRange]) -> None:
    """SpecError for a tile that two ranges hold."""
    ordered = sorted(ranges, key=lambda tiles: (tiles.width, tiles.first))
    for before, after in pairwise(ordered):
        if before.width == after.width and after.first <= before.last:
            raise SpecError(f"{after} overlaps {before}")
