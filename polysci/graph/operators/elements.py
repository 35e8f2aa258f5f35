"""Elements: a tensor by an expression; sums of products of two tensors are layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from polysci.errors import SpecError, UnsupportedError
from polysci.graph.graph import ELEMENTS, Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.convolution import layer_problem
from polysci.graph.operators.table import Evaluation, Operator
from polysci.graph.operators.windows import Span
from polysci.loop_ir.element_values import evaluate
from polysci.loop_ir.expressions import Apply, Expr, Guard, Load, Reduce, rewrite
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import Array
from polysci.ops.nest import Nest
from polysci.ops.problem import row_strides
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


@dataclass(frozen=True, slots=True)
class _Slide:
    """An axis of x along which a window slides: the iterators of y and of the taps, if any."""

    axis: int
    out: str
    tap: str
    form: Affine
    span: Span


def convolution_of(
    build: Builder, node: Node, total: Reduce, x: Load, w: Load
) -> LayerStage | None:
    """The sum of ``x * w`` as a layer; None where it is no convolution of x by weights w.

    An axis of x and y alone is one of images before the first along which a window slides, and one
    with windows of one tap behind it.
    """
    own = {f"i{at}": size for at, size in enumerate(build.shape(node.outputs[0]))}
    over = dict(total.over)
    shape, taken = build.shape(x.tensor), _iterators(w, build.shape(w.tensor), {**own, **over})
    if taken is None or not all(isinstance(part, Affine) and part.terms for part in x.index):
        return None
    forms = [part for part in x.index if isinstance(part, Affine)]
    first = next((at for at, form in enumerate(forms) if len(form.terms) > 1), len(forms))
    plain, windows = dict[str, int](), list[_Slide]()
    for at, (form, size) in enumerate(zip(forms, shape, strict=True)):
        ((name, coef), *others) = form.terms
        alone = not others and coef == 1 and not form.const and {**own, **over}[name] == size
        if alone and name not in plain and (at < first or name in taken):
            plain[name] = at
            continue
        slide = _slide(at, form, size, own, over)
        if slide is None:
            return None
        windows.append(slide)
    if not 1 <= len(windows) <= 3 or not _is_padding(total.guards, windows):
        return None
    return _convolution_layer(build, node, (x.tensor, plain), (w.tensor, taken), windows, own)


def _iterators(w: Load, shape: Sequence[int], extents: Mapping[str, int]) -> dict[str, int] | None:
    """Iterator -> axis; None where a subscript is not one alone along a whole axis."""
    axes = dict[str, int]()
    for at, (part, size) in enumerate(zip(w.index, shape, strict=True)):
        if not isinstance(part, Affine) or part.const or len(part.terms) != 1:
            return None
        ((name, coef),) = part.terms
        if coef != 1 or extents[name] != size or name in axes:
            return None
        axes[name] = at
    return axes


def _slide(
    at: int, form: Affine, size: int, own: Mapping[str, int], over: Mapping[str, int]
) -> _Slide | None:
    """A subscript as a window; None where it is none."""
    outs = [term for term in form.terms if term[0] in own]
    taps = [term for term in form.terms if term[0] in over] or [("", 1)]
    if len(outs) != 1 or len(taps) != 1 or form.const > 0 or min(outs[0][1], taps[0][1]) < 1:
        return None
    (out, stride), (tap, dilation) = outs[0], taps[0]
    count = over.get(tap, 1)
    after = max(0, _last(form, {**own, **over}) - size + 1)
    return _Slide(
        at, out, tap, form, Span(size, count, stride, dilation, -form.const, after, own[out])
    )


def _last(form: Affine, extents: Mapping[str, int]) -> int:
    return form.const + sum(coef * (extents[name] - 1) for name, coef in form.terms)


def _is_padding(guards: Sequence[Guard], windows: Sequence[_Slide]) -> bool:
    """Return whether all guards hold just where every window is inside x."""
    known = 0
    for window in windows:
        form, span = window.form, window.span
        first, last = -span.before, span.size - 1 + span.after
        least, most = max(first, 0), span.size - 1 if span.after else last
        for guard in guards:
            at = guard.at
            if at.terms == form.terms:
                start = form.const - at.const
            elif at.terms == tuple((name, -coef) for name, coef in form.terms):
                start = form.const + at.const - guard.extent + 1
            else:
                continue
            known += 1
            first, last = max(first, start), min(last, start + guard.extent - 1)
        if first > least or last < most or first < 0 or last > span.size - 1:
            return False
    return known == len(guards)


def _convolution_layer(
    build: Builder, node: Node, x: tuple[str, dict[str, int]], w: tuple[str, dict[str, int]],
    windows: Sequence[_Slide], own: Mapping[str, int],
) -> LayerStage | None:  # fmt: skip
    """The layer by what every iterator is; None where one is nothing that a convolution has."""
    (tensor, plain), (weights, taken) = x, w
    outs, taps = [it.out for it in windows], [it.tap for it in windows if it.tap]
    images = [name for name in own if name in plain and name not in taken]
    groups = [name for name in own if name in plain and name in taken]
    filters = [name for name in own if name in taken and name not in plain]
    channels = [name for name in plain if name not in own]
    parts = [*images, *groups, *filters, *outs]
    if sorted(parts) != sorted(own) or not taps:
        return None
    if sorted(taken) != sorted([*groups, *filters, *channels, *taps]):
        return None
    idle = [()] if len(windows) == 1 else []
    at = {name: number for number, name in enumerate(own)}
    x_axes, y_axes, w_axes = (
        (*(tuple(axis[name] for name in names) for names in outer), *idle, *slid)
        for axis, outer, slid in (
            (plain, (images, (*groups, *channels)), [(it.axis,) for it in windows]),
            (at, (images, (*groups, *filters)), [(at[name],) for name in outs]),
            (taken, ((*groups, *filters), channels), [
                (taken[it.tap],) if it.tap else () for it in windows
            ]),
        )
    )  # fmt: skip
    problem = layer_problem(
        build, tensor, x_axes, prod(own[name] for name in (*groups, *filters)),
        [it.span for it in windows], prod(own[name] for name in groups), "f32",
    )  # fmt: skip
    window = Window(weights, w_axes)
    steps = window.strides(build.shape(weights), row_strides(build.shape(weights)))
    return LayerStage(
        str(node), problem, Window(tensor, x_axes), Window(node.outputs[0], y_axes), weights,
        w=steps or (), w_axes=() if steps else w_axes,
    )  # fmt: skip


def elements_reference(of: Evaluation) -> list[Array]:
    """The tensor whose elements an expression defines; it calls inputs by their numbers."""
    (tensor,) = of.results
    inputs = {str(at): of.known[name] for at, name in enumerate(of.node.inputs)}
    value = evaluate(of.node.attributes["expr"], tensor.shape, inputs)
    return [value if value.dtype.kind == tensor.dtype[0] == "f" else value.astype(tensor.dtype)]


ROWS = (
    Operator(ELEMENTS, "", elements, reference=elements_reference),
)  # fmt: skip
