"""The table of instruction sets, and the caps that a user sets."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from polysci.errors import SpecError
from polysci.target.extensions import ExtensionTable
from polysci.target.isa import Isa, Permission, TileRegisters
from polysci.target.packages import KernelSources, collect
from polysci.text.names import known_name, suggest

# Linux lends the tile registers to a process that asks, unless it was told not to: then cpuinfo's
# flags are of no use. Documentation/arch/x86/xstate.rst.
_SYS_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP, _XFEATURE_TILEDATA = 158, 0x1021, 18


# Documentation/arch/arm64/sve.rst and sme.rst.
_PR_SVE_GET_VL, _PR_SME_GET_VL, _VL_BYTES = 51, 64, 0xFFFF


def read_vector_bits() -> int:
    """Return the bits of a vector of SVE in this process; 0 where the kernel knows of none."""
    return _ask_length(_PR_SVE_GET_VL)


def read_streaming_bits() -> int:
    """Return the bits of a vector in SME's streaming mode; 0 where the kernel knows of none."""
    return _ask_length(_PR_SME_GET_VL)


def _ask_length(option: int) -> int:
    """Return the bits of a vector of this process, which ``option`` of prctl asks for."""
    ask: Callable[..., int] = ctypes.CDLL(None).prctl
    return 8 * (max(0, ask(option, 0, 0, 0, 0)) & _VL_BYTES)


def read_components() -> int:
    """Return the bits of the register sets that the kernel lends; 0 where it cannot be asked."""
    mask = ctypes.c_ulong(0)
    ask: Callable[..., int] = ctypes.CDLL(None).syscall
    refused = ask(_SYS_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP, ctypes.byref(mask))
    return 0 if refused else mask.value


def tiles_granted() -> bool:
    """Return whether the kernel lets a process have the tile registers."""
    return bool(read_components() >> _XFEATURE_TILEDATA & 1)


AMX_PERMISSION = Permission(
    prefix="amx",
    granted=tiles_granted,
    title="AMX",
    allowed="the kernel grants tiles on request",
    denied="the CPU has tiles, the kernel withholds them: unused",
    remedy="use Linux 5.16 or newer, and allow a guest its tiles",
)
AMX_REGISTERS = TileRegisters(
    rows=16,
    sums=4,
    words=16,
    headers=("tiles_amx", "parts", "grid_amx", "brgemm_amx"),
    probe="probe_amx",
    state="tiles",
    configure="ps_tiles_configure",
    release="ps_tiles_release",
)


def vectors(bits: int) -> str:
    """Return the feature of a CPU, or a process, whose vectors of SVE have so many bits."""
    return f"sve_{bits}_bits"


def streaming(bits: int) -> str:
    """Return the feature of a CPU, or a process, with so many bits a vector in streaming mode."""
    return f"sme_{bits}_bits"


def _riscv64_rows() -> Iterator[Isa]:
    """Yield the rows of RISC-V by the bits of a register, or more; two registers are a vector."""
    for bits, more in ((128, ()), (256, ("zvl256b",))):
        march = "_".join(("-march=rv64gcv", *more))
        yield Isa(
            f"rvv{bits}", ("v", *more), bits // 16, 16, own_options=(), own_flags=(march,),
            shares=("riscv64",),
        )  # fmt: skip


def _aarch64_rows() -> Iterator[Isa]:
    """Yield the rows of aarch64, those of SVE by the length of vectors.

    Every CPU with vectors of 128 or 256 bits multiplies bf16 and 8-bit numbers of any sign; the one
    with 512 bits, A64FX, does not.
    """
    signed = ("s8",)
    neon = Isa("neon", ("asimd",), 4, 32, own_options=())  # every aarch64 has it
    neondot = Isa(
        "neondot", ("asimddp",), 4, 32, neon, own_options=("dotprod",), own_byte_types=signed
    )
    neonbf16 = Isa("neonbf16", ("bf16",), 4, 32, neondot)
    yield from (neon, neondot, neonbf16)
    # Its assembly says for itself what it needs: compilers use nothing of it elsewhere.
    yield Isa(
        "sme", ("sme", "smef32f32", "smeb16f32", streaming(512)), 4, 32, neonbf16, own_options=(),
        outer_products=16, experimental=True,
    )  # fmt: skip
    for bits in (128, 256, 512):
        more = ("svebf16", "svei8mm") if bits < 512 else ()
        yield Isa(
            f"sve{bits}", ("asimd", "sve", *more, vectors(bits)), bits // 32, 32,
            own_options=("sve", *(word.removeprefix("sve") for word in more)),
            own_flags=(f"-msve-vector-bits={bits}",),
            shares=(*more, "sve"), own_byte_types=("u8", "s8") if more else signed,
        )  # fmt: skip


def _rows() -> Iterator[Isa]:
    """Our rows; of the instruction sets of a machine the best comes last."""
    yield Isa("scalar", (), 1, 32)
    yield Isa("portable", (), 4, 16)
    wasm = Isa("wasm128", ("simd128",), 4, 16, own_options=(), own_flags=("-msimd128",))
    yield wasm
    flags = ("-mrelaxed-simd",)
    yield Isa("wasmrelaxed", ("relaxed_simd",), 4, 16, wasm, own_options=(), own_flags=flags)
    # Of Armv8.1-M: which compiler options ask for it, the user knows, as -mcpu=cortex-m55.
    mve = "defined(__ARM_FEATURE_MVE)"
    signed = ("s8",)
    yield Isa("helium", ("mve",), 4, 8, own_options=(), own_byte_types=signed, condition=mve)
    yield from _riscv64_rows()
    yield from _aarch64_rows()
    avx2 = Isa("avx2", ("avx2", "fma", "f16c"), 8, 16)
    yield from (avx2, Isa("avx2vnni", ("avx_vnni",), 8, 16, avx2))
    features = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
    avx512 = Isa("avx512", (*avx2.own_features, *features), 16, 32)
    vnni = Isa("avx512vnni", ("avx512_vnni",), 16, 32, avx512)
    bf16 = Isa("avx512bf16", ("avx512_bf16",), 16, 32, vnni, rounds="bf16")
    tuning = "sapphirerapids"  # the first one with it
    fp16 = Isa("avx512fp16", ("avx512_fp16",), 16, 32, bf16, tuning=tuning)
    yield from (avx512, vnni, bf16, fp16)
    yield Isa(
        "amx", ("amx_tile", "amx_bf16", "amx_int8"), 16, 32, fp16,
        own_options=("amx-tile", "amx-bf16", "amx-int8"),
        tile_registers=AMX_REGISTERS, permission=AMX_PERMISSION,
        tuning=tuning,
    )  # fmt: skip


_OWN: Mapping[str, Isa] = MappingProxyType({isa.name: isa for isa in _rows()})


@cache
def _collect_kernels() -> KernelSources:
    return collect(_OWN, DEVICE_ISAS)


ISAS: Mapping[str, Isa] = ExtensionTable(_OWN, lambda _: _collect_kernels().isas)


def kernel_sources() -> KernelSources:
    """The instruction sets, register tiles and header folders of polysci and installed packages."""
    iter(ISAS)  # first: a package that is being loaded may read the table
    return _collect_kernels()


DOT_PRODUCT: Final = "cl_khr_integer_dot_product"


def _device_rows() -> Iterator[Isa]:
    """Yield the rows of devices: languages, with vectors of so many floats.

    ``opencl4dot`` multiplies words of 8-bit numbers by an extension of OpenCL's.
    A thread of CUDA has 255 registers of a float. From sm_75 on warps multiply matrices of f16,
    from sm_80 on of bf16 too, and copies run beside them (PTX ISA, mma and cp.async). Matrices of
    8-bit numbers are those of i8.
    """
    for lanes, registers in ((4, 16), (8, 16), (16, 32)):
        name = f"opencl{lanes}"
        row = Isa(name, (name,), lanes, registers, language="opencl")
        yield row
        if lanes == 4:
            yield Isa("opencl4dot", (DOT_PRODUCT,), lanes, registers, row, language="opencl")
    cuda4 = Isa("cuda4", ("cuda4",), 4, 48, language="cuda")
    cuda75 = Isa("cuda75", ("sm_75",), 4, 48, cuda4, language="cuda", matrices=("f16", "i8"))
    yield from (cuda4, cuda75)
    yield Isa(
        "cuda80", ("sm_80",), 4, 48, cuda75, language="cuda", matrices=("f16", "bf16", "i8"),
        copies_async=True,
    )  # fmt: skip


DEVICE_ISAS: Mapping[str, Isa] = MappingProxyType({isa.name: isa for isa in _device_rows()})


def isa_of(name: str) -> Isa:
    """Return the instruction set of a kernel: a CPU's, or a device's. SpecError: neither."""
    return DEVICE_ISAS[name] if name in DEVICE_ISAS else isa_named(name)


def isa_named(name: str, *, source: str = "isa") -> Isa:
    """Return the row of ISAS, in any case; SpecError naming ``source`` and the rows that exist."""
    if name in ISAS:
        return ISAS[name]
    try:
        return ISAS[known_name(name, ISAS)]
    except KeyError:
        raise SpecError(
            f"{source}: no instruction set {name!r}; known: {', '.join(ISAS)}{suggest(name, ISAS)}"
        ) from None


def permissions() -> tuple[Permission, ...]:
    """Return what the operating system must grant for one instruction set or another."""
    return tuple(dict.fromkeys(isa.permission for isa in ISAS.values() if isa.permission))


def up_to(cap: Isa) -> tuple[Isa, ...]:
    """Return the instruction sets that a cap allows, best last."""
    names = list(ISAS)
    return tuple(ISAS[name] for name in names[: names.index(cap.name) + 1])


def least_of(isa: Isa, names: Iterable[str]) -> Isa:
    """The least of what ``isa`` extends that has the features of all of ``names``; else itself."""
    features = {feature for name in names for feature in isa_of(name).features}
    rows = (isa_of(name) for name in reversed(isa.chain))
    return next((row for row in rows if features <= set(row.features)), isa)


def caps(isa: str | Isa | None = None) -> dict[str, Isa]:
    """Return the caps in force by what sets them: ``isa``, and POLYSCI_ISA; the lower one counts.

    SpecError: no such instruction set.
    """
    limits: dict[str, Isa] = {}
    if isa is not None:
        limits["--isa"] = isa_named(isa) if isinstance(isa, str) else isa
    if variable := os.environ.get("POLYSCI_ISA"):
        limits["POLYSCI_ISA"] = isa_named(variable, source="environment variable POLYSCI_ISA")
    return limits
