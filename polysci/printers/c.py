"""Loop IR as C: functions and tables, loops that threads share by OpenMP or as a team.

Primitives are files of these, with prototypes and functions that ask for the instruction set first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from types import MappingProxyType
from typing import Any, Final

from polysci.loop_ir.index import number_in
from polysci.loop_ir.interface import NO_ISA, Function, Role
from polysci.loop_ir.nodes import (
    Advance,
    Append,
    Assign,
    Barrier,
    Block,
    Break,
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
    Prefetch,
    Return,
    Scope,
    Scoped,
    Store,
    Table,
    Team,
    Unused,
)
from polysci.numerics.scalar_functions import REAL
from polysci.printers import ctree as c
from polysci.printers import openmp
from polysci.printers.c_values import (
    c_type,
    definition,
    element,
    head,
    number,
    pointer,
    text,
    texts,
)
from polysci.printers.definitions import arrange
from polysci.printers.headers import headers
from polysci.printers.interface import declare
from polysci.target import microkernels
from polysci.target.microkernels import HeaderSet

# What an entry point does on a CPU that lacks the instruction set of its code.
_REFUSALS: Mapping[Role, str] = MappingProxyType(
    {"run": f"return {NO_ISA}", "pack_weights": "return"}
)


@dataclass(frozen=True, slots=True)
class CPrinter:
    """The printer of C, for the threads that run a piece of code.

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
        whole = c.function(head(function), [*first, *self.body(function.body)])
        if not function.comment:
            return whole
        return c.Collection([c.remark(function.comment), whole])

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
                rest = c.Compound(self.body(otherwise)) if otherwise.body else None
                return [c.when(text(condition), c.Compound(self.body(then)), rest)]
            case Block():
                return self.body(node)
            case Scoped(body):
                return [c.Compound(self.body(body))]
            case Comment(comment):
                return [c.remark(comment)]
            case Declare():
                return [_declare(node)]
            case Barrier():
                return self.wait()
            case Once():
                return self.once(node)
            case _:
                raise TypeError(f"{type(node).__name__} has no C text")

    def once(self, node: Once) -> c.Body:
        """Return statements that one thread executes."""
        body, inside = self.body(node.body), node.body.body
        if self.team is Team.POOL:
            own = c.when(f"{self.member}->thread == 0", c.Compound(body))
            return [own, *(self.wait() if node.wait else [])]
        if len(inside) != 1 or not isinstance(inside[0], Assign | Invoke | Store):
            body = [c.Compound(body)]
        return [c.Line(openmp.MASTER if node.first else openmp.single(wait=node.wait)), *body]

    def wait(self) -> c.Body:
        """Return a barrier."""
        if self.team is Team.POOL:
            return [c.Statement(f"{self.member}->wait({self.member})")]
        if self.team is Team.GROUP:
            return [c.Statement("PS_BARRIER()")]
        return [c.Line(openmp.BARRIER)]

    def loop(self, node: For) -> c.Body:
        """Return a loop as C trees."""
        if node.kind is LoopKind.THREADS:
            return self.threads(node)
        if node.kind is LoopKind.PARALLEL:
            return self.share(node)
        turns = _loop(node, text(node.start), text(node.end), self.body(node.body))
        if not node.simd:
            return [turns]
        return [c.Line(openmp.SIMD_OF.format(node.lanes) if node.lanes else openmp.SIMD), turns]

    def threads(self, node: For) -> c.Body:
        """Return a loop over thread numbers; without OpenMP it is serial."""
        body, threads = c.Compound(self.body(node.body)), number_in(node.end)
        assert threads is not None
        if self.team is Team.POOL:
            start, update = f"{self.member}->thread", f"thread += {self.member}->threads"
            turns = c.loop(f"int64_t thread = {start}", f"thread < {threads}", update, body)
            return [turns, *(self.wait() if node.wait else [])]
        shared = self.team is Team.OPENMP
        pragma = openmp.loop(wait=node.wait) if shared else openmp.parallel_loop(threads)
        turns = c.loop("int64_t thread = 0", f"thread < {threads}", "++thread", body)
        return [*map(c.Line, openmp.guard(pragma)), turns]

    def share(self, node: For) -> c.Body:
        """Return parallel loops, nested ones as one, of which each thread has a run of turns."""
        loops = [node]
        while len(loops[-1].body.body) == 1:
            inner = loops[-1].body.body[0]
            if not (isinstance(inner, For) and inner.kind is LoopKind.PARALLEL):
                break
            loops.append(inner)
        body = self.body(loops[-1].body)
        if self.team is Team.POOL:
            turns = self.run_of_turns(loops, body)
        else:
            pragma = openmp.loop(len(loops), simd=loops[-1].simd, chunk=node.chunk)
            for loop in reversed(loops):
                body = [_loop(loop, "0", text(loop.end), body)]
            turns = [c.Line(pragma), *body]
        return [*turns, *(self.wait() if node.wait else [])]

    def run_of_turns(self, loops: Sequence[For], body: c.Body) -> c.Body:
        """Return the run of turns that a member of a team has of nested loops."""
        if len(loops) == 1 and loops[0].step == 1:
            turns = _loop(loops[0], *self.ends(number_in(loops[0].end)), body)
            return [*[c.Line(openmp.SIMD)] * loops[0].simd, turns]
        counts = [-(-(number_in(loop.end) or 0) // loop.step) for loop in loops]
        total, below, origins = prod(counts), prod(counts), c.Body()
        for loop, count in zip(loops, counts, strict=True):
            below //= count
            at = f"task / {below} % {count} * {loop.step}"
            origins.append(c.Statement(f"const int64_t {loop.variable} = {at}"))
        first, end = self.ends(total)
        inside = c.Compound([*origins, *body])
        return [c.loop(f"int64_t task = {first}", f"task < {end}", "++task", inside)]

    def ends(self, count: int | None) -> tuple[str, str]:
        """Return the first turn of a member's run of so many, and its end."""
        member, of = f"{self.member}->thread", f"/ {self.member}->threads"
        return f"{count} * {member} {of}", f"{count} * ({member} + 1) {of}"


def _loop(node: For, start: str, end: str, body: c.Body) -> c.Generable:
    name = node.variable
    update = f"++{name}" if node.step == 1 else f"{name} += {node.step}"
    return c.loop(f"int64_t {name} = {start}", f"{name} < {end}", update, c.Compound(body))


def _declare(node: Declare) -> c.Generable:
    """Memory of a function's own."""
    buffer, values = node.buffer, f"{{{texts(node.values)}}}" if node.values else ""
    assert buffer.extent is not None
    count = text(buffer.extent)
    if buffer.scope is Scope.CONSTANT:
        name = definition(buffer.dtype, buffer.name)
        return c.Statement(f"static const {name}[{count}] = {values}")
    if buffer.scope is Scope.LOCAL:
        return c.Statement(f"PS_LOCAL {c_type(buffer.dtype)} {buffer.name}[{count}]")
    array = c.local_array(c_type(buffer.dtype), buffer.name, count, values)
    return c.Statement(f"static {array.text}") if buffer.scope is Scope.STATIC else array


def _table(table: Table) -> str:
    extents = "".join(f"[{extent}]" for extent in table.shape)
    literals = [number(x, REAL) if isinstance(x, float) else str(x) for x in table.values]
    values = ", ".join(literals)
    if len(table.shape) > 1:
        width = len(table.values) // table.shape[0]
        starts = range(0, len(table.values), width)
        rows = [", ".join(literals[at : at + width]) for at in starts]
        values = ", ".join(f"{{{row}}}" for row in rows)
    return f"static const {definition(table.dtype, table.name)}{extents} = {{{values}}}"


def _line(node: LoopStatement) -> str:
    """C text of a statement that is one line, without its semicolon."""
    printed: str = _LINES[type(node)](node)
    return printed


def _let(node: Let) -> str:
    qualifiers = "static " * node.static + "const " * node.const
    return f"{qualifiers}{definition(node.kind, node.name)} = {text(node.value)}"


def _assign(node: Assign) -> str:
    to = text(node.to) if isinstance(node.to, Member) else node.to
    return f"{to} = {text(node.value)}"


_LINES: Final[dict[type, Any]] = {
    Let: _let,
    Point: lambda node: f"{pointer(node.buffer)} = {text(node.address)}",
    Assign: _assign,
    Store: lambda node: f"{element(node.buffer, node.at)} = {text(node.value)}",
    Append: lambda node: f"*{node.buffer}++ = {text(node.value)}",
    Advance: lambda node: f"{node.buffer} += {text(node.count)}",
    Invoke: lambda node: f"{node.function}({texts(node.operands)})",
    Prefetch: lambda node: f"__builtin_prefetch({text(node.address)})",
    Unused: lambda node: ", ".join(f"(void){name}" for name in node.names),
    Return: lambda node: "return" if node.value is None else f"return {text(node.value)}",
    Break: lambda node: "break",
    Opaque: lambda node: '__asm__ volatile("")',
}


def print_primitive(
    module: LoopModule, entries: Sequence[Function], symbol: str, team: Team
) -> str:
    """Return the C of a primitive's functions behind the prototypes of its ``entries``."""
    printer, refusals = CPrinter(team), _refusals(entries, symbol)
    definitions = (
        printer.function(part, refusals.get(part.name, []))
        if isinstance(part, LoopFunction)
        else printer.part(part)
        for part in module.parts
    )
    return "\n".join([declare(entries, symbol), *(f"{c.text(part)}\n" for part in definitions)])


def _refusals(entries: Sequence[Function], symbol: str) -> dict[str, c.Body]:
    """Return the first statements of entry points that run code of the instruction set."""
    return {
        row.name(symbol): [c.when("!PS_CPU_OK()", c.Compound([c.Statement(_REFUSALS[row.role])]))]
        for row in entries
        if row.role in _REFUSALS
    }


def print_file(
    title: str, header_set: HeaderSet, beside: Sequence[str], texts: Sequence[str]
) -> str:
    """Return a C file of primitives with what they use of their headers; ``title`` is line 1."""
    needed = [headers(header_set), *map(microkernels.header, beside)]
    code = arrange(needed, "\n".join(texts))
    return f"/* {title} */\n{code}"
