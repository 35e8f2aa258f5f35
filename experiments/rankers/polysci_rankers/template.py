"""Schedule templates: a schedule's loops by role and sizes by class; distance to a template."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from polysci.cost.estimate import Context
from polysci.errors import SpecError
from polysci.polyhedral.contraction import columns_of
from polysci.polyhedral.footprint import Count
from polysci.space.directives import Stream
from polysci.space.enumerate import Family, RegisterTile, row_dims
from polysci.target.microkernels import family as kernels_of
from polysci_rankers.trip_counts import trip_counts

# Loops by role: groups, images, rows, pixels of a row, columns, reduction. A capital is a cache
# block of that role; a small letter its loop over register tiles.
BLOCKS = ("P", "Q", "K", "C")
WORDS = ("g", "i", *BLOCKS, "p", "q", "k")
ROWS = ("few", "half", "most")  # of the rows that a kernel of this width can have
SHARES = (0.4, 0.75)  # where the second and third class begin
PLACES = ("none", "whole", "block", "tile")  # A packed: never, all of it, a block, a tile

BLOCK = 2.0  # a cache block that only one of the two has
SIZE, MOST_SIZE = 0.5, 2.0  # a factor of two in a block's size; the maximum for any two sizes
ORDER = 1.5  # two loops in the opposite order
WIDTH, HEIGHT = 0.75, 1.0  # a vector of width; a class of rows
PACKING, PLACE = 3.0, 1.0  # one is packed and the other is not; packed at another depth
PARALLEL, STREAM = 0.5, 1.0  # a parallel loop; one streams its stores and the other does not

_LOOP = re.compile(r"([giPQKCpqk])([0-9]{0,6})")
_REST = re.compile(
    r"(?P<vecs>[0-9]{1,2})v rows:(?P<rows>\w+) pack:(?P<pack>\w+) "
    r"parallel:(?P<parallel>[0-9]) stream:(?P<stream>yes|no)"
)


@dataclass(frozen=True, slots=True)
class Template:
    """``K4 p q k > 4v rows:most pack:none parallel:1 stream:no``, loops outer to inner.

    ``loops`` pairs a word of ``WORDS`` with its size, a power of two: register tiles in a block
    P, Q or K, steps in a part C of the reduction, 0 for a loop over register tiles. ``vecs`` is the
    width of the register tile, ``rows`` the class of its height, ``pack`` where A is packed,
    ``parallel`` how many loops the threads share.
    """

    loops: tuple[tuple[str, int], ...]
    vecs: int
    rows: str
    pack: str
    parallel: int
    stream: bool

    def __str__(self) -> str:
        loops = [f"{word}{size or ''}" for word, size in self.loops]
        stream = "yes" if self.stream else "no"
        rest = f"{self.vecs}v rows:{self.rows} pack:{self.pack} parallel:{self.parallel}"
        return f"{' '.join([*loops, '>'])} {rest} stream:{stream}"


def parse(text: str) -> Template:
    """The template that a text describes; ``parse(str(t)) == t``. Raises SpecError."""
    loops, arrow, rest = text.partition(">")
    words = [_LOOP.fullmatch(word) for word in loops.split()]
    knobs = _REST.fullmatch(rest.strip())
    if not arrow or knobs is None or not all(words):
        raise SpecError(
            f"template {text!r}: expected 'LOOPS > Nv rows:CLASS pack:PLACE parallel:N stream:yes' "
            f"with loops from {' '.join(WORDS)}"
        )
    loop_sizes = tuple((word[1], int(word[2] or 0)) for word in words if word)
    if any((name in BLOCKS) != (size > 0) for name, size in loop_sizes):
        raise SpecError(f"template {text!r}: only the blocks {' '.join(BLOCKS)} have sizes, as K4")
    if len({name for name, _ in loop_sizes}) != len(loop_sizes):
        raise SpecError(f"template {text!r}: expected each loop at most once")
    for key, value, choices in (("rows", knobs["rows"], ROWS), ("pack", knobs["pack"], PLACES)):
        if value not in choices:
            raise SpecError(
                f"template {text!r}: {key}:{value}: expected one of {', '.join(choices)}"
            )
    return Template(
        loop_sizes, int(knobs["vecs"]), knobs["rows"], knobs["pack"], int(knobs["parallel"]),
        knobs["stream"] == "yes",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outlines:
    """The templates of n schedules as arrays: position of each word's loop or -1, log2 of its
    size; the other fields as in Template, classes as their indices."""

    at: NDArray[np.int64]
    size: NDArray[np.int64]
    vecs: NDArray[np.int64]
    rows: NDArray[np.int64]
    pack: NDArray[np.int64]
    parallel: NDArray[np.int64]
    stream: NDArray[np.bool_]

    def template(self, index: int) -> Template:
        """One schedule's template."""
        at = self.at[index]
        order = [int(word) for word in np.argsort(at, kind="stable") if at[word] >= 0]
        return Template(
            tuple(
                (WORDS[w], 2 ** int(self.size[index, w]) if WORDS[w] in BLOCKS else 0)
                for w in order
            ),
            int(self.vecs[index]), ROWS[self.rows[index]], PLACES[self.pack[index]],
            int(self.parallel[index]), bool(self.stream[index]),
        )  # fmt: skip


def outlines(context: Context, family: Family) -> Outlines:
    """The outlines of a family."""
    nest, size = trip_counts(family), len(family)
    at = np.full((size, len(WORDS)), -1, dtype=np.int64)
    sizes = np.zeros((size, len(WORDS)), dtype=np.int64)
    parallel, pack = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    pack[family.pack >= 0] = PLACES.index("whole")
    letters = _letters(context)
    for position, dim in enumerate(family.dims):
        runs = np.zeros(size, dtype=bool) | nest.running(position)
        inner, letter = nest.innermost(position), letters[dim]
        tiles = family.steps[:, position] / (1 if letter == "c" else nest.tiles[-1][dim])
        for word, chosen in _words(letter, runs, runs & inner):
            column = WORDS.index(word)
            first = chosen & (at[:, column] < 0)
            at[first, column] = position
            if word in BLOCKS:
                sizes[first, column] = np.maximum(np.rint(np.log2(tiles[first])), 1)
            else:
                tile = chosen & (family.pack > position) & (word in "pqk")
                pack[tile] = PLACES.index("tile")
        within = runs & (family.pack > position) & (pack == PLACES.index("whole"))
        pack[within] = PLACES.index("block")
        parallel += runs & (position < family.parallel)
    vecs = np.array([tile.kernel.vecs for tile in family.tiles])[family.which]
    rows = np.array([_height(tile) for tile in family.tiles])[family.which]
    return Outlines(at, sizes, vecs, rows, pack, parallel, family.has(Stream))


def _letters(context: Context) -> dict[str, str]:
    """The role of every dimension as a small letter."""
    contraction = context.contraction
    letters = {d.name: "c" if d.role in ("k", "br") else "g" for d in contraction.dims}
    rows = [d.name for d in row_dims(contraction, context.strides)]
    letters |= {d.name: "i" for d in contraction.by_role("m")}
    letters |= dict(zip(reversed(rows), "qp", strict=False))
    return letters | {columns_of(contraction).name: "k"}


def _words(
    letter: str, runs: NDArray[np.bool_], inner: NDArray[np.bool_]
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """The words that can stand for a loop, and the schedules in which each does."""
    if letter in "gi":
        yield letter, runs
    elif letter == "c":
        yield "C", runs
    else:
        yield letter.upper(), runs & ~inner
        yield letter, inner


def _height(tile: RegisterTile) -> int:
    kernel = tile.kernel
    alike = kernels_of(kernel.family, kernel.isa, kernel.compute)
    most_rows = max(other.rows for other in alike if other.vecs == kernel.vecs)
    return sum(tile.rows / most_rows >= share for share in SHARES)


def distance(layer_outlines: Outlines, template: Template, threads: int) -> Count:
    """Weighted mismatches between schedules and a template; 0 for a schedule that matches it.

    A loop over register tiles that only one of them has is no mismatch, because it depends on the
    layer. Parallel loops count only with more than one thread.
    """
    present = layer_outlines.at >= 0
    sizes = dict(template.loops)
    total = np.zeros(len(layer_outlines.vecs))
    for word in BLOCKS:
        column = WORDS.index(word)
        if word not in sizes:
            total += BLOCK * present[:, column]
            continue
        apart = np.abs(layer_outlines.size[:, column] - np.log2(sizes[word]))
        total += np.where(present[:, column], np.minimum(SIZE * apart, MOST_SIZE), BLOCK)
    for (outer, _), (inner, _) in combinations(template.loops, 2):
        a, b = WORDS.index(outer), WORDS.index(inner)
        total += ORDER * (
            present[:, a] & present[:, b] & (layer_outlines.at[:, a] > layer_outlines.at[:, b])
        )
    total += WIDTH * np.abs(layer_outlines.vecs - template.vecs)
    total += HEIGHT * np.abs(layer_outlines.rows - ROWS.index(template.rows))
    place = PLACES.index(template.pack)
    total += PACKING * ((layer_outlines.pack > 0) != (place > 0))
    total += PLACE * ((layer_outlines.pack > 0) & (place > 0) & (layer_outlines.pack != place))
    if threads > 1:
        total += PARALLEL * np.abs(layer_outlines.parallel - template.parallel)
    total += STREAM * (layer_outlines.stream != template.stream)
    return total
