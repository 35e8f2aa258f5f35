"""The C syntax tree: cgen, with expressions as the texts that we put into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cgen
from cgen import Generable as Generable
from cgen import Line as Line
from cgen import Statement as Statement

_cgen: Any = cgen  # its annotations ask for Generables where it prints any text

Body = list[Generable]


class Compound(cgen.Block):
    """``{ contents }``, without cgen's test of each part, which takes longer than all else."""

    def __init__(self, contents: Body) -> None:
        self.contents = contents


class Collection(Compound):
    """Parts one below the other."""


def loop(start: str, condition: str, update: str, body: Generable) -> Generable:
    """``for (start; condition; update) body``."""
    node: Generable = _cgen.For(start, condition, update, body)
    return node


def remark(comment: str) -> Generable:
    """``/* comment */``: a comment on a line of its own."""
    return Line(f"/* {comment} */")


def local_array(kind: str, name: str, count: int | str, values: str = "") -> Statement:
    """``kind name[count] = values``, of a function.

    Aligned, because GCC 12 writes one that it left at 8 modulo 16 by aligned instructions.
    """
    return Statement(f"_Alignas(64) {kind} {name}[{count}]{f' = {values}' if values else ''}")


def function(head: str, body: Sequence[Generable]) -> Generable:
    """``head { body }``: a definition."""
    return Collection([Line(head), Compound([*body])])


def when(condition: str, then: Generable, otherwise: Generable | None = None) -> Generable:
    """``if (condition) then else otherwise``."""
    node: Generable = _cgen.If(condition, then, otherwise)
    return node


def text(part: Generable, depth: int = 0) -> str:
    """C with four spaces a level, loops' braces on the lines of their heads, # at the margin.

    ``depth``: of the statements that it becomes a part of.
    """
    lines: list[str] = []
    _print(part, "    " * depth, lines)
    return "\n".join(lines)


def _print(part: Any, indent: str, lines: list[str]) -> None:
    """Append the lines of a node; cgen's generators would hand each on through all levels."""
    kind = type(part)  # instances of abstract classes are slow to tell
    if kind is Statement:
        lines.append(f"{indent}{part.text};")
    elif kind is Line:
        code = part.text
        lines.append(code if code.startswith("#") else f"{indent}{code}")
    elif kind is Collection:
        for inner in part.contents:
            _print(inner, indent, lines)
    elif kind is Compound:
        lines.append(f"{indent}{{")
        _print_inside(part, indent, lines)
    elif kind is cgen.If:
        lines.append(f"{indent}if ({part.condition})")
        _print_body(part.then_, indent, lines)
        if part.else_ is not None:
            lines.append(f"{indent}else")
            _print(part.else_, indent + "    " * (type(part.else_) is not Compound), lines)
    else:
        lines.append(f"{indent}{part.intro_line()}")
        _print_body(part.body, indent, lines)


def _print_body(part: Generable, indent: str, lines: list[str]) -> None:
    """Append what a loop or condition governs; a block's brace stands on the line of its head."""
    if type(part) is Compound:
        lines[-1] += " {"
        _print_inside(part, indent, lines)
    else:
        _print(part, f"{indent}    ", lines)


def _print_inside(part: Compound, indent: str, lines: list[str]) -> None:
    """Append the contents of a block and its closing brace."""
    for inner in part.contents:
        _print(inner, f"{indent}    ", lines)
    lines.append(f"{indent}}}")
