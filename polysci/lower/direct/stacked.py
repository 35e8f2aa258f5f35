"""C of a depthwise reduction whose words hold four taps of a column of the filter."""

from __future__ import annotations

from collections.abc import Iterator

from polysci.errors import UnsupportedError
from polysci.lower.direct.reduction import Step, line_pixels, loop_ranges
from polysci.lower.direct.tiles import Tile
from polysci.printers import ctree as c


def stacked_calls(tile: Tile) -> list[c.Generable]:
    """Everything one call accumulates: a line of taps for every four rows of the filter.

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
    return [c.when("g->x_zero + PS_FLIP", c.Block(list(_lines(tile, filled=True))), c.Block(plain))]


def _lines(tile: Tile, *, filled: bool) -> Iterator[c.Generable]:
    plan, a = tile.plan, tile.plan.coef["x"]
    rows, across = plan.taps
    word, taps = plan.compute.vnni_factor, plan.extent(across)
    for first in range(0, plan.extent(rows), word):
        count = min(word, plan.extent(rows) - first)
        ends = ("0", str(count))
        if rows in plan.ranges:
            ends = (f"{rows}_first - {first}", f"{rows}_last - {first}")
        step = Step(tile.masks(None)[0], "A", "B", filled).at(
            tile.masks(None)[0], first * a[rows], first // word * taps * word * tile.width
        )
        pixels = line_pixels(tile, across, tile.masks(across), step)
        if pixels is not None:
            yield _line(step, (taps, count, a[across], a[rows]), pixels, ends)
            continue
        shape = (1, count, a[plan.rows[-1]] if plan.rows else 1, a[rows])
        yield from _apart(tile, step, shape, ends)


def _apart(
    tile: Tile, step: Step, stack: tuple[int, int, int, int], ends: tuple[str, str]
) -> Iterator[c.Generable]:
    """Every tap of a line by itself, where rows share no pixels."""
    across = tile.plan.taps[1]
    by_a, by_b = tile.plan.coef["x"][across], tile.plan.compute.vnni_factor * tile.width
    if across not in tile.plan.ranges:
        for tap, mask in enumerate(tile.masks(across)):
            place = step.at(mask, tap * by_a, tap * by_b)
            if not place.idle:
                yield _line(place, stack, place.rows, ends)
        return
    at = c.variable(across)
    for first, last, mask in loop_ranges(tile, across, step.rows, step):
        place = step.at(mask, by_a, by_b, at)
        body = c.Block([_line(place, stack, place.rows, ends)])
        yield c.loop(f"int64_t {at} = {first}", f"{at} < {last}", f"++{at}", body)


def _line(
    step: Step, stack: tuple[int, int, int, int], pixels: int, ends: tuple[str, str]
) -> c.Generable:
    """One call; ``stack`` holds taps, rows of the image, and the distances of both in A."""
    fields = dict(zip(("taps", "count", "step", "pitch"), stack, strict=True))
    shape = ", ".join(f".{name} = {value}" for name, value in fields.items())
    words = [f"UINT64_C({pixels:#x})", step.a, step.b, *ends]
    if step.filled:
        words.insert(1, "g->x_zero")
    name = "ps_slide_stacked_filled" if step.filled else "ps_slide_stacked"
    return c.Statement(f"{name}(acc, t, (ps_stack){{{shape}}}, {', '.join(words)})")
