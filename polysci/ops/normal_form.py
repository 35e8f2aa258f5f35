"""The normal form of a contraction from a C file, and what of it can be computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from polysci.errors import UnsupportedError
from polysci.numerics.affine import Affine
from polysci.ops.words import LIMIT
from polysci.polyhedral.contraction import Contraction, Dim, Operand, columns_of, contraction
from polysci.polyhedral.scop import Scop

MAX_LOOPS = 12
MAX_ROWS = 5  # the orders of more are too many to rank


def normalize(scop: Scop) -> Contraction:
    """Return the contraction of a nest, loops reversed where needed to run through O or A upwards.

    Raises UnsupportedError, with the reason, for what is no contraction or cannot be computed.
    """
    try:
        roles = contraction(scop)
    except UnsupportedError as error:
        known = str(error).startswith(scop.name)
        raise error if known else UnsupportedError(f"{scop.name}: {error}") from None
    where = f"{scop.name}: line {scop.statements[0].line}: {scop.statements[0].text}"
    if why := _unsupported_reason(scop, roles):
        raise UnsupportedError(f"{where}: {why}")
    backwards = [dim for dim in roles.dims if _runs_backwards(roles, dim.name)]
    for dim in backwards:
        roles = replace(
            roles,
            out=_reverse(roles.out, dim), a=_reverse(roles.a, dim), b=_reverse(roles.b, dim),
        )  # fmt: skip
    if why := _uncovered_reason(roles):
        raise UnsupportedError(f"{where}: {why}")
    return roles


def column_axis(roles: Contraction) -> int:
    """Return the axis of O along which the columns, and so a bias, run."""
    column = columns_of(roles).name
    return next(axis for axis, index in enumerate(roles.out.index) if index.coef(column))


def _unsupported_reason(scop: Scop, roles: Contraction) -> str:
    """Why a contraction cannot be computed, whichever way its loops run; or nothing."""
    out, a, b = roles.out, roles.a, roles.b
    if other := [array for array in scop.arrays if array.dtype_c != "float"]:
        return f"{other[0]} is not of float: only f32 nests are supported"
    if a.array == b.array:
        return f"{a.array} is both factors: the second one is packed ahead, so it needs a name"
    if roles.clipped:
        return f"its guards cut {out}: only reads of the first factor may leave the array"
    rows = [dim for dim in roles.by_role("m") if dim.extent > 1]
    if len(roles.dims) > MAX_LOOPS or len(rows) > MAX_ROWS:
        return (
            f"{len(roles.dims)} loops, {len(rows)} of them over {out.array} and {a.array} alone: "
            f"at most {MAX_LOOPS} and {MAX_ROWS} are supported"
        )
    if 2 * prod(dim.extent for dim in roles.dims) >= LIMIT:
        return "the count of operations is beyond 2^63"
    try:
        columns_of(roles)
    except UnsupportedError:
        return _no_column(roles)
    return ""


def _no_column(roles: Contraction) -> str:
    out, a, b = roles.out, roles.a, roles.b
    exchangeable = roles.by_role("m") and not _slides(roles)  # a window is A in either order
    hint = f"; exchange the factors: {b} * {a}" if exchangeable else ""
    return (
        f"no loop that indexes {out.array} and {b.array} but not {a.array} could run along the "
        f"vectors{hint}"
    )


def _slides(roles: Contraction) -> bool:
    """Return whether a subscript of A adds a row to a reduction, as a filter's window does."""
    rows = {dim.name for dim in roles.by_role("m")}
    reductions = {dim.name for dim in (*roles.by_role("k"), *roles.by_role("br"))}
    names = [{name for name, _ in index.terms} for index in roles.a.index]
    return any(rows & terms and reductions & terms for terms in names)


def _uncovered_reason(roles: Contraction) -> str:
    """Why the nest does not compute every element of O once, or nothing."""
    out, whole = roles.out, f"every element of {roles.out.array} must be computed, by one sum each"
    extents = {dim.name: dim.extent for dim in roles.dims if dim.extent > 1}
    terms = [[(c, name) for name, c in index.terms if name in extents] for index in out.index]
    names = [name for axis in terms for _, name in axis]
    if len(names) != len(set(names)):
        return f"a loop indexes two axes of {out}: {whole}"
    for axis, (index, size) in enumerate(zip(out.index, out.shape, strict=True)):
        if index.const:
            return f"axis {axis} of {out} does not start at 0: {whole}"
        reached = 1
        for coef, name in sorted(terms[axis]):
            if coef != reached:
                return f"axis {axis} of {out} has gaps or overlaps: {whole}"
            reached *= extents[name]
        if reached != size:
            return f"axis {axis} of {out} reaches {reached} of {size}: {whole}"
    column, axis = columns_of(roles), column_axis(roles)
    if column.extent > 1 and out.index[axis].coef(column.name) != 1:
        return f"the columns {column.name} lie apart on axis {axis} of {out}: exchange its terms"
    if rows := [dim.name for dim in roles.by_role("m") if dim.name in dict(out.index[axis].terms)]:
        return f"rows {rows[0]} and columns {column.name} share axis {axis} of {out}: divide it"
    return ""


def _runs_backwards(roles: Contraction, name: str) -> bool:
    """Return whether the first subscript of O, else of A, with a dimension goes down with it."""
    for operand in (roles.out, roles.a):
        coefs: Sequence[int] = [c for index in operand.index if (c := index.coef(name))]
        if coefs:
            return coefs[0] < 0
    return False


def _reverse(operand: Operand, dim: Dim) -> Operand:
    """Return the operand with a loop run the other way: ``dim`` becomes ``extent - 1 - dim``."""

    def reverse(index: Affine) -> Affine:
        coef = index.coef(dim.name)
        terms = tuple((n, -c if n == dim.name else c) for n, c in index.terms)
        return Affine(terms, index.const + coef * (dim.extent - 1))

    return replace(operand, index=tuple(map(reverse, operand.index)))
