"""Plans: a schedule resolved for one problem, with tiles, strides, packed layouts and calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from polysci.errors import UnsupportedError
from polysci.numerics.dtypes import COMPUTES, DTYPES, Compute, Precision
from polysci.polyhedral.affine import Affine
from polysci.polyhedral.contraction import Contraction, Dim, FlatImage, Operand, columns_of
from polysci.space import group_views
from polysci.space.checks import check_compute, check_kernel, check_taps
from polysci.space.directives import Plain, Swap
from polysci.space.directives.ahead import PanelReuse
from polysci.space.directives.private import PrivateCopies, copies_of
from polysci.space.packed_copy import (
    PackedCopy,
    packed_coef,
    packed_copy_in,
    round_up,
    swapped_copy_of,
)
from polysci.space.padding import Piece, cut, skips
from polysci.space.schedule import Schedule
from polysci.space.stencil_roles import (
    check_window,
    stencil_refusal,
    stencil_roles,
    taps_of,
)
from polysci.target.header_sets import HeaderSet, header_set_of
from polysci.target.microkernels import Microkernel, find


@dataclass(frozen=True, slots=True)
class Plan:
    """A contraction, its storage and a schedule, resolved to what the emitter needs.

    ``coef`` maps operand ("x", "C", a "B" that is not packed) and dimension to the storage stride
    in elements; ``rows`` are the dimensions of the register tile's rows, outer first; ``column``
    its columns; ``depth`` the reduction inside a run; ``taps`` the filter dimensions, whole inside
    a call. Contraction and schedule are those that the kernel takes (``group_views``): of
    ``merged`` groups, rotated, or swapped. ``copied`` is what ``box`` is a copy of. With
    ``private`` copies C is one of them. ``panels`` are the extents of what is packed of B at a
    time.
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
    box: PackedCopy | None
    pieces: Mapping[str, tuple[Piece, ...]]
    ranges: Mapping[str, str]
    copied: Operand
    panels: Mapping[str, int]
    merged: int = 1
    ahead: PanelReuse | None = None
    private: PrivateCopies | None = None

    def extent(self, dim: str) -> int:
        return next(d.extent for d in self.contraction.dims if d.name == dim)

    def classes(self) -> list[dict[str, Piece]]:
        """Every combination of pieces: one microkernel instantiation each."""
        names = list(self.pieces)
        return [dict(zip(names, combo, strict=True)) for combo in product(*self.pieces.values())]

    def columns_padded(self, size: int) -> int:
        """Columns of a register tile: whole vectors."""
        return round_up(size, self.kernel.lanes)

    @property
    def packs_b(self) -> bool:
        """Whether calls pack B themselves."""
        return self.contraction.packs_b and not self.schedule.has(Plain)

    @property
    def panel_dim(self) -> str:
        """The dimension along panels of w: columns, rows if swapped, channels of a stencil."""
        if self.kernel.stencil:
            return self.contraction.channels
        return self.contraction.by_role("m")[0].name if self.contraction.swapped else self.column

    @property
    def panel_lanes(self) -> int:
        """A number that divides the width of a panel of w."""
        return 1 if self.contraction.swapped or self.kernel.stencil else self.kernel.lanes

    @property
    def channel_axis(self) -> int:
        """The axis of the result that a bias runs along."""
        index = self.contraction.out.index
        return next(axis for axis, at in enumerate(index) if at.coef(self.panel_dim))

    @property
    def channel(self) -> Affine:
        """Its subscript."""
        return self.contraction.out.index[self.channel_axis]

    @property
    def channels(self) -> int:
        """Positions of the result that have a bias of their own."""
        return self.contraction.out.shape[self.channel_axis]

    @property
    def batches(self) -> dict[str, int]:
        """Groups of integer w whose channels share a bias: from one's offsets to the next one's."""
        apart, size = dict[str, int](), self.channels
        for group in reversed(self.groups if self.precision.integer else ()):
            if group.extent > 1 and not self.channel.coef(group.name):
                apart[group.name] = size
                size *= group.extent
        return apart

    @property
    def offsets(self) -> int:
        """Count the corrections for a zero point of x: one a channel and batch."""
        return self.channels * prod(self.extent(batch) for batch in self.batches)

    @property
    def gaps(self) -> FlatImage | None:
        """The image of which some positions that are columns are no pixels of C, if any."""
        image = self.contraction.image
        return image if image and image.gaps else None

    @property
    def compute(self) -> Compute:
        return COMPUTES[self.kernel.compute]

    @property
    def precision(self) -> Precision:
        contraction = self.contraction
        y = self.private.y if self.private else DTYPES[contraction.out.dtype]
        return Precision(DTYPES[contraction.a.dtype], DTYPES[contraction.b.dtype], y)

    @property
    def header_set(self) -> HeaderSet:
        """The headers that its code needs."""
        contraction = self.contraction
        return header_set_of(
            self.kernel, contraction.a.dtype, contraction.out.dtype, packed=self.box is not None
        )

    @property
    def paired(self) -> bool:
        """Whether columns may be in the order of even and odd ones (``ps_paired``)."""
        return self.kernel.family == "depthwise" and not self.header_set.packed_copy

    @property
    def filled(self) -> bool:
        """Whether rows in the padding take part: what x holds for zero need not be 0."""
        return self.precision.integer and self.contraction.padded and self.box is None

    @property
    def stacked(self) -> str | None:
        """The tap of which a word holds several values, of a stacked kernel."""
        return self.taps[0] if self.kernel.stacked else None

    @property
    def joined(self) -> str | None:
        """The tap whose runs lie behind each other in the copy of A: one run of all its words.

        Only where words would end inside a tap: then one is saved for every tap.
        """
        if self.box is None or self.depth is None or self.blocked or not self.taps:
            return None
        if self.contraction.swapped or skips(self.contraction, packed=True):
            return None
        depth, tap, a = self.extent(self.depth), self.taps[-1], self.coef["x"]
        touch = a[tap] == depth and a[self.depth] == (depth > 1)  # of one position it is 0
        brgemm = self.kernel.family == "brgemm"
        return tap if touch and brgemm and depth % self.compute.vnni_factor else None

    def words(self, steps: int) -> int:
        """Elements of B for so many reduction steps: whole words."""
        return round_up(steps, self.compute.vnni_factor)

    @property
    def groups(self) -> tuple[Dim, ...]:
        """Dimensions of w outside one panel: the batch dimensions that do not run along it."""
        batch, w = self.contraction.by_role("batch"), self.contraction.w
        return tuple(d for d in batch if w.uses(d.name) and d.name != self.panel_dim)

    @property
    def reduction(self) -> int:
        """Elements of packed B below a column: the whole reduction, whole words below every tap."""
        depth, taps = self.panels[self.depth] if self.depth else 1, self.taps
        if self.joined:
            depth, taps = depth * self.panels[self.joined], taps[:-1]
        around = prod(self.panels[tap] for tap in taps if tap != self.stacked)
        if self.stacked:
            depth *= self.panels[self.stacked]
        return self.words(depth) * around * self.kernel.shifts

    @property
    def group_size(self) -> int:
        """Packed elements of B of one group."""
        extent, tile = self.panels[self.panel_dim], self.tile[self.panel_dim]
        last = (extent - 1) // tile * tile
        return (last + round_up(extent - last, self.panel_lanes)) * self.reduction

    @property
    def packed_size(self) -> int:
        """Elements of packed B, groups included."""
        return self.group_size * prod(self.panels[d.name] for d in self.groups)

    @property
    def split(self) -> tuple[str, ...]:
        """The reductions of which one call leaves a part to later calls."""
        reductions = (*([self.depth] if self.depth else []), *self.taps)
        return tuple(dim for dim in reductions if self.tile[dim] < self.extent(dim))

    @property
    def blocked(self) -> bool:
        """Whether one call leaves part of the reduction to later calls."""
        return bool(self.split)


def storage(operand: Operand, strides: tuple[int, ...], dims: tuple[Dim, ...]) -> dict[str, int]:
    """Storage stride of every dimension, in elements."""
    offset = operand.offset(strides)
    return {d.name: offset.coef(d.name) for d in dims}


def resolve(
    contraction: Contraction, strides: Mapping[str, tuple[int, ...]], schedule: Schedule
) -> Plan:
    """Resolve ``schedule`` for a contraction whose arrays have these storage strides.

    Raises SpecError for loops that do not nest, UnsupportedError for what cannot be generated.
    """
    if contraction.clipped:
        raise UnsupportedError(f"{contraction.formula}: guards cut the output {contraction.out}")
    kernel = find(schedule.kernel)
    _check_roles(contraction, strides, schedule, kernel)
    view = group_views.group_view_of(contraction, schedule)
    if not view.swapped:
        schedule.check({d.name: d.extent for d in contraction.dims})
    out = contraction.out.array
    private = copies_of(contraction, strides[out], schedule, kernel)
    if private:
        contraction = private.sums(contraction, kernel)
        strides = {**strides, out: private.strides}
    original = contraction
    schedule, contraction = view.inside(contraction, schedule), view.of(contraction)
    extents = {d.name: d.extent for d in contraction.dims}
    schedule.check(extents)
    tile = schedule.tile(extents)
    column = columns_of(contraction)
    check_taps(contraction, schedule, kernel, tile)
    named = {"x": contraction.x, "C": contraction.out}
    named |= {"B": contraction.b} if schedule.has(Plain) else {}
    coef = {at: storage(op, strides[op.array], contraction.dims) for at, op in named.items()}
    base = contraction.x.offset(strides[contraction.x.array]).const
    depths = [d.name for d in contraction.dims if d.role == "k"]
    if len(depths) > 1:
        raise UnsupportedError(f"{contraction.formula}: more than one k dimension")
    depth = depths[0] if depths else None
    source = original if contraction.gathered else contraction
    if view.swapped:
        box = swapped_copy_of(original, contraction, schedule, kernel)
    else:
        own = strides[contraction.a.array]
        box = packed_copy_in(contraction, own, schedule, column.name, kernel)
    if box:
        coef["x"], base = packed_coef(source, box), 0
    rows = row_dims(contraction, schedule, tile, column.name)
    along = dict.fromkeys(extents, 0) if view.swapped else coef["x"]  # A's stride, if not packed
    check_kernel(contraction, schedule, kernel, tile, rows, column, along)
    in_words = box is not None and box.word > 1
    check_compute(contraction, schedule, kernel, tile, depth, along, in_words=in_words)
    pieces, ranges = cut(contraction, tile, packed=box is not None)
    taps = tuple(d.name for d in contraction.by_role("br") if contraction.a.uses(d.name))
    plan = Plan(
        contraction, schedule, kernel, tile, rows, column.name, depth,
        taps_of(contraction) if kernel.stencil else taps,
        coef, base, box, pieces, ranges, source.x,
        schedule.tile(extents, schedule.panels_depth), view.groups,
        private=private,
    )  # fmt: skip
    for directive in schedule.directives:
        plan = directive.resolve(plan)
    return plan


def _check_roles(
    contraction: Contraction,
    strides: Mapping[str, tuple[int, ...]],
    schedule: Schedule,
    kernel: Microkernel,
) -> None:
    """Raise UnsupportedError where a contraction cannot have the roles of a schedule."""
    for directive in schedule.directives:
        if why := directive.refusal(contraction, strides, schedule, kernel):
            raise UnsupportedError(f"schedule {schedule}: {why}")
    if kernel.stencil and (why := stencil_refusal(contraction, strides)):
        raise UnsupportedError(f"schedule {schedule}: no stencil: {why}")
    if kernel.stencil and not schedule.has(Swap):
        check_window(stencil_roles(contraction), schedule)


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
