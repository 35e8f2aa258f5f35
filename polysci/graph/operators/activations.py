"""The functions that recurrent operators apply to their gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder
from polysci.loop_ir.expressions import Expr, apply

Activation = Callable[[Expr], Expr]
Parameters = tuple[float, ...]  # alpha, and beta of those that have one

# By lower case name: the function of x and its parameters, and their defaults in ONNX Runtime.
_ACTIVATIONS: Mapping[str, tuple[Callable[[Expr, Parameters], Expr], Parameters]] = (
    MappingProxyType({
        "relu": (lambda x, _: apply("relu", x), ()),
        "tanh": (lambda x, _: apply("tanh", x), ()),
        "sigmoid": (lambda x, _: apply("sigmoid", x), ()),
        "softsign": (lambda x, _: apply("softsign", x), ()),
        "softplus": (lambda x, _: apply("softplus", x), ()),
        "affine": (lambda x, p: apply("add", apply("mul", x, p[0]), p[1]), (1.0, 0.0)),
        "leakyrelu": (lambda x, p: apply("leaky", x, p[0]), (0.01,)),
        "thresholdedrelu": (lambda x, p: apply("select", apply("greater_equal", x, p[0]), x, 0.0),
                            (1.0,)),
        "elu": (lambda x, p: apply("elu", x, p[0]), (1.0,)),
        "scaledtanh": (lambda x, p: apply("mul", p[0], apply("tanh", apply("mul", x, p[1]))),
                       (1.0, 1.0)),
        "hardsigmoid": (lambda x, p: apply("hard_sigmoid", x, *p), (0.2, 0.5)),
    })
)  # fmt: skip


# By lower case name: the slope of a function by its value.
_SLOPES: Mapping[str, Callable[[Expr], Expr]] = MappingProxyType({
    "relu": lambda y: apply("select", apply("greater", y, 0.0), 1.0, 0.0),
    "tanh": lambda y: apply("sub", 1.0, apply("mul", y, y)),
    "sigmoid": lambda y: apply("mul", y, apply("sub", 1.0, y)),
})  # fmt: skip


def slopes(
    build: Builder, node: Node, directions: int, defaults: Sequence[str]
) -> list[list[Activation]]:
    """The slope of each function by its value, by direction; refuses functions without one."""
    names = [_text(name).lower() for name in node.attributes.get("activations") or ()]
    names = names or [name.lower() for name in defaults] * directions
    for name in names:
        if name not in _SLOPES:
            build.refuse(f"the gradient of activation {name}")
    made, size = [_SLOPES[name] for name in names], len(defaults)
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
    if name.lower() not in _ACTIVATIONS:
        build.refuse(f"activation {name}")
    function, defaults = _ACTIVATIONS[name.lower()]
    parameters = tuple(
        float(next(values, default)) for values, default in zip(lists, defaults, strict=False)
    )
    return lambda x: function(x, parameters)


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
