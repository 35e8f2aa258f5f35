"""Microkernels from kernels.def and installed packages: headers, register tiles, ISAs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from polysci.errors import SpecError
from polysci.numerics.dtypes import COMPUTES
from polysci.target.extensions import Extension, add_each, resource
from polysci.target.isa import Isa

NONE: Mapping[str, Isa] = MappingProxyType({})
MOST_ROWS, MOST_VECTORS = 64, 16  # of a tile: a row mask has 64 bits at most
_FAMILY = re.compile(r"brgemm|fma|mma|depthwise|stacked|grouped[1-9][0-9]?|stencil2?")
_LINE = re.compile(r"KERNELS\((\w+), (\w+), (\w+), rows (\d+)\.\.(\d+), vectors (\d+)\)")
FORM = "KERNELS(family, isa, compute, rows FIRST..LAST, vectors COUNT)"


@dataclass(frozen=True, slots=True)
class KernelRange:
    """Register tiles of ``first`` to ``last`` rows by ``vectors`` vectors of columns."""

    family: str
    isa: str
    compute: str
    first: int
    last: int
    vectors: int

    def __str__(self) -> str:
        head = f"{self.family}, {self.isa}, {self.compute}"
        return f"KERNELS({head}, rows {self.first}..{self.last}, vectors {self.vectors})"

    @property
    def width(self) -> tuple[str, str, str, int]:
        """The key that all ranges share which may overlap."""
        return self.family, self.isa, self.compute, self.vectors


def parse_ranges(text: str, source: str, isas: Collection[str]) -> tuple[KernelRange, ...]:
    """Return the ranges of a ``kernels.def``, in its order; ``#`` begins a line that is a comment.

    ``isas`` are the names of instruction sets. SpecError: ``source``, and the line that is no range
    or the two that overlap.
    """
    ranges: list[KernelRange] = []
    for number, line in _lines(text):
        try:
            ranges.append(_parse_range(line, isas))
        except SpecError as error:
            raise SpecError(f"{source}, line {number}: {error}") from None
    try:
        refuse_overlap(ranges)
    except SpecError as error:
        raise SpecError(f"{source}: {error}") from None
    return tuple(ranges)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.rstrip()


def _parse_range(line: str, isas: Collection[str]) -> KernelRange:
    match = _LINE.fullmatch(line)
    if match is None:
        raise SpecError(f"expected {FORM}, got {line!r:.100}")
    family, isa, compute, *numbers = match.groups()
    tiles = KernelRange(family, isa, compute, *map(int, numbers))
    if isa not in isas:
        raise SpecError(f"isa: no instruction set {isa!r}; known: {', '.join(isas)}")
    if not _FAMILY.fullmatch(family):
        raise SpecError(
            "family: expected brgemm, fma, mma, depthwise, stacked, groupedN, stencil or stencil2, "
            f"got {family!r}"
        )
    if compute not in COMPUTES:
        raise SpecError(f"compute: expected one of {', '.join(COMPUTES)}, got {compute!r}")
    if not 1 <= tiles.first <= tiles.last <= MOST_ROWS:
        rule = f"expected 1 <= FIRST <= LAST <= {MOST_ROWS}"
        raise SpecError(f"rows: {rule}, got {tiles.first}..{tiles.last}")
    if not 1 <= tiles.vectors <= MOST_VECTORS:
        raise SpecError(f"vectors: expected 1 to {MOST_VECTORS}, got {tiles.vectors}")
    return tiles


def refuse_overlap(ranges: Sequence[KernelRange]) -> None:
    """SpecError for a tile that two ranges hold."""
    ordered = sorted(ranges, key=lambda tiles: (tiles.width, tiles.first))
    for before, after in pairwise(ordered):
        if before.width == after.width and after.first <= before.last:
            raise SpecError(f"{after} overlaps {before}")


GROUP = "polysci.microkernels"
_NAME = re.compile(r"[a-z][a-z0-9]*")
_FLAG = re.compile(r"-[\w=+.-]+")


@dataclass(frozen=True, slots=True)
class MicrokernelPackage:
    """A package of microkernels, which an entry point of the group ``polysci.microkernels`` names.

    ``folder`` holds a ``kernels.def`` of further register tiles and the headers of the instruction
    sets ``isas``, which are rows as in ``polysci.target.isas``: ``isa_NAME.h`` and what else
    microkernels/README.md asks of one. With this in the package's pyproject.toml ::

        [project.entry-points."polysci.microkernels"]
        sve256f32mm = "matrix_kernels:PACKAGE"

    and this in ``matrix_kernels/__init__.py``, its kernels are searched and exported as ours are::

        PACKAGE = MicrokernelPackage(
            Path(__file__).parent / "kernels",
            isas=(Isa("sve256f32mm", ("svef32mm",), 8, 32, extends=ISAS["sve256"],
                      own_options=("f32mm",)),),
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


def collect(own: Mapping[str, Isa], devices: Mapping[str, Isa] = NONE) -> KernelSources:
    """Our microkernels with those of packages; ``own`` and of ``devices``: our instruction sets."""
    languages = dict.fromkeys(isa.language for isa in devices.values())
    lists = {"kernels.def": own, **{f"kernels_{name}.def": devices for name in languages}}
    ranges = list[KernelRange]()
    for name, isas in lists.items():
        text = resource("microkernels", name).read_text(encoding="utf-8")
        ranges += parse_ranges(text, f"microkernels/{name}", isas)
    sources = KernelSources(own, tuple(ranges))

    def add(extension: Extension) -> None:
        nonlocal sources
        sources = _extend(sources, extension.value)

    add_each(GROUP, add)
    return sources


def _extend(sources: KernelSources, package: object) -> KernelSources:
    """Return the sources with those of one more package. SpecError: it does not fit."""
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
