"""A network as a module of WebAssembly with an ES module beside it, for browsers and Node."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from polysci.errors import PolysciError, SpecError
from polysci.export.files import MARK, WEB_KINDS, Content, ExportKind, fill_template
from polysci.export.network_project import (
    DATA,
    HEAD,
    memory_values,
    program_values,
    selftest_bytes,
    table_rows,
)
from polysci.export.selftest_data import SelftestData, make_selftest_data
from polysci.export.wasm_binary import (
    HEADER,
    MOST_PAGES,
    PAGE,
    custom_section,
    custom_section_head,
    pages_of_import,
)
from polysci.export.web_build import MACHINE, build_module, find_wasm_compiler
from polysci.lower.weights_file import Chunk, WeightsFile
from polysci.network.code import describe_size
from polysci.network.compiled import PlannedNetwork, use_pool
from polysci.network.runner import TensorPort
from polysci.network.sizes import only_size
from polysci.printers.network import OPENMP
from polysci.target.isa import Isa
from polysci.text.names import remark
from polysci.text.tables import bytes_text

# The typed arrays of JavaScript by element type; those of 16 bits hold the bits of real numbers.
ARRAYS: Final = MappingProxyType(
    {"float32": "Float32Array", "float64": "Float64Array", "bool": "Uint8Array"}
    | dict.fromkeys(("bf16", "float16"), "Uint16Array")
    | {f"int{bits}": f"Int{bits}Array" for bits in (8, 16, 32)}
    | {f"uint{bits}": f"Uint{bits}Array" for bits in (8, 16, 32)}
    | {"int64": "BigInt64Array", "uint64": "BigUint64Array"}
)
_BITS_OF_ONE: Final = MappingProxyType({"bf16": 0x3F80, "float16": 0x3C00})
_SECTION: Final = "weights"
_WORKERS: Final = "workers"  # who starts the threads of a module
_APART: Final = 1 << 24  # bytes that arrays of a memory may lie apart, by their alignment


def is_web(isa: Isa) -> bool:
    """Return whether code of an instruction set runs in browsers."""
    return isa.machine == MACHINE


def check_web(
    out: Path, name: str, isas: Sequence[Isa], threads: int, pool: str = OPENMP, *,
    embed: bool = False, packed: bool = False, force: bool = False,
) -> None:  # fmt: skip
    """Raise what ``write_web`` would find wrong, before there is a network.

    ``pool`` is who is to start threads: OpenMP, the default elsewhere, stands for none in
    particular.
    """
    if pool not in (OPENMP, _WORKERS):
        raise SpecError(
            f"--threads {pool}: threads of WebAssembly are workers; give their number alone, as in "
            "--threads 2"
        )
    if packed:
        raise SpecError("packed weights: a module of WebAssembly packs them where it is loaded")
    if other := [isa for isa in isas if not is_web(isa)]:
        raise SpecError(f"{other[0]}: no instruction set of WebAssembly, as the others are")
    _kind(embed, threads).check(out, name, force=force)
    for isa in isas:
        find_wasm_compiler(isa, shared=threads > 1)


def _kind(embed: bool, threads: int) -> ExportKind:
    return WEB_KINDS[embed, threads > 1]


def write_web(
    networks: Sequence[PlannedNetwork], out: Path, name: str, *, embed: bool = False,
    force: bool = False,
) -> list[Path]:  # fmt: skip
    """Write modules and what runs them into the directory ``out``; returns the paths written.

    ``networks`` are plans of the same network for several instruction sets, the best first, or one.
    NAME.wasm imports nothing, NAME.js is an ES module, NAME.d.ts its types, index.html a page that
    runs the network on random numbers, selftest.mjs a self-test for Node. Several modules are
    called NAME_ISA.wasm. ``embed``: the weights are a part of each module. A network of several
    threads imports a memory, which NAME.js shares with workers that run NAME.worker.js; serve.py
    sends browsers what they ask for before they share it. Raises SpecError for a directory that
    holds other files (unless ``force``); NoCompilerError, BuildError; PolysciError where it cannot
    be written.
    """
    if networks[0].threads > 1:
        networks = [use_pool(network, _WORKERS) for network in networks]
    first = networks[0]
    isas = [network.code.isa for network in networks]
    check_web(out, name, isas, first.threads, embed=embed, force=force)
    if len({network.code.weights_file.digest for network in networks}) > 1:
        raise PolysciError(f"{name}: its plans need other weights, one from another")
    data = make_selftest_data(first)
    files = _web_files(networks, name, data, embed)
    return _kind(embed, first.threads).write(out, name, files, force=force)


def _web_files(
    networks: Sequence[PlannedNetwork], name: str, data: SelftestData, embed: bool
) -> dict[str, Content]:
    """Return the content of every file."""
    first, several = networks[0], len(networks) > 1
    weights = first.code.weights_file
    modules = {
        f"{name}_{network.code.isa}" if several else name: _module(network) for network in networks
    }
    size = sum(len(piece) for piece in weights.pieces())
    values = {
        **_values(first, name, data),
        "MODULE_TEXT": bytes_text(max(map(len, modules.values()))),
        "WEIGHTS_TEXT": bytes_text(size),
        "EMBEDDED": "yes" * embed,
        "SEVERAL": "yes" * several,
        **(_memory(networks, modules.values()) if first.threads > 1 else {}),
    }
    rows = {
        "INPUTS": [_property(port) for port in first.inputs],
        "OUTPUTS": [_property(port) for port in first.outputs],
        "MODULES": [
            {"MODULE": module, "ISA": str(network.code.isa)}
            for module, network in zip(modules, networks, strict=True)
        ],
    }
    tail = partial(_embedded, weights, size) if embed else tuple
    files: dict[str, Content] = {
        **{f"{module}.wasm": partial(_joined, code, tail) for module, code in modules.items()},
        **_kind(embed, first.threads).fill(name, values, rows),
        DATA: lambda: selftest_bytes(name, [data]),
    }
    return files if embed else {**files, f"{name}.weights": weights.pieces}


def _module(network: PlannedNetwork) -> bytes:
    """Return the module of a network, with our mark in a section that engines pass over."""
    texts = {**network.code.files, f"{network.name}_web.c": _glue(network)}
    shared = network.threads > 1
    compiler = find_wasm_compiler(network.code.isa, shared=shared)
    module = build_module(texts, compiler, shared=shared)
    return b"".join([module[:HEADER], custom_section(MARK, b""), module[HEADER:]])


def _memory(networks: Sequence[PlannedNetwork], modules: Iterable[bytes]) -> dict[str, str]:
    """Return the pages of a memory that any of the modules can import, first and at most.

    Engines reserve the most of a shared memory ahead: it is what loading and a run take.
    """
    least = max(map(pages_of_import, modules))
    weights = [network.code.weights_file for network in networks]
    taken = max(
        sum(map(len, its.pieces())) + its.constants_size + its.packed_size + network.code.arena.size
        for its, network in zip(weights, networks, strict=True)
    )
    most = least + -(-(taken + taken // 8 + _APART) // PAGE)
    return {"PAGES": str(least), "MOST_PAGES": str(min(most, MOST_PAGES))}


def _joined(code: bytes, tail: Callable[[], Iterable[Chunk]]) -> Iterator[Chunk]:
    yield code
    yield from tail()


def _embedded(weights: WeightsFile, size: int) -> Iterator[Chunk]:
    """Yield the section of weights."""
    yield custom_section_head(_SECTION, size)
    yield from weights.pieces()


def _glue(network: PlannedNetwork) -> str:
    """Return the C that the ES module calls."""
    inputs = [f"x{at}" for at in range(len(network.inputs))]
    outputs = [f"y{at}" for at in range(len(network.outputs))]
    values = {
        "NAME": network.name,
        "UPPER": network.name.upper(),
        "INPUT_WORDS": "".join(f"{word}, " for word in inputs),
        "OUTPUT_WORDS": "".join(f"{word}, " for word in outputs),
        "CALLED": "".join(
            f", {array}[{at}]" for array, words in (("inputs", inputs), ("outputs", outputs))
            for at in range(len(words))
        ),
        "STATE": "yes" * bool(network.code.arena.state),
        "THREADED": "yes" * (network.threads > 1),
        "WORKERS": str(network.threads - 1),
    }  # fmt: skip
    ports = [{"WORD": word, "KEY": word.upper()} for word in (*inputs, *outputs)]
    return fill_template("web.c", values, {"PORTS": ports})


def _values(network: PlannedNetwork, name: str, data: SelftestData) -> dict[str, str]:
    """Return the values of the templates."""
    whole = only_size(network)
    single = len(network.inputs) == 1
    arrays = [ARRAYS[port.dtype] for port in network.inputs]
    named = [json.dumps(remark(port.name)) for port in network.inputs]
    return {
        **program_values(whole),
        **memory_values(network.code),
        **data.values(),
        "NAME": name,
        "PACKAGE": name.lower(),
        "TITLE": f"A network of {describe_size(whole.programs)} as WebAssembly",
        "HEAD": str(HEAD),
        "INPUTS": _literal(network.inputs),
        "OUTPUTS": _literal(network.outputs),
        "ARRAYS": json.dumps(arrays),
        "ARRAY_TABLE": f"{{ {', '.join(f'{key}: {word}' for key, word in ARRAYS.items())} }}",
        "LIMITS": json.dumps([*map(_limits, network.inputs, data.inputs)]),
        "EXAMPLE": f"{{ {', '.join(f'{name}: array' for name in named)} }}",
        "SINGLE": "yes" * single,
        "SINGLE_ARRAY": arrays[0] if single else "",
        "STATE": "yes" * bool(network.code.arena.state),
        "DYNAMIC": "yes" * any(port.dynamic_dim for port in network.outputs),
        "TABLE": "\n".join(table_rows(network)),
        "COUNT": str(network.threads),
        "THREADED": "yes" * (network.threads > 1),
    }


def _literal(ports: tuple[TensorPort, ...]) -> str:
    """Return ports as JavaScript."""
    return json.dumps([
        {"name": port.name, "dtype": port.dtype, "shape": list(port.shape)}
        | ({"dynamic": list(port.dynamic_dim)} if port.dynamic_dim else {})
        for port in ports
    ])  # fmt: skip


def _property(port: TensorPort) -> dict[str, str]:
    """Return what the types say of a port."""
    return {
        "DTYPE": port.dtype,
        "SHAPE": " x ".join(map(str, port.shape)) or "one number",
        "PROPERTY": json.dumps(port.name),
        "ARRAY": ARRAYS[port.dtype],
    }


def _limits(port: TensorPort, array: np.ndarray[Any, Any]) -> tuple[float, float, bool]:
    """Return the least and the greatest number of an example, and whether all are whole.

    Of real numbers of 16 bits: the bits of 0 and of 1.
    """
    if port.dtype in _BITS_OF_ONE:
        return 0.0, _BITS_OF_ONE[port.dtype], True
    if not array.size:
        return 0.0, 0.0, True
    low, high = float(array.min()), float(array.max())
    return low, high, array.dtype.kind != "f" or bool((array == np.rint(array)).all())
