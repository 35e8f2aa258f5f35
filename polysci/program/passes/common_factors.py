"""Factors that all terms of a sum have, taken out of it: once a result instead of once a term.

``sum(x / c)`` becomes ``sum(x) / c``, which rounds less often. Sums of whole numbers stay, as
their quotients are rounded term by term.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from polysci.loop_ir.expressions import (
    Apply,
    Expr,
    Load,
    Lookup,
    Position,
    Reduce,
    Where,
    rewrite,
    walk,
)
from polysci.loop_ir.functions import kind_of
from polysci.numerics.scalar_functions import EXACT, REAL
from polysci.polyhedral.affine import Affine
from polysci.program.stages import LoopStage, Program, Stage


def take_out_factors(program: Program) -> Program:
    """The program whose sums of real numbers have no factor that is the same in all terms."""
    dtypes = {name: value.dtype for name, value in program.values.items()}

    def change(part: Expr) -> Expr:
        whole = isinstance(part, Reduce) and part.function == "add"
        return _without_factors(part, dtypes) if whole and isinstance(part, Reduce) else part

    def change_stage(stage: Stage) -> Stage:
        if not isinstance(stage, LoopStage):
            return stage
        return replace(stage, expr=rewrite(stage.expr, change))

    return program.with_stages(tuple(map(change_stage, program.stages)))


def _without_factors(total: Reduce, dtypes: Mapping[str, str]) -> Expr:
    body, kind = total.body, kind_of(total.body, dtypes)
    if not isinstance(body, Apply) or kind not in (REAL, EXACT):
        return total
    if total.guards or not all(extent for _, extent in total.over):
        return total  # a sum of nothing is 0, whatever its terms would be divided by
    reduced, first = {name for name, _ in total.over}, body.arguments[0]
    at = 0  # of the argument that the terms differ in
    if body.function == "mul":
        at = int(not _depends(first, reduced))
    elif body.function != "div":
        return total
    rest, factor = body.arguments[at], body.arguments[1 - at]
    if _depends(factor, reduced) or not _depends(rest, reduced) or kind_of(rest, dtypes) != kind:
        return total
    inner = _without_factors(replace(total, body=rest), dtypes)
    arguments = (factor, inner) if at else (inner, factor)
    return replace(body, arguments=arguments)


def _depends(expr: Expr, names: Container[str]) -> bool:
    """Return whether an expression is another one in other turns of loops over ``names``."""
    return any(name in names for part in walk(expr) for form in _forms(part) for name, _ in form)


def _forms(part: Expr) -> list[tuple[tuple[str, int], ...]]:
    """The terms of the affine forms of an expression, without those of its parts."""
    match part:
        case Load(_, index):
            forms = [it.at if isinstance(it, Lookup) else it for it in index]
            return [form.terms for form in forms if isinstance(form, Affine)]
        case Position(at):
            return [at.terms]
        case Where(guards, _, _) | Reduce(_, _, _, guards):
            return [guard.at.terms for guard in guards]
        case _:
            return []
