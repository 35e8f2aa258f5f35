"""Tensors of which data decides the length, in memory for the most, and how long they are."""

from __future__ import annotations

from math import prod

import numpy as np

from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.table import Operator
from polysci.graph.reference import dynamic_dims as reference
from polysci.loop_ir.expressions import Load, Number, apply, axis, combine, constant
from polysci.program.stages import RoutineStage


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


def suppress(build: Builder, node: Node) -> None:
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
    told = [
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
        RoutineStage(str(node), lists, (boxes, scores, *told), "ps_suppress", pairs, numbers)
    )
    rows = build.fresh(f"{selected}.rows", (1 + 3 * pairs * most,), "int64")
    build.stages.append(
        RoutineStage(str(node), rows, (lists,), "ps_rows", 1, (pairs, classes, total, most))
    )
    build.define(node, Load(rows, (combine({"i0": 3, "i1": 1}, 1),)), selected)
    build.define(node, Load(rows, (constant(0),)), count)


ROWS = (
    Operator("non_zero", "NonZero", non_zero, reference=reference.non_zero),
    Operator("non_max_suppression", "NonMaxSuppression", suppress, reference=reference.suppress),
)  # fmt: skip
