"""Gradients of operators that treat every element alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from polysci.graph.formulas import derive
from polysci.graph.gradients.backward import Backward, Rules
from polysci.graph.graph import Node

# Operator -> the gradient of x where that of y is dy, and the attributes in it with their defaults.
# At kinks as PyTorch has it.
_ALPHA = MappingProxyType({"alpha": 1.0})
_NONE: Mapping[str, float] = MappingProxyType({})
UNARY: Mapping[str, tuple[str, Mapping[str, float]]] = MappingProxyType(
    {
        "Relu": ("Where(y > 0, dy, 0)", _NONE),
        "Sigmoid": ("dy * y * (1 - y)", _NONE),
        "Tanh": ("dy * (1 - y * y)", _NONE),
        "Exp": ("dy * y", _NONE),
        "Log": ("dy / x", _NONE),
        "Sqrt": ("0.5 * dy / y", _NONE),
        "Reciprocal": ("-dy * y * y", _NONE),
        "Neg": ("-dy", _NONE),
        "Abs": ("dy * Sign(x)", _NONE),
        "Erf": ("dy * (1.1283791670955126 * Exp(-(x * x)))", _NONE),  # 2 / sqrt(pi)
        "Sin": ("dy * Cos(x)", _NONE),
        "Cos": ("-dy * Sin(x)", _NONE),
        "Tan": ("dy * (1 + y * y)", _NONE),
        "Asin": ("dy / Sqrt(1 - x * x)", _NONE),
        "Acos": ("-dy / Sqrt(1 - x * x)", _NONE),
        "Atan": ("dy / (1 + x * x)", _NONE),
        "Sinh": ("dy * Cosh(x)", _NONE),
        "Cosh": ("dy * Sinh(x)", _NONE),
        "Asinh": ("dy / Sqrt(x * x + 1)", _NONE),
        "Acosh": ("dy / Sqrt(x * x - 1)", _NONE),
        "Atanh": ("dy / (1 - x * x)", _NONE),
        "Softplus": ("dy * Sigmoid(x)", _NONE),
        "Softsign": ("dy / ((d := 1 + Abs(x)) * d)", _NONE),
        "Mish": ("dy * ((t := Tanh(Softplus(x))) + x * Sigmoid(x) * (1 - t * t))", _NONE),
        "HardSwish": ("Where(x <= -3, 0, Where(x < 3, dy * (x / 3 + 0.5), dy))", _NONE),
        "HardSigmoid": (
            "Where(And(y > 0, y < 1), dy * alpha, 0)", MappingProxyType({"alpha": 0.2}),
        ),
        "LeakyRelu": ("Where(x > 0, dy, dy * alpha)", MappingProxyType({"alpha": 0.01})),
        "ThresholdedRelu": ("Where(x > alpha, dy, 0)", _ALPHA),
        "Elu": ("Where(x > 0, dy, dy * (y + alpha))", _ALPHA),
        "Celu": ("Where(x > 0, dy, dy * (y / alpha + 1))", _ALPHA),
        "Selu": (
            "Where(x > 0, dy * gamma, dy * (y + alpha * gamma))",
            MappingProxyType({"alpha": 1.67326319217681884765625,
                              "gamma": 1.05070102214813232421875}),
        ),
        "Swish": ("dy * ((s := Sigmoid(alpha * x)) + alpha * y * (1 - s))", _ALPHA),
    }
)  # fmt: skip
# sqrt(1/2), 1 / sqrt(2 pi); sqrt(2 / pi), and 3 times 0.044715.
GELU = (
    "dy * (0.5 + 0.5 * Erf(x * 0.7071067811865476) + x * Exp(-0.5 * (x * x)) * 0.3989422804014327)"
)
GELU_TANH = (
    "dy * (0.5 * (1 + (t := Tanh(0.7978845608028654 * x * (1 + 0.044715 * (s := x * x)))))"
    " + 0.5 * x * (1 - t * t) * (0.7978845608028654 * (1 + 0.134145 * s)))"
)
# Operator -> gradients of a and b where that of y is dy.
_BINARY: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "Sub": ("dy", "-dy"),
        "Mul": ("dy * b", "dy * a"),
        "Div": ("dy / b", "-dy * y / b"),
    }
)
_BY_BASE = "Where(e == 0, 0, dy * e * x ** (e - 1))"
_BY_EXPONENT = "Where(And(x == 0, e >= 0), 0, dy * y * Log(x))"


def unary(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """A row of UNARY."""
    text, defaults = UNARY[node.op]
    numbers = {name: float(node.attributes.get(name, value)) for name, value in defaults.items()}
    return [derive(back, text, x=node.inputs[0], y=node.outputs[0], dy=dys[0], **numbers)]


def gelu(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Of either approximation."""
    text = GELU_TANH if node.attributes.get("approximate", "none") == "tanh" else GELU
    return [derive(back, text, x=node.inputs[0], dy=dys[0])]


def hand_on(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Identity."""
    return [dys[0]]


def constant(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Operators that are flat almost everywhere."""
    return [""] * len(node.inputs)


def add(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Add, Sum and Mean of any number of tensors that broadcast."""
    dy = dys[0]
    if node.op == "Mean":
        dy = derive(back, "dy * share", dy=dy, share=1 / len(node.inputs))
    return [
        back.unbroadcast(dy, back.shape(name)) if back.wants(name) else "" for name in node.inputs
    ]


def binary(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """A row of _BINARY; tensors broadcast."""
    a, b = node.inputs
    names = {"a": a, "b": b, "y": node.outputs[0], "dy": dys[0]}
    return [
        back.unbroadcast(derive(back, text, **names), back.shape(name)) if back.wants(name) else ""
        for name, text in zip(node.inputs, _BINARY[node.op], strict=True)
    ]


def power(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """``x ^ e``; a square needs no power. 0 where 0 is a power of 0, as PyTorch has it."""
    x, e = node.inputs
    names = {"x": x, "e": e, "y": node.outputs[0], "dy": dys[0]}
    value, dx, de = back.value(e), "", ""
    if back.wants(x):
        square = value is not None and value.size == 1 and float(value.reshape(-1)[0]) == 2
        dx = derive(back, "2 * dy * x" if square else _BY_BASE, **names)
        dx = back.unbroadcast(dx, back.shape(x))
    if back.wants(e):
        de = back.unbroadcast(derive(back, _BY_EXPONENT, **names), back.shape(e))
    return [dx, de]


def extreme(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Min and Max; values that are equal share the gradient."""
    y = node.outputs[0]
    one = back.number(1.0, back.dtype(y))
    equal = [derive(back, "Where(x == y, n, 0)", x=name, y=y, n=one) for name in node.inputs]
    share = derive(back, "dy / n", dy=dys[0], n=back.sum(equal))
    return [
        back.unbroadcast(derive(back, "m * s", m=mark, s=share), back.shape(name))
        if back.wants(name) else ""
        for name, mark in zip(node.inputs, equal, strict=True)
    ]  # fmt: skip


def clip(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Nothing beyond the bounds; these are attributes, or inputs."""
    dx = dys[0]
    for position, name, test in ((1, "min", "x >= bound"), (2, "max", "x <= bound")):
        bound = node.input(position) or node.attributes.get(name)
        if bound is not None and bound != "":
            names = {"x": node.inputs[0], "bound": bound, "dx": dx}
            dx = derive(back, f"Where({test}, dx, 0)", **names)
    return [dx, *[""] * (len(node.inputs) - 1)]


def parametric_relu(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """PRelu, and its slope."""
    x, slope = node.inputs
    names = {"x": x, "a": slope, "dy": dys[0]}
    dx = derive(back, "Where(x > 0, dy, dy * a)", **names)
    da = derive(back, "Where(x > 0, 0, dy * x)", **names)
    return [dx, back.unbroadcast(da, back.shape(slope))]


def where(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """To the value that was chosen."""
    condition, a, b = node.inputs
    parts = ((a, "Where(c, dy, 0)"), (b, "Where(c, 0, dy)"))
    return ["", *(
        back.unbroadcast(derive(back, text, c=condition, dy=dys[0]), back.shape(name))
        if back.wants(name) else ""
        for name, text in parts
    )]  # fmt: skip


GRADIENTS: Rules = MappingProxyType(
    {
        **dict.fromkeys(UNARY, unary),
        **dict.fromkeys(("Add", "Sum", "Mean"), add),
        **dict.fromkeys(_BINARY, binary),
        **dict.fromkeys(("Floor", "Ceil", "Round", "Sign"), constant),
        **dict.fromkeys(("Min", "Max"), extreme),
        "Identity": hand_on,
        "Gelu": gelu,
        "Pow": power,
        "Clip": clip,
        "PRelu": parametric_relu,
        "Where": where,
    }
)
