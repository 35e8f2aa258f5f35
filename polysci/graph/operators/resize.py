"""Resize: nearest neighbours, linear and cubic interpolation, axis by axis, through tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder, attribute_axes
from polysci.graph.operators.table import Operator
from polysci.loop_ir.expressions import (
    Expr,
    Guard,
    Index,
    Load,
    Lookup,
    Number,
    Reduce,
    Where,
    apply,
    axis,
    combine,
)

Reals = NDArray[np.float64]
Indices = NDArray[np.int64]


def resize(build: Builder, node: Node) -> None:
    """One axis after the other: linear interpolation is a product of those along axes."""
    x, y = node.inputs[0], node.outputs[0]
    mode = node.attributes.get("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        build.refuse(f"mode {mode}")
    if mode != "nearest":
        build.check_floats(node, x)
    build.check_numbers(node, x)
    if not build.values[x].size and build.values[y].size:
        build.refuse("x has no elements")
    scales = _scales(build, node)
    changed = [
        at for at, (a, b) in enumerate(zip(build.shape(x), build.shape(y), strict=True))
        if a != b or scales[at] != 1
    ]  # fmt: skip
    if _crops(node):
        changed = list(_given_axes(node, len(scales)))
    current = x
    for position, at in enumerate(changed):
        shape = list(build.shape(current))
        shape[at] = build.shape(y)[at]
        last = position == len(changed) - 1
        output = y if last else build.fresh(f"{y}.axis{at}", shape, build.dtype(x))
        build.define(node, _along(build, node, current, at, scales[at], shape[at]), output)
        current = output
    if not changed:
        build.define(node, build.load(x, y))


def _scales(build: Builder, node: Node) -> list[float]:
    """Return the scales by axis of x: given, or what the sizes make of them."""
    x, y = build.shape(node.inputs[0]), build.shape(node.outputs[0])
    axes = _given_axes(node, len(x))
    scales = [b / a if a else 1.0 for a, b in zip(x, y, strict=True)]
    listed = build.known(node, 2, "scales")
    sizes = build.known(node, 3, "sizes")
    if listed is not None and listed.size:
        for at, value in zip(axes, listed.reshape(-1), strict=True):
            scales[at] = float(value)
    elif (
        sizes is not None
        and node.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch"
    ):
        wanted = [float(size) / x[at] for at, size in zip(axes, sizes.reshape(-1), strict=True)]
        policy = node.attributes["keep_aspect_ratio_policy"]
        scale = min(wanted) if policy == "not_larger" else max(wanted)
        for at in axes:
            scales[at] = scale
    return scales


def _given_axes(node: Node, rank: int) -> tuple[int, ...]:
    return attribute_axes(node.attributes.get("axes") or range(rank), rank)


def _crops(node: Node) -> bool:
    return _way(node) == "tf_crop_and_resize"


def _way(node: Node) -> str:
    return str(node.attributes.get("coordinate_transformation_mode", "half_pixel"))


def _places(build: Builder, node: Node, at: int, scale: float, out: int) -> Reals:
    """Return the places in x of all outputs of an axis."""
    size, y = build.shape(node.inputs[0])[at], np.arange(out, dtype=np.float64)
    match _way(node):
        case "half_pixel":
            return (y + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (y + 0.5) / scale - 0.5 if out > 1 else np.zeros(out)
        case "asymmetric":
            return y / scale
        case "align_corners":  # of whole sizes, as in ONNX Runtime, where scales are fractions
            return y * (size - 1) / (out - 1) if out > 1 else np.zeros(out)
        case "half_pixel_symmetric":
            adjusted = out / (scale * size)
            centre = size / 2
            return centre * (1 - adjusted) + (y + 0.5) / scale - 0.5
        case "tf_crop_and_resize":
            first, last = _region(build, node, at)
            if out > 1:
                return first * (size - 1) + y * (last - first) * (size - 1) / (out - 1)
            return np.full(out, 0.5 * (first + last) * (size - 1))
    return build.refuse(f"coordinate_transformation_mode {_way(node)}")


def _region(build: Builder, node: Node, at: int) -> tuple[float, float]:
    roi = build.known(node, 1, "roi")
    if roi is None:
        build.refuse("no roi")
    axes = _given_axes(node, len(build.shape(node.inputs[0])))
    if roi.size != 2 * len(axes):
        build.refuse(f"{roi.size} numbers as roi for {len(axes)} axes")
    position = axes.index(at)
    return float(roi[position]), float(roi[len(axes) + position])


def _along(build: Builder, node: Node, x: str, at: int, scale: float, out: int) -> Expr:
    """The value of an output: by one table, or by two and their weights."""
    places, size = _places(build, node, at, scale, out), build.shape(x)[at]
    rank = len(build.shape(x))

    def taken(table: NDArray[np.int64]) -> Expr:
        inside = tuple(int(index) for index in np.clip(table, 0, size - 1))
        return Load(x, tuple(
            Lookup(inside, axis(number)) if number == at else axis(number) for number in range(rank)
        ))  # fmt: skip

    mode = node.attributes.get("mode", "nearest")
    if mode == "nearest":
        value = taken(_nearest(build, node, places))
    elif mode == "cubic" or (node.attributes.get("antialias") and scale < 1):
        value = _filter(build, node, x, at, _weights(node, places, scale, size))
    else:
        low = np.floor(places)
        name = build.number(f"{node.outputs[0]}.share{at}", (places - low).astype(np.float32))
        share = build.along(name, at)
        here, there = taken(low.astype(np.int64)), taken(low.astype(np.int64) + 1)
        step = apply("mul", apply("sub", there, here), share)
        value = apply("add", here, step)
    if not _crops(node):
        return value
    outside = float(node.attributes.get("extrapolation_value", 0.0))
    table = tuple(0 if 0 <= place <= size - 1 else -1 for place in places)
    if not any(table):
        return value
    inside = np.array([entry + 1 for entry in table])
    return _where_inside(value, inside, at, outside)


def _weights(node: Node, places: Reals, scale: float, size: int) -> tuple[Indices, Reals]:
    """The elements of x that an output is made of, and their weights.

    The filter is as wide as an output where that is wider than an element (``antialias``).
    """
    cubic = node.attributes.get("mode") == "cubic"
    narrow = min(scale, 1.0) if node.attributes.get("antialias") else 1.0
    reach = int(np.ceil((2 if cubic else 1) / narrow))
    taps = np.floor(places).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
    distances = np.abs(taps - places[:, None]) * narrow
    slope = float(node.attributes.get("cubic_coeff_a", -0.75))
    weights = _keys(distances, slope) if cubic else np.maximum(1 - distances, 0)
    if node.attributes.get("exclude_outside"):
        weights[(taps < 0) | (taps >= size)] = 0
    return taps, weights / weights.sum(1, keepdims=True)


def _keys(distances: Reals, slope: float) -> Reals:
    """Keys' cubic convolution (IEEE Transactions on ASSP 29, 1981)."""
    x = distances
    near = ((slope + 2) * x - (slope + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * slope - 4 * slope
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _filter(build: Builder, node: Node, x: str, at: int, parts: tuple[Indices, Reals]) -> Expr:
    """A weighted sum along an axis."""
    taps, weights = parts
    shape, count = build.shape(x), taps.shape[1]
    place = combine({f"i{at}": count, "r": 1})
    inside = tuple(int(index) for index in np.clip(taps, 0, shape[at] - 1).reshape(-1))
    index: list[Index] = [axis(number) for number in range(len(shape))]
    index[at] = Lookup(inside, place)
    name = build.number(
        f"{node.outputs[0]}.weights{at}", weights.reshape(-1).astype(build.dtype(x))
    )
    return Reduce("add", (("r", count),), apply("mul", Load(x, tuple(index)), Load(name, (place,))))


def _where_inside(value: Expr, inside: NDArray[np.int64], at: int, other: float) -> Expr:
    """Outputs whose place is inside; they are a range, because places grow."""
    where = np.flatnonzero(inside)
    if not where.size:
        return Number(other)
    first, count = int(where[0]), len(where)
    place = axis(at)
    guard = Guard(type(place)(place.terms, -first), count)
    return Where((guard,), value, Number(other))


def _nearest(build: Builder, node: Node, places: Reals) -> NDArray[np.int64]:
    way = node.attributes.get("nearest_mode", "round_prefer_floor")
    match way:
        case "round_prefer_floor":
            nearest = np.ceil(places - 0.5)
        case "round_prefer_ceil":
            nearest = np.floor(places + 0.5)
        case "floor":
            nearest = np.floor(places)
        case "ceil":
            nearest = np.ceil(places)
        case _:
            build.refuse(f"nearest_mode {way}")
    return nearest.astype(np.int64)


ROWS = (
    Operator("resize", "Resize", resize, shape_inputs=slice(None)),
)  # fmt: skip
