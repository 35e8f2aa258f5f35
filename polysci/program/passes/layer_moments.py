"""Statistics of a batch normalisation by the layer that makes its input, while tiles are hot.

The layer writes moments of its results beside them (``codegen.extras``), by thread and image; what
read all results for their mean and variance joins these instead (Chan, Golub and LeVeque, 1983). It
needs the layers' schedules, and says where it gains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

from polysci.loop_ir.expressions import Expr, Load, Reduce, apply, axis, combine, constant
from polysci.lower.direct.extras import PLANES, images_in_row
from polysci.program.passes.buffers import BufferPlace, PlacedProgram
from polysci.program.passes.fusion import Fusion
from polysci.program.passes.relu_masks import Refuse
from polysci.program.stages import LayerStage, LoopStage, Stage, Value

Gain = Callable[[LayerStage, int], float]  # seconds that so many results of a layer save


def take_moments(
    placed: PlacedProgram, threads: int, refuse: Refuse, gain: Gain
) -> tuple[PlacedProgram, tuple[Fusion, ...]]:
    """The program with statistics by layers whose code has them and gains, and all considered."""
    considered = list[Fusion]()
    for x, names in placed.program.moments.items():
        makers = [stage for stage in placed.program.stages if x in stage.outputs]
        loops = [stage for stage in placed.program.stages if {*stage.outputs} & {*names}]
        layer = makers[0] if len(makers) == 1 else None
        if not isinstance(layer, LayerStage) or len(loops) != 2:
            continue
        if not all(isinstance(stage, LoopStage) for stage in loops):
            continue
        changed = _with_moments(placed, layer, names, threads)
        (counted,) = (it for it in changed.program.stages if x in it.outputs)
        assert isinstance(counted, LayerStage)
        refusal = "" if _is_whole(layer, placed) else "channels or images lie otherwise"
        refusal = refusal or refuse(counted, changed)
        value = placed.program.values[x]
        if not refusal and (seconds := gain(layer, value.size)) <= 0:
            refusal = f"a pass over its results takes {-seconds * 1e6:.2g} us less"
        considered.append(Fusion(loops[1].name, layer.name, x, value.bytes, refusal))
        placed = placed if refusal else changed
    return placed, tuple(considered)


def _is_whole(layer: LayerStage, placed: PlacedProgram) -> bool:
    """Whether a layer makes a tensor of its own, image by image, with channels second."""
    value, place = placed.program.values[layer.output], placed.places[layer.output]
    own = BufferPlace(layer.output, 0, value.strides, value.dtype)
    by_images = place.strides[0] * value.shape[0] == value.size
    return place == own and by_images and layer.y.axes[:2] == ((0,), (1,))


def _with_moments(
    placed: PlacedProgram, layer: LayerStage, names: Sequence[str], threads: int
) -> PlacedProgram:
    """The program in which a layer writes moments, and two tensors are made of these."""
    program, x, (mean, variance) = placed.program, layer.output, names
    images, channels, *_ = shape = program.values[x].shape
    rows = threads * -(-images // images_in_row(shape))
    moments = Value(f"{x}.moments", (rows, PLANES, channels))
    exact = Value(f"{x}.moments.mean", (channels,), "float64")
    count, minus, sums, squares = (
        apply("exact", Load(moments.name, (combine({"r0": 1}), constant(plane), axis(0))))
        for plane in range(PLANES)
    )
    share, middle = channels / program.values[x].size, Load(exact.name, (axis(0),))

    def total(*parts: Expr) -> Expr:
        body = reduce(lambda sum_, part: apply("add", sum_, part), parts)
        return apply("mul", Reduce("add", (("r0", rows),), body), share)

    apart = apply("add", minus, middle)
    moved = apply("mul", apart, apply("add", sums, sums))
    spread = total(apply("sub", squares, moved), apply("mul", count, apply("mul", apart, apart)))
    made = {mean: apply("real", middle), variance: apply("max", apply("real", spread), 0.0)}
    own = total(apply("sub", sums, apply("mul", count, minus)))
    stages = list[Stage]()
    for stage in program.stages:
        if stage is layer:
            stages.append(replace(layer, moments=moments.name))
            stages.append(LoopStage(f"{layer.name}, mean", exact.name, own))
        elif isinstance(stage, LoopStage) and stage.output in made:
            stages.append(replace(stage, expr=made[stage.output]))
        else:
            stages.append(stage)
    values = {**program.values, moments.name: moments, exact.name: exact}
    places = {it.name: BufferPlace(it.name, 0, it.strides, it.dtype) for it in (moments, exact)}
    changed = replace(program, values=values, stages=tuple(stages))
    return _drop_unread(PlacedProgram(changed, {**placed.places, **places}))


def _drop_unread(placed: PlacedProgram) -> PlacedProgram:
    """The program without loops whose results nothing reads, by whatever name."""
    program = placed.program
    read = {*program.border(), *(name for stage in program.stages for name in stage.inputs)}
    buffers = placed.buffers_of(read)
    kept = tuple(
        stage for stage in program.stages
        if not isinstance(stage, LoopStage)
        or buffers & placed.buffers_of(stage.outputs)
    )  # fmt: skip
    if len(kept) == len(program.stages):
        return placed
    return _drop_unread(replace(placed, program=replace(program, stages=kept)))
