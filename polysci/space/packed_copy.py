"""Packed copies of x: which elements a schedule copies, and where each lies in the copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from polysci.errors import UnsupportedError
from polysci.numerics.arrays import LINE, round_up
from polysci.numerics.dtypes import COMPUTES
from polysci.polyhedral.contraction import Contraction, Dim, Operand, columns_of, row_beside
from polysci.space.padding import leaves
from polysci.target.microkernels import Microkernel, header_set_of

if TYPE_CHECKING:
    from polysci.space.schedule import Schedule


@dataclass(frozen=True, slots=True)
class PackedCopy:
    """A packed copy of an operand: per array axis the extent, source step and stride.

    Position i of an axis holds source index ``low + i * step`` where ``low`` is the smallest index
    that the enclosing tile reads. ``order`` lists the axes from the slowest to the fastest; strides
    alone do not tell, because those around an axis of one position are equal. They count numbers,
    where a position is a block of these. Of a copy in
    ``panel``s so many positions of the fastest axis lie side by side; the next ones follow behind
    all that these have. Each of them holds a ``word`` of so many positions of the axis around it,
    of whole words.
    """

    extents: tuple[int, ...]
    steps: tuple[int, ...]
    strides: tuple[int, ...]
    order: tuple[int, ...]
    bytes: int  # of an element
    panel: int = 0
    word: int = 1

    @property
    def panel_size(self) -> int:
        """Elements of one panel, or of all of it."""
        widest = self.order[0]
        return self.extents[widest] * self.strides[widest]

    @property
    def size(self) -> int:
        """Elements, rounded up to whole cache lines."""
        panels = -(-self.extents[self.order[-1]] // self.panel) if self.panel else 1
        return round_up(self.panel_size * panels, LINE // self.bytes)


def beside_in_copy(
    contraction: Contraction, strides: Sequence[int], kernel: Microkernel
) -> Dim | None:
    """Return the row whose positions are neighbours in a packed copy of A, if no reduction's are.

    Tile registers take rows of words.
    """
    compute = COMPUTES[kernel.compute]
    pairs = compute.name == "bf16" and kernel.family == "brgemm" and not kernel.tile_registers
    return row_beside(contraction, strides, compute.vnni_factor if pairs else 1)


def packed_copy_of(
    contraction: Contraction,
    tile: Mapping[str, int],
    pad: int,
    fastest: str | None,
    kernel: Microkernel,
    *,
    gaps: bool = False,
    panel: int = 0,
    words_of: str | None = None,
) -> PackedCopy:
    """The packed copy of A that covers ``tile``, with the axis of ``fastest`` contiguous.

    Without ``fastest`` the axes keep their order. With ``gaps`` the source's last axis may have
    some. ``panel`` is as in PackedCopy, ``words_of`` the dimension whose axis has words.

    Raises UnsupportedError where the packing functions cannot copy it.
    """
    extents, steps = [], []
    for affine in contraction.a.index:
        terms = [(affine.coef(d.name), tile[d.name]) for d in contraction.dims]
        step = gcd(*(abs(c) for c, size in terms if c and size > 1)) or 1
        extents.append(sum(abs(c) // step * (size - 1) for c, size in terms if size > 1) + 1)
        steps.append(step)
    last = [dim for dim in (words_of, fastest) if dim]
    axes = sorted(
        range(len(extents)),
        key=lambda axis: [bool(contraction.a.index[axis].coef(dim)) for dim in reversed(last)],
    )
    word = COMPUTES[kernel.compute].vnni_factor if words_of else 1
    if words_of:
        extents[axes[-2]] = round_up(extents[axes[-2]], word)
    block = contraction.a.block
    strides, stride = [0] * len(extents), block
    for axis in reversed(axes):
        strides[axis] = stride
        side_by_side = panel if panel and axis == axes[-1] else extents[axis]
        stride = stride * side_by_side + (pad if axis == axes[-1] else 0)
    strides[axes[-1]] = word * block
    boxed = header_set_of(
        kernel, contraction.a.dtype, contraction.out.dtype, packed=True
    ).packed_copy
    width = COMPUTES[kernel.compute].bytes if boxed else contraction.a.bytes
    box = PackedCopy(tuple(extents), tuple(steps), tuple(strides), tuple(axes), width, panel, word)
    if why := _unpackable(contraction, box, pad, gaps=gaps):
        raise UnsupportedError(f"cannot pack {contraction.a}: {why}")
    return box


def packed_copy_in(
    contraction: Contraction,
    strides: tuple[int, ...],
    schedule: Schedule,
    column: str,
    kernel: Microkernel,
) -> PackedCopy | None:
    """The packed copy that a schedule asks for: contiguous along k, or panels of rows of a call."""
    if schedule.pack is None:
        return None
    extents = {d.name: d.extent for d in contraction.dims}
    outer, depths = schedule.tile(extents, schedule.pack_depth), contraction.by_role("k")
    fastest, panel, words_of = depths[0].name if depths else None, 0, None
    if kernel.diagonal:
        fastest = column
    elif beside := beside_in_copy(contraction, strides, kernel):
        words_of, fastest = fastest, beside.name
        rows = schedule.tile(extents)[fastest]
        panel = rows if rows < outer[fastest] else 0
    return packed_copy_of(
        contraction, outer, schedule.pack.pad, fastest, kernel, panel=panel, words_of=words_of
    )


def swapped_copy_of(
    original: Contraction, swapped: Contraction, schedule: Schedule, kernel: Microkernel
) -> PackedCopy | None:
    """The copy of x that a schedule with swapped factors asks for.

    Raises UnsupportedError where x needs one, or needs another one.
    """
    if swapped.gathered:
        return _gathered_copy(original, swapped, schedule, kernel)
    return _image_copy(swapped, schedule)


def _image_copy(swapped: Contraction, schedule: Schedule) -> PackedCopy | None:
    """The copy of x in which a ``FlatImage`` has zeros between its rows, for swapped factors.

    It holds the positions that the columns inside ``pack(A)`` read, those between the taps too;
    ``pad`` elements follow the positions of each channel. None where calls read x itself.
    """
    if schedule.pack is None:
        if swapped.image and swapped.image.bordered:
            raise UnsupportedError(
                f"schedule {schedule}: {swapped.x.array} lacks the zeros of the padding: pack(A) "
                "copies it with them"
            )
        return None
    x = swapped.x
    outer = schedule.tile({d.name: d.extent for d in swapped.dims}, schedule.pack_depth)
    spans = [sum(coef * (outer[dim] - 1) for dim, coef in index.terms) + 1 for index in x.index]
    strides, stride = [1] * len(spans), 1
    for axis in reversed(range(len(spans))):
        strides[axis] = stride
        stride = stride * spans[axis] + (schedule.pack.pad if axis == len(spans) - 1 else 0)
    axes = tuple(range(len(spans)))
    return PackedCopy(tuple(spans), (1,) * len(spans), tuple(strides), axes, x.bytes)


def _gathered_copy(
    original: Contraction, swapped: Contraction, schedule: Schedule, kernel: Microkernel
) -> PackedCopy:
    """The copy of x with the pixels of whole images behind each other, for swapped factors."""
    if schedule.pack is None:
        raise UnsupportedError(
            f"schedule {schedule}: the pixels of {swapped.x.array} have gaps: pack(A) gathers them"
        )
    extents = {d.name: d.extent for d in swapped.dims}
    outer = schedule.tile(extents, schedule.pack_depth)
    column = columns_of(swapped).name
    if outer[column] < extents[column]:
        raise UnsupportedError(
            f"schedule {schedule}: pack(A) gathers whole images: it stands outside the loops over "
            f"{column!r}"
        )
    if schedule.pack.pad:
        raise UnsupportedError(f"schedule {schedule}: images are gathered without padding")
    pixels = {d.name: d.extent for d in original.by_role("m") if d.extent != extents[d.name]}
    return packed_copy_of(original, outer | pixels, 0, None, kernel, gaps=True)


def _unpackable(contraction: Contraction, box: PackedCopy, pad: int, *, gaps: bool) -> str:
    """Return what the packing functions cannot do; empty for nothing."""
    if box.word > 1 and pad:
        return "words of several rows lie side by side without padding"
    if len(box.order) < 2:
        return "it has fewer than two axes"
    for axis, affine in enumerate(contraction.a.index):
        if any(coef < 0 for _, coef in affine.terms):
            return f"axis {axis} runs backwards"
    fast = box.order[-1]
    if box.panel and len(contraction.a.index[fast].terms) > 1:
        return f"several dimensions index axis {fast}, of which panels would hold parts"
    if (box.steps[fast] != 1 and not gaps) or leaves(contraction, fast):
        return f"its fastest axis, {fast}, has gaps or padding"
    return ""


def origin_coef(coef: Mapping[str, int], operand: Operand, box: PackedCopy) -> dict[str, int]:
    """Elements between tiles one position apart in a packed copy; in panels each fills some."""
    if not box.panel:
        return dict(coef)
    ((dim, _),) = operand.index[box.order[-1]].terms
    return {**coef, dim: box.panel_size // box.panel}


def packed_coef(contraction: Contraction, box: PackedCopy) -> dict[str, int]:
    """Stride of every dimension inside a packed copy."""
    return {
        d.name: sum(
            affine.coef(d.name) // step * stride
            for affine, step, stride in zip(
                contraction.x.index, box.steps, box.strides, strict=True
            )
            if d.extent > 1
        )
        for d in contraction.dims
    }
