"""A layer that a group computes some rows at a time, out of what it holds and to where it stays.

The kernel of a row fusion has a group for each block of rows of its last member. The rows of a
member lie one behind the other in memory, as those of the whole tensor do; the group's tiles go
over them, one after the other, and its items read the factors of their sums themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import (
    Condition,
    Index,
    Variable,
    Within,
    as_index,
    choose,
    iterator,
    least,
    linear,
)
from polysci.loop_ir.nodes import (
    Address,
    AddressOf,
    Buffer,
    Declare,
    Fields,
    Invoke,
    Let,
    LoopStatement,
    Member,
    Named,
    Point,
    Scope,
    Store,
    loop,
)
from polysci.lower.mapped.integers import integer_arguments
from polysci.lower.mapped.nest import NARROW, At, GroupNest, place_at
from polysci.lower.mapped.plan import (
    MappedPlan,
    form_of,
    kernel_family,
    kernels_of,
    leaves,
    longest_step,
    read_dim,
    refusal,
    resolve,
)
from polysci.lower.mapped.reading import NOWHERE, ReadingNest
from polysci.numerics.affine import Affine
from polysci.numerics.dtypes import DTYPES
from polysci.polyhedral.contraction import Contraction, Strides, columns_of
from polysci.program.passes.held_rows import HeldRows
from polysci.program.passes.operands import Images
from polysci.space.schedule import Schedule
from polysci.target.microkernels import Microkernel

ITEMS: Final = 128  # of a group that computes several members
MOST_SUMS: Final = 64  # of an item: registers remain for what finds its places
SIDES: Final = (1, 2, 4, 8, 16, 32, 64, 128)  # items along the columns of a tile
DEPTHS: Final = (8, 4, 1)
BLOCK: Final = Variable("block")  # the number of a group
LINE: Final = Variable("line")  # an item's row among those that its group makes


def start_of(rows: HeldRows) -> Index:
    """Return the first row that a group makes."""
    return BLOCK * rows.step + rows.first


def digits(extents: Sequence[tuple[str, int]], number: Index) -> dict[str, Index]:
    """Return the mixed-radix digits of a number by name; the first one may be any."""
    below, every = prod(extent for _, extent in extents), dict[str, Index]()
    for at, (name, extent) in enumerate(extents):
        below //= extent
        digit = number // below
        every[name] = digit % extent if at else digit
    return every


def refuse_held(contraction: Contraction, isa: str) -> str:
    """Return why groups of an instruction set do not hold rows of a contraction; or nothing."""
    if why := refusal(contraction):
        return why
    x = contraction.a.dtype
    if not kernels_of(isa, x, (kernel_family(contraction),)):
        return f"{isa} has no tiles of groups for it"
    if DTYPES[x].integer and leaves(contraction, read_dim(contraction)):
        return f"a word of {x} has four steps, and its rows leave x from one step to the next"
    return ""


def held_schedule(contraction: Contraction, strides: Strides, isa: str, rows: int) -> Schedule:
    """Return the schedule by which a group computes ``rows`` rows of a product, and all columns.

    It takes the fewest instructions. Raises UnsupportedError where there is none.
    """
    if why := refuse_held(contraction, isa):
        raise UnsupportedError(why)
    ways = (
        (instructions(kernel, count_tiles(contraction, size, rows)), size, kernel)
        for kernel, size in _tiles(contraction, isa)
    )
    _, size, kernel = min(ways, key=lambda way: way[:2])
    dims = read_dim(contraction)
    most = 1 if leaves(contraction, dims) else longest_step(kernel, dims)
    depth = next(depth for depth in DEPTHS if depth <= most)
    schedule = form_of(contraction, kernel, *size, depth, None)
    return resolve(contraction, strides, schedule).schedule


def _tiles(contraction: Contraction, isa: str) -> Iterator[tuple[Microkernel, tuple[int, int]]]:
    """Yield the kernels, and rows and columns of the tiles that ITEMS items compute by them."""
    for kernel in kernels_of(isa, contraction.a.dtype, (kernel_family(contraction),)):
        if kernel.rows * kernel.cols <= MOST_SUMS:
            for side in SIDES:
                yield kernel, (ITEMS // side * kernel.rows, side * kernel.cols)


def instructions(kernel: Microkernel, tiles: int) -> float:
    """Return the instructions of a product of so many tiles: sums, and reads of factors."""
    return tiles * (kernel.rows * kernel.cols + kernel.rows / 2 + 2 * kernel.vecs)


def count_tiles(contraction: Contraction, size: tuple[int, int], rows: int) -> int:
    """Return the tiles that a group computes one after the other, for so many rows."""
    column, (tall, wide) = columns_of(contraction), size
    batches = prod(dim.extent for dim in contraction.by_role("batch") if dim != column)
    return -(-rows // tall) * -(-column.extent // wide) * batches


def tiles_of(plan: MappedPlan, rows: int) -> int:
    """Return the same of a plan."""
    return count_tiles(plan.contraction, (plan.rows, plan.columns), rows)


@dataclass(frozen=True, slots=True)
class Residual:
    """A residual of a layer; ``held``: its rows in a group, None where it lies in the tensor."""

    held: HeldRows | None


@dataclass(frozen=True, slots=True)
class HeldNest(ReadingNest):
    """The statements of a plan for the rows of a block; ``row`` is the dimension of rows.

    ``source``: the rows of x that the group holds; None where x is read from the tensor. With
    ``images`` rows are those of all images.
    """

    row: str
    made: HeldRows
    source: HeldRows | None
    residual: Residual | None = None
    images: Images | None = None

    @property
    def lines(self) -> list[tuple[str, int]]:
        """The dimensions of the product's rows and their extents, that of rows first."""
        outer = (self.row, self.images.dim if self.images else "")
        inner = [(dim.name, dim.extent) for dim in self.plan.row_dims if dim.name not in outer]
        return [(self.row, self.made.count), *inner]

    @property
    def count(self) -> int:
        """Rows of the product that a group computes."""
        return prod(extent for _, extent in self.lines)

    def statements(self) -> list[LoopStatement]:
        """Return what an item does, for all tiles of its group."""
        fields = ("packed", "y", "bias", "residual", "clamp")
        args = [("a", Named("x")), *((name, Named(name)) for name in fields)]
        return [
            Let("args", Fields(tuple(args)), "ps_args", const=False),
            *integer_arguments(self.plan),
            Point(Buffer("g", "ps_args", const=True), AddressOf("args")),
            Point(Buffer("weights", "ps_b", const=True), Member("g", "packed", pointed=True)),
            loop("tile", tiles_of(self.plan, self.count), *self.places_of_tile(), self.item()),
        ]

    def places_of_tile(self) -> list[LoopStatement]:
        """Return the definitions of where a tile begins: its batch, row and column."""
        plan = self.plan
        sizes = [("row", -(-self.count // plan.rows)), ("column", plan.blocks[1])]
        batches = [(dim.name, dim.extent) for dim in plan.batches]
        at = digits([*batches, *sizes], Variable("tile"))
        return [
            *(Let(iterator(name).name, at[name]) for name, _ in batches),
            Let("row", at["row"] * plan.rows),
            Let("column", at["column"] * plan.columns),
        ]

    def row_of(self, number: Index) -> list[LoopStatement]:
        """Return the definitions of the dimensions of a row of the product."""
        at = digits(self.lines, number)
        line = Let(LINE.name, at.pop(self.row))
        return [line, *(Let(iterator(name).name, digit) for name, digit in at.items())]

    def at_row(self, *, held: bool) -> At:
        """Return the dimensions of a row: in the whole tensor, or among those that are held.

        Held rows of images run on from one to the next.
        """
        at = self.at((*self.plan.row_dims, *self.plan.batches))
        row = LINE if held else start_of(self.made) + LINE
        if self.images is None:
            return {**at, self.row: row}
        dim, height = self.images.dim, self.images.height
        if held:
            return {**at, self.row: row, dim: as_index(0)}
        if self.made.step % height:
            return {**at, self.row: row % height, dim: row // height}
        own, images = LINE + self.made.first, self.made.step // height  # no block begins within one
        return {**at, self.row: own % height, dim: BLOCK * images + own // height}

    @property
    def first_of_x(self) -> int:
        """That of the memory of the group, if x lies there."""
        x, source = self.offset_of_x, self.source
        if source is None or source.place is None:
            return x.const
        apart = x.coef(self.row) * self.made.first - source.size * source.first
        return x.const + apart + source.place

    def places_of_rows(self) -> list[LoopStatement]:
        """Return the places in x of the item's rows, and on its axes where they may leave it."""
        i, at = Variable("i"), self.at_row(held=False)
        places = {name: linear(dict(axis.terms), at, axis.const)
                  for name, (axis, _) in self.plan.guarded.items()}  # fmt: skip
        if not self.made.inside:
            places["line_at"] = start_of(self.made) + LINE
        own = self.at_row(held=self.source is not None)
        places["x_at"] = linear(dict(self.offset_of_x.terms), own, self.first_of_x)
        extent = as_index(self.row_share)
        return [
            *(Declare(Buffer(name, self.kind_of_place(name), extent, Scope.STACK))
              for name in places),
            loop("i", self.row_share, *self.row_element(),
                 *self.row_of(Variable("row") + Variable("own")),
                 *(Store(name, i, place) for name, place in places.items())),
        ]  # fmt: skip

    def kind_of_place(self, name: str) -> str:
        return "ps_place" if name == "x_at" else NARROW

    def tail(self, start: str, size: int, count: int) -> list[Condition]:
        """Return the condition that a line of a tile exists."""
        return GroupNest.tail(self, start, size, self.count if start == "row" else count)

    def _conditions(self) -> list[Condition]:
        real = Within(place_at("line_at", Variable("i")), self.made.extent)
        return [*ReadingNest._conditions(self), *([] if self.made.inside else [real])]

    def _products(self, depth: int) -> Invoke:
        call = ReadingNest._products(self, depth)
        if self.source is None:
            return call
        acc, tile, x, *others = call.operands
        assert isinstance(x, Address)
        held = call.function.replace("read", "held")
        return Invoke(held, (acc, tile, Address(Named(self.source.memory), x.at), *others))

    @property
    def result(self) -> tuple[str, Address]:
        """The routine that ends sums, and where it stores them."""
        if self.made.place is None:
            return "ps_end_lines", Address(Named("y"))
        return "ps_keep_lines", Address(Named(self.made.memory), as_index(self.made.place))

    def rows_from(self, first: Index) -> Index:
        """Return how many rows of the block there are from one on."""
        made, inner = self.made, self.count // self.made.count
        if made.inside or made.place is not None:
            return self.count - first
        return least(self.count, (made.extent - start_of(made)) * inner) - first

    def ending(self, out: Affine) -> list[LoopStatement]:
        """Return the epilogue of the sums and their stores; a residual may lie otherwise than y."""
        ending = GroupNest.ending(self, out)
        residual = self.residual
        if residual is None or (residual.held is None and self.made.place is None):
            return ending
        *before, end = ending
        assert isinstance(end, Invoke)
        acc, tile, _, rows, columns, apart, _, epilogue = end.operands
        own_row, own_column = self.tile.first()
        own = Variable("row") + own_row + Variable("i") * self.tile.rows_apart
        add, where, place = "ps_add_lines", Address(Named("residual")), out
        if residual.held is not None:
            add, where = "ps_add_held", Address(Named(residual.held.memory))
            place = replace(out, const=self.place_in_residual(out, residual.held))
        at = {**self.at_row(held=residual.held is not None)}
        at[self.plan.column.name] = Variable("column") + own_column
        first: Index = linear(dict(place.terms), at, place.const)
        if residual.held is None and not self.made.inside:
            real = Within(start_of(self.made) + LINE, self.made.extent)
            first = choose(real, first, NOWHERE)
        at_residual = Store("r_at", Variable("i"), first)
        return [
            *before,
            Declare(Buffer("r_at", "ps_place", as_index(self.tile.rows), Scope.STACK)),
            loop("i", self.tile.rows, *self.row_of(own), at_residual),
            Invoke(add, (acc, tile, Named("r_at"), rows, columns, apart, where, epilogue)),
            Invoke(end.function.replace("lines", "rest"), end.operands),
        ]

    def place_in_residual(self, out: Affine, held: HeldRows) -> int:
        """The element of the memory of the group that is added where all dimensions are 0."""
        assert held.place is not None
        return out.const + out.coef(self.row) * (self.made.first - held.first) + held.place

    def place_in_y(self, row: Index, out: Affine, at: At) -> list[LoopStatement]:
        """Return the definition of the place of row ``i`` of an item."""
        own = {**at, **self.at_row(held=self.made.place is not None)}
        place = linear(dict(out.terms), own, out.const)
        return [*self.row_of(row), Store("y_at", Variable("i"), place)]
