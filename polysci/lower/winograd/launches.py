"""The loop IR of Winograd's algorithm on a device: launches of transforms and of products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from polysci.errors import UnsupportedError
from polysci.loop_ir import interface
from polysci.loop_ir.index import Index, Variable, as_index, compare, least
from polysci.loop_ir.nodes import (
    Address,
    AddressOf,
    Buffer,
    Fields,
    For,
    If,
    Invoke,
    Let,
    LoopFunction,
    LoopKind,
    LoopModule,
    LoopStatement,
    Named,
    Point,
    Return,
    Value,
    block,
)
from polysci.lower.algorithm import EmitOptions
from polysci.lower.direct.tile_functions import activation_function, activation_headers
from polysci.lower.lowering import LoweredPrimitive
from polysci.lower.mapped import algorithm as mapped
from polysci.lower.winograd.groups import ITEM, GroupedWinograd
from polysci.lower.winograd.nest import shape_fields
from polysci.numerics.dtypes import PRECISIONS

HEADERS: Final = ("winograd_in", "winograd_items", "winograd_out", "winograd_back_items")


def lower_launches(plan: GroupedWinograd, options: EmitOptions) -> LoweredPrimitive:
    """Return three launches: of the transform of x, of the product, and of that to y.

    Raises SpecError or UnsupportedError for options that do not fit.
    """
    interface.check_symbol(options.symbol)
    if options.by_rows or options.adds:
        raise UnsupportedError(f"schedule {plan.schedule}: groups compute whole results")
    nest, precision = _Launches(plan, options), PRECISIONS["f32"]
    bodies: dict[interface.Role, Sequence[LoopStatement]] = {
        "workspace_size": [Return(ITEM * sum(plan.sizes))],
        "packed_size": [Return(ITEM * plan.packed)],
        "pack_weights": [nest.packing()],
        "run": [*nest.run(), Return(interface.OK)],
    }
    rows = reversed(interface.functions(precision))
    functions = [row.define(options.symbol, block(*bodies[row.role])) for row in rows]
    source = nest.product
    module = LoopModule((*nest.shapes(), *functions, nest.product_function()))
    return replace(
        source, module=module, symbol=options.symbol, schedule=plan.schedule,
        beside=(*activation_headers(plan.problem.activation), *HEADERS),
        workspace=ITEM * sum(plan.sizes), packed=ITEM * plan.packed,
    )  # fmt: skip


@dataclass(frozen=True)
class _Launches:
    """The statements of a plan, and the records and functions that they use."""

    plan: GroupedWinograd
    options: EmitOptions

    @cached_property
    def product(self) -> LoweredPrimitive:
        """The product of all points as a primitive of its own."""
        own = EmitOptions(f"{self.options.symbol}_product", team=self.options.team)
        return mapped.lower(self.plan.product, own)

    def product_function(self) -> LoopFunction:
        """Return the function that multiplies, of this file alone."""
        *_, run = interface.functions(PRECISIONS["f32"])
        function = self.product.module.functions[run.name(self.product.symbol)]
        return replace(function, attributes=("static", "inline"))

    def name(self, part: str) -> str:
        """Return the name of the record of a part: all channels, a vector of them, or the rest."""
        return f"{self.options.symbol}_{part}"

    @property
    def rest(self) -> int:
        """Channels behind the last whole vector."""
        return self.plan.problem.C % self.plan.lanes

    def shapes(self) -> list[Let]:
        """Return the records that the transforms take."""
        plan, conv = self.plan, self.plan.problem
        sizes = (plan.tiles * plan.v_tile, plan.v_tile), (plan.tiles * plan.m_tile, plan.m_tile)
        columns = plan.product.padded_columns
        fields = shape_fields(conv, plan.tile, self.options.strides, sizes, (columns, columns))
        counts = {"shape": conv.C, "vector": plan.lanes, "rest": self.rest}
        return [
            Let(self.name(part), Fields(tuple({**fields, "channels": count}.items())),
                "ps_winograd", static=True)
            for part, count in counts.items() if count
        ]  # fmt: skip

    def packing(self) -> LoopStatement:
        """Return the transform of the filters."""
        operands = (Named(self.name("shape")), Named("w"), Named("packed"))
        return Invoke("ps_winograd_weights", operands)

    def run(self) -> list[LoopStatement]:
        """Return all launches."""
        plan, fields = self.plan, ("packed", "y", "bias", "residual", "clamp")
        args: list[tuple[str, Value]] = [("a", Named("x")), *((it, Named(it)) for it in fields)]
        *_, multiply = interface.functions(PRECISIONS["f32"])
        operands: dict[str, Value] = {
            "x": Named("v"), "packed": Named("packed"), "y": Named("sums"), "bias": 0,
            "residual": 0, "clamp": 0, "workspace": Named("workspace"),
        }  # fmt: skip
        return [
            Let("call", Fields(tuple(args)), "ps_args", const=False),
            _floats("v", 0),
            _floats("sums", plan.sizes[0]),
            self._items(plan.v_tile // plan.lanes, self._into()),
            multiply.invoke(self.product.symbol, operands),
            self._items(plan.m_tile // plan.lanes, [self._back()]),
        ]

    def _items(self, vectors: int, body: Sequence[LoopStatement]) -> For:
        """Return a launch of a work-item for each tile and vector; neighbours as they lie."""
        task, tiles = Variable("task"), self.plan.tiles
        along = self.plan.problem.layout == "nhwc"
        tile, vector = (task // vectors, task % vectors) if along else (task % tiles, task // tiles)
        places = [Let("t0", tile), Let("c0", vector * self.plan.lanes)]
        end = as_index(tiles * vectors)
        return For("task", as_index(0), end, block(*places, *body), kind=LoopKind.PARALLEL)

    def _into(self) -> list[LoopStatement]:
        """Return the transform of a tile's pixels, of a vector of channels or of the rest."""
        plan, tile, first = self.plan, Variable("t0"), Variable("c0")
        strides = self.options.strides.get("I") or plan.problem.arrays()["I"][1]
        x = Address(Named("x"), first * strides[1])
        v = Address(Named("v"), tile * plan.v_tile + first)

        def call(part: str) -> Invoke:
            return Invoke("ps_winograd_input", (Named(self.name(part)), x, v, tile, tile + 1))

        whole = plan.problem.C - self.rest
        if not self.rest:
            return [call("vector")]
        if not whole:
            return [call("rest")]
        return [
            If(compare(first, "<", whole), block(call("vector"))),
            If(compare(first, ">=", whole), block(call("rest"))),
        ]

    def _back(self) -> Invoke:
        """Return the transform of a tile's sums to y, of a vector of filters."""
        plan, tile, first = self.plan, Variable("t0"), Variable("c0")
        function = activation_function(plan.problem.activation)
        count: Index = least(plan.lanes, plan.problem.K - first)
        operands = (
            Named(self.name("shape")), AddressOf("call"),
            Address(Named("sums"), tile * plan.m_tile + first), tile, tile + 1, first, count,
            Named(function) if function else 0,
        )  # fmt: skip
        return Invoke("ps_winograd_output", operands)


def _floats(name: str, at: int) -> Point:
    """Return the definition of floats in the workspace."""
    return Point(Buffer(name, "float32"), Address(Named("workspace"), as_index(at), "float32"))
