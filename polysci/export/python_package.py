"""Layers -> a Python package that needs NumPy only: shared object, its C text, thin loader."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from polysci.errors import UnsupportedError
from polysci.export.build_texts import wait_policy
from polysci.export.files import LAYER_PACKAGE, MARK, title
from polysci.export.layers import (
    Entry,
    Project,
    ProjectFile,
    TunedProblem,
    check_languages,
    project,
)
from polysci.runtime.backends import backend_of
from polysci.runtime.build.compiler import CANDIDATE_S, TIMEOUT_S
from polysci.runtime.source import assemble
from polysci.target.host import detect

_NATIVE = "_native"
_HELPERS = {"scaled": ("Scales",), "bf16": ("from_bf16", "to_bf16")}


def export_python(
    results: Sequence[TunedProblem], out: Path, *, name: str | None = None, force: bool = False
) -> list[Path]:
    """Write a package of ``results`` (``tune.Result`` or ``Layer``) into ``out/NAME``.

    With ``out`` on the path, ``from NAME import LAYER`` works where polysci is not installed;
    ``pip install out`` works too. The package holds shared objects, built here, one an instruction
    set and precision, and the C text, from which it builds another one where that one does not
    load. ``name`` (default: the directory's) is made an identifier where it is none. Returns the
    paths written.

    Raises as ``export_c`` does, UnsupportedError for layers with a choice of instruction sets, and
    BuildError if there is no compiler or it fails.
    """
    check_python(out, name=name, force=force)
    check_languages(results, alone=True)
    whole = project(results, title(out, name))
    for entry in whole.entries:
        if len(entry.sources) > 1:
            keys = ", ".join(source.key for source in entry.sources)
            raise UnsupportedError(
                f"a Python package holds code of one kind, got {keys} of {entry.identifier}; "
                "export C"
            )
    return LAYER_PACKAGE.write(out, whole.name, _layer_files(whole), force=force)


def check_python(out: Path, *, name: str | None = None, force: bool = False) -> None:
    """Raise what ``export_python`` would find wrong with ``out``, before there are any results."""
    LAYER_PACKAGE.check(out, title(out, name), force=force)


def _list_names(names: Sequence[str]) -> str:
    """Return names as lines of a Python list."""
    return "".join(f'    "{name}",\n' for name in names)


def _layer_files(whole: Project) -> dict[str, str | bytes]:
    """Return the content of every file of a package of layers."""
    sources = {unit: _unit_source(whole, unit) for unit in whole.units}
    binaries = {unit: _build(unit, text) for unit, text in sources.items()}
    natives = dict[str, str | bytes]()
    for unit, text in sources.items():
        stem = f"{whole.name}/{_stem(whole, unit)}"
        natives |= {f"{stem}.c": text, f"{stem}.so": binaries[unit]}
    return {**LAYER_PACKAGE.fill(whole.name, _layer_values(whole, binaries)), **natives}


def _layer_values(whole: Project, binaries: Mapping[ProjectFile, bytes]) -> dict[str, str]:
    """Return the values of the templates of a package of layers."""
    example, helpers = whole.entries[0], _helpers(whole)
    pack, weights = _packing(example)
    return {
        "NAME": whole.name,
        "TITLE": f"{whole.size} ({whole.precisions}) as NumPy callables",
        "WAITING": wait_policy(whole.threads, "\n", ""),
        "FEATURES": whole.features,
        "EXAMPLE": example.identifier,
        "EXAMPLE_PACK": pack,
        "EXAMPLE_W": weights,
        "EXAMPLE_TO": ", scales=scales" * example.precision.scaled,
        "VALUES": "".join(f"from ._values import {name} as {name}\n" for name in helpers),
        "NATIVE": _stem(whole, whole.units[0]),
        "LIBRARIES": "\n".join(_load(whole, unit, binary) for unit, binary in binaries.items()),
        "LAYERS": "\n".join(_layer(whole, entry) for entry in whole.entries),
        "ALL": _list_names([*_identifiers(whole), *helpers]),
    }


def _packing(example: Entry) -> tuple[str, str]:
    """Return the line that packs weights ahead, and what a call then takes."""
    if example.activation:
        return "", "w"
    call = f"{example.identifier}.pack_weights(w{', x_zero' * example.precision.integer})"
    return f"    packed = {call}  # once; w of a convolution is K x C/groups x R x S\n", "packed"


def _identifiers(whole: Project) -> list[str]:
    return [entry.identifier for entry in whole.entries]


def _helpers(whole: Project) -> list[str]:
    """Return the names that the package offers beside the layers, unless a layer has them."""
    rows = [entry.precision for entry in whole.entries]
    some = {
        "scaled": any(row.scaled for row in rows),
        "bf16": any(row.x.name == "bf16" for row in rows),
    }
    helpers = [name for kind, names in _HELPERS.items() if some[kind] for name in names]
    return [name for name in helpers if name not in _identifiers(whole)]


def _unit_source(whole: Project, unit: ProjectFile) -> str:
    """Return the C text of a unit; layers that share code are one there."""
    return f"/* {whole.name}: {unit.key}. {MARK}: do not edit. */\n{assemble(unit.sources)}"


def _build(unit: ProjectFile, text: str) -> bytes:
    """Return the shared object of a unit; the compiler has a minute for each of a few layers."""
    limit = min(TIMEOUT_S, CANDIDATE_S * len(unit.sources))
    return backend_of(detect()).build(text, symbols=unit.symbols, timeout=limit).read_bytes()


def _stem(whole: Project, unit: ProjectFile) -> str:
    """Return the name of a unit's files."""
    return f"{_NATIVE}_{unit.key}" if whole.several else _NATIVE


def _library(whole: Project, key: str) -> str:
    """Return the variable that holds the loaded unit."""
    return f"_library_{key}" if whole.several else "_library"


def _load(whole: Project, unit: ProjectFile, binary: bytes) -> str:
    """Return the statement that loads a unit."""
    return (
        f"{_library(whole, unit.key)} = _load(\n"
        f'    "{whole.name}",\n'
        "    _Path(__file__).parent,\n"
        f'    file="{_stem(whole, unit)}.so",\n'
        f'    digest="{hashlib.sha256(binary).hexdigest()}",\n'
        f'    features="{unit.features}",\n'
        f'    sources=("{_stem(whole, unit)}.c",),\n'
        ")"
    )


def _layer(whole: Project, entry: Entry) -> str:
    """Return the statement that makes one layer."""
    problem, layer, (source,) = entry.layer.problem, entry.layer, entry.sources
    precision = entry.precision
    types = [dtype.name for dtype in (precision.x, precision.w, precision.y, precision.sum)]
    return (
        f"{entry.identifier} = _Layer(\n"
        f"    {_library(whole, source.key)},\n"
        f'    "{source.symbol}",\n'
        f"    name={problem.name!a},\n"
        f'    words="{entry.words}",\n'
        f'    layout="{problem.layout}",\n'
        f"    types={tuple(types)},\n"
        f'    schedule="{layer.schedule}",\n'
        f"    threads={layer.threads},\n"
        f"    x_shape={tuple(problem.x_shape)},\n"
        f"    w_shape={tuple(problem.w_shape)},\n"
        f"    y_shape={tuple(problem.y_shape)},\n"
        f"    bias_axis={problem.bias_axis},\n"
        f"    batched={problem.batched},\n"
        f"    activation={entry.activation},\n"
        ")"
    )
