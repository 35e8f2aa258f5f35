"""Operators that treat every element alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polysci.network.ir.expressions import Expr
from polysci.network.ir.graph import AFFINE, Node
from polysci.network.operators.builder import Builder, apply

# Operator -> function of functions.FUNCTIONS, the attributes that it takes and their defaults.
_UNARY: Mapping[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "Relu": ("relu", ()),
    "LeakyRelu": ("leaky", (("alpha", 0.01),)),
    "Sigmoid": ("sigmoid", ()),
    "Tanh": ("tanh", ()),
    "HardSigmoid": ("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5))),
    "HardSwish": ("hard_swish", ()),
    "Erf": ("erf", ()),
}
MOST_TERMS = 32  # of a sum that is computed at once
_BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}
_WHOLE = ("Relu", "Add", "Sub", "Mul", "Div", "Sum", "Clip")  # of whole numbers as well


def unary(build: Builder, node: Node) -> None:
    """A function of one tensor."""
    function, attributes = _UNARY[node.op]
    x, y = node.inputs[0], node.outputs[0]
    _check(build, node, x)
    numbers = [float(node.attributes.get(name, default)) for name, default in attributes]
    build.define(node, apply(function, build.load(x, y), *numbers))


def gelu(build: Builder, node: Node) -> None:
    x, y = node.inputs[0], node.outputs[0]
    _check(build, node, x)
    tanh = node.attributes.get("approximate", "none") == "tanh"
    build.define(node, apply("gelu_tanh" if tanh else "gelu", build.load(x, y)))


def binary(build: Builder, node: Node) -> None:
    """Arithmetic of two tensors that broadcast, or a sum of several."""
    _check(build, node, *node.inputs)
    y = node.outputs[0]
    parts = [build.load(name, y) for name in node.inputs]
    expr: Expr = parts[0]
    for number, part in enumerate(parts[1:], 1):
        if number % MOST_TERMS == 0:
            partial = build.fresh(f"{y}.sum", build.shape(y), build.dtype(y))
            expr = build.load(build.define(node, expr, partial), y)
        expr = apply(_BINARY.get(node.op, "add"), expr, part)
    build.define(node, expr)


def clip(build: Builder, node: Node) -> None:
    """Bounds are attributes, or inputs since opset 11."""
    x, y = node.inputs[0], node.outputs[0]
    _check(build, node, x)
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


def batch_normalisation(build: Builder, node: Node) -> None:
    """Batch normalisation whose parameters are not all constants, or of other types."""
    if node.attributes.get("training_mode") or any(node.outputs[1:]):
        build.refuse("training")
    _check(build, node, *node.inputs)
    x, *names = node.inputs
    scale, bias, mean, variance = (build.along(name, 1) for name in names)
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    root = apply("sqrt", apply("add", variance, epsilon))
    centred = apply("sub", build.load(x, node.outputs[0]), mean)
    build.define(node, apply("add", apply("mul", apply("div", centred, root), scale), bias))


def same(build: Builder, node: Node) -> None:
    """Identity, and Dropout where nothing is learned."""
    trains = node.input(2) and build.known(node, 2, "training_mode")
    if node.op == "Dropout" and trains is not None and bool(np.any(trains)):
        build.refuse("training")
    build.check_numbers(node, node.inputs[0])
    build.define(node, build.load(node.inputs[0], node.outputs[0]))
    if len(node.outputs) > 1 and node.outputs[1]:
        build.define(node, apply("add", 1.0, 0.0), node.outputs[1])


def _check(build: Builder, node: Node, *names: str) -> None:
    if node.op in _WHOLE:
        build.check_numbers(node, *names)
    else:
        build.check_floats(node, *names)


OPERATORS = {
    **dict.fromkeys(_UNARY, unary),
    **dict.fromkeys([*_BINARY, "Sum"], binary),
    "Gelu": gelu,
    "Clip": clip,
    "BatchNormalization": batch_normalisation,
    "Identity": same,
    "Dropout": same,
    AFFINE: affine,
}
