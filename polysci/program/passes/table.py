"""The passes of programs, in their order: to places in memory, then with the layers' schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from polysci.cost.networks import StageCosts
from polysci.ops.problem import Problem
from polysci.program.passes.arena import order_for_memory
from polysci.program.passes.arguments import whole_tensors
from polysci.program.passes.branches import place_branches
from polysci.program.passes.buffers import PlacedProgram, place_buffers
from polysci.program.passes.concat import concat_in_place
from polysci.program.passes.fused_updates import AUTO, UpdatePredictions, fuse_updates
from polysci.program.passes.fusion import fuse_loops, join_loops
from polysci.program.passes.in_place import replace_in_place
from polysci.program.passes.layouts import with_dtype, with_orders
from polysci.program.passes.row import Considered, Pass, PassWatch, plain, run_table
from polysci.program.passes.row_fusion import FusionVerdict, Setting, fuse_rows
from polysci.program.passes.sums import split_sums, take_out_factors
from polysci.program.passes.weights_ahead import with_weights_ahead
from polysci.program.passes.weights_in_place import with_weights_in_place
from polysci.program.stages import Program
from polysci.target.machine import Machine
from polysci.target.target import Target


@dataclass(frozen=True, slots=True)
class PassChoices:
    """The tensors, by name, of which passes decide otherwise than their costs say.

    Those ``apart`` are not fused into the loops that read them, those ``turned`` have the other
    order of axes, those in ``no_rows`` do not lie inside a row fusion, those in ``updates`` are
    summed by steps where the costs prefer one product, or the other way. ``update`` says it of all.
    """

    apart: frozenset[str] = frozenset()
    turned: frozenset[str] = frozenset()
    no_rows: frozenset[str] = frozenset()
    updates: frozenset[str] = frozenset()
    update: str = AUTO


AS_COSTS_SAY: Final = PassChoices()


@dataclass(frozen=True, slots=True)
class PassContext:
    """Everything but the program that passes depend on.

    ``dtype`` is the element type between layers; ``predict`` returns the seconds of a problem's
    best schedule on one thread. ``fuse``: loops are fused; ``optimize``: for speed, or memory.
    """

    dtype: str
    target: Target
    machine: Machine
    predict: Callable[[Problem], float]
    choices: PassChoices = AS_COSTS_SAY
    fuse: bool = True
    optimize: str = "speed"


@dataclass(frozen=True, slots=True)
class ScheduleContext:
    """The layers' schedules, and by tensor whether it is to lie inside a row fusion."""

    setting: Setting
    decided: Mapping[str, FusionVerdict] = field(default_factory=lambda: MappingProxyType({}))


def _fuse_updates(program: Program, context: PassContext) -> tuple[Program, tuple[Considered, ...]]:
    if program.resizes:  # products of steps would sum over as many as are the most
        return program, ()
    costs = StageCosts(context.machine, context.target)
    predictions = UpdatePredictions(costs, context.predict)
    return fuse_updates(program, context.choices.update, predictions, context.choices.updates)


def _fuse_rows(
    placed: PlacedProgram, context: ScheduleContext
) -> tuple[PlacedProgram, tuple[Considered, ...]]:
    if placed.program.resizes:  # rows that end at a size have no rings
        return placed, ()
    space = fuse_rows(placed, context.setting, context.decided)
    return space.divide(), space.considered()


# From a program to a placed program.
PROGRAM_PASSES: Final[tuple[Pass, ...]] = (
    plain("branches", "a side of a choice runs where it is taken", place_branches),
    Pass("fuse loops", "loops move into their readers and makers",
         lambda program, context: fuse_loops(
             program, context.choices.apart | whole_tensors(program)
         ) if context.fuse else (program, ())),
    Pass("element types", "layers and tensors in bf16, if asked for",
         lambda program, context: (with_dtype(program, context.dtype), ())),
    Pass("fused updates", "steps sum gradients of their weights",
         _fuse_updates),
    Pass("axis orders", "channels last where layers gain by it",
         lambda program, context: (with_orders(program, context.choices.turned), ())),
    plain("common factors", "factors of all terms of a sum leave it",
          take_out_factors),
    plain("partial sums", "long sums of few results become sums of sums",
          lambda program: program if program.resizes else split_sums(program)),
    Pass("concat in place", "parts are written where the whole lies",
         lambda program, _: (program, concat_in_place(program))),
    plain("updates", "what replaces an input is written over it", replace_in_place),
    Pass("stage order", "the order that takes least memory, if asked for",
         lambda program, context: (order_for_memory(program)
                                   if context.optimize == "memory" else program, ())),
    plain("buffers", "every tensor gets its place in a buffer", place_buffers),
    plain("weights ahead", "weights of steps are packed before them",
          with_weights_ahead),
    plain("weights in place", "stacked products of few rows copy no factor",
          with_weights_in_place),
)  # fmt: skip
# Of a placed program whose layers have schedules.
SCHEDULED_PASSES: Final[tuple[Pass, ...]] = (
    Pass("row fusion", "stages run together, some rows at a time",
         lambda placed, context: _fuse_rows(placed, context)),
    Pass("joint loops", "loops over the same elements become one",
         lambda placed, _: join_loops(placed)),
)  # fmt: skip


def run_passes(
    program: Program, context: PassContext, watch: PassWatch | None = None
) -> tuple[PlacedProgram, tuple[Considered, ...]]:
    """Return the placed program that PROGRAM_PASSES make, and what was considered."""
    placed, fusions = run_table(PROGRAM_PASSES, program, context, watch)
    assert isinstance(placed, PlacedProgram)
    return placed, fusions


def program_before(name: str, program: Program, context: PassContext) -> Program:
    """Return the program that the pass of this name takes."""
    names = [row.name for row in PROGRAM_PASSES]
    changed, _ = run_table(PROGRAM_PASSES[: names.index(name)], program, context)
    assert isinstance(changed, Program)
    return changed


def run_scheduled_passes(
    placed: PlacedProgram, context: ScheduleContext, watch: PassWatch | None = None
) -> tuple[PlacedProgram, tuple[Considered, ...]]:
    """Return the placed program that SCHEDULED_PASSES make, and what was considered."""
    changed: Any
    changed, fusions = run_table(SCHEDULED_PASSES, placed, context, watch)
    assert isinstance(changed, PlacedProgram)
    return changed, fusions
