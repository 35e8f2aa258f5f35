"""The C interface of a primitive: its functions as data, and the C that is printed from them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Final, Literal

from polysci.errors import SpecError
from polysci.loop_ir.nodes import Block, Buffer, LoopFunction, ScalarParameter
from polysci.numerics.dtypes import PRECISIONS, Precision

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
_FIRST_LINE = 4  # parameters of a long list that stand beside the function's name
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
class Parameter:
    """One parameter of a C function; ``type`` ends in ``*`` for a pointer."""

    type: str
    name: str

    def __str__(self) -> str:
        return self.declare()

    def declare(self, *, restrict: bool = False) -> str:
        """The parameter as a prototype lists it."""
        between = "" if self.type.endswith("*") else " "
        return f"{self.type}{between}{'restrict ' * restrict}{self.name}"

    def node(self, *, restrict: bool = False) -> Buffer | ScalarParameter:
        """The parameter in loop IR."""
        if not self.type.endswith("*"):
            return ScalarParameter(self.name, self.type)
        dtype, const = self.type.removeprefix("const ").rstrip(" *"), self.type.startswith("const ")
        return Buffer(self.name, dtype, const=const, restrict=restrict)


@dataclass(frozen=True, slots=True)
class Function:
    """One function of a primitive, whatever its symbol; ``role`` says what it is for."""

    role: Role
    result: str
    parameters: tuple[Parameter, ...] = ()

    def name(self, symbol: str) -> str:
        """The C identifier of the function for the primitive ``symbol``."""
        return function_name(self.role, symbol)

    @property
    def names(self) -> list[str]:
        """The parameters' names."""
        return [parameter.name for parameter in self.parameters]

    @property
    def long(self) -> bool:
        """Whether the parameters take two lines."""
        return len(self.parameters) > _FIRST_LINE

    @property
    def returns(self) -> bool:
        """Whether the function returns a value."""
        return self.result != "void"

    def head(self, symbol: str, *, restrict: Collection[str] = ()) -> str:
        """Return the text that a declaration and a definition begin with.

        ``restrict`` names the parameters that a definition alone marks so.
        """
        words = [part.declare(restrict=part.name in restrict) for part in self.parameters]
        lines = [words[:_FIRST_LINE], words[_FIRST_LINE:]]
        text = ",\n        ".join(", ".join(line) for line in lines if line)
        return f"{self.result} {self.name(symbol)}({text or 'void'})"

    def define(self, symbol: str, body: Block, *, restrict: Collection[str] = ()) -> LoopFunction:
        """Return the definition of the function for ``symbol``; ``restrict`` as in ``head``."""
        parameters = tuple(part.node(restrict=part.name in restrict) for part in self.parameters)
        return LoopFunction(self.name(symbol), parameters, body, self.result, ())

    def call(self, symbol: str) -> str:
        """A call with the parameters as they are named here."""
        return f"{self.name(symbol)}({', '.join(self.names)})"

    def finish(self, expression: str) -> str:
        """The statement that hands on what ``expression``, a call of this function, returns."""
        return f"{'return ' * self.returns}{expression};"


def function_name(role: Role, symbol: str) -> str:
    """The C identifier of this function of the primitive ``symbol``, of any precision."""
    return f"{symbol}{_SUFFIXES[role]}"


@cache
def functions(
    precision: Precision,
    *,
    by_rows: bool = False,
    team: bool = False,
) -> tuple[Function, ...]:
    """The four functions of a primitive of this precision.

    Packing integer weights takes what x holds for zero. ``by_rows``: ``run`` takes the first
    iteration of its outermost loop, and the end. ``team``: it takes the team whose threads call it.
    """
    x, w, y, sums = (t.c_type for t in (precision.x, precision.w, precision.y, precision.sum))
    # Packed weights count in floats; of narrow types they are opaque.
    packed = "float" if precision == _F32 else "void"
    pack = [Parameter(f"const {w} *", "w"), Parameter(f"{packed} *", "packed")]
    pack += [Parameter("int32_t", "x_zero")] * precision.integer
    run = [
        Parameter(f"const {x} *", "x"),
        Parameter(f"const {packed} *", "packed"),
        Parameter(f"{y} *", "y"),
        Parameter(f"const {sums} *", "bias"),
        Parameter(f"const {y} *", "residual"),
        Parameter("const float *", "clamp"),
        *[Parameter("const polysci_scales *", "to")] * precision.scaled,
        Parameter("void *", "workspace"),
        *(Parameter("int64_t", name) for name in ("first", "last") if by_rows),
        *[Parameter("const polysci_team *", "team")] * team,
    ]
    return (
        Function("workspace_size", "int64_t"),
        Function("packed_size", "int64_t"),
        Function("pack_weights", "void", tuple(pack)),
        Function("run", "int", tuple(run)),
    )


def function(role: Role, precision: Precision) -> Function:
    """The function of this role."""
    return next(row for row in functions(precision) if row.role == role)


def columns_function(precision: Precision) -> Function:
    """The function that packs columns first..last-1 of large weights; ``w`` begins with these."""
    parameters = (
        Parameter(f"const {precision.w.c_type} *", "w"),
        Parameter("void *", "panels"),
        Parameter("int64_t", "first"),
        Parameter("int64_t", "last"),
    )
    return Function("pack_columns", "void", parameters)


def check_symbol(symbol: str) -> None:
    """Raise ``SpecError`` for what is no C identifier."""
    if not _IDENTIFIER.fullmatch(symbol):
        raise SpecError(f"symbol {symbol!r} is not a C identifier of at most 201 characters")


def declare(rows: Sequence[Function], symbol: str) -> str:
    """The prototypes of the primitive ``symbol``, and what a team is where they take one."""
    team = any("team" in row.names for row in rows)
    return TEAM * team + "".join(f"{row.head(symbol)};\n" for row in rows)


def declarations(symbol: str, precision: Precision = _F32, *, addresses: bool = False) -> str:
    """All that a caller must be told of the primitive ``symbol``, types included.

    With ``addresses`` pointers are integers, as another library's arrays have them.
    """
    check_symbol(symbol)
    rows = functions(precision)
    if addresses:
        rows = tuple(replace(row, parameters=tuple(map(_address, row.parameters))) for row in rows)
    return (STRUCT if precision.scaled else "") + declare(rows, symbol)


def _address(parameter: Parameter) -> Parameter:
    return replace(parameter, type="uintptr_t") if parameter.type.endswith("*") else parameter


def forward(rows: Sequence[Function], symbol: str, to: str) -> str:
    """Definitions of ``symbol``'s functions that call those of another symbol."""
    return "\n".join(_define(row, symbol, row.call(to)) for row in rows)


def _define(row: Function, symbol: str, expression: str) -> str:
    body = row.finish(expression)
    if row.long:
        return f"{row.head(symbol)}\n{{\n    {body}\n}}"
    return f"{row.head(symbol)} {{ {body} }}"


def dispatch(rows: Sequence[Function], symbol: str, codes: Sequence[tuple[str, str]]) -> str:
    """Definitions that call the first of ``codes`` (its condition in C, its symbol) that holds.

    The last one is called whether or not its condition holds.
    """
    return "\n".join(_dispatch(row, symbol, codes) for row in rows)


def _dispatch(row: Function, symbol: str, codes: Sequence[tuple[str, str]]) -> str:
    *ahead, (_, last) = codes
    tests = [f"{condition} ? {row.call(to)}\n         : " for condition, to in ahead]
    body = row.finish(f"{''.join(tests)}{row.call(last)}")
    return f"{row.head(symbol)}\n{{\n    {body}\n}}"


def refuse(rows: Sequence[Function], symbol: str) -> str:
    """Definitions for CPUs that lack the instruction set: sizes are 0, calls return ``NO_ISA``."""
    return "\n".join(_refuse(row, symbol) for row in rows)


def _refuse(row: Function, symbol: str) -> str:
    unused = "".join(f"    (void){name};\n" for name in row.names)
    value = NO_ISA if row.role == "run" else 0
    body = f"    return {value};\n" if row.returns else ""
    return f"{row.head(symbol)}\n{{\n{unused}{body}}}"
