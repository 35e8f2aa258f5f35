"""The passes that a program goes through before its layers have schedules, in their order.

Row fusion needs the layers' schedules and comes later, in ``retune``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from polysci.lower.choice import candidates
from polysci.ops.problem import Problem
from polysci.program.passes.branches import place_branches
from polysci.program.passes.common_factors import take_out_factors
from polysci.program.passes.concat import concat_in_place
from polysci.program.passes.fused_updates import AUTO, StepGains, fuse_updates
from polysci.program.passes.fusion import Fusion, fuse_loops
from polysci.program.passes.in_place import replace_in_place
from polysci.program.passes.layouts import with_dtype, with_orders
from polysci.program.passes.partial_sums import split_sums
from polysci.program.stages import Program
from polysci.target.machine import Machine
from polysci.target.target import Target
from polysci.tune.context import context_of


@dataclass(frozen=True, slots=True)
class PassChoices:
    """Where passes decide otherwise than their costs say: names of tensors.

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
    """What passes depend on: the element type between layers, the machine, choices."""

    dtype: str
    target: Target
    machine: Machine
    choices: PassChoices = AS_COSTS_SAY

    def predict(self, problem: Problem) -> float:
        """Return the predicted seconds of a problem's best schedule on one thread."""
        context = context_of(problem, 1, self.target, machine=self.machine)
        return candidates(problem, context, 1)[0].seconds


# A pass returns the changed program and the fusions that it considered.
Pass = Callable[[Program, PassContext], tuple[Program, tuple[Fusion, ...]]]

PASSES: Mapping[str, Pass] = MappingProxyType(
    {
        "branches": lambda program, _: (place_branches(program), ()),
        "fuse loops": lambda program, context: fuse_loops(program, context.choices.apart),
        "element types": lambda program, context: (with_dtype(program, context.dtype), ()),
        "fused updates": lambda program, context: fuse_updates(
            program,
            context.choices.update,
            StepGains(context.target, context.machine, context.predict),
            context.choices.updates,
        ),
        "axis orders": lambda program, context: (
            with_orders(program, context.machine, context.choices.turned),
            (),
        ),
        "common factors": lambda program, _: (take_out_factors(program), ()),
        "partial sums": lambda program, _: (split_sums(program), ()),
        "concat in place": lambda program, _: (program, concat_in_place(program)),
        "updates": lambda program, _: (replace_in_place(program), ()),
    }
)


def run_passes(
    program: Program, context: PassContext, skip: Container[str] = ()
) -> tuple[Program, tuple[Fusion, ...]]:
    """The program after all PASSES but those in ``skip``, and every fusion considered."""
    fusions: tuple[Fusion, ...] = ()
    for name, run in PASSES.items():
        if name not in skip:
            program, considered = run(program, context)
            fusions += considered
    return program, fusions
