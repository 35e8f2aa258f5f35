"""The C syntax tree: cgen, with expressions as the texts that we put into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cgen
from cgen import Block, Collection, Generable, Line, Statement

_cgen: Any = cgen  # its annotations ask for Generables where it prints any text

__all__ = [
    "Block",
    "Collection",
    "Generable",
    "Line",
    "Statement",
    "counting_loop",
    "items",
    "linear",
    "loop",
    "variable",
    "when",
]


def variable(dim: str) -> str:
    """The C variable that runs over a dimension: generated code's own names end in no digit."""
    return f"{dim}0"


def loop(start: str, condition: str, update: str, body: Generable) -> Generable:
    """``for (start; condition; update) body``."""
    made: Generable = _cgen.For(start, condition, update, body)
    return made


def counting_loop(dim: str, extent: int, body: Generable, *, step: int = 1) -> Generable:
    """``for (int64_t dim0 = 0; dim0 < extent; dim0 += step) body``."""
    name = variable(dim)
    update = f"++{name}" if step == 1 else f"{name} += {step}"
    return loop(f"int64_t {name} = 0", f"{name} < {extent}", update, body)


def when(condition: str, then: Generable, otherwise: Generable | None = None) -> Generable:
    """``if (condition) then else otherwise``."""
    made: Generable = _cgen.If(condition, then, otherwise)
    return made


def items(part: Generable) -> Sequence[Generable]:
    """The statements of a block, or the statement itself."""
    return list(part.contents) if isinstance(part, Block) else [part]


def linear(coef: Mapping[str, int], at: Mapping[str, str], constant: int = 0) -> str:
    """C text of ``constant + sum coef * at``, constants folded."""
    terms: list[str] = []
    for dim, text in at.items():
        factor = coef.get(dim, 0)
        if text.lstrip("-").isdigit():
            constant += factor * int(text)
        elif factor:
            text = text if text.isidentifier() else f"({text})"
            terms.append({1: text, -1: f"-{text}"}.get(factor, f"{factor} * {text}"))
    if constant or not terms:
        terms.append(str(constant))
    return " + ".join(terms).replace("+ -", "- ")
