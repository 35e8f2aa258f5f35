"""A machine file: a target and the model's parameters for it, as TOML that people read and edit."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from polysci.border.files import read_named
from polysci.errors import SpecError
from polysci.target import coefficients, microkernels
from polysci.target.host import ASSUMED_CACHES
from polysci.target.isas import DEVICE_ISAS, ISAS, isa_named
from polysci.target.machine import COPIES, RATES, WRITES, Machine, assume_rates, names_of
from polysci.target.target import (
    HOST,
    MOST_THREADS,
    ComputeUnit,
    Memory,
    MemoryKind,
    Target,
    size_text,
)

MOST_BYTES = 1 << 40  # of a cache
MOST = 1e300  # of other numbers: finite
MOST_SPEED = 64  # times the FMA peak, with narrow types and units for them
MOST_UNIT = 1 << 30  # of a number of a compute unit
MOST_SHOWN = 1 << 64  # of whole numbers in messages
_TARGET_KEYS = (
    *("isa", "features", "cores", "model_name", "assumed", "backend", "memories"),
    "unit",
)
_LEVEL_KEYS = tuple(
    key for cache in ASSUMED_CACHES for key in (cache.name.lower(), f"{cache.name.lower()}_cores")
)

# What the numbers of a Machine are: unit and meaning.
NOTES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "peak": ("GFLOP/s", "FMA peak of one core, f32"),
        "l2": ("GB/s", "L2 reads by one core"),
        "l3": ("GB/s", "L3 reads by one core"),
        "memory": ("GB/s", "memory reads by one core"),
        "l3_all": ("GB/s", "reads of one L3 by all cores that share it"),
        "memory_all": ("GB/s", "memory reads by all cores of the machine"),
        "peak_all": ("GFLOP/s", "FMA peak of all cores together, f32; 0: not measured"),
        WRITES: ("GB/s", "memory writes by all cores of a device"),
        COPIES: ("GB/s", "memory read and written by all cores of a device, in copies"),
    }
    | {name: (row.unit, row.meaning) for name, row in coefficients.TABLE.items()}
)


@dataclass(frozen=True, slots=True)
class MachineFile:
    """A machine that the model works for, this one or another: ``parse(d.to_toml()) == d``."""

    target: Target
    machine: Machine

    def to_toml(self) -> str:
        """Return the machine file, with the unit of every number."""
        return "\n".join(_lines(self)) + "\n"


def read(path: str | Path) -> MachineFile:
    """Return the machine that a file describes. SpecError names the file, the key and the rule."""
    try:
        text = read_named(path).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise SpecError(f"machine file {path}: cannot be read: {reason}") from None
    return parse(text, f"machine file {path}")


def parse(text: str, source: str = "machine description") -> MachineFile:
    """Return the machine that a text describes.

    What ``[machine]`` leaves out is assumed, as for a machine that was never measured; kernels
    without an efficiency are estimated. SpecError: ``source``, then the key, its value, the rule.
    """
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{source}: not TOML: {error}") from None
    try:
        _refuse_unknown("", data, ("target", "machine"))
        target = _target(_table("target", data.get("target")))
        return MachineFile(target, _machine(_table("machine", data.get("machine", {})), target))
    except SpecError as error:
        raise SpecError(f"{source}: {error}") from None


def note_of(name: str) -> tuple[str, str]:
    """Unit and meaning of a number of a Machine."""
    return NOTES.get(name, ("", name.replace("_", " ")))


def numbers(machine: Machine) -> dict[str, float]:
    """Return the rates and coefficients, which are one number each, by name."""
    rates = {name: float(getattr(machine, name)) for name in (*RATES, "peak_all")}
    return rates | dict(machine.coefficients)


def origin_of(machine: Machine, name: str) -> str:
    """Return how well a coefficient is known: its standard error, or why it has none."""
    if name in machine.errors:
        return f"± {machine.errors[name]:.2g}"
    row = coefficients.TABLE.get(name)
    if row is None:  # a rate
        return ""
    return row.origin if machine.coefficient(name) == row.prior else "not fitted: given"


def _lines(description: MachineFile) -> Iterator[str]:
    yield "# A machine as polysci's model sees it. Edit what you like; what it chooses there:"
    yield "#   polysci explain SPEC --machine THIS_FILE"
    yield "# What [machine] leaves out is assumed."
    yield ""
    yield from _target_lines(description.target)
    yield ""
    yield from _machine_lines(description.machine)


def _target_lines(target: Target) -> Iterator[str]:
    yield "[target]"
    yield f"model_name = {_quote(target.model_name)}"
    yield f"isa = {_quote(target.isa.name)}  # instruction set: {', '.join(ISAS)}"
    yield f"features = {_list_text(target.features)}  # of the CPU, as in cpuinfo"
    yield f"cores = {target.cores}"
    yield f"backend = {_quote(target.backend)}  # that builds and runs its code"
    yield f"assumed = {_list_text(target.assumed)}  # which of these are defaults, not detected"
    for memory in target.memories:
        yield ""
        yield "[[target.memories]]"
        yield f"name = {_quote(memory.name)}"
        yield f"size = {memory.size}  # bytes of one: {size_text(memory.size)}"
        yield f"cores = {memory.cores}  # that share one; 0: all cores"
        yield f"line = {memory.line}  # bytes"
        yield f"ways = {memory.ways}  # of a cache; 0: not known"
        yield f"bandwidth = {memory.bandwidth!r}  # GB/s, reads by one core; 0: not known"
        yield f"kind = {_quote(memory.kind)}  # {', '.join(get_args(MemoryKind))}"
    if target.unit != ComputeUnit():
        yield ""
        yield "# A compute unit of a device with work-groups."
        yield "[target.unit]"
        for field in fields(ComputeUnit):
            yield f"{field.name} = {getattr(target.unit, field.name)}"


def _machine_lines(machine: Machine) -> Iterator[str]:
    yield "[machine]"
    origin = "" if machine.measured else ": assumed, or from elsewhere"
    yield f"measured = {str(machine.measured).lower()}  # the numbers below{origin}"
    for name, value in numbers(machine).items():
        notes = (*note_of(name), origin_of(machine, name))
        yield f"{name} = {value!r}  # {', '.join(filter(None, notes))}"
    if machine.cpu:
        yield f"cpu = {_quote(machine.cpu)}  # on which the coefficients with errors were found"
    yield ""
    yield "# Standard errors of what was found on this machine."
    yield "[machine.errors]"
    for name, error in machine.errors.items():
        yield f"{_key(name)} = {error!r}"
    if machine.bandwidths:
        yield ""
        yield "# GB/s measured on a device: reads of its memories by a compute unit, and writes and"
        yield "# copies of memory by all of them."
        yield "[machine.bandwidths]"
        for name, rate in machine.bandwidths.items():
            yield f"{_key(name)} = {rate!r}"
    yield ""
    yield "# Rate of a microkernel over the peak, operands in L1; estimated if left out."
    yield "[machine.efficiency]"
    for name, share in machine.efficiency.items():
        yield f"{_key(name)} = {share!r}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quote(name)


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def _list_text(texts: tuple[str, ...]) -> str:
    return "[" + ", ".join(map(_quote, texts)) + "]"


def _target(data: Mapping[str, Any]) -> Target:
    _refuse_unknown("target.", data, (*_TARGET_KEYS, *_LEVEL_KEYS))
    word = _word("target.isa", data.get("isa"))
    isa = DEVICE_ISAS.get(word) or isa_named(word, source="target.isa")
    features = _words("target.features", data.get("features", list(isa.features)))
    if not isa.runs_on(features):
        missing = ", ".join(word for word in isa.features if word not in features)
        raise SpecError(f"target.features: isa {isa} needs {missing} as well")
    cores = _whole("target.cores", data.get("cores"), 1, MOST_THREADS)
    memories = _memories(data, cores) if "memories" in data else _three_caches(data, cores)
    names = {memory.name.lower(): memory.name for memory in memories}
    marked = _words("target.assumed", data.get("assumed", []))
    _refuse_unknown("target.assumed: ", marked, ("features", *names, *names.values(), "cores"))
    name = _word("target.model_name", data.get("model_name", "unknown"))
    marked = tuple(names.get(word, word) for word in marked)
    target = Target(
        isa, features, memories, cores, name, assumed=marked,
        backend=_word("target.backend", data.get("backend", HOST)),
        unit=_unit(_table("target.unit", data.get("unit", {}))),
    )  # fmt: skip
    _check_order(target)
    return target


def _unit(data: Mapping[str, Any]) -> ComputeUnit:
    """Return a compute unit; what its table leaves out has its default."""
    names = tuple(field.name for field in fields(ComputeUnit))
    _refuse_unknown("target.unit.", data, names)
    return ComputeUnit(
        **{name: _whole(f"target.unit.{name}", data[name], 1, MOST_UNIT) for name in data}
    )


def _memories(data: Mapping[str, Any], cores: int) -> tuple[Memory, ...]:
    """Return the memories of the tables ``[[target.memories]]``."""
    for key in data:
        if key in _LEVEL_KEYS:
            raise SpecError(f"target.{key}: expected no such key beside [[target.memories]]")
    tables = data["memories"]
    if not isinstance(tables, list):
        raise SpecError(f"target.memories: expected [[target.memories]], got {_show(tables)}")
    memories = list[Memory]()
    for at, table in enumerate(tables):
        memory = _memory(f"target.memories[{at}]", table, cores)
        if memory.name in (other.name for other in memories):
            raise SpecError(f"target.memories[{at}].name: a second {memory.name!r:.80}")
        memories.append(memory)
    if all(memory.kind != "cache" for memory in memories):
        raise SpecError("target.memories: expected one of kind cache at least")
    return tuple(memories)


def _memory(place: str, table: Any, cores: int) -> Memory:
    data = _table(place, table)
    _refuse_unknown(f"{place}.", data, tuple(field.name for field in fields(Memory)))
    kind = data.get("kind", "cache")
    if kind not in get_args(MemoryKind):
        known = ", ".join(get_args(MemoryKind))
        raise SpecError(f"{place}.kind: expected one of {known}, got {_show(kind)}")
    return Memory(
        name=_word(f"{place}.name", data.get("name")),
        size=_whole(f"{place}.size", data.get("size"), 1, MOST_BYTES),
        cores=_whole(f"{place}.cores", data.get("cores", 1), 0, cores),
        line=_whole(f"{place}.line", data.get("line", 64), 1, MOST_BYTES),
        ways=_whole(f"{place}.ways", data.get("ways", 0), 0, MOST_BYTES),
        bandwidth=_number(f"{place}.bandwidth", data.get("bandwidth", 0.0), False),
        kind=kind,
    )


def _three_caches(data: Mapping[str, Any], cores: int) -> tuple[Memory, ...]:
    """The caches of a file that names them by keys of their own, as ``l3`` and ``l3_cores``."""
    caches = []
    for default in ASSUMED_CACHES:
        level = default.name.lower()
        size = _whole(f"target.{level}", data.get(level), 1, MOST_BYTES)
        sharers = data.get(f"{level}_cores", default.cores)
        sharers = _whole(f"target.{level}_cores", sharers, 0, cores)
        caches.append(Memory(default.name, size, sharers))
    return tuple(caches)


def _check_order(target: Target) -> None:
    """Raise SpecError where a cache is smaller, or serves fewer cores, than the one inside it."""
    for inner, outer in pairwise(target.caches):
        if inner.size > outer.size:
            raise SpecError(
                f"target: {outer.name}: expected no less than {inner.name}={inner.size} bytes, "
                f"got {outer.size}"
            )
        few, many = (target.sharing(cache.name, target.cores) for cache in (inner, outer))
        if few > many:
            raise SpecError(
                f"target: {outer.name}: expected no fewer cores than the {few} of {inner.name}, "
                f"got {many}"
            )


def _machine(data: Mapping[str, Any], target: Target) -> Machine:
    known = assume_rates(target)
    own = [  # cores are the target's
        field.name for field in fields(Machine) if field.name not in ("cores", "coefficients")
    ]
    default = {name: getattr(known, name) for name in own}
    _refuse_unknown("machine.", data, (*default, *known.coefficients))
    values = {name: _machine_value(name, value) for name, value in data.items()}
    coefficients = {name: values.pop(name) for name in [*values] if name in known.coefficients}
    machine = Machine(**(default | values), cores=target.cores).with_coefficients(coefficients)
    _refuse_unknown("machine.errors.", machine.errors, names_of(machine))
    return machine


def _machine_value(name: str, value: Any) -> Any:
    """Return the value of a key of ``[machine]``."""
    place = f"machine.{name}"
    match name:
        case "measured":
            return _flag(place, value)
        case "cpu":
            return _word(place, value)
        case "efficiency":
            return _shares(place, value)
        case "errors" | "bandwidths":
            return _numbers(place, value, name == "bandwidths")
        case _:
            return _number(place, value, name in RATES)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SpecError(f"{name}: expected true or false, got {_show(value)}")
    return value


def _number(name: str, value: Any, rate: bool) -> float:
    """Return a finite number; a price may be 0, a ``rate`` divides and may not."""
    if (
        type(value) in (int, float)
        and abs(value) < MOST
        and (value > 0 or (value == 0 and not rate))
    ):
        return float(value)
    unit, _ = note_of(name.rpartition(".")[2])
    kind = "a positive number" if rate else "a number of at least 0"
    raise SpecError(f"{name}: expected {kind} of {unit or 'the peak'}, got {_show(value)}")


def _shares(name: str, value: Any) -> Mapping[str, float]:
    """Kernel names to shares of the peak."""
    shares = {}
    for kernel, share in _table(name, value).items():
        if kernel not in microkernels.registry():
            raise SpecError(f"{name}: no kernel {kernel!r:.80} in microkernels/kernels.def")
        shares[kernel] = _number(f"{name}.{kernel}", share, True)
        most = 1 if microkernels.find(kernel).compute == "f32" else MOST_SPEED
        if shares[kernel] > most:
            raise SpecError(
                f"{name}.{kernel}: expected a share of the peak, at most {most}, got {share}"
            )
    return MappingProxyType(shares)


def _numbers(name: str, value: Any, rate: bool) -> Mapping[str, float]:
    """Return a table of numbers, as ``_number`` reads each."""
    data = _table(name, value)
    return MappingProxyType({key: _number(f"{name}.{key}", it, rate) for key, it in data.items()})


def _refuse_unknown(place: str, names: Any, known: tuple[str, ...]) -> None:
    for word in names:
        if word not in known:
            raise SpecError(f"{place}{word}: unknown; expected one of {', '.join(known)}")


def _table(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise SpecError(f"{name}: expected a table [{name}], got {_show(value)}")
    return value


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SpecError(f"{name}: expected text in quotes, got {_show(value)}")
    return value


def _words(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise SpecError(f"{name}: expected a list of texts in quotes, got {_show(value)}")
    return tuple(value)


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise SpecError(
            f"{name}: expected a whole number from {least} to {most}, got {_show(value)}"
        )
    return value


def _show(value: Any) -> str:
    if value is None:
        return "nothing"
    if type(value) is int and abs(value) > MOST_SHOWN:  # Python refuses to print the longest
        return f"a number of {value.bit_length()} bits"
    return f"{value!r:.80}"
