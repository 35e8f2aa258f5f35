"""The functions of a primitive, which every lowering defines and every caller knows."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Final, Literal

from polysci.errors import SpecError
from polysci.loop_ir.nodes import Block, Buffer, Invoke, LoopFunction, ScalarParameter, Value
from polysci.numerics.dtypes import PRECISIONS, Precision

Parameter = Buffer | ScalarParameter
Role = Literal["workspace_size", "packed_size", "pack_weights", "pack_columns", "run"]

OK: Final = 0
NO_ISA: Final = 1  # the CPU lacks the instruction set that the code was generated for
ALIGNMENT: Final = 64  # bytes; of packed weights and workspace

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")
_F32 = PRECISIONS["f32"]
_SUFFIXES: Mapping[Role, str] = MappingProxyType(
    {
        "workspace_size": "_workspace_size",
        "packed_size": "_packed_size",
        "pack_weights": "_pack_weights",
        "pack_columns": "_pack_columns",
        "run": "",
    }
)


@dataclass(frozen=True, slots=True)
class Function:
    """One function of a primitive, whatever its symbol; ``role`` says what it is for."""

    role: Role
    result: str
    parameters: tuple[Parameter, ...] = ()

    def name(self, symbol: str) -> str:
        """Return the C identifier of the function for the primitive ``symbol``."""
        return function_name(self.role, symbol)

    @property
    def names(self) -> list[str]:
        """The parameters' names."""
        return [parameter.name for parameter in self.parameters]

    @property
    def returns(self) -> bool:
        """Return whether the function returns a value."""
        return bool(self.result)

    def define(self, symbol: str, body: Block, *, restrict: Collection[str] = ()) -> LoopFunction:
        """Return the definition of the function for ``symbol``.

        ``restrict`` names the parameters that a definition alone marks so.
        """
        parameters = tuple(
            replace(part, restrict=True)
            if isinstance(part, Buffer) and part.name in restrict else part
            for part in self.parameters
        )  # fmt: skip
        return LoopFunction(self.name(symbol), parameters, body, self.result, ())

    def invoke(self, symbol: str, operands: Mapping[str, Value]) -> Invoke:
        """Return the call of the function for ``symbol``, with an operand for every parameter.

        ``operands`` are by the names of parameters; others than it has are left out.
        """
        missing = [name for name in self.names if name not in operands]
        if missing:
            raise ValueError(f"{self.name(symbol)}: no operand for {', '.join(missing)}")
        return Invoke(self.name(symbol), tuple(operands[name] for name in self.names))


def function_name(role: Role, symbol: str) -> str:
    """Return the C identifier of this function of the primitive ``symbol``, of any precision."""
    return f"{symbol}{_SUFFIXES[role]}"


@cache
def functions(
    precision: Precision, *, by_rows: bool = False, team: bool = False, ends: tuple[str, ...] = ()
) -> tuple[Function, ...]:
    """Return the four functions of a primitive of this precision.

    Packing integer weights takes what x holds for zero. ``by_rows``: ``run`` takes the first
    iteration of its outermost loop, and the end. ``team``: it takes the team whose threads call it.
    ``ends`` are parameters that say where dimensions end.
    """
    x, w, y, sums = (t.stored for t in (precision.x, precision.w, precision.y, precision.sum))
    # Packed weights count in floats; of narrow types they are opaque.
    packed = "float32" if precision == _F32 else "opaque"
    pack: list[Parameter] = [Buffer("w", w, const=True), Buffer("packed", packed)]
    pack += [ScalarParameter("x_zero", "int32")] * precision.integer
    run: list[Parameter] = [
        Buffer("x", x, const=True),
        Buffer("packed", packed, const=True),
        Buffer("y", y),
        Buffer("bias", sums, const=True),
        Buffer("residual", y, const=True),
        Buffer("clamp", "float32", const=True),
        *[Buffer("to", "polysci_scales", const=True)] * precision.scaled,
        Buffer("workspace", "opaque"),
        *(ScalarParameter(name) for name in ("first", "last") if by_rows),
        *(ScalarParameter(name) for name in ends),
        *[Buffer("team", "polysci_team", const=True)] * team,
    ]
    return (
        Function("workspace_size", "int64"),
        Function("packed_size", "int64"),
        Function("pack_weights", "", tuple(pack)),
        Function("run", "int", tuple(run)),
    )


def function(role: Role, precision: Precision) -> Function:
    """Return the function of this role."""
    return next(row for row in functions(precision) if row.role == role)


def columns_function(precision: Precision) -> Function:
    """Return the function that packs columns first..last-1 of large weights, which ``w`` has."""
    w = Buffer("w", precision.w.stored, const=True)
    ends = ScalarParameter("first"), ScalarParameter("last")
    return Function("pack_columns", "", (w, Buffer("panels", "opaque"), *ends))


def check_symbol(symbol: str) -> None:
    """Raise ``SpecError`` for what is no C identifier."""
    if not _IDENTIFIER.fullmatch(symbol):
        raise SpecError(f"symbol {symbol!r} is not a C identifier of at most 201 characters")
