"""Pools over windows, and normalisation over neighbouring channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import prod

import numpy as np

from polysci.graph.gradients import pooling as gradients
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.reductions import root_of, to_power
from polysci.graph.operators.table import Operator
from polysci.graph.operators.windows import Span, spans
from polysci.graph.reference import normalisation
from polysci.graph.shapes import crop_pool
from polysci.loop_ir.expressions import (
    Expr,
    Guard,
    Index,
    Load,
    Position,
    Reduce,
    apply,
    axis,
    combine,
)
from polysci.numerics.arrays import Array
from polysci.polyhedral.affine import Affine


def windows_of(build: Builder, node: Node) -> tuple[Span, ...]:
    shape = node.attributes["kernel_shape"]
    return spans(node, build.shape(node.inputs[0]), shape, build.shape(node.outputs[0]))


def over_windows(
    windows: tuple[Span, ...],
    function: str,
    x: str,
    before: Callable[[Expr], Expr] = lambda element: element,
) -> Reduce:
    """A reduction over the taps that fall inside x."""
    names = [f"r{at}" for at in range(len(windows))]
    places = [window.at(f"i{at + 2}", names[at]) for at, window in enumerate(windows)]
    guards = [window.guard(f"i{at + 2}", names[at]) for at, window in enumerate(windows)]
    index: list[Index] = [axis(0), axis(1), *places]
    over = tuple((name, window.taps) for name, window in zip(names, windows, strict=True))
    inside = tuple(guard for guard in guards if guard)
    return Reduce(function, over, before(Load(x, tuple(index))), inside)


def maximum(build: Builder, node: Node) -> None:
    """The largest element of a window, and its place among all of x where that is asked for."""
    build.check_numbers(node, node.inputs[0])
    build.define(node, over_windows(windows_of(build, node), "max", node.inputs[0]))
    if len(node.outputs) > 1 and node.outputs[1]:
        _places(build, node)


def _places(build: Builder, node: Node) -> None:
    """From the tap that holds the largest element; column-major where ``storage_order`` is 1."""
    x, y = node.inputs[0], node.outputs[1]
    shape, windows = build.shape(x), windows_of(build, node)
    taps = build.fresh(f"{y}.tap", build.shape(y), "int32")
    build.define(node, over_windows(windows, "argmax", x), taps)
    tap = build.load(taps, y)
    sizes = shape[2:]
    whole = prod(sizes)
    place: Expr = Position(combine({"i0": shape[1] * whole, "i1": whole}))
    for at, window in enumerate(windows):
        number: Expr = apply("div", tap, float(prod(span.taps for span in windows[at + 1 :])))
        number = apply("mod", number, float(window.taps))
        first = Position(combine({f"i{at + 2}": window.stride}, -window.before))
        pixel = apply("add", first, apply("mul", number, float(window.dilation)))
        columns = bool(node.attributes.get("storage_order", 0))
        step = prod(sizes[:at] if columns else sizes[at + 1 :])
        place = apply("add", place, apply("mul", pixel, float(step)))
    build.define(node, place, y)


def average(build: Builder, node: Node) -> None:
    """The mean of what is inside x, or of the padding as well, but never of more than that."""
    build.check_floats(node, node.inputs[0])
    expr: Expr = over_windows(windows_of(build, node), "add", node.inputs[0])
    for at, share in enumerate(shares(node, windows_of(build, node))):
        if len(set(share)) == 1:
            expr = apply("mul", expr, float(share[0]))
            continue
        name = build.number(
            f"{node.outputs[0]}.share{at}", share.astype(build.dtype(node.inputs[0]))
        )
        expr = apply("mul", expr, build.along(name, at + 2))
    build.define(node, expr)


def shares(node: Node, windows: Sequence[Span]) -> list[Array]:
    """By axis, what an element of each window along it counts in an average."""
    padded, made = bool(node.attributes.get("count_include_pad", 0)), list[Array]()
    for window in windows:
        low = -window.before if padded else 0
        high = window.size + (window.after if padded else 0)
        first = np.arange(window.out) * window.stride - window.before
        before = np.maximum(0, -((first - low) // window.dilation))
        behind = np.minimum(window.taps, -((first - high) // window.dilation))
        made.append(1 / np.maximum((behind - before).clip(0), 1))
    return made


def norm(build: Builder, node: Node) -> None:
    """LpPool: the norm of what is inside x."""
    x = node.inputs[0]
    build.check_floats(node, x)
    power = float(node.attributes.get("p", 2))
    terms = over_windows(
        windows_of(build, node), "add", x, lambda element: to_power(element, power)
    )
    build.define(node, root_of(terms, power))


def local_response(build: Builder, node: Node) -> None:
    """LRN: ``x / (bias + alpha / size * sum of x^2 over neighbouring channels) ^ beta``."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_floats(node, x)
    size = int(node.attributes["size"])
    if size < 1:
        build.refuse(f"size {size}")
    alpha, beta, bias = (
        float(node.attributes.get(name, default))
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    place = combine({"i1": 1, "r1": 1}, -((size - 1) // 2))
    index: list[Affine] = [axis(at) for at in range(len(build.shape(x)))]
    index[1] = place
    neighbour = Load(x, tuple(index))
    guard = Guard(place, build.shape(x)[1])
    squares = Reduce("add", (("r1", size),), apply("mul", neighbour, neighbour), (guard,))
    base = apply("add", apply("mul", squares, alpha / size), bias)
    build.define(node, apply("div", build.load(x, y), _by_roots(base, beta)))


def _by_roots(base: Expr, power: float) -> Expr:
    """``base ^ power``, by roots for quarters up to 2: they take a fraction of the time."""
    quarters = 4 * power
    if quarters not in range(1, 9):
        return apply("pow", base, power)
    root = apply("sqrt", base)
    factors = [base] * int(quarters // 4)
    factors += [root] * int(quarters % 4 // 2) + [apply("sqrt", root)] * int(quarters % 2)
    return reduce(partial(apply, "mul"), factors)


ROWS = (
    Operator("max_pool", "MaxPool", maximum, crop_pool, gradients.maximum, dims="images"),
    Operator("average_pool", "AveragePool", average, crop_pool, gradients.average, dims="images"),
    Operator("lp_pool", "LpPool", norm, crop_pool, dims="images"),
    Operator("local_response_norm", "LRN", local_response, reference=normalisation.local_response,
             dims="images"),
)  # fmt: skip
