"""Convolutions: layers of two or three axes; those of one are rows of an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from polysci.graph.gradients import convolution as gradients
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.table import Operator
from polysci.graph.operators.windows import Span, spans
from polysci.loop_ir.expressions import (
    Expr,
    Guard,
    Index,
    Load,
    Lookup,
    Reduce,
    apply,
    axis,
    combine,
)
from polysci.numerics.dtypes import precision_named
from polysci.numerics.quantization import Scales
from polysci.ops.convolutions import Conv2d, Conv3d, Convolution
from polysci.ops.matmul import Matmul
from polysci.polyhedral.affine import Affine
from polysci.program.stages import LayerStage, Window

MOST_PHASES = 256  # layers that one transposed convolution may become
AXES = {
    1: ((0,), (1,), (), (2,)),
    2: ((0,), (1,), (2,), (3,)),
    3: ((0,), (1,), (2,), (3,), (4,)),
}
Axes = tuple[tuple[int, ...], ...]


def conv(build: Builder, node: Node) -> None:
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    build.check_floats(node, x, w)
    windows = spans(node, build.shape(x), build.shape(w)[2:], build.shape(y))
    check_channels(build, node)
    groups = int(node.attributes.get("group", 1))
    if not 1 <= len(windows) <= 3:
        build.refuse(f"a window of {len(windows)} axes")
    empty = not all(build.values[name].size for name in (x, w, y))
    if empty or build.dtype(x) != "float32" or any(window.before < 0 for window in windows):
        build.define(node, sum_parts(build, node, x, w, windows, groups))
        return
    made = layer(build, node, x, w, y, windows, groups)
    build.stages.append(replace(made, bias=node.input(2)))


def check_channels(build: Builder, node: Node) -> None:
    """Refuses weights that do not fit the tensors, which shape inference lets pass."""
    x, w = (build.shape(node.inputs[at]) for at in (0, 3 if node.op == "quantized_conv" else 1))
    groups, taps = int(node.attributes.get("group", 1)), node.attributes.get("kernel_shape")
    if len(x) != len(w) or x[1] != w[1] * groups or groups < 1 or w[0] % groups:
        build.refuse(f"weights {list(w)} and {groups} groups for x {list(x)}")
    if taps and tuple(taps) != w[2:]:
        build.refuse(f"weights {list(w)} and kernel_shape {list(taps)}")
    if node.op == "conv" and node.input(2) and build.shape(node.input(2)) != (w[0],):
        build.refuse(f"bias {list(build.shape(node.input(2)))} for {w[0]} channels")


def layer(
    build: Builder, node: Node, x: str, w: str, y: str, windows: Sequence[Span], groups: int,
    dtype: str = "f32",
) -> LayerStage:  # fmt: skip
    """The convolution as a layer."""
    axes = AXES[len(windows)]
    problem = layer_problem(build, x, axes, build.shape(y)[1], windows, groups, dtype)
    return LayerStage(str(node), problem, Window(x, axes), Window(y, axes), w)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor as a matrix: the axes that its rows run over together, and that of its columns."""

    tensor: str
    rows: tuple[int, ...]
    columns: int

    @property
    def window(self) -> Window:
        """Rows as the pixels of one image row, columns as channels."""
        return Window(self.tensor, ((), (self.columns,), (), self.rows))

    @property
    def turned(self) -> bool:
        """Whether rows run along the tensor's last axis, as those of a transposed matrix."""
        return self.rows[-1:] > (self.columns,)

    @property
    def stored(self) -> Window:
        """Both axes as they are stored."""
        axes = (self.rows, (self.columns,))
        return Window(self.tensor, axes[::-1] if self.turned else axes)


def matrix_product(
    build: Builder, node: Node, x: Matrix, y: Matrix, weights: str, *, bias: str = "",
    across: bool = False, alpha: float = 1.0, stack: tuple[tuple[int, ...], ...] = (),
    dtype: str = "f32", x_zero: int = 0, scales: Scales | None = None,
) -> None:  # fmt: skip
    """A layer ``y = alpha * x @ weights' + bias``.

    ``weights`` are (columns of y, columns of x), or the other way if they lie ``across``; ``stack``
    as ``LayerStage`` has it. A product by constant weights, or a stack, is a convolution by 1 x 1
    of one row of pixels; any other reads both matrices where they lie.
    """
    rows = prod(build.shape(x.tensor)[at] for at in x.rows)
    k, n = build.shape(x.tensor)[x.columns], build.shape(y.tensor)[y.columns]
    known = build.constant(weights) is not None
    if (known and not x.turned) or stack or precision_named(dtype).integer:
        steps = (1, n, 1, 1) if across else ()
        build.stages.append(LayerStage(
            str(node), Conv2d(1, k, 1, rows, n, 1, 1, dtype=dtype), x.window, y.window, weights,
            bias, w=steps, stack=stack, x_zero=x_zero, scales=scales,
        ))  # fmt: skip
        return
    stored, last = "a" * x.turned + "b" * (not across), len(build.shape(weights)) - 1
    problem = Matmul(
        rows, k, n, transposed=stored, alpha=alpha, constant="b" * known, dtype=dtype
    )  # fmt: skip
    w_axes = () if known else ((last - 1,), (last,))
    build.stages.append(
        LayerStage(str(node), problem, x.stored, y.stored, weights, bias, w_axes=w_axes)
    )


def layer_problem(
    build: Builder, x: str, axes: Axes, filters: int, windows: Sequence[Span], groups: int,
    dtype: str,
) -> Convolution:  # fmt: skip
    """The convolution of images x, of one axis as rows of an image."""
    shape, kind = build.shape(x), Conv3d if len(windows) == 3 else Conv2d
    idle = (Span(1, 1, 1, 1, 0, 0, 1),) if len(windows) == 1 else ()
    spans_, extents = (*idle, *windows), dict[str, int]()
    for (size, taps, out, _), own in zip(kind.FAMILY.axes, spans_, strict=True):
        extents |= {size: own.size, taps: own.taps, out: own.out}
    images, channels = (prod(shape[at] for at in axes[number]) for number in (0, 1))
    make: Callable[..., Convolution] = kind
    return make(
        N=images, C=channels, K=filters, groups=groups, dtype=dtype, **extents,
        stride=tuple(own.stride for own in spans_), pad=tuple(own.before for own in spans_),
        dilation=tuple(own.dilation for own in spans_),
    )  # fmt: skip


def sum_parts(
    build: Builder, node: Node, x: str, w: str, windows: Sequence[Span], groups: int,
    element: tuple[Expr, Expr] | None = None,
) -> Expr:  # fmt: skip
    """The convolution as it is written, for what no layer computes."""
    left, right, over, guards = terms(build, x, w, windows, groups)
    factors = element or (left, right)
    expr: Expr = Reduce("add", over, apply("mul", *factors), guards)
    if node.op == "conv" and node.input(2):
        expr = apply("add", expr, build.along(node.input(2), 1))
    return expr


def terms(
    build: Builder, x: str, w: str, windows: Sequence[Span], groups: int
) -> tuple[Load, Load, tuple[tuple[str, int], ...], tuple[Guard, ...]]:
    """Factors of a product of a convolution, what it is summed over, and where it is real."""
    filters, own = build.shape(w)[:2]
    names = [f"r{at}" for at in range(len(windows))]
    places = [window.at(f"i{at + 2}", names[at]) for at, window in enumerate(windows)]
    guards = [window.guard(f"i{at + 2}", names[at]) for at, window in enumerate(windows)]
    taps = [Affine(((name, 1),)) for name in names]
    over = (("c", own), *((n, window.taps) for n, window in zip(names, windows, strict=True)))
    channel: Index = group_channel(filters, own, groups)
    left = Load(x, (axis(0), channel, *places))
    right = Load(w, (axis(1), Affine((("c", 1),)), *taps))
    return left, right, over, tuple(guard for guard in guards if guard)


def group_channel(filters: int, own: int, groups: int) -> Index:
    """The channel of x that term ``c`` of output channel ``i1`` reads."""
    if groups == 1:
        return Affine((("c", 1),))
    size = filters // groups
    table = tuple(k // size * own + c for k in range(filters) for c in range(own))
    return Lookup(table, combine({"i1": own, "c": 1}))


ROWS = (
    Operator("conv", "Conv", conv, gradient=gradients.convolution, dims="images"),
)  # fmt: skip
