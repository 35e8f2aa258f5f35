"""A schedule of a bilinear algorithm resolved for one product: blocks, bands, buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from polysci.errors import SpecError, UnsupportedError
from polysci.lower.bilinear.coefficients import PRODUCTS, BilinearProduct
from polysci.lower.bilinear.product import NAME, MatrixProduct, product_of
from polysci.numerics.arrays import LINE, round_up
from polysci.ops.matmul import Matmul
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.polyhedral import legality
from polysci.polyhedral.contraction import Contraction, Strides
from polysci.polyhedral.scop import Scop
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Ahead, Pack, Stream
from polysci.space.plan import Plan
from polysci.space.resolve import resolve as resolve_nest
from polysci.space.schedule import Schedule, Step, Transform
from polysci.target import microkernels
from polysci.target.microkernels import Microkernel

SPREAD = 512  # bytes: rows a multiple of this apart crowd into few cache sets
LINE_FLOATS = LINE // 4
PANEL = 256  # columns of a sum of blocks of B, about, that are formed before they are packed
INNER_NAMES = ("i", "j", "k")  # the loops of products of blocks: rows, columns, depth


@dataclass(frozen=True, slots=True)
class BilinearPlan:
    """A schedule resolved for a product; distances and sizes count elements.

    Blocks of A, B and C have ``high`` rows, ``deep`` steps and ``wide`` columns. ``rows`` of each
    block of A are summed at a time, and their products with ``columns`` of each sum of B formed.
    ``around`` are the loops of these, with the names of products of blocks; ``inner`` is the direct
    schedule of one, ``nest`` what becomes of it.
    """

    product: MatrixProduct
    schedule: Schedule
    threads: int
    algorithm: BilinearProduct
    kernel: Microkernel
    high: int
    deep: int
    wide: int
    rows: int
    columns: int
    around: tuple[Loop, ...]
    inner: Schedule
    contraction: Contraction
    strides: Strides
    nest: Plan

    @property
    def bands(self) -> int:
        return -(-self.high // self.rows)

    @property
    def parts(self) -> int:
        """Parts of a block of B with ``columns`` each."""
        return -(-self.wide // self.columns)

    @property
    def again(self) -> int:
        """How many times the sums of a band of A are formed."""
        first = [loop.dim for loop in self.around][:1]
        return self.parts if first == ["j"] or len(self.schedule.parallel) > 1 else 1

    @property
    def streams(self) -> bool:
        """Return whether C is stored past the caches."""
        return self.schedule.has(Stream)

    @property
    def packs_b(self) -> bool:
        """Return whether calls pack B themselves: it changes from call to call."""
        return not self.product.constant

    @property
    def teams(self) -> int:
        """Threads that share the work."""
        return self.threads if self.schedule.parallel else 1

    @property
    def sum_row(self) -> int:
        """Elements from a row of a sum of blocks of A to the next one."""
        return self.strides["A"][0]

    @property
    def product_row(self) -> int:
        """Elements from a row of a product to the next one."""
        return self.strides["O"][0]

    @property
    def panel(self) -> int:
        """Columns of a sum of blocks of B that are formed and packed at a time."""
        step = self.inner.tile(self.contraction.extents)["j"]
        return min(self.columns, step * max(1, PANEL // step))

    def panel_row(self, *, turned: bool) -> int:
        """Elements from a row of a panel to the next one; if ``turned``, from a column."""
        return self.sum_row if turned else _pitch(min(self.columns, PANEL))

    @property
    def panel_size(self) -> int:
        """Elements of one panel before it is packed, however B is stored."""
        sizes = self.panel * self.panel_row(turned=True), self.deep * self.panel_row(turned=False)
        return round_up(4 * max(sizes)) // 4

    @property
    def sum_size(self) -> int:
        return self.rows * self.sum_row

    @property
    def product_size(self) -> int:
        return self.rows * self.product_row

    @property
    def factor_size(self) -> int:
        """Elements from one packed part of a sum of blocks of B to the next one."""
        return round_up(self.nest.packed_bytes) // 4

    @property
    def factors(self) -> int:
        """Packed parts of sums of blocks of B."""
        return self.parts * self.algorithm.products


def algorithm_of(schedule: Schedule) -> BilinearProduct:
    """Return the coefficients that a schedule names. Raises SpecError or UnsupportedError."""
    transform = schedule.transform
    if transform is None:
        raise SpecError(f"schedule {schedule}: no {NAME}(m,k,n) in it")
    if transform.numbers not in PRODUCTS:
        known = ", ".join(str(transform_of(algorithm)) for algorithm in PRODUCTS.values())
        raise UnsupportedError(f"schedule {schedule}: {transform}: expected one of {known}")
    return PRODUCTS[transform.numbers]


def transform_of(algorithm: BilinearProduct) -> Transform:
    """``bilinear(2,2,2)``: the blocks along m, k and n."""
    return Transform(NAME, algorithm.size)


def block_of(
    product: MatrixProduct, algorithm: BilinearProduct, lanes: int
) -> tuple[int, int, int]:
    """Return rows, depth and columns of blocks; columns fill whole vectors."""
    m, k, n = algorithm.size
    wide = round_up(-(-product.columns // n), lanes)
    return -(-product.rows // m), -(-product.depth // k), wide


def resolve(problem: Problem, schedule: Schedule, threads: int = 1) -> BilinearPlan:
    """Return the plan of a schedule, legal for the products of blocks.

    Raises IllegalScheduleError, SpecError or UnsupportedError where it does not fit.
    """
    product, algorithm = product_of(problem), algorithm_of(schedule)
    kernel = microkernels.find(schedule.kernel)
    if (kernel.family, kernel.compute) != ("brgemm", "f32"):
        raise UnsupportedError(f"schedule {schedule}: expected a brgemm kernel of f32")
    if any(not isinstance(directive, Ahead | Pack | Stream) for directive in schedule.directives):
        raise UnsupportedError(
            f"schedule {schedule}: {NAME} swaps nothing, packs B itself and has one result"
        )
    if schedule.has(Stream) and product.columns % kernel.lanes:
        raise UnsupportedError(streams_refusal(schedule))
    high, deep, wide = block_of(product, algorithm, kernel.lanes)
    around, inner = _split(schedule, product.names, {"i": high, "j": wide, "k": deep})
    steps = {loop.dim: loop.step for loop in around}
    rows, columns = steps.get("i", high), steps.get("j", wide)
    if columns % kernel.lanes:
        raise UnsupportedError(
            f"schedule {schedule}: {product.names[1]}:{columns} is no multiple of "
            f"{kernel.lanes} lanes"
        )
    scop, roles, strides = inner_model(rows, deep, columns, kernel.lanes)
    legality.check(scop, roles, inner.tile_schedule(roles.extents))
    try:
        nest = resolve_nest(roles, strides, inner)
    except UnsupportedError as error:
        raise UnsupportedError(f"schedule {schedule}: products of blocks: {error}") from None
    return BilinearPlan(
        product, schedule, threads, algorithm, kernel, high, deep, wide, rows, columns, around,
        inner, roles, strides, nest,
    )  # fmt: skip


def streams_refusal(schedule: Schedule) -> str:
    """Return why C cannot be stored past the caches."""
    return f"schedule {schedule}: rows of C are no whole aligned vectors, as {Stream.word} asks"


def _split(
    schedule: Schedule, names: tuple[str, str, str], extents: Mapping[str, int]
) -> tuple[tuple[Loop, ...], Schedule]:
    """Return the loops around the transform, and the direct schedule inside it.

    They have the names of products of blocks.
    """
    transform = schedule.transform
    assert transform is not None
    at = schedule.nest.index(transform)
    around, inside = schedule.nest[:at], schedule.nest[at + 1 :]
    loops = tuple(step for step in around if isinstance(step, Loop))
    dims = [loop.dim for loop in loops]
    if len(loops) < len(around) or len(set(dims)) < len(dims) or names[2] in dims:
        raise UnsupportedError(
            f"schedule {schedule}: only a loop over {names[0]} and one over {names[1]} may "
            f"enclose {transform}"
        )
    if any(isinstance(step, Loop) and step.parallel for step in inside):
        raise UnsupportedError(f"schedule {schedule}: loops inside {transform} cannot be parallel")
    own = dict(zip(names, (extents[name] for name in INNER_NAMES), strict=True))
    Schedule(loops, schedule.kernel).check(own)
    Schedule(tuple(step for step in inside if isinstance(step, Loop)), schedule.kernel).check(
        {**own, **{loop.dim: loop.step for loop in loops}}
    )
    renamed = rename((*loops, *inside), names, INNER_NAMES)
    first = tuple(step for step in renamed[: len(loops)] if isinstance(step, Loop))
    return first, schedule.with_nest(renamed[len(loops) :]).without(Stream)


def rename(
    steps: Sequence[Step], names: tuple[str, str, str], others: tuple[str, str, str]
) -> tuple[Step, ...]:
    """Return steps with other names of their loops."""
    known = dict(zip(names, others, strict=True))
    return tuple(
        replace(step, dim=known[step.dim]) if isinstance(step, Loop) else step for step in steps
    )


@lru_cache(maxsize=256)
def inner_model(
    rows: int, deep: int, columns: int, lanes: int
) -> tuple[Scop, Contraction, Strides]:
    """Return Scop, roles and strides of the product of a band of A and a part of B.

    Rows of A and C lie in workspace, where they do not crowd into few cache sets.
    """
    scop, roles, strides = model_of(Matmul(rows, deep, columns, constant="b"))
    apart = {"A": (_pitch(round_up(deep, lanes)), 1), "O": (_pitch(columns), 1)}
    return scop, roles, {**strides, **apart}


def _pitch(length: int) -> int:
    """Return a distance of rows that spreads them over the cache sets."""
    whole = round_up(length, LINE_FLOATS)
    return whole + LINE_FLOATS if whole * 4 % SPREAD == 0 else whole
