"""Operators that treat every element alike."""

from __future__ import annotations

from functools import partial, reduce
from math import prod
from typing import Any

import numpy as np

from polysci.graph.gradients import elementwise as gradients
from polysci.graph.graph import AFFINE, DROPOUT_MASK, Node
from polysci.graph.operators.builder import FLOATS, STORED, Builder
from polysci.graph.operators.table import Operator
from polysci.graph.reference import dropout
from polysci.graph.reference import elementwise as reference
from polysci.graph.shapes import broadcast
from polysci.loop_ir.expressions import Expr, Load, Number, Position, apply, combine, constant
from polysci.loop_ir.functions import convert, kind_of_type
from polysci.numerics.scalar_functions import FUNCTIONS, ScalarFunction, is_predicate, template

# Operators that are a function of the table; elements are of any type whose kind has the function.
# Operators that ONNX's reference computes in f32, or not for tensors without axes.
_OWN_VALUES = ("erf", "softsign")
MOST_TERMS = 32  # of a sum that is computed at once
_SUMS = {"sum": "add", "mean": "add"}  # of any number of tensors
_SELU = (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875))
# Constant exponents that have a function of their own.
_POWERS = {2.0: "square", 3.0: "cube", 0.5: "sqrt", -1.0: "reciprocal"}


def unary(build: Builder, node: Node) -> None:
    """A function of one tensor."""
    function, x, y = FUNCTIONS[node.op], node.inputs[0], node.outputs[0]
    build.check_function(function.name, x)
    numbers = [
        float(node.attributes.get(name, default)) for name, default in function.parameters.items()
    ]
    build.define(node, apply(function.name, build.load(x, y), *numbers))


def selu(build: Builder, node: Node) -> None:
    """``gamma * elu(x)``."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_function("elu", x)
    alpha, gamma = (float(node.attributes.get(name, default)) for name, default in _SELU)
    build.define(node, apply("mul", apply("elu", build.load(x, y), alpha), gamma))


def gelu(build: Builder, node: Node) -> None:
    x, y = node.inputs[0], node.outputs[0]
    build.check_function("gelu", x)
    tanh = node.attributes.get("approximate", "none") == "tanh"
    build.define(node, apply("gelu_tanh" if tanh else "gelu", build.load(x, y)))


def binary(build: Builder, node: Node) -> None:
    """A function of two tensors that broadcast, or of several one after the other."""
    function, y = _SUMS.get(node.op, node.op), node.outputs[0]
    build.check_function(function, *node.inputs)
    parts = [build.load(name, y) for name in node.inputs]
    expr: Expr = parts[0]
    for number, part in enumerate(parts[1:], 1):
        if number % MOST_TERMS == 0:
            made = build.fresh(f"{y}.part", build.shape(y), build.dtype(y))
            expr = build.load(build.define(node, expr, made), y)
        expr = apply(function, expr, part)
    build.define(node, apply("div", expr, len(parts)) if node.op == "mean" else expr)


def extreme(build: Builder, node: Node) -> None:
    """Min and Max, two and two: compilers take seconds for long chains of choices."""
    function, y = node.op, node.outputs[0]
    build.check_function(function, *node.inputs)
    parts = [build.load(name, y) for name in node.inputs]
    numbers = [part for part in parts if isinstance(part, Number)]
    parts = [part for part in parts if not isinstance(part, Number)]
    while len(parts) > 1:
        rest = parts[len(parts) // 2 * 2 :]
        parts = [apply(function, *pair) for pair in zip(parts[::2], parts[1::2], strict=False)]
        parts += rest
    parts += numbers  # the last ones: a layer can do what ends with a number
    build.define(node, reduce(partial(apply, function), parts))


def power(build: Builder, node: Node) -> None:
    """``x ^ y`` of any two types, of x's type: in double where y is real and x is not."""
    (x, y), output = node.inputs, node.outputs[0]
    build.check_numbers(node, x, y)
    own, other = build.dtype(x), build.dtype(y)
    base, exponent = build.load(x, output), build.load(y, output)
    if isinstance(exponent, Number) and exponent.value in _POWERS:
        function = _POWERS[exponent.value]
        if template(function, kind_of_type(own)) is not None:
            build.define(node, apply(function, base))
            return
    inner = own
    if own not in FLOATS:
        inner = "float64" if other in FLOATS else max(own, other, key=_widths)
    elif other == "float64":
        inner = other
    value = apply("pow", convert(base, own, inner), convert(exponent, other, inner))
    build.define(node, convert(value, inner, own))


def _widths(dtype: str) -> int:
    """Types of whole numbers by how much they hold."""
    return ("int64", "uint64").index(dtype) if dtype.endswith("int64") else -1


def remainder(build: Builder, node: Node) -> None:
    """Mod: of the divisor's sign, or with ``fmod`` of the dividend's."""
    function = "remainder" if node.attributes.get("fmod", 0) else "mod"
    build.check_function(function, *node.inputs)
    y = node.outputs[0]
    build.define(node, apply(function, *(build.load(name, y) for name in node.inputs)))


def shift_bits(build: Builder, node: Node) -> None:
    """BitShift; all bits are gone after as many as there are."""
    direction, y = node.attributes.get("direction"), node.outputs[0]
    if direction not in ("LEFT", "RIGHT"):
        build.refuse(f"direction {direction!r:.40}: expected LEFT or RIGHT")
    function = f"shift_{direction.lower()}"
    build.check_function(function, *node.inputs)
    build.define(node, apply(function, *(build.load(name, y) for name in node.inputs)))


def clip(build: Builder, node: Node) -> None:
    """Bounds are attributes, or inputs since opset 11."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_function("max", x)
    if any(build.values[name].size != 1 for name in node.inputs[1:] if name):
        build.refuse("a bound of several numbers")
    expr = build.load(x, y)
    lowest: Any = node.attributes.get("min")
    highest: Any = node.attributes.get("max")
    if node.input(1):
        lowest = build.load(node.input(1), y)
    if node.input(2):
        highest = build.load(node.input(2), y)
    if lowest is not None:
        expr = apply("max", expr, lowest)
    if highest is not None:
        expr = apply("min", expr, highest)
    build.define(node, expr)


def affine(build: Builder, node: Node) -> None:
    """``x * scale + shift``, a number a channel."""
    x, scale, shift = node.inputs
    names = [
        build.number(f"{name}.f32", build.constants[name].astype(np.float32))
        for name in (scale, shift)
    ]
    first, second = (build.along(name, 1) for name in names)
    product = apply("mul", build.load(x, node.outputs[0]), first)
    build.define(node, apply("add", product, second))


def same(build: Builder, node: Node) -> None:
    """Identity, and Dropout where nothing is learned."""
    trains = node.input(2) and build.known(node, 2, "training_mode")
    if node.op == "dropout" and trains is not None and bool(np.any(trains)):
        build.refuse("training")
    build.check_numbers(node, node.inputs[0])
    build.define(node, build.load(node.inputs[0], node.outputs[0]))
    if len(node.outputs) > 1 and node.outputs[1]:
        build.define(node, apply("add", 1.0, 0.0), node.outputs[1])


def cast(build: Builder, node: Node) -> None:
    """The type of the output is known."""
    x, y = node.inputs[0], node.outputs[0]
    for name in (x, y):
        if build.dtype(name) not in STORED:
            build.refuse(f"elements of {build.dtype(name)}")
    build.define(node, convert(build.load(x, y), build.dtype(x), build.dtype(y)))


WORD = 1 << 32


def mask(build: Builder, node: Node) -> None:
    """The same for any threads, order of axes and instruction set."""
    y, (counter,) = node.outputs[0], node.inputs
    shape, ratio = build.shape(y), float(node.attributes["ratio"])
    if build.values[y].size > WORD:
        build.refuse(f"a mask of {build.values[y].size} elements: at most 2^32")
    steps = {f"i{at}": prod(shape[at + 1 :]) for at in range(len(shape))}
    seed, step = (apply("unsigned", Load(counter, (constant(at),))) for at in range(2))
    key = apply("add", seed, float(node.attributes["key"] % WORD))
    bits = apply("philox", apply("unsigned", Position(combine(steps))), step, key)
    build.define(node, apply("greater_equal", bits, float(round(ratio * WORD))))


def _function_row(function: ScalarFunction) -> Operator:
    """The row of an operator that is a scalar function, of ONNX's own name or in another domain."""
    own_values = "." in function.onnx or function.name in _OWN_VALUES
    return Operator(
        function.name,
        function.onnx,
        unary if len(function.inputs) == 1 else binary,
        partial(broadcast, dtype="bool" if is_predicate(function.name) else ""),
        gradients.by_function if function.derivatives or function.choice else None,
        partial(reference.by_function, function=function) if own_values else None,
        "alike",
    )


ROWS = (
    *(_function_row(function) for function in FUNCTIONS.values()
      if function.onnx and function.name != "select"),
    Operator("sum", "Sum", binary, gradient=gradients.add, dims="alike"),
    Operator("mean", "Mean", binary, gradient=gradients.add, dims="alike"),
    Operator("min", "Min", extreme, gradient=gradients.extreme, dims="alike"),
    Operator("max", "Max", extreme, gradient=gradients.extreme, dims="alike"),
    Operator("selu", "Selu", selu, gradient=gradients.by_formula, dims="alike"),
    Operator("gelu", "Gelu", gelu, gradient=gradients.by_function, reference=reference.gelu,
             dims="alike"),
    Operator("pow", "Pow", power, gradient=gradients.power, dims="alike"),
    Operator("mod", "Mod", remainder, dims="alike"),
    Operator("bit_shift", "BitShift", shift_bits, dims="alike"),
    Operator("clip", "Clip", clip, gradient=gradients.clip, dims="alike"),
    Operator("identity", "Identity", same, gradient=gradients.hand_on, dims="alike"),
    Operator("dropout", "Dropout", same, dims="alike"),
    Operator("cast", "Cast", cast, reference=reference.cast, dims="alike"),
    Operator("cast_like", "CastLike", cast, dims="alike"),
    Operator(AFFINE, "", affine, reference=reference.affine),
    Operator(DROPOUT_MASK, "", mask, reference=dropout.dropout_mask),
)  # fmt: skip
