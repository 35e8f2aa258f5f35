"""C statements between which numbers below the smallest normal one count as 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from polysci.printers import ctree as c

KEEP: Final = "PS_KEEP_DENORMALS"  # the macro that makes the functions of prelude.h do nothing
KEEP_FLAG: Final = f"-D{KEEP}"


def flush(statements: Sequence[c.Generable]) -> list[c.Generable]:
    """The same statements; the mode of the thread that executes them is its own again after."""
    return [
        c.Statement("const uint64_t mode = ps_flush_denormals()"),
        *statements,
        c.Statement("ps_restore_mode(mode)"),
    ]
