"""A network as a Python package that needs NumPy only: shared object, weights, C, thin loader."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import MappingProxyType

from polysci.export import folder
from polysci.export import project as export
from polysci.export.build_texts import wait_policy
from polysci.export.folder import Content
from polysci.export.networks.c_project import fill_template, mark_files, rows
from polysci.export.networks.selftest_data import SelftestData, make_selftest_data
from polysci.network.compiled import Network
from polysci.network.runner import TensorPort

_FILES = MappingProxyType(
    {
        "{0}/__init__.py": "package.txt",
        "{0}/py.typed": "typed.txt",
        "pyproject.toml": "pyproject.txt",
        "README.md": "python_readme.md",
    }
)
_MODULES = ("_library.py", "_network.py")  # of the templates of all exported packages
_PATTERNS = ("{0}/{0}.h", "{0}/{0}.c", "{0}/{0}_*.c", "{0}/{0}.weights", "{0}/_native.so")
_LEFTOVERS = ("__pycache__", "*.egg-info", "build", "dist")


def write_package(network: Network, out: Path, *, force: bool = False) -> list[Path]:
    """Write ``out/NAME``: with ``out`` on the path, ``from NAME import net`` works without polysci.

    Returns the paths written. Raises as ``write_project`` does.
    """
    check_package(out, network.name, force=force)
    contents = files(network, make_selftest_data(network))
    return folder.write(out, contents, leftovers=_LEFTOVERS, force=force)


def check_package(out: Path, name: str, *, force: bool = False) -> None:
    """Raise what ``write_package`` would find wrong with ``out``, before there is a network."""
    paths = [path.format(name) for path in (*_PATTERNS, *_FILES)]
    paths += [f"{name}/{module}" for module in _MODULES]
    folder.check(out, paths, leftovers=_LEFTOVERS, force=force)


def files(network: Network, told: SelftestData) -> dict[str, Content]:
    """The content of every file of the package."""
    name, code = network.name, mark_files(network.code.files, network.name)
    binary = network.runner.library.path.read_bytes()
    values = {
        "NAME": name,
        "WAITING": wait_policy(network.threads, "\n", ""),
        "SIZE": f"{len(network.code.placed.program.stages)} stages",
        "FEATURES": " ".join(network.code.isa.features) or "none",
        "DIGEST": hashlib.sha256(binary).hexdigest(),
        "SOURCES": repr(tuple(path for path in code if path.endswith(".c"))),
        "INPUTS": _literal(network.inputs),
        "OUTPUTS": _literal(network.outputs),
        "TENSORS": "\n".join(row.strip("| ").replace(" | ", "  ") for row in rows(network)),
        "TABLE": "\n".join(rows(network)),
        "ERROR": f"{told.error:.2g}",
    }
    made: dict[str, Content] = {
        path.format(name): fill_template(template, values) for path, template in _FILES.items()
    }
    return {
        **{f"{name}/{module}": export.fill_template(module, {}) for module in _MODULES},
        **{f"{name}/{path}": text for path, text in code.items()},
        f"{name}/{name}.weights": network.code.weights_file.pieces,
        f"{name}/_native.so": binary,
        **made,
    }


def _literal(ports: tuple[TensorPort, ...]) -> str:
    """Names may hold anything: as ASCII literals."""
    return ascii(tuple(
        (port.name, tuple(port.shape), port.dtype, *([port.counted] * bool(port.counted)))
        for port in ports
    ))  # fmt: skip
