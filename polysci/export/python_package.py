"""Layers -> a Python package that needs NumPy only: shared object, its C text, thin loader."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from polysci.build import cache
from polysci.export import folder
from polysci.export.project import MARK, Planned, Project, Unit, filled, project, title

_TEMPLATES = {
    "{0}/__init__.py": "package.txt",
    "{0}/_runtime.py": "runtime.py",
    "{0}/py.typed": "typed.txt",
    "pyproject.toml": "pyproject.txt",
    "README.md": "python_readme.md",
}
_SOURCE, _BINARY = "{0}/_native.c", "{0}/_native.so"
_LEFTOVERS = ("__pycache__", "*.egg-info", "build", "dist")


def export_python(
    results: Sequence[Planned], out: Path, *, name: str | None = None, force: bool = False
) -> list[Path]:
    """Write a package of ``results`` (``tune.Result`` or ``Layer``) into ``out/NAME``.

    With ``out`` on the path, ``from NAME import LAYER`` works where polysci is not installed;
    ``pip install out`` works too. The package holds the shared object, built here, and the C text,
    from which it builds another one where that one does not load. ``name`` (default: the
    directory's) is made an identifier where it is none. Returns the paths written.

    Raises as ``export_c`` does, and BuildError if there is no compiler or it fails.
    """
    check_python(out, name=name, force=force)
    whole = project(results, title(out, name))
    return folder.write(out, files(whole), leftovers=_LEFTOVERS, force=force)


def check_python(out: Path, *, name: str | None = None, force: bool = False) -> None:
    """Raise what ``export_python`` would find wrong with ``out``, before there are any results."""
    paths = [path.format(title(out, name)) for path in (*_TEMPLATES, _SOURCE, _BINARY)]
    folder.check(out, paths, leftovers=_LEFTOVERS, force=force)


def files(whole: Project) -> dict[str, str | bytes]:
    """The content of every file of the package."""
    title = f"/* {whole.name}: {whole.size}, f32. {MARK}: do not edit. */\n"
    source = title + whole.code()
    binary = cache.build(source).read_bytes()
    example = whole.units[0]
    values = {
        "NAME": whole.name,
        "SIZE": whole.size,
        "ISA": whole.isa,
        "FEATURES": whole.features,
        "EXAMPLE": example.identifier,
        "DIGEST": hashlib.sha256(binary).hexdigest(),
        "LAYERS": "\n".join(map(_made, whole.units)),
        "ALL": "".join(f'    "{unit.identifier}",\n' for unit in whole.units),
    }
    texts = {path: filled(template, values) for path, template in _TEMPLATES.items()}
    made: dict[str, str | bytes] = {**texts, _SOURCE: source, _BINARY: binary}
    return {path.format(whole.name): content for path, content in made.items()}


def _made(unit: Unit) -> str:
    """The statement that makes one layer."""
    problem, layer = unit.layer.problem, unit.layer
    return (
        f"{unit.identifier} = _Layer(\n"
        f"    _library,\n"
        f'    "{unit.symbol}",\n'
        f"    name={problem.name!a},\n"
        f'    words="{unit.words}",\n'
        f'    layout="{problem.layout}",\n'
        f'    schedule="{layer.schedule}",\n'
        f"    threads={layer.threads},\n"
        f"    x_shape={tuple(problem.x_shape)},\n"
        f"    w_shape={tuple(problem.w_shape)},\n"
        f"    y_shape={tuple(problem.y_shape)},\n"
        f"    bias_axis={problem.bias_axis},\n"
        f"    batched={problem.batched},\n"
        ")"
    )
