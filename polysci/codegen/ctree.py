"""The C syntax tree: cgen, with expressions as the texts that we put into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cgen
from cgen import Block, Collection, Generable, Line, Statement

_cgen: Any = cgen  # its annotations ask for Generables where it prints any text

__all__ = ["Block", "Collection", "Generable", "Line", "Statement", "counted", "loop", "when"]


def loop(start: str, condition: str, update: str, body: Generable) -> Generable:
    """``for (start; condition; update) body``."""
    made: Generable = _cgen.For(start, condition, update, body)
    return made


def counted(name: str, extent: int, body: Generable, *, step: int = 1) -> Generable:
    """``for (int64_t name = 0; name < extent; name += step) body``."""
    update = f"++{name}" if step == 1 else f"{name} += {step}"
    return loop(f"int64_t {name} = 0", f"{name} < {extent}", update, body)


def when(condition: str, then: Generable, otherwise: Generable | None = None) -> Generable:
    """``if (condition) then else otherwise``."""
    made: Generable = _cgen.If(condition, then, otherwise)
    return made


def items(part: Generable) -> Sequence[Generable]:
    """The statements of a block, or the statement itself."""
    return list(part.contents) if isinstance(part, Block) else [part]
