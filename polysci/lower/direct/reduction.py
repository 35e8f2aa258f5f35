"""C of what one call accumulates: runs of the microkernel over the filter taps and the depth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import prod

from polysci.lower.direct.tiles import Tile
from polysci.printers import ctree as c
from polysci.space.resolve import Plan

MOST_PIXELS = 64  # that a mask can tell of
MOST_UNROLLED = 16  # values of a tap: filters have fewer, images that are reduced over have more


@dataclass(frozen=True, slots=True)
class Step:
    """A place in the reduction: active rows, and the C text of the addresses in A and B.

    ``filled``: the other rows take part as well. ``function`` is what runs from there.
    """

    rows: int
    a: str
    b: str
    filled: bool = False
    function: str = "ps_run"

    @property
    def idle(self) -> bool:
        """Whether there is nothing to add."""
        return not self.rows and not self.filled

    def at(self, rows: int, a: int, b: int, times: str = "") -> Step:
        """Move by constant offsets, or by offsets ``times`` a variable."""

        def shift(text: str, by: int) -> str:
            return f"{text} + {by} * {times}" if times else f"{text} + {by}" if by else text

        return replace(self, rows=self.rows & rows, a=shift(self.a, a), b=shift(self.b, b))

    def run(self, length: int, stride: int, width: int | None = None) -> c.Generable:
        """``length`` steps of ``width`` elements, by default a whole word."""
        words = [f"{self.rows:#x}u", self.a, self.b, str(length), str(stride)]
        name = self.function
        if self.filled:
            name += "_filled"
            words.insert(1, "g->x_zero")
            words.append(str(width or "PS_WORD"))
        elif width:
            name += "_part"
            words.append(str(width))
        return c.Statement(f"{name}(acc, t, {', '.join(words)})")

    def slide(self, pixels: int, taps: int, by_a: int) -> c.Generable:
        """All taps of a line at once."""
        words = [f"UINT64_C({pixels:#x})", self.a, self.b, str(taps), str(by_a)]
        if self.filled:
            words.insert(1, "g->x_zero")
        name = "ps_slide_filled" if self.filled else "ps_slide"
        return c.Statement(f"{name}(acc, t, {', '.join(words)})")


def reduction(tile: Tile) -> list[c.Generable]:
    """Everything one call accumulates: loops and unrolled steps over the taps, runs inside."""
    function = "ps_run_grouped" if tile.plan.kernel.shifts > 1 else "ps_run"
    start = Step(tile.masks(None)[0], "A", "B", function=function)
    plain = list(_taps(tile, tile.plan.taps, start))
    if not (tile.plan.filled and tile.cut):
        return plain
    filled = list(_taps(tile, tile.plan.taps, replace(start, filled=True)))
    return [c.when("g->x_zero + PS_FLIP", c.Block(filled), c.Block(plain))]


def _taps(tile: Tile, taps: tuple[str, ...], step: Step) -> Iterator[c.Generable]:
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
        at = c.variable(tap)
        for first, last, rows in loop_ranges(tile, tap, masks[0], step):
            body = list(_taps(tile, inner, step.at(rows, by_a, by_b, at)))
            if body:
                yield c.loop(f"int64_t {at} = {first}", f"{at} < {last}", f"++{at}", c.Block(body))
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
) -> Iterator[c.Generable]:
    """A step for every value of a tap; loops over the values of many that have equal rows."""
    for mask, group in groupby(enumerate(tile.masks(tap)), key=lambda item: item[1]):
        values = [value for value, _ in group]
        if len(values) <= MOST_UNROLLED:
            for value in values:
                yield from _taps(tile, inner, step.at(mask, value * by_a, value * by_b))
            continue
        at = c.variable(tap)
        body = list(_taps(tile, inner, step.at(mask, by_a, by_b, at)))
        if body:
            yield c.loop(
                f"int64_t {at} = {values[0]}", f"{at} <= {values[-1]}", f"++{at}", c.Block(body)
            )


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


def loop_ranges(tile: Tile, tap: str, rows: int, step: Step) -> list[tuple[str, str, int]]:
    """Loops over a tap: first value, end and active rows."""
    plan = tile.plan
    if tap not in plan.ranges:
        return [("0", str(tile.taps_of(tap)), rows)]
    inside = (f"{tap}_first", f"{tap}_last", rows)
    if not step.filled:
        return [inside]
    extent = plan.extent(tap)
    before = ("0", f"ps_least({tap}_first, {extent})", 0)
    return [before, inside, (f"ps_most({tap}_first, {tap}_last)", str(extent), 0)]


def reads_on(plan: Plan) -> bool:
    """Whether the last word of a run is read whole: in a copy, what is behind meets zeros of B."""
    packed = plan.box is not None and plan.kernel.family == "brgemm"
    return packed and plan.precision.integer and plan.compute.vnni_factor > 1


def in_words(plan: Plan) -> bool:
    """Whether words lie ``coef["x"]`` of k apart for each of their elements."""
    return plan.box is not None and plan.box.word > 1


def _runs(tile: Tile, step: Step, length: int, stride: int) -> Iterator[c.Generable]:
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
) -> Iterator[c.Generable]:
    """Neighbouring taps with equal rows whose runs join: one longer run."""
    plan = tile.plan
    stride = by_a if tile.depth == 1 or not plan.depth else plan.coef["x"][plan.depth]
    for mask, group in groupby(enumerate(masks), key=lambda item: item[1] & step.rows):
        values = [value for value, _ in group]
        place = step.at(mask, values[0] * by_a, values[0] * by_b)
        if not place.idle:
            yield from _runs(tile, place, len(values) * tile.depth, stride)
