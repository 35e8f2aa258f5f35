"""Images read between their pixels: GridSample, and the grids that AffineGrid makes.

Along each axis of an image a point reads some pixels, its taps: one for ``nearest``, two for
``linear``, four for ``cubic``. For every tap there is a tensor of subscripts and one of weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.table import Operator
from polysci.graph.reference import sampling as reference
from polysci.loop_ir.expressions import (
    Computed,
    Expr,
    Guard,
    Index,
    Load,
    Number,
    Position,
    Reduce,
    Where,
    apply,
    axis,
    constant,
)
from polysci.polyhedral.affine import Affine

# Mode -> its taps: how many, and the first one's distance from the pixel before the point.
_TAPS = {
    "nearest": (1, 0), "linear": (2, 0), "bilinear": (2, 0), "cubic": (4, -1), "bicubic": (4, -1),
}  # fmt: skip
_PADDING = ("zeros", "border", "reflection")
_ALPHA = -0.75  # of Keys' cubic convolution


@dataclass(frozen=True, slots=True)
class SampledAxis:
    """An axis of an image: its pixels, the attributes, and where its points lie."""

    size: int
    mode: str
    padding: str
    aligned: bool

    @property
    def ends(self) -> tuple[float, float]:
        """Where an image ends: at the centres of its outer pixels, or at their edges."""
        edge = 0.0 if self.aligned else 0.5
        return -edge, self.size - 1 + edge

    def place(self, grid: Expr) -> Expr:
        """A number from -1 to 1 in pixels, moved inside as the padding says."""
        raised = apply("add", grid, 1.0)
        if self.aligned:
            place = apply("mul", raised, (self.size - 1) / 2)
        else:
            place = apply("mul", apply("sub", apply("mul", raised, self.size), 1.0), 0.5)
        if self.mode == "nearest":
            place = apply("rint", place)
        if self.padding == "reflection":
            return self.reflect(place)
        if self.padding == "border" and _TAPS[self.mode][0] < 4:
            return apply("min", apply("max", place, 0.0), self.size - 1.0)
        return place  # of cubic ones every tap is moved inside by itself

    def reflect(self, place: Expr) -> Expr:
        """Back from the ends of the image, as often as it takes."""
        low, high = self.ends
        if high == low:
            return Number(low)
        period = 2 * (high - low)
        along = apply("sub", place, low)
        turns = apply("floor", apply("mul", along, 1 / period))
        rest = apply("sub", along, apply("mul", turns, period))
        return apply("add", apply("min", rest, apply("sub", period, rest)), low)

    def pixel(self, place: Expr) -> Expr:
        """The tap of iterator 0, a whole number that may lie outside of the image."""
        tap = apply("add", Position(axis(0)), float(_TAPS[self.mode][1]))
        return apply("add", apply("floor", place), tap)

    def subscript(self, place: Expr) -> Expr:
        """The pixel that a tap reads."""
        pixel = self.pixel(place)
        inside = self.reflect(pixel) if self.padding == "reflection" else pixel
        return apply("to_whole", apply("min", apply("max", inside, 0.0), self.size - 1.0))

    def weight(self, place: Expr) -> Expr:
        """The share of a tap; none of one outside where the padding is zeros."""
        taps, first = _TAPS[self.mode]
        part = apply("sub", place, apply("floor", place))
        signed = apply("sub", part, apply("add", Position(axis(0)), float(first)))
        distance = apply("max", signed, apply("sub", 0.0, signed))
        share: Expr = Number(1.0)
        if taps == 2:
            share = apply("sub", 1.0, distance)
        elif taps == 4:
            inner = Guard(Affine(axis(0).terms, first), 2)
            share = Where((inner,), _near(distance), _far(distance))
        if self.padding != "zeros":
            return share
        pixel = self.pixel(place)
        room = apply("min", apply("add", pixel, 1.0), apply("sub", self.size, pixel))
        return apply("mul", share, apply("min", apply("max", room, 0.0), 1.0))


def _near(t: Expr) -> Expr:
    """Keys' kernel up to a pixel away."""
    cubic = apply("sub", apply("mul", t, _ALPHA + 2), _ALPHA + 3)
    return apply("add", apply("mul", apply("mul", cubic, t), t), 1.0)


def _far(t: Expr) -> Expr:
    """Keys' kernel from one pixel away to two."""
    square = apply("sub", apply("mul", t, _ALPHA), 5 * _ALPHA)
    line = apply("add", apply("mul", square, t), 8 * _ALPHA)
    return apply("sub", apply("mul", line, t), 4 * _ALPHA)


def grid_sample(build: Builder, node: Node) -> None:
    """A sum over the taps of all axes."""
    x, grid, y = node.inputs[0], node.inputs[1], node.outputs[0]
    build.check_floats(node, x, grid)
    shape, points = build.shape(x), build.shape(grid)
    mode = str(node.attributes.get("mode", "bilinear" if build.graph.opset < 20 else "linear"))
    padding = str(node.attributes.get("padding_mode", "zeros"))
    rank = len(shape) - 2
    if mode not in _TAPS or padding not in _PADDING:
        build.refuse(f"mode {mode} with padding_mode {padding}")
    if points[0] != shape[0] or len(points) != len(shape) or points[-1] != rank:
        build.refuse(f"grid {list(points)} for x {list(shape)}")
    if not all(shape) and build.values[y].size:
        build.refuse("x has no elements")
    aligned = bool(node.attributes.get("align_corners", 0))
    index: list[Index] = [axis(0), axis(1)]
    taps, weights, over = _TAPS[mode][0], list[Expr](), list[tuple[str, int]]()
    for at in range(rank):
        sampled = SampledAxis(shape[2 + at], mode, padding, aligned)
        component = constant(rank - 1 - at)  # a grid names the last axis first
        own = tuple(map(axis, range(1 + rank)))
        raw = sampled.place(Load(grid, (*own, component)))
        places = build.fresh(f"{y}.place{at}", points[:-1], build.dtype(grid))
        tensors = taps_of(build, node, sampled, build.define(node, raw, places))
        tap = Affine(((f"t{at}", 1),)) if taps > 1 else constant(0)
        place = (tap, axis(0), *(axis(2 + number) for number in range(rank)))
        index.append(Computed(Load(tensors[0], place), shape[2 + at]))
        over += [(f"t{at}", taps)] * (taps > 1)
        weights.append(Load(tensors[1], place))
    value: Expr = Load(x, tuple(index))
    if taps > 1 or padding == "zeros":
        for weight in weights:
            value = apply("mul", value, weight)
    build.define(node, Reduce("add", tuple(over), value) if over else value)


def taps_of(build: Builder, node: Node, sampled: SampledAxis, places: str) -> tuple[str, str]:
    """Tensors of the subscripts and of the weights of all taps of places along an axis."""
    points = build.shape(places)
    place = Load(places, tuple(axis(1 + number) for number in range(len(points))))
    shape = (_TAPS[sampled.mode][0], *points)
    subscripts = build.fresh(f"{places}.pixel", shape, "int32")
    build.define(node, sampled.subscript(place), subscripts)
    weights = build.fresh(f"{places}.weight", shape, build.dtype(places))
    build.define(node, sampled.weight(place), weights)
    return subscripts, weights


def affine_grid(build: Builder, node: Node) -> None:
    """``theta @ (x, y, .., 1)`` for every pixel, whose coordinates run from -1 to 1."""
    theta, y = node.inputs[0], node.outputs[0]
    build.check_floats(node, theta)
    build.known(node, 1, "size")
    sizes, rank = build.shape(y)[1:-1], len(build.shape(y)) - 2
    if build.shape(theta)[1:] != (rank, rank + 1):
        build.refuse(f"theta {list(build.shape(theta))} for {rank} axes")
    row = axis(rank + 1)
    value: Expr = Load(theta, (axis(0), row, constant(rank)))
    for at, size in enumerate(sizes):
        steps = np.arange(size, dtype=np.float64)
        if node.attributes.get("align_corners", 0):
            steps = 2 * steps / max(size - 1, 1) - 1
        else:
            steps = (2 * steps + 1) / size - 1
        name = build.number(f"{y}.steps{at}", steps.astype(build.dtype(theta)))
        factor = Load(theta, (axis(0), row, constant(rank - 1 - at)))
        value = apply("add", value, apply("mul", factor, build.along(name, 1 + at)))
    build.define(node, value)


ROWS = (
    Operator("grid_sample", "GridSample", grid_sample, reference=reference.grid_sample),
    Operator("affine_grid", "AffineGrid", affine_grid),
)  # fmt: skip
