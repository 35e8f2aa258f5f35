"""Instruction sets: what a CPU must have for each, and what each gives to a microkernel."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from polysci.errors import SpecError

# What compilers call the features of aarch64 that they must be told of.
ARM_EXTENSIONS = {"asimddp": "dotprod", "bf16": "bf16"}


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set: what the CPU must have, and what it gives to a microkernel.

    ``features`` are spelled as in cpuinfo. Generated C asks for them itself; ``cflags`` say the
    same to a compiler of other sources. It has the kernels of what it ``extends`` and its own; its
    own f32 ones serve inputs of the type that it ``rounds`` to, alone.
    """

    name: str
    features: tuple[str, ...]
    lanes_f32: int
    registers: int
    extends: str = ""
    rounds: str = ""

    @property
    def cflags(self) -> tuple[str, ...]:
        return tuple(f"-m{option}" for option in self._options)

    @property
    def attribute(self) -> str:
        """The GNU C attribute that enables the set for one function; empty if it needs none."""
        names = ",".join(self._options)
        return f'__attribute__((target("{names}")))' if names else ""

    @property
    def machine(self) -> str:
        """The only kind of machine that has it, as ``uname -m`` says; empty for any."""
        return "aarch64" if "asimd" in self.features else "x86_64" if self.features else ""

    @property
    def _options(self) -> tuple[str, ...]:
        """The features as compilers spell them."""
        if self.machine != "aarch64":
            return tuple(map(_option, self.features))
        names = "".join(f"+{ARM_EXTENSIONS[f]}" for f in self.features if f in ARM_EXTENSIONS)
        return (f"arch=armv8.2-a{names}",) if names else ()

    @property
    def chain(self) -> tuple[str, ...]:
        """It and what it extends, the best first."""
        return (self.name, *ISAS[self.extends].chain) if self.extends else (self.name,)

    def runs_on(self, features: Iterable[str]) -> bool:
        """Whether a CPU with these features executes it."""
        return set(self.features) <= set(features)

    def __str__(self) -> str:
        return self.name


def _option(feature: str) -> str:
    """A feature as compilers spell it."""
    head, _, tail = feature.partition("_")
    return f"{head}-{tail}" if head == "amx" else head + tail


ISAS: dict[str, Isa] = {}


def _isa(
    name: str, features: str, lanes_f32: int, registers: int, extends: str = "", rounds: str = ""
) -> None:
    """Add a row to ISAS; ``features`` beside those of what it extends."""
    own = tuple(features.split())
    inherited = ISAS[extends].features if extends else ()
    ISAS[name] = Isa(name, (*inherited, *own), lanes_f32, registers, extends, rounds)


# The best of a machine comes last.
_isa("portable", "", 4, 16)


_isa("neon", "asimd", 4, 32)


_isa("neondot", "asimddp", 4, 32, extends="neon")


_isa("neonbf16", "bf16", 4, 32, extends="neondot")


_isa("avx2", "avx2 fma f16c", 8, 16)


_isa("avx2vnni", "avx_vnni", 8, 16, extends="avx2")


_isa("avx512", "avx2 fma f16c avx512f avx512bw avx512dq avx512vl", 16, 32)


_isa("avx512vnni", "avx512_vnni", 16, 32, extends="avx512")


_isa("avx512bf16", "avx512_bf16", 16, 32, extends="avx512vnni", rounds="bf16")


_isa("avx512fp16", "avx512_fp16", 16, 32, extends="avx512bf16")


_isa("amx", "amx_tile amx_bf16 amx_int8", 16, 32, extends="avx512fp16")


def isa_named(name: str, *, source: str = "isa") -> Isa:
    """The row of ISAS; SpecError naming ``source`` and the rows that exist."""
    try:
        return ISAS[name]
    except KeyError:
        raise SpecError(
            f"{source}: no instruction set {name!r}; known: {', '.join(ISAS)}"
        ) from None


def up_to(cap: Isa) -> tuple[Isa, ...]:
    """The instruction sets that a cap allows, best last."""
    names = list(ISAS)
    return tuple(ISAS[name] for name in names[: names.index(cap.name) + 1])


def caps(isa: str | Isa | None = None) -> dict[str, Isa]:
    """The caps in force by what sets them: ``isa``, and POLYSCI_ISA; the lower one counts.

    SpecError: no such instruction set.
    """
    found: dict[str, Isa] = {}
    if isa is not None:
        found["--isa"] = isa_named(isa) if isinstance(isa, str) else isa
    if variable := os.environ.get("POLYSCI_ISA"):
        found["POLYSCI_ISA"] = isa_named(variable, source="environment variable POLYSCI_ISA")
    return found
