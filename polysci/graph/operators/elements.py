"""Elements: a tensor by an expression; sums of products of two tensors are layers."""

from __future__ import annotations

from dataclasses import replace

from polysci.errors import SpecError, UnsupportedError
from polysci.graph.graph import ELEMENTS, Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.table import Operator
from polysci.graph.operators.written_convolutions import convolution_of
from polysci.graph.reference import elementwise as reference
from polysci.loop_ir.expressions import Apply, Expr, Load, Reduce, rewrite
from polysci.ops.nest import Nest
from polysci.polyhedral.affine import Affine
from polysci.program.stages import LayerStage, Window


def elements(build: Builder, node: Node) -> None:
    """The tensor as a layer where its expression is a contraction of f32, else by loops."""

    def rename(part: Expr) -> Expr:
        return (
            replace(part, tensor=node.inputs[int(part.tensor)]) if isinstance(part, Load) else part
        )

    expr = rewrite(node.attributes["expr"], rename)
    layer = _layer(build, node, expr)
    if layer is None:
        build.define(node, expr)
    else:
        build.stages.append(layer)


def _layer(build: Builder, node: Node, expr: Expr) -> LayerStage | None:
    """A convolution, or a contraction as a nest whose roles are found; None where it is neither."""
    match expr:
        case Reduce("add", over, Apply("mul", (Load() as left, Load() as right)), guards):
            pass
        case _:
            return None
    y = node.outputs[0]
    if {build.dtype(name) for name in (left.tensor, right.tensor, y)} != {"float32"}:
        return None
    pairs = ((left, right), (right, left))
    for x, w in pairs:
        if layer := convolution_of(build, node, expr, x, w):
            return layer
    for a, b in () if guards else pairs:
        try:
            problem = Nest.parse(_text(build, y, a, b, over))
        except (UnsupportedError, SpecError):
            continue
        if not (problem.contraction.by_role("m") or problem.contraction.by_role("n")):
            return None  # no matrices: a loop is faster
        first, second = (a, b) if problem.contraction.a.array == "A" else (b, a)
        axes = {load.tensor: tuple((at,) for at in range(len(load.index))) for load in (a, b)}
        own = tuple((at,) for at in range(len(build.shape(y))))
        return LayerStage(
            str(node), problem, Window(first.tensor, axes[first.tensor]), Window(y, own),
            second.tensor, w_axes=axes[second.tensor],
        )  # fmt: skip
    return None


def _text(build: Builder, y: str, a: Load, b: Load, over: tuple[tuple[str, int], ...]) -> str:
    """The words of the nest."""
    own = [(f"i{at}", size) for at, size in enumerate(build.shape(y))]
    loops = " ".join(f"{name}:{size}" for name, size in (*own, *over))
    index = {"O": [Affine(((name, 1),)) for name, _ in own], "A": a.index, "B": b.index}
    shapes = {"O": build.shape(y), "A": build.shape(a.tensor), "B": build.shape(b.tensor)}
    declared = {name: name + "".join(f"[{size}]" for size in shapes[name]) for name in shapes}
    read = " ".join(name + "".join(f"[{part}]" for part in index[name]) for name in index)
    return f"nest {declared['O']}+={declared['A']}*{declared['B']} for {loops} : {read}"


ROWS = (
    Operator(ELEMENTS, "", elements, reference=reference.elements),
)  # fmt: skip
