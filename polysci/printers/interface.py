"""The C interface of a primitive: its functions as data, and the C that is printed from them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Final, Literal

from polysci.errors import SpecError
from polysci.loop_ir.nodes import Block, Buffer, Invoke, LoopFunction, ScalarParameter, Value
from polysci.numerics.dtypes import PRECISIONS, Precision
from polysci.printers.c_values import head

Parameter = Buffer | ScalarParameter
Role = Literal["workspace_size", "packed_size", "pack_weights", "pack_columns", "run"]

OK: Final = 0
NO_ISA: Final = 1  # the CPU lacks the instruction set that the code was generated for
ALIGNMENT: Final = 64  # bytes; of packed weights and workspace
KEEP: Final = "PS_KEEP_DENORMALS"  # the macro of C that computes with denormal numbers
KEEP_FLAG: Final = f"-D{KEEP}"

STRUCT = """\
typedef struct {
    const float *scale; /* one a channel */
    float residual_scale;
    int32_t residual_zero, y_zero;
} polysci_scales;
"""
TEAM = """\
#ifndef PS_TEAM
#define PS_TEAM
/* Threads that run the same code, as one of them sees it; `wait` returns when all came there. */
typedef struct polysci_team {
    int64_t thread, threads;
    void (*wait)(const struct polysci_team *team);
    void *meeting;
} polysci_team;
#endif
"""
SCALES = f"#ifndef PS_SCALES\n#define PS_SCALES\n{STRUCT}#endif\n"

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
        return self.result != "void"

    def head(self, symbol: str) -> str:
        """Return the text that a declaration and a definition begin with."""
        return head(self.define(symbol, Block()))

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

    def call(self, symbol: str) -> str:
        """Return a call with the parameters as they are named here."""
        return f"{self.name(symbol)}({', '.join(self.names)})"

    def finish(self, expression: str) -> str:
        """Return the statement that hands on the result of ``expression``, a call of it."""
        return f"{'return ' * self.returns}{expression};"


def function_name(role: Role, symbol: str) -> str:
    """Return the C identifier of this function of the primitive ``symbol``, of any precision."""
    return f"{symbol}{_SUFFIXES[role]}"


@cache
def functions(
    precision: Precision, *, by_rows: bool = False, team: bool = False
) -> tuple[Function, ...]:
    """Return the four functions of a primitive of this precision.

    Packing integer weights takes what x holds for zero. ``by_rows``: ``run`` takes the first
    iteration of its outermost loop, and the end. ``team``: it takes the team whose threads call it.
    """
    x, w, y, sums = (t.c_type for t in (precision.x, precision.w, precision.y, precision.sum))
    # Packed weights count in floats; of narrow types they are opaque.
    packed = "float" if precision == _F32 else "void"
    pack: list[Parameter] = [Buffer("w", w, const=True), Buffer("packed", packed)]
    pack += [ScalarParameter("x_zero", "int32_t")] * precision.integer
    run: list[Parameter] = [
        Buffer("x", x, const=True),
        Buffer("packed", packed, const=True),
        Buffer("y", y),
        Buffer("bias", sums, const=True),
        Buffer("residual", y, const=True),
        Buffer("clamp", "float", const=True),
        *[Buffer("to", "polysci_scales", const=True)] * precision.scaled,
        Buffer("workspace", "void"),
        *(ScalarParameter(name) for name in ("first", "last") if by_rows),
        *[Buffer("team", "polysci_team", const=True)] * team,
    ]
    return (
        Function("workspace_size", "int64_t"),
        Function("packed_size", "int64_t"),
        Function("pack_weights", "void", tuple(pack)),
        Function("run", "int", tuple(run)),
    )


def function(role: Role, precision: Precision) -> Function:
    """Return the function of this role."""
    return next(row for row in functions(precision) if row.role == role)


def columns_function(precision: Precision) -> Function:
    """Return the function that packs columns first..last-1 of large weights, which ``w`` has."""
    w = Buffer("w", precision.w.c_type, const=True)
    ends = ScalarParameter("first"), ScalarParameter("last")
    return Function("pack_columns", "void", (w, Buffer("panels", "void"), *ends))


def check_symbol(symbol: str) -> None:
    """Raise ``SpecError`` for what is no C identifier."""
    if not _IDENTIFIER.fullmatch(symbol):
        raise SpecError(f"symbol {symbol!r} is not a C identifier of at most 201 characters")


def declare(rows: Sequence[Function], symbol: str) -> str:
    """Return the prototypes of the primitive ``symbol``, and what a team is where they take one."""
    team = any("team" in row.names for row in rows)
    return TEAM * team + "".join(f"{row.head(symbol)};\n" for row in rows)


def declarations(symbol: str, precision: Precision = _F32, *, addresses: bool = False) -> str:
    """Return all declarations of the primitive ``symbol``, types included.

    With ``addresses`` pointers are integers, as another library's arrays have them.
    """
    check_symbol(symbol)
    rows = functions(precision)
    if addresses:
        rows = tuple(replace(row, parameters=tuple(map(_address, row.parameters))) for row in rows)
    return (STRUCT if precision.scaled else "") + declare(rows, symbol)


def _address(parameter: Parameter) -> ScalarParameter:
    if isinstance(parameter, ScalarParameter):
        return parameter
    return ScalarParameter(parameter.name, "uintptr_t")


def forward(rows: Sequence[Function], symbol: str, to: str) -> str:
    """Return definitions of ``symbol``'s functions that call those of another symbol."""
    return dispatch(rows, symbol, [("", to)])


def dispatch(rows: Sequence[Function], symbol: str, codes: Sequence[tuple[str, str]]) -> str:
    """Return definitions that call the first of ``codes`` (condition in C, symbol) that holds.

    The last one is called whether or not its condition holds.
    """
    *ahead, (_, last) = codes
    texts = list[str]()
    for row in rows:
        tests = [f"{condition} ? {row.call(to)}\n         : " for condition, to in ahead]
        body = row.finish(f"{''.join(tests)}{row.call(last)}")
        texts.append(f"{row.head(symbol)}\n{{\n    {body}\n}}")
    return "\n".join(texts)


def refuse(rows: Sequence[Function], symbol: str) -> str:
    """Return definitions for CPUs that lack the instructions: sizes are 0, calls ``NO_ISA``."""
    texts = list[str]()
    for row in rows:
        unused = "".join(f"    (void){name};\n" for name in row.names)
        value = NO_ISA if row.role == "run" else 0
        body = f"    return {value};\n" if row.returns else ""
        texts.append(f"{row.head(symbol)}\n{{\n{unused}{body}}}")
    return "\n".join(texts)
