"""Largest elements, elements that are not 0, boxes, regions, determinants."""

from __future__ import annotations

from math import ceil, floor, prod
from typing import Any

import numpy as np

from polysci.graph.graph import Node
from polysci.graph.operators.builder import NUMBERS, Builder, attribute_axes
from polysci.graph.operators.table import Evaluation, Operator
from polysci.loop_ir.expressions import (
    Computed,
    Index,
    Load,
    Number,
    Reduce,
    apply,
    axis,
    combine,
    constant,
)
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import Array
from polysci.program.stages import RoutineStage

# The number of a type in ps_key.
_KINDS = {name: number for number, name in enumerate(NUMBERS)}


def top_k(build: Builder, node: Node) -> None:
    """Keys and places of the first elements in order, then the elements at these places."""
    x = node.inputs[0]
    build.check_numbers(node, x)
    build.known(node, 1, "k")
    shape = build.shape(x)
    (along,) = attribute_axes([node.attributes.get("axis", -1)], len(shape))
    values, places = node.outputs
    count = build.shape(values)[along]
    if count > shape[along]:
        build.refuse(f"k {count}: axis {along} has {shape[along]} elements")
    inner = prod(shape[along + 1 :])
    largest = int(bool(node.attributes.get("largest", 1)))
    numbers = (_KINDS[build.dtype(x)], shape[along], inner, count, largest)
    items = prod(shape[:along]) * inner if count else 0
    ranked = build.fresh(f"{places}.ranked", (items, count, 2), "int64")
    build.stages.append(RoutineStage(str(node), ranked, (x,), "ps_top", items, numbers))
    steps = {f"i{at}": prod(shape[at + 1 :]) for at in range(along + 1, len(shape))}
    steps |= {f"i{at}": prod(shape[at + 1 :]) // shape[along] for at in range(along)}
    build.define(node, Load(ranked, (combine(steps), axis(along), constant(1))), places)
    index: list[Index] = [axis(at) for at in range(len(shape))]
    index[along] = Computed(Load(places, tuple(map(axis, range(len(shape))))), shape[along])
    build.define(node, Load(x, tuple(index)))


def roi_align(build: Builder, node: Node) -> None:
    """Means, or maxima, of points inside regions, read between the pixels."""
    x, rois, batch = node.inputs[:3]
    images = _check_regions(build, node, 4)
    if build.shape(batch) != build.shape(rois)[:1] or build.dtype(batch) != "int64":
        build.refuse(f"batch_indices {build.values[batch]}")
    modes = ("avg", "max")
    ways = {"half_pixel": 0.5, "output_half_pixel": 0.0}
    mode = str(node.attributes.get("mode", "avg"))
    way = str(node.attributes.get("coordinate_transformation_mode", "half_pixel"))
    if mode not in modes or way not in ways:
        build.refuse(f"mode {mode} with coordinate_transformation_mode {way}")
    shape = build.shape(node.outputs[0])
    numbers = (
        *images, *shape[2:], int(node.attributes.get("sampling_ratio", 0)), modes.index(mode),
        ways[way], float(node.attributes.get("spatial_scale", 1.0)),
    )  # fmt: skip
    items = shape[0] * shape[2] * shape[3] if shape[1] else 0
    stage = RoutineStage(
        str(node), node.outputs[0], (x, rois, batch), "ps_roi_align", items, numbers
    )
    build.stages.append(stage)


def max_roi_pool(build: Builder, node: Node) -> None:
    """The largest element of every cell of a region; 0 of a cell without any."""
    x, rois = node.inputs[:2]
    images, shape = _check_regions(build, node, 5), build.shape(node.outputs[0])
    numbers = (*images, *shape[2:], float(node.attributes.get("spatial_scale", 1.0)))
    stage = RoutineStage(
        str(node), node.outputs[0], (x, rois), "ps_max_roi_pool", prod(shape[:2]), numbers
    )
    build.stages.append(stage)


def determinant(build: Builder, node: Node) -> None:
    """The product of the diagonal of a matrix that elimination made triangular, in f64."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_floats(node, x)
    shape = build.shape(x)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        build.refuse(f"x {list(shape)}: expected square matrices")
    wide = build.define(node, build.load(x, x), build.fresh(f"{x}.wide", shape, "float64"))
    triangle = build.fresh(f"{x}.triangle", shape, "float64")
    items = prod(shape[:-2]) if shape[-1] else 0
    stage = RoutineStage(str(node), triangle, (wide,), "ps_triangle", items, (shape[-1],))
    build.stages.append(stage)
    step = Affine((("r", 1),))
    index = (*(axis(at) for at in range(len(shape) - 2)), step, step)
    build.define(node, Reduce("mul", (("r", shape[-1]),), Load(triangle, index)), y)


def _check_regions(build: Builder, node: Node, columns: int) -> tuple[int, ...]:
    """The shape of the images; refuses regions of another shape or type."""
    x, rois = node.inputs[:2]
    for name in (x, rois):
        if build.dtype(name) != "float32":
            build.refuse(f"elements of {build.dtype(name)}")
    shape = build.shape(x)
    if len(shape) != 4 or build.shape(rois)[1:] != (columns,):
        build.refuse(f"regions {list(build.shape(rois))} of x {list(shape)}")
    if not all(shape) and build.values[node.outputs[0]].size:
        build.refuse("x has no elements")
    return shape


def non_zero(build: Builder, node: Node) -> None:
    """The subscripts of what is not 0, one a column in row-major order; then 0."""
    (x,), (places, count) = node.inputs, node.outputs
    build.check_numbers(node, x)
    shape, size = build.shape(x), build.values[x].size
    truth = x
    if build.dtype(x) != "bool":
        truth = build.fresh(f"{x}.truth", shape, "bool")
        build.define(node, apply("not_equal", build.load(x, x), Number(0)), truth)
    listed = build.fresh(f"{places}.list", (1 + size,), "int64")
    build.stages.append(RoutineStage(str(node), listed, (truth,), "ps_places", 1, (size,)))
    steps = np.array([prod(shape[at + 1 :]) for at in range(max(1, len(shape)))], np.int64)
    sizes = np.array(shape or [1], np.int64)
    step, extent = (
        Load(build.number(f"{places}.{word}", value), (axis(0) if len(value) > 1 else constant(0),))
        for word, value in (("steps", steps), ("sizes", sizes))
    )
    place = Load(listed, (combine({"i1": 1}, 1),))
    build.define(node, apply("mod", apply("div", place, step), extent), places)
    build.define(node, Load(listed, (constant(0),)), count)


def non_max_suppression(build: Builder, node: Node) -> None:
    """Boxes by falling score, without those that overlap one before, of each image and class."""
    boxes, scores = node.inputs[:2]
    selected, count = node.outputs
    for name in (boxes, scores):
        if build.dtype(name) != "float32":
            build.refuse(f"elements of {build.dtype(name)}")
    images, classes, total = build.shape(scores)
    pairs = images * classes
    most = int(node.attributes["most"])
    defaults = (np.int64(0), np.float32(0), np.float32(-np.inf), np.int64(total))
    inputs = [
        node.input(2 + at) or build.number(f"{selected}.default{at}", np.array(value))
        for at, value in enumerate(defaults)
    ]
    lists = build.fresh(f"{selected}.lists", (pairs, 1 + 2 * total), "int64")
    numbers = (
        classes,
        total,
        int(node.attributes.get("center_point_box", 0)),
        int(bool(node.input(4))),
        most,
    )
    build.stages.append(
        RoutineStage(str(node), lists, (boxes, scores, *inputs), "ps_suppress", pairs, numbers)
    )
    rows = build.fresh(f"{selected}.rows", (1 + 3 * pairs * most,), "int64")
    build.stages.append(
        RoutineStage(str(node), rows, (lists,), "ps_box_rows", 1, (pairs, classes, total, most))
    )
    build.define(node, Load(rows, (combine({"i0": 3, "i1": 1}, 1),)), selected)
    build.define(node, Load(rows, (constant(0),)), count)


def non_zero_reference(of: Evaluation) -> list[Array] | None:
    """The subscripts and how many there are; a node without a count is ONNX's."""
    if len(of.node.outputs) < 2:
        return None
    x = np.atleast_1d(of.inputs[0])
    places = np.zeros((x.ndim, x.size), np.int64)
    subscripts = np.nonzero(x)
    count = len(subscripts[0])
    places[:, :count] = subscripts
    return [places, np.array(count, np.int64)]


def non_max_suppression_reference(of: Evaluation) -> list[Array] | None:
    """Return rows for images * classes * the most boxes of a class, and the count of valid ones."""
    node, known = of.node, of.known
    if "most" not in node.attributes:
        return None
    names = [node.input(at) for at in range(6)]
    boxes, scores = known[names[0]], known[names[1]]
    limit, share, least, count = (
        known[name].reshape(-1)[0] if name else default
        for name, default in zip(names[2:], (0, 0.0, None, boxes.shape[1]), strict=True)
    )
    centered, rows = bool(node.attributes.get("center_point_box", 0)), list[tuple[int, int, int]]()
    for image, kind in np.ndindex(*scores.shape[:2]):
        ends = _ends(boxes[image], centered)
        numbers = scores[image, kind, : int(count)]
        order = [int(at) for at in np.argsort(-numbers, kind="stable")]
        kept = list[int]()
        for at in order if least is None else [at for at in order if numbers[at] > least]:
            if len(kept) >= limit:
                break
            if not any(_overlap(ends[at], ends[other], share) for other in kept):
                kept.append(at)
        rows += [(image, kind, at) for at in kept]
    selected = np.zeros((scores[..., 0].size * node.attributes["most"], 3), np.int64)
    selected[: len(rows)] = np.array(rows, np.int64).reshape(-1, 3)
    return [selected, np.array(len(rows), np.int64)]


def _ends(boxes: Array, centered: bool) -> Array:
    """The lower ends of boxes, then the upper ones."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if centered:
        return np.concatenate([first - second / 2, first + second / 2], 1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], 1)


def _overlap(box: Array, other: Array, share: float) -> bool:
    sizes = np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2])
    areas = [float(np.prod(ends[2:] - ends[:2])) for ends in (box, other)]
    both = float(np.prod(sizes))
    return bool(sizes.min() > 0 and min(areas) > 0 and both / (sum(areas) - both) > share)


def max_roi_pool_reference(of: Evaluation) -> list[Array]:
    """The largest pixel of every cell of regions (image, left, top, right, bottom); 0 of none."""
    (x, regions), attributes = of.inputs, of.node.attributes
    cells, scale = attributes["pooled_shape"], attributes.get("spatial_scale", 1.0)
    y = np.zeros((len(regions), x.shape[1], *cells), x.dtype)
    for number, (image, *corners) in enumerate(regions):
        left, top, right, bottom = (floor(corner * scale + 0.5) for corner in corners)
        high, wide = max(bottom - top + 1, 1) / cells[0], max(right - left + 1, 1) / cells[1]
        for row, column in np.ndindex(*cells):
            rows, columns = _part(row, high, top), _part(column, wide, left)
            cell = x[int(np.clip(image, 0, len(x) - 1)), :, rows, columns]
            if cell.size:
                y[number, :, row, column] = cell.max(axis=(1, 2))
    return [y]


def _part(cell: int, size: float, start: int) -> Any:
    """The pixels of a cell along an axis."""
    return slice(max(start + floor(cell * size), 0), max(start + ceil((cell + 1) * size), 0))


ROWS = (
    Operator("top_k", "TopK", top_k, dims="first", shape_inputs=slice(1, 2)),
    Operator("roi_align", "RoiAlign", roi_align, dims="regions"),
    Operator("max_roi_pool", "MaxRoiPool", max_roi_pool, reference=max_roi_pool_reference,
             dims="regions"),
    Operator("det", "Det", determinant),
    Operator("non_zero", "NonZero", non_zero, reference=non_zero_reference, bounded=True),
    Operator("non_max_suppression", "NonMaxSuppression", non_max_suppression,
             reference=non_max_suppression_reference),
)  # fmt: skip
