"""C functions that rearrange operands: weights into panels, a tile of A into a padded box."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.codegen import ctree as c
from polysci.codegen import interface
from polysci.errors import UnsupportedError
from polysci.numerics.dtypes import DTYPES
from polysci.space.group_views import shift_of
from polysci.space.packed_copy import ALIGNMENT
from polysci.space.resolve import Plan


def packed_bytes(plan: Plan) -> int:
    """Of what a call takes for B: of panels packed ahead, or of B as it lies."""
    w = plan.contraction.w
    return w.bytes * prod(w.shape) if plan.contraction.packs_b else panel_bytes(plan)


def panel_bytes(plan: Plan) -> int:
    """Of panels; behind those of whole numbers stand the offsets and what x holds for 0."""
    tail = 4 * (channels(plan) + 1) if plan.precision.integer else 0
    return offsets_at(plan) + tail if tail else plan.compute.bytes * plan.packed_size


def offsets_at(plan: Plan) -> int:
    """Byte at which the offsets start: a cache line of their own."""
    return -(-plan.compute.bytes * plan.packed_size // ALIGNMENT) * ALIGNMENT


def channels(plan: Plan) -> int:
    """Positions of the result that have a bias of their own."""
    out = plan.contraction.out
    axis = next(i for i, affine in enumerate(out.index) if affine.coef(plan.panel_dim))
    return out.shape[axis]


def weights_function(symbol: str, plan: Plan, strides: tuple[int, ...]) -> c.Generable:
    """``void SYMBOL_pack_weights(w, packed)``: KCRS to panels, and for whole numbers the offsets.

    Panels are [group][column panel][k block][taps][words of k][columns][word]; columns beyond the
    extent and what a word lacks are filled with zeros. Those of rotated groups are [column panel]
    [taps][shifts][columns][word], with swapped factors [row panel][k block][k][taps][rows].
    """
    if plan.contraction.packs_b:
        return _plain_copy(symbol, plan)
    body: list[c.Generable] = []
    if str(plan.precision) != "f32":
        body.append(c.Statement("ps_b *restrict to = packed"))
    body.append(_panels(plan, strides))
    if plan.precision.integer:
        body += _offsets(plan, strides)
    restrict = ("w", "packed") if str(plan.precision) == "f32" else ("w",)
    head = interface.function("pack_weights", plan.precision).head(symbol, restrict=restrict)
    return c.function(head, body)


def _weight(
    plan: Plan,
    strides: tuple[int, ...],
    column: str,
    depth: str,
    joined: str | None = None,
    stacked: str | None = None,
) -> tuple[str, list[str]]:
    """The C text of one weight, and what must hold for it to exist.

    With a ``joined`` tap ``depth`` counts on from each of its values to the next; of a ``stacked``
    one it is that of element e of a word.
    """
    offset = plan.contraction.w.offset(strides)
    around = [*(d.name for d in plan.groups), *(tap for tap in plan.taps if tap != joined)]
    terms = [str(offset.const)] if offset.const else []
    value = {dim: c.variable(dim) for dim in around}
    if stacked:
        value[stacked] = f"({value[stacked]} + e)"
    terms += [f"{offset.coef(dim)} * {value[dim]}" for dim in around if offset.coef(dim)]
    shift, real = shift_of(plan.contraction), list[str]()
    if shift:  # the channel's weight for the column that shift `depth` stands for
        terms.append(f"{offset.coef(plan.column)} * (({column}) ^ {depth})")
        terms.append(f"{offset.coef(shift.name)} * (({column}) % {shift.extent})")
        return f"w[{' + '.join(terms)}]", real
    terms.append(f"{offset.coef(plan.panel_dim)} * ({column})")
    if plan.depth and joined:
        whole = plan.extent(plan.depth)
        terms.append(f"{offset.coef(joined)} * (({depth}) / {whole})")
        depth = f"({depth}) % {whole}"
    if plan.depth and plan.merged > 1:  # zeros where a column meets another group's depth
        columns, deep = (
            plan.extent(plan.column) // plan.merged,
            plan.extent(plan.depth) // plan.merged,
        )
        terms.append(f"{offset.coef(plan.depth)} * (({depth}) % {deep})")
        real.append(f"({column}) / {columns} == ({depth}) / {deep}")
    elif plan.depth:
        terms.append(f"{offset.coef(plan.depth)} * ({depth})")
    return f"w[{' + '.join(terms)}]", real


def _plain_copy(symbol: str, plan: Plan) -> c.Generable:
    """``SYMBOL_pack_weights`` where calls pack B themselves: they take it as it lies."""
    head = interface.function("pack_weights", plan.precision).head(symbol)
    copy = c.Statement("((char *)packed)[i] = ((const char *)w)[i]")
    loop = c.loop("int64_t i = 0", f"i < {packed_bytes(plan)}", "++i", c.Block([copy]))
    return c.function(head, [loop])


def panel_count(plan: Plan) -> int:
    """Parts of packed B that threads share: blocks of the reduction of every column panel."""
    columns = -(-plan.extent(plan.column) // plan.tile[plan.column])
    return prod(d.extent for d in plan.groups) * columns * _depth_blocks(plan)


def _depth_blocks(plan: Plan) -> int:
    return -(-plan.extent(plan.depth) // plan.tile[plan.depth]) if plan.depth else 1


def panels_function(symbol: str, plan: Plan, strides: tuple[int, ...]) -> c.Generable:
    """``static void SYMBOL_pack_b(w, panels, first, last)``: the parts first..last-1 of packed B.

    Where each part starts follows from its number, so that threads may share them.
    """
    b, to = plan.contraction.b, "packed" if str(plan.precision) == "f32" else "to"
    column = c.variable(plan.column)
    blocks, tile = _depth_blocks(plan), plan.tile[plan.column]
    panels = -(-plan.extent(plan.column) // tile)
    lines = []
    if plan.depth:
        depth = c.variable(plan.depth)
        lines.append(f"const int64_t {depth} = part % {blocks} * {plan.tile[plan.depth]}")
    lines.append(f"const int64_t {column} = part / {blocks} % {panels} * {tile}")
    rest, start = f"part / {blocks * panels}", [f"{plan.reduction} * {column}"]
    size = plan.group_size
    for group in reversed(plan.groups):
        lines.append(f"const int64_t {c.variable(group.name)} = {rest} % {group.extent}")
        start.append(f"{size} * {c.variable(group.name)}")
        rest, size = f"{rest} / {group.extent}", size * group.extent
    if plan.depth:
        taps = prod(plan.extent(tap) for tap in plan.taps)
        start.append(f"{taps} * width * {c.variable(plan.depth)}")
    width, *inner = c.items(_panel(plan, strides))
    begin = c.Statement(f"ps_b *restrict {to} = panels + {' + '.join(start)}")
    body = c.Block([*map(c.Statement, lines), width, begin, *inner])
    w = f"const {DTYPES[b.dtype].c_type} *restrict w"
    head = f"static void {symbol}_pack_b({w}, ps_b *panels, int64_t first, int64_t last)"
    loop = c.loop("int64_t part = first", "part < last", "++part", body)
    return c.function(head, [loop])


def _panels(plan: Plan, strides: tuple[int, ...]) -> c.Generable:
    """Loops that write every element of B once, in order."""
    body = columns_loop(plan, strides, "0", str(plan.extent(plan.panel_dim)))
    for group in reversed(plan.groups):
        body = c.counting_loop(group.name, group.extent, body)
    return body


def columns_loop(plan: Plan, strides: tuple[int, ...], first: str, last: str) -> c.Generable:
    """The same for some columns of one group, ``first`` and ``last`` C texts."""
    width, *inner = c.items(_panel(plan, strides))
    body: c.Generable = c.Block(inner) if len(inner) > 1 else inner[0]
    if plan.depth:
        whole, step = _depth_steps(plan)
        body = c.counting_loop(plan.depth, whole, body, step=step)
    tile, block = plan.tile[plan.panel_dim], c.Block([width, body])
    return c.counting_loop(plan.panel_dim, last, block, step=tile, first=first)


def _depth_steps(plan: Plan) -> tuple[int, int]:
    """Steps of the reduction below the taps that are loops, in all and in one block."""
    assert plan.depth
    whole, step = plan.extent(plan.depth), plan.tile[plan.depth]
    if plan.joined:
        whole = step = whole * plan.extent(plan.joined)
    return whole, step


def _panel(plan: Plan, strides: tuple[int, ...]) -> c.Block:
    """What writes one block of the reduction of one column panel, after its width in elements."""
    panel, lanes = plan.panel_dim, plan.panel_lanes
    extent, tile = plan.extent(panel), plan.tile[panel]
    column, depth = c.variable(panel), plan.depth and c.variable(plan.depth)
    word, to = plan.compute.vnni_factor, "packed" if str(plan.precision) == "f32" else "to"
    joined, stacked = plan.joined, plan.stacked
    inside = "i" if word == 1 or stacked else "i + e"
    shift = shift_of(plan.contraction)
    below = "d" if shift else f"{depth} + {inside}"
    at = f"{column} + {'ps_column_at(j, width)' if plan.paired else 'j'}"
    weight, real = _weight(plan, strides, at, below, joined, stacked)
    real = [f"{at} < {extent}", *real]
    if stacked:
        real.append(f"{c.variable(stacked)} + e < {plan.extent(stacked)}")
    elif word > 1:
        real.append(f"{inside} < deep" if depth else "e == 0")
    zero = "0.0f" if to == "packed" else "0"
    weight = weight if to == "packed" else f"ps_b_of({weight})"
    value = f"{' && '.join(real)} ? {weight} : {zero}"
    body: c.Generable = c.Statement(f"*{to}++ = {value}")
    if word > 1:
        body = c.loop("int64_t e = 0", f"e < {word}", "++e", body)
    body = c.loop("int64_t j = 0", "j < width", "++j", body)
    around = [tap for tap in plan.taps if tap != joined]
    if plan.contraction.swapped:  # taps of a channel follow each other
        body = _tap_loops(plan, around, body)
        around = []
    if depth:
        update = "++i" if word == 1 else f"i += {word}"
        body = c.loop("int64_t i = 0", "i < deep", update, body)
    if shift:
        body = c.loop("int64_t d = 0", f"d < {shift.extent}", "++d", body)
    body = _tap_loops(plan, around, body)
    vectors = f"({extent} - {column} + {lanes - 1}) / {lanes} * {lanes}"
    whole_tile = -(-tile // lanes) * lanes
    width = f"const int64_t width = ps_least({vectors}, {whole_tile})"
    parts: list[c.Generable] = [c.Statement(width)]
    if plan.depth:
        whole, step = _depth_steps(plan)
        parts.append(c.Statement(f"const int64_t deep = ps_least({whole} - {depth}, {step})"))
    return c.Block([*parts, body])


def _tap_loops(plan: Plan, taps: Sequence[str], body: c.Generable) -> c.Generable:
    for tap in reversed(taps):
        step = plan.compute.vnni_factor if tap == plan.stacked else 1
        body = c.counting_loop(tap, plan.extent(tap), body, step=step)
    return body


def _offsets(plan: Plan, strides: tuple[int, ...]) -> list[c.Generable]:
    """Statements that write what x_zero adds to the sums of every channel, negated, and x_zero."""
    depth = plan.depth and c.variable(plan.depth)
    shift = shift_of(plan.contraction)
    if shift:  # column l gets from channel l ^ d what that channel's shift d is
        weight, real = _weight(plan, strides, f"{c.variable(plan.column)} ^ d", "d")
    else:
        weight, real = _weight(plan, strides, c.variable(plan.column), depth or "0")
    add = f"sum += {weight}"
    body: c.Generable = c.Statement(add)
    if real:
        body = c.when(" && ".join(real), body)
    if plan.depth:
        body = c.counting_loop(plan.depth, plan.extent(plan.depth), body)
    if shift:
        body = c.loop("int64_t d = 0", f"d < {shift.extent}", "++d", body)
    for tap in reversed(plan.taps):
        body = c.counting_loop(tap, plan.extent(tap), body)
    out = plan.contraction.out
    channel = next(affine for affine in out.index if affine.coef(plan.column))
    looped = {plan.column, *(group.name for group in plan.groups)}  # others have one position
    terms = [(dim, coef) for dim, coef in channel.terms if dim in looped]
    place = " + ".join(f"{coef} * {c.variable(dim)}" for dim, coef in terms)
    body = c.Block(
        [
            c.Statement("uint32_t sum = 0"),
            body,
            c.Statement(f"offset[{place}] = (int32_t)-((uint32_t)(x_zero + PS_FLIP) * sum)"),
        ]
    )
    body = c.counting_loop(plan.column, plan.extent(plan.column), body)
    for group in reversed(plan.groups):
        body = c.counting_loop(group.name, group.extent, body)
    return [
        c.Statement(f"int32_t *restrict offset = (int32_t *)((char *)packed + {offsets_at(plan)})"),
        body,
        c.Statement(f"offset[{channels(plan)}] = x_zero"),
    ]


def integer_arguments(plan: Plan) -> list[c.Generable]:
    """Statements of an entry: of whole numbers what packing left behind the weights, the scales."""
    if not plan.precision.integer:
        return []
    at = offsets_at(plan)
    lines = [
        f"args.offset = (const int32_t *)((const char *)packed + {at})",
        f"args.x_zero = args.offset[{channels(plan)}]",
    ]
    if plan.precision.scaled:
        limits = f"ps_limits(limits, clamp, to, {channels(plan)})"
        lines += ["args.to = to", "float limits[2]", f"args.clamp = {limits}"]
    return [c.Statement(line) for line in lines]


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
    body = [
        c.Statement(shape),
        *([c.Statement("(void)zero")] if plan.contraction.swapped else []),
        c.loop("int64_t row = first", "row < last", "++row", c.Block(copy)),
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
    constants = ", ".join(f".{key} = {value}" for key, value in fields.items())
    pitch = box.strides[outer[-1]] if outer else 0
    count = f"ps_least({box.extents[fast]}, {a.shape[fast]} - ({low[fast]}))"
    function = "ps_gather_image" if plan.contraction.swapped else "ps_pack_row"
    padding = "" if plan.contraction.swapped else f", {low[middle]}, {count}, zero"
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
