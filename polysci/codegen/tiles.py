"""One C function per kind of register tile: the microkernel with every constant in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import prod

from polysci.codegen import ctree as c
from polysci.plan import Piece, Plan


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: a plan with one piece chosen for every dimension."""

    plan: Plan
    pieces: Mapping[str, Piece]

    def size(self, dim: str) -> int:
        return self.pieces[dim].size

    @property
    def rows(self) -> int:
        return prod(self.size(dim) for dim in self.plan.rows)

    @property
    def width(self) -> int:
        """Columns of the packed panel of B, in elements."""
        return self.plan.columns_padded(self.size(self.plan.column))

    @property
    def depth(self) -> int:
        """Reduction steps below one tap."""
        return self.size(self.plan.depth) if self.plan.depth else 1

    def tap_of(self, dim: str) -> str | None:
        """The filter dimension that shares an axis of A with ``dim``."""
        index = self.plan.contraction.a.index
        axis = next((affine for affine in index if affine.coef(dim)), None)
        return next((tap for tap in self.plan.taps if axis and axis.coef(tap)), None)

    def spread(self, dim: str, valid: int) -> int:
        """Extend a mask over positions of ``dim`` to all rows."""
        if dim not in self.plan.rows:
            return (1 << self.rows) - 1 if valid & 1 else 0
        inner = prod(self.size(d) for d in self.plan.rows[self.plan.rows.index(dim) + 1 :])
        size = self.size(dim)
        return sum((valid >> i // inner % size & 1) << i for i in range(self.rows))

    def masks(self, tap: str | None) -> tuple[int, ...]:
        """Active rows for each value of ``tap``; with None: for every value of every tap."""
        masks = [(1 << self.rows) - 1] * (self.plan.extent(tap) if tap else 1)
        for dim, piece in self.pieces.items():
            if piece.masks and self.tap_of(dim) == tap:
                masks = [
                    mask & self.spread(dim, valid)
                    for mask, valid in zip(masks, piece.masks, strict=True)
                ]
        return tuple(masks)


@dataclass(frozen=True, slots=True)
class Step:
    """A place in the reduction: active rows, and the C text of the addresses in A and B."""

    rows: int
    a: str
    b: str

    def at(self, rows: int, a: int, b: int, times: str = "") -> Step:
        """Move by constant offsets, or by offsets ``times`` a variable."""

        def moved(text: str, by: int) -> str:
            return f"{text} + {by} * {times}" if times else f"{text} + {by}" if by else text

        return Step(self.rows & rows, moved(self.a, a), moved(self.b, b))

    def run(self, length: int, stride: int) -> c.Generable:
        return c.Statement(
            f"ps_run(acc, t, {self.rows:#x}u, {self.a}, {self.b}, {length}, {stride})"
        )


def reduction(tile: Tile) -> list[c.Generable]:
    """Everything one call accumulates: loops and unrolled steps over the taps, runs inside."""
    start = Step(tile.masks(None)[0], "A", "B")
    return list(_taps(tile, tile.plan.taps, start))


def _taps(tile: Tile, taps: tuple[str, ...], step: Step) -> Iterator[c.Generable]:
    plan, a = tile.plan, tile.plan.coef["A"]
    stride = a[plan.depth] if plan.depth else 1
    if not step.rows:
        return
    if not taps:
        yield step.run(tile.depth, stride)
        return
    tap, inner = taps[0], taps[1:]
    extent, masks = plan.extent(tap), tile.masks(tap)
    by_a, by_b = a[tap], tile.depth * tile.width * prod(plan.extent(t) for t in inner)
    if tap in plan.ranges or (inner and extent > 1 and len(set(masks)) == 1):
        first, last = (f"{tap}_first", f"{tap}_last") if tap in plan.ranges else ("0", str(extent))
        at = c.variable(tap)
        body = list(_taps(tile, inner, step.at(masks[0], by_a, by_b, at)))
        if body:
            yield c.loop(f"int64_t {at} = {first}", f"{at} < {last}", f"++{at}", c.Block(body))
    elif not inner and (tile.depth == 1 or by_a == tile.depth * stride):
        yield from _merged(tile, step, masks, by_a, by_b)
    else:
        for value in range(extent):
            yield from _taps(tile, inner, step.at(masks[value], value * by_a, value * by_b))


def _merged(
    tile: Tile, step: Step, masks: tuple[int, ...], by_a: int, by_b: int
) -> Iterator[c.Generable]:
    """Neighbouring taps with equal rows whose runs join: one longer run."""
    plan = tile.plan
    stride = by_a if tile.depth == 1 or not plan.depth else plan.coef["A"][plan.depth]
    for mask, group in groupby(enumerate(masks), key=lambda item: item[1] & step.rows):
        values = [value for value, _ in group]
        if mask:
            place = step.at(mask, values[0] * by_a, values[0] * by_b)
            yield place.run(len(values) * tile.depth, stride)


def parameters(plan: Plan) -> list[str]:
    """C parameters of a tile function, in order."""
    names = ["int64_t a", "int64_t b", "int64_t c", "int64_t n"]
    if plan.blocked:
        names += ["int first", "int last"]
    for tap in plan.ranges:
        names += [f"int64_t {tap}_first", f"int64_t {tap}_last"]
    return names


def tile_function(name: str, tile: Tile) -> c.Generable:
    """The C function of a register tile; a, b, c, n are offsets in elements."""
    plan = tile.plan
    size, lanes = tile.size(plan.column), plan.kernel.lanes
    inner = plan.rows[-1] if plan.rows else None
    outer = plan.rows[0] if len(plan.rows) == 2 else None
    fields = {
        "rows": tile.rows,
        "vecs": tile.width // lanes,
        "wrap": tile.size(inner) if inner else 1,
        "lanes": size - (tile.width - lanes),
        "a_outer": plan.coef["A"][outer] if outer else 0,
        "a_inner": plan.coef["A"][inner] if inner else 0,
        "c_outer": plan.coef["C"][outer] if outer else 0,
        "c_inner": plan.coef["C"][inner] if inner else 0,
        "c_col": plan.coef["C"][plan.column],
        "diagonal": int(plan.kernel.family == "depthwise"),
    }
    if plan.schedule.stream:
        fields["stream"] = 1
    constants = ", ".join(f".{key} = {value}" for key, value in fields.items())
    first, last = ("!first", "last ? &e : 0") if plan.blocked else ("0", "&e")
    steps = reduction(tile)
    if not steps:  # every tap of this tile lies in the padding
        unused = ["A", "B", *(f"{tap}_{end}" for tap in plan.ranges for end in ("first", "last"))]
        steps = [c.Statement(", ".join(f"(void){name}" for name in unused))]
    body = c.Block(
        [
            c.Statement(f"static const ps_tile t = {{{constants}}}"),
            c.Statement("const float *restrict A = g->x + a, *restrict B = g->packed + b"),
            c.Statement("const ps_epilogue e = ps_shifted(g, n, c)"),
            c.Statement(f"ps_vec acc[{tile.rows * tile.width // lanes}]"),
            c.Statement(f"ps_begin(acc, t, g->y + c, {first})"),
            *steps,
            c.Statement(f"ps_end(acc, t, g->y + c, {last})"),
        ]
    )
    head = ", ".join(["const ps_args *restrict g", *parameters(plan)])
    return c.Collection([c.Line(f"static PS_KERNEL void {name}({head})"), body])
