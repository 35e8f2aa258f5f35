"""The gradient of a convolution's weights."""

from __future__ import annotations

from collections.abc import Sequence

from polysci.graph.graph import CONV_WEIGHTS_GRADIENT, Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.convolution import AXES, layer_problem
from polysci.graph.operators.table import Operator
from polysci.graph.operators.windows import Span, spans
from polysci.graph.reference.convolution import conv_weights
from polysci.loop_ir.expressions import Expr, Index, Load, Lookup, Reduce, apply, axis, combine
from polysci.ops import in_direction
from polysci.program.stages import LayerStage, Window


def weights_gradient(build: Builder, node: Node) -> None:
    """ConvWeightsGradient: a layer, or the sum as it is written."""
    (x, dy), dw = node.inputs, node.outputs[0]
    build.check_floats(node, x, dy)
    windows = spans(node, build.shape(x), build.shape(dw)[2:], build.shape(dy))
    groups = int(node.attributes["group"])
    empty = not all(build.values[name].size for name in (x, dy))
    odd = len(windows) > 3 or build.dtype(x) != "float32"
    if empty or odd or any(window.before < 0 for window in windows):
        build.define(node, _summed_weights(build, node, windows, groups))
        return
    axes = AXES[len(windows)]
    forward = layer_problem(build, x, axes, build.shape(dy)[1], windows, groups, "f32")
    build.stages.append(LayerStage(
        str(node), in_direction(forward, "bwd_w"), Window(x, axes), Window(dw, axes), dy,
        w_axes=axes,
    ))  # fmt: skip


def _summed_weights(build: Builder, node: Node, windows: Sequence[Span], groups: int) -> Expr:
    """The gradient of weights as it is written."""
    (x, dy), (filters, own) = node.inputs, build.shape(node.outputs[0])[:2]
    names = [f"p{at}" for at in range(len(windows))]
    places = [window.at(names[at], f"i{at + 2}") for at, window in enumerate(windows)]
    guards = [window.guard(names[at], f"i{at + 2}") for at, window in enumerate(windows)]
    over = (("n", build.shape(x)[0]), *zip(names, build.shape(dy)[2:], strict=True))
    image, pixels = combine({"n": 1}), [combine({name: 1}) for name in names]
    channel: Index = axis(1)
    if groups > 1:
        table = tuple(
            k // (filters // groups) * own + c for k in range(filters) for c in range(own)
        )
        channel = Lookup(table, combine({"i0": own, "i1": 1}))
    product_ = apply("mul", Load(x, (image, channel, *places)), Load(dy, (image, axis(0), *pixels)))
    return Reduce("add", over, product_, tuple(guard for guard in guards if guard))


ROWS = (
    Operator(CONV_WEIGHTS_GRADIENT, "", weights_gradient, reference=conv_weights),
)  # fmt: skip
