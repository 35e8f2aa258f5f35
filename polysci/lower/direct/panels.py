"""C functions that rearrange weights, or B in every call, into panels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.numerics.dtypes import DTYPES
from polysci.printers import ctree as c
from polysci.printers import interface
from polysci.space.group_views import shift_of
from polysci.space.packed_copy import ALIGNMENT
from polysci.space.resolve import Plan


def packed_bytes(plan: Plan) -> int:
    """Of what a call takes for B: of panels packed ahead, or of B as it lies."""
    w = plan.contraction.w
    return w.bytes * prod(w.shape) if plan.contraction.packs_b else panel_bytes(plan)


def panel_bytes(plan: Plan) -> int:
    """Of panels; behind those of whole numbers stand the offsets and what x holds for 0."""
    tail = 4 * (plan.offsets + 1) if plan.precision.integer else 0
    return offsets_at(plan) + tail if tail else plan.compute.bytes * plan.packed_size


def offsets_at(plan: Plan) -> int:
    """Byte at which the offsets start: a cache line of their own."""
    return -(-plan.compute.bytes * plan.packed_size // ALIGNMENT) * ALIGNMENT


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
    if vector_copy(plan, strides):  # a call refuses such a CPU
        body.append(c.when("!PS_CPU_OK()", c.Statement("return")))
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
    taps: Sequence[str] | None = None,
) -> tuple[str, list[str]]:
    """The C text of one weight, and what must hold for it to exist.

    ``taps`` are those that loops around it count, by default all. With a ``joined`` tap ``depth``
    counts on from each of its values to the next; of a ``stacked`` one it is that of element e of
    a word.
    """
    offset = plan.contraction.w.offset(strides)
    looped = plan.taps if taps is None else taps
    around = [*(d.name for d in plan.groups), *(tap for tap in looped if tap != joined)]
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
    panel = plan.panel_dim
    extent, column = plan.extent(panel), c.variable(panel)
    depth = plan.depth and c.variable(plan.depth)
    if copy := vector_copy(plan, strides):
        return _by_vectors(plan, strides, copy)
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
    return c.Block([*_panel_sizes(plan), _tap_loops(plan, around, body)])


def _panel_sizes(plan: Plan) -> list[c.Generable]:
    """Declarations of a panel's width and of the depth of its block."""
    panel = plan.panel_dim
    parts: list[c.Generable] = [panel_width(plan, f"{plan.extent(panel)} - {c.variable(panel)}")]
    if plan.depth:
        whole, step = _depth_steps(plan)
        deep = f"ps_least({whole} - {c.variable(plan.depth)}, {step})"
        parts.append(c.Statement(f"const int64_t deep = {deep}"))
    return parts


def panel_width(plan: Plan, rest: str) -> c.Generable:
    """The declaration of a panel's width: of the ``rest`` of columns, in whole vectors."""
    lanes = plan.panel_lanes
    whole_tile = -(-plan.tile[plan.panel_dim] // lanes) * lanes
    vectors = f"({rest} + {lanes - 1}) / {lanes} * {lanes}"
    return c.Statement(f"const int64_t width = ps_least({vectors}, {whole_tile})")


def vector_copy(plan: Plan, strides: tuple[int, ...]) -> str:
    """The function of ``microkernels/panels.h`` that copies a block by vectors; empty: none does.

    It takes floats, and words of two bf16, of which columns or steps of the reduction are
    neighbours.
    """
    swapped, shift = plan.contraction.swapped, shift_of(plan.contraction)
    apart = plan.joined or plan.stacked or plan.paired or plan.merged > 1
    if not (plan.depth or plan.taps) or apart or swapped or shift or plan.panel_lanes == 1:
        return ""
    offset = plan.contraction.w.offset(strides)
    rows = offset.coef(plan.panel_dim) == 1
    turned = bool(plan.depth) and offset.coef(plan.depth or "") == 1
    if plan.compute.name == "bf16" and plan.depth and (rows or turned):
        return "ps_panel_pairs" if rows else "ps_panel_turned_pairs"
    if str(plan.precision) != "f32" or plan.compute.bytes != 4:
        return ""
    if rows:
        return "ps_panel_rows"
    return "ps_panel_turned" if turned else ""


def _by_vectors(plan: Plan, strides: tuple[int, ...], copy: str) -> c.Block:
    """``_panel`` by one of the functions that copy vectors."""
    column, depth = c.variable(plan.panel_dim), plan.depth and c.variable(plan.depth)
    offset = plan.contraction.w.offset(strides)
    taps, deep, deepest = plan.taps, "deep", plan.depth or ""
    if not plan.depth:  # the innermost reduction instead
        *around, deepest = plan.taps
        taps, deep = tuple(around), str(plan.extent(deepest))
    along = plan.panel_dim if "turned" in copy else deepest
    start, _ = _weight(plan, strides, column, depth or "0", taps=taps)
    real = f"{plan.extent(plan.panel_dim)} - {column}"
    to = "packed" if str(plan.precision) == "f32" else "to"
    whole = "(deep + 1) / 2 * 2" if copy.endswith("pairs") else deep
    call = f"{copy}({to}, &{start}, {offset.coef(along)}, {deep}, width, {real})"
    body = c.Block([c.Statement(call), c.Statement(f"{to} += {whole} * width")])
    return c.Block([*_panel_sizes(plan), _tap_loops(plan, taps, body)])


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
    add = f"sum = (uint32_t){weight} + sum"  # the other way round, gcc warns of a sign
    body: c.Generable = c.Statement(add)
    if real:
        body = c.when(" && ".join(real), body)
    if plan.depth:
        body = c.counting_loop(plan.depth, plan.extent(plan.depth), body)
    if shift:
        body = c.loop("int64_t d = 0", f"d < {shift.extent}", "++d", body)
    for tap in reversed(plan.taps):
        body = c.counting_loop(tap, plan.extent(tap), body)
    looped = {plan.column, *(group.name for group in plan.groups)}  # others have one position
    terms = [(dim, coef) for dim, coef in plan.channel.terms if dim in looped]
    terms += plan.batches.items()
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
        *clear_bytes(plan.compute.bytes * plan.packed_size, offsets_at(plan)),
        c.Statement(f"int32_t *restrict offset = (int32_t *)((char *)packed + {offsets_at(plan)})"),
        body,
        c.Statement(f"offset[{plan.offsets}] = x_zero"),
    ]


def clear_bytes(first: int, last: int) -> list[c.Generable]:
    """Statements that write zeros to bytes of packed memory which no call reads."""
    zero = c.Block([c.Statement("((char *)packed)[i] = 0")])
    return [c.loop(f"int64_t i = {first}", f"i < {last}", "++i", zero)] if first < last else []


def integer_arguments(plan: Plan) -> list[c.Generable]:
    """Statements of an entry: of whole numbers what packing left behind the weights, the scales."""
    if not plan.precision.integer:
        return []
    at = offsets_at(plan)
    lines = [
        f"args.offset = (const int32_t *)((const char *)packed + {at})",
        f"args.x_zero = args.offset[{plan.offsets}]",
    ]
    if plan.precision.scaled:
        limits = f"ps_limits(limits, clamp, to, {plan.channels})"
        lines += ["args.to = to", "_Alignas(64) float limits[2]", f"args.clamp = {limits}"]
    return [c.Statement(line) for line in lines]
