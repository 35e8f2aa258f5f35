"""Pools over windows, over whole images and over channels, and their gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod

import numpy as np

from polysci.graph.builder import Backward
from polysci.graph.formulas import derive
from polysci.graph.graph import AVERAGE_POOL_GRADIENT, MAX_POOL_GRADIENT, Node, Tensor
from polysci.graph.operators.builder import Builder, formula
from polysci.graph.operators.reductions import norm_over, reduce, root_of, to_power
from polysci.graph.operators.table import (
    Evaluation,
    Inference,
    Operator,
)
from polysci.graph.operators.windows import Span, spans
from polysci.loop_ir.expressions import (
    Expr,
    Guard,
    Index,
    Load,
    Lookup,
    Position,
    Reduce,
    apply,
    axis,
    combine,
)
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import Array


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
    """Add places of the largest elements by their taps, column-major for ``storage_order`` 1."""
    x, y = node.inputs[0], node.outputs[1]
    shape, windows = build.shape(x), windows_of(build, node)
    taps = build.fresh(f"{y}.tap", build.shape(y), "int32")
    build.define(node, over_windows(windows, "argmax", x), taps)
    tap = build.load(taps, y)
    sizes = shape[2:]
    whole = prod(sizes)
    place: Expr = Position(combine({"i0": shape[1] * whole, "i1": whole}))
    for at, window in enumerate(windows):
        columns = bool(node.attributes.get("storage_order", 0))
        place = formula(
            "place + (first + mod(tap / inner, taps) * dilation) * step", place=place, tap=tap,
            first=Position(combine({f"i{at + 2}": window.stride}, -window.before)),
            inner=prod(span.taps for span in windows[at + 1 :]), taps=window.taps,
            dilation=window.dilation, step=prod(sizes[:at] if columns else sizes[at + 1 :]),
        )  # fmt: skip
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
    """Return by axis what an element of each window along it counts in an average."""
    padded, counts = bool(node.attributes.get("count_include_pad", 0)), list[Array]()
    for window in windows:
        low = -window.before if padded else 0
        high = window.size + (window.after if padded else 0)
        first = np.arange(window.out) * window.stride - window.before
        before = np.maximum(0, -((first - low) // window.dilation))
        behind = np.minimum(window.taps, -((first - high) // window.dilation))
        counts.append(1 / np.maximum((behind - before).clip(0), 1))
    return counts


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
    return functools.reduce(partial(apply, "mul"), factors)


@dataclass(frozen=True, slots=True)
class _Around:
    """The windows that each place along an axis of x is in, and which tap of each it is."""

    windows: Array
    taps: Array

    @property
    def most(self) -> int:
        """Windows that one place is in."""
        return int(self.windows.shape[1])


def _around(span: Span) -> _Around:
    inside: list[list[tuple[int, int]]] = [[] for _ in range(span.size)]
    for window in range(span.out):
        for tap in range(span.taps):
            place = window * span.stride + tap * span.dilation - span.before
            if 0 <= place < span.size:
                inside[place].append((window, tap))
    most = max(1, *map(len, inside))
    rows = [[*some, *[(0, -1)] * (most - len(some))] for some in inside]
    table = np.array(rows, np.int32).reshape(span.size, most, 2)
    return _Around(table[:, :, 0], table[:, :, 1])


def _gather(build: Builder, node: Node, along: list[_Around], base: str, rows: list[Array],
            term: str) -> tuple[Reduce, list[Load]]:  # fmt: skip
    """A sum over the windows of an element, of its ``term``; and what ``rows`` say of each."""
    index: list[Index] = [axis(0), axis(1)]
    loads = list[Load]()
    for at, (around, row) in enumerate(zip(along, rows, strict=True)):
        place = combine({f"i{at + 2}": around.most, f"k{at}": 1})
        index.append(Lookup(tuple(map(int, around.windows.reshape(-1))), place))
        name = build.number(f"{node.outputs[0]}.{base}{at}", row)
        loads.append(Load(name, (axis(at + 2), combine({f"k{at}": 1}))))
    over = tuple((f"k{at}", around.most) for at, around in enumerate(along))
    return Reduce("add", over, Load(term, tuple(index))), loads


def spread_maximum(build: Builder, node: Node) -> None:
    """dy of the windows of which x is the first of the largest elements."""
    dy, x = node.inputs
    build.check_floats(node, dy, x)
    windows = spans(node, build.shape(x), node.attributes["kernel_shape"], build.shape(dy))
    every = prod(span.taps for span in windows)
    taps = build.fresh(
        f"{node.outputs[0]}.tap", build.shape(dy), "uint8" if every <= 256 else "int32"
    )
    build.define(node, over_windows(windows, "argmax", x), taps)
    along = [_around(span) for span in windows]
    steps = [prod(span.taps for span in windows[at + 1 :]) for at in range(len(windows))]
    rows = [  # so far below 0 where there is no window that no sum of them is a tap
        np.where(around.taps < 0, -every, around.taps * step).astype(np.int32)
        for around, step in zip(along, steps, strict=True)
    ]
    gathered, loads = _gather(build, node, along, "place", rows, dy)
    own: Expr = loads[0]
    for row in loads[1:]:
        own = apply("add", own, row)
    assert isinstance(gathered.body, Load)
    chosen = Load(taps, gathered.body.index)
    body = apply("select", apply("equal", chosen, own), gathered.body, 0)
    build.define(node, Reduce("add", gathered.over, body))


def spread_average(build: Builder, node: Node) -> None:
    """The share of dy that x has in each of its windows."""
    (dy,), shape = node.inputs, build.shape(node.outputs[0])
    build.check_floats(node, dy)
    windows = spans(node, shape, node.attributes["kernel_shape"], build.shape(dy))
    along = [_around(span) for span in windows]
    rows = [
        np.where(around.taps < 0, 0, share[around.windows]).astype(build.dtype(dy))
        for around, share in zip(along, shares(node, windows), strict=True)
    ]
    gathered, loads = _gather(build, node, along, "share", rows, dy)
    factor: Expr = loads[0]
    for row in loads[1:]:
        factor = apply("mul", factor, row)
    body = apply("mul", gathered.body, factor)
    if any((around.taps < 0).any() for around in along):  # where dy may not be finite
        body = apply("select", apply("greater", factor, 0), body, 0)
    build.define(node, Reduce("add", gathered.over, body))


def crop_pool(of: Inference) -> Sequence[Tensor | None]:
    """Drop windows of ``ceil_mode`` that start outside x and the padding before it.

    So since opset 22, and in ONNX Runtime for every opset.
    """
    attributes = of.node.attributes
    x, taps = of.shape[2:], len(attributes.get("kernel_shape") or [])
    if not attributes.get("ceil_mode") or taps != len(x):
        return of.results
    strides = attributes.get("strides") or [1] * taps
    pads = attributes.get("pads") or [0] * 2 * taps

    def crop(tensor: Tensor) -> Tensor:
        sizes = [
            size - ((size - 1) * strides[at] >= x[at] + pads[at])
            for at, size in enumerate(tensor.shape[2:])
        ]
        return replace(tensor, shape=(*tensor.shape[:2], *sizes))

    return [None if tensor is None else crop(tensor) for tensor in of.results]


def maximum_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Hand the gradient to the first of the largest elements of a window."""
    x = node.inputs[0]
    attributes = dict(node.attributes)
    if node.op == "global_max_pool":
        attributes["kernel_shape"] = list(back.shape(x)[2:])
    return [back.add(MAX_POOL_GRADIENT, (dys[0], x), back.shape(x), back.dtype(x), **attributes)]


def average_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """An equal share to each element of a window."""
    shape, dtype = back.shape(node.inputs[0]), back.dtype(node.inputs[0])
    return [back.add(AVERAGE_POOL_GRADIENT, (dys[0],), shape, dtype, **node.attributes)]


def global_average_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """An equal share to all."""
    shape = back.shape(node.inputs[0])
    return [back.expand(derive(back, "dy / n", dy=dys[0], n=prod(shape[2:])), shape)]


Place = tuple[int, ...]


def pool_gradient_reference(of: Evaluation) -> list[Array]:
    """The gradient of x."""
    node, known, shape = of.node, of.known, of.results[0].shape
    dy = known[node.inputs[0]]
    dx = np.zeros(shape, dy.dtype)
    for window in np.ndindex(*dy.shape[2:]):
        places, padded = _window_places(node, window, shape[2:], dy.shape[2:])
        if not places:
            continue
        part = dy[(..., *window)]
        columns = tuple(np.array(places).T)
        if node.op == AVERAGE_POOL_GRADIENT:
            np.add.at(dx, (..., *columns), part[..., None] / padded)
            continue
        first = known[node.inputs[1]][(..., *columns)].argmax(-1)
        chosen = tuple(np.array(places)[first].transpose(2, 0, 1))
        images, channels = np.indices(part.shape)
        dx[(images, channels, *chosen)] += part
    return [dx]


def _window_places(node: Node, window: Place, size: Place, out: Place) -> tuple[list[Place], int]:
    """Places in x that a window covers; and how many count in its average."""
    inside, counted = list[list[int]](), 1
    for at, (places, pads) in enumerate(_along(node, window, size, out)):
        inside.append([place for place in places if 0 <= place < size[at]])
        wide = bool(node.attributes.get("count_include_pad"))
        reach = range(-pads[0], size[at] + pads[1])
        counted *= len([place for place in places if place in reach] if wide else inside[-1])
    return [*product(*inside)], max(counted, 1)


def _along(
    node: Node, window: Place, size: Place, out: Place
) -> Iterator[tuple[list[int], tuple[int, int]]]:
    """Return by axis the places of a window's taps, padding included, and the padding."""
    rank, attributes = len(size), node.attributes
    taps = attributes["kernel_shape"]
    steps, gaps = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
    pads = attributes.get("pads") or [0] * 2 * rank
    for at in range(rank):
        first = window[at] * steps[at] - pads[at]
        yield [first + tap * gaps[at] for tap in range(taps[at])], (pads[at], pads[rank + at])


def local_response_reference(of: Evaluation) -> list[Array]:
    """LRN of all channels: ONNX's reference treats as many as there are images."""
    (x,), node = of.inputs, of.node
    alpha, beta, bias = (
        node.attributes.get(name, default)
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    size = node.attributes["size"]
    wide = [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * (x.ndim - 2)]
    squares = np.pad(x * x, wide)
    sums = sum(squares[:, at : at + x.shape[1]] for at in range(size))
    return [x / (bias + alpha / size * sums) ** beta]


def global_pool(build: Builder, node: Node) -> None:
    """GlobalAveragePool, GlobalMaxPool, GlobalLpPool: over all axes behind the first two."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_floats(node, x)
    axes = range(2, len(build.shape(x)))
    count = prod(build.shape(x)[number] for number in axes)
    if not count and build.values[y].size:
        build.refuse("a pool of nothing")
    if node.op == "global_max_pool":
        build.define(node, reduce(build, x, axes, "max", keep=True))
    elif node.op == "global_lp_pool":
        power = float(node.attributes.get("p", 2))
        sums = reduce(build, x, axes, "add", keep=True, before=lambda part: to_power(part, power))
        build.define(node, root_of(sums, power))
    else:
        sums = reduce(build, x, axes, "add", keep=True)
        build.define(node, apply("mul", sums, 1 / max(1, count)))


def global_maximum_reference(of: Evaluation) -> list[Array]:
    """The largest of all pixels: ONNX's reference knows images of two axes alone."""
    (x,) = of.inputs
    return [x.max(axis=tuple(range(2, x.ndim)), keepdims=True)]


def global_norm_reference(of: Evaluation) -> list[Array]:
    """The norm of all pixels, which ONNX's reference lacks."""
    (x,) = of.inputs
    return [norm_over(x, tuple(range(2, x.ndim)), float(of.node.attributes.get("p", 2)))]


ROWS = (
    Operator("max_pool", "MaxPool", maximum, crop_pool, maximum_gradient, dims="images"),
    Operator("average_pool", "AveragePool", average, crop_pool, average_gradient, dims="images"),
    Operator("lp_pool", "LpPool", norm, crop_pool, dims="images"),
    Operator("local_response_norm", "LRN", local_response, reference=local_response_reference,
             dims="images"),
    Operator(MAX_POOL_GRADIENT, "", spread_maximum, reference=pool_gradient_reference),
    Operator(AVERAGE_POOL_GRADIENT, "", spread_average, reference=pool_gradient_reference),
    Operator("global_average_pool", "GlobalAveragePool", global_pool,
             gradient=global_average_gradient, dims="images"),
    Operator("global_max_pool", "GlobalMaxPool", global_pool, gradient=maximum_gradient,
             reference=global_maximum_reference, dims="images"),
    Operator("global_lp_pool", "GlobalLpPool", global_pool, reference=global_norm_reference),
)  # fmt: skip
