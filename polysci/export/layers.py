"""The layers of an export, their identifiers, and their sources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from polysci import tune
from polysci.errors import SpecError, UnsupportedError
from polysci.explain import sizes_of
from polysci.loop_ir.interface import Function
from polysci.lower.algorithm import EmitOptions
from polysci.numerics.dtypes import Precision, precision_named
from polysci.ops.problem import Problem
from polysci.printers import interface
from polysci.printers.dialect import DIALECTS, OPENCL
from polysci.runtime.source import Source
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.target.isas import isa_of
from polysci.target.microkernels import find
from polysci.target.target import HOST
from polysci.text import names


class TunedProblem(Protocol):
    """A problem whose schedule is decided: a ``tune.Result`` or a ``ExportedLayer``."""

    @property
    def problem(self) -> Problem: ...

    @property
    def schedule(self) -> Schedule: ...

    @property
    def threads(self) -> int: ...

    @property
    def backend(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ExportedLayer:
    """A problem, a schedule and the threads to write into the code; nothing has to be measured.

    ``others`` are schedules for CPUs that cannot run the first one, better ones first; ``backend``
    is that of the device.
    """

    problem: Problem
    schedule: Schedule
    threads: int = 1
    others: tuple[Schedule, ...] = ()
    backend: str = HOST


@dataclass(frozen=True, slots=True)
class Entry:
    """A layer in a project: identifier, C symbol, and ``sources``, of which a CPU takes the first.

    ``code`` is the symbol of the layer whose code it shares, often its own.
    """

    layer: ExportedLayer
    identifier: str
    symbol: str
    code: str
    sources: tuple[Source, ...]

    @property
    def words(self) -> str:
        """The text of the layer, without the name that came from outside."""
        return str(self.layer.problem.with_(name="", multiplicity=1))

    @property
    def label(self) -> str:
        """The name it came with, made harmless; empty if that is the identifier."""
        name = self.layer.problem.name
        return "" if name == self.identifier else names.remark(name)

    @property
    def precision(self) -> Precision:
        """The types of its elements."""
        return self.sources[0].precision

    @property
    def activation(self) -> bool:
        """True if w changes from call to call, so that calls pack it."""
        return self.layer.problem.w_kind == "activation"

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that its code offers, under whatever symbol."""
        return self.sources[0].functions

    @property
    def forwarded(self) -> str:
        """C of a layer whose code another one holds."""
        head = f"/* {self.symbol}: the same layer as {self.code} */\n"
        declarations = interface.declare(self.functions, self.symbol)
        return f"{head}{declarations}{interface.forward(self.functions, self.symbol, self.code)}\n"


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """Sources that go into one file, those of one ``file_key``."""

    key: str
    sources: tuple[Source, ...]

    @property
    def isa(self) -> str:
        return self.sources[0].isa

    @property
    def symbols(self) -> tuple[str, ...]:
        """The C identifiers of all entry points."""
        return tuple(symbol for source in self.sources for symbol in source.symbols)

    @property
    def features(self) -> str:
        """The CPU features that the code needs, as cpuinfo spells them."""
        return " ".join(isa_of(self.isa).features) or "none"


@dataclass(frozen=True, slots=True)
class Project:
    """The layers of one export under one name, and their code in one unit or several."""

    name: str
    entries: tuple[Entry, ...]
    units: tuple[ProjectFile, ...]

    @property
    def threads(self) -> int:
        return max(entry.layer.threads for entry in self.entries)

    @property
    def size(self) -> str:
        return f"{len(self.entries)} layer{'s' * (len(self.entries) > 1)}"

    @property
    def on_device(self) -> bool:
        """True if a host launches its code on a device."""
        return isa_of(self.units[0].isa).language != "c"

    @property
    def backend(self) -> str:
        """The device that its code is of; any device of OpenCL where none is named."""
        backend = self.entries[0].layer.backend
        if backend != HOST or isa_of(self.units[0].isa).language == OPENCL.name:
            return OPENCL.name if backend == HOST else backend
        raise SpecError("export: layers of CUDA need backend='cuda:sm_80', or another architecture")

    @property
    def several(self) -> bool:
        """True if its code is in several units."""
        return len(self.units) > 1

    @property
    def precisions(self) -> str:
        """The precisions of the layers, in their order."""
        return ", ".join(dict.fromkeys(str(entry.precision) for entry in self.entries))

    @property
    def features(self) -> str:
        """The CPU features that all units need."""
        features = dict.fromkeys(" ".join(unit.features for unit in self.units).split())
        return " ".join(name for name in features if name != "none") or "none"


def project(planned: Sequence[TunedProblem], name: str) -> Project:
    """Give every layer its identifier and generate its code; equal layers share it.

    ``name`` is an identifier. Where a layer has several sources their symbols tell the units
    apart. Raises SpecError where there are no layers, UnsupportedError for layers without images,
    and whatever ``tune.emit`` finds wrong with a schedule.
    """
    if not planned:
        raise SpecError("nothing to export: expected at least one layer, got none")
    layers = [
        layer
        if isinstance(layer, ExportedLayer)
        else ExportedLayer(layer.problem, layer.schedule, layer.threads, backend=layer.backend)
        for layer in planned
    ]
    check_languages(layers)
    for problem in (layer.problem for layer in layers):
        if precision_named(problem.dtype).w.block > 1:
            raise UnsupportedError(
                f"export: {problem}: layers of {problem.dtype} are not exported alone; networks "
                "that hold them are"
            )
    entries = _entries(layers, name, ())
    units = _units(entries)
    if len(units) > 1:
        entries = _entries(layers, name, [unit.key for unit in units])
        units = _units(entries)
    return Project(name, tuple(entries), units)


def check_languages(layers: Sequence[TunedProblem], *, alone: bool = False) -> None:
    """Raise UnsupportedError for kernels of a device that is not exported, or beside others.

    ``alone``: code of any device.
    """
    names = [layer.schedule.kernel for layer in layers]
    kernels = {isa_of(find(name).isa).language: name for name in names}
    for language, kernel in kernels.items():
        if language == "c":
            continue
        if alone or language not in DIALECTS:
            raise UnsupportedError(f"export: {kernel} is of a device; C is exported")
        backends = dict.fromkeys(layer.backend for layer in layers)
        for several in (kernels.values(), backends):
            if len(several) > 1:
                raise UnsupportedError(f"export: one device a project, got {', '.join(several)}")


def _entries(layers: Sequence[ExportedLayer], name: str, keys: Sequence[str]) -> list[Entry]:
    """``keys`` are the units of the project, if it is known to have several."""
    identifiers = names.layers([layer.problem.name for layer in layers], name, keys)
    first: dict[tuple[str, tuple[str, ...], int], Entry] = {}
    entries: list[Entry] = []
    for layer, identifier in zip(layers, identifiers, strict=True):
        symbol = f"{name}_{identifier}"
        plans = (layer.schedule, *layer.others)
        key = (layer.problem.key, tuple(map(str, plans)), layer.threads)
        if key not in first:
            sources = _emit_units(layer, plans, f"{name}_{{}}_{identifier}" if keys else symbol)
            if len(sources) == 1 and keys:
                sources = _emit_units(layer, plans[:1], symbol)
            first[key] = Entry(layer, identifier, symbol, symbol, sources)
        entries.append(replace(first[key], layer=layer, identifier=identifier, symbol=symbol))
    return entries


def _emit_units(layer: ExportedLayer, plans: Sequence[Schedule], symbol: str) -> tuple[Source, ...]:
    """Return the sources of a layer, one a unit; ``{}`` in the symbol stands for the unit."""
    if 0 in layer.problem.x_shape:
        raise UnsupportedError(f"{layer.problem}: a layer without images cannot be exported")
    sources: dict[str, Source] = {}
    caches = sizes_of(detect(), layer.threads)
    for plan in plans:
        options = EmitOptions(symbol.format("unit"), caches=caches)
        source = tune.emit(layer.problem, plan, layer.threads, options)
        if source.key not in sources:
            own = EmitOptions(symbol.format(source.key), caches=caches)
            again = own.symbol != source.symbol
            sources[source.key] = (
                tune.emit(layer.problem, plan, layer.threads, own) if again else source
            )
    return tuple(sources.values())


def file_key(source: Source) -> str:
    """Return the word of the file that holds a source: one holds all kernels of a device."""
    language = isa_of(source.isa).language
    return source.key if language == "c" else language


def _units(entries: Iterable[Entry]) -> tuple[ProjectFile, ...]:
    """Return all sources by unit, in the order in which units and sources first appear."""
    units: dict[str, dict[str, Source]] = {}
    for entry in entries:
        for source in entry.sources:
            units.setdefault(file_key(source), {})[source.symbol] = source
    return tuple(ProjectFile(key, tuple(sources.values())) for key, sources in units.items())
