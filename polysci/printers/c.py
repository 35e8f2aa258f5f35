"""Loop IR as C: functions and tables, loops that threads share by OpenMP or as a team."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from polysci.loop_ir.functions import number
from polysci.loop_ir.index import number_in
from polysci.loop_ir.nodes import (
    Advance,
    Append,
    Assign,
    Barrier,
    Block,
    Break,
    Buffer,
    Comment,
    Declare,
    For,
    If,
    Invoke,
    Let,
    LoopFunction,
    LoopKind,
    LoopModule,
    LoopStatement,
    Member,
    Once,
    Opaque,
    Point,
    Return,
    ScalarParameter,
    Scope,
    Scoped,
    Store,
    Table,
    Unused,
)
from polysci.numerics.scalar_functions import REAL
from polysci.printers import ctree as c
from polysci.printers import openmp
from polysci.printers.c_values import element, text, texts
from polysci.printers.sharing import Loop, nest, run_once, share_loops, share_threads, wait_for_all
from polysci.printers.team import Team

LINE: Final = 4  # parameters of a long list that stand beside the function's name


@dataclass(frozen=True, slots=True)
class CPrinter:
    """The printer of C for a team, the threads that run a piece of code.

    ``member`` is C text of the team of a pool, as the thread sees it.
    """

    team: Team = Team.OWN
    member: str = "team"

    def module(self, module: LoopModule) -> str:
        """Return all functions and tables."""
        return "\n".join(f"{c.text(self.part(part))}\n" for part in module.parts)

    def part(self, part: LoopFunction | Table | Let | Declare) -> c.Generable:
        """Return a function, a table, a constant or static memory as a C tree."""
        if isinstance(part, LoopFunction):
            return self.function(part)
        if isinstance(part, Declare):
            return _declare(part)
        return c.Statement(_table(part) if isinstance(part, Table) else _line(part))

    def function(self, function: LoopFunction, first: Sequence[c.Generable] = ()) -> c.Generable:
        """Return the definition of a function as a C tree; its body begins with ``first``."""
        definition = c.function(_head(function), [*first, *self.body(function.body)])
        if not function.comment:
            return definition
        return c.Collection([c.remark(function.comment), definition])

    def body(self, block: Block) -> c.Body:
        """Return the statements of a block as C trees."""
        return list(chain.from_iterable(map(self.statement, block.body)))

    def statement(self, node: LoopStatement) -> c.Body:
        """Return a statement as C trees."""
        if type(node) in _LINES:  # most are
            return [c.Statement(_line(node))]
        match node:
            case For():
                return self.loop(node)
            case If(condition, then, otherwise):
                rest = c.Block(self.body(otherwise)) if otherwise.body else None
                return [c.when(text(condition), c.Block(self.body(then)), rest)]
            case Block():
                return self.body(node)
            case Scoped(body):
                return [c.Block(self.body(body))]
            case Comment(words):
                return [c.remark(words)]
            case Declare():
                return [_declare(node)]
            case Barrier():
                return wait_for_all(self.team, self.member)
            case Once():
                return self.once(node)
            case _:
                raise TypeError(f"{type(node).__name__} has no C text")

    def once(self, node: Once) -> c.Body:
        """Return statements that one thread executes."""
        body = self.body(node.body)
        if self.team is Team.POOL:
            return run_once(self.team, body, wait=node.wait, member=self.member)
        if len(node.body.body) != 1 or not isinstance(node.body.body[0], Assign | Invoke):
            body = [c.Block(body)]
        if node.first:
            return [c.Line(openmp.MASTER), *body]
        return run_once(self.team, body, wait=node.wait)

    def loop(self, node: For) -> c.Body:
        """Return a loop as C trees."""
        if node.kind is LoopKind.THREADS:
            body, threads = c.Block(self.body(node.body)), number_in(node.end)
            assert threads is not None
            return share_threads(self.team, threads, body, last=not node.wait)
        if node.kind is LoopKind.PARALLEL:
            return self.share(node)
        update = f"++{node.variable}" if node.step == 1 else f"{node.variable} += {node.step}"
        start, end = f"int64_t {node.variable} = {text(node.start)}", text(node.end)
        turns = c.loop(start, f"{node.variable} < {end}", update, c.Block(self.body(node.body)))
        if not node.simd:
            return [turns]
        return [c.Line(openmp.SIMD_OF.format(node.lanes) if node.lanes else openmp.SIMD), turns]

    def share(self, node: For) -> c.Body:
        """Return parallel loops, nested ones as one, whose turns threads share."""
        loops, inner = list[Loop](), node
        while True:
            extent = number_in(inner.end)
            assert extent is not None and number_in(inner.start) == 0
            loops.append((inner.variable, extent, inner.step))
            first = inner.body.body[0] if len(inner.body.body) == 1 else None
            if not (isinstance(first, For) and first.kind is LoopKind.PARALLEL):
                break
            inner = first
        body = self.body(inner.body)
        if node.chunk and self.team is not Team.POOL:
            return [c.Line(openmp.loop(len(loops), chunk=node.chunk)), *nest(loops, body)]
        shared = share_loops(self.team, loops, body, simd=inner.simd, member=self.member)
        return [*shared, *(wait_for_all(self.team, self.member) if node.wait else [])]


def _head(function: LoopFunction) -> str:
    """Return the head of a definition; entry points of many parameters take two lines."""
    words = [parameter_text(part) for part in function.parameters]
    lines = [words] if "static" in function.attributes else [words[:LINE], words[LINE:]]
    parameters = ",\n        ".join(", ".join(line) for line in lines if line) or "void"
    return " ".join([*function.attributes, function.result, f"{function.name}({parameters})"])


def parameter_text(part: Buffer | ScalarParameter) -> str:
    """Return a parameter as a function's head lists it."""
    if isinstance(part, ScalarParameter):
        between = "" if part.kind.endswith("*") else " "
        return f"{part.kind}{between}{part.name}"
    if part.shape:
        axes = "".join(f"[{extent}]" for extent in part.shape)
        return f"{'const ' * part.const}{part.dtype} {part.name}{axes}"
    return _pointer(part)


def _pointer(buffer: Buffer) -> str:
    const, restrict = "const " * buffer.const, "restrict " * buffer.restrict
    return f"{const}{buffer.dtype} *{restrict}{buffer.name}"


def _declare(node: Declare) -> c.Generable:
    """Memory of a function's own."""
    buffer, values = node.buffer, f"{{{texts(node.values)}}}" if node.values else ""
    assert buffer.extent is not None
    count = text(buffer.extent)
    if buffer.scope is Scope.CONSTANT:
        return c.Statement(f"static const {buffer.dtype} {buffer.name}[{count}] = {values}")
    array = c.local_array(buffer.dtype, buffer.name, count, values)
    return c.Statement(f"static {array.text}") if buffer.scope is Scope.STATIC else array


def _table(table: Table) -> str:
    extents = "".join(f"[{extent}]" for extent in table.shape)
    words = [number(x, REAL) if isinstance(x, float) else str(x) for x in table.values]
    values = ", ".join(words)
    if len(table.shape) > 1:
        width = len(table.values) // table.shape[0]
        starts = range(0, len(table.values), width)
        rows = [", ".join(words[at : at + width]) for at in starts]
        values = ", ".join(f"{{{row}}}" for row in rows)
    return f"static const {table.dtype} {table.name}{extents} = {{{values}}}"


def _line(node: LoopStatement) -> str:
    """C text of a statement that is one line, without its semicolon."""
    printed: str = _LINES[type(node)](node)
    return printed


def _let(node: Let) -> str:
    words = "static " * node.static + "const " * node.const + node.kind
    return f"{words}{' ' * (node.kind[-1] != '*')}{node.name} = {text(node.value)}"


def _assign(node: Assign) -> str:
    to = text(node.to) if isinstance(node.to, Member) else node.to
    return f"{to} = {text(node.value)}"


_LINES: Final[dict[type, Any]] = {
    Let: _let,
    Point: lambda node: f"{_pointer(node.buffer)} = {text(node.address)}",
    Assign: _assign,
    Store: lambda node: f"{element(node.buffer, node.at)} = {text(node.value)}",
    Append: lambda node: f"*{node.buffer}++ = {text(node.value)}",
    Advance: lambda node: f"{node.buffer} += {text(node.count)}",
    Invoke: lambda node: f"{node.function}({texts(node.operands)})",
    Unused: lambda node: ", ".join(f"(void){name}" for name in node.names),
    Return: lambda node: "return" if node.value is None else f"return {text(node.value)}",
    Break: lambda node: "break",
    Opaque: lambda node: '__asm__ volatile("")',
}
