"""The textbook loop nest of a convolution as a cgen tree: what the operator means, nothing more."""

from __future__ import annotations

import cgen

from polysci.ops.conv2d import rules
from polysci.ops.conv2d.extents import ConvolutionExtents


def nest(problem: ConvolutionExtents) -> cgen.Module:
    """``void conv2d(O, I, W)``: O, zeroed by the caller, accumulates; the loops are a scop.

    Logical arrays I[N][C][H][W], W[K][C/g][R][S] and O[N][K][P][Q]; loops n, g (only with groups),
    k, p, q, c, r, s; with depth D, T and Z go before H, R and P. Guards keep I in bounds where the
    padding makes them necessary.
    """
    tree: cgen.Generable = _statement(problem)
    if conditions := guards(problem):
        tree = cgen.If(cgen.Line(" && ".join(conditions)), tree)
    for name, extent in reversed(loops(problem).items()):
        tree = _loop(name, extent, tree)
    body = cgen.Block([cgen.Pragma("scop"), tree, cgen.Pragma("endscop")])
    shapes = {name: shape for name, (shape, _) in problem.arrays().items()}
    arguments = [_array(name, shapes[name], "OIW") for name in "OIW"]
    head = cgen.FunctionDeclaration(cgen.Value("void", problem.FAMILY.name.lower()), arguments)
    return cgen.Module([cgen.Include("stdint.h"), cgen.FunctionBody(head, body)])


def loops(problem: ConvolutionExtents) -> dict[str, int]:
    """The loops and their extents, outer first."""
    extents = {"n": problem.N} | ({"g": problem.groups} if problem.groups > 1 else {})
    taps, outs = iterators(problem)
    extents |= {"k": problem.K // problem.groups} | dict(zip(outs, problem.pixels, strict=True))
    return extents | {"c": problem.C // problem.groups} | dict(zip(taps, problem.taps, strict=True))


def subscripts(problem: ConvolutionExtents) -> dict[str, tuple[str, ...]]:
    """Return the subscripts of the logical arrays I, W and O in the statement."""
    grouped = problem.groups > 1
    k = _sum(_times("g", problem.K // problem.groups), "k") if grouped else "k"
    c = _sum(_times("g", problem.C // problem.groups), "c") if grouped else "c"
    taps, outs = iterators(problem)
    places = (_tap(problem, axis) for axis in range(len(outs)))
    return {"I": ("n", c, *places), "W": (k, "c", *taps), "O": ("n", k, *outs)}


def iterators(problem: ConvolutionExtents) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The loops over taps and over outputs."""
    _, taps, outs, _ = zip(*problem.FAMILY.axes, strict=True)
    return tuple(map(str.lower, taps)), tuple(map(str.lower, outs))


def _loop(name: str, extent: int, body: cgen.Generable) -> cgen.For:
    start, end, step = f"int64_t {name} = 0", f"{name} < {extent}", f"++{name}"
    return cgen.For(cgen.Line(start), cgen.Line(end), cgen.Line(step), body)


def _array(name: str, shape: tuple[int, ...], order: str) -> cgen.Declarator:
    tree: cgen.Declarator = cgen.Value("float" if name == order[0] else "const float", name)
    for extent in shape:
        tree = cgen.ArrayOf(tree, extent)
    return tree


def _statement(problem: ConvolutionExtents) -> cgen.Assign:
    index = subscripts(problem)
    o, i, w = (name + "".join(f"[{text}]" for text in index[name]) for name in "OIW")
    return cgen.Assign(o, f"{o} + {i} * {w}")


def guards(problem: ConvolutionExtents) -> list[str]:
    """The conditions that some tap of the box needs to stay inside the image."""
    conditions = []
    for size, taps, out, axis in problem.FAMILY.axes:
        extent, tap = getattr(problem, size), _tap(problem, axis)
        reach = rules.span(getattr(problem, taps), problem.dilation[axis])
        last = (getattr(problem, out) - 1) * problem.stride[axis] + reach - 1 - problem.pad[axis]
        conditions += [f"{tap} >= 0"] if problem.pad[axis] else []
        conditions += [f"{tap} < {extent}"] if last >= extent else []
    return conditions


def _tap(problem: ConvolutionExtents, axis: int) -> str:
    """The place along an axis of the input that a tap reads: ``p * sh + r * dh - ph``."""
    tap, out = (names[axis] for names in iterators(problem))
    read = _sum(_times(out, problem.stride[axis]), _times(tap, problem.dilation[axis]))
    return f"{read} - {problem.pad[axis]}" if problem.pad[axis] else read


def _times(name: str, factor: int) -> str:
    return name if factor == 1 else f"{name} * {factor}"


def _sum(left: str, right: str) -> str:
    return f"{left} + {right}"
