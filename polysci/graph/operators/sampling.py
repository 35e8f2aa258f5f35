"""Images read between their pixels: GridSample and AffineGrid, deformed convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder, formula
from polysci.graph.operators.products import multiply
from polysci.graph.operators.table import Evaluation, Operator
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
    combine,
    constant,
)
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import Array
from polysci.program.stages import ConcatStage, ViewStage

# Mode -> its taps: how many, and the first one's distance from the pixel before the point.
_TAPS = {
    "nearest": (1, 0), "linear": (2, 0), "bilinear": (2, 0), "cubic": (4, -1), "bicubic": (4, -1),
}  # fmt: skip
_PADDING = ("zeros", "border", "reflection")
# Keys' cubic convolution, up to a pixel away and from one pixel to two.
_ALPHA = -0.75
_NEAR = "(t * (a + 2) - (a + 3)) * t * t + 1"
_FAR = "((t * a - 5 * a) * t + 8 * a) * t - 4 * a"


@dataclass(frozen=True, slots=True)
class SampledAxis:
    """An axis of an image: its pixels, the attributes, and where its points lie."""

    size: int
    mode: str
    padding: str
    aligned: bool

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of an image: the centres of its outer pixels, or their edges."""
        edge = 0.0 if self.aligned else 0.5
        return -edge, self.size - 1 + edge

    def place(self, grid: Expr) -> Expr:
        """A number from -1 to 1 in pixels, moved inside as the padding says."""
        text = "(x + 1) * ((size - 1) / 2)" if self.aligned else "((x + 1) * size - 1) * 0.5"
        place = formula(text, x=grid, size=self.size)
        if self.mode == "nearest":
            place = apply("rint", place)
        if self.padding == "reflection":
            return self.reflect(place)
        if self.padding == "border" and _TAPS[self.mode][0] < 4:
            return formula("min(max(x, 0), last)", x=place, last=self.size - 1)
        return place  # of cubic ones every tap is moved inside by itself

    def reflect(self, place: Expr) -> Expr:
        """Back from the ends of the image, as often as it takes."""
        low, high = self.ends
        if high == low:
            return Number(low)
        text = "min((rest := (along := x - low) - floor(along * (1 / p)) * p), p - rest) + low"
        return formula(text, x=place, low=low, p=2 * (high - low))

    def pixel(self, place: Expr) -> Expr:
        """The tap of iterator 0, a whole number that may lie outside of the image."""
        first = _TAPS[self.mode][1]
        return formula("floor(x) + (tap + first)", x=place, tap=Position(axis(0)), first=first)

    def subscript(self, place: Expr) -> Expr:
        """The pixel that a tap reads."""
        pixel = self.pixel(place)
        inside = self.reflect(pixel) if self.padding == "reflection" else pixel
        return formula("to_whole(min(max(x, 0), last))", x=inside, last=self.size - 1)

    def weight(self, place: Expr) -> Expr:
        """The share of a tap; none of one outside where the padding is zeros."""
        taps, first = _TAPS[self.mode]
        text = "max((signed := x - floor(x) - (tap + first)), 0 - signed)"
        distance = formula(text, x=place, tap=Position(axis(0)), first=first)
        share: Expr = Number(1.0)
        if taps == 2:
            share = apply("sub", 1.0, distance)
        elif taps == 4:
            inner = Guard(Affine(axis(0).terms, first), 2)
            sides = (formula(text, t=distance, a=_ALPHA) for text in (_NEAR, _FAR))
            share = Where((inner,), *sides)
        if self.padding != "zeros":
            return share
        text = "share * min(max(min(pixel + 1, size - pixel), 0), 1)"
        return formula(text, share=share, pixel=self.pixel(place), size=self.size)


def grid_sample(build: Builder, node: Node) -> None:
    """A sum over the taps of all axes."""
    x, grid, y = node.inputs[0], node.inputs[1], node.outputs[0]
    build.check_floats(node, x, grid)
    shape, points = build.shape(x), build.shape(grid)
    mode = str(node.attributes.get("mode", "linear"))
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
    subscripts = build.add(node, f"{places}.pixel", sampled.subscript(place), shape, "int32")
    dtype = build.dtype(places)
    return subscripts, build.add(node, f"{places}.weight", sampled.weight(place), shape, dtype)


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


@dataclass(frozen=True, slots=True)
class DeformedWindow:
    """The taps, the pixels of y, and how they lie in x; ``groups`` of channels move together."""

    taps: tuple[int, ...]
    out: tuple[int, ...]
    groups: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.taps)


def deform_conv(build: Builder, node: Node) -> None:
    """Gather what every tap of every pixel reads as columns, and multiply them with the weights."""
    x, w, offset, y = *node.inputs[:3], node.outputs[0]
    build.check_floats(node, x, w, offset)
    window, shape = _window(build, node), build.shape(x)
    groups = int(node.attributes.get("group", 1))
    filters, depth = build.shape(w)[0], build.shape(w)[1] * prod(window.taps)
    if shape[1] != build.shape(w)[1] * groups or filters % groups:
        build.refuse(f"weights {list(build.shape(w))} and {groups} groups for x {list(shape)}")
    if not build.values[x].size or not build.values[y].size:
        build.refuse("no elements")
    pixels = prod(window.out)
    columns = _view(build, node, _columns(build, node, window), (shape[0], groups, depth, pixels))
    parts = list[str]()
    for group in range(groups):
        index = (axis(0), constant(group), axis(2), axis(1))
        rows = _view(build, node, columns, (shape[0], pixels, depth), index)
        out = build.fresh(f"{y}.rows", (shape[0], pixels, filters // groups), build.dtype(x))
        multiply(build, node, rows, _weights(build, node, group, filters // groups, depth), out)
        turned = (shape[0], filters // groups, pixels)
        parts.append(_view(build, node, out, turned, (axis(0), axis(2), axis(1))))
    whole = parts[0]
    if groups > 1:
        whole = build.fresh(f"{y}.parts", (shape[0], filters, pixels), build.dtype(x))
        build.stages.append(ConcatStage(str(node), whole, tuple(parts), 1))
    image = _view(build, node, whole, build.shape(y))
    bias = [build.along(node.inputs[3], 1)] if node.input(3) else []
    value: Expr = Load(image, tuple(map(axis, range(len(shape)))))
    build.define(node, apply("add", value, *bias) if bias else value)


def _window(build: Builder, node: Node) -> DeformedWindow:
    attributes, w, offset = node.attributes, *(build.shape(name) for name in node.inputs[1:3])
    taps, rank = w[2:], len(w) - 2
    window = DeformedWindow(
        taps, build.shape(node.outputs[0])[2:], int(attributes.get("offset_group", 1)),
        strides=tuple(attributes.get("strides") or [1] * rank),
        dilations=tuple(attributes.get("dilations") or [1] * rank),
        pads=tuple(attributes.get("pads") or [0] * 2 * rank),
    )  # fmt: skip
    x = build.shape(node.inputs[0])
    wanted = (x[0], window.groups * prod(taps) * rank, *window.out)
    if (
        offset != wanted
        or x[1] % window.groups
        or tuple(attributes.get("kernel_shape", taps)) != taps
    ):
        build.refuse(f"offset {list(offset)}: expected {list(wanted)} for weights {list(w)}")
    mask = build.shape(node.inputs[4]) if node.input(4) else ()
    if mask and mask != (x[0], window.groups * prod(taps), *window.out):
        build.refuse(f"mask {list(mask)} for offset {list(offset)}")
    return window


def _columns(build: Builder, node: Node, window: DeformedWindow) -> str:
    """Tensor [image, group, channel of it, taps.., pixels..] of what is read."""
    x, rank = node.inputs[0], window.rank
    shape, dtype = build.shape(x), build.dtype(x)
    grouped = (shape[0], window.groups, shape[1] // window.groups)
    points = (shape[0], window.groups, *window.taps, *window.out)
    source = _view(build, node, x, (*grouped, *shape[2:]))
    offsets = (*points[: 2 + rank], rank, *window.out)
    moves = _view(build, node, node.inputs[2], offsets)
    own = (axis(0), axis(1), *(axis(3 + at) for at in range(2 * rank)))
    index: list[Index] = [axis(0), axis(1), axis(2)]
    value: Expr | None = None
    for at in range(rank):
        moved = Load(moves, (
            *(axis(number) for number in range(2 + rank)), constant(at),
            *(axis(2 + rank + number) for number in range(rank)),
        ))  # fmt: skip
        form = {f"i{2 + rank + at}": window.strides[at], f"i{2 + at}": window.dilations[at]}
        place = apply("add", moved, Position(combine(form, -window.pads[at])))
        places = build.define(node, place, build.fresh(f"{x}.place{at}", points, dtype))
        sampled = SampledAxis(shape[2 + at], "linear", "zeros", aligned=True)
        subscripts, weights = taps_of(build, node, sampled, places)
        tap = (Affine(((f"t{at}", 1),)), *own)
        index.append(Computed(Load(subscripts, tap), shape[2 + at]))
        share = Load(weights, tap)
        value = share if value is None else apply("mul", value, share)
    assert value is not None
    over = tuple((f"t{at}", 2) for at in range(rank))
    total: Expr = Reduce("add", over, apply("mul", Load(source, tuple(index)), value))
    if node.input(4):
        total = apply("mul", total, Load(_view(build, node, node.inputs[4], points), own))
    columns = build.fresh(f"{x}.columns", (*grouped, *window.taps, *window.out), dtype)
    return build.define(node, total, columns)


def _weights(build: Builder, node: Node, group: int, filters: int, depth: int) -> str:
    """The weights of a group as columns, one a filter."""
    w, first = node.inputs[1], group * filters
    known = build.constant_value(w)
    if known is not None:
        matrix = known[first : first + filters].reshape(filters, depth).T
        return build.number(f"{w}.columns", np.ascontiguousarray(matrix))
    flat = _view(build, node, w, (build.shape(w)[0], depth))
    return _view(build, node, flat, (depth, filters), (combine({"i1": 1}, first), axis(0)))


def _view(
    build: Builder, node: Node, source: str, shape: tuple[int, ...],
    index: tuple[Affine, ...] | None = None,
) -> str:  # fmt: skip
    """Another name for elements of a tensor."""
    view = build.fresh(f"{source}.view", shape, build.dtype(source))
    build.stages.append(ViewStage(str(node), view, source, index))
    return view


def moves_taps(node: Node) -> bool:
    """Return whether a node reads between pixels by cubics whose taps are moved to the border."""
    cubic = node.attributes.get("mode") in ("cubic", "bicubic")
    return cubic and node.attributes.get("padding_mode") == "border"


def grid_sample_reference(of: Evaluation) -> list[Array] | None:
    """The sum over four pixels along every axis, each of them inside."""
    node, known = of.node, of.known
    if not moves_taps(node):
        return None
    x, grid = known[node.inputs[0]], known[node.inputs[1]]
    rank, images = x.ndim - 2, np.arange(len(x)).reshape(-1, *[1] * (grid.ndim - 2))
    pixels, shares = list[Array](), list[Array]()
    for at, size in enumerate(x.shape[2:]):
        place = (grid[..., rank - 1 - at] + 1) / 2
        place = place * (size - 1) if node.attributes.get("align_corners") else place * size - 0.5
        low = np.floor(place)
        taps = np.arange(-1, 3).reshape(-1, *[1] * place.ndim)
        pixels.append(np.clip(low + taps, 0, size - 1).astype(np.int64))
        shares.append(_share(np.abs(place - low - taps)))
    y = 0.0
    for chosen in product(range(4), repeat=rank):
        where = tuple(pixel[tap] for pixel, tap in zip(pixels, chosen, strict=True))
        weight = np.prod([share[tap] for share, tap in zip(shares, chosen, strict=True)], axis=0)
        y = y + np.moveaxis(x[(images, slice(None), *where)], -1, 1) * weight[:, None]
    return [np.asarray(y, x.dtype)]


def _share(t: Array) -> Array:
    """Keys' kernel, at a distance in pixels."""
    near = ((_ALPHA + 2) * t - (_ALPHA + 3)) * t * t + 1
    far = ((_ALPHA * t - 5 * _ALPHA) * t + 8 * _ALPHA) * t - 4 * _ALPHA
    return np.asarray(np.where(t <= 1, near, far))


ROWS = (
    Operator("grid_sample", "GridSample", grid_sample, reference=grid_sample_reference),
    Operator("affine_grid", "AffineGrid", affine_grid),
    Operator("deform_conv", "DeformConv", deform_conv),
)  # fmt: skip
