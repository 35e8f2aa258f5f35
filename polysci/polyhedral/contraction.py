"""Contraction: the GEMM inside a Scop, found from its access relations alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import islpy as isl
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from polysci.errors import UnsupportedError
from polysci.numerics.affine import Affine, count_inside
from polysci.numerics.dtypes import DTYPES, ComputeType, Precision
from polysci.polyhedral.scop import Access, Scop, Statement, bound_operations

ROLES = ("m", "n", "k", "br", "batch")
REDUCTIONS = ("k", "br")
BAND = 1 << 25  # bytes of A laid out for one matrix product of NumPy

# (in O, in A, in B) -> role. Afterwards reductions are divided into k and br, and of several n all
# but the one that runs along the vectors become batch: each of their steps is a product of its own.
_ROLE_OF = {
    (True, True, False): "m",
    (True, False, True): "n",
    (False, True, True): "br",
    (True, True, True): "batch",
}


Strides = Mapping[str, tuple[int, ...]]  # of every array, in elements


@dataclass(frozen=True, slots=True)
class Operand:
    """One array of the contraction and the affine subscript of each of its axes.

    An element is ``block`` numbers of a type: as many as share a scale of the other factor.
    """

    array: str
    shape: tuple[int, ...]
    index: tuple[Affine, ...]
    dtype: str = "f32"
    block: int = 1

    @property
    def bytes(self) -> int:
        """The size of one element in bytes."""
        return self.block * DTYPES[self.dtype].bytes

    def __str__(self) -> str:
        return self.array + "".join(f"[{subscript}]" for subscript in self.index)

    def uses(self, dim: str) -> bool:
        return any(subscript.coef(dim) for subscript in self.index)

    def offset(self, strides: Sequence[int]) -> Affine:
        """Storage offset, in the unit of ``strides`` (one stride an axis)."""
        terms: dict[str, int] = {}
        for subscript, stride in zip(self.index, strides, strict=True):
            for name, coef in subscript.terms:
                terms[name] = terms.get(name, 0) + coef * stride
        const = sum(s.const * stride for s, stride in zip(self.index, strides, strict=True))
        return Affine(tuple((name, coef) for name, coef in terms.items() if coef), const)


@dataclass(frozen=True, slots=True)
class Dim:
    """One loop: its iterator, its trip count and its role."""

    name: str
    extent: int
    role: str

    def __str__(self) -> str:
        return f"{self.name}:{self.extent}({self.role})"


@dataclass(frozen=True, slots=True)
class FlatImage:
    """An image of x as one row of positions, ``pitch`` from one of its rows to the next.

    Position j is column ``j % pitch - left`` of row ``j // pitch - top``; those outside the
    ``height`` rows of ``width`` columns are zero. Of every ``pitch`` positions from 0 on, the first
    ``columns`` are the pixels of one of the result's ``rows``.
    """

    height: int
    width: int
    top: int
    left: int
    pitch: int
    rows: int
    columns: int
    bordered: bool  # whether filters read such zeros, which x itself lacks

    @property
    def length(self) -> int:
        """Positions from the result's first pixel to its last."""
        return (self.rows - 1) * self.pitch + self.columns

    @property
    def gaps(self) -> bool:
        """Tell whether some of these are no pixels of the result."""
        return self.length > self.rows * self.columns


@dataclass(frozen=True, slots=True)
class Contraction:
    """``out[..] += a[..] * b[..]`` over a box; dims in the order of the nest, all from 0.

    ``padded``: guards drop the iterations in which ``a`` would be read outside its bounds;
    ``clipped``: likewise where ``out`` would be written outside its own (a scattering nest).
    ``packs_b``: ``b`` changes from call to call, so that calls pack it; else it is packed ahead.
    ``plain``: calls read a ``b`` that changes where it lies.
    ``swapped``: the factors have changed places: ``a`` is what is packed ahead, and ``b`` is x; its
    columns are positions of ``image``, or, without one, the pixels of a copy.
    ``channels``: of a stencil, the dimension that a bias runs along.
    ``bias_axis``: the axis of ``out`` that a bias runs along; None: that of the columns.
    ``activation``: the function of finished sums, a row of ACTIVATIONS; empty: none.
    ``alpha`` and ``beta``: factors of the sums, and of the residual that the epilogue adds.
    """

    dims: tuple[Dim, ...]
    out: Operand
    a: Operand
    b: Operand
    padded: bool
    clipped: bool = False
    packs_b: bool = False
    plain: bool = False
    swapped: bool = False
    image: FlatImage | None = None
    channels: str = ""
    bias_axis: int | None = None
    activation: str = ""
    alpha: float = 1.0
    beta: float = 1.0

    def __str__(self) -> str:
        """``m=(n,p,q) n=k k=c br=(r,s) batch=g``; roles that no dim plays are left out."""
        names = {role: [dim.name for dim in self.by_role(role)] for role in ROLES}
        return " ".join(
            f"{role}={played[0] if len(played) == 1 else '(' + ','.join(played) + ')'}"
            for role, played in names.items()
            if played
        )

    @property
    def formula(self) -> str:
        """The statement, with the names of the user's arrays and loops."""
        return f"{self.out} += {self.a} * {self.b}"

    @property
    def gathered(self) -> bool:
        """Tell whether columns are the pixels of a copy of x that has no gaps."""
        return self.swapped and self.image is None

    @property
    def x(self) -> Operand:
        """The factor that changes from call to call."""
        return self.b if self.swapped else self.a

    @property
    def w(self) -> Operand:
        """The factor that is packed into panels."""
        return self.a if self.swapped else self.b

    @property
    def weights(self) -> str:
        """How kernels of f32 decode w: a row of DTYPES, of blocks without their size; or f32."""
        narrow = self.a.dtype == "f32" and not self.swapped
        return self.b.dtype.partition("x")[0] if narrow else "f32"

    @property
    def multiplied(self) -> str:
        """The type of inputs by which kernels are chosen: that of x, a8 or a24 beside blocks."""
        w = DTYPES[self.b.dtype]
        if w.block == 1 or self.swapped:
            return self.a.dtype
        return "a8" if w.rounds_x else "a24"

    def packed_item(self, compute: ComputeType) -> int:
        """Return the bytes of an element of packed w: as the kernel multiplies it, or as stored."""
        return compute.bytes if self.weights == "f32" else self.b.bytes

    def by_role(self, role: str) -> tuple[Dim, ...]:
        return tuple(dim for dim in self.dims if dim.role == role)

    @property
    def reductions(self) -> frozenset[str]:
        """Dimensions that are summed over."""
        return frozenset(dim.name for dim in self.dims if dim.role in REDUCTIONS)

    def extent(self, name: str) -> int:
        return next(dim.extent for dim in self.dims if dim.name == name)

    @property
    def extents(self) -> dict[str, int]:
        return {dim.name: dim.extent for dim in self.dims}

    def with_precision(self, precision: Precision) -> Contraction:
        """Return the same sums over arrays of these element types."""
        return replace(
            self,
            a=replace(self.a, dtype=precision.x.name, block=precision.w.block),
            b=replace(self.b, dtype=precision.w.name),
            out=replace(self.out, dtype=precision.y.name),
        )


def columns_of(contraction: Contraction) -> Dim:
    """The dimension that runs along the vector lanes: n, or the batch where there is no GEMM.

    Vectors of a batch hold neighbours of A, and results with a bias of their own: any other batch
    is none. Raises UnsupportedError where it is not one dimension.
    """
    wide = [d for d in contraction.dims if d.role == "n" and d.extent > 1]
    if not wide and all(d.extent == 1 for d in contraction.dims if d.role in ("n", "k")):
        axes, own = contraction.out.index, contraction.bias_axis
        wide = [d for d in contraction.dims if d.role == "batch" and d.extent > 1]
        wide = [d for d in wide if own is None or axes[own].coef(d.name)]
        wide = [d for d in wide if _steps_by_one(contraction.a, d)]
        wide = sorted(wide, key=lambda d: _last_axis(contraction.a, d))[-1:]
    wide = wide or [d for d in contraction.dims if d.role == "n"]
    if len(wide) != 1:
        raise UnsupportedError(
            f"{contraction.formula}: expected one column dimension, found {len(wide)}"
        )
    return wide[0]


def _steps_by_one(operand: Operand, dim: Dim) -> bool:
    """Return whether neighbours along a dimension are neighbours on every axis that it indexes."""
    return all(index.coef(dim.name) in (0, 1) for index in operand.index)


def _last_axis(operand: Operand, dim: Dim) -> int:
    """Return the fastest axis that a dimension indexes."""
    return max(axis for axis, index in enumerate(operand.index) if index.coef(dim.name))


def needed_products(contraction: Contraction) -> int:
    """Iterations in which no operand leaves its array; guards drop the others."""
    operands = (contraction.out, contraction.a, contraction.b)
    subscripts = [
        subscript
        for operand in operands
        for subscript in zip(operand.index, operand.shape, strict=True)
    ]
    return count_inside(subscripts, {dim.name: dim.extent for dim in contraction.dims})


def contraction(scop: Scop) -> Contraction:
    """Return the GEMM roles of the one statement ``O[f] += A[g] * B[h]`` of ``scop``.

    Raises UnsupportedError, saying why, when the Scop is anything else.
    """
    statement = _only_statement(scop)
    a, b = statement.factors
    with bound_operations(f"roles of {scop.name}"):
        lows, extents = _box(statement)
        out_op, a_op, b_op = (
            _operand(scop, statement, access, lows) for access in (statement.write, a, b)
        )
        cut = _cuts(scop, statement, (statement.write, a, b))
    if _is_windowed(b_op, a_op, out_op) and not _is_windowed(a_op, b_op, out_op):
        a_op, b_op = b_op, a_op
        cut = (cut[0], cut[2], cut[1])
    if cut[2]:
        raise _refusal(
            statement,
            f"a guard keeps {b_op} inside its bounds; only {a_op} and {out_op} may leave theirs",
        )
    dims = _dims(statement, extents, (out_op, a_op, b_op), padded=cut[1])
    return Contraction(dims, out_op, a_op, b_op, padded=cut[1], clipped=cut[0])


def _refusal(statement: Statement, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"line {statement.line}: {statement.text}: no contraction here: {why}. "
        "The form is RESULT[..] += FACTOR[..] * FACTOR[..] under loops with constant bounds."
    )


def _only_statement(scop: Scop) -> Statement:
    if len(scop.statements) != 1:
        lines = ", ".join(str(statement.line) for statement in scop.statements) or "none"
        raise UnsupportedError(
            f"{scop.name}: a contraction is one statement, found {len(scop.statements)} "
            f"(lines: {lines}); give each contraction its own scop"
        )
    statement = scop.statements[0]
    if len(statement.factors) != 2:
        raise _refusal(statement, "the term added is not a product of two array elements")
    if statement.reduction == "*":
        raise _refusal(statement, "it multiplies into its target")
    if any(factor.array == statement.write.array for factor in statement.factors):
        raise _refusal(statement, f"{statement.write.array} is both written and a factor")
    return statement


def _box(statement: Statement) -> tuple[list[int], list[int]]:
    """First value and trip count of every loop."""
    box = statement.box
    if box.is_empty():
        raise _refusal(statement, "a loop around it never runs")
    if not box.is_box():
        raise _refusal(statement, "the loops do not span a box (a bound or step varies)")
    lows, extents = [], []
    for dim in range(box.dim(isl.dim_type.set)):
        low, high = box.dim_min_val(dim).to_python(), box.dim_max_val(dim).to_python()
        lows.append(low)
        extents.append(high - low + 1)
    return lows, extents


def _operand(scop: Scop, statement: Statement, access: Access, lows: Sequence[int]) -> Operand:
    pieces = isl.PwMultiAff.from_map(access.map)
    if not pieces.isa_multi_aff():
        raise _refusal(statement, f"a subscript of {access.array} divides or chooses")
    subscripts = pieces.as_multi_aff()
    index = []
    for axis in range(subscripts.dim(isl.dim_type.out)):
        form = subscripts.get_at(axis)
        if form.dim(isl.dim_type.div):
            raise _refusal(statement, f"a subscript of {access.array} divides")
        coefs = [
            form.get_coefficient_val(isl.dim_type.in_, dim).to_python() for dim in range(len(lows))
        ]
        const = form.get_constant_val().to_python()
        const += sum(coef * low for coef, low in zip(coefs, lows, strict=True))
        named = zip(statement.iterators, coefs, strict=True)
        index.append(Affine(tuple((name, coef) for name, coef in named if coef), const))
    return Operand(access.array, scop.array(access.array).shape, tuple(index))


def _cuts(scop: Scop, statement: Statement, accesses: Sequence[Access]) -> tuple[bool, ...]:
    """Return which operands leave their arrays over the whole box.

    The guards must drop just that.
    """
    kept, cut = statement.box, []
    for access in accesses:
        elements = scop.array(access.array).elements()
        inside = access.map.intersect_range(elements).domain()
        cut.append(not statement.box.is_subset(inside))
        kept = kept.intersect(inside)
    if not kept.is_equal(statement.domain):
        raise _refusal(statement, "its guards drop more than the accesses outside the arrays")
    return tuple(cut)


def _is_windowed(factor: Operand, other: Operand, out: Operand) -> bool:
    """Return whether a subscript adds an output's dim to a reduction, as a filter window does."""
    for subscript in factor.index:
        names = [name for name, _ in subscript.terms]
        slides = any(out.uses(name) and not other.uses(name) for name in names)
        if slides and any(other.uses(name) and not out.uses(name) for name in names):
            return True
    return False


def _dims(
    statement: Statement,
    extents: Sequence[int],
    operands: tuple[Operand, Operand, Operand],
    *,
    padded: bool,
) -> tuple[Dim, ...]:
    (out, a, b), dims = operands, list[Dim]()
    for name, extent in zip(statement.iterators, extents, strict=True):
        mentions = (out.uses(name), a.uses(name), b.uses(name))
        role = _ROLE_OF.get(mentions)
        if role is None:
            alone = next((f"{op.array} alone" for op in (out, a, b) if op.uses(name)), "no array")
            raise _refusal(statement, f"loop {name} indexes {alone}")
        dims.append(Dim(name, extent, role))
    reductions = [dim for dim in dims if dim.role == "br"]
    if reductions and not statement.reduction:
        raise _refusal(statement, "it overwrites its target in every step of a reduction")
    columns = [dim for dim in dims if dim.role == "n" and dim.extent > 1]
    rows = [dim.name for dim in dims if dim.role == "m"]
    beside = sorted(columns, key=lambda dim: _column_rank(dim, rows, out))[:-1]
    dims = [replace(dim, role="batch") if dim in beside else dim for dim in dims]
    deep = max(reductions, key=lambda dim: _depth_rank(dim, rows, a), default=None)
    if not any(dim.role == "n" for dim in dims) or (
        deep and padded and not _depth_rank(deep, rows, a)[0]
    ):
        deep = None  # a filter's taps all: a product of two vectors each, or cut by the padding
    return tuple(Dim(dim.name, dim.extent, "k") if dim is deep else dim for dim in dims)


def _column_rank(dim: Dim, rows: Sequence[str], out: Operand) -> tuple[bool, bool, int, int]:
    """How well it runs along the vectors: no row on its axis, unit step, fastest axis, long."""
    axis = _last_axis(out, dim)
    alone = not any(out.index[axis].coef(row) for row in rows)
    return alone, abs(out.index[axis].coef(dim.name)) == 1, axis, dim.extent


def _depth_rank(dim: Dim, rows: Sequence[str], a: Operand) -> tuple[bool, int, bool, int]:
    """How well a reduction serves as k: alone in A's subscripts, fastest axis, unit step, long."""
    axes = [axis for axis, subscript in enumerate(a.index) if subscript.coef(dim.name)]
    alone = not any(a.index[axis].coef(row) for axis in axes for row in rows)
    return alone, axes[-1], abs(a.index[axes[-1]].coef(dim.name)) == 1, dim.extent


def run_along_storage(contraction: Contraction, strides: Sequence[int]) -> Contraction:
    """Return the sums with k along the reduction whose steps lie nearest in A.

    A kernel that takes one element of A at a time runs along that one, where A lies, and along any
    other one where k has a single step.
    """
    offset = contraction.a.offset(strides)
    steps = {d.name: abs(offset.coef(d.name)) for d in contraction.dims if d.extent > 1}
    deep = contraction.by_role("k")
    others = [steps[d.name] for d in contraction.by_role("br") if steps.get(d.name)]
    if not contraction.packs_b or not deep or not others:
        return contraction
    if steps.get(deep[0].name, max(others)) < min(others):
        return contraction
    dims = (replace(d, role="br") if d.role == "k" else d for d in contraction.dims)
    return replace(contraction, dims=tuple(dims))


def owned_rows(contraction: Contraction, strides: Strides) -> Dim | None:
    """Return the outermost dimension of C that x has too and weights have not; None: there is none.

    None also where B changes from call to call.
    """
    if contraction.packs_b or contraction.plain:
        return None
    offset = contraction.out.offset(strides[contraction.out.array])
    shared = [
        dim for dim in contraction.dims
        if dim.extent > 1 and contraction.x.uses(dim.name) and offset.coef(dim.name)
        and not contraction.w.uses(dim.name)
    ]  # fmt: skip
    return max(shared, key=lambda dim: offset.coef(dim.name), default=None)


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
    """Return whether a dimension counts along an axis of A by itself."""
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


def contract(
    contraction: Contraction, a: NDArray[Any], b: NDArray[Any], result: NDArray[Any]
) -> None:
    """Compute the sums by NumPy: strided views over the subscripts, then matrix products.

    All arrays share a dtype, in which sums are formed: exact for integers as long as it holds every
    partial sum. What ``contraction`` reads outside ``a`` counts as zero.
    """
    batch, rows, columns, depth = (
        tuple(dim for dim in contraction.dims if dim.role in roles)
        for roles in (("batch",), ("m",), ("n",), REDUCTIONS)
    )
    factor, a = _pad(contraction, a)
    apart = factor.offset(a.strides)
    depth = tuple(sorted(depth, key=lambda dim: -apart.coef(dim.name)))  # copies read in order
    left = _view(factor, a, (*batch, *rows, *depth))
    right = _view(contraction.b, b, (*batch, *depth, *columns))
    sums = _view(contraction.out, result, (*batch, *rows, *columns))
    sizes = (prod(dim.extent for dim in dims) for dims in (depth, columns))
    _multiply(left, right.reshape(*right.shape[: len(batch)], *sizes), sums, len(batch), len(rows))


def _pad(contraction: Contraction, a: NDArray[Any]) -> tuple[Operand, NDArray[Any]]:
    """Return A as it reads an array with zeros around it, and that array.

    In its memory those axes lie last that reductions alone index: copies take long runs of them.
    """
    operand, reductions = contraction.a, contraction.reductions
    reach = [index.reach(contraction.extents) for index in operand.index]
    pads = [(max(0, -low), max(0, high - size + 1))
            for (low, high), size in zip(reach, a.shape, strict=True)]  # fmt: skip
    summed = [reductions.issuperset(dict(index.terms)) for index in operand.index]
    order = sorted(range(a.ndim), key=summed.__getitem__)
    turned = a.transpose(order)
    if any(map(any, pads)):
        turned = np.pad(turned, [pads[axis] for axis in order])
    moved = tuple(replace(index, const=index.const + before)
                  for index, (before, _) in zip(operand.index, pads, strict=True))  # fmt: skip
    turned = np.ascontiguousarray(turned)
    return replace(operand, index=moved), turned.transpose([*map(order.index, range(a.ndim))])


def _view(operand: Operand, array: NDArray[Any], dims: Sequence[Dim]) -> NDArray[Any]:
    """Return the elements that every point of the box of ``dims`` touches, without copies."""
    first = array[tuple(slice(index.const, None) for index in operand.index)]
    offset = operand.offset(array.strides)
    return as_strided(first, [dim.extent for dim in dims], [offset.coef(d.name) for d in dims])


def _multiply(
    left: NDArray[Any], weights: NDArray[Any], result: NDArray[Any], batch: int, rows: int
) -> None:
    """Compute ``result = left @ weights``; the longest rows are halved until A's copy is a band."""
    sizes = left.shape[batch : batch + rows]
    longest = batch + int(np.argmax(sizes)) if rows else -1
    if left.size * left.itemsize > BAND and rows and left.shape[longest] > 1:
        half = left.shape[longest] // 2
        for part in (slice(None, half), slice(half, None)):
            at = (*[slice(None)] * longest, part)
            _multiply(left[at], weights, result[at], batch, rows)
        return
    product = np.matmul(left.reshape(*left.shape[:batch], -1, weights.shape[-2]), weights)
    result[...] = product.reshape(result.shape)
