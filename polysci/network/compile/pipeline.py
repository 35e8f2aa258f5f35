"""The passes that a program goes through before its layers have schedules, in their order.

Row fusion needs the layers' schedules and comes later, in ``retune``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from polysci.network.ir.stages import Program
from polysci.network.passes.branches import place_branches
from polysci.network.passes.concat import concat_in_place
from polysci.network.passes.fusion import Fusion, fuse_loops
from polysci.network.passes.in_place import replace_in_place
from polysci.network.passes.layouts import with_dtype, with_orders
from polysci.network.passes.partial_sums import split_sums
from polysci.target.machine import Machine


@dataclass(frozen=True, slots=True)
class PassContext:
    """What passes depend on: the element type between layers, and the machine's rates."""

    dtype: str
    machine: Machine


# A pass returns the changed program and the fusions that it considered.
Pass = Callable[[Program, PassContext], tuple[Program, tuple[Fusion, ...]]]

PASSES: Mapping[str, Pass] = MappingProxyType(
    {
        "branches": lambda program, _: (place_branches(program), ()),
        "fuse loops": lambda program, _: fuse_loops(program),
        "element types": lambda program, context: (with_dtype(program, context.dtype), ()),
        "axis orders": lambda program, context: (with_orders(program, context.machine), ()),
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
