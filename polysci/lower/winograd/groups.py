"""Winograd's algorithm on devices: transforms as work-items, products by the tiles of groups.

``winograd(4) t:64@by k:64@bx c:8 copy(A,B)x2+4 t:8@ty k:4@tx > fma_opencl4_f32_8x4``: work-items
bring all tiles of pixels into V, groups multiply V by the filters' U, a product for each point, and
work-items take the sums back to y. The words behind the transform are those of such a product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from polysci.cost import Context
from polysci.errors import SpecError, UnsupportedError
from polysci.lower.algorithm import Candidate, ExplainRequest
from polysci.lower.mapped import algorithm as mapped
from polysci.lower.mapped.plan import MappedPlan
from polysci.lower.mapped.plan import resolve as resolve_groups
from polysci.lower.winograd.tiles import (
    OutputTile,
    convolution,
    numbers_of,
    schedule_tile,
    tile_sizes,
)
from polysci.numerics.affine import Affine
from polysci.ops.convolutions import Conv2d, Conv3d
from polysci.ops.problem import Problem
from polysci.polyhedral.contraction import Contraction, Dim, Operand, Strides
from polysci.space.schedule import Schedule, Transform
from polysci.target.microkernels import find
from polysci.text.tables import pairs, time_text

ITEM: Final = 4  # bytes
PASSES: Final = 2  # of what is in V and in M: it is written, and read


@dataclass(frozen=True)
class GroupedWinograd:
    """A schedule resolved for a convolution over two axes: the tile, and the product."""

    problem: Conv2d
    schedule: Schedule
    tile: OutputTile
    product: MappedPlan

    @property
    def points(self) -> int:
        return self.tile.points

    @property
    def lanes(self) -> int:
        """Channels, and filters, of a work-item of the transforms."""
        return self.product.kernel.lanes

    @cached_property
    def tiles(self) -> int:
        return self.tile.tiles(self.problem)

    @property
    def v_tile(self) -> int:
        """Elements from one tile of V to the next."""
        return _vectors(self.problem.C, self.lanes)

    @property
    def m_tile(self) -> int:
        """Elements from one tile of M to the next."""
        return _vectors(self.problem.K, self.lanes)

    @property
    def sizes(self) -> tuple[int, int]:
        """Elements of V and M."""
        return self.points * self.tiles * self.v_tile, self.points * self.tiles * self.m_tile

    @property
    def packed(self) -> int:
        """Elements of U: [point][c][columns of whole tiles]."""
        return self.points * self.problem.C * self.product.padded_columns


def _vectors(count: int, lanes: int) -> int:
    return -(-count // lanes) * lanes


def product_of(conv: Conv2d, tile: OutputTile, lanes: int) -> tuple[Contraction, Strides]:
    """Return ``M[e][t][k] += V[e][t][c] * U[e][c][k]``, a product for each point, and strides."""
    points, tiles, filters = tile.points, tile.tiles(conv), _vectors(conv.K, lanes)
    extents = {"e": (points, "batch"), "t": (tiles, "m"), "k": (filters, "n"), "c": (conv.C, "k")}
    depths = {"t": tiles, "k": filters, "c": conv.C, "e": points}
    strides = {
        "M": (tiles * filters, filters, 1),
        "V": (tiles * _vectors(conv.C, lanes), _vectors(conv.C, lanes), 1),
        "U": (conv.C * filters, filters, 1),
    }

    def operand(name: str, axes: str) -> Operand:
        index = tuple(Affine(((axis, 1),), 0) for axis in axes)
        return Operand(name, tuple(depths[axis] for axis in axes), index)

    dims = tuple(Dim(name, extent, role) for name, (extent, role) in extents.items())
    out, a, b = operand("M", "etk"), operand("V", "etc"), operand("U", "eck")
    return Contraction(dims, out, a, b, padded=False), strides


def _dense(problem: Problem) -> Conv2d:
    """Return the problem over two axes.

    Raises UnsupportedError for one with groups of channels or over three axes.
    """
    conv = convolution(problem)
    if isinstance(problem, Conv3d):
        raise UnsupportedError(
            f"{problem}: algorithm winograd: expected one or two axes on devices, got three"
        )
    if conv.groups > 1:
        raise UnsupportedError(
            f"{problem}: algorithm winograd: groups={conv.groups}: expected 1 on devices"
        )
    return conv


def resolve(problem: Problem, schedule: Schedule) -> GroupedWinograd:
    """Return the plan of a schedule. Raises SpecError or UnsupportedError where it does not fit."""
    conv, transform = _dense(problem), schedule.transform
    if transform is None or transform.name != "winograd" or schedule.nest[0] != transform:
        raise SpecError(f"schedule {schedule}: expected winograd(m) ahead of its loops")
    tile = schedule_tile(conv, f"schedule {schedule}: {transform}", transform.numbers)
    roles, strides = product_of(conv, tile, find(schedule.kernel).lanes)
    product = resolve_groups(roles, strides, schedule.with_nest(schedule.nest[1:]))
    if conv.C % product.depth:
        raise SpecError(f"schedule {schedule}: steps of {product.depth} do not divide c:{conv.C}")
    return GroupedWinograd(conv, schedule, tile, product)


# Cost.


def rank(problem: Problem, context: Context) -> list[Candidate]:
    """Return all schedules of groups, best first.

    Raises UnsupportedError where the target lacks what they need.
    """
    conv, every, target = _dense(problem), list[Candidate](), context.target
    if target.isa.language == "opencl" and not target.has("fp64"):
        raise UnsupportedError(
            f"{problem}: algorithm winograd: features of {target.model_name}: expected fp64, in "
            "which filters are transformed"
        )
    for tile in tile_sizes(conv):
        own = _context(conv, tile, context)
        if not mapped.maps(own):
            raise UnsupportedError(
                f"{problem}: algorithm winograd: no tiles of groups for {target.isa}"
            )
        extra = _transforms(conv, tile, context)
        for candidate in mapped.rank(own):
            steps = (Transform("winograd", numbers_of(tile)), *candidate.schedule.nest)
            if conv.C % candidate.schedule.loops[2].step == 0:
                schedule = candidate.schedule.with_nest(steps)
                every.append(Candidate(schedule, candidate.seconds + extra))
    return sorted(every, key=lambda own: (own.seconds, str(own.schedule)))


def predict(plan: GroupedWinograd, context: Context) -> float:
    """Return the predicted seconds of all launches."""
    own = _context(plan.problem, plan.tile, context)
    transforms = _transforms(plan.problem, plan.tile, context)
    return mapped.predict(own, plan.product.schedule) + transforms


def _context(conv: Conv2d, tile: OutputTile, context: Context) -> Context:
    """Return the context in which rankers see the product."""
    roles, strides = product_of(conv, tile, context.target.isa.lanes_f32)
    return replace(context, contraction=roles, strides=strides)


def _transforms(conv: Conv2d, tile: OutputTile, context: Context) -> float:
    """Return the seconds in which V and M pass the memory of the device, with x and y."""
    moved = tile.points * tile.tiles(conv) * (conv.C + conv.K)
    read = tile.halo * conv.N * conv.C * conv.H * conv.W + conv.N * conv.K * conv.P * conv.Q
    return 1e-9 * ITEM * (PASSES * moved + read) / context.machine.memory_all


@dataclass(frozen=True, slots=True)
class GroupedExplanation:
    """The tiles, the product, and where the predicted time goes."""

    request: ExplainRequest
    plan: GroupedWinograd

    @property
    def nest(self) -> None:
        return None

    def render(self, width: int | None = None) -> str:
        plan, context = self.plan, self.request.context
        whole = replace(self.request, context=replace(context, threads=context.target.cores))
        v, sums = plan.sizes
        rows = [
            ("tiles", f"{plan.tiles} of {plan.tile.outputs} outputs"),
            ("products", f"{plan.points} of {plan.tiles} x {plan.problem.C} x {plan.problem.K}"),
            ("by", str(plan.product.schedule)),
            ("V and M", f"{ITEM * v} and {ITEM * sums} bytes"),
            ("transforms", time_text(_transforms(plan.problem, plan.tile, context))),
        ]
        return whole.render(predict(plan, context), {"Winograd": pairs(rows, width)}, width) + "\n"

    def members(self) -> dict[str, Any]:
        """Return the explanation as JSON members; times are in seconds, sizes in bytes."""
        plan, context = self.plan, self.request.context
        return {
            **self.request.members(predict(plan, context)),
            "tiles": plan.tiles, "points": plan.points, "product": str(plan.product.schedule),
        }  # fmt: skip
