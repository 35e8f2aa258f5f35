"""Residue classes as a row: what a gradient scatters by strides, as dense nests of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

from polysci import explain
from polysci.cost import Context, shortlist
from polysci.errors import PolysciError, SpecError, UnsupportedError
from polysci.explain import Explanation
from polysci.loop_ir import interface
from polysci.loop_ir.index import THREAD, Variable, as_index, least, thread_share
from polysci.loop_ir.nodes import (
    Address,
    Alternative,
    Invoke,
    LoopFunction,
    LoopModule,
    LoopStatement,
    Named,
    Return,
    Team,
    Unused,
    Value,
    block,
    loop,
    run_threads,
)
from polysci.lower.algorithm import (
    Algorithm,
    Candidate,
    EmitOptions,
    ErrorTerms,
    ExactInputs,
    ExplainRequest,
    SpaceLimits,
)
from polysci.lower.direct.nest import flush_denormals, lower_nest
from polysci.lower.direct.panels import clear_bytes
from polysci.lower.lowering import LoweredPrimitive
from polysci.lower.mapped import algorithm as groups
from polysci.lower.mapped.plan import form_of_part
from polysci.lower.mapped.plan import resolve as resolve_groups
from polysci.numerics.arrays import Doubles, round_up
from polysci.ops.convolution_gradients import BackwardData
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.polyhedral import legality
from polysci.polyhedral.contraction import Strides
from polysci.polyhedral.residue_classes import ResidueClass, residue_classes, scatter_axes
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Ahead, Pack
from polysci.space.resolve import resolve as resolve_nest
from polysci.space.schedule import Schedule, Step, Transform
from polysci.text.tables import columns, time_text

NAME = "residues"
SPARE = 2  # times as many of the class with most products: all classes decide which are the best


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
    if schedule.mapped:
        mapped = _map_classes(schedule.with_nest((*around, *inside)), classes, strides)
        return ResiduePlan(problem, schedule, threads, classes, mapped, strides, shared=False)
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


def _map_classes(
    schedule: Schedule, classes: tuple[ResidueClass, ...], strides: Strides
) -> tuple[Schedule, ...]:
    """Return the schedules by which groups compute each class, of the one for the largest class."""
    most = representative(classes)
    plan = resolve_groups(most.contraction, most.strides(strides), schedule)
    return tuple(form_of_part(plan, residue.contraction) for residue in classes)


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


class Residues(Algorithm[ResiduePlan]):
    """Gradients of the inputs of strided convolutions; ``residues(2,2)`` names the strides."""

    def exact_inputs(self, problem: Problem) -> ExactInputs:
        return ExactInputs()

    @property
    def languages(self) -> tuple[str, ...]:
        return ("c", "cuda", "opencl")

    def refusal(self, problem: Problem) -> str:
        return refusal(problem)

    def candidates(
        self, problem: Problem, context: Context, count: int | None, limits: SpaceLimits
    ) -> list[Candidate]:
        return rank_schedules(problem, context, count, limits)

    def predict_seconds(self, problem: Problem, context: Context, schedule: Schedule) -> float:
        return sum(predict_parts(resolve(problem, schedule, context.threads), context))

    def resolve(self, problem: Problem, schedule: Schedule, threads: int) -> ResiduePlan:
        return resolve(problem, schedule, threads)

    def lower(self, plan: ResiduePlan, options: EmitOptions) -> LoweredPrimitive:
        return lower_residues(plan, options)

    def error_terms(
        self, problem: Problem, numbers: Sequence[int], x: Doubles, w: Doubles
    ) -> ErrorTerms:
        """``|W| * |dY|``, and the most products in one sum."""
        return ErrorTerms(problem.reference(abs(x), abs(w)), problem.terms)

    def explain(self, request: ExplainRequest) -> ResiduesExplanation:
        return ResiduesExplanation.of(request)


def class_contexts(plan: ResiduePlan, context: Context) -> list[Context]:
    """Return the context in which rankers see each class."""
    return [
        replace(context, contraction=residue.contraction, strides=residue.strides(plan.strides))
        for residue in plan.classes
    ]


def predict_parts(plan: ResiduePlan, context: Context) -> list[float]:
    """Predicted seconds of each class; where a loop is around all, its threads start once."""
    if plan.schedule.mapped:
        contexts = zip(class_contexts(plan, context), plan.schedules, strict=True)
        return [groups.predict(own, schedule) for own, schedule in contexts]
    fork = context.fork_seconds if plan.shared and context.threads > 1 else 0.0
    parts = [
        shortlist.predict_seconds(own, schedule)
        for own, schedule in zip(class_contexts(plan, context), plan.schedules, strict=True)
    ]
    return [parts[0], *(max(0.0, part - fork) for part in parts[1:])]


def rank_schedules(
    problem: Problem, context: Context, count: int | None, limits: SpaceLimits
) -> list[Candidate]:
    """The ``count`` schedules of least predicted time (None: all), ties by their text.

    Raises UnsupportedError where nothing fits.
    """
    classes, word = classes_of(problem), transform_of(problem)
    most = representative(classes)
    strides = most.strides(context.strides)
    own = replace(context, contraction=most.contraction, strides=strides)
    every: dict[str, Candidate] = {}
    refused: PolysciError | None = None
    for choice in _rank_largest(own, count, limits):
        for steps in _orders(choice, word):
            schedule = choice.with_nest(steps)
            try:
                plan = resolve(problem, schedule, context.threads)
                every[str(schedule)] = Candidate(schedule, sum(predict_parts(plan, context)))
            except PolysciError as error:
                refused = refused or error
    if not every:
        raise UnsupportedError(f"{problem}: no schedule fits all residue classes: {refused}")
    ordered = sorted(every.values(), key=lambda own: (own.seconds, str(own.schedule)))
    return ordered if count is None else ordered[: count + limits.kinds]


def _rank_largest(context: Context, count: int | None, limits: SpaceLimits) -> Sequence[Schedule]:
    """Return the schedules of the class with most products, best first: more than ``count``."""
    if groups.maps(context):
        every = [candidate.schedule for candidate in groups.rank(context)]
        return every if count is None else every[: SPARE * count + limits.kinds]
    space: dict[str, Any] = {
        "ranker": limits.ranker,
        "tiles": limits.tiles,
        "blocks": limits.blocks,
    }
    ranked = (
        shortlist.rank_all(context, **space) if count is None
        else shortlist.choices(context, SPARE * count, kinds=limits.kinds, **space)
    )  # fmt: skip
    return [choice.schedule for choice in ranked]


def _orders(schedule: Schedule, word: Transform) -> Iterator[tuple[Step, ...]]:
    """Yield classes inside the loop over images, so that they share caches, and one by one."""
    first, rest = schedule.nest[:1], schedule.nest[1:]
    outer = next(iter(first), None)
    if isinstance(outer, Loop) and outer.dim == "n" and len(schedule.parallel) < 2:
        yield (outer, word, *rest)
    yield (word, *schedule.nest)


@dataclass(frozen=True, slots=True)
class ResiduesExplanation:
    """The classes with their predicted ``seconds``, and ``most``, that of most products.

    None: groups compute them.
    """

    request: ExplainRequest
    plan: ResiduePlan
    seconds: tuple[float, ...]
    most: Explanation | None

    @classmethod
    def of(cls, request: ExplainRequest) -> Self:
        """Explain the schedule of a request. Raises as ``resolve`` does."""
        plan = resolve(request.problem, request.schedule, request.context.threads)
        own = class_contexts(plan, request.context)[0]
        title, most = "The class with most products", None
        if not request.schedule.mapped:
            most = explain.account(title, plan.classes[0].scop, own, plan.schedules[0])
        return cls(request, plan, tuple(predict_parts(plan, request.context)), most)

    @property
    def nest(self) -> None:
        """The counts of a single nest: None, as there are several."""
        return None

    def render(self, width: int | None = None) -> str:
        classes = {"Residue classes": columns([*self._classes()], (0, 3))}
        head = self._whole.render(sum(self.seconds), classes, width)
        return f"{head}\n\n{explain.render(self.most, width)}" if self.most else f"{head}\n"

    @property
    def _whole(self) -> ExplainRequest:
        """The request; groups take all of a device."""
        request, context = self.request, self.request.context
        if not request.schedule.mapped:
            return request
        return replace(request, context=replace(context, threads=context.target.cores))

    def _classes(self) -> Iterator[tuple[str, ...]]:
        yield ("pixels", "of them", "taps", "schedule", "predicted")
        for residue, own, seconds in zip(
            self.plan.classes, self.plan.schedules, self.seconds, strict=True
        ):
            scattered = [axis for axis, step in enumerate(residue.steps) if step > 1]
            where = ", ".join(f"{residue.steps[axis]}i+{residue.first[axis]}" for axis in scattered)
            sizes = " x ".join(str(residue.contraction.out.shape[axis]) for axis in scattered)
            yield (where, sizes, str(residue.taps or "none: zeros"), str(own), time_text(seconds))

    def members(self) -> dict[str, Any]:
        """Return the explanation as JSON members; times are in seconds."""
        return {
            **self.request.members(sum(self.seconds)),
            "classes": [
                {"first": list(residue.first), "steps": list(residue.steps), "taps": residue.taps,
                 "schedule": str(own), "predicted": seconds}
                for residue, own, seconds in zip(
                    self.plan.classes, self.plan.schedules, self.seconds, strict=True
                )
            ],
            "most": explain.members(self.most) if self.most else None,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Part:
    """A class's source, and where its pixels, weights and workspace start; the latter in bytes."""

    source: LoweredPrimitive
    start: int
    packed: int
    workspace: int


def lower_residues(plan: ResiduePlan, options: EmitOptions) -> LoweredPrimitive:
    """Return a problem by residue classes; the interface is every primitive's.

    Raises SpecError or UnsupportedError for options that do not fit.
    """
    if options.by_rows:
        raise UnsupportedError(f"schedule {plan.schedule}: its classes share no outermost loop")
    interface.check_symbol(options.symbol)
    strides = {**plan.strides, **options.strides}
    parts = _parts(plan, options, strides)
    whole, pool = parts[0].source, options.team is Team.POOL
    copies = plan.threads if plan.shared and plan.schedule.parallel else 1
    own = max(round_up(part.source.workspace) for part in parts)
    ends = [part.workspace + part.source.workspace for part in parts]
    workspace = own * copies if plan.shared else max(ends)
    packed = parts[-1].packed + parts[-1].source.packed
    runs = _by_images(plan, parts, own, options.team) if plan.shared else _one_by_one(parts)
    bodies: dict[interface.Role, Sequence[LoopStatement]] = {
        "packed_size": [Return(packed)],
        "workspace_size": [Return(workspace)],
        "pack_weights": _packing(parts),
        "run": [
            *[Unused(("team",))] * (pool and copies == 1 and plan.shared),
            *runs,
            Return(interface.OK),
        ],
    }
    rows = reversed(interface.functions(whole.precision, team=pool))
    run, *others = (row.define(options.symbol, block(*bodies[row.role])) for row in rows)
    entries = [replace(run, comment=f"{options.symbol}: {plan.schedule}"), *others]
    local = (function for part in parts for function in _local(part))
    return replace(
        whole, module=LoopModule((*entries, *local)), symbol=options.symbol,
        schedule=plan.schedule, team=options.team, workspace=workspace, packed=packed,
        by_rows=False, columns=None, packing="",
    )  # fmt: skip


def _parts(plan: ResiduePlan, options: EmitOptions, strides: Strides) -> list[_Part]:
    """Return all classes; those that run one by one in a team have a workspace each."""
    parts, packed, workspace = list[_Part](), 0, 0
    inside = Team.OWN if plan.shared else options.team
    for number, (residue, schedule) in enumerate(zip(plan.classes, plan.schedules, strict=True)):
        symbol = f"{options.symbol}_residue{number}"
        own = replace(options, symbol=symbol, strides={}, team=inside, by_rows=plan.shared)
        threads = 1 if plan.shared else plan.threads
        source = _lower_part(residue, strides, schedule, threads, own)
        parts.append(_Part(source, residue.start(strides), packed, workspace))
        packed += round_up(source.packed)
        if inside is not Team.OWN:
            workspace += round_up(source.workspace)
    return parts


def _lower_part(
    residue: ResidueClass, strides: Strides, schedule: Schedule, threads: int, options: EmitOptions
) -> LoweredPrimitive:
    """Return the nest of a class: by groups of work-items, or by threads."""
    roles, own = residue.contraction, residue.strides(strides)
    if schedule.mapped:
        return groups.lower(resolve_groups(roles, own, schedule), options)
    return lower_nest(roles, own, schedule, threads, options)


def _packing(parts: Sequence[_Part]) -> list[LoopStatement]:
    """Return calls of the classes' functions, and zeros between what they write."""
    body: list[LoopStatement] = []
    for at, part in enumerate(parts):
        body.append(_call(part, "pack_weights", {}))
        if parts[at + 1 :]:
            body += clear_bytes(part.packed + part.source.packed, parts[at + 1].packed)
    return body


def _local(part: _Part) -> tuple[LoopFunction, ...]:
    """Return a class's functions, which other files do not see, those that call others last.

    Those of sizes are left out: they are numbers of the whole.
    """
    symbol = part.source.symbol
    sizes = {interface.function_name(role, symbol) for role in ("packed_size", "workspace_size")}
    functions = [row for row in part.source.module.functions.values() if row.name not in sizes]
    inlined = [
        replace(row, attributes=("static", "inline")) for row in functions if not row.attributes
    ]
    return (*(row for row in functions if row.attributes), *inlined)


def _call(part: _Part, role: interface.Role, more: Mapping[str, Value]) -> Invoke:
    """Return a call of a class's function: its operands are parts of those of the whole."""
    source = part.source
    row = next(function for function in source.functions if function.role == role)
    operands: dict[str, Value] = {
        **{name: Named(name) for name in row.names},
        "workspace": _place_in("workspace", part.workspace, "byte"),
        "packed": _place_in("packed", part.packed, "byte"),
        "y": Address(Named("y"), as_index(part.start)),
    }
    if str(source.precision) == "f32":
        operands["packed"] = _place_in("packed", part.packed // 4)
    if part.start:
        residual = Named("residual")
        operands["residual"] = Alternative(residual, Address(residual, as_index(part.start)), 0)
    return row.invoke(source.symbol, {**operands, **more})


def _place_in(name: str, at: int, dtype: str = "") -> Value:
    """Return a place in a buffer of the caller's; ``at`` counts elements of a type."""
    return Address(Named(name), as_index(at), dtype) if at else Named(name)


def _one_by_one(parts: Sequence[_Part]) -> list[LoopStatement]:
    """Return calls of all classes, whose loops threads share."""
    return [_call(part, "run", {}) for part in parts]


def _by_images(
    plan: ResiduePlan, parts: Sequence[_Part], own: int, team: Team
) -> list[LoopStatement]:
    """Return a loop over images around all classes, whose turns threads share."""
    outermost = plan.schedules[0].loops[0]
    images = plan.classes[0].contraction.extent(outermost.dim)
    several = plan.threads > 1 and outermost.parallel
    step, image = outermost.step, Variable("image")
    more: dict[str, Value] = {"first": image, "last": least(images, image + step)}
    more["workspace"] = Named("workspace")
    if several and own:
        more["workspace"] = Address(Named("workspace"), own * THREAD, "byte")
    calls = [_call(part, "run", more) for part in parts]
    if not several:
        return _flush([loop("image", images, *calls, step=step)], team)
    first, last = (at * step for at in thread_share(-(-images // step), plan.threads))
    tasks = loop("image", last, *calls, start=first, step=step)
    return [run_threads(plan.threads, _flush([tasks], team), last=True)]


def _flush(body: Sequence[LoopStatement], team: Team) -> list[LoopStatement]:
    """Return one thread's statements; a network flushes denormals itself."""
    return flush_denormals(body) if team is Team.OWN else [*body]
