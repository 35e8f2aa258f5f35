"""An instruction set: the CPU features it needs, its registers, its compiler flags."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

# The kinds of machines by the feature that each of their instruction sets needs; others: x86-64.
_MACHINES = {"asimd": "aarch64", "simd128": "wasm32", "v": "riscv64", "mve": "arm"}


@dataclass(frozen=True, slots=True)
class Permission:
    """A grant of the operating system that a process needs before some features are of any use.

    ``prefix`` begins the names of these features in cpuinfo; ``granted`` asks. The rest is what
    ``polysci doctor`` says: a title, the good and the bad finding, and the remedy for the latter.
    """

    prefix: str
    granted: Callable[[], bool]
    title: str
    allowed: str
    denied: str
    remedy: str


@dataclass(frozen=True, slots=True)
class TileRegisters:
    """Two-dimensional registers, whose shapes a thread configures before its first register tile.

    A register holds ``rows`` rows; ``sums`` registers hold sums; a step takes up to ``words`` words
    of k. ``headers`` follow those of the vector kernels, ``probe`` measures the peak. ``state`` is
    the field of ps_args that points to what a thread has configured; ``configure`` and ``release``
    are the C functions that change it.
    """

    rows: int
    sums: int
    words: int
    headers: tuple[str, ...]
    probe: str
    state: str
    configure: str
    release: str


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set: what the CPU must have, and what it gives to a microkernel.

    It has the kernels of what it ``extends`` and its own; its own f32 ones serve inputs of the
    type that it ``rounds`` to, alone. ``own_features`` are what it needs beyond those, as cpuinfo
    spells them; ``own_options`` the same as compilers spell it, by default without underscores.
    Generated C asks for them function by function; what only a flag of the whole file can say, as
    ``-msve-vector-bits=256``, is in ``own_flags``. ``lanes_f32`` of a vector, vector ``registers``.
    ``shares`` are the endings of further headers that it uses, the best first: those that sets with
    vectors of several lengths have in common. ``own_byte_types`` are the types of 8 bits that
    its products of four take as they are, by default those of what it extends, or u8; x of another
    type is flipped.
    ``tuning``: CPUs as GCC calls them that are like those that have it, where that is known.
    ``language`` is what code for it is written in: C, or a device's own. ``matrices`` are the types
    whose matrices work-items of a warp multiply together; ``copies_async``: copies into the memory
    of a group run beside what its items do. ``condition`` is C that tells a compiler of the set
    from others, which take the portable text in place of its headers; empty: all have the set.
    ``outer_products``: words of a row of the square registers to which its kernels add columns of A
    times rows of B, from sums in memory; 0: it has none.
    ``experimental``: only who names it gets it.
    """

    name: str
    own_features: tuple[str, ...]
    lanes_f32: int
    registers: int
    extends: Isa | None = field(default=None, repr=False)
    rounds: str = ""
    own_options: tuple[str, ...] | None = None
    own_flags: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    own_byte_types: tuple[str, ...] | None = None
    tile_registers: TileRegisters | None = field(default=None, repr=False)
    permission: Permission | None = field(default=None, repr=False)
    tuning: str = ""
    language: str = "c"
    matrices: tuple[str, ...] = ()
    copies_async: bool = False
    condition: str = ""
    outer_products: int = 0
    experimental: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """The features that the CPU must have, all of them."""
        return (*(self.extends.features if self.extends else ()), *self.own_features)

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler flags that every C file of this instruction set needs."""
        return (*(self.extends.flags if self.extends else ()), *self.own_flags)

    @property
    def machine(self) -> str:
        """The only kind of machine that has it, as ``uname -m`` says; empty for any."""
        if self.language != "c" or not self.features:
            return ""
        return next((name for own, name in _MACHINES.items() if own in self.features), "x86_64")

    @property
    def chain(self) -> tuple[str, ...]:
        """The names of the set and of all that it extends, the best first."""
        return (self.name, *(self.extends.chain if self.extends else ()))

    @property
    def endings(self) -> tuple[str, ...]:
        """The words in which the names of its headers end, the best first."""
        return (self.name, *self.shares, *(self.extends.endings if self.extends else ()))

    @property
    def byte_types(self) -> tuple[str, ...]:
        """The types of 8 bits of x that its products of four numbers take as they are."""
        if self.own_byte_types is not None:
            return self.own_byte_types
        return self.extends.byte_types if self.extends else ("u8",)

    def runs_on(self, features: Iterable[str]) -> bool:
        """Return whether a CPU with these features executes it."""
        return set(self.features) <= set(features)

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that compilers are told to enable."""
        if self.machine != "aarch64":
            return self._options
        names = "".join(f"+{option}" for option in self._options)
        return (f"arch=armv8.2-a{names}",) if names else ()

    @property
    def _options(self) -> tuple[str, ...]:
        """The features as compilers spell them."""
        own = self.own_options
        if own is None:
            own = tuple(feature.replace("_", "") for feature in self.own_features)
        return (*(self.extends._options if self.extends else ()), *own)

    def __str__(self) -> str:
        return self.name
