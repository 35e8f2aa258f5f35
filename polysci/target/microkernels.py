"""The registry of microkernels: register tiles of every kernels.def, C headers, sets of headers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from polysci.errors import SpecError, UnsupportedError
from polysci.numerics.dtypes import COMPUTES, DTYPES, computes
from polysci.target.extensions import resource
from polysci.target.isa import TileRegisters
from polysci.target.isas import ISAS, isa_of, kernel_sources
from polysci.target.packages import KernelRange


@dataclass(frozen=True, slots=True)
class Microkernel:
    """One register tile of one family: ``rows`` x ``cols`` of C held in registers.

    ``family`` is ``brgemm`` (A is broadcast along the columns), ``fma`` (the same, of a work-item
    whose group has copied both factors into its memory), ``mma`` (the same of a warp, which
    multiplies matrices), ``depthwise`` (A is a vector along
    them), ``stacked`` (the same on words of several taps), ``grouped`` and a number: the columns of
    a group, several of which share a vector; or ``stencil`` (A is pixels along the columns, B one
    scalar), ``stencil2`` where A's are two apart.
    ``compute`` names a row of COMPUTES.
    """

    family: str
    isa: str
    compute: str
    rows: int
    cols: int

    def __str__(self) -> str:
        return f"{self.family}_{self.isa}_{self.compute}_{self.rows}x{self.cols}"

    @property
    def lanes(self) -> int:
        return lanes(self.isa)

    @property
    def diagonal(self) -> bool:
        """Tell whether A is a vector along the columns."""
        return self.family not in ("brgemm", "fma", "mma")

    @property
    def items(self) -> int:
        """Work-items that compute the tile together: a warp multiplies matrices."""
        return 32 if self.family == "mma" else 1

    @property
    def group(self) -> int:
        """Columns of a group of which a vector holds several; 1 of other kernels."""
        return int(self.family.removeprefix("grouped")) if self.family.startswith("grouped") else 1

    @property
    def in_lane(self) -> int:
        """Channels of a group that share a lane of a vector of A along the columns."""
        words = self.group > 1 and self.compute in ("bf16", "i8")
        return COMPUTES[self.compute].vnni_factor if words else 1

    @property
    def shifts(self) -> int:
        """Accumulators, and vectors of B a step, for each vector of C."""
        return self.group // self.in_lane

    @property
    def stencil(self) -> bool:
        """Tell whether B is a scalar."""
        return self.family.startswith("stencil")

    @property
    def every(self) -> int:
        """Elements of A from one column to the next, of a stencil."""
        return int(self.family.removeprefix("stencil") or 1) if self.stencil else 1

    @property
    def stacked(self) -> bool:
        """Tell whether a word holds taps of neighbouring rows."""
        return self.family == "stacked"

    @property
    def slides(self) -> bool:
        """Return whether rows share the pixels of a line, loaded once for all of its taps."""
        return self.family in ("depthwise", "stacked")

    @property
    def vecs(self) -> int:
        return self.cols // self.lanes

    @property
    def panel_lanes(self) -> int:
        """Columns that a panel of B has whole: a vector, or one for each channel in a lane."""
        return self.lanes * self.in_lane

    @property
    def _fills_lines(self) -> bool:
        """Tell whether a vector of AVX-512 fills a line of the cache."""
        return self.lanes == 16 and isa_of(self.isa).machine == "x86_64"

    @property
    def shifts_pixels(self) -> bool:
        """Tell whether a stencil moves pixels from tap to tap in registers, and loads them once.

        Loads of 64 bytes cross a line wherever they start but at one, and take 2.5 cycles then;
        shorter ones seldom do, and cost less than moving lanes. A64FX has lines of 256 bytes.
        """
        return self._fills_lines

    def streamed_columns(self, item: int) -> int:
        """Columns of results of ``item`` bytes in a store past the caches; 0: there is none.

        4-byte results go by vectors; 2-byte ones by lines of 64 bytes, two vectors of AVX-512.
        """
        return {4: self.lanes, 2: 2 * self.lanes if self._fills_lines else 0}.get(item, 0)

    @property
    def tile_registers(self) -> TileRegisters | None:
        """The tile registers that hold its sums, if they are not in vector registers."""
        return isa_of(self.isa).tile_registers

    @property
    def outer_products(self) -> int:
        """Words of a row of the square registers to which it adds outer products, or 0."""
        return isa_of(self.isa).outer_products

    @property
    def in_vectors(self) -> bool:
        """Return whether vector registers hold its sums, and a step reads a word of each row."""
        return self.tile_registers is None and not self.outer_products


def lanes(isa: str) -> int:
    """32-bit lanes of a vector of an ISA."""
    return isa_of(isa).lanes_f32


@cache
def shorter(isa: str) -> tuple[str, ...]:
    """Instruction sets with shorter vectors that a CPU with this one has; not the portable one."""
    features, most = isa_of(isa).features, lanes(isa)
    return tuple(
        name
        for name, other in ISAS.items()
        if other.features and other.runs_on(features) and other.lanes_f32 < most
    )


def on_vectors(isa: str) -> str:
    """Return the set that an ISA extends if its own kernels add outer products, else itself."""
    row = isa_of(isa)
    return row.extends.name if row.outer_products and row.extends else isa


@cache
def header(name: str) -> str:
    """C text of NAME.h in microkernels/ or a package. UnsupportedError where there is none."""
    path = resource("microkernels", f"{name}.h")
    others = (folder / path.name for folder in kernel_sources().folders)
    path = next((other for other in others if other.exists()), path)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnsupportedError(f"no microkernel source {path}: {error.strerror}") from None


@cache
def registry() -> Mapping[str, Microkernel]:
    """Return every kernel by name: those of kernels.def in its order, then those of packages."""
    kernels = [kernel for tiles in kernel_sources().ranges for kernel in _kernels_in(tiles)]
    return MappingProxyType({str(kernel): kernel for kernel in kernels})


def _kernels_in(tiles: KernelRange) -> Iterator[Microkernel]:
    """Yield the register tiles of a range, the smallest first."""
    columns = tiles.vectors * lanes(tiles.isa)
    for rows in range(tiles.first, tiles.last + 1):
        yield Microkernel(tiles.family, tiles.isa, tiles.compute, rows, columns)


def find(name: str) -> Microkernel:
    """Return the kernel called ``name``; SpecError if kernels.def has none."""
    try:
        return registry()[name]
    except KeyError:
        raise SpecError(f"microkernel {name!r} is not in microkernels/kernels.def") from None


def family(name: str, isa: str, compute: str) -> tuple[Microkernel, ...]:
    """Return all register tiles of a family that an ISA itself adds."""
    return tuple(
        kernel
        for kernel in registry().values()
        if (kernel.family, kernel.isa, kernel.compute) == (name, isa, compute)
    )


@cache
def ways(name: str, isa: str, x: str) -> tuple[tuple[Microkernel, ...], ...]:
    """The register tiles by which an ISA multiplies inputs of type ``x``, for every way to do it.

    Those of one way belong to the best ISA of its chain that has any; where no ISA of the chain has
    a way, to the portable one. There may be none.
    """
    row = isa_of(isa)
    for chain in (row.chain, *[("portable",)] * (row.language == "c")):
        tiles = [_first_in(chain, name, compute, x) for compute in computes(x, name)]
        if any(tiles):
            return tuple(kernels for kernels in tiles if kernels)
    return ()


def _first_in(chain: tuple[str, ...], name: str, compute: str, x: str) -> tuple[Microkernel, ...]:
    """Return the register tiles of a way that the first ISA of a chain has that has any."""
    for isa in chain:
        spared = compute == "f32" and isa_of(isa).rounds not in ("", x)
        if not spared and (kernels := family(name, isa, compute)):
            return kernels
    return ()


@dataclass(frozen=True, slots=True)
class HeaderSet:
    """The hand-written headers of a C file: ``avx512`` for f32, ``avx512vnni_i8_u8_s8``.

    ``packed_copy``: kernels read a converted copy of x, not x itself; true where both are the same.
    ``w``: how kernels decode narrow weights (f32) or unpack them (a8, a24) as they load them.
    """

    isa: str
    compute: str = "f32"
    x: str = "f32"
    y: str = "f32"
    packed_copy: bool = True
    w: str = "f32"

    def __str__(self) -> str:
        if COMPUTES[self.compute].bytes_of_x:
            own = "_a24" if self.compute == "a24" else ""
            return f"{self.isa}{own}_{self.w}" + ("_packed" if self.packed_copy else "")
        if {self.compute, self.x, self.y} == {"f32"}:
            return self.isa if self.w == "f32" else f"{self.isa}_{self.w}"
        return "_".join(
            [self.isa, self.compute, self.x, self.y, *([] if self.packed_copy else ["x"])]
        )


def header_set_of(
    kernel: Microkernel, x: str, y: str, *, packed: bool, w: str = "f32"
) -> HeaderSet:
    """Return the headers of a kernel for types of x and y; ``packed``: it reads a copy of A.

    ``w`` is what f32 kernels decode.
    """
    compute = COMPUTES[kernel.compute]
    narrow = DTYPES[x].bytes < compute.bytes or bool(compute.bytes_of_x)
    return HeaderSet(
        kernel.isa, kernel.compute, x, y,
        packed_copy=not narrow or (packed and kernel.family == "brgemm"), w=w,
    )  # fmt: skip
