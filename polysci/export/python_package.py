"""Layers -> a Python package that needs NumPy only: a shared object, its C source, a thin loader."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from polysci.build import cache
from polysci.export import folder
from polysci.export.project import MARK, Planned, Project, Unit, filled, project


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
    whole = project(results, name, out)
    leftovers = ("__pycache__", "*.egg-info", "build", "dist")
    return folder.write(out, files(whole), leftovers=leftovers, force=force)


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
    package = whole.name
    return {
        f"{package}/__init__.py": filled("package.txt", values),
        f"{package}/_runtime.py": filled("runtime.py", values),
        f"{package}/_native.c": source,
        f"{package}/_native.so": binary,
        f"{package}/py.typed": f"# {MARK}\n",
        "pyproject.toml": filled("pyproject.txt", values),
        "README.md": filled("python_readme.md", values),
    }


def _made(unit: Unit) -> str:
    """The statement that makes one layer."""
    problem, layer = unit.layer.problem, unit.layer
    return (
        f"{unit.identifier} = _Layer(\n"
        f"    _library,\n"
        f'    "{unit.symbol}",\n'
        f"    name={ascii(problem.name)},\n"
        f'    words="{unit.words}",\n'
        f'    layout="{problem.layout}",\n'
        f'    schedule="{layer.schedule}",\n'
        f"    threads={layer.threads},\n"
        f"    x_shape={tuple(problem.x_shape)},\n"
        f"    w_shape={tuple(problem.w_shape)},\n"
        f"    y_shape={tuple(problem.y_shape)},\n"
        ")"
    )
