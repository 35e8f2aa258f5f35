"""Loop IR of groups of work-items: copies of both factors, register tiles, waits between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    as_index,
    compare,
    every,
    inside,
    iterator,
    linear,
)
from polysci.loop_ir.nodes import (
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
)
from polysci.lower.algorithm import EmitOptions
from polysci.lower.direct.tile_functions import activation_function, activation_headers
from polysci.lower.lowering import LoweredPrimitive
from polysci.lower.mapped.plan import MappedPlan
from polysci.numerics.affine import Affine
from polysci.numerics.dtypes import PRECISIONS
from polysci.polyhedral.contraction import Dim
from polysci.target.microkernels import header_set_of

ZERO: Final = Constant(0.0)
At = Mapping[str, IndexLike]  # by dimension


def lower_mapped(plan: MappedPlan, options: EmitOptions) -> LoweredPrimitive:
    """Return a contraction by tiles of groups; the interface is every primitive's.

    Raises SpecError or UnsupportedError for options that do not fit.
    """
    interface.check_symbol(options.symbol)
    if options.by_rows or options.adds:
        raise UnsupportedError(f"schedule {plan.schedule}: groups compute whole results")
    precision, nest = PRECISIONS["f32"], _GroupNest(plan)
    bodies: dict[interface.Role, Sequence[LoopStatement]] = {
        "workspace_size": [Return(0)],
        "packed_size": [Return(4 * plan.packed_elements)],
        "pack_weights": nest.packing(),
        "run": [*nest.run(), Return(interface.OK)],
    }
    rows = reversed(interface.functions(precision))
    functions = [row.define(options.symbol, block(*bodies[row.role])) for row in rows]
    return LoweredPrimitive(
        LoopModule(tuple(functions)), options.symbol,
        header_set_of(plan.kernel, "f32", "f32", packed=True), plan.schedule, precision,
        options.team, activation_headers(plan.contraction.activation),
        packed=4 * plan.packed_elements,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _GroupNest:
    """The statements of a plan: of its groups, and of a work-item, which is number ``at``."""

    plan: MappedPlan

    def run(self) -> list[LoopStatement]:
        """Return the launch of all groups."""
        plan = self.plan
        fields = ("packed", "y", "bias", "residual", "clamp")
        args = [("a", Named("x")), *((name, Named(name)) for name in fields)]
        lines = [
            Declare(Buffer(name, "ps_shared", as_index(extent), Scope.LOCAL))
            for name, extent in zip(("rows", "columns"), plan.shared_elements, strict=True)
        ]
        items = For("at", as_index(0), as_index(plan.items), self.item(), kind=LoopKind.ITEMS)
        groups = loop("tile", plan.groups, *self.places_of_tile(), *lines, items)
        return [
            Unused(("workspace",)),
            Let("args", Fields(tuple(args)), "ps_args", const=False),
            Point(Buffer("g", "ps_args", const=True), AddressOf("args")),
            For(groups.variable, groups.start, groups.end, groups.body, kind=LoopKind.PARALLEL),
        ]

    def places_of_tile(self) -> list[LoopStatement]:
        """Return the definitions of where a tile begins: its batch, row and column."""
        plan, tile = self.plan, Variable("tile")
        along_rows, along_columns = plan.blocks
        statements: list[LoopStatement] = [
            Let("column", tile % along_columns * plan.columns),
            Let("row", tile // along_columns % along_rows * plan.rows),
        ]
        rest = tile // (along_rows * along_columns)
        return [*statements, *_digits(plan.batches, rest)]

    def item(self) -> Block:
        """Return what a work-item does: the sums of its register tile, and their epilogue."""
        plan, kernel = self.plan, self.plan.kernel
        lanes, tall = kernel.lanes, plan.item_columns
        out = plan.contraction.out.offset(plan.strides[plan.contraction.out.array])
        tile = {
            "rows": kernel.rows, "vecs": kernel.vecs, "wrap": kernel.rows, "lanes": lanes,
            "c_col": out.coef(plan.column.name),
        }  # fmt: skip
        sums = Buffer("acc", "ps_acc", as_index(kernel.rows * kernel.vecs), Scope.REGISTER)
        return block(
            Let("t", Fields(tuple(tile.items())), "ps_tile"),
            Let("own_row", Variable("at") // tall * kernel.rows),
            Let("own_column", Variable("at") % tall * lanes),
            Declare(sums),
            Invoke("ps_begin", (Named("acc"), Named("t"), Address(Named("y")), 0)),
            *self.places_of_rows(),
            *self.reduction(),
            *self.ending(out),
        )

    # Copies.

    @property
    def guarded(self) -> dict[str, Affine]:
        """The subscripts of x that leave its axes, by the names of their places."""
        a, extents = self.plan.contraction.a, self.plan.contraction.extents
        return {
            f"x_axis{axis}": subscript
            for axis, (subscript, size) in enumerate(zip(a.index, a.shape, strict=True))
            if subscript.reach(extents)[0] < 0 or subscript.reach(extents)[1] >= size
        }

    @property
    def own_rows(self) -> int:
        """Elements of A that a work-item copies in a step."""
        return -(-self.plan.rows * self.plan.depth // self.plan.items)

    def row_element(self) -> list[LoopStatement]:
        """Return the definitions of the row and the step of the item's element ``i`` of A."""
        plan, element = self.plan, Variable("i") * self.plan.items + Variable("at")
        touch = self.offset_of_x.coef(plan.deep.name) == 1
        size = plan.depth if touch else plan.rows  # neighbouring items read neighbours
        first, second = element % size, element // size
        own, step = (second, first) if touch else (first, second)
        return [Let("own", own), Let("step", step)]

    @property
    def offset_of_x(self) -> Affine:
        """The place in x of an iteration."""
        return self.plan.contraction.a.offset(self.plan.strides[self.plan.contraction.a.array])

    def places_of_rows(self) -> list[LoopStatement]:
        """Return the places in x of the item's rows, without what reductions add to them."""
        names = {"x_at": self.offset_of_x, **self.guarded}
        rows = [*_digits(self.plan.row_dims, Variable("row") + Variable("own"))]
        at = self._at((*self.plan.row_dims, *self.plan.batches))
        stores = [
            Store(name, Variable("i"), linear(dict(place.terms), at, place.const))
            for name, place in names.items()
        ]
        extent = as_index(self.own_rows)
        return [
            *(Declare(Buffer(name, "ps_place", extent, Scope.STACK)) for name in names),
            loop("i", self.own_rows, *self.row_element(), *rows, *stores),
        ]

    def copy_rows(self) -> LoopStatement:
        """Return the copy of a step's part of A; what lies outside of x, or of the sum, is 0."""
        plan, i = self.plan, Variable("i")
        deep = iterator(plan.deep.name) + Variable("step")
        at = {**self._at(plan.around), plan.deep.name: deep}
        conditions = [*self._tails("own", plan.rows, plan.row_count, "row"), *self._depth(deep)]
        axes = zip(plan.contraction.a.index, plan.contraction.a.shape, strict=True)
        sizes = {f"x_axis{axis}": size for axis, (_, size) in enumerate(axes)}
        for name, subscript in self.guarded.items():
            place = _place(name, i) + linear(dict(subscript.terms), at)
            conditions += inside(place, sizes[name])
        place = _place("x_at", i) + linear(dict(self.offset_of_x.terms), at)
        value = _if(every(conditions), Element("x", place))
        return self._copy("rows", plan.rows, self.own_rows, self.row_element(), value)

    def copy_columns(self) -> LoopStatement:
        """Return the copy of a step's part of B."""
        plan = self.plan
        element = Variable("i") * plan.items + Variable("at")
        strides = self.strides_of_b
        touch = strides[plan.column.name] != 1 and strides[plan.deep.name] == 1
        size = plan.depth if touch else plan.columns
        first, second = element % size, element // size
        own, step = (second, first) if touch else (first, second)
        deep, column = iterator(plan.deep.name) + Variable("step"), Variable("column")
        at = {
            **self._at((*plan.batches, *plan.around)), plan.deep.name: deep,
            plan.column.name: column + Variable("own"),
        }  # fmt: skip
        count = plan.column.extent if plan.contraction.packs_b else plan.padded_columns
        conditions = [*self._tails("own", plan.columns, count, "column"), *self._depth(deep)]
        value = _if(every(conditions), Element("packed", linear(strides, at)))
        own_columns = -(-plan.columns * plan.depth // plan.items)
        head = [Let("own", own), Let("step", step)]
        return self._copy("columns", plan.columns, own_columns, head, value)

    def _copy(
        self, to: str, size: int, count: int, head: Sequence[LoopStatement], value: Value
    ) -> LoopStatement:
        """Return an item's share of a copy: ``count`` elements, of lines of ``size``."""
        plan = self.plan
        line = size + plan.copy.pad
        at = Variable("turn") * (plan.depth * line) if plan.copy.stages > 1 else as_index(0)
        store: LoopStatement = Store(to, at + Variable("step") * line + Variable("own"), value)
        if count * plan.items != size * plan.depth:
            element = Variable("i") * plan.items + Variable("at")
            store = If(compare(element, "<", size * plan.depth), block(store))
        return loop("i", count, *head, store)

    def _tails(self, own: str, size: int, count: int, start: str) -> list[Condition]:
        """Return the condition that a line of a tile exists, where tiles reach beyond ``count``."""
        if count % size == 0:
            return []
        return [compare(Variable(start) + Variable(own), "<", count)]

    def _depth(self, deep: Index) -> list[Condition]:
        """Return the condition that an element of a step belongs to the sum."""
        plan = self.plan
        whole = plan.deep.extent % plan.depth == 0
        return [] if whole else [compare(deep, "<", plan.deep.extent)]

    def _at(self, dims: Sequence[Dim]) -> At:
        return {dim.name: iterator(dim.name) for dim in dims}

    @property
    def strides_of_b(self) -> dict[str, int]:
        """The distances in packed weights along each dimension, in elements."""
        plan = self.plan
        if plan.contraction.packs_b:
            w = plan.contraction.w
            offset = w.offset(plan.strides[w.array])
            return {dim.name: offset.coef(dim.name) for dim in plan.contraction.dims}
        strides, size = {plan.column.name: 1}, plan.padded_columns
        for dim in reversed((*plan.batches, *plan.around, plan.deep)):
            strides[dim.name] = size
            size *= dim.extent
        return strides

    # Sums.

    def reduction(self) -> list[LoopStatement]:
        """Return all steps: loops over the other reductions, and those along the deep one."""
        plan, kernel = self.plan, self.plan.kernel
        lines = [size + plan.copy.pad for size in (plan.rows, plan.columns)]
        turn = Variable("turn") * plan.depth if plan.copy.stages > 1 else as_index(0)
        factors = [
            Address(Named(name), turn * line + Variable(own))
            for name, line, own in zip(
                ("rows", "columns"), lines, ("own_row", "own_column"), strict=True
            )
        ]
        apart = plan.item_columns * kernel.lanes
        operands: list[Value] = [Named("acc"), Named("t"), *factors, plan.depth, *lines, apart]
        body: list[LoopStatement] = [
            self.copy_rows(),
            self.copy_columns(),
            Barrier(),
            Invoke("ps_run_lines", tuple(operands)),
        ]
        if plan.copy.stages > 1:
            body.insert(0, Let("turn", self._step_number() % plan.copy.stages))
        else:
            body.append(Barrier())
        deep = plan.deep
        name, end = iterator(deep.name).name, plan.steps * plan.depth
        nest: LoopStatement = loop(name, end, *body, step=plan.depth)
        for dim in reversed(plan.around):
            nest = loop(iterator(dim.name).name, dim.extent, nest)
        return [nest]

    def _step_number(self) -> Index:
        plan, number = self.plan, as_index(0)
        for dim in plan.around:
            number = number * dim.extent + iterator(dim.name)
        return number * plan.steps + iterator(plan.deep.name) // plan.depth

    def ending(self, out: Affine) -> list[LoopStatement]:
        """Return the epilogue of the sums and their stores."""
        plan, kernel, i = self.plan, self.plan.kernel, Variable("i")
        first = Variable("row") + Variable("own_row")
        column = Variable("column") + Variable("own_column")
        at = {**self._at((*plan.row_dims, *plan.batches)), plan.column.name: column}
        place = linear(dict(out.terms), at, out.const)
        operands = (
            Named("acc"), Named("t"), Named("y_at"), plan.row_count - first,
            plan.column.extent - column, plan.item_columns * kernel.lanes,
            Address(Named("y")), AddressOf("e"),
        )  # fmt: skip
        return [
            Declare(Buffer("y_at", "ps_place", as_index(kernel.rows), Scope.STACK)),
            loop("i", kernel.rows, *_digits(plan.row_dims, first + i), Store("y_at", i, place)),
            Let("e", self.epilogue(at), "ps_epilogue"),
            Invoke("ps_end_lines", operands),
        ]

    def epilogue(self, at: At) -> Value:
        """Return what is done to sums: factors, bias, residual, and the function behind them."""
        contraction = self.plan.contraction
        axis = contraction.bias_axis
        along = contraction.out.index[axis] if axis is not None else None
        n = linear(dict(along.terms), at, along.const) if along else at[self.plan.column.name]
        value: Value = RoutineResult("ps_shifted", (Named("g"), as_index(n), 0))
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
        if plan.contraction.packs_b:
            i = Variable("i")
            return [loop("i", prod(w.shape), Store("packed", i, Element("w", i)))]
        offset, dims = w.offset(plan.strides[w.array]), (*plan.batches, *plan.around, plan.deep)
        at = self._at((*dims, plan.column))
        element = Element("w", linear(dict(offset.terms), at, offset.const))
        real = compare(iterator(plan.column.name), "<", plan.column.extent)
        body: LoopStatement = loop(
            iterator(plan.column.name).name,
            plan.padded_columns,
            Append("packed", _if(real, element)),
        )
        for dim in reversed(dims):
            body = loop(iterator(dim.name).name, dim.extent, body)
        return [body]


def _digits(dims: Sequence[Dim], number: Index) -> list[LoopStatement]:
    """Return the definitions of dimensions whose mixed-radix digits make a number."""
    below, digits = prod(dim.extent for dim in dims), list[LoopStatement]()
    for at, dim in enumerate(dims):
        below //= dim.extent
        digit = number // below
        digits.append(Let(iterator(dim.name).name, digit % dim.extent if at else digit))
    return digits


def _place(name: str, at: Index) -> Index:
    """Return an element of an item's own places as an integer."""
    return TableEntry(name, (at,))


def _if(condition: Condition, value: Value) -> Value:
    """Return a value where a condition holds, and 0 where not."""
    return value if condition == TRUE else Alternative(condition, value, ZERO)
