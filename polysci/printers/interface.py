"""The C of a primitive's interface: types, prototypes, and functions that call others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from polysci.loop_ir.interface import NO_ISA, Function, Parameter, check_symbol, functions
from polysci.loop_ir.nodes import Block, ScalarParameter
from polysci.numerics.dtypes import PRECISIONS, Precision
from polysci.printers.c_values import head

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

_F32 = PRECISIONS["f32"]


def call(row: Function, symbol: str) -> str:
    """Return a call of the function with the parameters as they are named in its definition."""
    return f"{row.name(symbol)}({', '.join(row.names)})"


def finish(row: Function, expression: str) -> str:
    """Return the statement that hands on the result of ``expression``, a call of the function."""
    return f"{'return ' * row.returns}{expression};"


def _head(row: Function, symbol: str) -> str:
    """Return the text that a declaration and a definition begin with."""
    return head(row.define(symbol, Block()))


def declare(rows: Sequence[Function], symbol: str) -> str:
    """Return the prototypes of the primitive ``symbol``, and what a team is where they take one."""
    team = any("team" in row.names for row in rows)
    return TEAM * team + "".join(f"{_head(row, symbol)};\n" for row in rows)


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
        tests = [f"{condition} ? {call(row, to)}\n         : " for condition, to in ahead]
        body = finish(row, f"{''.join(tests)}{call(row, last)}")
        texts.append(f"{_head(row, symbol)}\n{{\n    {body}\n}}")
    return "\n".join(texts)


def refuse(rows: Sequence[Function], symbol: str) -> str:
    """Return definitions for CPUs that lack the instructions: sizes are 0, calls ``NO_ISA``."""
    texts = list[str]()
    for row in rows:
        unused = "".join(f"    (void){name};\n" for name in row.names)
        value = NO_ISA if row.role == "run" else 0
        body = f"    return {value};\n" if row.returns else ""
        texts.append(f"{_head(row, symbol)}\n{{\n{unused}{body}}}")
    return "\n".join(texts)
