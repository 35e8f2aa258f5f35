"""Programs of a model for several sizes, and the C that calls the one that a run asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from polysci.errors import UnsupportedError
from polysci.lower.layer_calls import serial
from polysci.network.codegen.signature import RunArgument, ports_of, signature_of, sizes_of
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.thread_shares import SHARED, ThreadShares
from polysci.space.schedule import Schedule
from polysci.text import names, templates

TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True, slots=True)
class SizedProgram:
    """A program, schedules by key of its problems, and which stages single threads compute.

    ``sizes`` tell it from others of the same library: the extents of free dimensions, by name.
    """

    placed: PlacedProgram
    schedules: Mapping[str, Schedule]
    shares: ThreadShares = SHARED
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What symbols of its own end in; a word."""
        return "_".join(f"{names.words(name)}{size}" for name, size in self.sizes.items())

    def symbol(self, name: str) -> str:
        """What begins the symbols of its own in a library."""
        return f"{name}_{self.key}" if self.sizes else name

    def serial(self) -> SizedProgram:
        """The same for one thread."""
        schedules = {key: serial(schedule) for key, schedule in self.schedules.items()}
        return replace(self, schedules=schedules, shares=SHARED)

    @property
    def ports(self) -> list[RunArgument]:
        return ports_of(self.placed.program)

    @property
    def parameters(self) -> list[str]:
        """Words in C that hold the sizes of a run."""
        return [f"size_{word}" for word in names.layers([*self.sizes], "size")]

    @property
    def condition(self) -> str:
        """C text that is true of its sizes."""
        pairs = zip(self.parameters, self.sizes.values(), strict=True)
        return " && ".join(f"{word} == {size}" for word, size in pairs)


def check_programs(programs: Sequence[SizedProgram], name: str) -> None:
    """Raise UnsupportedError where programs have other arguments than the first."""
    first = programs[0]
    for other in programs:
        if [p.parameter for p in other.ports] != [p.parameter for p in first.ports]:
            raise UnsupportedError(
                f"{name}: {other.key} has other inputs and outputs than {first.key}: the entries "
                "of a library have arguments of the same types"
            )


def describe_size(programs: Sequence[SizedProgram]) -> str:
    """What titles say of a library: its stages, and its sizes if it has several."""
    stages = f"{len(programs[0].placed.program.stages)} stages"
    return f"{stages}, for {len(programs)} sizes" if programs[0].sizes else stages


def run_values(programs: Sequence[SizedProgram], name: str) -> dict[str, str]:
    """What the templates say of the functions that run a network, and of their arguments."""
    first, ports = programs[0], programs[0].ports
    values = signature_of(ports, name)
    of = f"{name}_context *context, "
    head = f"void {name}_run({of}{values['PARAMETERS']})"
    if not first.sizes:
        return {**values, "RUN_HEAD": head, "RUN_DECLARED": f"{head};", "ENTRIES": ""}
    words = ", ".join(port.word for port in ports)
    sizes = ", ".join(f"int64_t {word}" for word in first.parameters)
    symbols = [program.symbol(name) for program in programs]
    entries = [f"void {symbol}_run({of}{values['PARAMETERS']})" for symbol in symbols]
    dispatcher = f"int {name}_run({of}{sizes}, {values['PARAMETERS']})"
    calls = "".join(
        f"if ({program.condition})\n        {symbol}_run(context, {words});\n    else "
        for program, symbol in zip(programs, symbols, strict=True)
    )
    bodies = [f"{entry}\n{{\n    run_entry(context, {at}, {words});\n}}\n"
              for at, entry in enumerate(entries)]  # fmt: skip
    bodies.append(
        f"{dispatcher}\n{{\n    {calls.rstrip()}\n        return {name.upper()}_NO_SIZE;\n"
        f"    return {name.upper()}_OK;\n}}\n"
    )
    told = {"NAME": name, "UPPER": name.upper(), "RUN_HEAD": dispatcher,
            "ENTRIES": "\n".join(f"{entry};" for entry in entries),
            "KNOWN": ", ".join(program.key for program in programs)}  # fmt: skip
    return {
        **values,
        "ARRAYS": "\n".join(port.array(symbols[0]) for port in ports),
        "ARGUMENTS": ", ".join([*map(str, first.sizes.values()), words]),
        "TENSORS": "\n".join("\n".join([f" * {program.key}:", *(p.row for p in program.ports)])
                             for program in programs),
        "RUN_HEAD": f"static void run_entry({of}int entry, {values['PARAMETERS']})",
        "RUN_DECLARED": templates.fill(TEMPLATES / "sizes.h", told).rstrip(),
        "ENTRIES": "\n" + "\n".join(bodies),
    }  # fmt: skip


def all_sizes(programs: Sequence[SizedProgram], name: str, memory: Mapping[str, int]) -> str:
    """The constants of the header, as ``sizes_of`` has them, of all programs."""
    if not programs[0].sizes:
        return sizes_of(programs[0].ports, name, memory)
    own = [sizes_of(program.ports, program.symbol(name), {}) for program in programs]
    return "\n".join([*own, sizes_of([], name, memory)])
