"""Factors that all terms of a sum have, taken out of it: once a result instead of once a term.

``sum(x / c)`` becomes ``sum(x) / c``, which rounds less often. Sums of whole numbers stay, as
their quotients are rounded term by term.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from polysci.loop_ir.expressions import Apply, Expr, Reduce, rewrite, walk
from polysci.loop_ir.functions import kind_of
from polysci.numerics.scalar_functions import EXACT, REAL
from polysci.program.passes.relations import iterators_in
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
    return any(name in names for part in walk(expr) for name in iterators_in(part))
