"""From a Winograd schedule to C: transforms around one register tile, and the loops over blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polysci.errors import SpecError, UnsupportedError
from polysci.explain.comments import caches_text
from polysci.lower.algorithm import EmitOptions
from polysci.lower.direct import denormals
from polysci.lower.direct.activation_calls import activation_function, activation_headers
from polysci.lower.direct.emit import Source
from polysci.lower.winograd.plan import WinogradPlan
from polysci.numerics.dtypes import PRECISIONS
from polysci.printers import ctree as c
from polysci.printers import interface
from polysci.printers.sharing import share_threads
from polysci.printers.team import Team
from polysci.space.directives import Ahead
from polysci.target.header_sets import HeaderSet
from polysci.text.tables import bytes_text

HEADERS = ("winograd", "winograd_back")
Strides = Mapping[str, tuple[int, ...]]


def emit(plan: WinogradPlan, options: EmitOptions) -> Source:
    """C source of a convolution under a Winograd schedule; the interface is every primitive's.

    Raises SpecError or UnsupportedError for options that do not fit.
    """
    symbol, schedule = options.symbol, plan.schedule
    if options.by_rows:
        raise UnsupportedError(f"schedule {schedule}: its outermost loop is over tiles, not rows")
    if options.adds:
        raise UnsupportedError(f"schedule {schedule}: its epilogue does not add to y")
    interface.check_symbol(symbol)
    if plan.threads < 1:
        raise SpecError(f"threads={plan.threads}: at least one thread is needed")
    unit, precision = HeaderSet(plan.kernel.isa), PRECISIONS["f32"]
    pool = options.team is Team.POOL
    beside = (*HEADERS, *activation_headers(plan.problem.activation))
    head = Source("", symbol, unit, schedule, precision, beside, pool=pool)
    rows = [plan.kernel.rows, *plan.rests]
    parts = [
        _shape(plan, symbol, options.strides),
        c.Collection([c.Line(f"/* {symbol}: {schedule} */"), _entry(plan, symbol, options)]),
        _sizes(plan, symbol),
        *(_tile(plan, symbol, count) for count in dict.fromkeys(rows)),
        _steps(symbol, activation_function(plan.problem.activation) or "0"),
        _multiply(plan, symbol),
        _block(plan, symbol),
    ]
    text = head.declarations + "\n".join(c.text(part) + "\n" for part in parts)
    return Source(
        text, symbol, unit, schedule, precision, beside,
        workspace=4 * plan.workspace, packed=4 * plan.packed, pool=pool,
    )  # fmt: skip


def _shape(plan: WinogradPlan, symbol: str, strides: Strides) -> c.Generable:
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
    return c.Statement(f"static const ps_winograd {symbol}_shape = {{\n    {body}}}")


def _distances(letter: str, strides: tuple[int, ...]) -> dict[str, int]:
    image, channel, row, col = strides
    return {
        f"{letter}_image": image, f"{letter}_row": row, f"{letter}_col": col,
        f"{letter}_channel": channel,
    }  # fmt: skip


def _tile(plan: WinogradPlan, symbol: str, rows: int) -> c.Generable:
    """One register tile of one point: rows of tiles by columns of filters."""
    kernel, mask = plan.kernel, (1 << rows) - 1
    ahead = plan.schedule.has(Ahead)
    marks = f", .ahead = {plan.prefetch[0]}, .next = next" if ahead else ""
    shape = (
        f"{'' if ahead else 'static '}const ps_tile t = {{.rows = {rows}, .vecs = {kernel.vecs}, "
        f".wrap = {rows}, .lanes = {kernel.lanes},\n"
        f"        .a_inner = {plan.v_tile}, .c_inner = {plan.m_tile}, .c_col = 1{marks}}}"
    )
    steps = (
        "ps_begin(acc, t, out, 0)",
        f"ps_run(acc, t, {mask:#x}u, v, u, {plan.problem.C}, 1)",
        "ps_end(acc, t, out, 0)",
    )
    acc = c.local_array("ps_vec", "acc", rows * kernel.vecs)
    body = [c.Statement(shape), acc, *map(c.Statement, steps)]
    operands = "const float *v, const float *u, float *out" + ", int64_t next" * ahead
    head = f"static PS_KERNEL void {symbol}_t{rows}({operands})"
    return c.function(head, body)


def _steps(symbol: str, activation: str) -> c.Generable:
    """The transforms, each a function of its own."""
    return c.Collection([
        c.function(
            f"static PS_KERNEL void {symbol}_input"
            "(const float *x, float *v, int64_t t0, int64_t t1)",
            [c.Statement(f"ps_winograd_input({symbol}_shape, x, v, t0, t1)")],
        ),
        c.function(
            f"static PS_KERNEL void {symbol}_output"
            "(const ps_args *g, const float *sums, int64_t t0,\n"
            "                                      int64_t t1, int64_t k0, int64_t count)",
            [
                c.Statement(
                    f"ps_winograd_output({symbol}_shape, g, sums, t0, t1, k0, count, {activation})"
                )
            ],
        ),
    ])  # fmt: skip


def _multiply(plan: WinogradPlan, symbol: str) -> c.Generable:
    """M = V U of one block, point by point."""
    kernel = plan.kernel

    def tile(rows: int) -> c.Generable:
        operands = f"a + row * {plan.v_tile}, u, c + row * {plan.m_tile}{_next(plan)}"
        return c.Statement(f"{symbol}_t{rows}({operands})")

    columns = [
        c.Statement(f"const float *a = v + point * {plan.v_tiles * plan.v_tile}"),
        c.Statement(f"float *c = sums + point * {plan.t * plan.m_tile} + k"),
        c.Statement("int64_t row = 0"),
        c.loop("", f"row + {kernel.rows} <= tiles", f"row += {kernel.rows}", tile(kernel.rows)),
        *(c.when(f"tiles - row == {rest}", tile(rest)) for rest in plan.rests),
    ]
    step = f"k += {kernel.cols}, u += {plan.problem.C * kernel.cols}"
    points = c.loop(
        "int64_t point = 0", f"point < {plan.points}", "++point",
        c.loop("int64_t k = 0", "k < width", step, c.Block(columns)),
    )  # fmt: skip
    return c.function(
        f"static PS_KERNEL void {symbol}_multiply(const float *v, const float *u, float *sums,\n"
        "                                        int64_t tiles, int64_t width)",
        [points],
    )


def _next(plan: WinogradPlan) -> str:
    """The argument that says how far behind u the next panel's lines lie; 0: nothing new."""
    if not plan.schedule.has(Ahead):
        return ""
    lines, first, end = plan.prefetch
    start, rows = 4 * plan.problem.C * plan.kernel.cols, plan.kernel.rows
    number = f"(row / {rows} - {first})" if first else f"row / {rows}"
    place = f"{start} + {64 * lines} * {number}" if plan.calls > 1 else str(start)
    when = [f"row >= {first * rows}"] * (first > 0) + [f"row < {end * rows}"] * (end < plan.calls)
    return f", {' && '.join(when)} ? {place} : 0" if when else f", {place}"


def _block(plan: WinogradPlan, symbol: str) -> c.Generable:
    """Products of tiles t0.. by filters k0.., and what leaves them."""
    conv = plan.problem
    body = [
        f"const int64_t t1 = ps_least({plan.tiles}, t0 + {plan.t})",
        f"const int64_t width = ps_least({plan.k}, {plan.filters} - k0)",
        f"{symbol}_multiply(v, g->packed + k0 * {plan.points * conv.C}, sums, t1 - t0, width)",
        f"{symbol}_output(g, sums, t0, t1, k0, ps_least(width, {conv.K} - k0))",
    ]
    return c.function(
        f"static PS_KERNEL void {symbol}_block(const ps_args *g, const float *v, float *sums,\n"
        "                                     int64_t t0, int64_t k0)",
        [*map(c.Statement, body)],
    )


def _sizes(plan: WinogradPlan, symbol: str) -> c.Generable:
    heads = {
        f"int64_t {symbol}_workspace_size(void)": f"return {4 * plan.workspace}",
        f"int64_t {symbol}_packed_size(void)": f"return {4 * plan.packed}",
        f"void {symbol}_pack_weights(const float *restrict w, float *restrict packed)":
            f"ps_winograd_weights({symbol}_shape, w, packed)",
    }  # fmt: skip
    return c.Collection([c.function(head, [c.Statement(line)]) for head, line in heads.items()])


def _entry(plan: WinogradPlan, symbol: str, options: EmitOptions) -> c.Generable:
    copies = plan.teams if plan.fused else 1
    shared_v = c.Statement("float *const v = (float *)workspace")
    own = f" + {plan.v_size} * thread" if copies > 1 else ""
    own_sums = f" + {plan.m_size} * thread" if plan.teams > 1 else ""
    own_v = [c.Statement(f"float *const v = (float *)workspace{own}")] if plan.fused else []
    sums = f"float *const sums = (float *)workspace + {copies * plan.v_size}{own_sums}"
    about = [c.remark(_comment(plan, options.caches))] if options.caches else []
    blocks = [*own_v, c.Statement(sums), *about, *_loops(plan, symbol)]
    before: c.Body = []
    team = options.team
    if not plan.fused:
        before = [shared_v, *_team(plan, _transform(plan, symbol), team, last=False)]
    steps = [*before, *_team(plan, blocks, team, last=True)]
    if plan.teams == 1 and team is Team.OWN:
        steps = denormals.flush(steps)
    pool = team is Team.POOL
    return c.function(
        f"int {symbol}(const float *x, const float *packed, float *y, const float *bias,\n"
        "        const float *residual, const float *clamp, void *workspace"
        f"{', const polysci_team *team' * pool})",
        [
            *[c.Statement("(void)team")] * (pool and plan.teams == 1),
            c.when("!PS_CPU_OK()", c.Statement(f"return {interface.NO_ISA}")),
            c.Statement(
                "const ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias,\n"
                "                          .residual = residual, .clamp = clamp}, *const g = &args"
            ),
            *steps,
            c.Statement(f"return {interface.OK}"),
        ],
    )


def _comment(plan: WinogradPlan, caches: tuple[int, ...]) -> str:
    """What the products of one block read and write."""
    inputs = plan.points * plan.t * plan.problem.C
    filters = plan.points * min(plan.k, plan.filters) * plan.problem.C
    x, w, sums = (bytes_text(4 * size) for size in (inputs, filters, plan.m_size))
    return f"A block: transformed x {x}, transformed w {w}, sums {sums}; {caches_text(caches)}"


def _transform(plan: WinogradPlan, symbol: str) -> c.Body:
    """All of V before the loops; threads share it."""
    if plan.teams == 1:
        return [c.Statement(f"{symbol}_input(x, v, 0, {plan.tiles})")]
    return [
        c.Statement(f"const int64_t t0 = {plan.tiles} * thread / {plan.teams}"),
        c.Statement(f"const int64_t t1 = {plan.tiles} * (thread + 1) / {plan.teams}"),
        c.Statement(f"{symbol}_input(x, v + t0 * {plan.v_tile}, t0, t1)"),
    ]


def _team(plan: WinogradPlan, body: c.Body, team: Team, *, last: bool) -> c.Body:
    """Statements once a thread; serial without OpenMP."""
    if plan.teams == 1:
        return body
    body = denormals.flush(body) if team is Team.OWN else body
    return share_threads(team, plan.teams, c.Block(body), last=last)


def _loops(plan: WinogradPlan, symbol: str) -> c.Body:
    """Loops over blocks, the parallel ones as one loop over tasks."""
    loops = [loop.dim for loop in plan.schedule.loops]
    parallel = len(plan.schedule.parallel) if plan.teams > 1 else 0
    shared, inner = loops[:parallel], loops[parallel:]
    t0, k0 = (c.variable(dim) if dim in loops else "0" for dim in "tk")
    transform: c.Body = []
    if plan.fused:
        upto = f"ps_least({plan.tiles}, {t0} + {plan.t})"
        transform = [c.Statement(f"{symbol}_input(x, v, {t0}, {upto})")]
    v = "v" if plan.fused or t0 == "0" else f"v + {t0} * {plan.v_tile}"
    body: c.Body = [c.Statement(f"{symbol}_block(g, {v}, sums, {t0}, {k0})")]
    extents, steps = {"t": plan.tiles, "k": plan.filters}, {"t": plan.t, "k": plan.k}
    for dim in reversed(inner):
        at, first = c.variable(dim), transform if dim == "t" else []
        update = f"{at} += {steps[dim]}"
        block = c.Block([*first, *body])
        body = [c.loop(f"int64_t {at} = 0", f"{at} < {extents[dim]}", update, block)]
    if "t" not in inner:
        body = [*transform, *body]
    return _tasks(plan, shared, body) if shared else body


def _tasks(plan: WinogradPlan, dims: Sequence[str], body: c.Body) -> c.Body:
    """One loop over a thread's share of all blocks of some dimensions."""
    counts = {"t": -(-plan.tiles // plan.t), "k": -(-plan.filters // plan.k)}
    steps = {"t": plan.t, "k": plan.k}
    origins: c.Body = []
    below = 1
    for dim in reversed(dims):
        at = f"task / {below} % {counts[dim]} * {steps[dim]}"
        origins.insert(0, c.Statement(f"const int64_t {c.variable(dim)} = {at}"))
        below *= counts[dim]
    first = f"{below} * thread / {plan.teams}"
    last = f"{below} * (thread + 1) / {plan.teams}"
    block = c.Block([*origins, *body])
    return [c.loop(f"int64_t task = {first}", f"task < {last}", "++task", block)]
