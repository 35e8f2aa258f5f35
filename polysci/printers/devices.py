"""Loop IR in a device's language: kernels behind a line that says how functions launch them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import as_index
from polysci.loop_ir.kernels import split
from polysci.loop_ir.microkernels import Unit
from polysci.loop_ir.nodes import (
    Address,
    AddressOf,
    Block,
    Buffer,
    Constant,
    Fields,
    Invoke,
    Let,
    LoopFunction,
    LoopModule,
    LoopStatement,
    Member,
    Named,
    Point,
    Team,
    Value,
    block,
    map_statements,
)
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
    title: str, header_set: HeaderSet, beside: Sequence[str], module: LoopModule,
    entries: Sequence[str],
) -> str:  # fmt: skip
    """Return a device's code: the launches of ``entries`` in line 1, its title, its kernels."""
    kernels, launched = split(module, entries)
    text = dialect_for(header_set.isa).translate(CPrinter(Team.GROUP).module(kernels))
    code = arrange(device_headers(header_set, beside), text)
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
    dialect, functions = dialect_for(units[0].isa), [*FUNCTION_HEADERS, ROUTINES, *beside]
    best_last = sorted(units, key=lambda unit: len(isa_of(unit.isa).chain))
    choices = {_types_of(unit): unit for unit in best_last}
    variants = Variants.of({it: device_headers(it, functions) for it in choices.values()})
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
    needed = [*variants.headers, *map(dialect.translate, (RINGS, record))]
    printer, prototypes, texts = CPrinter(Team.GROUP), list[str](), list[str]()
    for part in parts:
        own = isinstance(part, LoopFunction) and part.unit
        unit = choices[_types_of(own) if own else _types_of(units[0])]
        text = dialect.translate(printer.module(replace(kernels, parts=(part,))))
        texts.append(variants.rename(text, unit))
        if isinstance(part, LoopFunction) and (line := head(part)).startswith("static"):
            prototypes.append(variants.rename(dialect.translate(f"{line};\n"), unit))
    code = arrange(needed, "".join([*prototypes, "\n".join(texts)]))
    return f"{print_launches(launched)}\n{print_memory(memory)}\n{code}"


def _types_of(unit: HeaderSet | Unit) -> tuple[int, str, str, str, bool]:
    """Return what tells the code of a choice of headers from that of others."""
    lanes = unit.lanes if isinstance(unit, Unit) else isa_of(unit.isa).lanes_f32
    return lanes, unit.compute, unit.x, unit.y, unit.packed_copy


def _keep_literals(module: LoopModule, memory: NetworkMemory) -> tuple[LoopModule, NetworkMemory]:
    """Return functions whose calls take arrays of numbers from the memory of literals."""
    literals = list[float]()

    def keep(operand: Value) -> Value:
        if not (isinstance(operand, Fields) and operand.array):
            return operand
        at = 4 * len(literals)
        for _, part in operand.members:
            if not isinstance(part, Constant):
                raise UnsupportedError(f"no kernel takes {operand}")
            literals.append(part.value)
        place = Address(Member("m", "literals", pointed=True), as_index(at))
        return Address(place, dtype="float32", const=True)

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
    return replace(module, parts=tuple(parts)), replace(memory, literals=tuple(literals))


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
