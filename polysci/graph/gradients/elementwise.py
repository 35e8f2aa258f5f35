"""Gradients of operators that treat every element alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from polysci.graph.backward import Backward
from polysci.graph.formulas import Part, derive
from polysci.graph.graph import Node
from polysci.numerics.formulas import gradients
from polysci.numerics.scalar_functions import FUNCTIONS

_SELU = MappingProxyType({"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875})
# Operator without a function of its own -> the gradient of x, and its attributes.
_FORMULAS: Mapping[str, tuple[str, Mapping[str, float]]] = MappingProxyType(
    {
        "thresholded_relu": ("select(x > alpha, dy, 0)", MappingProxyType({"alpha": 1.0})),
        "selu": ("select(x > 0, dy * gamma, dy * (y + alpha * gamma))", _SELU),
    }
)


def by_formula(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """A row of _FORMULAS."""
    text, defaults = _FORMULAS[node.op]
    return [derive(back, text, **_names(node, dys, ("x",), defaults))]


def by_function(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """By the derivatives of a scalar function, of tensors that broadcast."""
    function = FUNCTIONS[_function_of(node)]
    names = _names(node, dys, function.names, function.parameters)
    return [
        back.unbroadcast(derive(back, formula, **names), back.shape(name))
        if formula is not None and back.wants(name) else ""
        for name, formula in zip(node.inputs, gradients(function.name), strict=False)
    ]  # fmt: skip


def _function_of(node: Node) -> str:
    tanh = node.op == "gelu" and node.attributes.get("approximate", "none") == "tanh"
    return "gelu_tanh" if tanh else node.op


def _names(
    node: Node, dys: Sequence[str], inputs: Sequence[str], defaults: Mapping[str, float]
) -> dict[str, Part]:
    """The tensors and numbers of formulas by their names."""
    numbers = {name: float(node.attributes.get(name, value)) for name, value in defaults.items()}
    tensors = zip(inputs, node.inputs, strict=False)
    return {**dict(tensors), "y": node.outputs[0], "dy": dys[0], **numbers}


def hand_on(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Identity."""
    return [dys[0]]


def add(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Sum and Mean of any number of tensors that broadcast."""
    dy = dys[0]
    if node.op == "mean":
        dy = derive(back, "dy * share", dy=dy, share=1 / len(node.inputs))
    return [
        back.unbroadcast(dy, back.shape(name)) if back.wants(name) else "" for name in node.inputs
    ]


def power(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """``a ^ b``; a square needs no power."""
    (a, b), made = node.inputs, ["", ""]
    value = back.value(b)
    square = value is not None and value.size == 1 and float(value.reshape(-1)[0]) == 2
    by_base, by_exponent = gradients("pow")
    formulas = ["2 * dy * a" if square else by_base, by_exponent]
    for at, (name, formula) in enumerate(zip((a, b), formulas, strict=True)):
        if formula is not None and back.wants(name):
            dx = derive(back, formula, **_names(node, dys, ("a", "b"), {}))
            made[at] = back.unbroadcast(dx, back.shape(name))
    return made


def extreme(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Min and Max; values that are equal share the gradient."""
    y = node.outputs[0]
    one = back.number(1.0, back.dtype(y))
    equal = [derive(back, "select(x == y, n, 0)", x=name, y=y, n=one) for name in node.inputs]
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
            dx = derive(back, f"select({test}, dx, 0)", **names)
    return [dx, *[""] * (len(node.inputs) - 1)]


def parametric_relu(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """PRelu, and its slope."""
    x, slope = node.inputs
    names = {"x": x, "a": slope, "dy": dys[0]}
    dx = derive(back, "select(x > 0, dy, dy * a)", **names)
    da = derive(back, "select(x > 0, 0, dy * x)", **names)
    return [dx, back.unbroadcast(da, back.shape(slope))]
