"""The sums of one call: runs of the microkernel over the filter's taps and the depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import prod
from typing import Final

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import ZERO, Index, IndexLike, Variable, as_index, iterator, least, most
from polysci.loop_ir.nodes import (
    Address,
    Arithmetic,
    Fields,
    If,
    Invoke,
    Let,
    LoopStatement,
    Mask,
    Member,
    Named,
    Value,
    block,
    loop,
)
from polysci.space.padding import Piece
from polysci.space.plan import Plan, Tile
from polysci.space.stencil_roles import FilterAxis, windows_of

MOST_PIXELS = 64  # that a mask can tell of
MOST_UNROLLED = 16  # values of a tap: filters have fewer, images that are reduced over have more
MOST_MULTIPLIED = 768  # multiplications of vectors in one call, or in a row of them without a loop


# Of integers: what rows in the padding take part with is not 0.
PADDING_COUNTS: Final = Arithmetic("+", Member("g", "x_zero", pointed=True), Variable("PS_FLIP"))


@dataclass(frozen=True, slots=True)
class Step:
    """A place in the reduction: active rows, and the offsets in A and B.

    ``filled``: the other rows take part as well. ``function`` is what runs from there.
    """

    rows: int
    a: Index = ZERO
    b: Index = ZERO
    filled: bool = False
    function: str = "ps_run"

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to add."""
        return not self.rows and not self.filled

    def at(self, rows: int, a: int, b: int, times: IndexLike = 1) -> Step:
        """Move by constant offsets, or by offsets ``times`` a variable."""
        by_a, by_b = self.a + a * as_index(times), self.b + b * as_index(times)
        return replace(self, rows=self.rows & rows, a=by_a, b=by_b)

    @property
    def places(self) -> tuple[Value, Value]:
        """The addresses in A and B."""
        return Address(Named("A"), self.a), Address(Named("B"), self.b)

    def call(self, name: str, rows: Mask, *operands: Value) -> Invoke:
        """A call from here on; of rows in the padding it is told what they hold."""
        zero = [Member("g", "x_zero", pointed=True)] * self.filled
        name += "_filled" * self.filled
        return Invoke(name, (Named("acc"), Named("t"), rows, *zero, *self.places, *operands))

    def run(self, length: int, stride: int, width: int | None = None) -> Invoke:
        """Return ``length`` steps of ``width`` elements, by default a whole word."""
        rows = Mask(self.rows)
        if self.filled:
            return self.call(self.function, rows, length, stride, width or Variable("PS_WORD"))
        if width:
            return self.call(f"{self.function}_part", rows, length, stride, width)
        return self.call(self.function, rows, length, stride)

    def slide(self, pixels: int, taps: int, by_a: int) -> Invoke:
        """All taps of a line at once."""
        return self.call("ps_slide", Mask(pixels, 64), taps, by_a)


def reduction(tile: Tile) -> list[LoopStatement]:
    """Return all sums of one call: loops and unrolled steps over the taps, runs inside."""
    function = "ps_run_grouped" if tile.plan.kernel.group > 1 else "ps_run"
    function = "ps_run_blocks" if tile.plan.blocked_weights else function
    start = Step(tile.masks(None)[0], function=function)
    plain = list(_taps(tile, tile.plan.taps, start))
    if not (tile.plan.filled and tile.cut):
        return plain
    filled = list(_taps(tile, tile.plan.taps, replace(start, filled=True)))
    return [If(PADDING_COUNTS, block(*filled), block(*plain))]


def _taps(tile: Tile, taps: tuple[str, ...], step: Step) -> Iterator[LoopStatement]:
    plan, a = tile.plan, tile.plan.coef["x"]
    stride = a[plan.depth] if plan.depth else 1
    if step.idle:
        return
    if not taps:
        yield from _runs(tile, step, tile.depth, stride)
        return
    tap, inner = taps[0], taps[1:]
    if inner and _is_one_run(tile, taps):
        moving = [tap for tap in taps if tile.taps_of(tap) > 1] or taps
        yield from _runs(tile, step, prod(map(tile.taps_of, taps)), a[moving[-1]])
        return
    extent, masks = tile.taps_of(tap), tile.masks(tap)
    below, around = tile.depth, inner
    if plan.joined and inner:
        below, around = tile.depth * plan.panels[inner[-1]], inner[:-1]
    below = plan.words(below) * tile.step
    by_a, by_b = a[tap], below * prod(plan.panels[t] for t in around)
    whole_words = tile.depth == plan.words(tile.depth)
    if not inner and (pixels := line_pixels(tile, tap, masks, step)) is not None:
        if pixels or step.filled:
            yield step.slide(pixels, extent, a[tap])
    elif tap == plan.joined:
        yield from _runs(tile, step, extent * tile.depth, stride)
    elif tap in plan.ranges or (inner and extent > 1 and len(set(masks)) == 1):
        at = iterator(tap)
        for first, last, rows in loop_ranges(tile, tap, masks[0], step):
            body = list(_taps(tile, inner, step.at(rows, by_a, by_b, at)))
            if body:
                yield loop(at.name, last, *body, start=first)
    elif not inner and (tile.depth == 1 or (whole_words and by_a == tile.depth * stride)):
        yield from _merge_taps(tile, step, masks, by_a, by_b)
    else:
        yield from _unroll_tap(tile, tap, inner, step, by_a, by_b)


def _is_one_run(tile: Tile, taps: tuple[str, ...]) -> bool:
    """Return whether these reductions, in order, are evenly spaced steps in A as in B."""
    plan, a = tile.plan, tile.plan.coef["x"]
    if plan.depth or plan.compute.vnni_factor > 1 or plan.kernel.family != "brgemm":
        return False
    rows = (1 << tile.rows) - 1
    every = all(set(tile.masks(tap)) == {rows} and tap not in plan.ranges for tap in taps)
    first = next((at for at, tap in enumerate(taps) if tile.taps_of(tap) > 1), len(taps))
    whole = all(tile.taps_of(tap) == plan.panels[tap] for tap in taps[first + 1 :])
    moving = [tap for tap in taps if tile.taps_of(tap) > 1]
    return (every and whole) and all(
        a[outer] == a[inner] * tile.taps_of(inner) for outer, inner in pairwise(moving)
    )


def _unroll_tap(
    tile: Tile, tap: str, inner: tuple[str, ...], step: Step, by_a: int, by_b: int
) -> Iterator[LoopStatement]:
    """A step for every value of a tap; loops over the values of many that have equal rows."""
    for mask, group in groupby(enumerate(tile.masks(tap)), key=lambda item: item[1]):
        values = [value for value, _ in group]
        if len(values) <= MOST_UNROLLED:
            for value in values:
                yield from _taps(tile, inner, step.at(mask, value * by_a, value * by_b))
            continue
        at = iterator(tap)
        body = list(_taps(tile, inner, step.at(mask, by_a, by_b, at)))
        if body:
            yield loop(at.name, values[-1] + 1, *body, start=values[0])


def line_pixels(tile: Tile, tap: str, masks: tuple[int, ...], step: Step) -> int | None:
    """Return the pixels that a depthwise tile's taps read, if rows share some (``ps_slide``)."""
    plan, a = tile.plan, tile.plan.coef["x"]
    if not plan.kernel.slides or not plan.rows or tap in plan.ranges:
        return None
    extent, wide = plan.extent(tap), tile.size(plan.rows[-1])
    if extent == 1:
        return None
    every, rest = divmod(a[plan.rows[-1]], a[tap])
    span = (wide - 1) * every + extent
    if wide == 1 or rest or not 1 <= every < extent or tile.rows // wide * span > MOST_PIXELS:
        return None
    pixels = 0
    for s, mask in enumerate(masks):
        for row in range(tile.rows):
            if mask & step.rows & 1 << row:
                pixels |= 1 << (row // wide * span + row % wide * every + s)
    return pixels


def loop_ranges(tile: Tile, tap: str, rows: int, step: Step) -> list[tuple[Index, Index, int]]:
    """Return loops over a tap: first value, end and active rows."""
    plan, zero = tile.plan, as_index(0)
    if tap not in plan.ranges:
        return [(zero, as_index(tile.taps_of(tap)), rows)]
    first, last = Variable(f"{tap}_first"), Variable(f"{tap}_last")
    inside = (first, last, rows)
    if not step.filled:
        return [inside]
    extent = plan.extent(tap)
    return [(zero, least(first, extent), 0), inside, (most(first, last), as_index(extent), 0)]


def in_words(plan: Plan) -> bool:
    """Return whether words lie ``coef["x"]`` of k apart for each of their elements."""
    return plan.box is not None and plan.box.word > 1


def _runs(tile: Tile, step: Step, length: int, stride: int) -> Iterator[LoopStatement]:
    """Runs over ``length`` elements of A, ``stride`` apart: whole words, then the part of one."""
    word = tile.plan.compute.vnni_factor
    if word == 1 or tile.plan.kernel.family != "brgemm":
        yield step.run(length, stride)
    elif tile.depth == 1 and not tile.plan.joined:  # every element is another tap's: its own word
        yield step.run(length, stride, 1)
    elif in_words(tile.plan):  # the last one is whole too
        yield step.run(-(-length // word), stride * word)
    elif tile.plan.reads_on:
        yield step.run(-(-length // word), word)
    else:
        whole = length // word
        if whole:
            yield step.run(whole, word)
        if length % word:
            rest = step.at(step.rows, whole * word, whole * word * tile.width)
            yield rest.run(1, word, length % word)


def _merge_taps(
    tile: Tile, step: Step, masks: tuple[int, ...], by_a: int, by_b: int
) -> Iterator[LoopStatement]:
    """Neighbouring taps with equal rows whose runs join: one longer run."""
    plan = tile.plan
    stride = by_a if tile.depth == 1 or not plan.depth else plan.coef["x"][plan.depth]
    for mask, group in groupby(enumerate(masks), key=lambda item: item[1] & step.rows):
        values = [value for value, _ in group]
        place = step.at(mask, values[0] * by_a, values[0] * by_b)
        if not place.idle:
            yield from _runs(tile, place, len(values) * tile.depth, stride)


def stacked_calls(tile: Tile) -> list[LoopStatement]:
    """Return all sums of one call: a line of taps for every four rows of the filter.

    Raises UnsupportedError where a tile has several rows of the image, or padding cuts its lines.
    """
    plan = tile.plan
    pieces = [piece for dim, piece in tile.pieces.items() if tile.tap_of(dim) == plan.stacked]
    if len(plan.rows) > 1 or any(piece.masks for piece in pieces):
        raise UnsupportedError(
            f"schedule {plan.schedule}: {plan.kernel} computes one row of the image a call"
        )
    plain = list(_lines(tile, filled=False))
    if not (plan.filled and tile.cut):
        return plain
    return [If(PADDING_COUNTS, block(*_lines(tile, filled=True)), block(*plain))]


def _lines(tile: Tile, *, filled: bool) -> Iterator[LoopStatement]:
    plan, a = tile.plan, tile.plan.coef["x"]
    rows, across = plan.taps
    word, taps = plan.compute.vnni_factor, plan.extent(across)
    for first in range(0, plan.extent(rows), word):
        count = min(word, plan.extent(rows) - first)
        ends = (as_index(0), as_index(count))
        if rows in plan.ranges:
            ends = (Variable(f"{rows}_first") - first, Variable(f"{rows}_last") - first)
        step = Step(tile.masks(None)[0], filled=filled).at(
            tile.masks(None)[0], first * a[rows], first // word * taps * word * tile.width
        )
        pixels = line_pixels(tile, across, tile.masks(across), step)
        if pixels is not None:
            yield _line(step, (taps, count, a[across], a[rows]), pixels, ends)
            continue
        shape = (1, count, a[plan.rows[-1]] if plan.rows else 1, a[rows])
        yield from _apart(tile, step, shape, ends)


def _apart(
    tile: Tile, step: Step, stack: tuple[int, int, int, int], ends: tuple[Index, Index]
) -> Iterator[LoopStatement]:
    """Every tap of a line by itself, where rows share no pixels."""
    across = tile.plan.taps[1]
    by_a, by_b = tile.plan.coef["x"][across], tile.plan.compute.vnni_factor * tile.width
    if across not in tile.plan.ranges:
        for tap, mask in enumerate(tile.masks(across)):
            place = step.at(mask, tap * by_a, tap * by_b)
            if not place.idle:
                yield _line(place, stack, place.rows, ends)
        return
    at = iterator(across)
    for first, last, mask in loop_ranges(tile, across, step.rows, step):
        place = step.at(mask, by_a, by_b, at)
        yield loop(at.name, last, _line(place, stack, place.rows, ends), start=first)


def _line(
    step: Step, stack: tuple[int, int, int, int], pixels: int, ends: tuple[Index, Index]
) -> LoopStatement:
    """One call; ``stack`` holds taps, rows of the image, and the distances of both in A."""
    fields = zip(("taps", "count", "step", "pitch"), stack, strict=True)
    rows = Mask(pixels, 64)
    name = f"ps_slide_stacked{'_filled' * step.filled}"
    zero = [Member("g", "x_zero", pointed=True)] * step.filled
    operands = (Fields(tuple(fields), "ps_stack"), rows, *zero, *step.places, *ends)
    return Invoke(name, (Named("acc"), Named("t"), *operands))


Columns = tuple[int, int, int, int]  # taps: the first, how many; elements of x: the first, the end


def stencil_calls(plan: Plan, pieces: Mapping[str, Piece]) -> list[LoopStatement]:
    """Return the statements that accumulate one tile; none if all of it lies in the padding.

    Which rows of x lie inside the image, and which elements of a row a call reads, are constants:
    ``pieces`` says which pixels of a tile every tap reads inside.
    """
    rows, columns = windows_of(plan.contraction)
    lanes, size = plan.kernel.lanes, pieces[plan.column].size
    work = rows.taps * prod(pieces[dim].size for dim in plan.rows) * -(-size // lanes)
    top, bottom = _real_rows(rows, pieces)
    calls = list(_columns(columns, pieces, _together(plan, columns, work)))
    if top >= bottom or not calls:
        return []
    fields = {
        "taps": rows.taps,
        "apart": rows.apart,
        "step": rows.step,
        "every": columns.step,
        "across": columns.apart,
        "top": top,
        "bottom": bottom,
        "row": plan.coef["x"][rows.dim] // rows.step if rows.dim else 0,
        "b_row": columns.taps,
    }
    return [
        Let("f", Fields(tuple(fields.items())), "ps_window", static=True),
        *_statements(columns.apart, calls, work),
    ]


def _together(plan: Plan, columns: FilterAxis, work: int) -> int:
    """Columns of taps a call: all that a vector and its neighbour hold, or those one load brings.

    ``work`` are the multiplications of one column.
    """
    neighbours = columns.step if columns.apart == 1 else 1
    if not plan.kernel.shifts_pixels:
        return neighbours
    reach = (plan.kernel.lanes - 1) * columns.step // columns.apart + 1
    most = max(1, min(reach, MOST_MULTIPLIED // work))
    even = -(-columns.taps // -(-columns.taps // most))
    return max(neighbours, even // neighbours * neighbours)


def _statements(apart: int, calls: list[Columns], work: int) -> Iterator[LoopStatement]:
    """The calls, with loops over many that read alike; ``work`` as in ``_together``."""
    for (count, left, right), group in groupby(calls, key=lambda call: call[1:]):
        taps = [call[0] for call in group]
        if len(taps) > 1 and len(taps) * count * work > MOST_MULTIPLIED:
            s = Variable("s")
            body = _call(apart * s, s, count, left, right)
            yield loop("s", taps[-1] + 1, body, start=taps[0], step=count)
            continue
        for tap in taps:
            yield _call(apart * tap, tap, count, left, right)


def _call(a: IndexLike, b: IndexLike, count: int, left: int, right: int) -> LoopStatement:
    """The call for some columns of taps, at offsets ``a`` and ``b`` of A and B."""
    places = (Address(Named("A"), as_index(a)), Address(Named("B"), as_index(b)))
    operands: list[Value] = [*map(Named, ("acc", "t", "f")), *places, count, left, right]
    return Invoke("ps_run_window", tuple(operands))


def _real_rows(rows: FilterAxis, pieces: Mapping[str, Piece]) -> tuple[int, int]:
    """Rows of x under a tile that lie inside the image: the first and the end."""
    real = [
        pixel * rows.step + tap * rows.apart
        for tap, mask in enumerate(_masks(rows, pieces))
        for pixel in _pixels(mask)
    ]
    return (min(real), max(real) + 1) if real else (0, 0)


def _columns(columns: FilterAxis, pieces: Mapping[str, Piece], together: int) -> Iterator[Columns]:
    """Columns of taps, so many at a time, and the elements that they read inside the image.

    Elements count from the one that the first of them reads for the tile's first pixel.
    """
    masks = _masks(columns, pieces)
    for first in range(0, columns.taps, together):
        taps = range(first, min(first + together, columns.taps))
        real = [
            pixel * columns.step + (tap - first) * columns.apart
            for tap in taps
            for pixel in _pixels(masks[tap])
        ]
        if real:
            yield first, len(taps), min(real), max(real) + 1


def _pixels(mask: int) -> list[int]:
    """The bits that are set."""
    return [pixel for pixel in range(mask.bit_length()) if mask >> pixel & 1]


def _masks(window: FilterAxis, pieces: Mapping[str, Piece]) -> tuple[int, ...]:
    """Return for every tap the pixels that read inside the image."""
    piece = pieces.get(window.dim) if window.dim else None
    every = (1 << (piece.size if piece else 1)) - 1
    masks = (piece.masks if piece else ()) or (every,)
    return masks if len(masks) == window.taps else masks * window.taps
