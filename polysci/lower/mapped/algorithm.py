"""Tiles of work-groups as an algorithm, for devices whose groups share a memory."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, Final

from polysci.cost import Context
from polysci.cost.groups import GroupWork, Reads
from polysci.errors import UnsupportedError
from polysci.lower.algorithm import (
    Algorithm,
    Candidate,
    EmitOptions,
    ErrorTerms,
    ExactInputs,
    ExplainRequest,
    SpaceLimits,
)
from polysci.lower.direct.algorithm import Direct
from polysci.lower.lowering import LoweredPrimitive
from polysci.lower.mapped.nest import GroupNest, copies_of, lower_mapped, places_held
from polysci.lower.mapped.plan import (
    FAMILY,
    MappedPlan,
    chunk_of,
    deep_dims,
    form_of,
    kernel_family,
    kernels_of,
    leaves,
    longest_step,
    misfit,
    only_copies,
    read_dim,
    refusal,
    resolve,
    takes,
)
from polysci.lower.mapped.quantities import compulsory, fetched
from polysci.lower.mapped.reading import ReadingNest
from polysci.lower.mapped.warp_counts import counts_of
from polysci.numerics.arrays import Doubles
from polysci.numerics.dtypes import COMPUTES
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.polyhedral.contraction import Contraction, columns_of
from polysci.space.directives.copy import Copy
from polysci.space.schedule import Schedule
from polysci.target.isas import isa_of
from polysci.target.machine import Machine
from polysci.target.microkernels import Microkernel
from polysci.text.tables import bytes_text, pairs, time_text

ITEMS: Final = (32, 64, 128, 256)  # of groups
SIDES: Final = (16, 32, 64, 128)  # of tiles
WARP_SIDES: Final = (*SIDES, 256)  # of tiles that warps share
DEPTHS: Final = (4, 8, 16, 32)  # words of 8-bit numbers
WARP_DEPTHS: Final = (16, 32, 64)  # of 16-bit numbers
CHUNKS: Final = 8  # of these in a chunk
COPIES: Final = (Copy(2, 4),)  # lines stay aligned to vectors
WARP_COPIES: Final = tuple(Copy(stages, swizzle=True) for stages in (2, 3, 4))
HELD: Final = 8  # registers of a chunk that an item copies itself: it and its places
WIDEST_READ: Final = 32  # of tiles without copies
WIDEST: Final = 4  # a tile's longer side by its shorter one


class MappedGroups(Algorithm[MappedPlan]):
    """Products whose rows and columns are mapped to the groups of a device."""

    def exact_inputs(self, problem: Problem) -> ExactInputs:
        return ExactInputs()

    @property
    def languages(self) -> tuple[str, ...]:
        return ("cuda", "opencl")

    def refusal(self, problem: Problem) -> str:
        return Direct().refusal(problem) or refusal(model_of(problem)[1])

    def candidates(
        self, problem: Problem, context: Context, count: int | None, limits: SpaceLimits
    ) -> list[Candidate]:
        """The schedules of least predicted time; sums are in the order of the nest."""
        if why := self.refusal(problem):
            raise UnsupportedError(f"{problem}: algorithm mapped: {why}")
        return rank(context, None if count is None else count + limits.kinds)

    def predict_seconds(self, problem: Problem, context: Context, schedule: Schedule) -> float:
        return predict(context, schedule)

    def predict_held(
        self, problem: Problem, context: Context, schedule: Schedule, held: int
    ) -> float | None:
        work = count_work(self.resolve(problem, schedule, 1), context.machine)
        return replace(work, held=held).seconds(context)

    def lower_bound(self, context: Context, schedule: Schedule) -> float:
        plan = resolve(context.contraction, context.strides, schedule)
        return work_of(plan, context.machine).bound(context)

    def resolve(self, problem: Problem, schedule: Schedule, threads: int) -> MappedPlan:
        if why := self.refusal(problem):
            raise UnsupportedError(f"schedule {schedule}: {why}")
        _, roles, strides = model_of(problem)
        return resolve(roles, strides, schedule)

    def lower(self, plan: MappedPlan, options: EmitOptions) -> LoweredPrimitive:
        return lower(plan, options)

    def error_terms(
        self, problem: Problem, numbers: Sequence[int], x: Doubles, w: Doubles
    ) -> ErrorTerms:
        """Those of direct loops: every product is added to a sum once."""
        return Direct().error_terms(problem, numbers, x, w)

    def explain(self, request: ExplainRequest) -> MappedExplanation:
        plan, context = self.resolve(request.problem, request.schedule, 1), request.context
        work = count_work(plan, context.machine)
        speed = work.speed * plan.word  # of its kernel
        machine = replace(context.machine, peak=context.machine.peak * speed)
        whole = replace(context, threads=context.target.cores, machine=machine)
        return MappedExplanation(replace(request, context=whole), plan, work, context)


def maps(context: Context) -> bool:
    """Return whether the target has kernels for groups that compute the contraction."""
    kernels = kernels_of(context.target.isa.name, context.contraction.a.dtype)
    return bool(kernels) and takes(context.contraction, context.target)


def rank(context: Context, count: int | None = None) -> list[Candidate]:
    """Return the best schedules by which groups compute a contraction, best first (None: all)."""
    every = []
    for schedule in _space(context):
        plan = resolve(context.contraction, context.strides, schedule)
        work = work_of(plan, context.machine)
        surely = work.sums + places_held(plan)
        if work.resident(context) and not work.spills(context.target.unit, surely):
            every.append((*_order(work, context, schedule), plan))
    every.sort(key=lambda own: own[:-1])
    return _best(every, context, len(every) if count is None else count)


def _order(work: GroupWork, context: Context, schedule: Schedule) -> tuple[float, bool, str]:
    """Return what schedules are sorted by: seconds, then whether registers may spill, then text."""
    spills = work.spills(context.target.unit, work.registers)
    return work.seconds(context), spills, str(schedule)


def predict(context: Context, schedule: Schedule) -> float:
    """Return the predicted seconds of a contraction by groups. Raises as ``resolve`` does."""
    plan = resolve(context.contraction, context.strides, schedule)
    return count_work(plan, context.machine).seconds(context)


def lower(plan: MappedPlan, options: EmitOptions) -> LoweredPrimitive:
    """Return the primitive of a plan: with copies, or of items that read."""
    return lower_mapped(plan, options, GroupNest if plan.copy else ReadingNest)


def _space(context: Context) -> Iterator[Schedule]:
    """Yield all schedules of a contraction whose groups and tiles have sizes of the tables."""
    contraction, isa = context.contraction, context.target.isa.name
    own = kernel_family(contraction)
    if own == FAMILY and context.target.local is not None:
        for kernel in kernels_of(isa, contraction.a.dtype):
            yield from _copying(contraction, kernel)
    if not only_copies(contraction):
        yield from _reading(context, kernels_of(isa, contraction.a.dtype, (own,)))


def _copying(contraction: Contraction, kernel: Microkernel) -> Iterator[Schedule]:
    """Yield the schedules of a kernel whose groups copy, with steps that the kernel takes."""
    sides, depths, copies = _sizes_of(kernel)
    longest = longest_step(kernel, deep_dims(contraction))
    depths = sorted({min(depth, longest) for depth in depths})
    for _, rows, columns in _tiles([kernel], sides):
        for depth, copy in product(depths, copies):
            if not misfit(contraction, kernel, copy, depth, columns):
                yield form_of(contraction, kernel, rows, columns, depth, copy)


def _sizes_of(
    kernel: Microkernel,
) -> tuple[Sequence[int], Sequence[int], Sequence[Copy]]:
    """Return the sides of tiles, the lengths of steps and the copies that are tried."""
    if kernel.items == 1:
        word = COMPUTES[kernel.compute].vnni_factor
        return SIDES, [word * depth for depth in DEPTHS], COPIES
    several, chunks = isa_of(kernel.isa).copies_async, chunk_of(kernel) // CHUNKS
    depths = [chunks * depth for depth in WARP_DEPTHS]
    return WARP_SIDES, depths, WARP_COPIES if several else WARP_COPIES[:1]


def _reading(context: Context, kernels: Sequence[Microkernel]) -> Iterator[Schedule]:
    """Yield the schedules whose items read: neighbours have neighbouring elements of the result."""
    contraction = context.contraction
    out = contraction.out.offset(context.strides[contraction.out.array])
    along_rows = out.coef(columns_of(contraction).name) != 1
    (deep,) = read_dim(contraction)
    depths = {min(depth, deep.extent) for depth in DEPTHS[:2]}
    if leaves(contraction, (deep,)):
        depths = {1}
    for kernel, rows, columns in _tiles(kernels, (4, 8, *SIDES), WIDEST_READ):
        for depth in sorted(depths):
            yield form_of(contraction, kernel, rows, columns, depth, None, along_rows=along_rows)


def _tiles(
    kernels: Sequence[Microkernel], sides: Sequence[int], widest: int = WIDEST
) -> Iterator[tuple[Microkernel, int, int]]:
    """Yield the kernels with rows and columns of the tiles of groups that they make up."""
    for kernel in kernels:
        for rows in sides:
            for columns in sides:
                if rows % kernel.rows or columns % kernel.cols:
                    continue
                items = rows // kernel.rows * (columns // kernel.cols) * kernel.items
                if items in ITEMS and max(rows, columns) <= widest * min(rows, columns):
                    yield kernel, rows, columns


def _best(
    ordered: Sequence[tuple[float, bool, str, MappedPlan]], context: Context, count: int
) -> list[Candidate]:
    """Return the ``count`` candidates of least time, of plans in the order of their least times.

    What counts a plan's turns of memory takes milliseconds and adds to its time: it ends where no
    other plan can be among the first.
    """
    best = list[tuple[float, bool, str, Schedule]]()
    for least, _, _, plan in ordered:
        if len(best) >= count and best[count - 1][0] <= least:
            break
        work = count_work(plan, context.machine)
        insort(best, (*_order(work, context, plan.schedule), plan.schedule), key=lambda it: it[:3])
    return [Candidate(schedule, seconds) for seconds, _, _, schedule in best[:count]]


def count_work(plan: MappedPlan, machine: Machine) -> GroupWork:
    """Return the features of a plan, with the turns of memory of its warps where they copy."""
    work = work_of(plan, machine)
    if not counts_memory(plan):
        return work
    counts = counts_of(plan)
    return replace(work, fronts=counts.fronts, sectors=counts.sectors)


def counts_memory(plan: MappedPlan) -> bool:
    """Return whether turns of memory are counted: where items copy words, of f32."""
    words = (plan.contraction.a.bytes, plan.factor_bytes) == (4, 4)
    return plan.copy is not None and not plan.of_warps and words


def work_of(plan: MappedPlan, machine: Machine) -> GroupWork:
    """Return the features of a plan, without counts."""
    kernel, a, b = plan.kernel, plan.depth * plan.rows, plan.depth * plan.columns
    work = GroupWork(
        groups=plan.groups, items=plan.items, sums=kernel.rows * kernel.cols // kernel.items,
        factors=kernel.rows + kernel.cols, rows=kernel.rows, vectors=kernel.vecs,
        steps=plan.steps * prod(dim.extent for dim in plan.around),
        depth=plan.depth // plan.word,
        speed=machine.coefficient("speed_words") if plan.word > 1 else 1.0,
        copies=a + b, copied=a * plan.contraction.a.bytes + b * plan.factor_bytes,
        waits=2 if plan.copy and plan.stages == 1 else 1,
        shared=plan.factor_bytes * sum(plan.shared_elements),
        compulsory=compulsory(plan.contraction), fetched=fetched(plan), across=plan.tile_columns,
        reads=None if plan.copy else reads_of(plan),
    )  # fmt: skip
    return _work_of_warps(plan, work, machine) if plan.of_warps else work


def _work_of_warps(plan: MappedPlan, work: GroupWork, machine: Machine) -> GroupWork:
    """Return the features of a plan whose warps multiply matrices."""
    beside, copies = plan.kernel.rows + plan.kernel.cols, copies_of(plan)
    held = 0 if plan.copies_async else -(-copies // plan.items) * HELD
    held += places_held(plan)
    return replace(
        work, factors=beside // 4 + held, fronts_each=beside / CHUNKS / chunk_of(plan.kernel),
        copies=copies,
        # 8-bit numbers twice as fast: NVIDIA's T4 data sheet, 130 TOPS beside 65 TFLOP/s.
        speed=machine.coefficient("speed_matrices") * chunk_of(plan.kernel) / CHUNKS,
        ahead=plan.stages - 1 if plan.copies_async else 0,
    )  # fmt: skip


def reads_of(plan: MappedPlan) -> Reads:
    """Return what items read of a plan without copies."""
    lanes, a = plan.kernel.lanes, plan.contraction.a
    beside = a.offset(plan.strides[a.array]).coef(plan.deep[-1].name) == 1
    vectors = beside and plan.depth % lanes == 0 and plan.word == 1
    items, size = (plan.tile_rows, plan.tile_columns), a.bytes * plan.word
    return Reads(items, plan.along_rows, lanes if vectors else 1, plan.channels, size)


@dataclass(frozen=True, slots=True)
class MappedExplanation:
    """The tile of a group, its memory, and where the predicted time goes."""

    request: ExplainRequest
    plan: MappedPlan
    work: GroupWork
    context: Context

    @property
    def nest(self) -> None:
        return None

    def render(self, width: int | None = None) -> str:
        plan, work, context = self.plan, self.work, self.context
        along_rows, along_columns = plan.blocks
        rows = [
            ("groups", f"{plan.groups} of {plan.items} work-items, {along_rows} x {along_columns}"),
            ("tile", f"{plan.rows} rows x {plan.columns} columns, {plan.depth} deep a step"),
            (
                "warp" if plan.of_warps else "work-item",
                f"{plan.kernel.rows} rows x {plan.kernel.cols} columns in registers",
            ),
            ("memory of a group", bytes_text(work.shared) if plan.copy else "none: items read"),
            ("groups at a time", f"{work.resident(context)} a compute unit"),
            ("turns of its memory", self._turns()),
            ("no run is below", time_text(work.bound(context))),
        ]
        seconds = work.seconds(context)
        return self.request.render(seconds, {"Groups": pairs(rows, width)}, width) + "\n"

    def _turns(self) -> str:
        """Return what a step takes of the memory of a group."""
        if not counts_memory(self.plan):
            return "not counted" if self.plan.copy else "none"
        counts = counts_of(self.plan)
        reads, writes = counts.conflicts
        return (
            f"{counts.reads} a step for reads, {reads} of them conflicts; {counts.writes} for "
            f"copies, {writes} of them conflicts; {counts.sectors} sectors read"
        )

    def members(self) -> dict[str, Any]:
        """Return the explanation as JSON members; times are in seconds, sizes in bytes."""
        plan, work, context = self.plan, self.work, self.context
        return {
            **self.request.members(work.seconds(context)),
            "groups": plan.groups, "items": plan.items, "tile": [plan.rows, plan.columns],
            "shared": work.shared, "bound": work.bound(context),
        }  # fmt: skip
