"""Normalisations: batch, layer, root mean square, group and instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from polysci.errors import UnsupportedError
from polysci.graph.builder import Backward, GraphBuilder
from polysci.graph.formulas import derive
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder, attribute_axes, formula, whole
from polysci.graph.operators.reductions import reduce
from polysci.graph.operators.table import (
    Evaluation,
    Operator,
    like_input,
)
from polysci.loop_ir.expressions import (
    Expr,
    Index,
    Load,
    Lookup,
    Reduce,
    apply,
    axis,
    combine,
    constant,
)
from polysci.numerics.arrays import Array
from polysci.program.stages import ViewStage


def statistic(build: Builder, node: Node, base: str, expr: Expr, shape: Sequence[int]) -> str:
    """A tensor of one number for all elements that share it."""
    title = node.outputs[0] or str(node)
    return build.add(node, f"{title}.{base}", expr, shape, build.dtype(node.inputs[0]))


def mean_and_scale(
    build: Builder, node: Node, sums: Reduce, shape: Sequence[int], epsilon: float, *,
    centred: bool = True,
) -> tuple[str, str]:  # fmt: skip
    """The mean of what is summed, and ``1 / sqrt(mean of squares around it + epsilon)``.

    Without ``centred`` the squares are those around 0, and the mean is empty.
    """
    share, value, mean = 1 / prod(extent for _, extent in sums.over), sums.body, ""
    if centred:
        mean = statistic(build, node, "mean", apply("mul", sums, share), shape)
        value = apply("sub", value, whole(build, mean))
    squares = Reduce("add", sums.over, apply("mul", value, value))
    factor = formula("1 / sqrt(s * share + e)", s=squares, share=share, e=epsilon)
    return mean, statistic(build, node, "scale", factor, shape)


def normalise(
    build: Builder, node: Node, x: str, axes: Sequence[int], epsilon: float, *, scale: str = "",
    bias: str = "", centred: bool = True,
) -> tuple[str, str]:  # fmt: skip
    """The node's first output: x normalised over axes. Gives its statistics, by the other axes."""
    y, rank = node.outputs[0], len(build.shape(x))
    shape = [size for at, size in enumerate(build.shape(x)) if at not in axes]
    sums = reduce(build, x, axes, "add", keep=False)
    mean, factor = mean_and_scale(build, node, sums, shape, epsilon, centred=centred)
    here = tuple(axis(at) for at in range(rank) if at not in axes)
    value = build.load(x, y)
    if mean:
        value = apply("sub", value, Load(mean, here))
    value = apply("mul", value, Load(factor, here))
    if scale:
        value = apply("mul", value, build.load(scale, y))
    if bias:
        value = apply("add", value, build.load(bias, y))
    build.define(node, value)
    return mean, factor


def _check(build: Builder, node: Node, first: int = 1) -> float:
    """Epsilon. Statistics are over axes from ``first`` on; those before may have no elements."""
    build.check_floats(node, *node.inputs)
    if not prod(build.shape(node.inputs[0])[first:]):
        build.refuse("no elements")
    return float(node.attributes.get("epsilon", 1e-5))


def _first_axis(build: Builder, node: Node) -> int:
    (first,) = attribute_axes([node.attributes.get("axis", -1)], len(build.shape(node.inputs[0])))
    return first


def _publish(build: Builder, node: Node, outputs: Sequence[tuple[int, str]]) -> None:
    """Statistics as outputs of the node, with axes of 1 element instead of none."""
    for position, name in outputs:
        if position < len(node.outputs) and node.outputs[position]:
            build.stages.append(ViewStage(str(node), node.outputs[position], name))


def batch_normalisation(build: Builder, node: Node) -> None:
    """Normalise by known statistics, or in training by those of x over all axes but the channels'.

    In training the second and third output are ``given * momentum + own * (1 - momentum)``: means,
    and variances divided by the number of elements.
    """
    x, scale, bias, *known = node.inputs
    if not node.attributes.get("training_mode"):
        if any(node.outputs[1:]):
            build.refuse("training")
        build.check_floats(node, *node.inputs)
        mean, variance = known
    else:
        _check(build, node, 0)
        axes = [at for at in range(len(build.shape(x))) if at != 1]
        sums = reduce(build, x, axes, "add", keep=False)
        mean, variance = _batch_statistics(build, node, sums)
    training = bool(node.attributes.get("training_mode"))
    g, v = (build.along(name, int(not training)) for name in (scale, variance))
    factor = formula("g / sqrt(v + e)", g=g, v=v, e=float(node.attributes.get("epsilon", 1e-5)))
    if training:  # one that is known is folded
        factor = build.along(statistic(build, node, "factor", factor, build.shape(variance)), 1)
    x_here, m, b = build.load(x, node.outputs[0]), build.along(mean, 1), build.along(bias, 1)
    build.define(node, formula("(x - m) * f + b", x=x_here, m=m, f=factor, b=b))


def _batch_statistics(build: Builder, node: Node, sums: Reduce) -> tuple[str, str]:
    """The mean and the variance of every channel; and the node's outputs made of them.

    Of sums around the mean of the first image, both in one pass (Chan, Golub and LeVeque, 1983,
    section 2): that mean is off by at most the standard deviation times the root of the number of
    images, so that the variance loses at most a factor of that number in digits.
    """
    shape, names = [build.shape(node.inputs[0])[1]], list[str]()
    assert isinstance(sums.body, Load)
    pixels = tuple(item for item in sums.over if item[0] != "r0")
    near: Expr = replace(sums.body, index=(constant(0), *sums.body.index[1:]))
    if pixels:
        total = Reduce("add", pixels, near)
        near = apply("mul", total, 1 / prod(extent for _, extent in pixels))
    middle = build.along(statistic(build, node, "middle", near, shape), 0)
    share, apart = 1 / prod(extent for _, extent in sums.over), apply("sub", sums.body, middle)
    first, second = (Reduce("add", sums.over, body) for body in (apart, apply("mul", apart, apart)))
    off = build.along(statistic(build, node, "off", apply("mul", first, share), shape), 0)
    spread = formula("max(s * share - off * off, 0)", s=second, share=share, off=off)
    momentum = float(node.attributes.get("momentum", 0.9))
    own = (("mean", apply("add", middle, off)), ("variance", spread))
    for position, (base, value) in enumerate(own, 1):
        output = node.outputs[position] if position < len(node.outputs) else ""
        if output and momentum == 0:
            names.append(build.define(node, value, output))
        else:
            names.append(statistic(build, node, base, value, shape))
        if output and momentum:
            old, new = (build.along(name, 0) for name in (node.inputs[2 + position], names[-1]))
            text = "old * momentum + new * (1 - momentum)"
            build.define(node, formula(text, old=old, new=new, momentum=momentum), output)
    return names[0], names[1]


def layer_normalisation(build: Builder, node: Node) -> None:
    """Normalise over all axes from one on."""
    x, scale = node.inputs[:2]
    first = _first_axis(build, node)
    epsilon, axes = _check(build, node, first), range(first, len(build.shape(x)))
    mean, factor = normalise(build, node, x, axes, epsilon, scale=scale, bias=node.input(2))
    _publish(build, node, [(1, mean), (2, factor)])


def root_mean_square(build: Builder, node: Node) -> None:
    """Normalise over all axes from one on, around 0."""
    x, scale = node.inputs[:2]
    first = _first_axis(build, node)
    epsilon, axes = _check(build, node, first), range(first, len(build.shape(x)))
    _, factor = normalise(build, node, x, axes, epsilon, scale=scale, centred=False)
    _publish(build, node, [(1, factor)])


def group_normalisation(build: Builder, node: Node) -> None:
    """Normalise groups of channels; scale and bias are by channel."""
    _check(build, node)
    groups, channels = int(node.attributes["num_groups"]), build.shape(node.inputs[0])[1]
    if groups < 1 or channels % groups:
        build.refuse(f"{groups} groups of {channels} channels")
    _normalise_channels(build, node, groups)


def instance_normalisation(build: Builder, node: Node) -> None:
    """Every channel of every image by itself."""
    _check(build, node)
    _normalise_channels(build, node, build.shape(node.inputs[0])[1])


def _normalise_channels(build: Builder, node: Node, groups: int) -> None:
    """Normalise groups of channels."""
    x, scale, bias = node.inputs
    images, channels, *spatial = build.shape(x)
    if build.shape(scale) != (channels,) or build.shape(bias) != (channels,):
        build.refuse(f"scale {list(build.shape(scale))} and bias {list(build.shape(bias))}; "
                     f"expected {channels} elements each")  # fmt: skip
    size, epsilon = channels // groups, float(node.attributes.get("epsilon", 1e-5))
    over = [(f"r{2 + at}", extent) for at, extent in enumerate(spatial)]
    inside = [combine({name: 1}) for name, _ in over]
    channel = combine({"i1": size, "c": 1})
    sums = Reduce("add", (("c", size), *over), Load(x, (axis(0), channel, *inside)))
    mean, factor = mean_and_scale(build, node, sums, (images, groups), epsilon)
    of_group = _every(channels, groups)
    shape = (images, channels)
    means = statistic(build, node, "means", Load(mean, (axis(0), of_group)), shape)
    factors = statistic(
        build, node, "factors",
        apply("mul", Load(factor, (axis(0), of_group)), Load(scale, (axis(1),))), shape,
    )  # fmt: skip
    m, f = (Load(name, (axis(0), axis(1))) for name in (means, factors))
    x_here, b = build.load(x, node.outputs[0]), Load(bias, (axis(1),))
    build.define(node, formula("(x - m) * f + b", x=x_here, m=m, f=f, b=b))


def _every(channels: int, parts: int) -> Index:
    """The part that a channel, which is axis 1, belongs to."""
    if parts == channels:
        return axis(1)
    return Lookup(tuple(channel * parts // channels for channel in range(channels)), axis(1))


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
        """Return the gradients of x, of g, and of the summand of shape ``bias``."""
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
        """Return these gradients where m and s do not depend on x."""
        dx = derive(back, "dy * (g * s)", dy=dy, g=self.g, s=self.s)
        scaled = derive(back, f"dy * ({self.normal})", dy=dy, **self.names)
        return dx, back.unbroadcast(scaled, back.shape(self.g)), back.unbroadcast(dy, bias)


def statistics_gradient(
    graph: GraphBuilder, x: str, axes: Sequence[int], epsilon: float
) -> tuple[str, str]:
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


def batch_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Differentiate; known statistics, those outside of training, get no gradients."""
    x, scale, bias, *known = node.inputs
    dy, shape = _only_result(node, dys), back.shape(x)
    channels = (shape[1], *[1] * (len(shape) - 2))
    g, axes = back.reshape(scale, channels), tuple(at for at in range(len(shape)) if at != 1)
    trains, own = bool(node.attributes.get("training_mode")), node.outputs[1:3]
    if trains and (len(own) < 2 or not all(own) or float(node.attributes.get("momentum", 0.9))):
        m, s = statistics_gradient(back, x, axes, _epsilon(node))
    else:
        m, variance = (back.reshape(name, channels) for name in (own if trains else known))
        s = derive(back, "1 / sqrt(v + e)", v=variance, e=_epsilon(node))
    normal = Normalised(x, g, s, axes, m)
    dx, dg, db = (normal.gradients if trains else normal.known_gradients)(back, dy, channels)
    return [dx, back.reshape(dg, back.shape(scale)), back.reshape(db, back.shape(bias)), "", ""]


def layer_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Normalise over all axes from one on."""
    x, g, bias = node.inputs[0], node.inputs[1], node.input(2)
    dy, shape = _only_result(node, dys), back.shape(x)
    first = int(node.attributes.get("axis", -1)) % len(shape)
    small = (*shape[:first], *[1] * (len(shape) - first))
    m, s = (back.also(node, at, small, back.dtype(x)) for at in (1, 2))
    normal = Normalised(x, g, s, tuple(range(first, len(shape))), m)
    return normal.gradients(back, dy, back.shape(bias or g))[: len(node.inputs)]


def root_mean_square_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Normalise over all axes from one on, around 0."""
    x, g = node.inputs[:2]
    shape = back.shape(x)
    axes = tuple(range(int(node.attributes.get("axis", -1)) % len(shape), len(shape)))
    squares = back.total(derive(back, "x * x", x=x), axes, keep=True)
    s = _inverse(back, squares, prod(shape[at] for at in axes), _epsilon(node))
    return Normalised(x, g, s, axes).gradients(back, dys[0], back.shape(g))[:2]


def groups_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Groups of channels; of instances each channel is one."""
    x, scale = node.inputs[:2]
    images, channels, *spatial = back.shape(x)
    count = int(node.attributes.get("num_groups", channels))
    wide = (images, count, channels // count, prod(spatial))
    vector = (count, back.shape(scale)[0] // count, 1)
    grouped = back.reshape(x, wide)
    m, s = statistics_gradient(back, grouped, (2, 3), _epsilon(node))
    normal = Normalised(grouped, back.reshape(scale, vector), s, (2, 3), m)
    dxs = normal.gradients(back, back.reshape(dys[0], wide), vector)
    return [
        back.reshape(name, back.shape(like)) for name, like in zip(dxs, node.inputs, strict=True)
    ]


def groups_reference(of: Evaluation) -> list[Array]:
    """A scale and a bias a channel: ONNX's reference sums in f32."""
    (x, scale, bias), node = of.inputs, of.node
    rows = x.reshape(len(x), node.attributes["num_groups"], -1)
    centred = rows - rows.mean(axis=2, keepdims=True)
    variance = (centred**2).mean(axis=2, keepdims=True)
    parts = centred / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    factor, shift = (value.reshape(-1, *[1] * (x.ndim - 2)) for value in (scale, bias))
    return [parts.reshape(x.shape) * factor + shift]


ROWS = (
    Operator("batch_norm", "BatchNormalization", batch_normalisation, gradient=batch_gradient,
             dims="images"),
    Operator("layer_norm", "LayerNormalization", layer_normalisation, gradient=layer_gradient,
             dims="onward"),
    Operator("rms_norm", "RMSNormalization", root_mean_square, gradient=root_mean_square_gradient,
             dims="onward"),
    Operator("group_norm", "GroupNormalization", group_normalisation, like_input,
             groups_gradient, groups_reference, "images"),
    Operator("instance_norm", "InstanceNormalization", instance_normalisation,
             gradient=groups_gradient, dims="images"),
)  # fmt: skip
