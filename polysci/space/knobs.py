"""Choices that one loop order leaves open: where A is packed, and which loops are parallel."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from polysci.numerics.affine import Affine
from polysci.numerics.dtypes import COMPUTES, DTYPES
from polysci.polyhedral.contraction import REDUCTIONS, Contraction, Strides, columns_of
from polysci.space.packed_copy import beside_in_copy
from polysci.target.coefficients import prior_of
from polysci.target.microkernels import Microkernel

SET_STRIDE = 512  # bytes, an eighth of the sets of an L1: pixels a multiple apart crowd in 8 sets


def knobs_of(
    contraction: Contraction,
    strides: Strides,
    dims: tuple[str, ...],
    threads: int,
    kernel: Microkernel,
) -> list[tuple[int, int]]:
    """Return where to pack and how many loops are parallel: all that one order allows."""
    return [
        (pack, parallel)
        for parallel in _parallel(contraction, dims, threads)
        for pack in _packings(contraction, strides, dims, parallel, kernel)
    ]


def _parallel(contraction: Contraction, dims: tuple[str, ...], threads: int) -> list[int]:
    """Return numbers of leading parallel loops: distinct dims, reductions if sums are long."""
    if threads == 1:
        return [0]
    free = 0
    roles = {d.name: d.role for d in contraction.dims}
    copies = prod(d.extent for d in contraction.dims if d.role in REDUCTIONS) >= prior_of(
        "least_summed"
    )
    copies = copies and not DTYPES[contraction.a.dtype].integer
    for dim in dims:
        if dim in dims[:free] or (roles[dim] in REDUCTIONS and not copies):
            break
        free += 1
    return list(range(1, min(free, 4) + 1))


def _packings(
    contraction: Contraction,
    strides: Strides,
    dims: tuple[str, ...],
    parallel: int,
    kernel: Microkernel,
) -> list[int]:
    """Return where A may be packed: nowhere, before all loops, inside each loop that moves A."""
    if contraction.a.block > 1 and not COMPUTES[kernel.compute].bytes_of_x:
        return [-1]  # few rows read x, and kernels read a block of it side by side
    if COMPUTES[kernel.compute].converts or kernel.stencil:
        return [-1]  # from a copy, another way to multiply needs no conversion
    if contraction.swapped:
        return _image_copies(contraction, dims, parallel)
    column = columns_of(contraction)
    offset = contraction.a.offset(strides[contraction.a.array])
    needed = offset.coef(column.name) not in (0, 1) or reads_copy(contraction, offset, kernel)
    depths = [] if needed else [-1]
    moving = [i + 1 for i, dim in enumerate(dims[:-1]) if contraction.a.uses(dim)]
    taps = prod(d.extent for d in contraction.by_role("br"))
    panels = beside_in_copy(contraction, strides[contraction.a.array], kernel)
    latest = len(dims) - 2 if taps > 1 and not panels else len(dims) - 1
    latest = max(latest, 0) if needed else latest  # a nest of one loop packs before it
    return depths + [at for at in [0, *moving] if (at == 0 or at >= parallel) and at <= latest]


def reads_copy(contraction: Contraction, offset: Affine, kernel: Microkernel) -> bool:
    """Return whether a kernel that broadcasts A wants a copy: other elements, or full words."""
    compute = COMPUTES[kernel.compute]
    if kernel.family != "brgemm":
        return False
    depths = [d for d in contraction.by_role("k") if d.extent > 1]
    taps = prod(d.extent for d in contraction.by_role("br"))
    apart = any(offset.coef(d.name) != 1 for d in depths)
    short = taps > 1 and any(
        d.extent < compute.vnni_factor for d in depths
    )  # a word for a few elements
    widened = compute.bytes > contraction.a.bytes and not compute.converts
    return widened or (compute.vnni_factor > 1 and (apart or short))


def _image_copies(contraction: Contraction, dims: tuple[str, ...], parallel: int) -> list[int]:
    """Return where swapped factors copy x: nowhere, or outside all loops that read it again.

    These are over rows. Pixels that lie apart are gathered by whole images, outside all loops over
    pixels.
    """
    if contraction.image and not contraction.image.bordered:
        return [-1]
    again = contraction.by_role("m") if contraction.image else (columns_of(contraction),)
    inside = {dim.name for dim in again}
    end = next((at for at, dim in enumerate(dims) if dim in inside), len(dims))
    moving = [at + 1 for at in range(end) if contraction.x.uses(dims[at])]
    return [at for at in (0, *moving) if at == 0 or at >= parallel]


def pad_of(contraction: Contraction, strides: Strides, kernel: Microkernel) -> int:
    """Elements between packed pixels that spread them over the cache sets: a line, or none."""
    if contraction.swapped:
        return 0  # images are copied without gaps
    if contraction.by_role("k") and beside_in_copy(
        contraction, strides[contraction.a.array], kernel
    ):
        return 0  # words of rows lie side by side
    depth = [d.extent for d in contraction.dims if d.role in ("k", "batch")]
    widened = kernel.family == "brgemm"  # its copy of A holds what it multiplies
    item = COMPUTES[kernel.compute].bytes if widened else contraction.a.bytes
    if any(d.extent * item < 4 for d in contraction.by_role("k")):
        return 0  # words go on from pixel to pixel
    row = prod(depth) * contraction.a.block * item
    return 64 // item if row % SET_STRIDE == 0 else 0


def place_outermost(
    pack: NDArray[np.intp],
    dims: tuple[str, ...],
    steps: NDArray[np.int64],
    extents: Mapping[str, int],
) -> NDArray[np.intp]:
    """Return the packings outside of loops that run once."""
    current = {dim: np.full(len(steps), extent) for dim, extent in extents.items()}
    outermost, outer = np.zeros(len(steps), dtype=np.intp), np.minimum(pack, 0)
    for position, dim in enumerate(dims):
        runs = steps[:, position] < current[dim]
        current[dim] = np.minimum(steps[:, position], current[dim])
        outermost = np.where(runs, position + 1, outermost)
        outer = np.where(pack == position + 1, outermost, outer)
    return outer
