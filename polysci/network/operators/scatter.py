"""Elements written to places that data name: Scatter and its kin, MaxUnpool."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.network.ir.expressions import (
    Computed,
    Expr,
    Guard,
    Index,
    Load,
    Number,
    Position,
    Where,
    axis,
    constant,
)
from polysci.network.ir.graph import Node
from polysci.network.ir.stages import UpdateStage, ViewStage
from polysci.network.operators.builder import Builder, apply, attribute_axes
from polysci.network.operators.gather import check_places, check_shapes, vector_places

# Reduction -> function of functions.FUNCTIONS.
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
    shape, full = build.shape(x), _unpooled(build, node)
    build.check_numbers(node, x)
    if build.shape(indices) != shape or len(full) != len(build.shape(y)):
        build.refuse(f"indices {list(build.shape(indices))} for x {list(shape)}")
    size = prod(full)
    check_places(build, node, [size])
    flat = build.fresh(f"{y}.flat", (size,), build.dtype(x))
    build.define(node, Number(0.0), flat)
    own = tuple(map(axis, range(len(shape))))
    place = (Computed(Load(indices, own), size),)
    if prod(shape):
        build.stages.append(UpdateStage(str(node), flat, shape, place, Load(x, own)))
    if full == build.shape(y):
        build.stages.append(ViewStage(str(node), y, flat))
        return
    inner = build.fresh(f"{y}.inner", full, build.dtype(x))
    build.stages.append(ViewStage(str(node), inner, flat))
    _in_corner(build, node, inner)


def _in_corner(build: Builder, node: Node, x: str) -> None:
    """x, and zeros behind its ends, up to the shape of y."""
    y = node.outputs[0]
    pairs = list(zip(build.shape(x), build.shape(y), strict=True))
    if any(size > full for size, full in pairs):
        build.refuse(f"output_shape {list(build.shape(y))}: expected at least {build.shape(x)}")
    guards = tuple(Guard(axis(at), a) for at, (a, b) in enumerate(pairs) if a < b)
    inside = Load(x, tuple(map(axis, range(len(pairs)))))
    build.define(node, Where(guards, inside, Number(0.0)))


def _unpooled(build: Builder, node: Node) -> tuple[int, ...]:
    """What the windows say of the shape of y, by which indices count."""
    images, channels, *spatial = build.shape(node.inputs[0])
    taps = list(node.attributes["kernel_shape"])
    strides = node.attributes.get("strides") or [1] * len(taps)
    pads = node.attributes.get("pads") or [0] * 2 * len(taps)
    ends = zip(pads[: len(taps)], pads[len(taps) :], strict=True)
    sizes = [
        (size - 1) * stride - before - after + tap
        for size, stride, tap, (before, after) in zip(spatial, strides, taps, ends, strict=True)
    ]
    return (images, channels, *sizes)


OPERATORS = {
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter,
    "MaxUnpool": max_unpool,
}
