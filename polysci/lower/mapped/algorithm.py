"""Tiles of work-groups as an algorithm, for devices whose groups share a memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, Final

from polysci.cost import Context
from polysci.cost.groups import GroupWork
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
from polysci.lower.mapped.nest import copies_of, lower_mapped
from polysci.lower.mapped.plan import (
    MappedPlan,
    form_of,
    kernels_of,
    longest_step,
    refusal,
    resolve,
)
from polysci.numerics.arrays import Doubles
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.space.directives.copy import Copy
from polysci.space.schedule import Schedule
from polysci.target.isas import isa_of
from polysci.target.machine import Machine
from polysci.target.microkernels import Microkernel
from polysci.text.tables import bytes_text, pairs, time_text

ITEMS: Final = (32, 64, 128, 256)  # of groups
SIDES: Final = (16, 32, 64, 128)  # of tiles
WARP_SIDES: Final = (*SIDES, 256)  # of tiles that warps share
DEPTHS: Final = (4, 8, 16, 32)
WARP_DEPTHS: Final = (16, 32, 64)
COPIES: Final = (Copy(2, 4),)  # lines stay aligned to vectors
WARP_COPIES: Final = tuple(Copy(stages, swizzle=True) for stages in (2, 3, 4))
HELD: Final = 8  # registers of a chunk that an item copies itself: it and its places
WIDEST: Final = 4  # a tile's longer side by its shorter one


class MappedGroups(Algorithm[MappedPlan]):
    """Products whose rows and columns are mapped to the groups of a device."""

    @property
    def exact_inputs(self) -> ExactInputs:
        return ExactInputs()

    @property
    def languages(self) -> tuple[str, ...]:
        return ("cuda", "opencl")

    def refusal(self, problem: Problem) -> str:
        return refusal(model_of(problem)[1])

    def candidates(
        self, problem: Problem, context: Context, count: int | None, limits: SpaceLimits
    ) -> list[Candidate]:
        """The schedules of least predicted time; sums are in the order of the nest."""
        if why := self.refusal(problem):
            raise UnsupportedError(f"{problem}: algorithm mapped: {why}")
        every = []
        for schedule in _space(context):
            plan = resolve(context.contraction, context.strides, schedule)
            work = work_of(plan, context.machine)
            if work.resident(context):
                every.append(Candidate(schedule, work.seconds(context)))
        ordered = sorted(every, key=lambda own: (own.seconds, str(own.schedule)))
        return ordered if count is None else ordered[: count + limits.kinds]

    def predict_seconds(self, problem: Problem, context: Context, schedule: Schedule) -> float:
        return work_of(self.resolve(problem, schedule, 1), context.machine).seconds(context)

    def lower_bound(self, context: Context, schedule: Schedule) -> float:
        plan = resolve(context.contraction, context.strides, schedule)
        return work_of(plan, context.machine).bound(context)

    def resolve(self, problem: Problem, schedule: Schedule, threads: int) -> MappedPlan:
        _, roles, strides = model_of(problem)
        return resolve(roles, strides, schedule)

    def lower(self, plan: MappedPlan, options: EmitOptions) -> LoweredPrimitive:
        return lower_mapped(plan, options)

    def error_terms(
        self, problem: Problem, numbers: Sequence[int], x: Doubles, w: Doubles
    ) -> ErrorTerms:
        """Those of direct loops: every product is added to a sum once."""
        return Direct().error_terms(problem, numbers, x, w)

    def explain(self, request: ExplainRequest) -> MappedExplanation:
        plan, context = self.resolve(request.problem, request.schedule, 1), request.context
        work = work_of(plan, context.machine)
        machine = replace(context.machine, peak=context.machine.peak * work.speed)  # of its kernel
        whole = replace(context, threads=context.target.cores, machine=machine)
        return MappedExplanation(replace(request, context=whole), plan, work, context)


def _space(context: Context) -> Iterator[Schedule]:
    """Yield all schedules of a contraction whose groups and tiles have sizes of the tables."""
    contraction = context.contraction
    for kernel in kernels_of(context.target.isa.name, contraction.a.dtype):
        sides, depths, copies = _sizes_of(kernel)
        depths = sorted({min(depth, longest_step(contraction, kernel)) for depth in depths})
        for rows, columns in product(sides, sides):
            if rows % kernel.rows or columns % kernel.cols:
                continue
            items = rows // kernel.rows * (columns // kernel.cols) * kernel.items
            if items not in ITEMS or max(rows, columns) > WIDEST * min(rows, columns):
                continue
            for depth, copy in product(depths, copies):
                if not (copy.swizzle and depth & (depth - 1)):
                    yield form_of(contraction, kernel, rows, columns, depth, copy)


def _sizes_of(
    kernel: Microkernel,
) -> tuple[Sequence[int], Sequence[int], Sequence[Copy]]:
    """Return the sides of tiles, the lengths of steps and the copies that are tried."""
    if kernel.items == 1:
        return SIDES, DEPTHS, COPIES
    several = isa_of(kernel.isa).copies_async
    return WARP_SIDES, WARP_DEPTHS, WARP_COPIES if several else WARP_COPIES[:1]


def work_of(plan: MappedPlan, machine: Machine) -> GroupWork:
    """Return the features of a plan."""
    operands = (plan.contraction.a, plan.contraction.b, plan.contraction.out)
    a, b = plan.depth * plan.rows, plan.depth * plan.columns
    kernel, speed = plan.kernel, 1.0
    # A row's elements are read by all items of a warp at once, four of them at a time.
    fronts: float = -(-kernel.rows // 4) + kernel.vecs * kernel.lanes
    factors, copies = kernel.rows + kernel.cols, a + b
    if plan.of_warps:
        speed = machine.coefficient("speed_matrices")
        factors, fronts = (kernel.rows + kernel.cols) // 4, (kernel.rows + kernel.cols) / 64
        copies = copies_of(plan)
        factors += 0 if plan.copies_async else -(-copies // plan.items) * HELD
    return GroupWork(
        groups=plan.groups, items=plan.items, sums=kernel.rows * kernel.cols // kernel.items,
        factors=factors, fronts=fronts, speed=speed,
        steps=plan.steps * prod(dim.extent for dim in plan.around), depth=plan.depth,
        copies=copies, copied=a * plan.contraction.a.bytes + b * plan.factor_bytes,
        waits=2 if plan.copy.stages == 1 else 1,
        ahead=plan.copy.stages - 1 if plan.copies_async else 0,
        shared=plan.factor_bytes * sum(plan.shared_elements),
        compulsory=sum(operand.bytes * prod(operand.shape) for operand in operands),
    )  # fmt: skip


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
            ("memory of a group", bytes_text(work.shared)),
            ("groups at a time", f"{work.resident(context)} a compute unit"),
            ("no run is below", time_text(work.bound(context))),
        ]
        seconds = work.seconds(context)
        return self.request.render(seconds, {"Groups": pairs(rows, width)}, width) + "\n"

    def members(self) -> dict[str, Any]:
        """Return the explanation as JSON members; times are in seconds, sizes in bytes."""
        plan, work, context = self.plan, self.work, self.context
        return {
            **self.request.members(work.seconds(context)),
            "groups": plan.groups, "items": plan.items, "tile": [plan.rows, plan.columns],
            "shared": work.shared, "bound": work.bound(context),
        }  # fmt: skip
