"""Bilinear algorithms as a row: their schedules, error bound, cost and explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import numpy as np

from polysci.cost import Context
from polysci.cost.bilinear import BilinearCosts, BilinearEstimate, BilinearWork
from polysci.cost.shortlist import choices
from polysci.cost.shortlist import predict_seconds as predict_direct
from polysci.errors import PolysciError, UnsupportedError
from polysci.lower.algorithm import (
    Algorithm,
    Candidate,
    EmitOptions,
    ErrorTerms,
    ExactInputs,
    ExplainRequest,
    SpaceLimits,
)
from polysci.lower.bilinear.coefficients import PRODUCTS, SEARCHED, BilinearProduct
from polysci.lower.bilinear.nest import lower_bilinear
from polysci.lower.bilinear.plan import (
    INNER_NAMES,
    BilinearPlan,
    block_of,
    inner_model,
    rename,
    resolve,
    transform_of,
)
from polysci.lower.bilinear.product import MatrixProduct, product_of, refusal
from polysci.lower.lowering import LoweredPrimitive
from polysci.numerics.arrays import Doubles, round_up
from polysci.ops.problem import Problem
from polysci.polyhedral.contraction import Contraction, Strides
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Ahead, Pack, Stream
from polysci.space.resolve import resolve as resolve_nest
from polysci.space.schedule import Schedule, Step
from polysci.target import microkernels
from polysci.text.tables import bytes_text

# Integers that it multiplies without rounding: sums of 16 blocks, of 4 x 4 that two levels sum of
# A and B, of as many products.
EXACT: Final = ExactInputs(largest=1)
ITEM: Final = 4  # bytes
BANDS: Final = (32, 64, 128, 256)  # rows of a block that are summed together, about
HELD: Final = 64 << 20  # bytes of a thread's sums and products, at most if bands can be smaller
ALIKE: Final = 4  # at most a fourth of the choices may have the same bands
INNER: Final = 2  # schedules of the products of blocks, of each size of these
MARGIN: Final = 0.05  # of the seconds of direct loops: what is less is lost in networks


class Bilinear(Algorithm[BilinearPlan]):
    """Products in f32 by fewer products of blocks; ``bilinear(2,2,2)`` takes 7 for 8."""

    def exact_inputs(self, problem: Problem) -> ExactInputs:
        return EXACT

    @property
    def margin(self) -> float:
        return MARGIN

    def refusal(self, problem: Problem) -> str:
        return refusal(problem)

    def candidates(
        self, problem: Problem, context: Context, count: int | None, limits: SpaceLimits
    ) -> list[Candidate]:
        """The schedules of least predicted time, ties by their text.

        Where blocks are too small to share, one thread computes them. Raises UnsupportedError for
        a problem that it refuses or where nothing fits.
        """
        every: dict[str, Candidate] = {}
        product = product_of(problem)
        shared = [*schedules(product, context)]
        for schedule in shared or schedules(product, replace(context, threads=1)):
            try:
                plan = resolve(problem, schedule, context.threads)
            except PolysciError:
                continue
            every[str(schedule)] = Candidate(schedule, estimate(plan, context).seconds)
        if not every:
            raise UnsupportedError(f"{problem}: algorithm bilinear: no schedule fits")
        ordered = sorted(every.values(), key=lambda its: (its.seconds, str(its.schedule)))
        return ordered if count is None else list(_take(ordered, count))

    def least_seconds(self, problem: Problem, context: Context) -> float:
        """Products at the peak, sums of A to L2 and back at its rate, and products from there."""
        product, (l2, *_) = product_of(problem), context.rates
        lanes = microkernels.lanes(context.target.isa.name)
        seconds = []
        for algorithm in SEARCHED:
            high, deep, wide = block_of(product, algorithm, lanes)
            moved = ITEM * algorithm.products * high * (2 * deep + wide)
            products = problem.flops / algorithm.saving / context.peak
            seconds.append((products + moved / l2) * 1e-9 / context.threads)
        return min(seconds)

    def predict_seconds(self, problem: Problem, context: Context, schedule: Schedule) -> float:
        return estimate(self.resolve(problem, schedule, context.threads), context).seconds

    def resolve(self, problem: Problem, schedule: Schedule, threads: int) -> BilinearPlan:
        return resolve(problem, schedule, threads)

    def lower(self, plan: BilinearPlan, options: EmitOptions) -> LoweredPrimitive:
        return lower_bilinear(plan, options)

    def error_terms(
        self, problem: Problem, numbers: Sequence[int], x: Doubles, w: Doubles
    ) -> ErrorTerms:
        m, k, n = numbers
        product, algorithm = product_of(problem), PRODUCTS[m, k, n]
        sizes = bound_sizes(product, algorithm, x, w)
        scaled = 2 * (problem.factors[0] != 1)
        return ErrorTerms(sizes, count_roundings(product, algorithm) + scaled)

    def explain(self, request: ExplainRequest) -> BilinearExplanation:
        plan = self.resolve(request.problem, request.schedule, request.context.threads)
        return BilinearExplanation(request, plan)


def _take(ordered: Sequence[Candidate], count: int) -> Iterator[Candidate]:
    """The first ``count``, few of them alike, so that an error of the model decides not for all."""
    alike = Counter[tuple[Step, ...]]()
    for candidate in ordered:
        nest = candidate.schedule.nest
        at = nest.index(candidate.schedule.transform)
        alike[nest[: at + 1]] += 1
        if alike[nest[: at + 1]] <= max(1, count // ALIKE) and count:
            count -= 1
            yield candidate


def count_roundings(product: MatrixProduct, algorithm: BilinearProduct) -> int:
    """c of the bound: roundings that one product of numbers meets on its way into a result."""
    return -(-product.depth // algorithm.k) + sum(algorithm.most_terms)


def bound_sizes(
    product: MatrixProduct, algorithm: BilinearProduct, x: Doubles, w: Doubles
) -> Doubles:
    """``|c| [(|a| blocks of |A|) (|b| blocks of |B|)]`` in float64, times ``|alpha|``, shaped as y.

    Times gamma of ``count_roundings`` it bounds the error in any order of the sums of a product:
    Ballard, Benson, Druinsky, Lipshitz and Schwartz, Improving the numerical stability of fast
    matrix multiplication, SIAM J. Matrix Anal. Appl. 37(4), 2016, section 3; for norms Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd ed., section 23.2.2.
    """
    m, k, n = algorithm.size
    left, right = product.matrices(abs(x), abs(w))
    a, b = _blocks(left, m, k), _blocks(right, k, n)
    parts = (abs(algorithm.a), abs(algorithm.b), abs(algorithm.c))
    sizes = np.zeros((m * n, a.shape[1], b.shape[2]))
    for of_a, of_b, back in zip(parts[0], parts[1], parts[2].T, strict=True):
        one = np.tensordot(of_a, a, 1) @ np.tensordot(of_b, b, 1)
        for block in back.nonzero()[0]:
            sizes[block] += back[block] * one
    whole = sizes.reshape(m, n, *sizes.shape[1:]).swapaxes(1, 2)
    whole = whole.reshape(m * a.shape[1], n * b.shape[2])[: product.rows, : product.columns]
    scaled = abs(product.problem.factors[0]) * whole
    return np.ascontiguousarray(scaled).reshape(product.problem.y_shape)


def _blocks(matrix: Doubles, down: int, across: int) -> Doubles:
    """Return the blocks of a matrix, row by row, with zeros where they leave it."""
    high, wide = (
        -(-size // parts) for size, parts in zip(matrix.shape, (down, across), strict=True)
    )
    padded = np.zeros((down * high, across * wide))
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    blocks = padded.reshape(down, high, across, wide).swapaxes(1, 2)
    return blocks.reshape(down * across, high, wide)


def estimate(plan: BilinearPlan, context: Context) -> BilinearEstimate:
    """The prediction for one plan by the machine's own rates."""
    return BilinearCosts(count_work(plan, context), context).estimate()


def count_work(plan: BilinearPlan, context: Context) -> BilinearWork:
    """Return what a plan computes and moves."""
    product, algorithm, lanes = plan.product, plan.algorithm, plan.kernel.lanes
    of_a, _, of_products = algorithm.terms
    rows = plan.bands * plan.rows
    into = plan.again * rows * of_a * -(-plan.deep // lanes)
    back = rows * of_products * -(-plan.wide // lanes)
    inner = inner_context(context, plan)
    return BilinearWork(
        lanes=lanes, teams=plan.teams, turns=plan.bands * plan.parts, bands=plan.bands,
        products=algorithm.products, seconds=predict_direct(inner, plan.inner),
        operations=(into, back),
        x=plan.again * ITEM * product.rows * product.depth,
        w=ITEM * product.depth * product.columns,
        y=ITEM * product.rows * product.columns,
        sums=plan.again * plan.bands * algorithm.products * ITEM * plan.sum_size,
        band=algorithm.products * ITEM * plan.sum_size,
        products_bytes=algorithm.products * ITEM * plan.product_size,
        factors=ITEM * plan.factors * plan.factor_size, packed=plan.packs_b,
        streamed=plan.streams, share=_share(plan),
    )  # fmt: skip


def _share(plan: BilinearPlan) -> float:
    """Return the busiest thread's share of all turns."""
    if plan.teams == 1:
        return 1.0
    counts = {"i": plan.bands, "j": plan.parts}
    tasks = prod(counts[loop.dim] for loop in plan.around if loop.parallel)
    return -(-tasks // plan.teams) / tasks


def inner_context(context: Context, plan: BilinearPlan) -> Context:
    """Return the product of a band and a part, of one thread, as rankers see it."""
    return replace(
        context, contraction=plan.contraction, strides=plan.strides, threads=1, cold=False
    )


def schedules(product: MatrixProduct, context: Context) -> Iterator[Schedule]:
    """The schedules that searches consider, in a deterministic order."""
    lanes = microkernels.lanes(context.target.isa.name)
    for algorithm in SEARCHED:
        high, deep, wide = block_of(product, algorithm, lanes)
        held = ITEM * algorithm.products * (deep + wide)  # of a row
        far = ITEM * algorithm.products * deep * wide > context.l2
        bands = _splits(high, BANDS, context.threads, 1)
        for rows in (rows for rows in bands if rows == bands[0] or rows * held <= HELD):
            few = high < BANDS[0] * context.threads  # rows for all threads
            for parts in _splits(wide, (), context.threads if few else 1, lanes):
                for inner in _inner_schedules(context, rows, deep, parts, lanes, far=far):
                    for around in _orders(rows < high, parts < wide, rows, parts, context.threads):
                        first, last = (
                            rename(steps, INNER_NAMES, product.names)
                            for steps in (around, inner.nest)
                        )
                        nest = (*first, transform_of(algorithm), *last)
                        yield from _stored(inner.with_nest(nest), product, context)


def _splits(extent: int, sizes: Sequence[int], threads: int, unit: int) -> list[int]:
    """All of it, an even share of every thread, and even parts of about these sizes."""
    parts = {1, threads, *(-(-extent // size) for size in sizes)}
    return sorted({round_up(-(-extent // count), unit) for count in parts if count <= extent})


def _inner_schedules(
    context: Context, rows: int, deep: int, wide: int, lanes: int, *, far: bool
) -> list[Schedule]:
    """Return the best direct schedules of a product of blocks, none where nothing fits.

    If sums of B lie ``far``, beyond L2, products had better read them once, and all that can do so
    prefetch them.
    """
    _, roles, strides = inner_model(rows, deep, wide, lanes)
    own = replace(context, contraction=roles, strides=strides, threads=1, cold=far)
    try:
        ranked = choices(own, 4 * INNER)
    except UnsupportedError:
        return []
    fitting = [
        choice.schedule for choice in ranked
        if microkernels.find(choice.schedule.kernel).family == "brgemm"
        and all(isinstance(its, Ahead | Pack) for its in choice.schedule.directives)
    ]  # fmt: skip
    if far:
        fitting = [_prefetching(its, roles, strides) for its in fitting]
    return list(dict.fromkeys(fitting))[:INNER]


def _prefetching(schedule: Schedule, roles: Contraction, strides: Strides) -> Schedule:
    """Return a schedule whose calls prefetch the next panel of B; as it is where they cannot."""
    try:
        resolve_nest(roles, strides, schedule.having(Ahead()))
    except PolysciError:
        return schedule
    return schedule.having(Ahead())


def _stored(schedule: Schedule, product: MatrixProduct, context: Context) -> Iterator[Schedule]:
    """Yield a schedule and, if C exceeds the caches, the one that stores C past these."""
    yield schedule
    large = ITEM * product.rows * product.columns > context.streamed
    lanes = microkernels.lanes(context.target.isa.name)
    if large and product.columns % lanes == 0 and context.target.isa.machine == "x86_64":
        yield schedule.having(Stream())


def _orders(
    some_rows: bool, some_columns: bool, rows: int, wide: int, threads: int
) -> Iterator[tuple[Step, ...]]:
    """Yield loops around the transform; with threads one of them is parallel."""
    shared = threads > 1
    over_i = [Loop("i", rows, shared)] if some_rows else []
    over_j = [Loop("j", wide)] if some_columns else []
    if over_i or not shared:
        yield (*over_i, *over_j)
    if shared and over_j:
        serial = [Loop("i", rows)] if some_rows else []
        yield (Loop("j", wide, True), *serial)


@dataclass(frozen=True, slots=True)
class BilinearExplanation:
    """The explanation of a schedule: blocks, buffers, and where the predicted time goes."""

    request: ExplainRequest
    plan: BilinearPlan

    @property
    def nest(self) -> None:
        return None

    @property
    def estimate(self) -> BilinearEstimate:
        return estimate(self.plan, self.request.context)

    def render(self, width: int | None = None) -> str:
        plan, predicted = self.plan, self.estimate
        return self.request.render_parts(
            "Bilinear", _algorithm(plan), _buffers(plan), predicted.parts, width
        )

    def members(self) -> dict[str, Any]:
        """Return the explanation as JSON members; times are in seconds, sizes in bytes."""
        predicted = self.estimate
        return {
            **self.request.members(predicted.seconds),
            "terms": predicted.parts, "products": self.plan.algorithm.products,
            "sizes": {name: size for name, size, _ in _sizes(self.plan)},
        }  # fmt: skip


def _algorithm(plan: BilinearPlan) -> list[tuple[str, str]]:
    algorithm = plan.algorithm
    blocks = f"{plan.high} x {plan.deep} of A, {plan.deep} x {plan.wide} of B"
    return [
        ("algorithm", f"{algorithm}: {algorithm.products} products of blocks for "
         f"{algorithm.m * algorithm.k * algorithm.n}"),
        ("fewer products", f"{algorithm.saving:.3g} times"),
        ("blocks", blocks),
        ("band", f"{plan.rows} rows of each block of A by {plan.columns} columns of sums of B"),
        ("each product", str(plan.inner)),
    ]  # fmt: skip


def _sizes(plan: BilinearPlan) -> list[tuple[str, int, str]]:
    products = ITEM * plan.algorithm.products
    when = "packed in the call" if plan.packs_b else "packed ahead"
    return [
        ("B", ITEM * plan.factors * plan.factor_size, f"sums of blocks of B, {when}"),
        ("A", products * plan.sum_size, "sums of a band of the blocks of A"),
        ("P", products * plan.product_size, "products of a band"),
    ]


def _buffers(plan: BilinearPlan) -> list[tuple[str, str, str]]:
    return [(name, bytes_text(size), what) for name, size, what in _sizes(plan)]
