"""A schedule of residue classes resolved for one problem: the direct schedule of every class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from polysci.errors import SpecError, UnsupportedError
from polysci.ops.convolution_gradients import BackwardData
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.polyhedral import legality
from polysci.polyhedral.contraction import Strides
from polysci.polyhedral.residue_classes import ResidueClass, residue_classes, scatter_axes
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Ahead, Pack
from polysci.space.resolve import resolve as resolve_nest
from polysci.space.schedule import Schedule, Transform

NAME = "residues"


@dataclass(frozen=True, slots=True)
class ResiduePlan:
    """``schedules`` are those of ``classes``, one each, as direct ones.

    ``shared``: one loop over images is around all classes, and each takes some of its turns.
    """

    problem: Problem
    schedule: Schedule
    threads: int
    classes: tuple[ResidueClass, ...]
    schedules: tuple[Schedule, ...]
    strides: Strides
    shared: bool


def refusal(problem: Problem) -> str:
    """The rule that keeps a problem from residue classes; empty for none."""
    if not isinstance(problem, BackwardData):
        return "it scatters nothing: only gradients of inputs have residue classes"
    if not problem.scatters:
        return "strides of 1: a single residue class, which is the nest itself"
    return ""


@lru_cache(maxsize=64)
def classes_of(problem: Problem) -> tuple[ResidueClass, ...]:
    """All residue classes of a problem's nest; those with most products first."""
    scop, roles, _ = model_of(problem)
    return residue_classes(scop, roles)


def transform_of(problem: Problem) -> Transform:
    """``residues(2,2)``: the steps along the axes that are scattered."""
    return Transform(NAME, tuple(at.step for at in scatter_axes(model_of(problem)[1])))


def resolve(problem: Problem, schedule: Schedule, threads: int = 1) -> ResiduePlan:
    """The plan of a schedule, legal for every class.

    Raises IllegalScheduleError, SpecError or UnsupportedError where it does not fit.
    """
    if why := refusal(problem):
        raise UnsupportedError(f"{problem}: algorithm {NAME}: {why}")
    expected, strides = transform_of(problem), model_of(problem)[2]
    if schedule.transform is None or schedule.transform != expected:
        raise SpecError(f"schedule {schedule}: expected {expected}, the strides, in it")
    at = schedule.nest.index(schedule.transform)
    around, inside = schedule.nest[:at], schedule.nest[at + 1 :]
    if [step.dim if isinstance(step, Loop) else "" for step in around] not in ([], ["n"]):
        raise UnsupportedError(f"schedule {schedule}: only a loop over n may enclose {expected}")
    if around and any(isinstance(step, Loop) and step.parallel for step in inside):
        raise UnsupportedError(f"schedule {schedule}: loops inside {expected} cannot be parallel")
    classes = classes_of(problem)
    direct = schedule.with_nest((*around, *inside))
    direct.check(_most(classes))
    own = tuple(
        _fit(direct, residue, residue.strides(strides), keep=len(around)) for residue in classes
    )
    for residue, fitting in zip(classes, own, strict=True):
        legality.check(
            residue.scop, residue.contraction, fitting.tile_schedule(residue.contraction.extents)
        )
    return ResiduePlan(problem, schedule, threads, classes, own, strides, bool(around))


def _most(classes: tuple[ResidueClass, ...]) -> dict[str, int]:
    """The most iterations that any class has along each dimension."""
    most: dict[str, int] = {}
    for residue in classes:
        for dim in residue.contraction.dims:
            most[dim.name] = max(most.get(dim.name, 0), dim.extent)
    return most


def _fit(schedule: Schedule, residue: ResidueClass, strides: Strides, keep: int) -> Schedule:
    """The schedule for one class: steps no longer than it is, no loops that run once.

    The first ``keep`` loops stay. A class without taps packs nothing, but for kernels that need
    words of several channels; weights are prefetched where there are panels that follow.
    """
    steps = tuple(_steps(schedule, residue, keep))
    loops = tuple(step for step in steps if isinstance(step, Loop))
    bare = schedule.with_nest(steps).without(Ahead)
    first = schedule.with_nest(steps) if residue.taps else bare.with_nest(loops)
    fitting = [*dict.fromkeys([first, bare])]
    for other in fitting[:-1]:
        with suppress(UnsupportedError):
            resolve_nest(residue.contraction, strides, other)
            return other
    return fitting[-1]


def _steps(schedule: Schedule, residue: ResidueClass, keep: int) -> Iterator[Loop | Pack]:
    around = {dim.name: dim.extent for dim in residue.contraction.dims}
    for number, step in enumerate(schedule.nest):
        if isinstance(step, Pack):
            yield step
        elif isinstance(step, Loop):
            size = min(step.step, around[step.dim])
            if size < around[step.dim] or number < keep:
                yield replace(step, step=size)
            around[step.dim] = size


def representative(classes: tuple[ResidueClass, ...]) -> ResidueClass:
    """The class with most products, with as many pixels as any class has along each axis.

    All classes take the schedules that it takes.
    """
    most, first = _most(classes), classes[0]
    roles = first.contraction
    dims = tuple(replace(dim, extent=most[dim.name]) for dim in roles.dims)
    shapes = zip(*(residue.contraction.out.shape for residue in classes), strict=True)
    out = replace(roles.out, shape=tuple(map(max, shapes)))
    padded = any(residue.contraction.padded for residue in classes if residue.taps)
    return replace(first, contraction=replace(roles, dims=dims, out=out, padded=padded))
