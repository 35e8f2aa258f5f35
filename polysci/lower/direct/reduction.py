"""What one call accumulates: runs of the microkernel over the filter taps and the depth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import prod
from typing import Final

from polysci.loop_ir.index import ZERO, Index, IndexLike, Variable, as_index, least, most
from polysci.loop_ir.nodes import (
    Address,
    Arithmetic,
    If,
    Invoke,
    LoopStatement,
    Mask,
    Member,
    Named,
    Value,
    block,
    loop,
)
from polysci.lower.direct.tiles import Tile, iterator
from polysci.space.resolve import Plan

MOST_PIXELS = 64  # that a mask can tell of
MOST_UNROLLED = 16  # values of a tap: filters have fewer, images that are reduced over have more


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
        """Whether there is nothing to add."""
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
        """``length`` steps of ``width`` elements, by default a whole word."""
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
    """Everything one call accumulates: loops and unrolled steps over the taps, runs inside."""
    function = "ps_run_grouped" if tile.plan.kernel.shifts > 1 else "ps_run"
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
        yield from _merged(tile, step, masks, by_a, by_b)
    else:
        yield from _unrolled(tile, tap, inner, step, by_a, by_b)


def _is_one_run(tile: Tile, taps: tuple[str, ...]) -> bool:
    """Whether these reductions, in order, are evenly spaced steps in A as in B."""
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


def _unrolled(
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
    """Which pixels the taps of a depthwise tile read, if its rows share some (``ps_slide``)."""
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


def reads_on(plan: Plan) -> bool:
    """Whether the last word of a run is read whole: in a copy, what is behind meets zeros of B."""
    packed = plan.box is not None and plan.kernel.family == "brgemm"
    return packed and plan.precision.integer and plan.compute.vnni_factor > 1


def in_words(plan: Plan) -> bool:
    """Whether words lie ``coef["x"]`` of k apart for each of their elements."""
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
    elif reads_on(tile.plan):
        yield step.run(-(-length // word), word)
    else:
        whole = length // word
        if whole:
            yield step.run(whole, word)
        if length % word:
            rest = step.at(step.rows, whole * word, whole * word * tile.width)
            yield rest.run(1, word, length % word)


def _merged(
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
