"""Layers as calls of primitives: symbols, strides, pointers, and the order with its barriers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Self

import numpy as np

from polysci.cost.estimate import Context
from polysci.cost.group_fusion import HeldTile
from polysci.cost.shortlist import as_family
from polysci.cost.traffic import compute_bound
from polysci.errors import PolysciError, UnsupportedError
from polysci.loop_ir.interface import Role
from polysci.loop_ir.nodes import Invoke, Team, Value
from polysci.lower.algorithm import SYMBOL, EmitOptions
from polysci.lower.lowering import LoweredPrimitive, lower_problem
from polysci.lower.mapped.algorithm import MappedGroups, work_of
from polysci.lower.mapped.held import held_schedule, tiles_of
from polysci.lower.mapped.plan import kernels_of
from polysci.lower.registry import algorithm_of
from polysci.numerics.arrays import Array, round_up
from polysci.ops.matmul import Matmul
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.polyhedral.tile_schedule import Loop
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.operands import (
    Images,
    images_of,
    operands_of,
    row_dim,
    rows_of_part,
)
from polysci.program.passes.row_fusion import RowCode
from polysci.program.passes.thread_shares import SHARED, ThreadShares
from polysci.program.passes.variation import Variation
from polysci.program.passes.weights_ahead import keeps_weights
from polysci.program.stages import LayerStage, Program, RowFusion, members_of
from polysci.space.directives import Private, Stream
from polysci.space.schedule import Schedule
from polysci.target.microkernels import find

Strides = dict[str, tuple[int, ...]]
Spot = tuple[int, int]  # position of a stage, and inside one that is made of several
HEAD = 64  # elements that are compared first


@dataclass(frozen=True, slots=True)
class LayerCall:
    """A layer, the code that computes it, and where its packed weights are.

    ``packed_at`` is None for weights that are computed. ``shared``: its threads share the work;
    else one of them does all.
    """

    layer: LayerStage
    source: LoweredPrimitive
    schedule: Schedule
    packed_at: int | None
    shared: bool

    @property
    def packs(self) -> bool:
        """Return whether weights are packed on every run, before calls; other calls read them."""
        return self.packed_at is None and not model_of(self.layer.problem)[1].packs_b

    def invoke(self, role: Role, operands: Mapping[str, Value]) -> Invoke:
        """Return the call of a function of the layer's code; operands by parameter."""
        row = next(row for row in self.source.functions if row.role == role)
        return row.invoke(self.source.symbol, operands)


def calls_of(
    placed: PlacedProgram,
    schedules: Mapping[str, Schedule],
    name: str,
    threads: int,
    team: Team = Team.OPENMP,
    shares: ThreadShares = SHARED,
    layers: SharedLayers | None = None,
) -> dict[Spot, LayerCall]:
    """Return calls by position of the stage, and inside it; layers share code and its symbol.

    ``layers`` are those of other programs of the same library.
    """
    calls: dict[Spot, LayerCall] = {}
    layers = layers or SharedLayers()
    sources, constants = layers.sources, placed.program.constants
    variation = Variation(placed)
    for spot, layer, height in _spots(placed.program):
        several = 1 if height or shares.one_thread(spot[0]) else threads
        schedule = schedules[layer.problem.key]
        code = LayerCode.of(layer, placed, schedule, height, alone=several < threads)
        if ends := variation.layer(layer).ends:
            code = replace(code, ends=tuple(ends))
        key = code.key
        if key not in sources:
            sources[key] = code.lower(f"{name}_l{len(sources)}", several, team)
        source = sources[key]
        fixed = layer.weights in placed.program.constants and not layer.stack
        shared = several > 1 and bool(code.schedule.parallel)
        at = layers.place(layer, source, constants[layer.weights]) if fixed else None
        own = replace(layer, problem=code.problem, copies=code.copies)
        calls[spot] = LayerCall(own, source, code.schedule, at, shared)
    return calls


@dataclass(frozen=True, slots=True)
class LayerCode:
    """All that the code of a layer depends on in its program; passes ask ``refuse_code`` first.

    ``fused``: it computes some rows at a time, in one thread. ``copies`` say where its parts lie,
    as those of ``LayerStage`` do; there the images of a batch are parts, too. ``ends`` are
    dimensions that end at a size that a run is told.
    """

    problem: Problem
    schedule: Schedule
    strides: Strides
    adds: bool
    fused: bool
    copies: tuple[tuple[int, int, int], ...] = ()
    ends: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, layer: LayerStage, placed: PlacedProgram, schedule: Schedule, height: int = 0,
        *, alone: bool = False,
    ) -> Self:  # fmt: skip
        """Take a layer under its schedule; ``alone``: one of several threads calls it.

        In a row fusion it makes ``height`` rows at a time, of one product of a stack or one image.
        Raises UnsupportedError for a schedule that cannot.
        """
        schedule, problem = plain(schedule), layer.problem
        strides, adds = strides_of(layer, placed), adds_to_y(layer, placed)
        copies = layer.copies
        if height:
            rows = placed.rows_of(layer.output)
            row = row_dim(layer, rows) if rows else ""
            if in_groups(schedule):
                images = images_of(layer, rows) if rows else None
                schedule = by_groups(problem, schedule, strides, row, height, images)
                return cls(problem, schedule, strides, adds=False, fused=False)
            if rows and not layer.stack and rows_of_part(layer, layer.y, rows):
                schedule, problem = of_one_image(schedule, problem)
                copies = image_copies(layer, placed)
            extents = {dim.name: dim.extent for dim in model_of(problem)[1].dims}
            height = min(height, extents.get(row, height))
            schedule, problem = by_rows(schedule, row, height), packed_before(problem)
        elif alone:
            schedule = serial(schedule)
        return cls(problem, schedule, strides, adds, bool(height), copies)

    @property
    def key(self) -> tuple[str, ...]:
        """Layers of the same key share code."""
        texts = f"{self.fused} {self.adds} {self.ends}", repr(sorted(self.strides.items()))
        return (self.problem.key, str(self.schedule), *texts)

    def lower(self, symbol: str, threads: int, team: Team) -> LoweredPrimitive:
        """Return the loop IR, for so many threads. Raises as ``lower_problem`` does."""
        own = Team.OWN if self.fused else team  # a thread of the fusion's calls it alone
        options = EmitOptions(symbol, self.strides, own, self.fused, self.adds, ends=self.ends)
        return lower_problem(self.problem, self.schedule, threads, options)


def packed_before(problem: Problem) -> Problem:
    """Return the problem whose second operand is packed before a call; others as they are."""
    if not isinstance(problem, Matmul) or problem.constant:
        return problem
    return problem.with_(constant="a" if problem.w_is_a else "b")


def refuse_code(
    layer: LayerStage, placed: PlacedProgram, schedule: Schedule, height: int = 0,
    known: dict[tuple[str, ...], str] | None = None,
) -> str:  # fmt: skip
    """Return why there is no code of a layer as it stands in a program; empty where there is.

    In a row fusion it makes ``height`` rows at a time.
    What it refuses no pass may choose: it asks the code itself, so that they cannot disagree.
    ``known`` holds what was asked before, by the key of the code.
    """
    try:
        code = LayerCode.of(layer, placed, schedule, height)
    except PolysciError as error:
        return str(error)
    known = {} if known is None else known
    if code.key not in known:
        known[code.key] = _refusal_of(code)
    return known[code.key]


def _refusal_of(code: LayerCode) -> str:
    try:
        code.lower(SYMBOL, 1, Team.OWN)
    except PolysciError as error:
        return str(error)
    return ""


def price_rows(
    layer: LayerStage, placed: PlacedProgram, schedule: Schedule, height: int,
    predict: Callable[[Problem, Schedule], RowCode],
) -> RowCode | str:  # fmt: skip
    """Return what is predicted of a layer's code that makes ``height`` rows at a time.

    Or why there is no such code. ``predict`` is ``predict_rows`` in some context.
    """
    try:
        code = LayerCode.of(layer, placed, schedule, height)
        one, count = predict(code.problem, code.schedule), max(1, len(code.copies))
        return replace(one, seconds=count * one.seconds, least=count * one.least)
    except PolysciError as error:
        return str(error)


def predict_rows(problem: Problem, schedule: Schedule, context: Context) -> RowCode:
    """Return what is predicted of a schedule that goes by rows, which threads share.

    Raises PolysciError where it has no code.
    """
    outer, *inner = schedule.nest
    assert isinstance(outer, Loop)
    shared = schedule.with_nest((replace(outer, parallel=context.threads > 1), *inner))
    seconds = algorithm_of(schedule).predict_seconds(problem, context, shared)
    least = 0.0  # of an algorithm that sums otherwise than the contraction says
    if schedule.transform is None:
        least = float(compute_bound(*as_family(context, schedule))[0]) / context.threads
    return RowCode(outer.step, seconds, least)


def predict_tiles(problem: Problem, schedule: Schedule, context: Context) -> RowCode:
    """Return what is predicted of a schedule by which groups make rows; they make as many as asked.

    Raises PolysciError where it has no code.
    """
    plan = MappedGroups().resolve(problem, schedule, 1)
    work = work_of(plan, context.machine)
    tile = HeldTile(work, context, plan.rows, plan.row_count, tiles_of(plan, 1), plan.packed_bytes)
    peak = context.machine.peak * work.speed * plan.word * context.target.cores
    least = 1e-9 * problem.flops / peak
    return RowCode(1, work.seconds(context), least, tile)


def packed_once(calls: Iterable[LayerCall]) -> list[LayerCall]:
    """The calls whose weights are packed ahead, one for each place; layers may share weights."""
    places: dict[int, LayerCall] = {}
    for call in calls:
        if call.packed_at is not None:
            places.setdefault(call.packed_at, call)
    return [*places.values()]


def packed_ahead(placed: PlacedProgram, at: int, calls: Mapping[Spot, LayerCall]) -> list[Spot]:
    """The layers of a repeated stage whose weights are computed, but before all steps."""
    stage = placed.program.stages[at]
    return [
        spot
        for spot, call in calls.items()
        if spot[0] == at
        and call.packs
        and not call.layer.copies
        and keeps_weights(placed, stage, call.layer)
    ]


@dataclass(slots=True)
class SharedLayers:
    """Code of layers by what it depends on, and where packed weights are, ``size`` bytes in all.

    Layers whose weights are equal and packed alike share them.
    """

    sources: dict[tuple[str, ...], LoweredPrimitive] = field(default_factory=dict)
    size: int = 0
    places: dict[tuple[str, ...], list[tuple[Array, int]]] = field(default_factory=dict)

    def place(self, layer: LayerStage, source: LoweredPrimitive, weights: Array) -> int:
        """Return how many bytes lie before the packed weights of a layer."""
        own = (source.key, source.packing) if source.packing else (
            layer.problem.key, str(source.schedule), str(layer.w)
        )  # fmt: skip
        others = self.places.setdefault((*own, f"{layer.x_zero} {source.packed}"), [])
        for array, at in others:
            if is_same(array, weights):
                return at
        others.append((weights, self.size))
        self.size += round_up(source.packed)
        return others[-1][1]


def is_same(array: Array, other: Array) -> bool:
    """Return whether the elements of two arrays are the same, in order."""
    if array is other:
        return True
    if (array.dtype, array.size) != (other.dtype, other.size):
        return False
    if not np.array_equal(array.flat[:HEAD], other.flat[:HEAD]):  # of both in order, copied
        return False
    return np.array_equal(array.reshape(-1), other.reshape(-1))


def _spots(program: Program) -> Iterator[tuple[Spot, LayerStage, int]]:
    """Yield every layer, where it stands, and the rows at a time of a row fusion; 0: in none."""
    for position, stage in enumerate(program.stages):
        for inside, member in enumerate(members_of(stage)):
            if isinstance(member, LayerStage):
                height = stage.height if isinstance(stage, RowFusion) else 0
                yield (position, inside), member, height


def serial(schedule: Schedule) -> Schedule:
    """Return a schedule for one thread; private copies stay, so that sums are the same."""
    if schedule.has(Private):
        return schedule
    steps = tuple(
        replace(step, parallel=False) if isinstance(step, Loop) else step for step in schedule.steps
    )
    return replace(schedule, steps=steps)


def by_rows(schedule: Schedule, row: str, height: int) -> Schedule:
    """Return a schedule with the loop over rows, ``row``, around all others, in one thread.

    It makes ``height`` rows at a time, or as many as the loop inside takes; what was packed once
    before all loops is packed once for each of its turns. Raises UnsupportedError where a call
    takes all rows.
    """
    if schedule.has(Private):
        raise UnsupportedError(f"schedule {schedule}: its private copies are of the whole result")
    schedule = serial(schedule)
    steps = schedule.nest
    rows = [step for step in steps if isinstance(step, Loop) and step.dim == row]
    if not rows:
        raise UnsupportedError(f"schedule {schedule}: no loop over rows")
    below = rows[1:] if steps[0] == rows[0] else rows
    unit = below[0].step if below else rows[0].step
    step = unit * max(1, height // unit)
    inner = [
        its for its in steps
        if its not in rows or (its in below and (its != below[0] or step != unit))
    ]  # fmt: skip
    tiles = [] if below or step == unit else [Loop(row, unit)]
    return schedule.with_nest((Loop(row, step), *inner, *tiles))


def of_one_image(schedule: Schedule, problem: Problem) -> tuple[Schedule, Problem]:
    """Return a schedule and a problem with a batch for one image of it."""
    batch = model_of(problem)[1].out.index[0].terms[0][0]
    nest = [step for step in schedule.nest if not (isinstance(step, Loop) and step.dim == batch)]
    return schedule.with_nest(tuple(nest)), problem.with_batch(1)


def image_copies(layer: LayerStage, placed: PlacedProgram) -> tuple[tuple[int, int, int], ...]:
    """Return how many elements x, weights and y of each image lie behind those of the first one."""
    values, places = placed.program.values, placed.places
    steps = (
        window.strides(values[window.tensor].shape, places[window.tensor].strides)
        for window in (layer.x, layer.y)
    )
    x, y = (strides[0] if strides else 0 for strides in steps)
    return tuple((x * image, 0, y * image) for image in range(layer.problem.x_shape[0]))


def in_groups(schedule: Schedule) -> bool:
    """Return whether groups of work-items of a schedule's device run several stages together."""
    return bool(kernels_of(find(schedule.kernel).isa, "f32"))


def by_groups(
    problem: Problem, schedule: Schedule, strides: Strides, row: str, height: int,
    images: Images | None,
) -> Schedule:  # fmt: skip
    """Return the schedule by which groups of the same device make ``height`` rows of a layer.

    With ``images`` rows are those of all images. Raises UnsupportedError where it has none.
    """
    _, roles, own = model_of(problem)
    outer = (row, images.dim if images else "")
    inner = [dim.extent for dim in roles.by_role("m") if dim.name not in outer]
    if row not in {dim.name for dim in roles.by_role("m")}:
        raise UnsupportedError(f"{problem}: its rows are no rows of a product")
    isa = find(schedule.kernel).isa
    return held_schedule(roles, {**own, **strides}, isa, height * prod(inner))


def plain(schedule: Schedule) -> Schedule:
    """Return a schedule without stores past the caches: the next layer reads the results."""
    return schedule.without(Stream)


def adds_to_y(layer: LayerStage, placed: PlacedProgram) -> bool:
    """Return whether the residual of a layer lies where its result does."""
    places = placed.places
    return bool(layer.residual) and places[layer.residual] == places[layer.output]


def refuse_schedule(key: str, schedule: Schedule, placed: PlacedProgram) -> str:
    """Return why a layer of a problem, by its key, has no code under a schedule; or nothing.

    A search knows the problem alone: its schedules have code where that says how arrays are stored.
    """
    layers = [layer for layer in placed.program.layers() if layer.problem.key == key]
    other = (own for own in layers if strides_of(own, placed) or adds_to_y(own, placed))
    refuse = partial(refuse_code, known={})
    return next(filter(None, (refuse(layer, placed, schedule) for layer in other)), "")


def packings_of(calls: Iterable[LayerCall]) -> dict[str, tuple[str, int]]:
    """Return how constant weights are packed, by name: the code of that, and columns of a panel."""
    return {
        call.layer.weights: (call.source.packing, find(call.schedule.kernel).cols)
        for call in calls
        if call.packed_at is not None
    }


def refuse_packing(
    key: str, schedule: Schedule, placed: PlacedProgram, packings: Mapping[str, tuple[str, int]]
) -> str:
    """Return why layers of a problem, by its key, may pack weights otherwise than other sizes do.

    ``packings`` is what ``packings_of`` returns for another size, if there is one. Empty where
    they do not. Parts of sums depend on a size, and would be packed apart.
    """
    lowered = dict[tuple[str, ...], str]()
    for layer in placed.program.layers():
        if layer.problem.key != key or layer.weights not in placed.program.constants:
            continue
        summed = {dim.name for dim in model_of(layer.problem)[1].by_role("k")}
        if any(loop.dim in summed for loop in schedule.loops):
            return f"schedule {schedule}: it packs weights for parts of sums"
        if layer.weights not in packings:
            continue
        packing, columns = packings[layer.weights]
        others = f"schedule {schedule}: other sizes pack weights otherwise"
        if find(schedule.kernel).cols != columns:
            return others
        code = LayerCode.of(layer, placed, schedule)
        if code.key not in lowered:
            lowered[code.key] = code.lower(SYMBOL, 1, Team.OWN).packing
        if lowered[code.key] != packing:
            return others
    return ""


def strides_of(layer: LayerStage, placed: PlacedProgram) -> Strides:
    """Return the strides of a layer's arrays that are stored otherwise than its problem says."""
    x, w, y = operands_of(layer.problem)
    stored: Strides = {}
    for operand, window in ((x, layer.x), (y, layer.y)):
        value, place = placed.program.values[window.tensor], placed.places[window.tensor]
        steps = window.strides(value.shape, place.strides)
        if steps is None:
            raise PolysciError(f"{layer.name}: {operand.array} does not run on")
        strides = tuple(
            own if extent == 1 else step
            for own, extent, step in zip(operand.strides, operand.shape, steps, strict=True)
        )
        if strides != operand.strides:
            stored[operand.array] = strides
    if layer.w:
        stored[w.array] = layer.w
    return stored
