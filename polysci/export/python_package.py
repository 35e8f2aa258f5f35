"""Layers -> a Python package that needs NumPy only: shared object, its C text, thin loader."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from polysci.errors import UnsupportedError
from polysci.export import elements, folder
from polysci.export.build_texts import wait_policy
from polysci.export.project import (
    MARK,
    Entry,
    Project,
    ProjectFile,
    TunedProblem,
    fill_template,
    project,
    title,
)
from polysci.lower.lowering import assemble
from polysci.runtime.backends import backend_of
from polysci.runtime.build.compiler import CANDIDATE_S, TIMEOUT_S
from polysci.target.host import detect

_TEMPLATES = {
    "{0}/__init__.py": "package.txt",
    "{0}/_library.py": "_library.py",
    "{0}/_layers.py": "_layers.py",
    "{0}/_values.py": "_values.py",
    "{0}/py.typed": "typed.txt",
    "pyproject.toml": "pyproject.txt",
    "README.md": "python_readme.md",
}
_NATIVE = "_native"
_PATTERNS = ("{0}/_native.c", "{0}/_native.so", "{0}/_native_*.c", "{0}/_native_*.so")
_TOLD = {"scaled": ("Scales",), "bf16": ("from_bf16", "to_bf16")}
_LEFTOVERS = ("__pycache__", "*.egg-info", "build", "dist")


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
    whole = project(results, title(out, name))
    for entry in whole.entries:
        if len(entry.sources) > 1:
            keys = ", ".join(source.key for source in entry.sources)
            raise UnsupportedError(
                f"a Python package holds code of one kind, got {keys} of {entry.identifier}; "
                "export C"
            )
    return folder.write(out, files(whole), leftovers=_LEFTOVERS, force=force)


def check_python(out: Path, *, name: str | None = None, force: bool = False) -> None:
    """Raise what ``export_python`` would find wrong with ``out``, before there are any results."""
    paths = [path.format(title(out, name)) for path in (*_TEMPLATES, *_PATTERNS)]
    folder.check(out, paths, leftovers=_LEFTOVERS, force=force)


def files(whole: Project) -> dict[str, str | bytes]:
    """The content of every file of the package."""
    native = {unit: _native(whole, unit) for unit in whole.units}
    binaries = {unit: _binary(unit, text) for unit, text in native.items()}
    example, told = whole.entries[0], _told(whole)
    pack, weights = _packing(example)
    features = dict.fromkeys(" ".join(unit.features for unit in whole.units).split())
    texts = {
        **elements.holes(whole),
        "NAME": whole.name,
        "WAITING": wait_policy(whole.threads, "\n", ""),
        "SIZE": whole.size,
        "FEATURES": " ".join(name for name in features if name != "none") or "none",
        "EXAMPLE": example.identifier,
        "EXAMPLE_PACK": pack,
        "EXAMPLE_W": weights,
        "EXAMPLE_TO": ", scales=scales" * example.precision.scaled,
        "VALUES": "".join(f"from ._values import {name} as {name}\n" for name in told),
        "NATIVE": _stem(whole, whole.units[0]),
        "LIBRARIES": "\n".join(_loaded(whole, unit, binaries[unit]) for unit in whole.units),
        "LAYERS": "\n".join(_made(whole, entry) for entry in whole.entries),
        "ALL": "".join(f'    "{name}",\n' for name in (*_identifiers(whole), *told)),
    }
    made: dict[str, str | bytes] = {
        path: fill_template(template, texts) for path, template in _TEMPLATES.items()
    }
    for unit, text in native.items():
        stem = f"{{0}}/{_stem(whole, unit)}"
        made |= {f"{stem}.c": text, f"{stem}.so": binaries[unit]}
    return {path.format(whole.name): content for path, content in made.items()}


def _packing(example: Entry) -> tuple[str, str]:
    """The line that packs weights ahead, none for an activation, and what the call then takes."""
    if example.activation:
        return "", "w"
    call = f"{example.identifier}.pack_weights(w{', x_zero' * example.precision.integer})"
    return f"    packed = {call}  # once; w of a convolution is K x C/groups x R x S\n", "packed"


def _identifiers(whole: Project) -> list[str]:
    return [entry.identifier for entry in whole.entries]


def _told(whole: Project) -> list[str]:
    """Return the names that the package offers beside the layers, unless a layer has them."""
    rows = [entry.precision for entry in whole.entries]
    some = {
        "scaled": any(row.scaled for row in rows),
        "bf16": any(row.x.name == "bf16" for row in rows),
    }
    wanted = [name for kind, names in _TOLD.items() if some[kind] for name in names]
    return [name for name in wanted if name not in _identifiers(whole)]


def _native(whole: Project, unit: ProjectFile) -> str:
    """The C text of a unit; layers that share code are one there."""
    title = f"/* {whole.name}: {unit.key}. {MARK}: do not edit. */\n"
    return title + assemble(unit.sources)


def _binary(unit: ProjectFile, text: str) -> bytes:
    """The shared object of a unit; the compiler has a minute for each of a few layers."""
    limit = min(TIMEOUT_S, CANDIDATE_S * len(unit.sources))
    return backend_of(detect()).build(text, symbols=unit.symbols, timeout=limit).read_bytes()


def _stem(whole: Project, unit: ProjectFile) -> str:
    """The name of a unit's files."""
    return _NATIVE if len(whole.units) == 1 else f"{_NATIVE}_{unit.key}"


def _library(whole: Project, key: str) -> str:
    """The variable that holds the loaded unit."""
    return "_library" if len(whole.units) == 1 else f"_library_{key}"


def _loaded(whole: Project, unit: ProjectFile, binary: bytes) -> str:
    """The statement that loads a unit."""
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


def _made(whole: Project, entry: Entry) -> str:
    """The statement that makes one layer."""
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
