"""What routines compute: largest elements, pools over regions that are data, determinants."""

from __future__ import annotations

from math import prod

from polysci.graph.graph import Node
from polysci.graph.operators.builder import NUMBERS, Builder, attribute_axes
from polysci.graph.operators.table import Operator
from polysci.graph.reference import sampling
from polysci.loop_ir.expressions import (
    Computed,
    Index,
    Load,
    Reduce,
    axis,
    combine,
    constant,
)
from polysci.polyhedral.affine import Affine
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
    default = "half_pixel" if build.graph.opset >= 16 else "output_half_pixel"
    way = str(node.attributes.get("coordinate_transformation_mode", default))
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


ROWS = (
    Operator("top_k", "TopK", top_k, dims="first"),
    Operator("roi_align", "RoiAlign", roi_align, dims="regions"),
    Operator("max_roi_pool", "MaxRoiPool", max_roi_pool, reference=sampling.max_roi_pool,
             dims="regions"),
    Operator("det", "Det", determinant),
)  # fmt: skip
