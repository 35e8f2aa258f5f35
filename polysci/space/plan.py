"""Plans: a schedule resolved for one problem, its register tiles, and what a call keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from polysci.numerics.affine import Affine
from polysci.numerics.arrays import ALIGNMENT, round_up
from polysci.numerics.dtypes import COMPUTES, DTYPES, ComputeType, Precision
from polysci.polyhedral.contraction import Contraction, Dim, FlatImage, Operand
from polysci.polyhedral.tile_schedule import TileSchedule
from polysci.space.directives.ahead import PanelReuse
from polysci.space.directives.private import PrivateCopies
from polysci.space.packed_copy import PackedCopy
from polysci.space.padding import Piece, skips
from polysci.space.schedule import Schedule
from polysci.target.microkernels import HeaderSet, Microkernel, header_set_of


@dataclass(frozen=True, slots=True)
class Plan:
    """A contraction, its storage and a schedule, resolved to what lowering needs.

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
        return round_up(size, self.kernel.panel_lanes)

    @property
    def packs_b(self) -> bool:
        """Return whether calls pack B themselves."""
        return self.contraction.packs_b and "B" not in self.coef

    @property
    def panel_dim(self) -> str:
        """The dimension along panels of w: columns, rows if swapped, channels of a stencil."""
        if self.kernel.stencil:
            return self.contraction.channels
        return self.contraction.by_role("m")[0].name if self.contraction.swapped else self.column

    @property
    def panel_lanes(self) -> int:
        """A number that divides the width of a panel of w."""
        one = self.contraction.swapped or self.kernel.stencil
        return 1 if one else self.kernel.panel_lanes

    @property
    def channel_axis(self) -> int:
        """The axis of the result that a bias runs along."""
        index = self.contraction.out.index
        return next(axis for axis, at in enumerate(index) if at.coef(self.panel_dim))

    @property
    def channel(self) -> Affine:
        """The subscript of that axis."""
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
    def compute(self) -> ComputeType:
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
            self.kernel, contraction.a.dtype, contraction.out.dtype, packed=self.box is not None,
            w=contraction.weights,
        )  # fmt: skip

    @property
    def paired(self) -> bool:
        """Return whether columns may be in the order of even and odd ones (``ps_paired``)."""
        return self.kernel.family == "depthwise" and not self.header_set.packed_copy

    @property
    def filled(self) -> bool:
        """Return whether rows in the padding take part: what x holds for zero need not be 0."""
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

    @property
    def tile_schedule(self) -> TileSchedule:
        """The loops as isl takes them."""
        return self.schedule.tile_schedule(self.contraction.extents)

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
    def packed_item(self) -> int:
        """Bytes of an element of packed w."""
        return self.contraction.packed_item(self.compute)

    @property
    def blocked_weights(self) -> bool:
        """Return whether elements of w are blocks of numbers with a scale."""
        return self.contraction.a.block > 1

    @property
    def packed_bytes(self) -> int:
        """Bytes that a call takes for B: panels that were packed ahead, or B as it lies."""
        w = self.contraction.w
        return w.bytes * prod(w.shape) if self.contraction.packs_b else self.panel_bytes

    @property
    def panel_bytes(self) -> int:
        """Bytes of panels; behind those of integers stand the offsets and what x holds for 0."""
        tail = 4 * (self.offsets + 1) if self.precision.integer else 0
        return self.offsets_at + tail if tail else self.packed_item * self.packed_size

    @property
    def offsets_at(self) -> int:
        """The byte at which the offsets start: a cache line of their own."""
        return round_up(self.compute.bytes * self.packed_size)

    @property
    def reads_on(self) -> bool:
        """Return whether a run's last word is read whole: behind a copy of A stand zeros of B."""
        packed = self.box is not None and self.kernel.family == "brgemm"
        return packed and self.precision.integer and self.compute.vnni_factor > 1

    @property
    def split(self) -> tuple[str, ...]:
        """The reductions of which one call leaves a part to later calls."""
        reductions = (*([self.depth] if self.depth else []), *self.taps)
        return tuple(dim for dim in reductions if self.tile[dim] < self.extent(dim))

    @property
    def blocked(self) -> bool:
        """Return whether one call leaves part of the reduction to later calls."""
        return bool(self.split)


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: a plan with one piece chosen for every dimension."""

    plan: Plan
    pieces: Mapping[str, Piece]

    def size(self, dim: str) -> int:
        return self.pieces[dim].size

    @property
    def rows(self) -> int:
        return prod(self.size(dim) for dim in self.plan.rows)

    @property
    def width(self) -> int:
        """Columns of the packed panel of B, in elements."""
        return self.plan.columns_padded(self.size(self.plan.column))

    @property
    def panel_width(self) -> int:
        """Elements of a panel of w that one step of the reduction reads, of one shift."""
        return self.rows if self.plan.contraction.swapped else self.width

    @property
    def step(self) -> int:
        """Elements of B that one step of the reduction reads."""
        return self.width * self.plan.kernel.shifts

    @property
    def depth(self) -> int:
        """Reduction steps below one tap."""
        return self.size(self.plan.depth) if self.plan.depth else 1

    def taps_of(self, tap: str) -> int:
        """Values of a tap inside the call."""
        return self.size(tap) if tap in self.pieces else self.plan.extent(tap)

    def tap_stride(self, tap: str) -> int:
        """Elements of packed B from one value of a tap to the next, where none are joined."""
        taps = self.plan.taps
        inner = prod(self.plan.panels[other] for other in taps[taps.index(tap) + 1 :])
        return self.plan.words(self.depth) * self.step * inner

    def panel_strides(self) -> dict[str, int]:
        """Elements of packed w from one position of a dimension to the next."""
        plan = self.plan
        if "B" in plan.coef:
            return dict(plan.coef["B"])
        strides = {d.name: plan.group_size for d in plan.groups}
        for position, dim in enumerate(plan.groups):
            strides[dim.name] *= prod(d.extent for d in plan.groups[position + 1 :])
        strides[plan.panel_dim] = plan.reduction
        if plan.depth:
            strides[plan.depth] = prod(plan.panels[tap] for tap in plan.taps) * self.panel_width
        return strides | {tap: self.tap_stride(tap) for tap in plan.split if tap != plan.depth}

    def tap_of(self, dim: str) -> str | None:
        """The filter dimension that shares an axis of A with ``dim``."""
        index = self.plan.contraction.a.index
        axis = next((affine for affine in index if affine.coef(dim)), None)
        return next((tap for tap in self.plan.taps if axis and axis.coef(tap)), None)

    @property
    def cut(self) -> bool:
        """Return whether some rows of some tap may lie in the padding."""
        return bool(self.plan.ranges) or any(piece.masks for piece in self.pieces.values())

    def spread(self, dim: str, valid: int) -> int:
        """Extend a mask over positions of ``dim`` to all rows."""
        if dim not in self.plan.rows:
            return (1 << self.rows) - 1 if valid & 1 else 0
        inner = prod(self.size(d) for d in self.plan.rows[self.plan.rows.index(dim) + 1 :])
        size = self.size(dim)
        return sum((valid >> i // inner % size & 1) << i for i in range(self.rows))

    def masks(self, tap: str | None) -> tuple[int, ...]:
        """Active rows for each value of ``tap``; with None: for every value of every tap."""
        masks = [(1 << self.rows) - 1] * (self.taps_of(tap) if tap else 1)
        for dim, piece in self.pieces.items():
            if piece.masks and self.tap_of(dim) == tap:
                masks = [
                    mask & self.spread(dim, valid)
                    for mask, valid in zip(masks, piece.masks, strict=True)
                ]
        return tuple(masks)


@dataclass(frozen=True, slots=True)
class Workspace:
    """The memory of a call: packed copies of A and of B, then private copies of C.

    Each begins at so many bytes. ``threads`` have copies of their own of what loops pack.
    """

    plan: Plan
    threads: int

    @property
    def shares_a(self) -> bool:
        """Return whether A is packed once, before all loops."""
        return self.plan.box is not None and self.plan.schedule.pack_depth == 0

    @property
    def panels_at(self) -> int:
        """The byte at which panels of B begin."""
        if self.plan.box is None:
            return 0
        copies = 1 if self.shares_a else self.threads
        behind = ALIGNMENT if self.plan.reads_on else 0  # the last word may end there
        return self.plan.box.bytes * self.plan.box.size * copies + behind

    @property
    def panel_elements(self) -> int:
        """Elements from one thread's panels of B to the next one's."""
        item = self.plan.compute.bytes
        return round_up(self.plan.panel_bytes) // item

    @property
    def sums_at(self) -> int:
        """The byte at which private copies of C begin."""
        plan = self.plan
        used = self.panels_at + (plan.panel_bytes if plan.packs_b else 0)
        if plan.schedule.packs_parts_of_b:
            used += plan.compute.bytes * self.panel_elements * (self.threads - 1)
        return round_up(used) if plan.private else used

    @property
    def bytes(self) -> int:
        """Bytes of all copies."""
        private = self.plan.private
        return self.sums_at + private.bytes if private else self.sums_at
