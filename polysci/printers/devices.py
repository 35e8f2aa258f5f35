"""Loop IR in a device's language: kernels behind a line that says how functions launch them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import Linear, as_index
from polysci.loop_ir.kernels import split
from polysci.loop_ir.microkernels import Unit
from polysci.loop_ir.nodes import (
    Address,
    AddressOf,
    Block,
    Buffer,
    Constant,
    Declare,
    Fields,
    Invoke,
    Let,
    LoopFunction,
    LoopModule,
    LoopStatement,
    Member,
    Named,
    Point,
    Scoped,
    Table,
    Team,
    Value,
    block,
    map_statements,
    map_words,
    names_in,
)
from polysci.numerics.scalar_functions import REAL
from polysci.printers.c import CPrinter
from polysci.printers.c_values import head
from polysci.printers.definitions import arrange
from polysci.printers.dialect import Dialect, dialect_of
from polysci.printers.headers import FUNCTION_HEADERS, ROUTINES, device_headers
from polysci.printers.launches import NetworkMemory, print_launches, print_memory
from polysci.printers.network import RINGS
from polysci.printers.variants import Variants
from polysci.target.isas import isa_of
from polysci.target.microkernels import HeaderSet

_Types = tuple[int, str, str, str, bool]
_MEMORY: Final = """\
typedef struct {{
    char *arena;
    const char *constants, *packed, *literals;
    const void *in[{inputs}];
    void *out[{outputs}];
}} ps_memory;
"""


def dialect_for(isa: str) -> Dialect:
    """Return the language of a device's instruction set."""
    return dialect_of(isa_of(isa).language)


def print_file(
    title: str, units: Sequence[HeaderSet], beside: Sequence[str], module: LoopModule,
    entries: Sequence[str],
) -> str:  # fmt: skip
    """Return a device's code: the launches of ``entries`` in line 1, its title, its kernels.

    ``units`` are the headers that its code needs.
    """
    kernels, launched = split(module, entries)
    choices = _Choices.of(units, beside)
    text = "\n".join(choices.text(replace(kernels, parts=(part,))) for part in kernels.parts)
    code = arrange(choices.variants.headers, text)
    return f"{print_launches(launched)}\n/* {title} */\n{code}"


def print_network(
    symbols: Sequence[str], units: Sequence[HeaderSet], beside: Sequence[str], module: LoopModule,
    memory: NetworkMemory,
) -> str:  # fmt: skip
    """Return a device's code: launches and memory of a network in two lines, its kernels.

    ``SYMBOL_stages`` of ``module`` runs all stages of one of its programs. ``units`` are the
    headers that its code needs, first those of stages. Raises UnsupportedError for types without
    kernels.
    """
    choices = _Choices.of(units, [*FUNCTION_HEADERS, ROUTINES, *beside])
    module, memory = _keep_literals(module, memory)
    stages = {symbol: module.functions[f"{symbol}_stages"] for symbol in symbols}
    runs = [_run_function(symbol, own.body, memory) for symbol, own in stages.items()]
    others = (part for part in module.parts if part not in stages.values())
    whole = replace(module, parts=(*runs, *others))
    kernels, launched = split(whole, [*(run.name for run in runs), *memory.packed_by])
    parts = tuple(
        replace(part, attributes=("static",))
        if isinstance(part, LoopFunction) and not part.attributes else part
        for part in sorted(kernels.parts, key=lambda part: isinstance(part, LoopFunction))
    )  # fmt: skip
    record = _MEMORY.format(inputs=max(1, memory.inputs), outputs=max(1, memory.outputs))
    needed = [*choices.variants.headers, *map(choices.dialect.translate, (RINGS, record))]
    heads = (choices.head(part) for part in parts if isinstance(part, LoopFunction))
    prototypes = [f"{line};\n" for line in heads if line.startswith("static")]
    texts = (choices.text(replace(kernels, parts=(part,))) for part in parts)
    code = arrange(needed, "".join([*prototypes, "\n".join(texts)]))
    return f"{print_launches(launched)}\n{print_memory(memory)}\n{code}"


@dataclass(frozen=True, slots=True)
class _Choices:
    """Headers for several choices of element types; code of no choice has those of ``first``."""

    dialect: Dialect
    first: HeaderSet
    units: Mapping[_Types, HeaderSet]
    variants: Variants

    @classmethod
    def of(cls, units: Sequence[HeaderSet], beside: Sequence[str]) -> _Choices:
        """Take headers, those ``beside`` them for all; of those of the same types the best."""
        best_last = sorted(units, key=lambda unit: len(isa_of(unit.isa).chain))
        own = {_types_of(unit): unit for unit in best_last}
        variants = Variants.of({unit: device_headers(unit, beside) for unit in own.values()})
        return cls(dialect_for(units[0].isa), own[_types_of(units[0])], own, variants)

    def text(self, module: LoopModule) -> str:
        """Return a module of one part as text, by the names that its headers have."""
        (part,) = module.parts
        if isinstance(part, LoopFunction):
            part = replace(part, body=map_statements(part.body, self._rename_scope))
        return self._rename(CPrinter(Team.GROUP).module(replace(module, parts=(part,))), part)

    def _rename_scope(self, statement: LoopStatement) -> LoopStatement:
        """Return statements of other element types by the names that their headers have."""
        if not (isinstance(statement, Scoped) and statement.unit):
            return statement
        unit = self.units[_types_of(statement.unit)]
        return Scoped(map_words(statement.body, partial(self.variants.rename, unit=unit)))

    def head(self, function: LoopFunction) -> str:
        """Return the head of a function."""
        return self._rename(head(function), function)

    def _rename(self, text: str, part: LoopFunction | Table | Let | Declare) -> str:
        own = part.unit if isinstance(part, LoopFunction) else None
        unit = self.units[_types_of(own)] if own else self.first
        return self.variants.rename(self.dialect.translate(text), unit)


def _types_of(unit: HeaderSet | Unit) -> _Types:
    """Return what tells the code of a choice of headers from that of others."""
    lanes = unit.lanes if isinstance(unit, Unit) else isa_of(unit.isa).lanes_f32
    return lanes, unit.compute, unit.x, unit.y, unit.packed_copy


def _keep_literals(module: LoopModule, memory: NetworkMemory) -> tuple[LoopModule, NetworkMemory]:
    """Return functions whose calls take numbers and scales from the memory of literals.

    Tables of scales are left out: they are there.
    """
    literals, kept = list[float | int](), set[str]()
    tables = {part.name: part for part in module.parts if isinstance(part, Table)}

    def keep(operand: Value) -> Value:
        if not (isinstance(operand, Fields) and operand.array):
            return operand
        at = 4 * len(literals)
        literals.extend(_words_of(operand, tables))
        kept.update(names_in(operand) & tables.keys())
        place = Address(Member("m", "literals", pointed=True), as_index(at))
        # A record has a name for each choice of headers: the callee's.
        return Address(place, dtype=REAL if operand.dtype == REAL else "opaque", const=True)

    def change(statement: LoopStatement) -> LoopStatement:
        if isinstance(statement, Invoke):
            return Invoke(statement.function, tuple(map(keep, statement.operands)))
        if isinstance(statement, Point):
            return Point(statement.buffer, keep(statement.address))  # type: ignore[arg-type]
        return statement

    parts = [
        replace(part, body=map_statements(part.body, change))
        if isinstance(part, LoopFunction) else part
        for part in module.parts
    ]  # fmt: skip
    parts = [part for part in parts if not (isinstance(part, Table) and part.name in kept)]
    return replace(module, parts=tuple(parts)), replace(memory, literals=tuple(literals))


def _words_of(array: Fields, tables: Mapping[str, Table]) -> Iterator[float | int]:
    """Yield the numbers of 32 bits of an array; of a record those of its table behind the others.

    So is ``polysci_scales`` of devices. Raises UnsupportedError for what is no number.
    """
    behind = list[float | int]()
    for _, part in array.members:
        match part:
            case Constant(value):
                yield float(value)
            case Fields(members):
                yield from _words_of(Fields(members), tables)
            case Named(name) if name in tables:
                behind += tables[name].values
            case Linear(terms=(), constant=number):
                yield number
            case _:
                raise UnsupportedError(f"no kernel takes {array}")
    yield from behind


def _run_function(name: str, stages: Block, memory: NetworkMemory) -> LoopFunction:
    """Return the function that runs all stages on the buffers that it takes."""
    words = memory.buffers
    inputs, outputs = words[4 : 4 + memory.inputs], words[4 + memory.inputs :]
    fields: list[tuple[str, Value]] = [(word.removeprefix("m_"), Named(word)) for word in words[:4]]
    fields += [
        (field, Fields(tuple(("", Named(word)) for word in own)))
        for field, own in (("in", inputs), ("out", outputs))
    ]
    body = block(
        Let("memory", Fields(tuple(fields)), "ps_memory", const=False),
        Let("m", AddressOf("memory"), "ps_memory *"),
        stages,
    )
    const = {*words[1:4], *inputs}
    buffers = [
        Buffer(word, "byte" if word in words[:4] else "opaque", const=word in const)
        for word in words
    ]
    return LoopFunction(f"{name}_run", tuple(buffers), body, "", ())
