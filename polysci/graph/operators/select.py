"""Operators that choose between values by conditions."""

from __future__ import annotations

from polysci.graph.gradients import elementwise as gradients
from polysci.graph.graph import Node
from polysci.graph.operators.builder import FLOATS, Builder
from polysci.graph.operators.table import Operator
from polysci.graph.reference import elementwise as reference
from polysci.loop_ir.expressions import Number, apply
from polysci.loop_ir.functions import convert
from polysci.program.control import ChoiceStage


def where(build: Builder, node: Node) -> None:
    """The first value where the condition holds, else the second."""
    y = node.outputs[0]
    build.check_numbers(node, *node.inputs)
    build.define(node, apply("select", *(build.load(name, y) for name in node.inputs)))


def parametric_relu(build: Builder, node: Node) -> None:
    """PRelu: x, or where it is negative x times a slope that broadcasts to its shape."""
    (x, slope), y = node.inputs, node.outputs[0]
    build.check_function("mul", x, slope)
    shape, own = build.shape(x), build.shape(slope)
    pairs = zip(own[::-1], shape[::-1], strict=False)
    if len(own) > len(shape) or any(size not in (1, extent) for size, extent in pairs):
        build.refuse(f"slope {list(own)} for x {list(shape)}")
    value, factor = build.load(x, y), build.load(slope, y)
    if build.dtype(x) in FLOATS:
        build.define(node, apply("leaky", value, factor))
    else:
        scaled = apply("mul", value, factor)
        build.define(node, apply("select", apply("less", value, 0), scaled, value))


def threshold_relu(build: Builder, node: Node) -> None:
    x, y = node.inputs[0], node.outputs[0]
    build.check_floats(node, x)
    value = build.load(x, y)
    above = apply("greater", value, float(node.attributes.get("alpha", 1.0)))
    build.define(node, apply("select", above, value, 0))


def shrink(build: Builder, node: Node) -> None:
    """x moved towards 0 by ``bias`` where it is beyond ``lambd``, else 0."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_numbers(node, x)
    bias, limit = (
        float(node.attributes.get(name, default)) for name, default in (("bias", 0), ("lambd", 0.5))
    )
    dtype = build.dtype(x)
    inner = dtype if dtype in FLOATS else "float64"
    value = convert(build.load(x, y), dtype, inner)
    above = apply("select", apply("greater", value, limit), apply("sub", value, bias), 0)
    below = apply("select", apply("less", value, -limit), apply("add", value, bias), above)
    build.define(node, convert(below, inner, dtype))


def is_infinite(build: Builder, node: Node) -> None:
    """IsInf, of both signs or one."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_floats(node, x)
    value = build.load(x, y)
    low, high = (
        bool(node.attributes.get(f"detect_{name}", 1)) for name in ("negative", "positive")
    )
    tests = {
        (True, True): apply("isinf", value),
        (True, False): apply("equal", value, float("-inf")),
        (False, True): apply("equal", value, float("inf")),
    }
    build.define(node, tests.get((low, high), Number(0.0)))


def choose(build: Builder, node: Node) -> None:
    """If: the results of one of its branches."""
    condition, *names = node.inputs
    build.check_numbers(node, *names)
    half = len(names) // 2
    build.stages.append(ChoiceStage(
        str(node), condition, node.outputs, tuple(names[:half]), tuple(names[half:])
    ))  # fmt: skip


ROWS = (
    Operator("if", "If", choose, reference=reference.choose),
    Operator("select", "Where", where, gradient=gradients.by_function, dims="alike"),
    Operator("prelu", "PRelu", parametric_relu, gradient=gradients.parametric_relu, dims="alike"),
    Operator("thresholded_relu", "ThresholdedRelu", threshold_relu, gradient=gradients.by_formula,
             dims="alike"),
    Operator("shrink", "Shrink", shrink, dims="alike"),
    Operator("isinf", "IsInf", is_infinite, dims="alike", torch=("isinf",)),
)  # fmt: skip
