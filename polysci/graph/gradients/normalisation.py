"""Gradients of normalisations: sums of dy and of its products with what was normalised.

Ioffe and Szegedy, Batch Normalization (2015), section 3; Ba, Kiros and Hinton, Layer Normalization
(2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from polysci.errors import UnsupportedError
from polysci.graph.backward import Backward
from polysci.graph.builder import GraphBuilder
from polysci.graph.formulas import derive
from polysci.graph.graph import Node


@dataclass(frozen=True, slots=True)
class Normalised:
    """``(x - m) * s * g``: m and s are 1 long along ``axes``, g broadcasts; without m around 0."""

    x: str
    g: str
    s: str
    axes: tuple[int, ...]
    m: str = ""

    @property
    def names(self) -> dict[str, str]:
        return {"x": self.x, "g": self.g, "s": self.s} | ({"m": self.m} if self.m else {})

    @property
    def normal(self) -> str:
        """The formula of what g multiplies."""
        return "(x - m) * s" if self.m else "x * s"

    def gradients(self, back: Backward, dy: str, bias: Sequence[int]) -> tuple[str, str, str]:
        """Of x, of g, and of what is added and has the shape ``bias``."""
        names, centred = self.names | {"dy": dy}, "x - m" if self.m else "x"
        shape = back.shape(self.g)
        dg = back.unbroadcast(derive(back, f"dy * ({self.normal})", **names), shape)
        db = back.unbroadcast(dy, bias)
        count = prod(back.shape(self.x)[at] for at in self.axes)
        kept = [1 if at in self.axes else size for at, size in enumerate(back.shape(self.x))]
        gain = [1] * (len(kept) - len(shape)) + list(shape)
        if self.m and gain == kept and tuple(bias) == shape:
            sums = {"a": db, "b": dg}  # g is the same for all that share statistics
            text = f"dy * (g * s) - ({centred}) * (g * s * s * b / n) - g * s * a / n"
            return derive(back, text, **names, **sums, n=count), dg, db
        b = back.total(derive(back, f"dy * g * ({self.normal})", **names), self.axes, keep=True)
        text = f"s * (dy * g) - ({centred}) * (s * s * b / n)"
        if self.m:
            names["a"] = back.total(derive(back, "dy * g", **names), self.axes, keep=True)
            text += " - s * a / n"
        return derive(back, text, **names, b=b, n=count), dg, db

    def known_gradients(self, back: Backward, dy: str, bias: Sequence[int]) -> tuple[str, str, str]:
        """The same where m and s do not depend on x."""
        dx = derive(back, "dy * (g * s)", dy=dy, g=self.g, s=self.s)
        scaled = derive(back, f"dy * ({self.normal})", dy=dy, **self.names)
        return dx, back.unbroadcast(scaled, back.shape(self.g)), back.unbroadcast(dy, bias)


def statistics(graph: GraphBuilder, x: str, axes: Sequence[int], epsilon: float) -> tuple[str, str]:
    """The mean and ``1 / sqrt(variance + epsilon)``, each 1 long along ``axes``."""
    count = prod(graph.shape(x)[at] for at in axes)
    mean = derive(graph, "t / n", t=graph.total(x, axes, keep=True), n=count)
    squares = derive(graph, "(d := x - m) * d", x=x, m=mean)
    return mean, _inverse(graph, graph.total(squares, axes, keep=True), count, epsilon)


def _inverse(back: GraphBuilder, squares: str, count: int, epsilon: float) -> str:
    return derive(back, "1 / sqrt(t / n + e)", t=squares, n=count, e=epsilon)


def _epsilon(node: Node) -> float:
    return float(node.attributes.get("epsilon", 1e-5))


def _only_result(node: Node, dys: Sequence[str]) -> str:
    """The gradient of the first output; none may reach the others."""
    if any(dys[1:]):
        raise UnsupportedError("a gradient of its statistics")
    return dys[0]


def batch(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """By the batch's statistics in training, else by known ones, which get no gradients."""
    x, scale, bias, *known = node.inputs
    dy, shape = _only_result(node, dys), back.shape(x)
    channels = (shape[1], *[1] * (len(shape) - 2))
    g, axes = back.reshape(scale, channels), tuple(at for at in range(len(shape)) if at != 1)
    trains, own = bool(node.attributes.get("training_mode")), node.outputs[1:3]
    if trains and (len(own) < 2 or not all(own) or float(node.attributes.get("momentum", 0.9))):
        m, s = statistics(back, x, axes, _epsilon(node))
    else:
        m, variance = (back.reshape(name, channels) for name in (own if trains else known))
        s = derive(back, "1 / sqrt(v + e)", v=variance, e=_epsilon(node))
    normal = Normalised(x, g, s, axes, m)
    dx, dg, db = (normal.gradients if trains else normal.known_gradients)(back, dy, channels)
    return [dx, back.reshape(dg, back.shape(scale)), back.reshape(db, back.shape(bias)), "", ""]


def layer(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Over all axes from one on."""
    x, g, bias = node.inputs[0], node.inputs[1], node.input(2)
    dy, shape = _only_result(node, dys), back.shape(x)
    first = int(node.attributes.get("axis", -1)) % len(shape)
    small = (*shape[:first], *[1] * (len(shape) - first))
    m, s = (back.also(node, at, small, back.dtype(x)) for at in (1, 2))
    normal = Normalised(x, g, s, tuple(range(first, len(shape))), m)
    return normal.gradients(back, dy, back.shape(bias or g))[: len(node.inputs)]


def root_mean_square(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Over all axes from one on, around 0."""
    x, g = node.inputs[:2]
    shape = back.shape(x)
    axes = tuple(range(int(node.attributes.get("axis", -1)) % len(shape), len(shape)))
    squares = back.total(derive(back, "x * x", x=x), axes, keep=True)
    s = _inverse(back, squares, prod(shape[at] for at in axes), _epsilon(node))
    return Normalised(x, g, s, axes).gradients(back, dys[0], back.shape(g))[:2]


def groups(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Groups of channels; of instances each channel is one."""
    x, scale = node.inputs[:2]
    images, channels, *spatial = back.shape(x)
    count = int(node.attributes.get("num_groups", channels))
    wide = (images, count, channels // count, prod(spatial))
    vector = (count, back.shape(scale)[0] // count, 1)
    grouped = back.reshape(x, wide)
    m, s = statistics(back, grouped, (2, 3), _epsilon(node))
    normal = Normalised(grouped, back.reshape(scale, vector), s, (2, 3), m)
    made = normal.gradients(back, back.reshape(dys[0], wide), vector)
    return [
        back.reshape(name, back.shape(like)) for name, like in zip(made, node.inputs, strict=True)
    ]
