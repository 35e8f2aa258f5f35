"""A schedule of mapped loops resolved for a contraction: the tile of a group and its copies.

``npq:64@by k:64@bx c:8 copy(A,B)x2+4 npq:4@ty k:8@tx > fma_opencl4_f32_4x8``: groups of a device
compute tiles of 64 rows, the fused dimensions of A alone, by 64 columns. A step of the reduction is
8 of ``c`` long; both factors of a step are copied into the memory of the group, and each work-item
computes 4 rows by 8 columns of its tile.

``npq:64@by k:64@bx c:8 npq:4@ty k:8@tx > fma_opencl4_f32_4x8`` copies nothing: items read both
factors through the caches. ``npq:64@bx k:64@by c:8 npq:4@tx k:8@ty`` is the same with neighbouring
items, and groups, along the rows. Of layers without columns, as depthwise ones, both factors are
vectors along the channels: ``npq:64@by g:32@bx s npq:4@ty g:4@tx > depthwise_opencl4_f32_4x4``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from polysci.errors import SpecError, UnsupportedError
from polysci.loop_ir.index import Bits, Index
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import round_up
from polysci.numerics.dtypes import COMPUTES, DTYPES, Precision
from polysci.polyhedral.contraction import Contraction, Dim, Strides, columns_of
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives.copy import Copy
from polysci.space.schedule import Schedule
from polysci.target.isas import isa_of
from polysci.target.microkernels import Microkernel, find, ways
from polysci.target.target import Target

FAMILY: Final = "fma"  # of the kernels of products
FAMILIES: Final = (FAMILY, "mma")  # and of those whose factors groups copy
CHANNELS: Final = "depthwise"  # of those of layers without columns
CHUNK: Final = 16  # bytes that warps read at once, of a line; matrices are two of them deep
LEAST_ITEMS, MOST_ITEMS = 2, 256  # of a group; every device of OpenCL 1.2 runs so many
LEAST_DEEP: Final = 8  # below it a step has too few products for its copies and waits
FORM: Final = "ROWS:N@by COLUMN:N@bx DEPTH:N [copy(A,B)] ROWS:N@ty COLUMN:N@tx"
AXES: Final = (("by", "bx", "ty", "tx"), ("bx", "by", "tx", "ty"))  # of rows and columns


@dataclass(frozen=True, slots=True)
class Lines:
    """A step's part of a factor in the memory of a group: ``count`` lines of ``elements``.

    With a ``word`` elements of a line are words of so many neighbours along the steps.
    """

    name: str
    count: int
    elements: int
    pad: int = 0
    swizzle: bool = False
    word: int = 1
    chunk: int = CHUNK

    @property
    def length(self) -> int:
        """Elements from one line to the next."""
        return self.elements + self.pad

    @property
    def size(self) -> int:
        """Elements of a step."""
        return self.count * self.length * self.word

    @property
    def chunks(self) -> int:
        """Chunks of a line that change places from line to line; 0: all lie in order."""
        return self.elements // self.chunk if self.swizzle else 0

    def place(self, line: Index, at: Index) -> Index:
        """Return the place of an element: 8 lines have the same chunk in different banks.

        ``ps_chunk_at`` in microkernels/matrices_cuda.h is the same function.
        """
        if self.chunks:
            few = min(self.chunks, 8)
            chunk = Bits("^", at // self.chunk, line // (8 // few) % few)
            at = chunk * self.chunk + at % self.chunk
        if self.word > 1:
            return (line // self.word * self.length + at) * self.word + line % self.word
        return line * self.length + at


@dataclass(frozen=True, slots=True)
class MappedPlan:
    """Sizes in elements: ``rows`` x ``columns`` is the tile of a group, ``depth`` a step's length.

    ``deep`` are the dimensions of the steps, fused, ``around`` the other reductions, outermost
    first. ``copy`` is None where items read both factors themselves; ``along_rows``: neighbouring
    items then have neighbouring rows.
    """

    contraction: Contraction
    strides: Strides
    schedule: Schedule
    kernel: Microkernel
    rows: int
    columns: int
    depth: int
    copy: Copy | None
    column: Dim
    deep: tuple[Dim, ...]
    around: tuple[Dim, ...]
    along_rows: bool = False

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
        return tuple(dim for dim in self.contraction.by_role("batch") if dim != self.column)

    @property
    def channels(self) -> bool:
        """Return whether both factors are vectors along the columns, which are a batch."""
        return self.column.role == "batch"

    @property
    def row_step(self) -> int:
        """How far apart the rows of a work-item lie in its tile."""
        return self.tile_rows if self.along_rows else 1

    @property
    def guarded(self) -> dict[str, tuple[Affine, int]]:
        """The subscripts of x that leave its axes, and the axes' sizes, by names of places."""
        return guarded(self.contraction)

    @property
    def guards_steps(self) -> bool:
        """Return whether rows leave x, or come back to it, from step to step."""
        return leaves(self.contraction, self.deep)

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
    def word(self) -> int:
        """Neighbours along the steps that an item multiplies at once: 8-bit numbers by fours."""
        return 1 if self.of_warps else COMPUTES[self.kernel.compute].vnni_factor

    @property
    def at_once(self) -> int:
        """Elements of a factor that an item copies at once."""
        return chunk_of(self.kernel) if self.of_warps else self.kernel.lanes

    @property
    def by_columns(self) -> bool:
        """Return whether B lies in lines of a column's steps: warps read 8-bit numbers so."""
        return self.of_warps and self.precision.integer

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
    def stages(self) -> int:
        """Places in the memory of a group that steps take in turns."""
        return self.copy.stages if self.copy else 1

    @property
    def lines_of_a(self) -> Lines:
        """How a step's part of A lies: in lines of its rows; for warps in lines of a row."""
        size = (self.depth // self.word, self.rows)
        return self._lines("rows", *(reversed(size) if self.of_warps else size))

    @property
    def lines_of_b(self) -> Lines:
        """How a step's part of B lies: in lines of a step's columns, or of a column's steps."""
        size = (self.depth // self.word, self.columns)
        return self._lines("columns", *(reversed(size) if self.by_columns else size))

    def _lines(self, name: str, count: int, elements: int) -> Lines:
        """Return lines in the memory of a group; without copies it has none."""
        if self.copy is None:
            return Lines(name, 0, elements)
        pad, chunk = self.copy.pad, chunk_of(self.kernel)
        return Lines(name, count, elements, pad, self.copy.swizzle, self.word, chunk)

    @property
    def shared_elements(self) -> tuple[int, int]:
        """Elements of A and of B in the memory of a group."""
        return self.stages * self.lines_of_a.size, self.stages * self.lines_of_b.size

    @property
    def padded_columns(self) -> int:
        """Columns of packed weights, in whole tiles."""
        return self.blocks[1] * self.columns

    @property
    def padded_deep(self) -> int:
        """Lines of packed weights along the dimensions of the steps: whole words, whole copies."""
        return self.steps * self.depth if self.copy else round_up(self.deep_extent, self.word)

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
        own = self.contraction.b.dtype if self.precision.integer else self.kernel.compute
        return DTYPES[own].bytes

    @property
    def packed_bytes(self) -> int:
        """Bytes of what calls get for weights; behind those of integers stand their offsets."""
        lies, b = self.contraction.packs_b, self.contraction.b
        size = self.packed_elements * (b.bytes if lies else self.factor_bytes)
        return round_up(size) + 4 * (self.offsets + 1) if self.precision.integer else size

    @property
    def channels_of_bias(self) -> Affine:
        """The subscript of the result along which a bias runs: that of the columns."""
        axes, axis = self.contraction.out.index, self.contraction.bias_axis
        if axis is not None:
            return axes[axis]
        return next(own for own in axes if own.coef(self.column.name))

    @property
    def offsets_apart(self) -> dict[str, int]:
        """Batches whose columns share a bias: from the offsets of one to those of the next."""
        channels = self.channels_of_bias
        size, apart = channels.reach(self.contraction.extents)[1] + 1, dict[str, int]()
        for dim in reversed(self.batches):
            if not channels.coef(dim.name):
                apart[dim.name] = size
                size *= dim.extent
        return apart

    @property
    def offsets(self) -> int:
        """Corrections for what x holds for 0: one a channel, and batch that has its own."""
        size = self.channels_of_bias.reach(self.contraction.extents)[1] + 1
        extents = self.contraction.extents
        return size * prod(extents[name] for name in self.offsets_apart)


def refusal(contraction: Contraction) -> str:
    """Return why no group's tiles compute a contraction; empty where they do."""
    if contraction.clipped:
        return "it scatters into its result"
    if not contraction.by_role("m") or not (contraction.by_role("k") or contraction.by_role("br")):
        return "it is no product of matrices"
    try:
        column = columns_of(contraction)
    except UnsupportedError as error:
        return str(error)
    if column.role == "batch" and DTYPES[contraction.a.dtype].integer:
        return f"groups compute no layer without columns of {contraction.a.dtype}"
    axis = contraction.bias_axis
    if axis is not None and not contraction.out.index[axis].coef(column.name):
        return "its bias does not run along the columns"
    return ""


def changes_b(contraction: Contraction) -> bool:
    """Return whether no item can read a B as it lies: that of a call, of other types than f32."""
    return contraction.packs_b and contraction.b.dtype != "f32"


def only_copies(contraction: Contraction) -> bool:
    """Return whether layers by themselves have copied factors alone: 8-bit ones are faster so."""
    return changes_b(contraction) or DTYPES[contraction.a.dtype].integer


def takes(contraction: Contraction, target: Target) -> bool:
    """Return whether groups of a target compute a contraction: by copies, or by items that read."""
    if refusal(contraction):
        return False
    copies = target.local is not None and kernel_family(contraction) == FAMILY
    return copies or not only_copies(contraction)


def kernel_family(contraction: Contraction) -> str:
    """Return the family of the kernels: where no dimension is B's alone, A is a vector too."""
    return CHANNELS if columns_of(contraction).role == "batch" else FAMILY


def kernels_of(isa: str, x: str, families: Sequence[str] = FAMILIES) -> list[Microkernel]:
    """Return the register tiles of groups of an instruction set for inputs of a type."""
    return [kernel for name in families for way in ways(name, isa, x) for kernel in way]


def guarded(contraction: Contraction) -> dict[str, tuple[Affine, int]]:
    """Return the subscripts of x that leave its axes, and the axes' sizes, by names of places."""
    a, extents = contraction.a, contraction.extents
    return {
        f"x_axis{axis}": (subscript, size)
        for axis, (subscript, size) in enumerate(zip(a.index, a.shape, strict=True))
        if subscript.reach(extents)[0] < 0 or subscript.reach(extents)[1] >= size
    }


def leaves(contraction: Contraction, dims: Sequence[Dim]) -> bool:
    """Return whether steps along dimensions can lead out of x."""
    subscripts = [subscript for subscript, _ in guarded(contraction).values()]
    return any(subscript.coef(dim.name) for subscript in subscripts for dim in dims)


def deep_dims(contraction: Contraction) -> tuple[Dim, ...]:
    """Return the reductions that steps run along: the innermost one, or all where it is short."""
    inner, around = contraction.by_role("k"), contraction.by_role("br")
    long = len(inner) == 1 and inner[0].extent >= LEAST_DEEP
    return inner if long else (*(dim for dim in around if dim.extent > 1), *inner) or around


def read_dim(contraction: Contraction) -> tuple[Dim, ...]:
    """Return the reduction that steps run along where items read: the innermost one.

    The others are loops around it, so that no step needs the digits of a number.
    """
    every = (*contraction.by_role("br"), *contraction.by_role("k"))
    return (tuple(dim for dim in every if dim.extent > 1) or every)[-1:]


def form_of(
    contraction: Contraction, kernel: Microkernel, rows: int, columns: int, depth: int,
    copy: Copy | None, *, along_rows: bool = False,
) -> Schedule:  # fmt: skip
    """Return the schedule of a tile and a step of these sizes."""
    fused = "".join(dim.name for dim in contraction.by_role("m"))
    column = columns_of(contraction).name
    deep = "".join(d.name for d in (deep_dims if copy else read_dim)(contraction))
    of_rows, of_columns, items_of_rows, items_of_columns = AXES[along_rows]
    return Schedule(
        (
            Loop(fused, rows, axis=of_rows), Loop(column, columns, axis=of_columns),
            Loop(deep, depth), *([copy] if copy else []),
            Loop(fused, kernel.rows, axis=items_of_rows),
            Loop(column, kernel.cols, axis=items_of_columns),
        ),
        str(kernel),
    )  # fmt: skip


def form_of_part(plan: MappedPlan, part: Contraction) -> Schedule:
    """Return the schedule of a part of a plan's contraction: the same tiles, steps that fit it."""
    deep = (deep_dims if plan.copy else read_dim)(part)
    depth = min(plan.depth, longest_step(plan.kernel, deep))
    if plan.of_warps:  # lines of chunks that change places have the lengths of powers of 2
        depth = 1 << depth.bit_length() - 1
    if plan.copy is None and leaves(part, deep):
        depth = 1
    return form_of(
        part, plan.kernel, plan.rows, plan.columns, depth, plan.copy, along_rows=plan.along_rows
    )


def resolve(contraction: Contraction, strides: Strides, schedule: Schedule) -> MappedPlan:
    """Return the plan of a schedule. Raises SpecError or UnsupportedError where it does not fit."""
    if why := refusal(contraction):
        raise UnsupportedError(f"schedule {schedule}: {why}")
    kernel, copy, loops = find(schedule.kernel), schedule.find(Copy), schedule.loops
    family = kernel_family(contraction)
    families = FAMILIES if copy and family == FAMILY else (family,)
    if kernel.family not in families or len(loops) != 5:
        raise SpecError(f"schedule {schedule}: expected {FORM} > {'_... or '.join(families)}_...")
    if copy is None and changes_b(contraction):
        raise UnsupportedError(f"schedule {schedule}: without copy(A,B) items read f32 or packed B")
    if copy and family != FAMILY:
        raise SpecError(f"schedule {schedule}: {copy}: only products share their factors")
    rows, columns, depth = (loop.step for loop in loops[:3])
    along_rows = copy is None and loops[0].axis == "bx"
    expected = form_of(contraction, kernel, rows, columns, depth, copy, along_rows=along_rows)
    if schedule != expected:
        raise SpecError(f"schedule {schedule}: expected {expected}, {FORM}")
    for name, size, part in (("rows", rows, kernel.rows), ("columns", columns, kernel.cols)):
        if size < 1 or size % part:
            raise SpecError(
                f"schedule {schedule}: {size} {name} are no multiple of {part}, an item's"
            )
    column, deep = columns_of(contraction), (deep_dims if copy else read_dim)(contraction)
    if not 1 <= depth <= (longest := longest_step(kernel, deep)):
        raise SpecError(f"schedule {schedule}: a step of {depth} exceeds {longest}, all products")
    if why := (
        misfit(contraction, kernel, copy, depth, columns) if copy
        else misfit_of_item(contraction, kernel, depth)
    ):  # fmt: skip
        raise SpecError(f"schedule {schedule}: {why}")
    reductions = (dim for dim in contraction.dims if dim.name in contraction.reductions)
    around = tuple(dim for dim in reductions if dim not in deep)
    plan = MappedPlan(
        contraction, strides, schedule, kernel, rows, columns, depth, copy, column, deep, around,
        along_rows,
    )  # fmt: skip
    if copy is None and plan.guards_steps and depth > 1:
        raise SpecError(f"schedule {schedule}: steps along {deep[-1].name} leave x: expected 1")
    if not LEAST_ITEMS <= plan.items <= MOST_ITEMS:
        raise SpecError(
            f"schedule {schedule}: a group of {plan.items} work-items; expected "
            f"{LEAST_ITEMS} to {MOST_ITEMS}"
        )
    return plan


def longest_step(kernel: Microkernel, dims: Sequence[Dim]) -> int:
    """Return the most products of a step: all, those of matrices in whole matrices."""
    deep = prod(dim.extent for dim in dims)
    word = COMPUTES[kernel.compute].vnni_factor
    part = 2 * chunk_of(kernel) if kernel.items > 1 else word
    return -(-deep // part) * part


def misfit_of_item(contraction: Contraction, kernel: Microkernel, depth: int) -> str:
    """Return the same of a kernel of an item's own, whether or not its group copies the factors."""
    word = COMPUTES[kernel.compute].vnni_factor
    if contraction.weights != "f32":
        return f"{kernel} multiplies no weights of {contraction.b.dtype} by f32"
    if DTYPES[contraction.a.dtype].integer != (word > 1):
        return f"{kernel} multiplies {kernel.compute}, not {contraction.a.dtype}"
    return f"a step of {depth} is no multiple of {word}, a word" if depth % word else ""


def chunk_of(kernel: Microkernel) -> int:
    """Return how many numbers a warp reads at once, of a line."""
    return CHUNK // (1 if COMPUTES[kernel.compute].sum.integer else 2)


def misfit(
    contraction: Contraction, kernel: Microkernel, copy: Copy, depth: int, columns: int
) -> str:
    """Return what keeps a kernel from taking the steps of a schedule; empty where nothing does."""
    if kernel.items == 1 and copy.swizzle:
        return f"{copy}: lines of {kernel.family} are in order"
    if kernel.items == 1:
        return misfit_of_item(contraction, kernel, depth)
    if contraction.weights != "f32":
        return f"{kernel} multiplies no weights of {contraction.b.dtype} by f32"
    own = "i8" if DTYPES[contraction.a.dtype].integer else contraction.a.dtype
    if own != kernel.compute:
        return f"{kernel} multiplies {kernel.compute}, not {contraction.a.dtype}"
    chunk = chunk_of(kernel)
    if depth % (2 * chunk):
        return f"a step of {depth} is no multiple of {2 * chunk}, the depth of matrices"
    if copy.swizzle and (depth & (depth - 1) or columns & (columns - 1)):
        return f"{copy}: {depth} and {columns}, the lengths of lines, are no powers of 2"
    return f"{copy}: pads of {kernel.family} are multiples of {chunk}" if copy.pad % chunk else ""
