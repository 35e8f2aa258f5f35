"""Loop IR of groups of work-items: copies of both factors, register tiles, waits between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

import numpy as np

from polysci.errors import UnsupportedError
from polysci.loop_ir import interface
from polysci.loop_ir.index import (
    TRUE,
    Condition,
    Index,
    IndexLike,
    TableEntry,
    Variable,
    Within,
    as_index,
    compare,
    every,
    iterator,
    linear,
)
from polysci.loop_ir.nodes import (
    INTEGER,
    Address,
    AddressOf,
    Alternative,
    Append,
    Barrier,
    Block,
    Buffer,
    Constant,
    Declare,
    Element,
    Fields,
    For,
    If,
    Invoke,
    Let,
    LoopKind,
    LoopModule,
    LoopStatement,
    Member,
    Named,
    Point,
    Return,
    RoutineResult,
    Scope,
    Store,
    Unused,
    Value,
    block,
    loop,
    names_in,
)
from polysci.lower.algorithm import EmitOptions
from polysci.lower.direct.tile_functions import activation_function, activation_headers
from polysci.lower.lowering import LoweredPrimitive
from polysci.lower.mapped.integers import integer_arguments, offsets
from polysci.lower.mapped.legality import check_groups
from polysci.lower.mapped.plan import Lines, MappedPlan
from polysci.lower.mapped.tile import ItemTile, tile_of
from polysci.numerics.affine import Affine
from polysci.numerics.dtypes import F32
from polysci.polyhedral.contraction import Dim
from polysci.target.microkernels import header_set_of

ZERO: Final = Constant(0.0)
NUMBER: Final = "deep"  # of a product along the dimensions of the steps
NARROW: Final = "int32"  # of numbers that it holds: devices divide, add and compare these faster
MOST_NARROW: Final = 1 << 30  # of the elements of x whose places it holds
SHARED: Final = ("rows", "columns")  # what a group holds of A and of B
OF_WORDS: Final = ("ps_rows", "ps_columns")  # the types of their elements where these differ
At = Mapping[str, IndexLike]  # by dimension


def lower_mapped(
    plan: MappedPlan, options: EmitOptions, nest_of: Callable[[MappedPlan], GroupNest]
) -> LoweredPrimitive:
    """Return a contraction by tiles of groups; the interface is every primitive's.

    Raises SpecError or UnsupportedError for options that do not fit, and IllegalScheduleError where
    a barrier lacks.
    """
    interface.check_symbol(options.symbol)
    if options.by_rows or options.adds:
        raise UnsupportedError(f"schedule {plan.schedule}: groups compute whole results")
    plan = replace(plan, strides={**plan.strides, **options.strides})
    precision, nest = plan.precision, nest_of(plan)
    run = nest.run()
    if not plan.of_warps:  # what copies beside the sums write has no one epoch
        check_groups(block(*run))
    bodies: dict[interface.Role, Sequence[LoopStatement]] = {
        "workspace_size": [Return(0)],
        "packed_size": [Return(plan.packed_bytes)],
        "pack_weights": nest.packing(),
        "run": [*run, Return(interface.OK)],
    }
    rows = reversed(interface.functions(precision))
    functions = [row.define(options.symbol, block(*bodies[row.role])) for row in rows]
    return LoweredPrimitive(
        LoopModule(tuple(functions)), options.symbol,
        header_set_of(plan.kernel, precision.x.name, precision.y.name, packed=True), plan.schedule,
        precision, options.team, activation_headers(plan.contraction.activation),
        packed=plan.packed_bytes,
    )  # fmt: skip


def copies_of(plan: MappedPlan) -> int:
    """Return how many copies a step has, of an element or of several at once."""
    nest = GroupNest(plan)
    a, b = plan.depth * plan.rows, plan.depth * plan.columns // plan.word
    return a // nest.vectors + b // nest.vectors_of_b


def places_held(plan: MappedPlan) -> int:
    """Return the places that an item keeps of elements which it copies one by one.

    Those of chunks are few.
    """
    nest = GroupNest(plan)
    return nest.row_share * (1 + len(plan.guarded)) if nest.vectors == 1 else 0


@dataclass(frozen=True, slots=True)
class GroupNest:
    """The statements of a plan: of its groups, and of a work-item, which is number ``at``."""

    plan: MappedPlan

    @property
    def tile(self) -> ItemTile:
        """The part of the group's tile that a work-item computes."""
        return tile_of(self.plan)

    def run(self) -> list[LoopStatement]:
        """Return the launch of all groups."""
        plan = self.plan
        fields = ("packed", "y", "bias", "residual", "clamp")
        args = [("a", Named("x")), *((name, Named(name)) for name in fields)]
        kinds = OF_WORDS if plan.precision.integer else ("ps_shared", "ps_shared")
        lines = [
            Declare(Buffer(name, kind, as_index(extent), Scope.LOCAL))
            for name, kind, extent in zip(SHARED, kinds, plan.shared_elements, strict=True)
            if extent
        ]
        items = For("at", as_index(0), as_index(plan.items), self.item(), kind=LoopKind.ITEMS)
        groups = loop("tile", plan.groups, *self.places_of_tile(), *lines, items)
        return [
            Unused(("workspace",)),
            Let("args", Fields(tuple(args)), "ps_args", const=False),
            *integer_arguments(plan),
            Point(Buffer("g", "ps_args", const=True), AddressOf("args")),
            Point(Buffer("weights", self.kind_of_b, const=True), Named("packed")),
            For(groups.variable, groups.start, groups.end, groups.body, kind=LoopKind.PARALLEL),
        ]

    @property
    def kind_of_b(self) -> str:
        """Return the type of what calls get for weights: one that changes lies as x does."""
        return "ps_x" if self.plan.contraction.packs_b else "ps_b"

    def places_of_tile(self) -> list[LoopStatement]:
        """Return the definitions of where a tile begins: its batch, row and column."""
        plan, tile = self.plan, Variable("tile")
        along_rows, along_columns = plan.blocks
        row, column = tile // along_columns % along_rows, tile % along_columns
        if plan.along_rows:
            row, column = tile % along_rows, tile // along_rows % along_columns
        statements: list[LoopStatement] = [
            Let("column", column * plan.columns),
            Let("row", row * plan.rows),
        ]
        rest = tile // (along_rows * along_columns)
        return [*statements, *_digits(plan.batches, rest)]

    def item(self) -> Block:
        """Return what a work-item does: the sums of its register tile, and their epilogue."""
        plan, own = self.plan, self.tile
        out = plan.contraction.out.offset(plan.strides[plan.contraction.out.array])
        tile = {
            "rows": own.rows, "vecs": own.vectors, "wrap": own.rows, "lanes": own.lanes,
            "c_col": out.coef(plan.column.name),
        }  # fmt: skip
        sums = Buffer("acc", "ps_acc", as_index(own.rows * own.vectors), Scope.REGISTER)
        return block(
            Let("t", Fields(tuple(tile.items())), "ps_tile"),
            *own.origin(),
            Declare(sums),
            Invoke("ps_begin", (Named("acc"), Named("t"), Address(Named("y")), 0)),
            *self.places_of_rows(),
            *self.reduction(),
            *self.ending(out),
        )

    def factor(self, element: Value) -> Value:
        """Return an element of x or w as the group's memory holds it."""
        same = self.plan.precision.x == F32 or self.plan.precision.integer
        return element if same else RoutineResult("ps_b_of", (element,))

    @property
    def zero(self) -> Value:
        """The number that x holds for 0."""
        whole = self.plan.precision.integer
        return Member("g", "x_zero", pointed=True) if whole else ZERO

    # Copies: an item takes every so-many-th element, or vector, of lines of rows and of columns.

    @property
    def offset_of_x(self) -> Affine:
        """The place in x of an iteration."""
        return self.plan.contraction.a.offset(self.plan.strides[self.plan.contraction.a.array])

    @property
    def first_of_x(self) -> int:
        """The element that is read where all dimensions are 0."""
        return self.offset_of_x.const

    @property
    def steps_touch(self) -> bool:
        """Return whether neighbours in x are neighbours along the last dimension of the steps."""
        return self.offset_of_x.coef(self.plan.deep[-1].name) == 1

    @property
    def vectors(self) -> int:
        """Elements of x that are copied at once: a vector, where none leaves a step's dimension."""
        lanes, last = self.plan.at_once, self.plan.deep[-1].name
        whole = self.plan.deep[-1].extent % lanes == 0 and self.plan.depth % lanes == 0
        still = not any(subscript.coef(last) for subscript, _ in self.plan.guarded.values())
        places = (coef for name, coef in self.offset_of_x.terms if name != last)
        aligned = not any(coef % lanes for coef in (*places, self.first_of_x))
        return lanes if self.steps_touch and whole and still and aligned else 1

    @property
    def number(self) -> Index:
        """The number of the item's element, or vector, ``i`` of a step."""
        return Variable("i") * self.plan.items + Variable("at")

    @property
    def row_share(self) -> int:
        """Elements, or vectors, of A that an item copies in a step."""
        plan = self.plan
        return -(-plan.rows * plan.depth // (plan.items * self.vectors))

    def row_element(self) -> list[LoopStatement]:
        """Return the definitions of row and step of the item's element, or vector, ``i`` of A."""
        plan, number = self.plan, self.number
        if not self.steps_touch:
            return self.share(number % plan.rows, number // plan.rows)
        deep = plan.depth // self.vectors
        return self.share(number // deep, number % deep * self.vectors)

    def share(self, own: Index, step: Index) -> list[LoopStatement]:
        """Return the definitions of the line and step that an item copies.

        Items whose copies run beside the sums have few registers left.
        """
        few = self.plan.copies_async and prod(self.plan.contraction.b.shape) <= MOST_NARROW
        kind = NARROW if few else INTEGER
        return [Let("own", own, kind), Let("step", step, kind)]

    def kind_of_place(self, name: str) -> str:
        """Return the type of a row's places in x, or along one of its axes."""
        few = prod(self.plan.contraction.a.shape) <= MOST_NARROW
        return NARROW if few or name != "x_at" else "ps_place"

    def places_of_rows(self) -> list[LoopStatement]:
        """Return the places in x of the item's rows, without what reductions add to them."""
        guarded = {name: subscript for name, (subscript, _) in self.plan.guarded.items()}
        names = {"x_at": self.offset_of_x, **guarded}
        at = self.at((*self.plan.row_dims, *self.plan.batches))
        stores = [
            Store(name, Variable("i"), linear(dict(place.terms), at, place.const))
            for name, place in names.items()
        ]
        rows = _digits(self.plan.row_dims, Variable("row") + Variable("own"))
        extent = as_index(self.row_share)
        return [
            *(
                Declare(Buffer(name, self.kind_of_place(name), extent, Scope.STACK))
                for name in names
            ),
            loop("i", self.row_share, *self.row_element(), *rows, *stores),
        ]

    def copy_rows(self) -> LoopStatement:
        """Return the copy of a step's part of A; what lies outside of x, or of the sum, is 0."""
        plan, i = self.plan, Variable("i")
        at = self.at((*plan.around, *plan.deep))
        conditions = [*self.tail("row", plan.rows, plan.row_count), *self._depth()]
        for name, (subscript, size) in self.plan.guarded.items():
            conditions.append(Within(place_at(name, i) + linear(dict(subscript.terms), at), size))
        place = place_at("x_at", i) + linear(dict(self.offset_of_x.terms), at)
        real, lines = every(conditions), plan.lines_of_a
        own, step = Variable("own"), Variable("step")
        to = self.place_in(lines, *((own, step) if plan.of_warps else (step, own)))
        if self.vectors == 1:
            element = self.factor(Element("x", place))
            copy: LoopStatement = Store("rows", to, _if(real, element, self.zero))
        elif plan.word > 1:
            own_word = Address(Named("rows"), to), Address(Named("x"), place), real, self.zero
            copy = Invoke("ps_copy_word", own_word)
        elif plan.of_warps:
            filled = bool(plan.guarded) and plan.precision.integer
            places = Address(Named("rows"), to), Address(Named("x"), place)
            copy = self._copy_chunk(*places, real, filled=filled)
        else:
            operands = Address(Named("rows"), to), lines.length, Address(Named("x"), place), real
            copy = Invoke("ps_copy_across", operands)
        return self._copy(plan.rows * plan.depth // self.vectors, self.row_element(), copy)

    @property
    def vectors_of_b(self) -> int:
        """Columns of B that are copied at once: a vector of packed weights, of others a chunk."""
        plan = self.plan
        if not plan.contraction.packs_b:
            return plan.at_once
        column, offset = plan.column, self._weight()
        others = [coef for name, coef in offset.terms if name != column.name]
        aligned = not any(part % plan.at_once for part in (*others, offset.const, column.extent))
        whole = plan.of_warps and offset.coef(column.name) == 1 and aligned
        return plan.at_once if whole else 1

    def copy_columns(self) -> LoopStatement:
        """Return the copy of a step's part of B."""
        plan, number, vectors = self.plan, self.number, self.vectors_of_b
        wide, offset = plan.columns // vectors, self._weight()
        own = self.share(number % wide * vectors, number // wide * plan.word)
        if plan.by_columns:
            deep = plan.depth // vectors
            own = self.share(number // deep, number % deep * vectors)
        elif vectors == 1 and offset.coef(plan.column.name) != 1:
            own = self.share(number // plan.depth, number % plan.depth)
        column = Variable("column") + Variable("own")
        at = {**self.at((*plan.batches, *plan.around, *plan.deep)), plan.column.name: column}
        place = linear(dict(offset.terms), at, offset.const)
        real: Condition = TRUE
        if plan.contraction.packs_b:
            tail = self.tail("column", plan.columns, plan.column.extent)
            real = every([*tail, *self._depth()])
        else:
            place = self._place_of_weights(column)
        line = (Variable("step"), Variable("own"))
        to = self.place_in(plan.lines_of_b, *(reversed(line) if plan.by_columns else line))
        places = Address(Named("columns"), to), Address(Named("weights"), place)
        if vectors == 1:
            element: Value = Element("weights", place)
            element = self.factor(element) if plan.contraction.packs_b else element
            copy: LoopStatement = Store("columns", to, _if(real, element))
        elif plan.of_warps:
            copy = self._copy_chunk(*places, real)
        else:
            copy = Invoke("ps_copy_words" if plan.word > 1 else "ps_copy_along", places)
        return self._copy(plan.columns * plan.depth // (vectors * plan.word), own, copy)

    def _copy(self, count: int, own: Sequence[LoopStatement], copy: LoopStatement) -> LoopStatement:
        """Return an item's share of ``count`` copies, whose places ``own`` defines."""
        plan, share = self.plan, -(-count // self.plan.items)
        names = names_in(copy)
        deep = [let for let in self._deep() if let.name in names]
        if NUMBER in names_in(tuple(deep)):
            deep.insert(0, Let(NUMBER, Variable("k") + Variable("step"), NARROW))
        copies: list[LoopStatement] = [*own, *deep, copy]
        if share * plan.items != count:
            copies = [If(compare(self.number, "<", count), block(*copies))]
        return loop("i", share, *copies)

    def _deep(self) -> list[Let]:
        """Return the definitions of the dimensions of the steps, for an element of a step."""
        return _digits(self.plan.deep, Variable(NUMBER), NARROW)

    def _copy_chunk(
        self, to: Address, source: Address, real: Condition, *, filled: bool = False
    ) -> Invoke:
        """Return the copy of a chunk; where it is not real of zeros, or of what x holds for 0."""
        name = "ps_copy_async" if self.plan.copies_async else "ps_copy_chunk"
        if filled:
            return Invoke(f"{name}_filled", (to, source, real, self.zero))
        return Invoke(name, (to, source, real))

    def place_in(self, lines: Lines, line: Index, at: Index) -> Index:
        """Return the place of an item's element in the lines of A or B."""
        return self._turn * lines.size + lines.place(line, at)

    @property
    def _turn(self) -> Index:
        """The stage of the group's memory that a step copies to."""
        return Variable("turn") if self.plan.stages > 1 else as_index(0)

    def _stage(self, after: int) -> Index:
        """Return the stage of the group's memory of a step so many ones later."""
        stages = self.plan.stages
        return (self._step_number() + after) % stages if stages > 1 else as_index(0)

    def tail(self, start: str, size: int, count: int) -> list[Condition]:
        """Return the condition that a line of a tile exists, where tiles reach beyond ``count``."""
        if count % size == 0:
            return []
        return [compare(Variable(start) + Variable("own"), "<", count)]

    def _depth(self) -> list[Condition]:
        """Return the condition that an element of a step belongs to the sum."""
        plan = self.plan
        if plan.deep_extent % plan.depth == 0:
            return []
        return [compare(Variable("k") + Variable("step"), "<", plan.deep_extent)]

    def _weight(self) -> Affine:
        """Return the place in w of an iteration."""
        w = self.plan.contraction.w
        return w.offset(self.plan.strides[w.array])

    def _line_of_weights(self, line: Index) -> Index:
        """Return the line of packed weights of a step, which is ``line`` of its own ones."""
        for dim in reversed((*self.plan.batches, *self.plan.around)):
            line = line + iterator(dim.name) * self.lines_of(dim)
        return line

    def _place_of_weights(self, column: Index) -> Index:
        """Return the place in packed weights of a column's element of a step."""
        plan, step = self.plan, Variable("k") + Variable("step")
        if plan.by_columns:
            first = self._line_of_weights(as_index(0)) * plan.padded_columns
            return first + column * plan.padded_deep + step
        return self._line_of_weights(step) * plan.padded_columns + column * plan.word

    def lines_of(self, dim: Dim) -> int:
        """Return the lines of packed weights from one step of a dimension to the next."""
        plan, count = self.plan, self.plan.padded_deep
        for other in reversed((*plan.batches, *plan.around)):
            if other == dim:
                break
            count *= other.extent
        return count

    def at(self, dims: Sequence[Dim]) -> At:
        return {dim.name: iterator(dim.name) for dim in dims}

    # Sums.

    def reduction(self) -> list[LoopStatement]:
        """Return all steps: loops over the other reductions, and those along the deep one.

        A step begins with a barrier: items have made the sums of the step before. With several
        stages the sums of a step follow the copies of later ones. PoCL compiles no barrier that
        follows a loop of two turns with which the body of a loop begins, for groups of two items.
        """
        plan, ahead = self.plan, self.plan.stages - 1
        copies = [self.copy_rows(), self.copy_columns()]
        if plan.copies_async:
            copies.append(Invoke("ps_commit", ()))
        if not ahead:
            sums = self.tile.sums(as_index(0))
            return [self._steps([Barrier(), *copies, *self._wait(0), sums])]
        total = prod(dim.extent for dim in plan.around) * plan.steps
        behind = min(ahead, total)  # steps whose sums follow the last copies
        begun = compare(self._step_number(), ">=", ahead)
        last = (Variable("i") + (total - behind)) % plan.stages
        return [
            self._steps([
                *self._wait(ahead - 1), Let("turn", self._stage(0)), *copies,
                If(begun, block(self.tile.sums(self._stage(1)))),
            ]),
            *self._wait(0),
            loop("i", behind, self.tile.sums(last)),
        ]  # fmt: skip

    def _wait(self, pending: int) -> list[LoopStatement]:
        """Return the wait for all copies but those of the last steps, and for the other items."""
        wait = [Invoke("ps_await", (pending,))] if self.plan.copies_async else []
        return [*wait, Barrier()]

    def _steps(self, body: Sequence[LoopStatement]) -> LoopStatement:
        """Return the loops over all steps."""
        nest: LoopStatement = loop("k", self.plan.padded_deep, *body, step=self.plan.depth)
        for dim in reversed(self.plan.around):
            nest = loop(iterator(dim.name).name, dim.extent, nest)
        return nest

    def _step_number(self) -> Index:
        plan, number = self.plan, as_index(0)
        for dim in plan.around:
            number = number * dim.extent + iterator(dim.name)
        return number * plan.steps + Variable("k") // plan.depth

    def ending(self, out: Affine) -> list[LoopStatement]:
        """Return the epilogue of the sums and their stores."""
        plan, tile = self.plan, self.tile
        own_row, own_column = tile.first()
        first, column = Variable("row") + own_row, Variable("column") + own_column
        rows = (self.rows_from(first) + (tile.rows_apart - 1)) // tile.rows_apart
        at = {**self.at((*plan.row_dims, *plan.batches)), plan.column.name: column}
        own, (end, y) = first + Variable("i") * tile.rows_apart, self.result
        operands = (
            Named("acc"), Named("t"), Named("y_at"), rows, plan.column.extent - column,
            tile.vectors_apart, y, AddressOf("e"),
        )  # fmt: skip
        return [
            Declare(Buffer("y_at", "ps_place", as_index(tile.rows), Scope.STACK)),
            loop("i", tile.rows, *self.place_in_y(own, out, at)),
            Let("e", self.epilogue(at), "ps_epilogue"),
            Invoke(end, operands),
        ]

    @property
    def result(self) -> tuple[str, Address]:
        """The routine that ends sums, and where it stores them."""
        return "ps_end_lines", Address(Named("y"))

    def rows_from(self, first: Index) -> Index:
        """Return how many rows there are from one on."""
        return self.plan.row_count - first

    def place_in_y(self, row: Index, out: Affine, at: At) -> list[LoopStatement]:
        """Return the definition of the place of row ``i`` of an item, which is ``row`` of all."""
        place = linear(dict(out.terms), at, out.const)
        return [*_digits(self.plan.row_dims, row), Store("y_at", Variable("i"), place)]

    def epilogue(self, at: At) -> Value:
        """Return what is done to sums: factors, bias, residual, and the function behind them."""
        contraction, channel = self.plan.contraction, self.plan.channels_of_bias
        n = linear(dict(channel.terms), at, channel.const)
        value: Value = RoutineResult("ps_shifted", (Named("g"), as_index(n), 0))
        if self.plan.precision.integer and (apart := self.plan.offsets_apart):
            value = RoutineResult("ps_in_batch", (value, as_index(linear(apart, at))))
        factors = (contraction.alpha, contraction.beta)
        if factors != (1, 1):
            numbers = (Constant(float(np.float32(factor))) for factor in factors)
            value = RoutineResult("ps_times", (value, *numbers))
        if activation := activation_function(contraction.activation):
            value = RoutineResult("ps_then", (value, Named(activation)))
        return value

    # Weights.

    def packing(self) -> list[LoopStatement]:
        """Return the packing of weights: columns side by side, in whole tiles, zeros behind them.

        A B that changes with every call is taken as it lies.
        """
        plan, w = self.plan, self.plan.contraction.w
        to = Point(Buffer("to", self.kind_of_b, restrict=True), Named("packed"))
        if plan.contraction.packs_b:
            i = Variable("i")
            return [to, loop("i", prod(w.shape), Store("to", i, Element("w", i)))]
        offset, k = w.offset(plan.strides[w.array]), Variable("k")
        at = self.at((*plan.batches, *plan.around, *plan.deep, plan.column))
        element = self.factor(Element("w", linear(dict(offset.terms), at, offset.const)))
        real = compare(iterator(plan.column.name), "<", plan.column.extent)
        if plan.padded_deep > plan.deep_extent:
            real = every([real, compare(k, "<", plan.deep_extent)])
        copy = Append("to", _if(real, element))
        columns, digits = iterator(plan.column.name).name, _digits(plan.deep, k)
        body: LoopStatement = loop(columns, plan.padded_columns, copy)
        if plan.by_columns:
            body = loop(columns, plan.padded_columns, loop("k", plan.padded_deep, *digits, copy))
        elif plan.word == 1:
            body = loop("k", plan.padded_deep, *digits, body)
        else:
            first = Variable("first")
            word = loop("k", first + plan.word, *digits, copy, start=first)
            body = loop(columns, plan.padded_columns, word)
            body = loop("first", plan.padded_deep, body, step=plan.word)
        for dim in reversed((*plan.batches, *plan.around)):
            body = loop(iterator(dim.name).name, dim.extent, body)
        return [to, body, *offsets(plan)]


def _digits(dims: Sequence[Dim], number: Index, kind: str = INTEGER) -> list[Let]:
    """Return the definitions of dimensions whose mixed-radix digits make a number."""
    below, digits = prod(dim.extent for dim in dims), list[Let]()
    for at, dim in enumerate(dims):
        below //= dim.extent
        digit = number // below
        digits.append(Let(iterator(dim.name).name, digit % dim.extent if at else digit, kind))
    return digits


def place_at(name: str, at: Index) -> Index:
    """Return an element of an item's own places as an integer."""
    return TableEntry(name, (at,))


def _if(condition: Condition, value: Value, zero: Value = ZERO) -> Value:
    """Return a value where a condition holds, and 0 where not."""
    return value if condition == TRUE else Alternative(condition, value, zero)
