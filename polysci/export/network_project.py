"""A network as a C project, or as a Python package that needs NumPy only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType

from polysci.errors import SpecError, UnsupportedError
from polysci.export.build_texts import build_values, wait_policy
from polysci.export.device_host import device_values, network_files
from polysci.export.files import (
    NETWORK_PACKAGE,
    NETWORK_PROJECT,
    Content,
    ExportKind,
    fill_template,
    mark_files,
)
from polysci.export.isa_choice import IsaChoice
from polysci.export.selftest_data import SelftestData, make_selftest_data
from polysci.lower.weights_file import Chunk, packed_pieces
from polysci.network.build import runner_of
from polysci.network.code import Code, describe_size, use_packed_weights
from polysci.network.compiled import Network, PlannedNetwork
from polysci.network.runner import Runner, TensorPort
from polysci.network.sizes import SizedNetworks, only_size
from polysci.printers.network import OPENMP
from polysci.text import names
from polysci.text.tables import bytes_text

DATA = "selftest.data"
HEAD = 64  # bytes before the arrays
HARDLY_LARGER = 1.1
_TYPES = MappingProxyType(
    {"bf16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "bool": "U8"}
    | {f"{sign}int{n}": f"{s}{n}" for sign, s in (("", "S"), ("u", "U")) for n in (8, 16, 32, 64)}
)


def check_language(network: PlannedNetwork) -> None:
    """Raise UnsupportedError for the code of a device."""
    if network.code.isa.language != "c":
        raise UnsupportedError(f"export: {network.name} is code of {network.code.isa}, not C")


def write_project(
    network: PlannedNetwork | IsaChoice | SizedNetworks,
    out: Path,
    *,
    embed: bool = False,
    packed: bool = False,
    force: bool = False,
) -> list[Path]:
    """Write the C project of a network into the directory ``out``; returns the paths written.

    ``embed``: the weights become a part of the library. ``packed``: their file holds them as runs
    read them, so that it can be mapped and shared; it does anyway where it is hardly larger for
    that. Raises SpecError for a directory that holds other files (unless ``force``), or if weights
    are to be packed for another machine; PolysciError where it cannot be written; CheckError for a
    network whose results are wrong.
    """
    check_project(out, network.name, force=force)
    if packed and isinstance(network, IsaChoice):
        raise SpecError(f"{network.name}: each of its entries packs weights in its own way")
    if isinstance(network, IsaChoice) and network.first.code.arena.state:
        raise SpecError(
            f"{network.name}: it keeps state, and so it has code of one instruction set"
        )
    if isinstance(network, IsaChoice) and network.first.prepared.program.data_sizes.most:
        raise SpecError(
            f"{network.name}: data decides sizes of it, and so it has code of one instruction set"
        )
    if isinstance(network, IsaChoice):
        check_language(network.first)
        whole, sources = only_size(network.first), _choice_sources(network)
    else:
        whole = network if isinstance(network, SizedNetworks) else only_size(network)
        sources = network_sources(whole, packed)
    data = [*map(make_selftest_data, whole.networks)]
    contents = project_files(whole, sources, data, embed)
    return NETWORK_PROJECT.write(out, network.name, contents, force=force)


def check_project(out: Path, name: str, *, force: bool = False) -> None:
    """Raise what ``write_project`` would find wrong with ``out``, before there is a network."""
    NETWORK_PROJECT.check(out, name, force=force)


@dataclass(frozen=True, slots=True)
class NetworkSources:
    """The C files of a network by path, and what becomes its file of weights.

    ``packed``: that was packed ahead; ``cpus`` are the features that the code needs.
    """

    files: Mapping[str, str]
    weights: Callable[[], Iterable[Chunk]]
    packed: bool
    cpus: str


def network_sources(network: SizedNetworks, packed: bool = False) -> NetworkSources:
    """Return the sources of a network. Raises SpecError for weights that cannot be packed here."""
    code, first = network.whole.code, network.networks[0]
    if network.on_device:
        return _device_sources(network, packed)
    runs = all(isinstance(own, Network) for own in network.networks)
    if packed and not runs:
        raise SpecError(
            f"{network.name}: --packed-weights: weights are packed ahead by code that runs here"
        )
    features = f"these features: {' '.join(code.isa.features) or 'none'}"
    alone = first if isinstance(first, Network) and not network.several else None
    if not packed and not (alone and _is_hardly_larger(alone)):
        files = mark_files(code.files, code.name)
        return NetworkSources(files, code.weights_file.pieces, False, features)
    runner = alone.runner if alone else runner_of(code)
    files = mark_files(use_packed_weights(code, runner.packed_weights()), code.name)
    return NetworkSources(files, lambda: _packed_weights(runner), True, features)


def _device_sources(network: SizedNetworks, packed: bool) -> NetworkSources:
    """Return the sources of a network of a device, which packs weights itself."""
    if packed:
        raise SpecError(f"{network.name}: a device packs its weights itself")
    code, entries = network.whole.code, [own.entry(network.name) for own in network.programs]
    files = network_files(code, entries, flush=network.whole.options.flush_denormals)
    return NetworkSources(files, code.weights_file.pieces, False, "")


def _packed_weights(runner: Runner) -> Iterable[Chunk]:
    return packed_pieces(runner.packed_weights())


def _choice_sources(network: IsaChoice) -> NetworkSources:
    """Return the sources for all instruction sets; loading packs weights for the one that runs."""
    keys = ", ".join(map(network.key, network.plans))
    pieces = network.plans[0].code.weights_file.pieces
    files = mark_files(network.files(), network.name)
    return NetworkSources(files, pieces, False, f"the features of one of {keys}")


def _is_hardly_larger(network: Network) -> bool:
    """Tell whether weights as runs read them fill a file about as large as without packing.

    Loading then takes no memory beside theirs.
    """
    raw = sum(part.array.nbytes for part in network.code.weights_file.parts)
    return raw > 0 and network.runner.model_bytes <= HARDLY_LARGER * raw


def project_files(
    network: SizedNetworks, sources: NetworkSources, data: Sequence[SelftestData],
    embed: bool = False, kind: ExportKind = NETWORK_PROJECT,
    more: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Content]:  # fmt: skip
    """Return the content of every file of the project; ``data`` is of each entry.

    ``kind`` has the templates, ``more`` are further values of them.
    """
    name, code, texts = network.name, network.whole.code, dict(sources.files)
    device = network.on_device
    if kind is not NETWORK_PROJECT:
        check_language(network.whole)
    base = {
        "NAME": name, "UPPER": name.upper(),
        **(device_values(network.whole.options.target.backend, name) if device else {}),
        "EMBEDDED": "yes" * embed, "PACKED_AHEAD": "yes" * sources.packed,
    }  # fmt: skip
    if embed:
        texts[f"{name}.h"] = _offer_weights(texts[f"{name}.h"], base)
        texts[f"{name}_weights.c"] = fill_template("weights.c", base)
    threads = 1 if device else network.whole.threads
    headers = " ".join(sorted(path for path in texts if path.endswith(".h")))
    loosest = max(data, key=lambda own: own.tolerance)
    waiting = threads if code.pool == OPENMP else 1
    values = {
        **base,
        **build_values(texts, headers, threads, code.pool, exact=True, shared=True, loader=device),
        "DATA": "weights" * (not embed),
        **program_values(network),
        **memory_values(code),
        **loosest.values(),
        "TITLE": f"A network of {describe_size(network.programs)} in C",
        "CPUS": sources.cpus,
        "FEATURES": sources.cpus.removeprefix("these features: "),
        "WAITING": wait_policy(waiting, "* ", "  "),
        "TABLE": "\n".join(_all_rows(network)),
        **more,
    }
    return {
        **texts,
        f"{name}.weights": sources.weights,
        **kind.fill(name, values),
        DATA: lambda: selftest_bytes(name, data),
    }


def _offer_weights(header: str, values: Mapping[str, str]) -> str:
    """Return the header with what loads the weights inside the library."""
    before, match, after = header.partition(" bytes, const char **why);\n")
    embedded = fill_template("embedded.h", values)
    return f"{before}{match.rstrip()}{embedded}{after}"


def selftest_bytes(name: str, data: Sequence[SelftestData]) -> Iterator[bytes]:
    """Yield the file of the self-test: inputs and results of each entry."""
    yield f"polysci self-test of {name}".encode().ljust(HEAD, b"\0")
    for own in data:
        for array in (*own.inputs, *own.outputs):
            yield array.tobytes()


def memory_values(code: Code) -> dict[str, str]:
    """Return the values of the README that tell of memory."""
    sizes = {
        "PACKED": code.weights_file.packed_size, "ARENA": code.arena.size,
        "UNSHARED": code.arena.unshared,
    }  # fmt: skip
    return {f"{name}_TEXT": bytes_text(size) for name, size in sizes.items()}


def program_values(whole: SizedNetworks) -> dict[str, str]:
    """Return values of programs around the library: tables of arguments, calls of the entries."""
    first, several = whole.networks[0], whole.several
    arguments = [f"x[{at}]" for at in range(len(first.inputs))]
    arguments += [f"y[{at}]" for at in range(len(first.outputs))]
    called = "".join(f", {word}" for word in arguments)
    tables = {"INPUT_ROWS": "", "OUTPUT_ROWS": ""}
    for network in whole.networks:
        for letter, table, ports in (
            ("x", "INPUT_ROWS", network.inputs), ("y", "OUTPUT_ROWS", network.outputs)
        ):  # fmt: skip
            own = "".join(_port(letter, at, port) for at, port in enumerate(ports))
            tables[table] += f"    {{\n{own}    {{0, F32, 0}}}},\n" if several else own
    call = f"{whole.name}_run(context{called})"
    if first.code.arena.state:  # each run is the first of a sequence
        call = f"{whole.name}_reset(context), {call}"
    calls = [f"    if ({call})\n        puts({whole.name}_why());\n" if whole.on_device
             else f"    {call};\n"]  # fmt: skip
    if several:
        sizes = [", ".join(program.entry(whole.name).largest) for program in whole.programs]
        again = f"{whole.name}_reset(context), " * bool(first.code.arena.state)
        runs = [f"({again}{whole.name}_run(context, {size}{called}))" for size in sizes]
        calls = [f"    if (entry == {at} && {run})\n        puts({whole.name}_why());\n"
                 if whole.on_device else f"    if (entry == {at})\n        {run};\n"
                 for at, run in enumerate(runs)]  # fmt: skip
    return {
        **tables,
        "INPUTS": str(len(first.inputs)),
        "OUTPUTS": str(len(first.outputs)),
        "ENTRY_COUNT": str(len(whole.networks)),
        "CALLS": "".join(calls),
        "CALLED": called,
        "NO_SIZES": "0" + ", 0" * (len(whole.programs[0].sizes) + len(arguments)),
        "KNOWN": ", ".join(program.key for program in whole.programs),
        "SEVERAL": "yes" * several,
        "SINGLE": "yes" * (not several),
    }


def _port(letter: str, at: int, port: TensorPort) -> str:
    return f'    {{"{letter}{at}", {_TYPES[port.dtype]}, {prod(port.shape)}}},\n'


def _length(port: TensorPort) -> str:
    """Return a remark on an output whose length data decides, or of sizes; empty for others."""
    if port.most:
        return ": " + ", ".join(f"{names.remark(own)} at most {most}" for own, most in port.most)
    return (
        f": of axis {port.dynamic_dim[0]} the first *y{port.dynamic_dim[1]}"
        if port.dynamic_dim
        else ""
    )


def _all_rows(whole: SizedNetworks) -> list[str]:
    """Return the rows of all entries."""
    if not whole.several:
        return table_rows(whole.whole)
    pairs = zip(whole.programs, whole.networks, strict=True)
    return [row.replace(" | ", f" of {program.key} | ", 1)
            for program, network in pairs for row in table_rows(network)]  # fmt: skip


def table_rows(network: PlannedNetwork) -> list[str]:
    """Return a line of the README's table for each argument."""
    program = network.prepared.program
    replaced = {title: f"a run replaces {program.in_place[name]}" for title, name in zip(
        program.titles, program.outputs, strict=True) if name in program.in_place}  # fmt: skip
    ports = [(f"x{at}", port) for at, port in enumerate(network.inputs)]
    ports += [(f"y{at}", port) for at, port in enumerate(network.outputs)]
    return [
        f"| {word} | {port.dtype} | {' x '.join(map(str, port.shape)) or 'one number'} "
        f"| {names.remark(replaced.get(port.name, port.name))}{_length(port)} |"
        for word, port in ports
    ]


def write_package(network: Network, out: Path, *, force: bool = False) -> list[Path]:
    """Write ``out/NAME``: with ``out`` on the path, ``from NAME import net`` works without polysci.

    Returns the paths written. Raises as ``write_project`` does.
    """
    check_language(network)
    check_package(out, network.name, force=force)
    contents = _package_files(network, make_selftest_data(network))
    return NETWORK_PACKAGE.write(out, network.name, contents, force=force)


def check_package(out: Path, name: str, *, force: bool = False) -> None:
    """Raise what ``write_package`` would find wrong with ``out``, before there is a network."""
    NETWORK_PACKAGE.check(out, name, force=force)


def _package_files(network: Network, data: SelftestData) -> dict[str, Content]:
    """Return the content of every file of a network's package."""
    name, code = network.name, mark_files(network.code.files, network.name)
    binary, rows = network.runner.library.path.read_bytes(), table_rows(network)
    size = f"{len(network.code.placed.program.stages)} stages"
    values = {
        "NAME": name,
        "TITLE": f"A network of {size} as a NumPy callable",
        "WAITING": wait_policy(network.threads, "\n", ""),
        "FEATURES": " ".join(network.code.isa.features) or "none",
        "EXAMPLE": "net",
        "NATIVE": "_native",
        "DIGEST": hashlib.sha256(binary).hexdigest(),
        "SOURCES": repr(tuple(path for path in code if path.endswith(".c"))),
        "INPUTS": _literal(network.inputs),
        "OUTPUTS": _literal(network.outputs),
        "TENSORS": "\n".join(row.strip("| ").replace(" | ", "  ") for row in rows),
        "TABLE": "\n".join(rows),
        "ERROR": f"{data.error:.2g}",
        "ALL": '    "Port",\n    "net",\n',
    }
    return {
        **{f"{name}/{path}": text for path, text in code.items()},
        f"{name}/{name}.weights": network.code.weights_file.pieces,
        f"{name}/_native.so": binary,
        **NETWORK_PACKAGE.fill(name, values),
    }


def _literal(ports: tuple[TensorPort, ...]) -> str:
    """Return ports as ASCII literals: names may hold anything."""
    return ascii(tuple(
        (
            port.name, tuple(port.shape), port.dtype,
            *([port.dynamic_dim] * bool(port.dynamic_dim)), *([None, port.most] * bool(port.most)),
        )
        for port in ports
    ))  # fmt: skip
