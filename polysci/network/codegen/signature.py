"""Inputs and outputs of a network in its C: parameters, and what the header says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polysci.numerics.dtypes import C_TYPES
from polysci.program.stages import Program, Value
from polysci.text.names import remark


@dataclass(frozen=True, slots=True)
class RunArgument:
    """An argument of a run: its word in C, its name in the model, the tensor, what is to add."""

    word: str
    title: str
    value: Value
    note: str = ""

    @property
    def kind(self) -> str:
        """The C type of an element."""
        return C_TYPES[self.value.dtype]

    @property
    def parameter(self) -> str:
        return f"{'const ' * self.word.startswith('x')}{self.kind} *{self.word}"

    @property
    def row(self) -> str:
        """What the header says of it."""
        shape = " x ".join(map(str, self.value.shape)) or "one number"
        return f" *   {self.word}  {self.value.dtype:<8} {shape} ({remark(self.title)}){self.note}"

    def array(self, name: str) -> str:
        """Its definition in the header's usage."""
        return f" *     static {self.kind} {self.word}[{name.upper()}_{self.word.upper()}_COUNT];"


def ports_of(program: Program) -> list[RunArgument]:
    """Inputs, then outputs, in the order of the arguments."""
    values = program.values
    inputs = [
        RunArgument(f"x{at}", name, values[name]) for at, name in enumerate(program.arguments)
    ]
    outputs = zip(program.outputs, program.titles, strict=True)
    return inputs + [
        RunArgument(f"y{at}", title, values[name], _note(program, name, title))
        for at, (name, title) in enumerate(outputs)
    ]


def _note(program: Program, name: str, title: str) -> str:
    """What the header says of an output that a run also reads, or whose length data decides."""
    if name in program.in_place:
        return f": a run reads {remark(program.in_place[name])} here and replaces it"
    mark = program.counted.get(title)
    if mark is None:
        return ""
    return f": of axis {mark.axis} the first *y{program.titles.index(mark.count)}"


def signature_of(ports: Sequence[RunArgument], name: str) -> dict[str, str]:
    """What the templates say of the arguments of ``NAME_run``."""
    inputs = [port.word for port in ports if port.word.startswith("x")]
    outputs = [port.word for port in ports if port.word.startswith("y")]
    return {
        "ARRAYS": "\n".join(port.array(name) for port in ports),
        "ARGUMENTS": ", ".join([*inputs, *outputs]),
        "PARAMETERS": ", ".join(port.parameter for port in ports),
        "TENSORS": "\n".join(port.row for port in ports),
        "INPUTS": str(max(1, len(inputs))),
        "OUTPUTS": str(max(1, len(outputs))),
        "IN": ", ".join(inputs) or "0",
        "OUT": ", ".join(outputs) or "0",
    }


def sizes_of(ports: Sequence[RunArgument], name: str, memory: Mapping[str, int]) -> str:
    """The constants of the header: of the arguments, and of ``memory``, by what takes it."""
    sizes: dict[str, int] = {}
    for port in ports:
        sizes[f"{port.word.upper()}_COUNT"] = max(1, port.value.size)  # no C array has none
        sizes[f"{port.word.upper()}_SIZE"] = port.value.bytes
    sizes |= {f"{what}_SIZE": size for what, size in memory.items()}
    return "\n".join(f"#define {name.upper()}_{word} {size}" for word, size in sizes.items())
