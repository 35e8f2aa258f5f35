"""Layers as calls of primitives: symbols, strides, pointers, and the order with its barriers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from polysci.algorithms.lowering import emit, model_of
from polysci.codegen import Source
from polysci.errors import PolysciError, UnsupportedError
from polysci.network.ir.stages import LayerStage, Program, RowFusion, Window
from polysci.network.passes.buffers import BufferPlace, PlacedProgram, start_of, stretch
from polysci.numerics.arrays import round_up
from polysci.ops.conv2d import Conv2d
from polysci.polyhedral.schedule import Loop, Schedule

Strides = dict[str, tuple[int, ...]]
Spot = tuple[int, int]  # position of a stage, and inside a band
ROWS = "p"
LEAST_ROWS = 2  # of a band, where the schedule says nothing


@dataclass(frozen=True, slots=True)
class LayerCall:
    """A layer, the code that computes it, and where its packed weights are.

    ``packed_at`` is None for weights that are packed on every run. ``shared``: its threads share
    the work; else one of them does all.
    """

    layer: LayerStage
    source: Source
    schedule: Schedule
    packed_at: int | None
    shared: bool


def calls_of(
    placed: PlacedProgram, schedules: Mapping[str, Schedule], name: str, threads: int
) -> dict[Spot, LayerCall]:
    """By position of the stage, and inside a band; layers that share code share a symbol."""
    found: dict[Spot, LayerCall] = {}
    sources: dict[tuple[str, ...], Source] = {}
    at = 0
    for spot, layer, band in _spots(placed.program):
        schedule = plain(schedules[layer.problem.key])
        if band:
            schedule = by_rows(schedule)
        strides = strides_of(layer, placed)
        key = (layer.problem.key, str(schedule), str(band), repr(sorted(strides.items())))
        if key not in sources:
            sources[key] = emit(
                layer.problem, schedule, 1 if band else threads, f"{name}_l{len(sources)}",
                strides=strides, joined=not band, by_rows=band,
            )  # fmt: skip
        source = sources[key]
        fixed = layer.weights in placed.program.constants and not layer.stack
        shared = threads > 1 and bool(schedule.parallel)
        found[spot] = LayerCall(layer, source, schedule, at if fixed else None, shared)
        at += round_up(source.packed) if fixed else 0
    return found


def _spots(program: Program) -> Iterator[tuple[Spot, LayerStage, bool]]:
    """Every layer, where it stands, and whether that is inside a band."""
    for position, stage in enumerate(program.stages):
        if isinstance(stage, LayerStage):
            yield (position, 0), stage, False
        elif isinstance(stage, RowFusion):
            for inside, member in enumerate(stage.members):
                if isinstance(member, LayerStage):
                    yield (position, inside), member, True


def by_rows(schedule: Schedule) -> Schedule:
    """The same schedule with a loop over rows around all others, in one thread.

    What was packed once before all loops is packed once a band. Raises UnsupportedError where a
    call takes all rows.
    """
    steps = tuple(
        replace(step, parallel=False) if isinstance(step, Loop) else step for step in schedule.steps
    )
    loops = [step for step in steps if isinstance(step, Loop)]
    rows = [loop for loop in loops if loop.dim == ROWS]
    if not rows:
        raise UnsupportedError(f"schedule {schedule}: no loop over rows")
    first = steps[0]
    if isinstance(first, Loop) and first.dim == ROWS:
        return replace(schedule, steps=steps)
    inner = rows[0].step
    height = inner * max(1, -(-LEAST_ROWS // inner))
    outer = [step for step in steps if step != rows[0] or inner != height]
    return replace(schedule, steps=(Loop(ROWS, height), *outer))


def plain(schedule: Schedule) -> Schedule:
    """Without stores past the caches: the next layer reads what this one writes."""

    return replace(schedule, stream=False) if schedule.stream else schedule


def strides_of(layer: LayerStage, placed: PlacedProgram) -> Strides:
    """How the arrays of a layer are stored, where its problem does not say so."""
    _, _, own = model_of(layer.problem)
    found: Strides = {}
    for array, window, extents in (
        ("I", layer.x, (layer.problem.N, layer.problem.C, layer.problem.H, layer.problem.W)),
        ("O", layer.y, (layer.problem.N, layer.problem.K, layer.problem.P, layer.problem.Q)),
    ):
        value, place = placed.program.values[window.tensor], placed.places[window.tensor]
        given = stretch(window, value.shape, place.strides)
        if given is None:
            raise PolysciError(f"{layer.name}: {array} does not run on")
        usual = own[array]
        strides = tuple(usual[at] if extents[at] == 1 else given[at] for at in range(4))
        if strides != usual:
            found[array] = strides
    if layer.w:
        found["W"] = layer.w
    return found


def first_of(window: Window, place: BufferPlace) -> int:
    """Elements of the buffer before a window."""
    return place.first + start_of(window, place.strides)


def problems(program: Program) -> dict[str, Conv2d]:
    """The distinct problems of a program, by key, in order."""
    return {layer.problem.key: layer.problem for layer in reversed(program.layers())}
