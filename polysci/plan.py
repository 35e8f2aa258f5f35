"""What a schedule means for one problem: tiles, strides, packed layouts and the kinds of calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from polysci import groups
from polysci.contraction import Contraction, Dim, Operand, columns_of
from polysci.errors import UnsupportedError
from polysci.microkernel import Microkernel, find
from polysci.schedule import Schedule

ALIGNMENT = 16  # f32 elements: every buffer starts on a 64-byte line


@dataclass(frozen=True, slots=True)
class Piece:
    """Tiles of one dimension that share code: origins ``first, first + step .. last``.

    ``masks`` holds, for every value of the filter dimension on the same axis, which positions of
    the tile read inside the image (bit i: position i); empty if the dimension is never cut.
    """

    first: int
    last: int
    step: int
    size: int
    masks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """A packed copy of an operand: per array axis the extent, source step and stride.

    Position i of an axis holds source index ``low + i * step`` where ``low`` is the smallest index
    that the enclosing tile reads. ``order`` lists the axes from the slowest to the fastest; strides
    alone do not tell, because those around an axis of one position are equal.
    """

    extents: tuple[int, ...]
    steps: tuple[int, ...]
    strides: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements, rounded up to whole cache lines."""
        widest = self.order[0]
        size = self.extents[widest] * self.strides[widest]
        return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Plan:
    """A contraction, its storage and a schedule, resolved to what the emitter needs.

    ``coef`` maps operand ("A", "C") and dimension to the storage stride in elements; ``rows`` are
    the dimensions of the register tile's rows, outer first; ``column`` its columns; ``depth`` the
    reduction inside a run; ``taps`` the filter dimensions, whole inside a call. Contraction and
    schedule are those of ``merged`` groups in one call.
    """

    contraction: Contraction
    schedule: Schedule
    kernel: Microkernel
    tile: Mapping[str, int]
    rows: tuple[str, ...]
    column: str
    depth: str | None
    taps: tuple[str, ...]
    coef: Mapping[str, Mapping[str, int]]
    base: int
    box: Box | None
    pieces: Mapping[str, tuple[Piece, ...]]
    ranges: Mapping[str, str]
    merged: int = 1

    def extent(self, dim: str) -> int:
        return next(d.extent for d in self.contraction.dims if d.name == dim)

    def classes(self) -> list[dict[str, Piece]]:
        """Every combination of pieces: one microkernel instantiation each."""
        names = list(self.pieces)
        return [dict(zip(names, combo, strict=True)) for combo in product(*self.pieces.values())]

    def columns_padded(self, size: int) -> int:
        """Columns of a packed weight panel: whole vectors."""
        return -(-size // self.kernel.lanes) * self.kernel.lanes

    @property
    def groups(self) -> tuple[Dim, ...]:
        """Dimensions of B outside one panel: the batch dimensions that are not the columns."""
        return tuple(
            d for d in self.contraction.dims if d.role == "batch" and d.name != self.column
        )

    @property
    def reduction(self) -> int:
        """Elements of B below one column: the whole reduction."""
        return prod(d.extent for d in self.contraction.dims if d.role in ("k", "br"))

    @property
    def group_size(self) -> int:
        """Packed elements of B of one group."""
        extent, tile = self.extent(self.column), self.tile[self.column]
        last = (extent - 1) // tile * tile
        return (last + self.columns_padded(extent - last)) * self.reduction

    @property
    def packed_size(self) -> int:
        """Elements of packed B, groups included."""
        return self.group_size * prod(d.extent for d in self.groups)

    @property
    def blocked(self) -> bool:
        """Whether one call leaves part of the reduction to later calls."""
        return self.depth is not None and self.tile[self.depth] < self.extent(self.depth)


def storage(operand: Operand, strides: tuple[int, ...], dims: tuple[Dim, ...]) -> dict[str, int]:
    """Storage stride of every dimension, in elements."""
    offset = operand.offset(strides)
    return {d.name: offset.coef(d.name) for d in dims}


def box_of(contraction: Contraction, tile: Mapping[str, int], pad: int, fastest: str | None) -> Box:
    """The packed copy of A that covers ``tile``, with the axis of ``fastest`` contiguous.

    Raises UnsupportedError where the packing functions cannot copy it.
    """
    extents, steps = [], []
    for affine in contraction.a.index:
        terms = [(affine.coef(d.name), tile[d.name]) for d in contraction.dims]
        step = gcd(*(abs(c) for c, size in terms if c and size > 1)) or 1
        extents.append(sum(abs(c) // step * (size - 1) for c, size in terms if size > 1) + 1)
        steps.append(step)
    axes = sorted(
        range(len(extents)),
        key=lambda axis: bool(fastest and contraction.a.index[axis].coef(fastest)),
    )
    strides, stride = [0] * len(extents), 1
    for axis in reversed(axes):
        strides[axis] = stride
        stride = stride * extents[axis] + (pad if axis == axes[-1] else 0)
    box = Box(tuple(extents), tuple(steps), tuple(strides), tuple(axes))
    if why := _unpackable(contraction, box):
        raise UnsupportedError(f"{contraction}: cannot pack {contraction.a}: {why}")
    return box


def _unpackable(contraction: Contraction, box: Box) -> str:
    """What the packing functions cannot do, or nothing."""
    if len(box.order) < 2:
        return "it has fewer than two axes"
    for axis, affine in enumerate(contraction.a.index):
        if any(coef < 0 for _, coef in affine.terms):
            return f"axis {axis} runs backwards"
    fast = box.order[-1]
    if box.steps[fast] != 1 or leaves(contraction, fast):
        return f"its fastest axis, {fast}, has gaps or padding"
    return ""


def leaves(contraction: Contraction, axis: int) -> bool:
    """Whether an axis of A is read outside its bounds."""
    affine = contraction.a.index[axis]
    ends = [coef * (contraction.extent(name) - 1) for name, coef in affine.terms]
    low = affine.const + sum(end for end in ends if end < 0)
    high = affine.const + sum(end for end in ends if end > 0)
    return low < 0 or high >= contraction.a.shape[axis]


def cuts(
    extent: int, step: int, masks_at: Mapping[int, tuple[int, ...]] | None = None
) -> tuple[Piece, ...]:
    """Group the tiles of one dimension into runs of equal size and equal masks."""
    runs: list[tuple[int, int, int, tuple[int, ...]]] = []  # first, last, size, masks
    for origin in range(0, extent, step):
        masks = masks_at[origin] if masks_at else ()
        size = min(step, extent - origin)
        if runs and runs[-1][2:] == (size, masks):
            runs[-1] = (runs[-1][0], origin, size, masks)
        else:
            runs.append((origin, origin, size, masks))
    return tuple(Piece(first, last, step, size, masks) for first, last, size, masks in runs)


def cut_axes(contraction: Contraction) -> dict[str, tuple[int, str | None]]:
    """Row dimensions that may read outside A: the axis, and the filter dimension on it."""
    found: dict[str, tuple[int, str | None]] = {}
    for axis, affine in enumerate(contraction.a.index):
        if not leaves(contraction, axis):
            continue
        on_axis = [d for d in contraction.dims if affine.coef(d.name)]
        rows = [d for d in on_axis if d.role == "m"]
        taps = [d for d in on_axis if d.role == "br"]
        twice = any(d.name in found for d in rows)
        if len(rows) != 1 or len(taps) > 1 or len(on_axis) > len(rows + taps) or twice:
            raise UnsupportedError(
                f"{contraction}: cannot cut axis {axis} of {contraction.a.array}"
            )
        found[rows[0].name] = (axis, taps[0].name if taps else None)
    return found


def masks_of(
    contraction: Contraction, dim: Dim, step: int, axis: int, tap: str | None
) -> dict[int, tuple[int, ...]]:
    """For every tile origin of ``dim``: the mask of valid positions for each value of ``tap``."""
    affine, limit = contraction.a.index[axis], contraction.a.shape[axis]
    taps = next((d.extent for d in contraction.dims if d.name == tap), 1)
    along, across = affine.coef(dim.name), affine.coef(tap) if tap else 0
    return {
        origin: tuple(
            sum(
                1 << i
                for i in range(min(step, dim.extent - origin))
                if 0 <= (origin + i) * along + t * across + affine.const < limit
            )
            for t in range(taps)
        )
        for origin in range(0, dim.extent, step)
    }


def resolve(
    contraction: Contraction,
    strides: Mapping[str, tuple[int, ...]],
    schedule: Schedule,
) -> Plan:
    """Resolve ``schedule`` for a contraction whose arrays have these storage strides.

    Raises SpecError for loops that do not nest, UnsupportedError for what cannot be generated.
    """
    if contraction.clipped:
        raise UnsupportedError(f"{contraction}: guards cut the output {contraction.out}")
    extents = {d.name: d.extent for d in contraction.dims}
    schedule.check(extents)
    kernel = find(schedule.kernel)
    merged = groups.factor_in(contraction, schedule)
    if merged > 1:
        schedule = groups.to_merged(contraction, schedule, merged)
        contraction = groups.merged(contraction, merged)
        extents = {d.name: d.extent for d in contraction.dims}
    tile = schedule.tile(extents)
    column = columns_of(contraction)
    roles = {d.name: d.role for d in contraction.dims}
    for loop in schedule.loops:
        if roles[loop.dim] == "br":
            raise UnsupportedError(f"schedule {schedule}: {loop.dim!r} must stay inside the call")
    coef = {
        "A": storage(contraction.a, strides[contraction.a.array], contraction.dims),
        "C": storage(contraction.out, strides[contraction.out.array], contraction.dims),
    }
    base = contraction.a.offset(strides[contraction.a.array]).const
    depths = [d.name for d in contraction.dims if d.role == "k"]
    if len(depths) > 1:
        raise UnsupportedError(f"{contraction}: more than one k dimension")
    depth = depths[0] if depths else None
    box = None
    if schedule.pack:
        outer = schedule.tile(extents, schedule.pack_depth)
        fastest = column.name if kernel.family == "depthwise" else depth
        box = box_of(contraction, outer, schedule.pack.pad, fastest)
        coef["A"] = packed_coef(contraction, box)
        base = 0
    rows = row_dims(contraction, schedule, tile, column.name)
    check_kernel(schedule, kernel, tile, rows, column, coef["A"])
    if schedule.stream and not streams(contraction, coef["C"], kernel, column, tile):
        raise UnsupportedError(
            f"schedule {schedule}: {contraction.out} is not written once in whole aligned vectors"
        )
    pieces, ranges = cut(contraction, tile, packed=box is not None)
    return Plan(
        contraction, schedule, kernel, tile, rows, column.name, depth,
        tuple(d.name for d in contraction.dims if d.role == "br"),
        coef, base, box, pieces, ranges, merged,
    )  # fmt: skip


def streams(
    contraction: Contraction,
    c: Mapping[str, int],
    kernel: Microkernel,
    column: Dim,
    tile: Mapping[str, int],
) -> bool:
    """Whether C can go past the caches: written once, in whole vectors on vector boundaries."""
    whole = all(tile[d.name] == d.extent for d in contraction.by_role("k"))
    strides = [c[d.name] for d in contraction.dims if d != column and d.extent > 1]
    return (
        whole
        and c[column.name] == 1
        and column.extent % kernel.lanes == 0
        and all(stride % kernel.lanes == 0 for stride in strides)
    )


def packed_coef(contraction: Contraction, box: Box) -> dict[str, int]:
    """Stride of every dimension inside a packed copy."""
    return {
        d.name: sum(
            affine.coef(d.name) // step * stride
            for affine, step, stride in zip(
                contraction.a.index, box.steps, box.strides, strict=True
            )
            if d.extent > 1
        )
        for d in contraction.dims
    }


def row_dims(
    contraction: Contraction, schedule: Schedule, tile: Mapping[str, int], column: str
) -> tuple[str, ...]:
    """Dimensions that make up the rows of the register tile, outer first."""
    rows = tuple(
        d.name
        for d in contraction.dims
        if d.role in ("m", "batch", "n") and d.name != column and tile[d.name] > 1
    )
    if any(d.role != "m" for d in contraction.dims if d.name in rows) or len(rows) > 2:
        raise UnsupportedError(
            f"schedule {schedule}: one call may span at most two row dimensions, not {rows}"
        )
    return rows


def check_kernel(
    schedule: Schedule,
    kernel: Microkernel,
    tile: Mapping[str, int],
    rows: tuple[str, ...],
    column: Dim,
    a: Mapping[str, int],
) -> None:
    """Raise UnsupportedError unless the tile fits the microkernel it names."""
    count, width = prod(tile[dim] for dim in rows), tile[column.name]
    if count > kernel.rows or width > kernel.cols:
        raise UnsupportedError(
            f"schedule {schedule}: a call of {count} rows x {width} columns does not fit {kernel}"
        )
    if width % kernel.lanes and width != column.extent:
        raise UnsupportedError(
            f"schedule {schedule}: {column.name}:{width} is neither whole vectors of "
            f"{kernel.lanes} nor all {column.extent} columns"
        )
    stride = a[column.name]
    if (stride != 0) != (kernel.family == "depthwise") or stride not in (0, 1):
        raise UnsupportedError(
            f"schedule {schedule}: {kernel} cannot read A with stride {stride} along "
            f"{column.name!r}"
        )


def cut(
    contraction: Contraction, tile: Mapping[str, int], *, packed: bool
) -> tuple[dict[str, tuple[Piece, ...]], dict[str, str]]:
    """Pieces of every tiled dimension, and the row dimensions that clip a tap loop at run time.

    A dimension of one position a tile clips the range of its filter loop; a wider one gets a
    piece for every pattern of padded positions.
    """
    cut_by = {} if packed else cut_axes(contraction)
    pieces: dict[str, tuple[Piece, ...]] = {}
    ranges: dict[str, str] = {}
    for dim in contraction.dims:
        if dim.role == "br":
            continue
        step, masks = tile[dim.name], None
        if dim.name in cut_by:
            axis, tap = cut_by[dim.name]
            if step == 1 and tap is not None and _ranges(contraction, cut_by, axis, tap):
                ranges[tap] = dim.name
            else:
                masks = masks_of(contraction, dim, step, axis, tap)
        pieces[dim.name] = cuts(dim.extent, step, masks)
    return pieces, ranges


def _ranges(
    contraction: Contraction, cut_by: Mapping[str, tuple[int, str | None]], axis: int, tap: str
) -> bool:
    """Whether a range of a tap, counted upwards, can tell which of them read inside A."""
    alone = sum(other == tap for _, other in cut_by.values()) == 1
    return alone and contraction.a.index[axis].coef(tap) > 0
