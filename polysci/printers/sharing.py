"""Loops that threads share: by OpenMP's pragmas, or as members of a team that C names.

A member of a team knows its number and how many there are (``polysci_team``), takes its part of
each loop, and waits for the others where the code says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.printers import ctree as c
from polysci.printers import openmp
from polysci.printers.team import Team

Loop = tuple[str, int, int]  # iterator, extent, step


def share_threads(team: Team, threads: int, body: c.Generable, *, last: bool = False) -> c.Body:
    """A loop over thread numbers; in a region of the caller's nobody waits after the ``last`` one.

    Without OpenMP the loop is serial.
    """
    if team is not Team.POOL:
        pragma = openmp.team(threads, joined=team is Team.OPENMP, last=last)
        turns = c.loop("int64_t thread = 0", f"thread < {threads}", "++thread", body)
        return [*map(c.Line, openmp.guard(pragma)), turns]
    start, update = "int64_t thread = team->thread", "thread += team->threads"
    waits = [] if last else wait_for_all(team)
    return [c.loop(start, f"thread < {threads}", update, body), *waits]


def share_loops(
    team: Team, loops: Sequence[Loop], body: c.Body, *, simd: bool = False, member: str = "team"
) -> c.Body:
    """Nested loops whose turns threads share, each an equal run of them; nobody waits behind.

    ``member`` is C text of the team as this thread sees it.
    """
    if team is not Team.POOL:
        return [c.Line(openmp.loop(len(loops), simd=simd)), *nest(loops, body)]
    if len(loops) == 1 and loops[0][2] == 1:
        ((name, extent, _),) = loops
        start, condition = f"{name} = {_first(member, extent)}", f"{name} < {_end(member, extent)}"
        turns = c.loop(f"int64_t {start}", condition, f"++{name}", c.Block(body))
        return [*[c.Line(openmp.SIMD)] * simd, turns]
    counts = [-(-extent // step) for _, extent, step in loops]
    total, below, origins = prod(counts), prod(counts), c.Body()
    for (name, _, step), count in zip(loops, counts, strict=True):
        below //= count
        at = f"task / {below} % {count} * {step}"
        origins.append(c.Statement(f"const int64_t {name} = {at}"))
    start, condition = f"int64_t task = {_first(member, total)}", f"task < {_end(member, total)}"
    return [c.loop(start, condition, "++task", c.Block([*origins, *body]))]


def nest(loops: Sequence[Loop], body: c.Body) -> c.Body:
    """Loops around statements, the first one outermost."""
    for name, extent, step in reversed(loops):
        update = f"++{name}" if step == 1 else f"{name} += {step}"
        body = [c.loop(f"int64_t {name} = 0", f"{name} < {extent}", update, c.Block(body))]
    return body


def run_once(team: Team, body: c.Body, *, wait: bool = False, member: str = "team") -> c.Body:
    """Statements, one for OpenMP, that one thread executes; the others ``wait``, or go on."""
    if team is not Team.POOL:
        return [c.Line(openmp.single(wait=wait)), *body]
    waits = wait_for_all(team, member) if wait else []
    return [c.when(f"{member}->thread == 0", c.Block(body)), *waits]


def wait_for_all(team: Team, member: str = "team") -> c.Body:
    """A barrier."""
    if team is not Team.POOL:
        return [c.Line(openmp.BARRIER)]
    return [c.Statement(f"{member}->wait({member})")]


def _first(member: str, count: int) -> str:
    """Return the first turn of a member's share."""
    return f"{count} * {member}->thread / {member}->threads"


def _end(member: str, count: int) -> str:
    return f"{count} * ({member}->thread + 1) / {member}->threads"
