"""A placed program with schedules -> C: one file of loops and stages, others of layers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from polysci.errors import UnsupportedError
from polysci.loop_ir.nodes import Let, LoopFunction, LoopModule, join
from polysci.lower.layer_calls import LayerCall, SharedLayers, Spot, calls_of, serial
from polysci.lower.stages.program import StageLowering
from polysci.lower.weights_file import (
    FileChecks,
    WeightsFile,
    WeightsUse,
    packing_by_layer,
    packing_of,
    pieces_of,
    weights_file_of,
)
from polysci.printers import devices
from polysci.printers.generation import NO_GENERATION, GenerationCode, generation_code
from polysci.printers.launches import NetworkMemory
from polysci.printers.network import (
    MEMORY,
    OPENMP,
    NetworkStages,
    RunArgument,
    RunEntry,
    StateTensor,
    code_values,
    denormal_values,
    layer_declarations,
    library_declarations,
    print_network,
    run_values,
    size_constants,
    state_values,
    team_of,
    tuning_values,
)
from polysci.program.passes.arena import Arena, state_offsets
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.in_place import rows_of_state
from polysci.program.passes.thread_shares import SHARED, ThreadShares
from polysci.program.stages import Program
from polysci.runtime.source import Source, assemble
from polysci.space.schedule import Schedule
from polysci.target.isa import Isa
from polysci.target.isas import least_of
from polysci.target.microkernels import HeaderSet
from polysci.target.target import HOST
from polysci.text import names
from polysci.text.names import remark

Size = int | range  # of a dimension; a range has a step of 1
EMPTY: Final[Mapping[str, str]] = MappingProxyType({})
LAYERS_A_FILE = 6  # so that several compilers have something to do


@dataclass(frozen=True, slots=True)
class Code:
    """The C of a network: texts by file name, its weights, memory and the code of every stage.

    ``isa`` is the least instruction set that runs all of it; ``values`` fill the templates.
    ``backend`` is that of the device, ``module`` the loop IR of stages and layers. Where a library
    has several programs, ``entry`` is the symbol of the one that runs, ``calls`` are the first's;
    ``sizes`` are what its runs are told, in order.
    """

    name: str
    isa: Isa
    files: Mapping[str, str]
    values: Mapping[str, str]
    declarations: str
    weights_file: WeightsFile
    arena: Arena
    placed: PlacedProgram
    calls: Mapping[Spot, LayerCall]
    pool: str = OPENMP
    backend: str = HOST
    entry: str = ""
    sizes: tuple[int, ...] = ()
    module: LoopModule = field(default=LoopModule(()), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SizedProgram:
    """A program, schedules by key of its problems, and which stages single threads compute.

    ``sizes`` tell it from others of the same library: the extents of free dimensions, by name, or
    from where to where they are.
    """

    placed: PlacedProgram
    schedules: Mapping[str, Schedule]
    shares: ThreadShares = SHARED
    sizes: Mapping[str, Size] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A word in which its symbols end."""
        return "_".join(
            names.underscore(name) + (
                str(size) if isinstance(size, int) else "to".join(map(str, ends_of(size)))
            )
            for name, size in self.sizes.items()
        )  # fmt: skip

    def serial(self) -> SizedProgram:
        """Return the program for one thread."""
        schedules = {key: serial(schedule) for key, schedule in self.schedules.items()}
        return replace(self, schedules=schedules, shares=SHARED)

    def entry(self, name: str) -> RunEntry:
        """Return its entry in the library ``name``."""
        size_names = [f"size_{word}" for word in names.layers([*self.sizes], "size")]
        program = self.placed.program
        words = dict(zip(self.sizes, size_names, strict=True))
        told = {
            size: words.get(size, str(span[-1]))
            for size, span in program.spans.items() if size not in program.derived
        }  # fmt: skip
        fixed = [size for size in told if len(program.spans[size]) == 1]  # but not in other entries
        made = {
            size: f"(at most {program.spans[size][-1]})" if fixed else f"({own.text(told)})"
            for size, own in program.derived.items()
        }  # fmt: skip
        return RunEntry(
            f"{name}_{self.key}" if self.sizes else name, arguments_of(program, words | made),
            dict(zip(size_names, self.sizes.values(), strict=True)), self.key,
            tuple(told.values()), limits_of(program),
        )  # fmt: skip


def ends_of(sizes: range) -> tuple[int, ...]:
    """Return the first and the last of some sizes; of a single one that."""
    return (sizes[0], sizes[-1]) if len(sizes) > 1 else (sizes[0],)


def arguments_of(program: Program, words: Mapping[str, str] = EMPTY) -> list[RunArgument]:
    """Return the arguments of a run: inputs, then outputs; ``words`` are parameters by size."""
    values = program.values
    tensors = [*program.arguments, *program.results.values()]
    axes = [
        {at: words[size] for at, size in program.varying.get(name, {}).items() if size in words}
        for name in tensors
    ]
    inputs = [(f"x{at}", name, values[name], "") for at, name in enumerate(program.arguments)]
    outputs = [
        (f"y{at}", title, values[name], _note(program, name, title))
        for at, (title, name) in enumerate(program.results.items())
    ]
    return [
        RunArgument(word, title, value.dtype, value.shape, note, own)
        for (word, title, value, note), own in zip((*inputs, *outputs), axes, strict=True)
    ]


def _note(program: Program, name: str, title: str) -> str:
    """Return a remark on an output that a run also reads, or whose length data decides."""
    if name in program.in_place:
        return f": a run reads {remark(program.in_place[name])} here and replaces it"
    if program.data_sizes.most and title == program.data_sizes.output:
        most = ", ".join(f"{remark(own)} at most {size}" for own, size in program.data_sizes.most)
        return f": what data asked for, {most}"
    mark = program.dynamic_dims.get(title)
    if mark is None:
        return ""
    return f": of axis {mark.axis} the first *y{[*program.results].index(mark.count)}"


def limits_of(program: Program) -> tuple[str, ...]:
    """Return C text for each size that data decides: true where it is above the most of it."""
    sizes = program.data_sizes
    if not sizes.most:
        return ()
    word = f"y{[*program.results].index(sizes.output)}"
    return tuple(f"{word}[{at}] > {most}" for at, (_, most) in enumerate(sizes.most))


def check_programs(programs: Sequence[SizedProgram], name: str, isa: Isa) -> None:
    """Raise UnsupportedError where programs have other arguments or state than the first.

    Or where they keep state, and the code is that of a device.
    """
    sizes = programs[0].placed.program.data_sizes.most
    if sizes and isa.language != "c":
        raise UnsupportedError(
            f"{name}: data decides a size of it, {sizes[0][0]!r:.80}: only the host checks that"
        )
    if sizes and programs[0].placed.program.counter:
        raise UnsupportedError(
            f"{name}: data decides a size of it, {sizes[0][0]!r:.80}: no such network counts tokens"
        )
    kept = programs[0].placed.program.state
    if kept and isa.language != "c":
        raise UnsupportedError(
            f"{name}: it keeps state, as {next(iter(kept))!r:.80}: only the host does"
        )
    first, *others = [
        [argument.parameter for argument in arguments_of(program.placed.program)]
        for program in programs
    ]
    own, *states = [_describe_state(program.placed.program) for program in programs]
    for program, parameters, state in zip(programs[1:], others, states, strict=True):
        if parameters != first:
            raise UnsupportedError(
                f"{name}: {program.key} has other inputs and outputs than {programs[0].key}: the "
                "entries of a library have arguments of the same types"
            )
        if state != own:
            raise UnsupportedError(
                f"{name}: {program.key} keeps other state than {programs[0].key}: the entries of a "
                "library share what lasts from run to run"
            )


def _describe_state(program: Program) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """Return names, types, shapes and first values of state."""
    values = [(program.values[held], program.state[name]) for name, held in program.kept.items()]
    return [
        (name, value.dtype, value.shape, first.tobytes())
        for name, (value, first) in zip(program.kept, values, strict=True)
    ]


def describe_size(programs: Sequence[SizedProgram]) -> str:
    """Return a library's size in words: its stages, and its sizes if it has several."""
    stages = f"{len(programs[0].placed.program.stages)} stages"
    return f"{stages}, for {len(programs)} sizes" if programs[0].sizes else stages


def code_of(
    programs: Sequence[SizedProgram],
    name: str,
    isa: Isa,
    threads: int = 1,
    *,
    apart: bool = False,
    timed: bool = False,
    flush_denormals: bool = True,
    pool: str = OPENMP,
) -> Code:
    """Return the C of a program, or of several, which share layers and packed weights.

    ``apart``: tensors share no memory, and ``NAME_memory`` gives the address of theirs. ``timed``:
    ``NAME_times`` gives the seconds at which the last run began and ended each of its stages.
    ``flush_denormals``: numbers below the smallest normal one count as 0, constants among them.
    ``pool`` starts the threads: ``openmp``, or one of POOLS.

    The code's ``arena`` is the largest of theirs, ``placed`` and ``calls`` are the first's. Raises
    UnsupportedError for programs whose arguments differ in number or type.
    """
    check_programs(programs, name, isa)
    if all(len(own.shares.alone) == len(own.placed.program.stages) for own in programs):
        programs, threads = [own.serial() for own in programs], 1
    pool = pool if threads > 1 else OPENMP
    uses = _weights_uses(programs, name, threads, pool)
    calls = [call for use in uses for call in use.calls.values()]
    tuning = tuning_values(isa)
    isa = least_of(isa, [call.source.isa for call in calls])
    weights_file, offsets = weights_file_of(uses, flush=flush_denormals)
    entries = [own.entry(name) for own in programs]
    lowerings = [
        StageLowering(
            own.placed, entry.symbol, isa, threads, use.calls, constants, apart, timed, own.shares
        )
        for own, entry, use, constants in zip(programs, entries, uses, offsets, strict=True)
    ]  # fmt: skip
    arena = _largest_arena(lowerings)
    values = _library_values(programs, entries, name, arena, weights_file, offsets[0])
    if isa.language != "c":
        return _device_code(name, isa, lowerings, calls, weights_file, entries, values)
    sources = _sources_of(calls)
    stages = _stages_of(lowerings, packing_of(weights_file, calls), pool, threads, timed=timed)
    values |= {
        **stages.values(entries, name),
        **denormal_values(flush=flush_denormals),
        **library_declarations(entries, name, apart=apart, timed=timed, state=arena.state > 0),
        **tuning,
        "EMBEDDED": "",
        "DECLARATIONS": _declare(sources),
    }
    values |= code_values(isa, values)
    files = {**print_network(values, "raw"), **_layer_files(name, sources)}
    return Code(
        name, isa, files, values, values["CDEF"], weights_file, arena,
        programs[0].placed, uses[0].calls, pool,
        module=_module_of(stages, sources, arena, weights_file),
    )  # fmt: skip


def _library_values(
    programs: Sequence[SizedProgram], entries: Sequence[RunEntry], name: str, arena: Arena,
    weights: WeightsFile, constants: Mapping[str, int],
) -> dict[str, str]:  # fmt: skip
    """Return what templates say of memory, runs and state; ``constants`` are offsets, by name."""
    generation = _generation(programs, entries, name)
    return {
        **_memory_values(entries, name, arena, weights, generation.room),
        **run_values(entries, name),
        **generation.values,
        **state_values(_state_of(programs[0].placed.program, constants), arena.state),
        "SIZE": describe_size(programs),
    }


def _state_of(program: Program, constants: Mapping[str, int]) -> list[StateTensor]:
    """Return the state of a program's contexts; ``constants`` are offsets, in bytes, by name."""
    offsets, _ = state_offsets(program)
    return [
        StateTensor(
            name, value.dtype, value.shape, offsets[held],
            constants[name] if program.state[name].any() else None,
        )
        for name, held in program.kept.items() for value in [program.values[held]]
    ]  # fmt: skip


def _generation(
    programs: Sequence[SizedProgram], entries: Sequence[RunEntry], name: str
) -> GenerationCode:
    """Return the functions of a library that reads tokens, where its state counts them."""
    all_programs = [own.placed.program for own in programs]
    first = all_programs[0]
    if not first.counter:
        return NO_GENERATION
    offsets, _ = state_offsets(first)
    limits = [limit for program in all_programs if (limit := rows_of_state(program)) is not None]
    at = offsets[first.kept[first.counter]]
    return generation_code(entries, name, at, min(limits, default=None))


def _sources_of(calls: Iterable[LayerCall]) -> list[Source]:
    """Return the code of layers, each once."""
    return [*map(Source.of, {call.source.symbol: call.source for call in calls}.values())]


def _device_code(
    name: str, isa: Isa, lowerings: Sequence[StageLowering], calls: Sequence[LayerCall],
    weights: WeightsFile, entries: Sequence[RunEntry], values: Mapping[str, str],
) -> Code:  # fmt: skip
    """Return the code of a network in the language of a device that has a queue."""
    first, layers, packing = lowerings[0], _sources_of(calls), packing_by_layer(calls)
    program, arena = first.placed.program, _largest_arena(lowerings)
    constants = zip(weights.constants, weights.parts, strict=False)
    memory = NetworkMemory(
        len(program.arguments), len(program.results), arena.size, weights.constants_size,
        weights.packed_size, tuple((at, part.array.nbytes) for at, part in constants),
        tuple(packing.functions), apart=first.apart,
    )  # fmt: skip
    stages = map(_stages_module, lowerings)
    module = join([*stages, packing, *(layer.module for layer in layers)])
    units = dict.fromkeys([HeaderSet(isa.name), *(layer.header_set for layer in layers)])
    beside = dict.fromkeys(header for layer in layers for header in layer.beside)
    symbols = [lowering.name for lowering in lowerings]
    text = devices.print_network(symbols, [*units], [*beside], module, memory)
    declarations = library_declarations(entries, name, apart=False, timed=False)
    file = f"{name}{devices.dialect_for(isa.name).suffix}"
    return Code(
        name, isa, {file: text}, values, declarations["CDEF"], weights, arena,
        first.placed, first.calls, module=module,
    )  # fmt: skip


def _largest_arena(lowerings: Iterable[StageLowering]) -> Arena:
    """Return the memory that serves the tensors of each of the programs."""
    return max((lowering.arena for lowering in lowerings), key=lambda arena: arena.size)


def use_packed_weights(code: Code, data: memoryview) -> dict[str, str]:
    """Return all C files for weights packed ahead: ``data``, as ``NAME_model_data`` has it."""
    values = {**code.values, **_values_of(FileChecks.of(pieces_of(data)))}
    return {**code.files, **print_network(values, "packed")}


def _layer_files(name: str, layers: Iterable[Source]) -> dict[str, str]:
    """Return the C files of layers, one header set a file."""
    by_unit: dict[str, list[Source]] = {}
    for source in layers:
        by_unit.setdefault(source.key, []).append(source)
    return {
        f"{name}_{unit}_{first // LAYERS_A_FILE}.c": assemble(
            sources[first : first + LAYERS_A_FILE]
        )
        for unit, sources in by_unit.items()
        for first in range(0, len(sources), LAYERS_A_FILE)
    }


def _stages_module(lowering: StageLowering) -> LoopModule:
    """Return tables and loops of a program, and last the function of all its stages."""
    stages = LoopFunction(f"{lowering.name}_stages", (MEMORY,), lowering.stages(), attributes=())
    return LoopModule((*lowering.tables, *lowering.functions, stages))


def _weights_uses(
    programs: Sequence[SizedProgram], name: str, threads: int, pool: str
) -> list[WeightsUse]:
    """Return the calls of each program's layers, which share code where it is the same."""
    layers, team = SharedLayers(), team_of(pool)
    return [
        WeightsUse(own.placed, calls_of(
            own.placed, own.schedules, name, threads, team, own.shares, layers
        ))
        for own in programs
    ]  # fmt: skip


def _stages_of(
    lowerings: Sequence[StageLowering], packing: LoopModule, pool: str, threads: int, *, timed: bool
) -> NetworkStages:
    """Return the stages of all programs as printers take them."""
    fused = any(lowering.row_fusions for lowering in lowerings)
    marks = (len(lowerings[0].placed.program.stages) + 1) * timed
    return NetworkStages([*map(_stages_module, lowerings)], packing, pool, threads, fused, marks)


def _declare(layers: Collection[Source]) -> str:
    """Return the C declarations of layers, and of what they take."""
    scaled = any(layer.precision.scaled for layer in layers)
    return layer_declarations([layer.declarations for layer in layers], scaled=scaled)


def _module_of(
    stages: NetworkStages, layers: Iterable[Source], arena: Arena, weights: WeightsFile
) -> LoopModule:
    """Return all loop IR of a network, behind the bytes of its memory by the names of C."""
    sizes = {
        "ARENA": arena.size, "CONSTANTS": weights.constants_size, "PACKED": weights.packed_size,
    }  # fmt: skip
    memory = LoopModule(tuple(Let(name, size, static=True) for name, size in sizes.items()))
    return join([memory, *stages.modules, stages.packing, *(layer.module for layer in layers)])


def _memory_values(
    entries: Sequence[RunEntry], name: str, arena: Arena, weights: WeightsFile, room: int
) -> dict[str, str]:
    """Return the names of the library and the bytes of its memory, by template value.

    ``room``: bytes of a context beside the arena.
    """
    memory = {"CONTEXT": arena.size + room, "MODEL": weights.constants_size + weights.packed_size}
    memory |= {"STATE": arena.state} if arena.state else {}
    return {
        "NAME": name,
        "UPPER": name.upper(),
        "SIZES": size_constants(entries, name, memory),
        "ARENA": str(arena.size),
        "UNSHARED": str(arena.unshared),
        "CONSTANTS": str(weights.constants_size),
        "PACKED": str(weights.packed_size),
        "LARGEST": str(weights.largest),
        **_values_of(weights.checks),
    }


def _values_of(checks: FileChecks) -> dict[str, str]:
    return {"DIGEST": checks.digest, "SUM": hex(checks.sum), "SUMS": hex(checks.sums)}
