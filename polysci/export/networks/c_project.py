"""A network as a C project: sources, weights, self-test, example, Makefile and CMakeLists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType

from polysci.errors import SpecError
from polysci.export import folder
from polysci.export.build_texts import file_flags, wait_policy
from polysci.export.folder import Content
from polysci.export.networks.isa_choice import IsaChoice
from polysci.export.networks.pool_texts import pool_texts
from polysci.export.networks.selftest_data import SelftestData, make_selftest_data
from polysci.export.networks.sized_networks import SizedNetworks, only_size
from polysci.export.project import MARK
from polysci.lower.weights_file import Chunk, packed_pieces
from polysci.network.build import runner_of
from polysci.network.code import describe_size, use_packed_weights
from polysci.network.compiled import Network, PlannedNetwork
from polysci.network.runner import TensorPort
from polysci.printers.network import OPENMP
from polysci.text import names, templates
from polysci.text.tables import bytes_text

TEMPLATES = Path(__file__).with_name("templates")
DATA = "selftest.data"
HEAD = 64  # bytes before the arrays
HARDLY_LARGER = 1.1
PACKED_TOLD = (
    "* The weights were packed ahead: `{0}_map` maps the file, which processes then share; "
    "`{0}_use` takes\n  its bytes where they lie.\n"
)
SIZES_TOLD = (
    "* `{0}_run` takes the sizes and runs the entry of these ({2}); it returns `{1}_NO_SIZE` where "
    "there is\n  none. Entries share the weights that they pack in the same way, and a context.\n"
)
_FILES = MappingProxyType(
    {
        path: TEMPLATES / template
        for path, template in (
            ("main.c", "main.c"), ("selftest.c", "selftest.c"), ("Makefile", "makefile.mk"),
            ("CMakeLists.txt", "cmakelists.txt"), ("README.md", "readme.md"),
        )
    }
)  # fmt: skip
_PIECES = ("contents", "clock", "damaged", "error_of", "expecting", "filled")  # of programs
_PATTERNS = ("{0}.h", "{0}_*.h", "{0}.c", "{0}_*.c", "{0}.weights")
_BUILT = ("lib{0}.a", "lib{0}.so", "{0}.o", "{0}_*.o", "selftest", "example", "build")
_TYPES = MappingProxyType(
    {"bf16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "bool": "U8"}
    | {f"{sign}int{n}": f"{s}{n}" for sign, s in (("", "S"), ("u", "U")) for n in (8, 16, 32, 64)}
)


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
    if isinstance(network, IsaChoice):
        whole, code = only_size(network.first), _choice_sources(network)
    elif isinstance(network, SizedNetworks):
        whole, code = network, _sized_sources(network, packed)
    else:
        whole, code = only_size(network), network_sources(network, packed)
    contents = files(whole, code, [*map(make_selftest_data, whole.networks)], embed)
    return folder.write(out, contents, leftovers=leftovers(network.name), force=force)


def check_project(out: Path, name: str, *, force: bool = False, more: Sequence[str] = ()) -> None:
    """Raise what ``write_project`` would find wrong with ``out``, before there is a network.

    ``more``: names of further files of an earlier export.
    """
    paths = [*(pattern.format(name) for pattern in _PATTERNS), *_FILES, DATA]
    folder.check(out, paths, leftovers=(*leftovers(name), *more), force=force)


def leftovers(name: str) -> tuple[str, ...]:
    """Patterns of what building a project leaves behind."""
    return tuple(pattern.format(name) for pattern in _BUILT)


@dataclass(frozen=True, slots=True)
class NetworkSources:
    """The C files of a network by path, and what becomes its file of weights.

    ``packed``: that was packed ahead; ``cpus`` are the features that the code needs.
    """

    files: Mapping[str, str]
    weights: Callable[[], Iterable[Chunk]]
    packed: bool
    cpus: str


def network_sources(network: PlannedNetwork, packed: bool = False) -> NetworkSources:
    """Return the sources of a network. Raises SpecError for weights that cannot be packed here."""
    code = network.code
    if packed and not isinstance(network, Network):
        raise SpecError(f"{network.name}: weights are packed ahead by code that runs here")
    if isinstance(network, Network) and (packed or _hardly_larger(network)):
        data = network.runner.packed_weights()
        files = use_packed_weights(code, data)
        return NetworkSources(
            mark_files(files, code.name), partial(packed_pieces, data), True, _features(network)
        )
    return _raw_sources(network)


def _sized_sources(network: SizedNetworks, packed: bool) -> NetworkSources:
    """Return the sources of entries for several sizes, which read the same packed weights."""
    code = network.whole.code
    if not packed:
        return _raw_sources(network.whole)
    if not all(isinstance(own, Network) for own in network.networks):
        raise SpecError(f"{network.name}: weights are packed ahead by code that runs here")
    runner = runner_of(code)  # which has the memory
    files = use_packed_weights(code, runner.packed_weights())
    return NetworkSources(
        mark_files(files, code.name), lambda: packed_pieces(runner.packed_weights()), True,
        _features(network.whole),
    )  # fmt: skip


def _raw_sources(network: PlannedNetwork) -> NetworkSources:
    """Return the sources of a network whose weights are packed when they load."""
    files, weights = mark_files(network.code.files, network.name), network.code.weights_file
    return NetworkSources(files, weights.pieces, False, _features(network))


def _features(network: PlannedNetwork) -> str:
    return " ".join(network.code.isa.features) or "none"


def _choice_sources(network: IsaChoice) -> NetworkSources:
    """Return the sources for all instruction sets; loading packs weights for the one that runs."""
    names = ", ".join(map(network.key, network.plans))
    pieces = network.plans[0].code.weights_file.pieces
    return NetworkSources(
        mark_files(network.files(), network.name), pieces, False, f"those of one of {names}"
    )


def files(
    network: SizedNetworks, code: NetworkSources, told: Sequence[SelftestData], embed: bool = False,
    own: Mapping[str, Path] = MappingProxyType({}), more: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Content]:  # fmt: skip
    """The content of every file of the project; ``told`` is of each entry.

    ``own``: templates of further files, and of those that are made another way; ``more`` fills them
    and the others.
    """
    name, texts = network.name, dict(code.files)
    if embed:
        texts[f"{name}.h"] = _offering(texts[f"{name}.h"], name)
        load = "use" if code.packed else "load_memory"
        texts[f"{name}_weights.c"] = fill_template(
            "weights.c", {"NAME": name, "UPPER": name.upper(), "LOAD": load}
        )
    stems = [path.removesuffix(".c") for path in texts if path.endswith(".c")]
    values = _values(network, code, told, stems, embed) | file_flags(texts) | {**more}
    made = {path: templates.fill(file, values) for path, file in {**_FILES, **own}.items()}
    return {
        **texts,
        f"{name}.weights": code.weights,
        **made,
        DATA: lambda: selftest_bytes(name, told),
    }


def mark_files(files: Mapping[str, str], name: str) -> dict[str, str]:
    """Files, each with our mark."""
    return {
        path: text if MARK in text[:300] else f"/* Layers of {name}. {MARK}. */\n{text}"
        for path, text in files.items()
    }


def _hardly_larger(network: Network) -> bool:
    """Whether the weights as runs read them fill a file that is about as large as without packing.

    Loading then takes no memory beside theirs.
    """
    raw = sum(array.nbytes for _, array in network.code.weights_file.parts)
    return raw > 0 and network.runner.model_bytes <= HARDLY_LARGER * raw


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """The text of a template."""
    return templates.fill(TEMPLATES / template, values)


def _offering(header: str, name: str) -> str:
    """The header with what loads the weights inside the library."""
    line = f"{name}_model *{name}_load_memory(const void *weights, size_t bytes, const char **why);"
    before, match, after = header.partition(line)
    return f"{before}{match}{fill_template('embedded.h', {'NAME': name}).rstrip()}{after}"


def selftest_bytes(name: str, told: Sequence[SelftestData]) -> Iterator[bytes]:
    yield f"polysci self-test of {name}".encode().ljust(HEAD, b"\0")
    for data in told:
        for array in (*data.inputs, *data.outputs):
            yield array.tobytes()


def _values(
    whole: SizedNetworks,
    sources: NetworkSources,
    told: Sequence[SelftestData],
    stems: Sequence[str],
    embed: bool,
) -> dict[str, str]:
    """Return the values of the templates."""
    network, name, code = whole.whole, whole.name, whole.whole.code
    loosest = max(told, key=lambda data: data.tolerance)
    base = {"NAME": name, "UPPER": name.upper()}
    threads = network.threads > 1 and code.pool == OPENMP
    simd = fill_template("simd.cmake", base)
    tried = ["-fopenmp", "-fopenmp-simd"] if threads else ["-fopenmp-simd"]
    cmake = fill_template("threads.cmake", base) + simd if threads else simd
    rule = f"{name}_weights.o: {name}.weights\n"
    part = (
        f"set_source_files_properties({name}_weights.c PROPERTIES\n"
        f"  OBJECT_DEPENDS ${{CMAKE_CURRENT_SOURCE_DIR}}/{name}.weights\n"
        '  COMPILE_OPTIONS "-Wa,-I${CMAKE_CURRENT_SOURCE_DIR}")\n'
    )
    return base | {
        **pool_texts(code, network.threads),
        **program_parts(whole),
        "LOAD": f"{name}_load_embedded(&why)" if embed else f'{name}_load("{name}.weights", &why)',
        "PACKED_TEST": fill_template("packed_test.c", base) if sources.packed else "",
        "PACKED_TOLD": PACKED_TOLD.format(name) if sources.packed else "",
        "EMBEDDED_TEST": fill_template("embedded_test.c", base) if embed else "",
        "EMBEDDED_RULE": rule if embed else "",
        "EMBEDDED_SOURCE": part if embed else "",
        "EMBEDDED_TOLD": (
            f"\n* The library holds the weights: `{name}_load_embedded`. The assembler finds "
            f"`{name}.weights` by `-I`."
        ) * embed,
        "WAITING": wait_policy(network.threads if threads else 1, "* ", "  "),
        "OBJECTS": " ".join(f"{stem}.o" for stem in stems),
        "SOURCES": " ".join(f"{stem}.c" for stem in stems),
        "SIZE": describe_size(whole.programs),
        "FEATURES": sources.cpus,
        "TOLERANCE": f"{loosest.tolerance:.3g}",
        "DERIVED": loosest.derived,
        "TABLE": "\n".join(_table(whole)),
        "PACKED": bytes_text(code.weights_file.packed_size),
        "ARENA": bytes_text(code.arena.size),
        "UNSHARED": bytes_text(code.arena.unshared),
        "OPTION": tried[0],
        "MAKE_OPENMP": fill_template(
            "openmp.mk", {"TRIED": ",".join(f"$(call can,{t})" for t in tried)}
        ),
        "CMAKE_OPENMP": cmake,
    }  # fmt: skip


def program_parts(whole: SizedNetworks) -> dict[str, str]:
    """Return the values that templates of programs around the library have in common."""
    values = {"NAME": whole.name, "UPPER": whole.name.upper(), **_ports(whole)}
    values["TABLES"] = fill_template("ports_of_sizes.c" if whole.several else "ports.c", values)
    loop = "    for (entry = 0; entry < ENTRIES; ++entry)\n    " * whole.several
    known = ", ".join(program.key for program in whole.programs)
    return {
        "VALUES": fill_template("values.c", values) + fill_template("run.c", values),
        "PORTS": fill_template("values.c", values),
        **{piece.upper(): fill_template(f"{piece}.c", values) for piece in _PIECES},
        "CALLED": values["CALLED"],
        "FOR_ENTRIES": loop,
        "FIRST_ENTRY": "    entry = 0;\n" * whole.several,
        "SIZES_TEST": fill_template("sizes_test.c", values) * whole.several,
        "SIZES_TOLD": SIZES_TOLD.format(whole.name, whole.name.upper(), known) * whole.several,
    }


def _ports(whole: SizedNetworks) -> dict[str, str]:
    """Tables of inputs and outputs, of one entry after the other, and calls of the entries."""
    first, several = whole.networks[0], whole.several
    words = [f"x[{at}]" for at in range(len(first.inputs))]
    words += [f"y[{at}]" for at in range(len(first.outputs))]
    called = "".join(f", {word}" for word in words)
    tables = {"INPUT_ROWS": "", "OUTPUT_ROWS": ""}
    for network in whole.networks:
        for letter, hole, ports in (
            ("x", "INPUT_ROWS", network.inputs), ("y", "OUTPUT_ROWS", network.outputs)
        ):  # fmt: skip
            own = "".join(_port(letter, at, port) for at, port in enumerate(ports))
            tables[hole] += f"    {{\n{own}    {{0, F32, 0}}}},\n" if several else own
    calls = [f"    {whole.name}_run(context{called});\n"]
    if several:
        sizes = [", ".join(map(str, program.sizes.values())) for program in whole.programs]
        calls = [f"    if (entry == {at})\n        {whole.name}_run(context, {size}{called});\n"
                 for at, size in enumerate(sizes)]  # fmt: skip
    return {
        **tables,
        "INPUTS": str(len(first.inputs)),
        "OUTPUTS": str(len(first.outputs)),
        "ENTRY_COUNT": str(len(whole.networks)),
        "CALLS": "".join(calls),
        "CALLED": called,
        "NO_SIZES": "0" + ", 0" * (len(whole.programs[0].sizes) + len(words)),
    }


def _port(letter: str, at: int, port: TensorPort) -> str:
    return f'    {{"{letter}{at}", {_TYPES[port.dtype]}, {prod(port.shape)}}},\n'


def _length(port: TensorPort) -> str:
    """Return a remark on an output whose length data decides; empty for others."""
    return f": of axis {port.counted[0]} the first *y{port.counted[1]}" if port.counted else ""


def _table(whole: SizedNetworks) -> list[str]:
    """Rows of all entries."""
    if not whole.several:
        return rows(whole.whole)
    pairs = zip(whole.programs, whole.networks, strict=True)
    return [row.replace(" | ", f" of {program.key} | ", 1)
            for program, network in pairs for row in rows(network)]  # fmt: skip


def rows(network: PlannedNetwork) -> list[str]:
    """A line of the README's table for each argument."""
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
