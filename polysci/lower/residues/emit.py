"""From a plan of residue classes to loop IR: a nest each, and the function that runs them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polysci import explain
from polysci.errors import UnsupportedError
from polysci.loop_ir.index import ZERO, Variable, as_index, least
from polysci.loop_ir.nodes import (
    Address,
    Alternative,
    For,
    If,
    Invoke,
    LoopFunction,
    LoopKind,
    LoopModule,
    LoopStatement,
    Named,
    Return,
    Unused,
    Value,
    block,
    loop,
)
from polysci.lower.algorithm import EmitOptions
from polysci.lower.direct import denormals
from polysci.lower.direct.emit import THREAD, Source
from polysci.lower.direct.emit import emit as emit_nest
from polysci.lower.direct.panels import CPU_LACKS, clear_bytes
from polysci.lower.residues.plan import ResiduePlan
from polysci.polyhedral.contraction import Strides
from polysci.printers import interface
from polysci.printers.c import CPrinter
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
    runs = _by_images(plan, parts, own, team) if plan.shared else _one_by_one(parts)
    body = [If(CPU_LACKS, block(Return(interface.NO_ISA))), *runs, Return(interface.OK)]
    if pool and not copies > 1 and plan.shared:
        body.insert(0, Unused(("team",)))
    packed = parts[-1].packed + parts[-1].source.packed
    bodies: dict[interface.Role, Sequence[LoopStatement]] = {
        "packed_size": [Return(packed)],
        "workspace_size": [Return(workspace)],
        "pack_weights": _packing(parts),
        "run": body,
    }
    entries = [row.define(options.symbol, block(*bodies[row.role])) for row in reversed(rows)]
    entries[0] = replace(entries[0], comment=f"{options.symbol}: {plan.schedule}")
    local = [_local(part) for part in parts]
    text = interface.declare(rows, options.symbol) + CPrinter(team).module(LoopModule((*entries,)))
    inside = CPrinter(Team.OWN if plan.shared else team)
    text += "\n".join(inside.module(LoopModule(functions)) for functions in local)
    functions = (*entries, *(function for part in local for function in part))
    return replace(
        whole, text=text, symbol=options.symbol, schedule=plan.schedule, workspace=workspace,
        packed=packed, by_rows=False, pool=pool, columns=None, module=LoopModule(functions),
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


def _packing(parts: Sequence[_Part]) -> list[LoopStatement]:
    """Calls of the classes' functions, and zeros between what they write."""
    body: list[LoopStatement] = []
    for at, part in enumerate(parts):
        body.append(_call(part, "pack_weights", {}))
        if parts[at + 1 :]:
            body += clear_bytes(part.packed + part.source.packed, parts[at + 1].packed)
    return body


def _local(part: _Part) -> tuple[LoopFunction, ...]:
    """A class's functions, which other files do not see, before those that call them.

    Those of sizes are left out: they are numbers of the whole.
    """
    symbol = part.source.symbol
    sizes = {interface.function_name(role, symbol) for role in ("packed_size", "workspace_size")}
    functions = [it for name, it in part.source.module.functions.items() if name not in sizes]
    entries = [it for it in functions if not it.attributes]
    inlined = [replace(it, attributes=("static", "inline")) for it in entries]
    return (*(it for it in functions if it.attributes), *inlined)


def _call(part: _Part, role: interface.Role, more: Mapping[str, Value]) -> Invoke:
    """A call of a class's function: its pixels, weights and workspace start behind those of all."""
    source = part.source
    row = next(it for it in source.functions if it.role == role)
    moved: dict[str, Value] = {
        "workspace": _moved("workspace", part.workspace, "char"),
        "packed": _moved("packed", part.packed, "char"),
        "y": Address(Named("y"), as_index(part.start)),
    }
    if str(source.precision) == "f32":
        moved["packed"] = _moved("packed", part.packed // 4)
    if part.start:
        residual = Named("residual")
        moved["residual"] = Alternative(residual, Address(residual, as_index(part.start)), 0)
    moved |= more
    operands = tuple(moved.get(name, Named(name)) for name in row.names)
    return Invoke(row.name(source.symbol), operands)


def _moved(name: str, at: int, dtype: str = "") -> Value:
    """A place in a buffer of the caller's; ``at`` counts elements of a type."""
    return Address(Named(name), as_index(at), dtype) if at else Named(name)


def _one_by_one(parts: Sequence[_Part]) -> list[LoopStatement]:
    """All classes, whose loops threads share."""
    return [_call(part, "run", {}) for part in parts]


def _by_images(
    plan: ResiduePlan, parts: Sequence[_Part], own: int, team: Team
) -> list[LoopStatement]:
    """A loop over images around all classes; threads share its turns."""
    outermost = plan.schedules[0].loops[0]
    images = plan.classes[0].contraction.extent(outermost.dim)
    several = plan.threads > 1 and outermost.parallel
    step, image = outermost.step, Variable("image")
    more: dict[str, Value] = {"first": image, "last": least(images, image + step)}
    more["workspace"] = Named("workspace")
    if several and own:
        more["workspace"] = Address(Named("workspace"), own * THREAD, "char")
    calls = [_call(part, "run", more) for part in parts]
    if not several:
        return _flush([loop("image", images, *calls, step=step)], team)
    turns = -(-images // step)
    first, last = (turns * at // plan.threads * step for at in (THREAD, THREAD + 1))
    tasks = loop("image", last, *calls, start=first, step=step)
    body, threads = block(*_flush([tasks], team)), as_index(plan.threads)
    return [For("thread", ZERO, threads, body, kind=LoopKind.THREADS)]


def _flush(body: Sequence[LoopStatement], team: Team) -> list[LoopStatement]:
    """One thread's statements; a network flushes denormals itself."""
    return denormals.flush(body) if team is Team.OWN else [*body]
