"""A schedule of mapped loops resolved for a contraction: the tile of a group and its copies.

``npq:64@by k:64@bx c:8 copy(A,B)x2+4 npq:4@ty k:8@tx > fma_opencl4_f32_4x8``: groups of a device
compute tiles of 64 rows, the fused dimensions of A alone, by 64 columns. A step of the reduction is
8 of ``c`` long; both factors of a step are copied into the memory of the group, and each work-item
computes 4 rows by 8 columns of its tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from polysci.errors import SpecError, UnsupportedError
from polysci.loop_ir.index import Bits, Index
from polysci.numerics.dtypes import DTYPES, Precision
from polysci.polyhedral.contraction import Contraction, Dim, Strides, columns_of
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives.copy import Copy
from polysci.space.schedule import Schedule
from polysci.target.isas import isa_of
from polysci.target.microkernels import Microkernel, find, ways

FAMILIES: Final = ("fma", "mma")  # of its kernels
CHUNK: Final = 8  # 16-bit numbers that warps read at once, of a line; matrices are two of them deep
LEAST_ITEMS, MOST_ITEMS = 2, 256  # of a group; every device of OpenCL 1.2 runs so many
LEAST_DEEP: Final = 8  # below it a step has too few products for its copies and waits
FORM: Final = "ROWS:N@by COLUMN:N@bx DEPTH:N copy(A,B) ROWS:N@ty COLUMN:N@tx"


@dataclass(frozen=True, slots=True)
class Lines:
    """A step's part of a factor in the memory of a group: ``count`` lines of ``elements``."""

    name: str
    count: int
    elements: int
    copy: Copy

    @property
    def length(self) -> int:
        """Elements from one line to the next."""
        return self.elements + self.copy.pad

    @property
    def size(self) -> int:
        """Elements of a step."""
        return self.count * self.length

    @property
    def chunks(self) -> int:
        """Chunks of a line that change places from line to line; 0: all lie in order."""
        return self.elements // CHUNK if self.copy.swizzle else 0

    def place(self, line: Index, at: Index) -> Index:
        """Return the place of an element: 8 lines have the same chunk in different banks.

        ``ps_chunk_at`` in microkernels/warp_cuda.h is the same function.
        """
        if self.chunks:
            few = min(self.chunks, 8)
            chunk = Bits("^", at // CHUNK, line // (8 // few) % few)
            at = chunk * CHUNK + at % CHUNK
        return line * self.length + at


@dataclass(frozen=True, slots=True)
class MappedPlan:
    """Sizes in elements: ``rows`` x ``columns`` is the tile of a group, ``depth`` a step's length.

    ``deep`` are the dimensions of the steps, fused, ``around`` the other reductions, outermost
    first.
    """

    contraction: Contraction
    strides: Strides
    schedule: Schedule
    kernel: Microkernel
    rows: int
    columns: int
    depth: int
    copy: Copy
    column: Dim
    deep: tuple[Dim, ...]
    around: tuple[Dim, ...]

    @property
    def precision(self) -> Precision:
        """The element types of x, weights and y."""
        operands = (self.contraction.a, self.contraction.b, self.contraction.out)
        return Precision(*(DTYPES[operand.dtype] for operand in operands))

    @property
    def row_dims(self) -> tuple[Dim, ...]:
        """The dimensions that rows run over, fused: the last one runs fastest."""
        return self.contraction.by_role("m")

    @property
    def batches(self) -> tuple[Dim, ...]:
        """The dimensions of which each step is a product of its own."""
        return self.contraction.by_role("batch")

    @property
    def row_count(self) -> int:
        """Rows of all tiles of a batch."""
        return prod(dim.extent for dim in self.row_dims)

    @property
    def tile_rows(self) -> int:
        """Tiles of work-items, or of warps, along the rows of the group's."""
        return self.rows // self.kernel.rows

    @property
    def tile_columns(self) -> int:
        """Tiles of work-items, or of warps, along the columns of the group's."""
        return self.columns // self.kernel.cols

    @property
    def items(self) -> int:
        """Work-items of a group."""
        return self.tile_rows * self.tile_columns * self.kernel.items

    @property
    def of_warps(self) -> bool:
        """Return whether warps multiply matrices."""
        return self.kernel.items > 1

    @property
    def copies_async(self) -> bool:
        """Return whether copies of whole chunks run beside the sums."""
        return self.of_warps and isa_of(self.kernel.isa).copies_async

    @property
    def at_once(self) -> int:
        """Elements of a factor that an item copies at once."""
        return CHUNK if self.of_warps else self.kernel.lanes

    @property
    def blocks(self) -> tuple[int, int]:
        """Tiles along the rows and along the columns."""
        return -(-self.row_count // self.rows), -(-self.column.extent // self.columns)

    @property
    def groups(self) -> int:
        """Groups of a launch."""
        return prod(self.blocks) * prod(dim.extent for dim in self.batches)

    @property
    def deep_extent(self) -> int:
        """Products along the dimensions of the steps."""
        return prod(dim.extent for dim in self.deep)

    @property
    def steps(self) -> int:
        """Steps along these dimensions."""
        return -(-self.deep_extent // self.depth)

    @property
    def lines_of_a(self) -> Lines:
        """How a step's part of A lies: in lines of its rows; for warps in lines of a row."""
        size = (self.rows, self.depth) if self.of_warps else (self.depth, self.rows)
        return Lines("rows", *size, self.copy)

    @property
    def lines_of_b(self) -> Lines:
        """How a step's part of B lies: in lines of a step's columns."""
        return Lines("columns", self.depth, self.columns, self.copy)

    @property
    def shared_elements(self) -> tuple[int, int]:
        """Elements of A and of B in the memory of a group."""
        return (
            self.copy.stages * self.lines_of_a.size, self.copy.stages * self.lines_of_b.size
        )  # fmt: skip

    @property
    def padded_columns(self) -> int:
        """Columns of packed weights, in whole tiles."""
        return self.blocks[1] * self.columns

    @property
    def padded_deep(self) -> int:
        """Lines of packed weights along the dimensions of the steps, in whole steps."""
        return self.steps * self.depth

    @property
    def packed_elements(self) -> int:
        """Elements of what calls get for weights: panels of whole tiles, or B as it lies."""
        if self.contraction.packs_b:
            return prod(self.contraction.w.shape)
        taps = prod(dim.extent for dim in (*self.batches, *self.around))
        return taps * self.padded_deep * self.padded_columns

    @property
    def factor_bytes(self) -> int:
        """Bytes of a packed weight, and of an element in the memory of a group."""
        return DTYPES[self.kernel.compute].bytes

    @property
    def packed_bytes(self) -> int:
        """Bytes of what calls get for weights."""
        return self.packed_elements * self.factor_bytes


def refusal(contraction: Contraction) -> str:
    """Return why no group's tiles compute a contraction; empty where they do."""
    dtypes = {contraction.a.dtype, contraction.b.dtype, contraction.out.dtype}
    if whole := sorted(dtype for dtype in dtypes if DTYPES[dtype].integer):
        return f"groups compute f32, bf16 and f16, not {', '.join(whole)}"
    if contraction.clipped:
        return "it scatters into its result"
    if not contraction.by_role("m") or not (contraction.by_role("k") or contraction.by_role("br")):
        return "it is no product of matrices"
    try:
        column = columns_of(contraction)
    except UnsupportedError as error:
        return str(error)
    if column.role != "n":
        return "its columns are a batch"
    axis = contraction.bias_axis
    if axis is not None and not contraction.out.index[axis].coef(column.name):
        return "its bias does not run along the columns"
    return ""


def deep_dims(contraction: Contraction) -> tuple[Dim, ...]:
    """Return the reductions that steps run along: the innermost one, or all where it is short."""
    inner, around = contraction.by_role("k"), contraction.by_role("br")
    long = len(inner) == 1 and inner[0].extent >= LEAST_DEEP
    return inner if long else (*(dim for dim in around if dim.extent > 1), *inner) or around


def kernels_of(isa: str, x: str) -> list[Microkernel]:
    """Return the register tiles of groups of an instruction set for inputs of a type."""
    return [kernel for name in FAMILIES for way in ways(name, isa, x) for kernel in way]


def form_of(
    contraction: Contraction, kernel: Microkernel, rows: int, columns: int, depth: int, copy: Copy
) -> Schedule:
    """Return the schedule of a tile and a step of these sizes."""
    fused = "".join(dim.name for dim in contraction.by_role("m"))
    column, deep = columns_of(contraction).name, "".join(d.name for d in deep_dims(contraction))
    return Schedule(
        (
            Loop(fused, rows, axis="by"), Loop(column, columns, axis="bx"), Loop(deep, depth),
            copy, Loop(fused, kernel.rows, axis="ty"), Loop(column, kernel.cols, axis="tx"),
        ),
        str(kernel),
    )  # fmt: skip


def resolve(contraction: Contraction, strides: Strides, schedule: Schedule) -> MappedPlan:
    """Return the plan of a schedule. Raises SpecError or UnsupportedError where it does not fit."""
    if why := refusal(contraction):
        raise UnsupportedError(f"schedule {schedule}: {why}")
    kernel, copy = find(schedule.kernel), schedule.find(Copy)
    loops = schedule.loops
    if kernel.family not in FAMILIES or copy is None or len(loops) != 5:
        raise SpecError(f"schedule {schedule}: expected {FORM} > {'_... or '.join(FAMILIES)}_...")
    rows, columns, depth = (loop.step for loop in loops[:3])
    expected = form_of(contraction, kernel, rows, columns, depth, copy)
    if schedule != expected:
        raise SpecError(f"schedule {schedule}: expected {expected}, {FORM}")
    for name, size, part in (("rows", rows, kernel.rows), ("columns", columns, kernel.cols)):
        if size < 1 or size % part:
            raise SpecError(
                f"schedule {schedule}: {size} {name} are no multiple of {part}, an item's"
            )
    column, deep = columns_of(contraction), deep_dims(contraction)
    if not 1 <= depth <= (longest := longest_step(contraction, kernel)):
        raise SpecError(f"schedule {schedule}: a step of {depth} exceeds {longest}, all products")
    if why := _misfit(contraction, kernel, copy, depth, columns):
        raise SpecError(f"schedule {schedule}: {why}")
    reductions = (dim for dim in contraction.dims if dim.name in contraction.reductions)
    around = tuple(dim for dim in reductions if dim not in deep)
    plan = MappedPlan(
        contraction, strides, schedule, kernel, rows, columns, depth, copy, column, deep, around
    )
    if not LEAST_ITEMS <= plan.items <= MOST_ITEMS:
        raise SpecError(
            f"schedule {schedule}: a group of {plan.items} work-items; expected "
            f"{LEAST_ITEMS} to {MOST_ITEMS}"
        )
    return plan


def longest_step(contraction: Contraction, kernel: Microkernel) -> int:
    """Return the most products of a step: all, those of matrices in whole matrices."""
    deep = prod(dim.extent for dim in deep_dims(contraction))
    part = 2 * CHUNK if kernel.items > 1 else 1
    return -(-deep // part) * part


def _misfit(
    contraction: Contraction, kernel: Microkernel, copy: Copy, depth: int, columns: int
) -> str:
    """Return what keeps a kernel from taking the steps of a schedule; empty where nothing does."""
    if kernel.items == 1:
        return f"{copy}: lines of {kernel.family} are in order" if copy.swizzle else ""
    if contraction.a.dtype != kernel.compute:
        return f"{kernel} multiplies {kernel.compute}, not {contraction.a.dtype}"
    if depth % (2 * CHUNK):
        return f"a step of {depth} is no multiple of {2 * CHUNK}, the depth of matrices"
    if copy.swizzle and (depth & (depth - 1) or columns & (columns - 1)):
        return f"{copy}: {depth} and {columns}, the lengths of lines, are no powers of 2"
    return f"{copy}: pads of {kernel.family} are multiples of {CHUNK}" if copy.pad % CHUNK else ""
