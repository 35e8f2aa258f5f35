"""From a plan of residue classes to C: a nest each, and the function that runs them all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from polysci import explain
from polysci.errors import UnsupportedError
from polysci.lower.algorithm import EmitOptions
from polysci.lower.direct import denormals
from polysci.lower.direct.emit import Source
from polysci.lower.direct.emit import emit as emit_nest
from polysci.lower.direct.panels import clear_bytes
from polysci.lower.residues.plan import ResiduePlan
from polysci.polyhedral.contraction import Strides
from polysci.printers import ctree as c
from polysci.printers import interface
from polysci.printers.definitions import definitions
from polysci.printers.sharing import share_threads
from polysci.printers.team import Team
from polysci.space.packed_copy import ALIGNMENT, round_up


@dataclass(frozen=True, slots=True)
class _Part:
    """A class's code, and where its pixels, weights and workspace start; the latter in bytes."""

    source: Source
    start: int
    packed: int
    workspace: int


def emit(plan: ResiduePlan, options: EmitOptions) -> Source:
    """C source of a problem by residue classes; the interface is every primitive's.

    Raises SpecError or UnsupportedError for options that do not fit.
    """
    if options.by_rows:
        raise UnsupportedError(f"schedule {plan.schedule}: its classes share no outermost loop")
    interface.check_symbol(options.symbol)
    strides = {**plan.strides, **options.strides}
    parts = _parts(plan, options, strides)
    whole, team = parts[0].source, options.team
    pool = team is Team.POOL
    copies = plan.threads if plan.shared and plan.schedule.parallel else 1
    own = max(round_up(part.source.workspace, ALIGNMENT) for part in parts)
    ends = [part.workspace + part.source.workspace for part in parts]
    workspace = own * copies if plan.shared else max(ends)
    rows = interface.functions(whole.precision, team=pool)
    body = [
        c.when("!PS_CPU_OK()", c.Statement(f"return {interface.NO_ISA}")),
        *(
            _by_images(plan, parts, own, team)
            if plan.shared
            else [_call(part, "run", {}) for part in parts]
        ),
        c.Statement(f"return {interface.OK}"),
    ]
    if pool and not copies > 1 and plan.shared:
        body.insert(0, c.Statement("(void)team"))
    packed = parts[-1].packed + parts[-1].source.packed
    bodies: dict[interface.Role, c.Body] = {
        "packed_size": [c.Statement(f"return {packed}")],
        "workspace_size": [c.Statement(f"return {workspace}")],
        "pack_weights": _packing(parts),
        "run": body,
    }
    functions = [c.function(row.head(options.symbol), bodies[row.role]) for row in reversed(rows)]
    title = f"/* {options.symbol}: {plan.schedule} */\n"
    text = interface.declare(rows, options.symbol) + title
    text += "\n".join([*(c.text(each) + "\n" for each in functions), *map(_local, parts)])
    return replace(
        whole, text=text, symbol=options.symbol, schedule=plan.schedule, workspace=workspace,
        packed=packed, by_rows=False, pool=pool, columns=None,
    )  # fmt: skip


def _parts(plan: ResiduePlan, options: EmitOptions, strides: Strides) -> list[_Part]:
    """The code of all classes; those that run one by one in a team have a workspace each."""
    parts, packed, workspace = list[_Part](), 0, 0
    inside = Team.OWN if plan.shared else options.team
    for number, (it, schedule) in enumerate(zip(plan.classes, plan.schedules, strict=True)):
        caches = options.caches
        source = emit_nest(
            it.contraction, it.strides(strides), schedule,
            symbol=f"{options.symbol}_residue{number}",
            threads=1 if plan.shared else plan.threads, team=inside, by_rows=plan.shared,
            adds=options.adds,
            comments=explain.loop_comments(it.contraction, schedule, caches) if caches else (),
        )  # fmt: skip
        parts.append(_Part(source, it.start(strides), packed, workspace))
        packed += round_up(source.packed, ALIGNMENT)
        if inside is not Team.OWN:
            workspace += round_up(source.workspace, ALIGNMENT)
    return parts


def _packing(parts: Sequence[_Part]) -> c.Body:
    """Calls of the classes' functions, and zeros between what they write."""
    body: c.Body = []
    for at, part in enumerate(parts):
        body.append(_call(part, "pack_weights", {}))
        if parts[at + 1 :]:
            body += clear_bytes(part.packed + part.source.packed, parts[at + 1].packed)
    return body


def _local(part: _Part) -> str:
    """A class's functions, which other files do not see, before those that call them.

    Those of sizes are left out: they are numbers of the whole.
    """
    symbol = part.source.symbol
    sizes = {interface.function_name(role, symbol) for role in ("packed_size", "workspace_size")}
    kept = [it for it in definitions(part.source.text) if it.prototype and not it.names & sizes]
    text = "\n".join(it.text for it in sorted(kept, key=lambda it: not it.internal))
    return re.sub(
        rf"^(?=(?:int|void) {symbol}(?:_pack_weights)?\()", "static inline ", text, flags=re.M
    )


def _call(part: _Part, role: interface.Role, more: dict[str, str]) -> c.Generable:
    """A call of a class's function: its pixels, weights and workspace start behind those of all."""
    source = part.source
    row = next(it for it in source.functions if it.role == role)
    item = 4 if str(source.precision) == "f32" else 0
    start = f" + {part.start}" if part.start else ""
    packed = f"packed + {part.packed // item}" if item else f"(char *)packed + {part.packed}"
    moved = {
        "packed": packed if part.packed else "packed",
        "y": f"y{start}",
        "residual": f"residual ? residual{start} : 0" if start else "residual",
        "workspace": f"(char *)workspace + {part.workspace}" if part.workspace else "workspace",
    } | more
    return c.Statement(
        f"{row.name(source.symbol)}({', '.join(moved.get(n, n) for n in row.names)})"
    )


def _by_images(plan: ResiduePlan, parts: list[_Part], own: int, team: Team) -> c.Body:
    """A loop over images around all classes; threads share its turns."""
    loop = plan.schedules[0].loops[0]
    images = plan.classes[0].contraction.extent(loop.dim)
    several = plan.threads > 1 and loop.parallel
    turns = -(-images // loop.step)
    space = f"(char *)workspace + {own} * thread" if several and own else "workspace"
    upto = f"ps_least({images}, image + {loop.step})"
    more = {"workspace": space, "first": "image", "last": upto}
    calls = c.Block([_call(part, "run", more) for part in parts])
    if not several:
        update = f"image += {loop.step}"
        return _flush([c.loop("int64_t image = 0", f"image < {images}", update, calls)], team)
    first, last = (f"{turns} * {at} / {plan.threads}" for at in ("thread", "(thread + 1)"))
    tasks = c.loop(
        f"int64_t image = {first} * {loop.step}", f"image < {last} * {loop.step}",
        f"image += {loop.step}", calls,
    )  # fmt: skip
    return share_threads(team, plan.threads, c.Block(_flush([tasks], team)), last=True)


def _flush(body: c.Body, team: Team) -> c.Body:
    """One thread's statements; a network flushes denormals itself."""
    return denormals.flush(body) if team is Team.OWN else body
