"""The textbook loop nest of a convolution: what the operator means, nothing more."""

from __future__ import annotations

from polysci.loop_ir.nodes import LoopFunction
from polysci.ops.conv2d.extents import ConvolutionExtents
from polysci.ops.textbook import Reference, iterator, textbook
from polysci.polyhedral.affine import Affine


def nest(problem: ConvolutionExtents) -> LoopFunction:
    """Return ``conv2d(O, I, W)``: O, zeroed by the caller, accumulates.

    Logical arrays I[N][C][H][W], W[K][C/g][R][S] and O[N][K][P][Q]; loops n, g (only with groups),
    k, p, q, c, r, s; with depth D, T and Z go before H, R and P. Guards keep I in bounds where the
    padding makes them necessary.
    """
    index, arrays = subscripts(problem), problem.arrays()
    references = [Reference(name, arrays[name][0], index[name]) for name in "OIW"]
    return textbook(problem.FAMILY.name.lower(), loops(problem), references, "I")


def loops(problem: ConvolutionExtents) -> dict[str, int]:
    """Return the loops and their extents, outer first."""
    extents = {"n": problem.N} | ({"g": problem.groups} if problem.groups > 1 else {})
    taps, outs = iterators(problem)
    extents |= {"k": problem.K // problem.groups} | dict(zip(outs, problem.pixels, strict=True))
    return extents | {"c": problem.C // problem.groups} | dict(zip(taps, problem.taps, strict=True))


def subscripts(problem: ConvolutionExtents) -> dict[str, tuple[Affine, ...]]:
    """Return the subscripts of the logical arrays I, W and O in the statement."""
    k, c = (
        Affine((("g", count // problem.groups), (own, 1))) if problem.groups > 1 else iterator(own)
        for own, count in (("k", problem.K), ("c", problem.C))
    )
    taps, outs = iterators(problem)
    places = zip(outs, problem.stride, taps, problem.dilation, problem.pad, strict=True)
    read = [Affine(((out, step), (tap, apart)), -pad) for out, step, tap, apart, pad in places]
    n, inner = iterator("n"), iterator("c")
    return {
        "I": (n, c, *read),
        "W": (k, inner, *map(iterator, taps)),
        "O": (n, k, *map(iterator, outs)),
    }


def iterators(problem: ConvolutionExtents) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the loops over taps and over outputs."""
    _, taps, outs, _ = zip(*problem.FAMILY.axes, strict=True)
    return tuple(map(str.lower, taps)), tuple(map(str.lower, outs))
