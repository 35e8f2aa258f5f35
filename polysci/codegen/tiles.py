"""One C function per kind of register tile: the microkernel with every constant in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

from polysci.codegen import ctree as c
from polysci.space.padding import Piece
from polysci.space.resolve import Plan
from polysci.space.weights_ahead import LINE, PanelReuse, share_lines

# What a tile function says of `next`.
PREFETCH = "Bytes from B to what a step prefetches of the panel that comes next; 0: nothing new"
MOST_PIXELS = 64  # that a mask can tell of
MOST_UNROLLED = 16  # values of a tap: filters have fewer, images that are reduced over have more


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
    def panel_width(self) -> int:
        """Elements of a panel of w that one step of the reduction reads, of one shift."""
        return self.rows if self.plan.contraction.swapped else self.width

    @property
    def step(self) -> int:
        """Elements of B that one step of the reduction reads."""
        return self.width * self.plan.kernel.shifts

    @property
    def depth(self) -> int:
        """Reduction steps below one tap."""
        return self.size(self.plan.depth) if self.plan.depth else 1

    def taps_of(self, tap: str) -> int:
        """Values of a tap inside the call."""
        return self.size(tap) if tap in self.pieces else self.plan.extent(tap)

    def tap_stride(self, tap: str) -> int:
        """Elements of packed B from one value of a tap to the next, where none are joined."""
        taps = self.plan.taps
        inner = prod(self.plan.extent(other) for other in taps[taps.index(tap) + 1 :])
        return self.plan.words(self.depth) * self.step * inner

    def panel_strides(self) -> dict[str, int]:
        """Elements of packed w from one position of a dimension to the next."""
        plan = self.plan
        strides = {d.name: plan.group_size for d in plan.groups}
        for position, dim in enumerate(plan.groups):
            strides[dim.name] *= prod(d.extent for d in plan.groups[position + 1 :])
        strides[plan.panel_dim] = plan.reduction
        if plan.depth:
            strides[plan.depth] = prod(plan.extent(tap) for tap in plan.taps) * self.panel_width
        return strides | {tap: self.tap_stride(tap) for tap in plan.split if tap != plan.depth}

    def tap_of(self, dim: str) -> str | None:
        """The filter dimension that shares an axis of A with ``dim``."""
        index = self.plan.contraction.a.index
        axis = next((affine for affine in index if affine.coef(dim)), None)
        return next((tap for tap in self.plan.taps if axis and axis.coef(tap)), None)

    @property
    def cut(self) -> bool:
        """Whether some rows of some tap may lie in the padding."""
        return bool(self.plan.ranges) or any(piece.masks for piece in self.pieces.values())

    def spread(self, dim: str, valid: int) -> int:
        """Extend a mask over positions of ``dim`` to all rows."""
        if dim not in self.plan.rows:
            return (1 << self.rows) - 1 if valid & 1 else 0
        inner = prod(self.size(d) for d in self.plan.rows[self.plan.rows.index(dim) + 1 :])
        size = self.size(dim)
        return sum((valid >> i // inner % size & 1) << i for i in range(self.rows))

    def masks(self, tap: str | None) -> tuple[int, ...]:
        """Active rows for each value of ``tap``; with None: for every value of every tap."""
        masks = [(1 << self.rows) - 1] * (self.taps_of(tap) if tap else 1)
        for dim, piece in self.pieces.items():
            if piece.masks and self.tap_of(dim) == tap:
                masks = [
                    mask & self.spread(dim, valid)
                    for mask, valid in zip(masks, piece.masks, strict=True)
                ]
        return tuple(masks)


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
    extent, masks = tile.taps_of(tap), tile.masks(tap)
    below, around = tile.depth, inner
    if plan.joined and inner:
        below, around = tile.depth * plan.extent(inner[-1]), inner[:-1]
    below = plan.words(below) * tile.step
    by_a, by_b = a[tap], below * prod(plan.extent(t) for t in around)
    whole_words = tile.depth == plan.words(tile.depth)
    if not inner and (pixels := _pixels(tile, tap, masks, step)) is not None:
        if pixels or step.filled:
            yield step.slide(pixels, extent, a[tap])
    elif tap == plan.joined:
        yield from _runs(tile, step, extent * tile.depth, stride)
    elif tap in plan.ranges or (inner and extent > 1 and len(set(masks)) == 1):
        at = c.variable(tap)
        for first, last, rows in _ranges(tile, tap, masks[0], step):
            body = list(_taps(tile, inner, step.at(rows, by_a, by_b, at)))
            if body:
                yield c.loop(f"int64_t {at} = {first}", f"{at} < {last}", f"++{at}", c.Block(body))
    elif not inner and (tile.depth == 1 or (whole_words and by_a == tile.depth * stride)):
        yield from _merged(tile, step, masks, by_a, by_b)
    else:
        yield from _unrolled(tile, tap, inner, step, by_a, by_b)


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


def _pixels(tile: Tile, tap: str, masks: tuple[int, ...], step: Step) -> int | None:
    """Which pixels the taps of a depthwise tile read, if its rows share some (``ps_slide``)."""
    plan, a = tile.plan, tile.plan.coef["x"]
    if plan.kernel.family != "depthwise" or not plan.rows or tap in plan.ranges:
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


def _ranges(tile: Tile, tap: str, rows: int, step: Step) -> list[tuple[str, str, int]]:
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


def _runs(tile: Tile, step: Step, length: int, stride: int) -> Iterator[c.Generable]:
    """Runs over ``length`` elements of A, ``stride`` apart: whole words, then the part of one."""
    word = tile.plan.compute.vnni_factor
    if word == 1 or tile.plan.kernel.family != "brgemm":
        yield step.run(length, stride)
    elif tile.depth == 1 and not tile.plan.joined:  # every element is another tap's: its own word
        yield step.run(length, stride, 1)
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


def _swapped_run(tile: Tile) -> list[c.Generable]:
    """The reduction with swapped factors: A by panels of its rows, B row by row from x."""
    plan = tile.plan
    b_k = plan.coef["x"][plan.depth] if plan.depth else 0
    following = "0"
    if plan.schedule.ahead:  # calls of the first few rows prefetch a line each of the next columns
        call, line = f"n / {plan.tile[plan.panel_dim]}", LINE // 4
        lines = tile.width // line + 1
        following = f"{call} < {lines} ? {tile.width} + {line} * ({call}) : 0"
    return [c.Statement(f"ps_run_rows(acc, t, A, B, {tile.depth}, {b_k}, {following})")]


def _operands(plan: Plan) -> tuple[str, str]:
    """C declarations of A and B: x, and panels of w."""
    if plan.contraction.swapped:
        return (
            "const ps_b *restrict A = g->packed + a",
            "const ps_a *restrict B = (const ps_a *)g->a + b",
        )
    return (
        "const ps_a *restrict A = (const ps_a *)g->a + a",
        "const ps_b *restrict B = g->packed + b",
    )


def _ending(plan: Plan) -> str:
    """The C function of the last step: a bias runs along the columns, or down the rows."""
    return "ps_end_rows" if plan.contraction.swapped else "ps_end"


def step_words(tile: Tile, most: int) -> int:
    """Words of k in a step on tile registers, at most ``most``.

    What a run has left behind its last whole step is copied. A number that divides every run
    avoids that, where it needs hardly more steps.
    """
    plan = tile.plan
    run = tile.depth * (plan.extent(plan.joined) if plan.joined else 1)
    words = max(run // plan.compute.vnni_factor, 1)
    fits = max(size for size in range(1, most + 1) if words % size == 0)
    return fits if words // fits <= 1.25 * -(-words // most) else most


def parameters(plan: Plan) -> list[str]:
    """C parameters of a tile function, in order."""
    names = ["int64_t a", "int64_t b", "int64_t c", "int64_t n"]
    if plan.blocked:
        names += ["int first", "int last"]
    for tap in plan.ranges:
        names += [f"int64_t {tap}_first", f"int64_t {tap}_last"]
    return names + ["int64_t call", "int64_t panel"] * (plan.ahead is not None)


def _prefetch(tile: Tile, reuse: PanelReuse) -> tuple[int, list[c.Generable]]:
    """Lines that a step prefetches, and the C of the distance at which they lie."""
    item = tile.plan.compute.bytes
    lines = -(-tile.step * tile.plan.compute.vnni_factor * item // LINE)
    count, first, end = share_lines(lines, reuse.calls)
    when = ["panel", *[f"call >= {first}"] * (first > 0), *[f"call < {end}"] * (end < reuse.calls)]
    place = f"{item} * panel + {count * LINE} * " + (f"(call - {first})" if first else "call")
    text = f"const int64_t next = {' && '.join(when)} ? {place} : 0"
    return count, [c.remark(PREFETCH), c.Statement(text)]


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
        "a_outer": plan.coef["x"][outer] if outer else 0,
        "a_inner": plan.coef["x"][inner] if inner else 0,
        "c_outer": plan.coef["C"][outer] if outer else 0,
        "c_inner": plan.coef["C"][inner] if inner else 0,
        "c_col": plan.coef["C"][plan.column],
        "diagonal": int(plan.kernel.diagonal),
    }
    shifts = plan.kernel.shifts
    if plan.contraction.swapped:  # rows of a panel of w
        fields |= {"wrap": tile.rows, "a_outer": 0, "a_inner": 1}
    if shifts > 1:
        fields["shifts"] = shifts
    if plan.schedule.stream:
        fields["stream"] = 1
    registers = plan.kernel.tile_registers
    if registers and (words := step_words(tile, registers.words)) < registers.words:
        fields["words"] = words
    constants = ", ".join(f".{key} = {value}" for key, value in fields.items())
    shape: c.Body = [c.Statement(f"static const ps_tile t = {{{constants}}}")]
    if plan.ahead:
        lines, distance = _prefetch(tile, plan.ahead)
        constants += f", .ahead = {lines}, .next = next"
        shape = [*distance, c.Statement(f"const ps_tile t = {{{constants}}}")]
    first, last = ("!first", "last ? &e : 0") if plan.blocked else ("0", "&e")
    steps = _swapped_run(tile) if plan.contraction.swapped else reduction(tile)
    if not steps:  # every tap of this tile lies in the padding
        unused = ["A", "B", *(f"{tap}_{end}" for tap in plan.ranges for end in ("first", "last"))]
        steps = [c.Statement(", ".join(f"(void){name}" for name in unused))]
    body = [
        *shape,
        *map(c.Statement, _operands(plan)),
        c.Statement("const ps_epilogue e = ps_shifted(g, n, c)"),
        c.Statement(f"ps_acc acc[{tile.rows * tile.step // lanes}]"),
        *([c.Statement(registers.configuration(f"g->{registers.state}"))] if registers else []),
        c.Statement(f"ps_begin(acc, t, g->y + c, {first})"),
        c.Statement("ps_ahead(t, e.residual)"),
        *steps,
        *([c.Statement("ps_unshift(acc, t)")] if shifts > 1 else []),
        *([c.Statement("ps_unpair(acc, t)")] if plan.paired else []),
        c.Statement(f"{_ending(plan)}(acc, t, g->y + c, {last})"),
    ]
    head = ", ".join(["const ps_args *restrict g", *parameters(plan)])
    return c.function(f"static PS_KERNEL void {name}({head})", body)
