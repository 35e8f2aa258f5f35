"""C prototypes as data: to declare, forward or replace functions whatever their types are."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PROTOTYPE = re.compile(r"(\w[\w ]*?) ?\b(\w+)\(([^()]*)\);\n")


@dataclass(frozen=True, slots=True)
class Prototype:
    """A function of the primitive SYMBOL, whose name is SYMBOL and ``end``; it returns a number."""

    result: str
    end: str
    parameters: str

    def head(self, symbol: str) -> str:
        """What a declaration and a definition of ``symbol``'s function begin with."""
        return f"{self.result} {symbol}{self.end}({self.parameters})"

    def call(self, symbol: str) -> str:
        """A call of ``symbol``'s function with the parameters as they are named here."""
        return f"{symbol}{self.end}({', '.join(self.names)})"

    @property
    def names(self) -> list[str]:
        """The parameters' names."""
        if self.parameters == "void":
            return []
        return [re.findall(r"\w+", part)[-1] for part in self.parameters.split(",")]

    @property
    def returns(self) -> str:
        """``return`` where the function returns something."""
        return "" if self.result == "void" else "return "


def prototypes(declarations: str, symbol: str) -> tuple[Prototype, ...]:
    """The functions that a C text declares of ``symbol``, in order; it declares nothing else."""
    return tuple(
        Prototype(result, name.removeprefix(symbol), parameters)
        for result, name, parameters in _PROTOTYPE.findall(declarations)
    )


def declare(functions: tuple[Prototype, ...], symbol: str) -> str:
    """Their declarations for another symbol."""
    return "".join(f"{one.head(symbol)};\n" for one in functions)


def forward(functions: tuple[Prototype, ...], symbol: str, to: str) -> str:
    """Definitions that call those of another symbol."""
    return "\n".join(_forwarded(one, symbol, to) for one in functions)


def _forwarded(one: Prototype, symbol: str, to: str) -> str:
    body = f"{one.returns}{one.call(to)};"
    if "\n" in one.parameters:
        return f"{one.head(symbol)}\n{{\n    {body}\n}}"
    return f"{one.head(symbol)} {{ {body} }}"


def chosen(functions: tuple[Prototype, ...], symbol: str, codes: list[tuple[str, str]]) -> str:
    """Definitions that call the first of ``codes`` (its condition in C, its symbol) that holds.

    The last one is called whether or not its condition holds.
    """
    return "\n".join(_chosen(one, symbol, codes) for one in functions)


def _chosen(one: Prototype, symbol: str, codes: list[tuple[str, str]]) -> str:
    *ahead, (_, last) = codes
    tests = [f"{condition} ? {one.call(to)}\n         : " for condition, to in ahead]
    return f"{one.head(symbol)}\n{{\n    {one.returns}{''.join(tests)}{one.call(last)};\n}}"


def empty(functions: tuple[Prototype, ...], symbol: str, status: int) -> str:
    """Definitions that do nothing: sizes are 0, other numbers are ``status``."""
    return "\n".join(_empty(one, symbol, status) for one in functions)


def _empty(one: Prototype, symbol: str, status: int) -> str:
    unused = "".join(f"    (void){name};\n" for name in one.names)
    value = {"void": "", "int64_t": "    return 0;\n"}.get(one.result, f"    return {status};\n")
    return f"{one.head(symbol)}\n{{\n{unused}{value}}}"
