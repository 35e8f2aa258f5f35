"""From a Winograd schedule to C: transforms around one register tile, and the loops over blocks."""

from __future__ import annotations

from collections.abc import Mapping

from polysci.algorithms.algorithm import EmitOptions
from polysci.algorithms.winograd.plan import WinogradPlan
from polysci.codegen import Source, interface, openmp
from polysci.errors import SpecError, UnsupportedError
from polysci.numerics.dtypes import PRECISIONS
from polysci.target.header_sets import HeaderSet

HEADERS = ("winograd", "winograd_back")
Lines = list[str]
Strides = Mapping[str, tuple[int, ...]]


def emit(plan: WinogradPlan, options: EmitOptions) -> Source:
    """C source of a convolution under a Winograd schedule; the interface is every primitive's.

    Raises SpecError or UnsupportedError for options that do not fit.
    """
    symbol, schedule = options.symbol, plan.schedule
    if options.by_rows:
        raise UnsupportedError(f"schedule {schedule}: its outermost loop is over tiles, not rows")
    interface.check_symbol(symbol)
    if plan.threads < 1:
        raise SpecError(f"threads={plan.threads}: at least one thread is needed")
    unit, precision = HeaderSet(plan.kernel.isa), PRECISIONS["f32"]
    head = Source("", symbol, unit, schedule, precision, HEADERS)
    rows = [plan.kernel.rows, *plan.rests]
    parts = [
        [f"/* {symbol}: {schedule} */"],
        _shape(plan, symbol, options.strides),
        *(_tile(plan, symbol, count) for count in dict.fromkeys(rows)),
        _steps(plan, symbol),
        _multiply(plan, symbol),
        _block(plan, symbol),
        _sizes(plan, symbol),
        _entry(plan, symbol, options.joined),
    ]
    text = head.declarations + "\n".join("\n".join(part) + "\n" for part in parts)
    return Source(
        text, symbol, unit, schedule, precision, HEADERS,
        workspace=4 * plan.workspace, packed=4 * plan.packed,
    )  # fmt: skip


def _shape(plan: WinogradPlan, symbol: str, strides: Strides) -> Lines:
    """The constant that the transforms take."""
    conv = plan.problem
    fields = {
        "m": plan.m, "across": plan.across, "down": plan.down,
        "height": conv.H, "width": conv.W, "channels": conv.C,
        "top": conv.pad[0], "left": conv.pad[1], "p": conv.P, "q": conv.Q, "filters": conv.K,
        **_distances("x", strides.get("I") or conv.arrays()["I"][1]),
        **_distances("y", strides.get("O") or conv.arrays()["O"][1]),
        "v_point": plan.v_tiles * plan.v_tile, "v_tile": plan.v_tile,
        "m_point": plan.t * plan.m_tile, "m_tile": plan.m_tile,
        "block": plan.k, "cols": plan.kernel.cols,
    }  # fmt: skip
    constants = [f".{name} = {value}" for name, value in fields.items()]
    rows = [", ".join(constants[at : at + 5]) for at in range(0, len(constants), 5)]
    body = ",\n    ".join(rows)
    return [f"static const ps_winograd {symbol}_shape = {{\n    {body}}};"]


def _distances(letter: str, strides: tuple[int, ...]) -> dict[str, int]:
    image, channel, row, col = strides
    return {
        f"{letter}_image": image, f"{letter}_row": row, f"{letter}_col": col,
        f"{letter}_channel": channel,
    }  # fmt: skip


def _tile(plan: WinogradPlan, symbol: str, rows: int) -> Lines:
    """One register tile of one point: rows of tiles by columns of filters."""
    kernel, mask = plan.kernel, (1 << rows) - 1
    return [
        f"static PS_KERNEL void {symbol}_t{rows}(const float *v, const float *u, float *out)",
        "{",
        f"    static const ps_tile t = {{.rows = {rows}, .vecs = {kernel.vecs}, .wrap = {rows}, "
        f".lanes = {kernel.lanes},",
        f"        .a_inner = {plan.v_tile}, .c_inner = {plan.m_tile}, .c_col = 1}};",
        f"    ps_vec acc[{rows * kernel.vecs}];",
        "    ps_begin(acc, t, out, 0);",
        f"    ps_run(acc, t, {mask:#x}u, v, u, {plan.problem.C}, 1);",
        "    ps_end(acc, t, out, 0);",
        "}",
    ]


def _steps(plan: WinogradPlan, symbol: str) -> Lines:
    """The transforms, each a function of its own."""
    return [
        f"static PS_KERNEL void {symbol}_input(const float *x, float *v, int64_t t0, int64_t t1)",
        "{",
        f"    ps_winograd_input({symbol}_shape, x, v, t0, t1);",
        "}",
        f"static PS_KERNEL void {symbol}_output(const ps_args *g, const float *sums, int64_t t0,",
        "                                      int64_t t1, int64_t k0, int64_t count)",
        "{",
        f"    ps_winograd_output({symbol}_shape, g, sums, t0, t1, k0, count);",
        "}",
    ]


def _multiply(plan: WinogradPlan, symbol: str) -> Lines:
    """M = V U of one block, point by point."""
    kernel, channels = plan.kernel, plan.problem.C
    tail = [
        f"            if (tiles - row == {rest})\n"
        f"                {symbol}_t{rest}(a + row * {plan.v_tile}, u, c + row * {plan.m_tile});"
        for rest in plan.rests
    ]
    return [
        f"static PS_KERNEL void {symbol}_multiply(const float *v, const float *u, float *sums,",
        "                                        int64_t tiles, int64_t width)",
        "{",
        f"    for (int64_t point = 0; point < {plan.points}; ++point)",
        f"        for (int64_t k = 0; k < width; k += {kernel.cols}, "
        f"u += {channels * kernel.cols}) {{",
        f"            const float *a = v + point * {plan.v_tiles * plan.v_tile};",
        f"            float *c = sums + point * {plan.t * plan.m_tile} + k;",
        "            int64_t row = 0;",
        f"            for (; row + {kernel.rows} <= tiles; row += {kernel.rows})",
        f"                {symbol}_t{kernel.rows}(a + row * {plan.v_tile}, u, "
        f"c + row * {plan.m_tile});",
        *tail,
        "        }",
        "}",
    ]


def _block(plan: WinogradPlan, symbol: str) -> Lines:
    """Products of tiles t0.. by filters k0.., and what leaves them."""
    conv = plan.problem
    return [
        f"static PS_KERNEL void {symbol}_block(const ps_args *g, const float *v, float *sums,",
        "                                     int64_t t0, int64_t k0)",
        "{",
        f"    const int64_t t1 = ps_least({plan.tiles}, t0 + {plan.t});",
        f"    const int64_t width = ps_least({plan.k}, {plan.filters} - k0);",
        f"    {symbol}_multiply(v, g->packed + k0 * {plan.points * conv.C}, sums, t1 - t0, width);",
        f"    {symbol}_output(g, sums, t0, t1, k0, ps_least(width, {conv.K} - k0));",
        "}",
    ]


def _sizes(plan: WinogradPlan, symbol: str) -> Lines:
    return [
        f"int64_t {symbol}_workspace_size(void)",
        "{",
        f"    return {4 * plan.workspace};",
        "}",
        f"int64_t {symbol}_packed_size(void)",
        "{",
        f"    return {4 * plan.packed};",
        "}",
        f"void {symbol}_pack_weights(const float *restrict w, float *restrict packed)",
        "{",
        f"    ps_winograd_weights({symbol}_shape, w, packed);",
        "}",
    ]


def _entry(plan: WinogradPlan, symbol: str, joined: bool) -> Lines:
    copies = plan.teams if plan.fused else 1
    own = f" + {plan.v_size} * thread" if copies > 1 else ""
    body = [f"float *const v = (float *)workspace{own};"] if plan.fused else []
    body.append(f"float *const sums = (float *)workspace + {copies * plan.v_size}"
                + (f" + {plan.m_size} * thread;" if plan.teams > 1 else ";"))  # fmt: skip
    body += _loops(plan, symbol)
    lines = [
        f"int {symbol}(const float *x, const float *packed, float *y, const float *bias,",
        "        const float *residual, const float *clamp, void *workspace)",
        "{",
        "    if (!PS_CPU_OK())",
        "        return 1;",
        "    const ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias,\n"
        "                          .residual = residual, .clamp = clamp}, *const g = &args;",
    ]
    if not plan.fused:
        lines.append("    float *const v = (float *)workspace;")
        lines += _team(plan, _transform(plan, symbol), joined=joined, last=False)
    return [*lines, *_team(plan, body, joined=joined, last=True), "    return 0;", "}"]


def _transform(plan: WinogradPlan, symbol: str) -> Lines:
    """All of V before the loops; threads share it."""
    if plan.teams == 1:
        return [f"{symbol}_input(x, v, 0, {plan.tiles});"]
    return [
        f"const int64_t t0 = {plan.tiles} * thread / {plan.teams};",
        f"const int64_t t1 = {plan.tiles} * (thread + 1) / {plan.teams};",
        f"{symbol}_input(x, v + t0 * {plan.v_tile}, t0, t1);",
    ]


def _team(plan: WinogradPlan, body: Lines, *, joined: bool, last: bool) -> Lines:
    """Statements once a thread; serial without OpenMP."""
    if plan.teams == 1:
        return [f"    {line}" for line in body]
    return [
        *openmp.guard(openmp.team(plan.teams, joined=joined, last=last)),
        f"    for (int64_t thread = 0; thread < {plan.teams}; ++thread) {{",
        *(f"        {line}" for line in body),
        "    }",
    ]


def _loops(plan: WinogradPlan, symbol: str) -> Lines:
    """Loops over blocks, the parallel ones as one loop over tasks."""
    counts = {"t": -(-plan.tiles // plan.t), "k": -(-plan.filters // plan.k)}
    steps = {"t": plan.t, "k": plan.k}
    loops = list(plan.schedule.loops)
    shared = len(plan.schedule.parallel) if plan.teams > 1 else 0
    lines, depth = list[str](), 0
    if shared:
        total, below = 1, 1
        for loop in loops[:shared]:
            total *= counts[loop.dim]
        lines += [
            f"for (int64_t task = {total} * thread / {plan.teams}; "
            f"task < {total} * (thread + 1) / {plan.teams}; ++task) {{"
        ]
        for loop in reversed(loops[:shared]):
            at = f"task / {below} % {counts[loop.dim]} * {steps[loop.dim]}"
            lines.insert(1, f"    const int64_t {loop.dim}0 = {at};")
            below *= counts[loop.dim]
        depth = 1
    missing = [dim for dim in "tk" if dim not in {loop.dim for loop in loops}]
    inner = [loop.dim for loop in loops[shared:]]
    origin = {dim: "0" if dim in missing else f"{dim}0" for dim in "tk"}
    transform = (
        f"{symbol}_input(x, v, {origin['t']}, ps_least({plan.tiles}, {origin['t']} + {plan.t}));"
    )
    if plan.fused and "t" not in inner:
        lines.append("    " * depth + transform)
    limits = {"t": plan.tiles, "k": plan.filters}
    for dim in inner:
        lines.append(
            "    " * depth
            + f"for (int64_t {dim}0 = 0; {dim}0 < {limits[dim]}; {dim}0 += {steps[dim]}) {{"
        )
        depth += 1
        if plan.fused and dim == "t":
            lines.append("    " * depth + transform)
    whole = "v" if plan.fused or origin["t"] == "0" else f"v + t0 * {plan.v_tile}"
    lines.append(
        "    " * depth + f"{symbol}_block(g, {whole}, sums, {origin['t']}, {origin['k']});"
    )
    lines += ["    " * at + "}" for at in reversed(range(depth))]
    return lines
