"""Gradients of reductions over axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType

from polysci.graph.backward import Backward, Rule, known
from polysci.graph.formulas import derive
from polysci.graph.graph import Node

# Operator -> the gradient of x, with y and dy as wide as x, of n elements a result. As PyTorch
# has it where values are equal or 0.
_REDUCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "reduce_sum": "dy",
        "reduce_mean": "dy / n",
        "reduce_sum_square": "2 * dy * x",
        "reduce_l1": "dy * sign(x)",
        "reduce_l2": "select(y == 0, 0, dy * x / y)",
        "reduce_log_sum": "dy / exp(y)",
        "reduce_log_sum_exp": "dy * exp(x - y)",
    }
)


def reduction(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """A row of _REDUCTIONS."""
    names, axes = _operands(back, node, dys)
    shape = back.shape(node.inputs[0])
    n = prod(shape[at] for at in axes)
    dx = back.expand(derive(back, _REDUCTIONS[node.op], n=n, **names), shape)
    return [dx, *[""] * (len(node.inputs) - 1)]


def extreme(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """ReduceMax and ReduceMin; values that are equal share the gradient."""
    names, axes = _operands(back, node, dys)
    one = back.number(1.0, back.dtype(node.inputs[0]))
    equal = derive(back, "select(x == y, one, 0)", one=one, **names)
    n = back.total(equal, axes, keep=True)
    dx = derive(back, "select(x == y, dy / n, 0)", n=n, **names)
    return [dx, *[""] * (len(node.inputs) - 1)]


def _operands(
    back: Backward, node: Node, dys: Sequence[str]
) -> tuple[Mapping[str, str], Sequence[int]]:
    """x, y and dy, which keep the axes with one element, and these axes."""
    x, shape = node.inputs[0], back.shape(node.inputs[0])
    axes = known(back, node, 1, "axes")
    if not axes:
        axes = [] if node.attributes.get("noop_with_empty_axes") else list(range(len(shape)))
    axes = [at % len(shape) for at in axes]
    kept = [1 if at in axes else size for at, size in enumerate(shape)]
    y, dy = (back.reshape(name, kept) for name in (node.outputs[0], dys[0]))
    return {"x": x, "y": y, "dy": dy}, axes


def rule_of(name: str) -> Rule | None:
    """The rule of a reduction, if it has one."""
    return (
        extreme
        if name in ("reduce_max", "reduce_min")
        else (reduction if name in _REDUCTIONS else None)
    )
