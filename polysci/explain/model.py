"""Everything that the model counts about one schedule of one contraction."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np

from polysci import footprint
from polysci.choose import choices
from polysci.contraction import Contraction
from polysci.explain.rivals import LEVELS, Rival, Terms, rivals, terms_of
from polysci.rank import Context
from polysci.schedule import Loop, Schedule
from polysci.scop import Scop


@dataclass(frozen=True, slots=True)
class Inside:
    """What lies inside one step of a schedule: extents, and bytes touched by one iteration.

    ``step`` is the loop or packing, empty for the whole nest; ``trips`` how often it runs in one
    iteration of what is around it.
    """

    step: str
    trips: int
    extents: tuple[tuple[str, int], ...]
    a: float
    b: float
    c: float

    @property
    def working_set(self) -> float:
        return self.a + self.b + self.c


@dataclass(frozen=True, slots=True)
class Flow:
    """Traffic into one cache level in bytes, beside the least that any schedule moves."""

    level: str
    size: int
    a: float
    b: float
    c: float
    kept: float
    bound: float

    @property
    def total(self) -> float:
        return self.a + self.b + self.c


@dataclass(frozen=True, slots=True)
class Explanation:
    """A schedule explained; times in seconds, sizes in bytes.

    ``origin`` says where the schedule comes from, ``measured`` is its time if it was ever run.
    """

    title: str
    scop: Scop
    contraction: Contraction
    machine: str
    threads: int
    flops: int
    schedule: Schedule
    origin: str
    measured: float | None
    peak: float
    terms: Terms
    inside: tuple[Inside, ...]
    flows: tuple[Flow, ...]
    rivals: tuple[Rival, ...]

    def to_json(self) -> dict[str, Any]:
        """The same as JSON members."""
        return {
            "title": self.title,
            "domain": str(self.scop.domain()),
            "reads": str(self.scop.reads()),
            "writes": str(self.scop.writes()),
            "dimensions": {d.name: {"extent": d.extent, "role": d.role} for d in self.dims},
            "roles": str(self.contraction),
            "machine": self.machine,
            "threads": self.threads,
            "flops": self.flops,
            "schedule": str(self.schedule),
            "origin": self.origin,
            "predicted_seconds": self.terms.seconds,
            "measured_seconds": self.measured,
            "peak_gflops": self.peak,
            "terms": asdict(self.terms),
            "inside": [asdict(one) | {"extents": dict(one.extents)} for one in self.inside],
            "traffic": [asdict(flow) | {"total": flow.total} for flow in self.flows],
            "rivals": [
                {
                    "differs_in": rival.trait,
                    "schedule": str(rival.schedule),
                    "predicted_seconds": rival.terms.seconds,
                    "why": rival.why,
                    "terms": asdict(rival.terms),
                }
                for rival in self.rivals
            ],
        }

    @property
    def dims(self) -> tuple[Any, ...]:
        return self.contraction.dims


def explain(
    title: str,
    scop: Scop,
    context: Context,
    plan: Schedule | None = None,
    *,
    origin: str = "given",
    measured: float | None = None,
    ranker: str = "traffic",
) -> Explanation:
    """Explain ``plan``, or the ranker's first choice.

    Raises SpecError for a schedule or ranker that does not exist and UnsupportedError where
    nothing fits.
    """
    roles = context.contraction
    if plan is None:
        plan, origin = choices(context, 1, ranker=ranker)[0].schedule, "estimate"
    plan.check({d.name: d.extent for d in roles.dims})
    terms = terms_of(context, plan)
    return Explanation(
        title, scop, roles, str(context.target), context.threads,
        2 * prod(d.extent for d in roles.dims), plan, origin, measured,
        context.machine.peak * context.threads, terms, _insides(roles, plan),
        _flows(context, terms), rivals(context, plan),
    )  # fmt: skip


def _insides(roles: Contraction, plan: Schedule) -> tuple[Inside, ...]:
    extents = {d.name: d.extent for d in roles.dims}
    found, depth, current = [_inside("", 1, roles, extents)], 0, extents
    for step in plan.steps:
        trips, depth = 1, depth + isinstance(step, Loop)
        if isinstance(step, Loop):
            trips = -(-current[step.dim] // step.step)
        current = plan.tile(extents, depth)
        found.append(_inside(str(step), trips, roles, current))
    return tuple(found)


def _inside(step: str, trips: int, roles: Contraction, tile: dict[str, int]) -> Inside:
    sizes = {name: np.full(1, float(size)) for name, size in tile.items()}
    a, b, c = (
        float(footprint.footprint(operand, sizes)[0]) * footprint.FLOAT
        for operand in (roles.a, roles.b, roles.out)
    )
    return Inside(step, trips, tuple(tile.items()), a, b, c)


def _flows(context: Context, terms: Terms) -> tuple[Flow, ...]:
    target = context.target
    sizes = (target.l1, target.l2, target.l3 // context.threads)
    return tuple(
        Flow(level, size, *traffic, footprint.load_bound_bytes(context.contraction, size))
        for level, size, traffic in zip(LEVELS, sizes, terms.levels, strict=True)
    )
