"""Functions that copy a tile of A into a padded box."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import Condition, Index, Variable, every, inside, least, linear
from polysci.loop_ir.nodes import (
    Address,
    Alternative,
    Buffer,
    Fields,
    If,
    Invoke,
    Let,
    LoopFunction,
    LoopStatement,
    Named,
    Point,
    ScalarParameter,
    Unused,
    block,
    loop,
)
from polysci.space.plan import Plan, iterator


def box_rows(plan: Plan) -> int:
    """Rows of the box, the unit in which threads share copying: all but the two fastest axes.

    With all taps of an image in a row of positions, all but the fastest.
    """
    if plan.box is None:
        return 0
    inner = 1 if plan.contraction.image else 2
    return prod(plan.box.extents[axis] for axis in plan.box.order[:-inner])


def box_origins(plan: Plan) -> list[str]:
    """Dimensions whose tile origin the packing function takes."""
    loops = plan.schedule.loops[: plan.schedule.pack_depth]
    dims = dict.fromkeys(loop.dim for loop in loops)
    return [dim for dim in dims if plan.copied.uses(dim)]


def box_function(name: str, plan: Plan, strides: tuple[int, ...]) -> LoopFunction:
    """Return ``name(x, box, zero, first, last, origins...)``, which copies rows first..last-1."""
    if plan.box is None:
        raise UnsupportedError(f"{plan.schedule} packs nothing")
    image = plan.contraction.image
    shape, copy = _image_copy(plan, strides) if image else _row_copy(plan, strides)
    parameters: tuple[Buffer | ScalarParameter, ...] = (
        Buffer("x", "ps_x", const=True, restrict=True),
        Buffer("box", "ps_a", restrict=True),
        ScalarParameter("zero", "ps_a"),
        ScalarParameter("first"),
        ScalarParameter("last"),
        *(ScalarParameter(iterator(dim).name) for dim in box_origins(plan)),
    )
    unused = [Unused(("zero",))] if plan.contraction.swapped or plan.box.word > 1 else []
    rows = loop("row", Variable("last"), *copy, start=Variable("first"))
    return LoopFunction(name, parameters, block(shape, *unused, rows))


def _source_row(
    plan: Plan, strides: tuple[int, ...], outer: Sequence[int]
) -> tuple[list[LoopStatement], Condition, Index]:
    """Return where row ``row`` of the box lies on the axes ``outer``.

    That is statements, the condition that x has it, and its offset in x.
    """
    box, a = plan.box, plan.copied
    assert box
    lines: list[LoopStatement] = []
    rest: Index = Variable("row")
    for axis in reversed(outer):
        extent, step = box.extents[axis], box.steps[axis]
        lines.append(Let(f"at{axis}_", _low(plan, axis) + rest % extent * step))
        rest = rest // extent
    places = {str(axis): Variable(f"at{axis}_") for axis in outer}
    real = every([part for axis in outer for part in inside(places[str(axis)], a.shape[axis])])
    return lines, real, linear({str(axis): strides[axis] for axis in outer}, places)


def _shape(kind: str, fields: dict[str, int]) -> Let:
    """The definition of ``shape``, a constant that copies take."""
    return Let("shape", Fields(tuple(fields.items())), kind, static=True)


def _row_copy(plan: Plan, strides: tuple[int, ...]) -> tuple[Let, list[LoopStatement]]:
    """The shape of a row of pixels, and what copies it or gathers a whole image."""
    box, a = plan.box, plan.copied
    assert box
    *outer, middle, fast = box.order
    low = {axis: _low(plan, axis) for axis in (middle, fast)}
    lines, real, source = _source_row(plan, strides, outer)
    source = source + strides[fast] * low[fast]
    fields = {
        "pixels": box.extents[middle],
        "channels": box.extents[fast],
        "step": box.steps[middle],
        "limit": a.shape[middle],
        "box_pixel": box.strides[middle],
        "x_pixel": strides[middle],
        "x_channel": strides[fast] * box.steps[fast],
    }
    if box.panel or box.word > 1:
        panel = box.panel or box.extents[fast]
        fields |= {"panel": panel, "panel_size": box.panel_size}
    pitch = box.strides[outer[-1]] if outer else 0
    count = least(box.extents[fast], a.shape[fast] - low[fast])
    to = Address(Named("box"), Variable("row") * pitch)
    function = "ps_pack_row"
    padding: tuple[Index | Named, ...] = (low[middle], count, Named("zero"))
    if plan.contraction.swapped:
        function, padding = "ps_gather_image", ()
    if box.word > 1:
        function, padding = "ps_pack_pairs", (low[middle], count)
    start = Alternative(real, Address(Named("x"), source), 0)
    lines += [
        Point(Buffer("from", "ps_x", const=True), start),
        Invoke(function, (to, Named("from"), Named("shape"), *padding)),
    ]
    return _shape("ps_row", fields), lines


def _image_copy(plan: Plan, strides: tuple[int, ...]) -> tuple[Let, list[LoopStatement]]:
    """The shape of an image, and what copies some of its positions, zeros between its rows."""
    box, image = plan.box, plan.contraction.image
    assert box and image
    *outer, along = box.order
    lines, real, source = _source_row(plan, strides, outer)
    fields = {
        "height": image.height,
        "width": image.width,
        "top": image.top,
        "left": image.left,
        "pitch": image.pitch,
        "x_row": strides[-2],
    }
    to = Address(Named("box"), Variable("row") * box.strides[outer[-1]])
    place = (_low(plan, along), box.extents[along])
    copy = Invoke("ps_copy_image", (to, Address(Named("x"), source), Named("shape"), *place))
    lines.append(If(real, block(copy)))
    return _shape("ps_image", fields), lines


def _low(plan: Plan, axis: int) -> Index:
    """Smallest source index of an axis that the tile at the given origins reads."""
    affine = plan.copied.index[axis]
    origins = {dim: iterator(dim) for dim in box_origins(plan)}
    return linear({dim: affine.coef(dim) for dim in origins}, origins, affine.const)
