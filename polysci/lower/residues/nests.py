"""The loop IR of residue classes: a nest each, and the function that runs them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import Variable, as_index, least
from polysci.loop_ir.nodes import (
    Address,
    Alternative,
    Invoke,
    LoopFunction,
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
from polysci.lower.direct.nest import THREAD, flush_denormals, lower_nest, run_threads, thread_share
from polysci.lower.direct.panels import clear_bytes
from polysci.lower.lowering import Source
from polysci.lower.residues.plan import ResiduePlan
from polysci.polyhedral.contraction import Strides
from polysci.printers import interface
from polysci.printers.openmp import Team
from polysci.space.packed_copy import ALIGNMENT, round_up


@dataclass(frozen=True, slots=True)
class _Part:
    """A class's source, and where its pixels, weights and workspace start; the latter in bytes."""

    source: Source
    start: int
    packed: int
    workspace: int


def lower_residues(plan: ResiduePlan, options: EmitOptions) -> Source:
    """Return a problem by residue classes; the interface is every primitive's.

    Raises SpecError or UnsupportedError for options that do not fit.
    """
    if options.by_rows:
        raise UnsupportedError(f"schedule {plan.schedule}: its classes share no outermost loop")
    interface.check_symbol(options.symbol)
    strides = {**plan.strides, **options.strides}
    parts = _parts(plan, options, strides)
    whole, pool = parts[0].source, options.team is Team.POOL
    copies = plan.threads if plan.shared and plan.schedule.parallel else 1
    own = max(round_up(part.source.workspace, ALIGNMENT) for part in parts)
    ends = [part.workspace + part.source.workspace for part in parts]
    workspace = own * copies if plan.shared else max(ends)
    packed = parts[-1].packed + parts[-1].source.packed
    runs = _by_images(plan, parts, own, options.team) if plan.shared else _one_by_one(parts)
    bodies: dict[interface.Role, Sequence[LoopStatement]] = {
        "packed_size": [Return(packed)],
        "workspace_size": [Return(workspace)],
        "pack_weights": _packing(parts),
        "run": [
            *[Unused(("team",))] * (pool and copies == 1 and plan.shared),
            *runs,
            Return(interface.OK),
        ],
    }
    rows = reversed(interface.functions(whole.precision, team=pool))
    run, *others = (row.define(options.symbol, block(*bodies[row.role])) for row in rows)
    entries = [replace(run, comment=f"{options.symbol}: {plan.schedule}"), *others]
    local = (function for part in parts for function in _local(part))
    return replace(
        whole, module=LoopModule((*entries, *local)), symbol=options.symbol,
        schedule=plan.schedule, team=options.team, workspace=workspace, packed=packed,
        by_rows=False, columns=None, packing="",
    )  # fmt: skip


def _parts(plan: ResiduePlan, options: EmitOptions, strides: Strides) -> list[_Part]:
    """Return all classes; those that run one by one in a team have a workspace each."""
    parts, packed, workspace = list[_Part](), 0, 0
    inside = Team.OWN if plan.shared else options.team
    for number, (residue, schedule) in enumerate(zip(plan.classes, plan.schedules, strict=True)):
        own = replace(
            options, symbol=f"{options.symbol}_residue{number}", team=inside, by_rows=plan.shared
        )
        threads = 1 if plan.shared else plan.threads
        source = lower_nest(residue.contraction, residue.strides(strides), schedule, threads, own)
        parts.append(_Part(source, residue.start(strides), packed, workspace))
        packed += round_up(source.packed, ALIGNMENT)
        if inside is not Team.OWN:
            workspace += round_up(source.workspace, ALIGNMENT)
    return parts


def _packing(parts: Sequence[_Part]) -> list[LoopStatement]:
    """Return calls of the classes' functions, and zeros between what they write."""
    body: list[LoopStatement] = []
    for at, part in enumerate(parts):
        body.append(_call(part, "pack_weights", {}))
        if parts[at + 1 :]:
            body += clear_bytes(part.packed + part.source.packed, parts[at + 1].packed)
    return body


def _local(part: _Part) -> tuple[LoopFunction, ...]:
    """Return a class's functions, which other files do not see, those that call others last.

    Those of sizes are left out: they are numbers of the whole.
    """
    symbol = part.source.symbol
    sizes = {interface.function_name(role, symbol) for role in ("packed_size", "workspace_size")}
    functions = [row for row in part.source.module.functions.values() if row.name not in sizes]
    inlined = [
        replace(row, attributes=("static", "inline")) for row in functions if not row.attributes
    ]
    return (*(row for row in functions if row.attributes), *inlined)


def _call(part: _Part, role: interface.Role, more: Mapping[str, Value]) -> Invoke:
    """Return a call of a class's function: its operands are parts of those of the whole."""
    source = part.source
    row = next(function for function in source.functions if function.role == role)
    operands: dict[str, Value] = {
        **{name: Named(name) for name in row.names},
        "workspace": _place_in("workspace", part.workspace, "char"),
        "packed": _place_in("packed", part.packed, "char"),
        "y": Address(Named("y"), as_index(part.start)),
    }
    if str(source.precision) == "f32":
        operands["packed"] = _place_in("packed", part.packed // 4)
    if part.start:
        residual = Named("residual")
        operands["residual"] = Alternative(residual, Address(residual, as_index(part.start)), 0)
    return row.invoke(source.symbol, {**operands, **more})


def _place_in(name: str, at: int, dtype: str = "") -> Value:
    """Return a place in a buffer of the caller's; ``at`` counts elements of a type."""
    return Address(Named(name), as_index(at), dtype) if at else Named(name)


def _one_by_one(parts: Sequence[_Part]) -> list[LoopStatement]:
    """Return calls of all classes, whose loops threads share."""
    return [_call(part, "run", {}) for part in parts]


def _by_images(
    plan: ResiduePlan, parts: Sequence[_Part], own: int, team: Team
) -> list[LoopStatement]:
    """Return a loop over images around all classes, whose turns threads share."""
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
    first, last = (at * step for at in thread_share(-(-images // step), plan.threads))
    tasks = loop("image", last, *calls, start=first, step=step)
    return [run_threads(plan.threads, _flush([tasks], team), last=True)]


def _flush(body: Sequence[LoopStatement], team: Team) -> list[LoopStatement]:
    """Return one thread's statements; a network flushes denormals itself."""
    return flush_denormals(body) if team is Team.OWN else [*body]
