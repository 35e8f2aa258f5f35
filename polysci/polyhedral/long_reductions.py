"""Reductions that are no filter's taps: along which of them calls run, and which may be split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polysci.polyhedral.contraction import Contraction, Dim


def run_along_storage(contraction: Contraction, strides: Sequence[int]) -> Contraction:
    """Return the sums with k along the reduction whose steps lie nearest in A.

    A kernel that takes one element of A at a time runs along that one, where A lies.
    """
    offset = contraction.a.offset(strides)
    steps = {d.name: abs(offset.coef(d.name)) for d in contraction.dims if d.extent > 1}
    deep = [d.name for d in contraction.by_role("k") if d.name in steps]
    others = [steps[d.name] for d in contraction.by_role("br") if steps.get(d.name)]
    if not contraction.packs_b or not deep or not others or steps[deep[0]] < min(others):
        return contraction
    dims = (replace(d, role="br") if d.role == "k" else d for d in contraction.dims)
    return replace(contraction, dims=tuple(dims))


def row_beside(contraction: Contraction, strides: Sequence[int], word: int = 1) -> Dim | None:
    """The row whose steps are neighbours in A where those of no reduction are: copies keep that.

    A kernel that takes a ``word`` of several steps of k at a time has these from as many rows of A.
    """
    offset = contraction.a.offset(strides)
    rows = [d for d in contraction.by_role("m") if d.extent > 1 and offset.coef(d.name) == 1]
    deep = contraction.by_role("k")
    apart = word > 1 and all(_alone(contraction, d) for d in (*deep, *rows))
    steps = contraction.packs_b and all(d.extent > 1 < offset.coef(d.name) for d in deep)
    return rows[0] if rows and (not deep or (apart and steps)) else None


def _alone(contraction: Contraction, dim: Dim) -> bool:
    """Whether a dimension counts along an axis of A by itself."""
    axes = [affine for affine in contraction.a.index if affine.coef(dim.name)]
    return all(affine.terms == ((dim.name, 1),) and not affine.const for affine in axes)


def long_reductions(contraction: Contraction) -> tuple[Dim, ...]:
    """Reductions of a call's operands that are no filter's taps: images, and their rows.

    A filter is shorter than the rows of the result that it slides along.
    """
    if not contraction.packs_b:
        return ()
    rows = {d.name: d.extent for d in contraction.by_role("m")}

    def slides(dim: Dim) -> bool:
        axes = [affine for affine in contraction.a.index if affine.coef(dim.name)]
        along = (rows.get(name, 0) for affine in axes for name, _ in affine.terms)
        return max(along, default=0) >= dim.extent

    return tuple(d for d in contraction.by_role("br") if d.extent > 1 and not slides(d))
