"""Loop IR as OpenCL C: kernels behind a line that says how functions launch them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from polysci.errors import BuildError, UnsupportedError
from polysci.loop_ir.index import as_index
from polysci.loop_ir.kernels import Launch, LaunchedFunction, LaunchLoop, split
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
    Value,
    block,
    map_statements,
)
from polysci.printers.c import CPrinter
from polysci.printers.c_values import head
from polysci.printers.definitions import arrange
from polysci.printers.dialect import translate
from polysci.printers.headers import device_headers
from polysci.printers.network import FUNCTION_HEADERS, RINGS
from polysci.target.isa import Isa
from polysci.target.microkernels import HeaderSet

LANGUAGE: Final = "opencl"
_PLAN: Final = "// launches: "
_NETWORK: Final = "// network: "
_MEMORY: Final = """\
typedef struct {{
    __global char *arena;
    const __global char *constants, *packed, *literals;
    const __global void *in[{inputs}];
    __global void *out[{outputs}];
}} ps_memory;
"""


def print_file(
    title: str, header_set: HeaderSet, beside: Sequence[str], module: LoopModule,
    entries: Sequence[str],
) -> str:  # fmt: skip
    """Return a file of OpenCL C: the launches of ``entries`` in line 1, its title, its kernels."""
    kernels, launched = split(module, entries)
    code = arrange(device_headers(header_set, beside), translate(CPrinter().module(kernels)))
    return f"{print_launches(launched)}\n/* {title} */\n{code}"


@dataclass(frozen=True, slots=True)
class NetworkMemory:
    """The memory of a network on a device, in bytes, and what fills it.

    ``constants`` are the places and sizes of arrays that stages read as they are; ``packed_by``
    names a function for each of the arrays behind them, which packs it. ``literals`` are numbers
    that calls of layers take from memory.
    """

    inputs: int
    outputs: int
    arena: int
    constants_size: int
    packed_size: int
    constants: tuple[tuple[int, int], ...]
    packed_by: tuple[str, ...]
    literals: tuple[float, ...] = ()

    @property
    def buffers(self) -> tuple[str, ...]:
        """The parameters of its run: memory of its own, inputs, outputs."""
        inputs = (f"m_in{at}" for at in range(self.inputs))
        outputs = (f"m_out{at}" for at in range(self.outputs))
        return ("m_arena", "m_constants", "m_packed", "m_literals", *inputs, *outputs)


def print_network(
    name: str, isa: Isa, beside: Sequence[str], module: LoopModule, memory: NetworkMemory
) -> str:
    """Return a file of OpenCL C: launches and memory of a network in two lines, its kernels.

    ``NAME_stages`` of ``module`` runs all stages; layers are of f32 alone.
    """
    module, memory = _keep_literals(module, memory)
    stages = module.functions[f"{name}_stages"]
    run = _run_function(name, stages.body, memory)
    whole = replace(module, parts=(run, *(part for part in module.parts if part is not stages)))
    kernels, launched = split(whole, [run.name, *memory.packed_by])
    parts = tuple(
        replace(part, attributes=("static",))
        if isinstance(part, LoopFunction) and not part.attributes else part
        for part in kernels.parts
    )  # fmt: skip
    record = _MEMORY.format(inputs=max(1, memory.inputs), outputs=max(1, memory.outputs))
    own = device_headers(HeaderSet(isa.name), [*FUNCTION_HEADERS[:-1], *beside])
    needed = [*own, translate(RINGS), record]
    heads = [head(part) for part in parts if isinstance(part, LoopFunction)]
    prototypes = "".join(f"{text};\n" for text in heads if text.startswith("static"))
    code = arrange(needed, translate(prototypes + CPrinter().module(replace(kernels, parts=parts))))
    return f"{print_launches(launched)}\n{_NETWORK}{json.dumps(asdict(memory))}\n{code}"


def holds_network(text: str) -> bool:
    """Return whether a file holds a network, not layers."""
    return f"\n{_NETWORK}" in text


def read_network(text: str) -> NetworkMemory:
    """Return the memory of a network that a file holds. Raises BuildError for another text."""
    if not holds_network(text):
        raise BuildError("OpenCL: the text has no memory of a network in its second line")
    members = json.loads(text.split("\n", 2)[1].removeprefix(_NETWORK))
    lists = {name: tuple(map(tuple, members[name])) for name in ("constants",)}
    lists |= {name: tuple(members[name]) for name in ("packed_by", "literals")}
    return NetworkMemory(**{**members, **lists})


def _keep_literals(module: LoopModule, memory: NetworkMemory) -> tuple[LoopModule, NetworkMemory]:
    """Return functions whose calls take arrays of numbers from the memory of literals."""
    literals = list[float]()

    def keep(operand: Value) -> Value:
        if not (isinstance(operand, Fields) and operand.array):
            return operand
        at = 4 * len(literals)
        for _, part in operand.members:
            if not isinstance(part, Constant):
                raise UnsupportedError(f"OpenCL: no kernel takes {operand}")
            literals.append(part.value)
        place = Address(Member("m", "literals", pointed=True), as_index(at))
        return Address(place, dtype="float32", const=True)

    def change(statement: LoopStatement) -> LoopStatement:
        if isinstance(statement, Invoke):
            return Invoke(statement.function, tuple(map(keep, statement.operands)))
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
        Let("m", AddressOf("memory"), "const ps_memory *"),
        stages,
    )
    const = {*words[1:4], *inputs}
    buffers = [
        Buffer(word, "byte" if word in words[:4] else "opaque", const=word in const)
        for word in words
    ]
    return LoopFunction(f"{name}_run", tuple(buffers), body, "", ())


def print_launches(launched: Sequence[LaunchedFunction]) -> str:
    """Return the line that says what calls of functions launch."""
    members = [*map(_members, launched)]
    return f"{_PLAN}{json.dumps(members, separators=(',', ':'))}"


def read_launches(text: str) -> dict[str, LaunchedFunction]:
    """Return the functions that a file launches. Raises BuildError for another text."""
    first, _, _ = text.partition("\n")
    if not first.startswith(_PLAN):
        raise BuildError("OpenCL: the text has no launches in its first line")
    functions = [_function(members) for members in json.loads(first.removeprefix(_PLAN))]
    return {function.name: function for function in functions}


def _members(function: LaunchedFunction) -> list[Any]:
    steps = [_step_members(step) for step in function.steps]
    return [function.name, function.parameters, steps, function.result]


def _step_members(step: Launch | LaunchLoop) -> list[Any]:
    if isinstance(step, Launch):
        return [step.kernel, step.items, step.arguments]
    values = step.values
    steps = [_step_members(part) for part in step.steps]
    return [step.variable, [values.start, values.stop, values.step], steps]


def _function(members: list[Any]) -> LaunchedFunction:
    name, parameters, steps, result = members
    return LaunchedFunction(name, tuple(parameters), tuple(map(_step, steps)), result)


def _step(members: list[Any]) -> Launch | LaunchLoop:
    first, amount, rest = members
    if isinstance(amount, int):
        return Launch(first, amount, tuple(rest))
    return LaunchLoop(first, range(*amount), tuple(map(_step, rest)))
