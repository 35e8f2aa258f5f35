"""A schedule of a bilinear algorithm resolved for one product: blocks, bands, buffers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from polysci.errors import SpecError, UnsupportedError
from polysci.lower.bilinear.coefficients import PRODUCTS, BilinearProduct
from polysci.numerics.arrays import LINE, round_up
from polysci.ops.matmul import Matmul
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.polyhedral import legality
from polysci.polyhedral.contraction import Contraction, Strides
from polysci.polyhedral.scop import Scop
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Ahead, Pack
from polysci.space.plan import Plan
from polysci.space.resolve import resolve as resolve_nest
from polysci.space.schedule import Schedule, Transform
from polysci.target import microkernels
from polysci.target.microkernels import Microkernel

NAME = "bilinear"
SPREAD = 512  # bytes: rows a multiple of this apart crowd into few cache sets
LINE_FLOATS = LINE // 4
PANEL = 256  # columns of a sum of blocks of B, about, that are formed before they are packed


@dataclass(frozen=True, slots=True)
class BilinearPlan:
    """A schedule resolved for a product; distances and sizes count elements.

    Blocks of A, B and C have ``high`` rows, ``deep`` steps and ``wide`` columns. ``rows`` of each
    block of A are summed at a time, and their products with ``columns`` of each sum of B formed.
    ``inner`` is the direct schedule of one of these, ``nest`` what becomes of it.
    """

    problem: Matmul
    schedule: Schedule
    threads: int
    algorithm: BilinearProduct
    kernel: Microkernel
    high: int
    deep: int
    wide: int
    rows: int
    columns: int
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
        outer, *_ = [*self.schedule.loops, None]
        first = outer is not None and outer.dim == "j" and self.columns < self.wide
        return self.parts if first or len(self.schedule.parallel) > 1 else 1

    @property
    def packs_b(self) -> bool:
        """Return whether calls pack B themselves: it changes from call to call."""
        return not self.problem.constant

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

    @property
    def turned(self) -> bool:
        """Return whether B is stored column by column."""
        return "b" in self.problem.transposed

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

    @property
    def panel_size(self) -> int:
        """Elements of one panel before it is packed."""
        rows = self.panel if self.turned else self.deep
        return round_up(4 * rows * max(self.strides["B"])) // 4


def sizes_text() -> str:
    """Return the algorithms that there are, as transforms."""
    return ", ".join(f"{NAME}({m},{k},{n})" for m, k, n in PRODUCTS)


def refusal(problem: Problem) -> str:
    """Return the field, its value and the rule that exclude a problem; empty for none."""
    if not isinstance(problem, Matmul):
        return "it is no product of two matrices: only mm and linear have such algorithms"
    transposed = problem.transposed.replace("b", "")
    rules = (
        ("dtype", problem.dtype, problem.dtype == "f32", "f32"),
        ("batch", problem.batch, problem.batch is None, "one product"),
        ("constant", repr(problem.constant), problem.constant != "a", "'b' or ''"),
        ("transposed", repr(problem.transposed), not transposed, "'b' or ''"),
        *((name, size, size > 1, "2 or more") for name, size in
          (("M", problem.M), ("K", problem.K), ("N", problem.N))),
    )  # fmt: skip
    wrong = (f"{name}={value}: expected {rule}" for name, value, fits, rule in rules if not fits)
    return "; ".join(wrong)


def product_of(problem: Problem) -> Matmul:
    """Return the problem. Raises UnsupportedError for one that no bilinear algorithm computes."""
    if why := refusal(problem):
        raise UnsupportedError(f"{problem}: algorithm {NAME}: {why}")
    assert isinstance(problem, Matmul)
    return problem


def algorithm_of(schedule: Schedule) -> BilinearProduct:
    """Return the coefficients that a schedule names. Raises SpecError or UnsupportedError."""
    transform = schedule.transform
    if transform is None:
        raise SpecError(f"schedule {schedule}: no {NAME}(m,k,n) in it")
    if transform.numbers not in PRODUCTS:
        raise UnsupportedError(f"schedule {schedule}: {transform}: expected one of {sizes_text()}")
    return PRODUCTS[transform.numbers]


def block_of(problem: Matmul, algorithm: BilinearProduct, lanes: int) -> tuple[int, int, int]:
    """Return rows, depth and columns of blocks; columns fill whole vectors."""
    m, k, n = algorithm.size
    return -(-problem.M // m), -(-problem.K // k), round_up(-(-problem.N // n), lanes)


def resolve(problem: Problem, schedule: Schedule, threads: int = 1) -> BilinearPlan:
    """Return the plan of a schedule, legal for the products of blocks.

    Raises IllegalScheduleError, SpecError or UnsupportedError where it does not fit.
    """
    product, algorithm = product_of(problem), algorithm_of(schedule)
    kernel = microkernels.find(schedule.kernel)
    if (kernel.family, kernel.compute) != ("brgemm", "f32"):
        raise UnsupportedError(f"schedule {schedule}: expected a brgemm kernel of f32")
    if any(not isinstance(directive, Ahead | Pack) for directive in schedule.directives):
        raise UnsupportedError(
            f"schedule {schedule}: {NAME} streams and swaps nothing, and has one result"
        )
    high, deep, wide = block_of(product, algorithm, kernel.lanes)
    around, inner = _split(schedule, {"i": high, "j": wide})
    rows, columns = (around.get(dim, size) for dim, size in (("i", high), ("j", wide)))
    if columns % kernel.lanes:
        raise UnsupportedError(
            f"schedule {schedule}: j:{columns} is no multiple of {kernel.lanes} lanes"
        )
    turned = "b" in product.transposed
    scop, roles, strides = inner_model(rows, deep, columns, turned=turned, lanes=kernel.lanes)
    legality.check(scop, roles, inner.tile_schedule(roles.extents))
    nest = resolve_nest(roles, strides, inner)
    return BilinearPlan(
        product, schedule, threads, algorithm, kernel, high, deep, wide, rows, columns, inner,
        roles, strides, nest,
    )  # fmt: skip


def _split(schedule: Schedule, extents: dict[str, int]) -> tuple[dict[str, int], Schedule]:
    """Return the steps of the loops around the transform, and the direct schedule inside it."""
    transform = schedule.transform
    assert transform is not None
    at = schedule.nest.index(transform)
    around, inside = schedule.nest[:at], schedule.nest[at + 1 :]
    loops = [step for step in around if isinstance(step, Loop)]
    dims = [loop.dim for loop in loops]
    if len(loops) < len(around) or len(set(dims)) < len(dims):
        raise UnsupportedError(
            f"schedule {schedule}: only a loop over i and one over j may enclose {transform}"
        )
    if any(isinstance(step, Loop) and step.parallel for step in inside):
        raise UnsupportedError(f"schedule {schedule}: loops inside {transform} cannot be parallel")
    Schedule(tuple(loops), schedule.kernel).check(extents)
    return {loop.dim: loop.step for loop in loops}, schedule.with_nest(inside)


@lru_cache(maxsize=256)
def inner_model(
    rows: int, deep: int, columns: int, *, turned: bool, lanes: int
) -> tuple[Scop, Contraction, Strides]:
    """Return Scop, roles and strides of the product of a band of A and a part of B.

    Rows of all three lie in workspace, where they do not crowd into few cache sets; those of B,
    a panel of it, as B is stored.
    """
    scop, roles, strides = model_of(Matmul(rows, deep, columns, constant="b"))
    steps, panel = _pitch(round_up(deep, lanes)), _pitch(min(columns, PANEL))
    b = (1, steps) if turned else (panel, 1)
    return scop, roles, {**strides, "A": (steps, 1), "B": b, "O": (_pitch(columns), 1)}


def _pitch(length: int) -> int:
    """Return a distance of rows that spreads them over the cache sets."""
    whole = round_up(length, LINE_FLOATS)
    return whole + LINE_FLOATS if whole * 4 % SPREAD == 0 else whole


def transform_of(algorithm: BilinearProduct) -> Transform:
    """``bilinear(2,2,2)``: the blocks along m, k and n."""
    return Transform(NAME, algorithm.size)
