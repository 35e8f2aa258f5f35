"""Statements between which numbers below the smallest normal one count as 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from polysci.loop_ir.nodes import Invoke, Let, LoopStatement, Named, Result

KEEP: Final = "PS_KEEP_DENORMALS"  # the macro that makes the functions of prelude.h do nothing
KEEP_FLAG: Final = f"-D{KEEP}"


def flush(statements: Sequence[LoopStatement]) -> list[LoopStatement]:
    """Return the statements in that mode; the thread that executes them has its own again after."""
    return [
        Let("mode", Result("ps_flush_denormals", ()), "uint64_t"),
        *statements,
        Invoke("ps_restore_mode", (Named("mode"),)),
    ]
