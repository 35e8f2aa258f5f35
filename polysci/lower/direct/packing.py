"""C functions that copy a tile of A into a padded box."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.errors import UnsupportedError
from polysci.printers import ctree as c
from polysci.space.resolve import Plan


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


def box_function(name: str, plan: Plan, strides: tuple[int, ...]) -> c.Generable:
    """``static void name(x, box, zero, first, last, origins...)``: copy rows first..last-1."""
    if plan.box is None:
        raise UnsupportedError(f"{plan.schedule} packs nothing")
    image = plan.contraction.image
    shape, copy = _image_copy(plan, strides) if image else _row_copy(plan, strides)
    parameters = ["int64_t first", "int64_t last"]
    parameters += [f"int64_t {c.variable(dim)}" for dim in box_origins(plan)]
    head = ", ".join(["const ps_x *restrict x", "ps_a *restrict box", "ps_a zero", *parameters])
    rows = c.loop("int64_t row = first", "row < last", "++row", c.Block(copy))
    body = [
        c.Statement(shape),
        *([c.Statement("(void)zero")] if plan.contraction.swapped or plan.box.word > 1 else []),
        rows,
    ]
    return c.function(f"static PS_KERNEL void {name}({head})", body)


def _source_row(
    plan: Plan, strides: tuple[int, ...], outer: Sequence[int]
) -> tuple[list[c.Generable], str, str]:
    """Where row ``row`` of the box lies on the axes ``outer``: C that declares it, what must hold
    for x to have it, and its address in x.
    """
    box, a = plan.box, plan.copied
    assert box
    lines: list[c.Generable] = []
    rest = "row"
    for axis in reversed(outer):
        extent, step = box.extents[axis], box.steps[axis]
        low = _low(plan, axis)
        lines.append(c.Statement(f"const int64_t at{axis}_ = {low} + {rest} % {extent} * {step}"))
        rest = f"{rest} / {extent}"
    real = [f"at{axis}_ >= 0 && at{axis}_ < {a.shape[axis]}" for axis in outer]
    terms = [f"{strides[axis]} * at{axis}_" for axis in outer]
    return lines, " && ".join(real) or "1", " + ".join(["x", *terms])


def _row_copy(plan: Plan, strides: tuple[int, ...]) -> tuple[str, list[c.Generable]]:
    """The shape of a row of pixels, and what copies it or gathers a whole image."""
    box, a = plan.box, plan.copied
    assert box
    *outer, middle, fast = box.order
    low = {axis: _low(plan, axis) for axis in (middle, fast)}
    lines, real, source = _source_row(plan, strides, outer)
    source += f" + {strides[fast]} * ({low[fast]})"
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
    constants = ", ".join(f".{key} = {value}" for key, value in fields.items())
    pitch = box.strides[outer[-1]] if outer else 0
    count = f"ps_least({box.extents[fast]}, {a.shape[fast]} - ({low[fast]}))"
    function = "ps_gather_image" if plan.contraction.swapped else "ps_pack_row"
    padding = "" if plan.contraction.swapped else f", {low[middle]}, {count}, zero"
    if box.word > 1:
        function, padding = "ps_pack_pairs", f", {low[middle]}, {count}"
    lines += [
        c.Statement(f"const ps_x *from = {real} ? {source} : 0"),
        c.Statement(f"{function}(box + row * {pitch}, from, shape{padding})"),
    ]
    return f"static const ps_row shape = {{{constants}}}", lines


def _image_copy(plan: Plan, strides: tuple[int, ...]) -> tuple[str, list[c.Generable]]:
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
    constants = ", ".join(f".{key} = {value}" for key, value in fields.items())
    to = f"box + row * {box.strides[outer[-1]]}"
    place = f"{_low(plan, along)}, {box.extents[along]}"
    copy = c.Statement(f"ps_copy_image({to}, {source}, shape, {place})")
    lines.append(c.when(real, copy))
    return f"static const ps_image shape = {{{constants}}}", lines


def _low(plan: Plan, axis: int) -> str:
    """Smallest source index of an axis that the tile at the given origins reads."""
    affine = plan.copied.index[axis]
    dims = [dim for dim in box_origins(plan) if affine.coef(dim)]
    terms = [f"{affine.coef(dim)} * {c.variable(dim)}" for dim in dims]
    return " + ".join([*terms, str(affine.const)])
