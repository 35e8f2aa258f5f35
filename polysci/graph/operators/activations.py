"""The functions that recurrent operators apply to their gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder
from polysci.loop_ir.expressions import Expr, apply
from polysci.numerics.formulas import evaluate, gradients, parse
from polysci.numerics.scalar_functions import FUNCTIONS, ScalarFunction

Activation = Callable[[Expr], Expr]
Parameters = tuple[float, ...]  # alpha, and beta of those that have one

# By lower case name: functions that the table of scalar functions lacks, of x and their parameters,
# and the defaults of these in ONNX Runtime.
_OTHERS: Mapping[str, tuple[Callable[..., Expr], Parameters]] = MappingProxyType({
    "affine": (lambda x, a, b: apply("add", apply("mul", x, a), b), (1.0, 0.0)),
    "thresholdedrelu": (lambda x, a: apply("select", apply("greater_equal", x, a), x, 0.0),
                        (1.0,)),
    "scaledtanh": (lambda x, a, b: apply("mul", a, apply("tanh", apply("mul", x, b))), (1.0, 1.0)),
})  # fmt: skip
_FUNCTIONS: Mapping[str, ScalarFunction] = MappingProxyType(
    {row.onnx.lower(): row for row in FUNCTIONS.values() if row.inputs == ("x",)}
)
# Functions whose slope is known by their value.
_WITH_SLOPES = ("relu", "tanh", "sigmoid")


def _slope(function: str) -> Activation:
    """The slope of a function by its value."""
    row = FUNCTIONS[function]
    formula = parse(row.derivatives[0]) if row.derivatives else gradients(function)[0]
    assert formula is not None
    return lambda y: evaluate(formula, {"y": y, "dy": 1.0}, _apply)


def _apply(function: str, parts: Sequence[Expr | float]) -> Expr:
    return apply(function, *parts)


def slopes(
    build: Builder, node: Node, directions: int, defaults: Sequence[str]
) -> list[list[Activation]]:
    """The slope of each function by its value, by direction; refuses functions without one."""
    names = [_text(name).lower() for name in node.attributes.get("activations") or ()]
    names = names or [name.lower() for name in defaults] * directions
    for name in names:
        if name not in _WITH_SLOPES:
            build.refuse(f"the gradient of activation {name}")
    made, size = [_slope(name) for name in names], len(defaults)
    return [made[first : first + size] for first in range(0, len(made), size)]


def activations(
    build: Builder, node: Node, directions: int, defaults: Sequence[str]
) -> list[list[Activation]]:
    """The functions of each direction in turn; alpha and beta go to those that take them."""
    names = list(node.attributes.get("activations") or [*defaults] * directions)
    if len(names) != directions * len(defaults):
        build.refuse(f"{len(names)} activations; expected {directions * len(defaults)}")
    lists = [iter(node.attributes.get(f"activation_{word}") or ()) for word in ("alpha", "beta")]
    made = [_activation(build, _text(name), lists) for name in names]
    size = len(defaults)
    return [made[first : first + size] for first in range(0, len(made), size)]


def _activation(build: Builder, name: str, lists: Sequence[Iterator[float]]) -> Activation:
    function: Callable[..., Expr]
    if row := _FUNCTIONS.get(name.lower()):
        function, defaults = partial(apply, row.name), tuple(row.parameters.values())
    elif name.lower() in _OTHERS:
        function, defaults = _OTHERS[name.lower()]
    else:
        build.refuse(f"activation {name}")
    parameters = tuple(
        float(next(values, default)) for values, default in zip(lists, defaults, strict=False)
    )
    return lambda x: function(x, *parameters)


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
