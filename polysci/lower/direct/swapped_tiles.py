"""The parts of a tile function where factors may be swapped: the reduction, C with gaps."""

from __future__ import annotations

from collections.abc import Mapping

from polysci.lower.direct.tiles import Tile
from polysci.printers import ctree as c
from polysci.space.directives import Ahead
from polysci.space.directives.ahead import LINE
from polysci.space.resolve import Plan


def reduce_swapped(tile: Tile) -> list[c.Generable]:
    """The reduction with swapped factors: A by panels of its rows, B from x by shifted vectors."""
    plan, width, depth = tile.plan, tile.width, tile.depth
    x = plan.coef["x"]
    b_k = x[plan.depth] if plan.depth else 0
    taps = [tap for tap in plan.taps if plan.extent(tap) > 1]
    if taps:
        fields = ["{1, 0}"] * (2 - len(taps))
        fields += [f"{{{plan.extent(tap)}, {x[tap]}}}" for tap in taps]
        return [
            c.Statement(f"static const ps_tap taps[2] = {{{', '.join(fields)}}}"),
            c.Statement(f"ps_run_taps(acc, t, A, B, {depth}, {b_k}, taps)"),
        ]
    following = "0"
    if plan.schedule.has(Ahead):  # the first calls prefetch a line each of the next columns
        call, line = f"n / {plan.tile[plan.panel_dim]}", LINE // 4
        lines = width // line + 1
        following = f"{call} < {lines} ? {width} + {line} * ({call}) : 0"
    return [c.Statement(f"ps_run_rows(acc, t, A, B, {depth}, {b_k}, {following})")]


def reduce_plain(tile: Tile) -> list[c.Generable]:
    """The reduction where both factors are read as they lie, vectors along columns or along k."""
    plan = tile.plan
    a_k, b_k = (plan.coef[of][plan.depth] if plan.depth else 0 for of in ("x", "B"))
    b_col = plan.coef["B"][plan.column]
    if b_col != 1 or plan.extent(plan.column) == 1:
        return [c.Statement(f"ps_run_dots(acc, t, A, B, {tile.depth}, {b_col})")]
    return [c.Statement(f"ps_run_plain(acc, t, A, B, {tile.depth}, {a_k}, {b_k})")]


def gaps(plan: Plan) -> list[c.Generable]:
    """The declaration of which columns C has, if it lacks some."""
    if plan.gaps is None:
        return []
    fields = f".pitch = {plan.gaps.pitch}, .columns = {plan.gaps.columns}, .phase = phase"
    return [c.Statement(f"const ps_gaps gaps = {{{fields}}}")]


def begin(plan: Plan, first: str) -> str:
    """The C of the first step: sums are 0, or what C holds."""
    if plan.gaps:
        return f"ps_begin_gaps(acc, t, g->y + c, {first}, gaps)"
    return f"ps_begin(acc, t, g->y + c, {first})"


def end(plan: Plan, last: str) -> str:
    """The C of the last step: a bias runs along the columns, or down the rows."""
    if plan.gaps:
        return f"ps_end_gaps(acc, t, g->y + c, {last}, gaps)"
    name = "ps_end_rows" if plan.contraction.swapped else "ps_end"
    return f"{name}(acc, t, g->y + c, {last})"


def result_offset(plan: Plan, origin: Mapping[str, str]) -> str:
    """Where in C a tile starts: its columns may be positions of which C lacks some."""
    if plan.gaps is None:
        return c.linear(plan.coef["C"], origin)
    around = {dim: at for dim, at in origin.items() if dim != plan.column}
    at, (pitch, columns) = origin.get(plan.column, "0"), (plan.gaps.pitch, plan.gaps.columns)
    if at.isdigit():
        before = int(at) // pitch * columns + min(int(at) % pitch, columns)
        return c.linear(plan.coef["C"], around, before)
    pixels = f"{columns} * (({at}) / {pitch}) + ps_least(({at}) % {pitch}, {columns})"
    return f"{c.linear(plan.coef['C'], around)} + {pixels}"


def phase(plan: Plan, origin: Mapping[str, str]) -> list[str]:
    """Where in an image row the columns of a tile start, if C lacks some."""
    if plan.gaps is None:
        return []
    at = origin.get(plan.column, "0")
    return [str(int(at) % plan.gaps.pitch) if at.isdigit() else f"({at}) % {plan.gaps.pitch}"]
