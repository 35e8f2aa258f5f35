"""Elements written to places that data name: Scatter and its kin, MaxUnpool."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.graph import shapes
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder, attribute_axes
from polysci.graph.operators.gather import check_places, check_shapes, vector_places
from polysci.graph.operators.table import Operator
from polysci.graph.reference import indexing
from polysci.loop_ir.expressions import (
    Computed,
    Expr,
    Index,
    Load,
    Number,
    Position,
    apply,
    axis,
    constant,
)
from polysci.program.stages import UpdateStage, ViewStage

# Reduction -> scalar function.
_REDUCTIONS = {"none": "", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def scatter_elements(build: Builder, node: Node) -> None:
    """``y[.., indices, ..] = updates``, else data."""
    data, indices, updates = node.inputs[:3]
    shape, wanted = build.shape(data), build.shape(indices)
    (along,) = attribute_axes([node.attributes.get("axis", 0)], len(shape))
    check_shapes(build, wanted, shape, along)
    check_places(build, node, [shape[along]])
    if build.shape(updates) != wanted:
        build.refuse(f"updates {list(build.shape(updates))} for indices {list(wanted)}")
    own = tuple(map(axis, range(len(shape))))
    index: list[Index] = list(own)
    index[along] = Computed(Load(indices, own), shape[along])
    _update(build, node, tuple(index), wanted, Load(updates, own))


def scatter_nd(build: Builder, node: Node) -> None:
    """Slices of y, whose first axes vectors name, become those of updates."""
    data, indices, updates = node.inputs[:3]
    shape, wanted = build.shape(data), build.shape(indices)
    outer, extents = len(wanted) - 1, shape[: wanted[-1]]
    if len(extents) != wanted[-1] or build.shape(updates) != (*wanted[:-1], *shape[wanted[-1] :]):
        told = f"indices {list(wanted)} and updates {list(build.shape(updates))}"
        build.refuse(f"{told} for data {list(shape)}")
    check_places(build, node, extents)
    index: list[Index] = [*vector_places(indices, outer, extents)]
    index += [axis(outer + at) for at in range(len(shape) - len(extents))]
    box = build.shape(updates)
    _update(build, node, tuple(index), box, Load(updates, tuple(map(axis, range(len(box))))))


def _update(
    build: Builder, node: Node, index: tuple[Index, ...], box: Sequence[int], value: Expr
) -> None:
    """y, which holds data, with a value at every place of a box."""
    data, y = node.inputs[0], node.outputs[0]
    reduction = str(node.attributes.get("reduction", "none"))
    if reduction not in _REDUCTIONS:
        build.refuse(f"reduction {reduction}")
    if function := _REDUCTIONS[reduction]:
        value = apply(function, Load(y, index), value)
    build.define(node, build.load(data, y))
    if prod(box):
        build.stages.append(UpdateStage(str(node), y, tuple(box), index, value))


def tensor_scatter(build: Builder, node: Node) -> None:
    """A sequence written into a cache from an index a batch on, around its end where circular."""
    cache, update = node.inputs[:2]
    shape, box = build.shape(cache), build.shape(update)
    (along,) = attribute_axes([node.attributes.get("axis", -2)], len(shape))
    mode = str(node.attributes.get("mode", "linear"))
    build.check_numbers(node, cache)
    if mode not in ("linear", "circular") or along == 0:
        build.refuse(f"mode {mode} along axis {along}")
    check_shapes(build, box, shape, along)
    own = tuple(map(axis, range(len(shape))))
    index: list[Index] = list(own)
    if node.input(2):
        place: Expr = apply("add", Load(node.inputs[2], (axis(0),)), Position(own[along]))
        if mode == "circular":
            place = apply("mod", place, Position(constant(shape[along])))
        index[along] = Computed(place, shape[along])
    _update(build, node, tuple(index), box, Load(update, own))


def max_unpool(build: Builder, node: Node) -> None:
    """Elements back at the places, among all of y, that MaxPool took them from; 0 elsewhere."""
    x, indices, y = node.inputs[0], node.inputs[1], node.outputs[0]
    shape, size = build.shape(x), build.values[y].size
    build.check_numbers(node, x)
    if build.shape(indices) != shape:
        build.refuse(f"indices {list(build.shape(indices))} for x {list(shape)}")
    check_places(build, node, [size])
    flat = build.fresh(f"{y}.flat", (size,), build.dtype(x))
    build.define(node, Number(0.0), flat)
    own = tuple(map(axis, range(len(shape))))
    place = (Computed(Load(indices, own), size),)
    if prod(shape):
        build.stages.append(UpdateStage(str(node), flat, shape, place, Load(x, own)))
    build.stages.append(ViewStage(str(node), y, flat))


ROWS = (
    Operator("scatter", "Scatter", scatter_elements),
    Operator("scatter_elements", "ScatterElements", scatter_elements),
    Operator("scatter_nd", "ScatterND", scatter_nd),
    Operator("tensor_scatter", "TensorScatter", tensor_scatter),
    Operator("max_unpool", "MaxUnpool", max_unpool, shapes.max_unpool,
             reference=indexing.max_unpool),
)  # fmt: skip
