"""C functions that rearrange operands: weights into panels, a tile of A into a padded box."""

from __future__ import annotations

from math import prod

from polysci.codegen import ctree as c
from polysci.errors import UnsupportedError
from polysci.plan import Plan


def weights_function(name: str, plan: Plan, strides: tuple[int, ...]) -> c.Generable:
    """``void name(w, packed)``: KCRS to [group][column panel][k block][taps][k][columns].

    Columns beyond the extent are filled with zeros up to whole vectors.
    """
    offset = plan.contraction.b.offset(strides)
    extent, tile, lanes = plan.extent(plan.column), plan.tile[plan.column], plan.kernel.lanes
    column, depth = c.variable(plan.column), plan.depth and c.variable(plan.depth)
    around = [*(d.name for d in plan.groups), *plan.taps]
    terms = [str(offset.const)] if offset.const else []
    terms += [f"{offset.coef(dim)} * {c.variable(dim)}" for dim in around if offset.coef(dim)]
    terms.append(f"{offset.coef(plan.column)} * ({column} + j)")
    real = f"{column} + j < {extent}"
    if plan.depth and plan.merged > 1:  # zeros where a column meets another group's depth
        columns, deep = extent // plan.merged, plan.extent(plan.depth) // plan.merged
        terms.append(f"{offset.coef(plan.depth)} * (({depth} + i) % {deep})")
        real += f" && ({column} + j) / {columns} == ({depth} + i) / {deep}"
    elif plan.depth:
        terms.append(f"{offset.coef(plan.depth)} * ({depth} + i)")
    value = f"{real} ? w[{' + '.join(terms)}] : 0.0f"
    body: c.Generable = c.loop(
        "int64_t j = 0", "j < width", "++j", c.Statement(f"*packed++ = {value}")
    )
    if depth:
        body = c.loop("int64_t i = 0", "i < deep", "++i", body)
    for tap in reversed(plan.taps):
        body = c.counted(tap, plan.extent(tap), body)
    if plan.depth:
        whole, step = plan.extent(plan.depth), plan.tile[plan.depth]
        length = f"const int64_t deep = ps_least({whole} - {depth}, {step})"
        body = c.counted(plan.depth, whole, c.Block([c.Statement(length), body]), step=step)
    vectors = f"({extent} - {column} + {lanes - 1}) / {lanes} * {lanes}"
    width = f"const int64_t width = ps_least({vectors}, {plan.columns_padded(tile)})"
    body = c.counted(plan.column, extent, c.Block([c.Statement(width), body]), step=tile)
    for group in reversed(plan.groups):
        body = c.counted(group.name, group.extent, body)
    head = f"void {name}(const float *restrict w, float *restrict packed)"
    return c.Collection([c.Line(head), c.Block([body])])


def box_rows(plan: Plan) -> int:
    """Rows of the box (all but the two fastest axes): the unit in which threads share copying."""
    if plan.box is None:
        return 0
    return prod(plan.box.extents[axis] for axis in plan.box.order[:-2])


def box_origins(plan: Plan) -> list[str]:
    """Dimensions whose tile origin the packing function takes."""
    loops = plan.schedule.loops[: plan.schedule.pack_depth]
    dims = dict.fromkeys(loop.dim for loop in loops)
    return [dim for dim in dims if plan.contraction.a.uses(dim)]


def box_function(name: str, plan: Plan, strides: tuple[int, ...]) -> c.Generable:
    """``static void name(x, box, first, last, origins...)``: copy rows first..last-1 of the box."""
    box, a = plan.box, plan.contraction.a
    if box is None:
        raise UnsupportedError(f"{plan.schedule} packs nothing")
    *outer, middle, fast = box.order
    low = {axis: _low(plan, axis) for axis in (*outer, middle, fast)}
    lines: list[c.Generable] = []
    rest = "row"
    for axis in reversed(outer):
        extent, step = box.extents[axis], box.steps[axis]
        lines.append(
            c.Statement(f"const int64_t at{axis}_ = {low[axis]} + {rest} % {extent} * {step}")
        )
        rest = f"{rest} / {extent}"
    real = [f"at{axis}_ >= 0 && at{axis}_ < {a.shape[axis]}" for axis in outer]
    terms = [f"{strides[axis]} * at{axis}_" for axis in outer]
    source = " + ".join(["x", *terms, f"{strides[fast]} * ({low[fast]})"])
    fields = {
        "pixels": box.extents[middle],
        "channels": box.extents[fast],
        "step": box.steps[middle],
        "limit": a.shape[middle],
        "box_pixel": box.strides[middle],
        "x_pixel": strides[middle],
        "x_channel": strides[fast],
    }
    constants = ", ".join(f".{key} = {value}" for key, value in fields.items())
    pitch = box.strides[outer[-1]] if outer else 0
    count = f"ps_least({box.extents[fast]}, {a.shape[fast]} - ({low[fast]}))"
    lines += [
        c.Statement(f"const float *from = {' && '.join(real) or '1'} ? {source} : 0"),
        c.Statement(f"ps_pack_row(box + row * {pitch}, from, shape, {low[middle]}, {count})"),
    ]
    parameters = ["int64_t first", "int64_t last"]
    parameters += [f"int64_t {c.variable(dim)}" for dim in box_origins(plan)]
    head = ", ".join(["const float *restrict x", "float *restrict box", *parameters])
    body = [
        c.Statement(f"static const ps_row shape = {{{constants}}}"),
        c.loop("int64_t row = first", "row < last", "++row", c.Block(lines)),
    ]
    return c.Collection([c.Line(f"static PS_KERNEL void {name}({head})"), c.Block(body)])


def _low(plan: Plan, axis: int) -> str:
    """Smallest source index of an axis that the tile at the given origins reads."""
    affine = plan.contraction.a.index[axis]
    dims = [dim for dim in box_origins(plan) if affine.coef(dim)]
    terms = [f"{affine.coef(dim)} * {c.variable(dim)}" for dim in dims]
    return " + ".join([*terms, str(affine.const)])
