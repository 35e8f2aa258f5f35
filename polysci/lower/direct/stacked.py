"""Statements of a depthwise reduction whose words hold four taps of a column of the filter."""

from __future__ import annotations

from collections.abc import Iterator

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import Index, Variable, as_index
from polysci.loop_ir.nodes import (
    Fields,
    If,
    Invoke,
    LoopStatement,
    Mask,
    Member,
    Named,
    block,
    loop,
)
from polysci.lower.direct.reduction import PADDING_COUNTS, Step, line_pixels, loop_ranges
from polysci.lower.direct.tiles import Tile, iterator


def stacked_calls(tile: Tile) -> list[LoopStatement]:
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
