"""Microkernels from installed packages: folders of headers, register tiles, instruction sets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polysci.errors import SpecError
from polysci.target.extensions import Extension, add_each
from polysci.target.isa import Isa
from polysci.target.kernel_ranges import KernelRange, parse_ranges, refuse_overlap
from polysci.target.resources import resource

GROUP = "polysci.microkernels"
_NAME = re.compile(r"[a-z][a-z0-9]*")
_FLAG = re.compile(r"-[\w=+.-]+")


@dataclass(frozen=True, slots=True)
class MicrokernelPackage:
    """What an entry point of the group ``polysci.microkernels`` names.

    ``folder`` holds a ``kernels.def`` of further register tiles and the headers of the instruction
    sets ``isas``, which are rows as in ``polysci.target.isas``: ``isa_NAME.h`` and what else
    microkernels/README.md asks of one. With this in the package's pyproject.toml ::

        [project.entry-points."polysci.microkernels"]
        sve256 = "sve_kernels:PACKAGE"

    and this in ``sve_kernels/__init__.py``, its kernels are searched and exported as ours are::

        PACKAGE = MicrokernelPackage(
            Path(__file__).parent / "kernels",
            isas=(Isa("sve256", ("sve",), 8, 32, extends=ISAS["neonbf16"],
                      own_flags=("-msve-vector-bits=256",)),),
        )

    A package that does not fit is left out, with a logged warning that names it: its instruction
    sets need names of their own, its headers end in one of those names, its tiles are in no other
    list.
    """

    folder: Path
    isas: tuple[Isa, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelSources:
    """All instruction sets in order, all register tiles, and the folders of headers beside ours."""

    isas: Mapping[str, Isa]
    ranges: tuple[KernelRange, ...]
    folders: tuple[Path, ...] = ()


def collect(own: Mapping[str, Isa]) -> KernelSources:
    """Our microkernels with those of installed packages; ``own`` are our instruction sets."""
    text = resource("microkernels", "kernels.def").read_text(encoding="utf-8")
    sources = KernelSources(own, parse_ranges(text, "microkernels/kernels.def", own))

    def add(extension: Extension) -> None:
        nonlocal sources
        sources = _extend(sources, extension.value)

    add_each(GROUP, add)
    return sources


def _extend(sources: KernelSources, package: object) -> KernelSources:
    """The sources with those of one more package. SpecError: it does not fit."""
    if not isinstance(package, MicrokernelPackage):
        raise SpecError(f"expected a MicrokernelPackage, got {package!r:.80}")
    isas = dict(sources.isas)
    for isa in package.isas:
        isas = _insert(isas, isa)
    ranges = _read_ranges(package.folder, isas)
    refuse_overlap((*sources.ranges, *ranges))
    _check_headers(package, sources.folders)
    return KernelSources(isas, (*sources.ranges, *ranges), (*sources.folders, package.folder))


def _insert(isas: Mapping[str, Isa], isa: Isa) -> dict[str, Isa]:
    """The rows with one more behind those of the same kind of machine: the best comes last."""
    if not _NAME.fullmatch(isa.name) or isa.name in isas:
        raise SpecError(f"isa {isa.name!r}: expected a new name of lower-case letters and digits")
    if wrong := next((flag for flag in isa.own_flags if not _FLAG.fullmatch(flag)), None):
        raise SpecError(f"isa {isa}: own_flags: expected compiler flags, got {wrong!r}")
    if isa.extends and isas.get(isa.extends.name) != isa.extends:
        raise SpecError(f"isa {isa}: extends {isa.extends}, which is no row of the table")
    names = list(isas)
    same = [at for at, name in enumerate(names) if isas[name].machine == isa.machine]
    names.insert(same[-1] + 1 if same else len(names), isa.name)
    return {name: isas.get(name, isa) for name in names}


def _read_ranges(folder: Path, isas: Mapping[str, Isa]) -> tuple[KernelRange, ...]:
    path = folder / "kernels.def"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from None
    return parse_ranges(text, str(path), isas)


def _check_headers(package: MicrokernelPackage, folders: Sequence[Path]) -> None:
    """Headers serve the package's own instruction sets: nobody else's generated code changes."""
    names = [isa.name for isa in package.isas]
    for path in sorted(package.folder.glob("*.h")):
        if path.stem.rpartition("_")[2] not in names:
            rule = f"expected *_{'.h, *_'.join(names)}.h" if names else "no instruction set is new"
            raise SpecError(f"header {path.name}: {rule}")
        if any((other / path.name).exists() for other in (resource("microkernels"), *folders)):
            raise SpecError(f"header {path.name}: another folder has it")
