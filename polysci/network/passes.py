"""The table of all passes, from a graph to a placed program, and what each changes in a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import unified_diff
from functools import partial
from typing import Any, Final

from polysci.errors import SpecError
from polysci.graph.graph import Graph
from polysci.graph.operators.lower import lower
from polysci.graph.simplify import FIRST_PASSES, REPEATED_PASSES, simplify
from polysci.network.options import CompileOptions
from polysci.network.prepare import Model, prepare, read_graph, search_schedules
from polysci.network.retune import fuse_with_schedules
from polysci.program.passes import table
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.row import Pass, plain
from polysci.program.passes.table import PassChoices
from polysci.program.stages import Program
from polysci.text.suggestions import suggest

STAGES: Final = plain("stages", "nodes become layers, loops and views", lower)
CONTEXT: Final = 1  # lines around what changed


def all_passes() -> tuple[Pass, ...]:
    """Return all passes in the order in which a network goes through them."""
    ordered = (*FIRST_PASSES, *REPEATED_PASSES, STAGES)
    return (*ordered, *table.PROGRAM_PASSES, *table.SCHEDULED_PASSES)


@dataclass(frozen=True, slots=True)
class PassStep:
    """What a pass took and returned, as lines: of nodes, or of stages."""

    name: str
    text: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def count(self) -> int:
        """Nodes, or stages, that there are behind the pass."""
        return sum(not line.startswith(" ") for line in self.after)

    def difference(self) -> list[str]:
        """Return the lines that the pass removed (``-``) and added (``+``), with those around."""
        return [
            line for line in unified_diff(self.before, self.after, n=CONTEXT, lineterm="")
            if not line.startswith(("---", "+++"))
        ]  # fmt: skip


def trace_passes(
    model: Model | Graph, options: CompileOptions | None = None, **others: Any
) -> tuple[PassStep, ...]:
    """Return what every pass does to a model; ``options`` are those of ``compile_network``.

    Nothing is measured: the layers' schedules are those that the model of costs prefers. A pass
    that runs again is there again where it changed something. Raises as ``compile_network`` does.
    """
    asked = replace(options or CompileOptions(**others), level="estimate")
    plan = asked.plan()
    plan = replace(plan, machine=plan.rates)
    steps, seen = list[PassStep](), set[str]()

    def watch(row: Pass, before: object, after: object) -> None:
        step = PassStep(row.name, row.text, _lines(before), _lines(after))
        if step.changed or row.name not in seen:
            steps.append(step)
        seen.add(row.name)

    read = partial(read_graph, external=asked.external)
    graph = model if isinstance(model, Graph) else read(model, asked.dims, asked.values)
    graph = simplify(graph, watch)
    watch(STAGES, graph, lower(graph))
    prepared = prepare(
        graph, plan.dtype, fuse=asked.fuse, target=plan.target, optimize=asked.optimize,
        choices=PassChoices(update=asked.update), watch=watch,
    )  # fmt: skip
    results = search_schedules(prepared, plan, wisdom=asked.wisdom)
    schedules = {key: result.schedule for key, result in results.items()}
    seconds = {key: result.predicted for key, result in results.items()}
    fuse_with_schedules(prepared, schedules, seconds, plan, {}, watch)
    return tuple(steps)


def steps_named(steps: tuple[PassStep, ...], name: str) -> list[PassStep]:
    """Return the steps of one pass. Raises SpecError for a name that no pass has."""
    names = [row.name for row in all_passes()]
    if name not in names:
        raise SpecError(f"pass {name!r}: expected one of {', '.join(names)}{suggest(name, names)}")
    return [step for step in steps if step.name == name]


def _lines(subject: object) -> tuple[str, ...]:
    """Return a line for each node or stage; of a placed program with the buffers of results."""
    if isinstance(subject, PlacedProgram):
        return tuple(subject.lines())
    assert isinstance(subject, Graph | Program)
    return tuple(subject.lines())
