"""Normalisation: a mean, then a mean of centred squares, which loses nothing to cancellation.

Statistics are tensors without the axes that they are taken over: small, and vectors for matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from polysci.graph import shapes
from polysci.graph.gradients import normalisation as gradients
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder, attribute_axes
from polysci.graph.operators.reductions import reduce
from polysci.graph.operators.table import Operator
from polysci.graph.reference import normalisation as reference
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
from polysci.program.stages import ViewStage


def statistic(build: Builder, node: Node, base: str, expr: Expr, shape: Sequence[int]) -> str:
    """A tensor of one number for all elements that share it."""
    title = node.outputs[0] or str(node)
    made = build.fresh(f"{title}.{base}", shape, build.dtype(node.inputs[0]))
    return build.define(node, expr, made)


def mean_and_scale(
    build: Builder, node: Node, sums: Reduce, shape: Sequence[int], epsilon: float, *,
    centred: bool = True,
) -> tuple[str, str]:  # fmt: skip
    """The mean of what is summed, and ``1 / sqrt(mean of squares around it + epsilon)``.

    Without ``centred`` the squares are those around 0, and the mean is empty.
    """
    count, value, mean = prod(extent for _, extent in sums.over), sums.body, ""
    if centred:
        mean = statistic(build, node, "mean", apply("mul", sums, 1 / count), shape)
        here = Load(mean, tuple(axis(at) for at in range(len(shape))))
        value = apply("sub", value, here)
    squares = Reduce("add", sums.over, apply("mul", value, value))
    spread = apply("sqrt", apply("add", apply("mul", squares, 1 / count), epsilon))
    return mean, statistic(build, node, "scale", apply("div", 1.0, spread), shape)


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
    """By statistics that are known, or in training by those of x over all axes but the channels'.

    In training the second and third output are ``given * momentum + own * (1 - momentum)``: means,
    and variances divided by the number of elements.
    """
    x, scale, bias, *given = node.inputs
    if not node.attributes.get("training_mode"):
        if any(node.outputs[1:]):
            build.refuse("training")
        build.check_floats(node, *node.inputs)
        mean, variance = given
    else:
        _check(build, node, 0)
        axes = [at for at in range(len(build.shape(x))) if at != 1]
        sums = reduce(build, x, axes, "add", keep=False)
        mean, variance = _batch_statistics(build, node, sums)
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    root = apply("sqrt", apply("add", build.along(variance, 1), epsilon))
    centred = apply("sub", build.load(x, node.outputs[0]), build.along(mean, 1))
    factor: Expr = apply("div", build.along(scale, 1), root)
    if node.attributes.get("training_mode"):  # one that is known is folded
        root = apply("sqrt", apply("add", build.along(variance, 0), epsilon))
        factors = apply("div", build.along(scale, 0), root)
        shape = build.shape(variance)
        factor = build.along(statistic(build, node, "factor", factors, shape), 1)
    build.define(node, apply("add", apply("mul", centred, factor), build.along(bias, 1)))


def _batch_statistics(build: Builder, node: Node, sums: Reduce) -> tuple[str, str]:
    """The mean and the variance of every channel; and the node's outputs made of them.

    Of sums around the mean of the first image, both in one pass (Chan, Golub and LeVeque, 1983,
    section 2): that mean is off by at most the standard deviation times the root of the number of
    images, so that the variance loses at most a factor of that number in digits.
    """
    shape, made = [build.shape(node.inputs[0])[1]], list[str]()
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
    spread = apply("sub", apply("mul", second, share), apply("mul", off, off))
    momentum = float(node.attributes.get("momentum", 0.9))
    own = (("mean", apply("add", middle, off)), ("variance", apply("max", spread, 0.0)))
    for position, (base, value) in enumerate(own, 1):
        output = node.outputs[position] if position < len(node.outputs) else ""
        if output and momentum == 0:
            made.append(build.define(node, value, output))
        else:
            made.append(statistic(build, node, base, value, shape))
        if output and momentum:
            here = build.along(made[-1], 0)
            old = apply("mul", build.along(node.inputs[2 + position], 0), momentum)
            build.define(node, apply("add", old, apply("mul", here, 1 - momentum)), output)
    return made[0], made[1]


def layer_normalisation(build: Builder, node: Node) -> None:
    """Over all axes from one on."""
    x, scale = node.inputs[:2]
    first = _first_axis(build, node)
    epsilon, axes = _check(build, node, first), range(first, len(build.shape(x)))
    mean, factor = normalise(build, node, x, axes, epsilon, scale=scale, bias=node.input(2))
    _publish(build, node, [(1, mean), (2, factor)])


def root_mean_square(build: Builder, node: Node) -> None:
    """Over all axes from one on, around 0."""
    x, scale = node.inputs[:2]
    first = _first_axis(build, node)
    epsilon, axes = _check(build, node, first), range(first, len(build.shape(x)))
    _, factor = normalise(build, node, x, axes, epsilon, scale=scale, centred=False)
    _publish(build, node, [(1, factor)])


def group_normalisation(build: Builder, node: Node) -> None:
    """Over groups of channels; before opset 21 scale and bias are by group, then by channel."""
    _check(build, node)
    groups, channels = int(node.attributes["num_groups"]), build.shape(node.inputs[0])[1]
    if groups < 1 or channels % groups:
        build.refuse(f"{groups} groups of {channels} channels")
    _normalise_channels(build, node, groups, groups if build.graph.opset < 21 else channels)


def instance_normalisation(build: Builder, node: Node) -> None:
    """Every channel of every image by itself."""
    _check(build, node)
    channels = build.shape(node.inputs[0])[1]
    _normalise_channels(build, node, channels, channels)


def _normalise_channels(build: Builder, node: Node, groups: int, vectors: int) -> None:
    """Over groups of channels; scale and bias have ``vectors`` elements."""
    x, scale, bias = node.inputs
    images, channels, *spatial = build.shape(x)
    if build.shape(scale) != (vectors,) or build.shape(bias) != (vectors,):
        build.refuse(f"scale {list(build.shape(scale))} and bias {list(build.shape(bias))}; "
                     f"expected {vectors} elements each")  # fmt: skip
    size, epsilon = channels // groups, float(node.attributes.get("epsilon", 1e-5))
    over = [(f"r{2 + at}", extent) for at, extent in enumerate(spatial)]
    inside = [combine({name: 1}) for name, _ in over]
    channel = combine({"i1": size, "c": 1})
    sums = Reduce("add", (("c", size), *over), Load(x, (axis(0), channel, *inside)))
    mean, factor = mean_and_scale(build, node, sums, (images, groups), epsilon)
    of_group = _every(channels, groups)
    of_vector = _every(channels, vectors)
    shape = (images, channels)
    means = statistic(build, node, "means", Load(mean, (axis(0), of_group)), shape)
    factors = statistic(
        build, node, "factors",
        apply("mul", Load(factor, (axis(0), of_group)), Load(scale, (of_vector,))), shape,
    )  # fmt: skip
    here = (axis(0), axis(1))
    value = apply("sub", build.load(x, node.outputs[0]), Load(means, here))
    value = apply("mul", value, Load(factors, here))
    build.define(node, apply("add", value, Load(bias, (of_vector,))))


def _every(channels: int, parts: int) -> Index:
    """The part that a channel, which is axis 1, belongs to."""
    if parts == channels:
        return axis(1)
    return Lookup(tuple(channel * parts // channels for channel in range(channels)), axis(1))


ROWS = (
    Operator("batch_norm", "BatchNormalization", batch_normalisation, gradient=gradients.batch,
             dims="images"),
    Operator("layer_norm", "LayerNormalization", layer_normalisation, gradient=gradients.layer,
             dims="along"),
    Operator("rms_norm", "RMSNormalization", root_mean_square, gradient=gradients.root_mean_square,
             dims="along"),
    Operator("group_norm", "GroupNormalization", group_normalisation, shapes.like_input,
             gradients.groups, reference.groups, "images"),
    Operator("instance_norm", "InstanceNormalization", instance_normalisation,
             gradient=gradients.groups, dims="images"),
)  # fmt: skip
