"""Gradients of matrix products: products themselves."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.graph.backward import Backward
from polysci.graph.formulas import derive
from polysci.graph.graph import Node


def multiply(
    back: Backward, a: str, b: str, *, turn_a: bool = False, turn_b: bool = False,
    alpha: float = 1.0,
) -> str:  # fmt: skip
    """``alpha * A' * B'`` of two matrices."""
    rows, columns = back.shape(a)[turn_a], back.shape(b)[1 - turn_b]
    words: dict[str, float] = {"transA": int(turn_a), "transB": int(turn_b)}
    if alpha != 1:
        words["alpha"] = alpha
    return back.add("gemm", (a, b), (rows, columns), back.dtype(a), **words)


def gemm(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """``alpha * A' * B' + beta * C``."""
    a, b, dy = node.inputs[0], node.inputs[1], dys[0]
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    across, behind = bool(node.attributes.get("transA")), bool(node.attributes.get("transB"))
    da = db = dc = ""
    if back.wants(a):
        pair, turns = ((b, dy), (behind, True)) if across else ((dy, b), (False, not behind))
        da = multiply(back, *pair, turn_a=turns[0], turn_b=turns[1], alpha=alpha)
    if back.wants(b):
        pair, turns = ((dy, a), (True, across)) if behind else ((a, dy), (not across, False))
        db = multiply(back, *pair, turn_a=turns[0], turn_b=turns[1], alpha=alpha)
    if node.input(2) and back.wants(node.inputs[2]):
        dc = back.unbroadcast(dy, back.shape(node.inputs[2]))
        dc = dc if beta == 1 else derive(back, "dc * beta", dc=dc, beta=beta)
    return [da, db, dc][: len(node.inputs)]


def matmul(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """NumPy's product: vectors as matrices of one row or column, stacks that broadcast."""
    a, b = node.inputs
    left, right = back.shape(a), back.shape(b)
    first = back.reshape(a, (1, *left) if len(left) == 1 else left)
    second = back.reshape(b, (*right, 1) if len(right) == 1 else right)
    rows, inner = back.shape(first)[-2:]
    columns = back.shape(second)[-1]
    around = back.shape(node.outputs[0])[: max(len(left), len(right), 2) - 2]
    dy = back.reshape(dys[0], (*around, rows, columns))
    if prod(back.shape(second)[:-2]) == 1:
        flat = back.reshape(dy, (prod(around) * rows, columns))
        matrix = back.reshape(second, (inner, columns))
        da = multiply(back, flat, matrix, turn_b=True) if back.wants(a) else ""
        tall = back.reshape(first, (prod(around) * rows, inner))
        db = multiply(back, tall, flat, turn_a=True) if back.wants(b) else ""
        return [back.reshape(da, left) if da else "", back.reshape(db, right) if db else ""]
    da = db = ""
    if back.wants(a):
        wide = _stack(back, dy, _turned(back, second), (*around, rows, inner))
        da = back.reshape(back.unbroadcast(wide, back.shape(first)), left)
    if back.wants(b):
        wide = _stack(back, _turned(back, first), dy, (*around, inner, columns))
        db = back.reshape(back.unbroadcast(wide, back.shape(second)), right)
    return [da, db]


def _stack(back: Backward, a: str, b: str, shape: Sequence[int]) -> str:
    return back.add("matmul", (a, b), shape, back.dtype(a))


def _turned(back: Backward, x: str) -> str:
    """Every matrix of a stack transposed."""
    rank = len(back.shape(x))
    return back.transpose(x, (*range(rank - 2), rank - 1, rank - 2))
