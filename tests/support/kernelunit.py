"""C units that drive every microkernel of kernels.def, and the process that runs one of them.

``python -m tests.support.kernelunit UNIT.so TIMES`` checks its kernels, operands between
guard pages; it prints a kernel's name before it runs it, so that a crash is attributed.
"""

import ctypes
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polysci.measure.operands import Guarded
from polysci.numerics.dtypes import COMPUTES, DTYPES, PRECISIONS
from polysci.printers.headers import headers
from polysci.runtime.build.compiler import default_flags, find_compiler
from polysci.target import microkernels
from polysci.target.extensions import resource
from polysci.target.host import detect
from polysci.target.isas import ISAS
from polysci.target.microkernels import HeaderSet, Microkernel, header, header_set_of

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data"
REGION = 1 << 20  # bytes: room for the largest operand of a case
OPERANDS = 7
CASES = 400  # of packing, of sliding
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
# Half of the compile time of -O3, which primitives get in the tests of operators.
FLAGS = (*(flag for flag in default_flags() if flag != "-O3"), "-O1", *STRICT)
SMALL_ROWS = 3  # of the tiles that are tried with every type

# The types of x and y that the kernels of a compute are checked with, by vectors of a row.
NATURAL = {
    "f32": ("f32 f32",),
    "f16": ("f16 f32", "f16 f16"),
    "bf16": ("bf16 f32", "bf16 bf16"),
    "i8": ("u8 u8", "s8 s32", "s8 s8", "u8 s32"),
    "i16": ("s8 s8", "u8 s32", "s8 u8"),
}
# What elements of A and B are, where kernels do not read x itself.
ELEMENTS = {
    "f32": ("f32", "f32"),
    "f16": ("f32", "f32"),
    "bf16": ("bf16", "bf16"),
    "i8": ("", "s8"),
    "i16": ("s16", "s16"),
}
# What units of 8-bit products add to an x that they do not take as it is; some take either sign.
FLIPS = {False: {}, "x86_64": {"s8": 128}, "aarch64": {"u8": -128}, "arm": {"u8": -128}}
OF_EITHER_SIGN = ("sve128", "sve256")
LIMITS = {"u8": (0, 255), "s8": (-128, 127)}


@dataclass(frozen=True, slots=True)
class StandIn:
    """A replacement of what few CPUs have: words of a unit's text, and what runs it then."""

    words: Mapping[str, str]
    features: tuple[str, ...]

    def replaced(self, text: str) -> str:
        for old, new in self.words.items():
            text = text.replace(old, new)
        return text


STAND_INS = {
    "avx2vnni": StandIn(
        {"avxvnni": "avx512vl,avx512vnni", "%{vex%} vpdp": "vpdp"},
        ("avx512vl", "avx512_vnni"),
    ),
    "avx512fp16": StandIn(
        {
            ",avx512fp16": "",
            "vcvtph2psx %1%{1to16%}, %0": r"vpbroadcastw %1, %t0\n\tvcvtph2ps %t0, %0",
        },
        ISAS["avx512bf16"].features,
    ),
}


def quick_flags() -> tuple[str, ...]:
    """FLAGS without the slowest pass of gcc on large kernels, a fifth of its time."""
    gcc = "clang" not in find_compiler().identity
    return (*FLAGS, "-fno-tree-dominator-opts") if gcc else FLAGS


def native(isa: str) -> bool:
    """Whether this CPU executes an ISA."""
    return ISAS[isa].runs_on(detect().features)


def runs_here(isa: str) -> bool:
    """Whether this CPU executes it, or what stands in for it."""
    found = STAND_INS.get(isa)
    return native(isa) or (found is not None and set(found.features) <= set(detect().features))


def runnable_text(isa: str, text: str) -> str:
    """Headers of an ISA as this CPU can run them."""
    return text if native(isa) or isa not in STAND_INS else STAND_INS[isa].replaced(text)


@dataclass(frozen=True, slots=True)
class Group:
    """Kernels that share the headers of a unit: those of one family and width, or small ones."""

    unit: HeaderSet
    kernels: tuple[Microkernel, ...]
    small: bool = False

    def __str__(self) -> str:
        if self.small:
            return f"small_{self.unit}"
        first = self.kernels[0]
        return f"{first.family}_{self.unit}_{first.cols}"

    @property
    def slid(self) -> tuple[Microkernel, ...]:
        """The depthwise tile, if ``ps_slide`` is checked on it: once for each type of x."""
        once = self.small and self.unit.y == COMPUTES[self.unit.compute].sum.name
        return tuple(k for k in self.kernels if k.family == "depthwise" and once)

    @property
    def effort(self) -> int:
        """What the compiler's time grows with."""
        return sum(kernel.rows * kernel.vecs for kernel in self.kernels)


def groups() -> list[Group]:
    """Every kernel on vector registers once, in the registry's order."""
    shared: dict[tuple[str, str, str, int], list[Microkernel]] = {}
    for kernel in on_vectors():
        key = (kernel.family, kernel.isa, kernel.compute, kernel.cols)
        shared.setdefault(key, []).append(kernel)
    return [Group(_natural(kernels[0]), tuple(kernels)) for kernels in shared.values()]


def portable_first(group: Group) -> tuple[bool, bool, int]:
    """Order of tests: the first of them run everywhere and take little time to compile."""
    return group.unit.isa != "portable", group.kernels[0].family != "brgemm", group.effort


def on_vectors() -> list[Microkernel]:
    """All of CPUs but those with tests of their own: on tile registers, stacked, a8 and a24."""
    kernels = [kernel for kernel in microkernels.registry().values() if kernel.isa in ISAS]
    kernels = [kernel for kernel in kernels if not COMPUTES[kernel.compute].bytes_of_x]
    return [kernel for kernel in kernels if kernel.tile_registers is None and not kernel.stacked]


def _natural(kernel: Microkernel) -> HeaderSet:
    own = ISAS[kernel.isa].rounds if kernel.compute == "f32" else ""
    choices = NATURAL[own or kernel.compute]
    x, y = choices[(kernel.vecs - 1) % len(choices)].split()
    return header_set_of(kernel, x, y, packed=True)


def small_groups() -> list[Group]:
    """A small tile of each family with every x and y, read directly and from a copy.

    Stencils have one choice of types.
    """
    found: dict[HeaderSet, list[Microkernel]] = {}
    widest: dict[tuple[str, ...], int] = {}
    for kernel in on_vectors():
        key = (kernel.family, kernel.isa, kernel.compute)
        widest[key] = max(kernel.vecs, widest.get(key, 0))
    for group in groups():
        first = group.kernels[0]
        if first.stencil:
            continue
        usual = min(2, widest[first.family, first.isa, first.compute])
        if first.vecs == max(usual, first.in_lane):
            kernel = group.kernels[:SMALL_ROWS][-1]
            for unit in _units(kernel):
                found.setdefault(unit, []).append(kernel)
    return [Group(unit, tuple(kernels), small=True) for unit, kernels in found.items()]


def _units(kernel: Microkernel) -> dict[HeaderSet, None]:
    """Every unit that a kernel can be part of."""
    found: dict[HeaderSet, None] = {}
    for precision in PRECISIONS.values():
        x, y = precision.x.name, precision.y.name
        if kernel.compute in ("bf16", "f16", "f32") and not precision.integer:
            known = kernel.compute in ("f32", x) and ISAS[kernel.isa].rounds in ("", x)
        else:
            known = precision.integer and COMPUTES[kernel.compute].sum.integer
        for packed in (True, False):
            if known:
                found[header_set_of(kernel, x, y, packed=packed)] = None
    return found


def text(group: Group, *, stand_in: bool = False, fault: tuple[str, str] = ("", "")) -> str:
    """A unit's C text, with the kernels that ``kernel_lines`` reads from kernels.def.

    ``stand_in``: as this CPU can run it. ``fault``: a header, and what replaces a part of it.
    """
    shared = headers(group.unit)
    if fault[0]:
        after = header(fault[0])
        assert after in shared, fault[0]
        shared = shared.replace(after, f"{after}\n#define {fault[1]}\n")
    if stand_in:
        shared = runnable_text(group.unit.isa, shared)
    names = ["microkernels", *(["packing", "sliding"] if group.small else []), "kernel_checks"]
    names = ["stencil"] if group.kernels[0].stencil else names
    parts = [
        shared,
        *(_data(name) for name in ("numbers.h", "places.h")),
        *(f"#define {name} {value}" for name, value in _defined(group.unit).items()),
        *(f"#define SLID_ROWS {k.rows}\n#define SLID_VECS {k.vecs}" for k in group.slid),
        _picked(group),
        *(_data(f"{name}.c") for name in names),
    ]
    return "\n".join(parts)


def _data(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def _defined(unit: HeaderSet) -> dict[str, object]:
    """What the plain loops must know about a unit, from the registry of types alone."""
    compute, x, y = COMPUTES[unit.compute], DTYPES[unit.x], DTYPES[unit.y]
    a, b = ELEMENTS[unit.compute]
    rounds = any(ISAS[name].rounds == "bf16" for name in ISAS[unit.isa].chain)
    flushes = compute.name == "f32" and ISAS[unit.isa].machine == "arm"  # all that MVE computes
    x_limits = LIMITS.get(unit.x, (-4, 4))
    w_limits = LIMITS["s8"] if x.integer else (-4, 4)
    flipped = unit.compute == "i8" and unit.isa not in OF_EITHER_SIGN
    return {
        "TYPE_X": unit.x,
        "TYPE_A": (a or unit.x) if unit.packed_copy else unit.x,
        "TYPE_B": b,
        "TYPE_Y": unit.y,
        **dict(zip(("X_LOW", "X_HIGH", "W_LOW", "W_HIGH"), (*x_limits, *w_limits), strict=True)),
        "WHOLE": int(x.integer),
        "SCALED": int(y.bytes == 1),
        "SPLIT": int(y == compute.sum),
        # Denormals count as zeros where an instruction multiplies bf16 or rounds to it.
        "FLUSHES": int(flushes or unit.compute == "bf16" or (rounds and unit.y == "bf16")),
        "COPY_FLUSHES": int(unit.compute == "bf16" or rounds),
        "FLIP": FLIPS[flipped and ISAS[unit.isa].machine].get(unit.x, 0),
    }


def _picked(group: Group) -> str:
    """KERNEL lines of all register tiles; the preprocessor takes those of the group."""
    keys = {_key(kernel): kernel for kernel in microkernels.registry().values()}
    picks = []
    for key, one in keys.items():
        last = str(one.every) if one.stencil else f"{one.shifts}, {one.in_lane}"
        cases = f"CASES(name, r, {one.vecs}, {int(one.diagonal)}, {last})"
        taken = key in {_key(kernel) for kernel in group.kernels}
        picks.append(f"#define PICK_{key}(name, r) {cases if taken else ''}")
    lines = kernel_lines()
    if group.small:
        wanted = [
            f"KERNEL({k.family}, {k.isa}, {k.compute}, {k.rows}, {k.cols})" for k in group.kernels
        ]
        lines = [line for line in lines if line in wanted]
    name = "f##_##i##_##t##_##r##x##c"
    return "\n".join(
        [
            *picks,
            f"#define KERNEL(f, i, t, r, c) PICK_##f##_##i##_##t##_##c({name}, r)",
            "#define KERNELS " + " \\\n".join(lines),
        ]
    )


def kernel_lines() -> list[str]:
    """``KERNEL(family, isa, compute, rows, columns)`` of every tile, without the registry."""
    text = resource("microkernels", "kernels.def").read_text(encoding="utf-8")
    ranges = (re.findall(r"\w+", line) for line in text.splitlines() if line[:1] == "K")
    return [
        f"KERNEL({family}, {isa}, {compute}, {rows}, {int(vectors) * ISAS[isa].lanes_f32})"
        for _, family, isa, compute, _, first, last, _, vectors in ranges
        for rows in range(int(first), int(last) + 1)
    ]


def _key(kernel: Microkernel) -> str:
    return f"{kernel.family}_{kernel.isa}_{kernel.compute}_{kernel.cols}"


def run(so: Path, times: int = 1) -> subprocess.CompletedProcess[str]:
    """Check the kernels of a unit in a process of their own."""
    words = [sys.executable, "-m", "tests.support.kernelunit", str(so), str(times)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT)


def run_all(units: Mapping[Any, Path], times: int) -> dict[Any, subprocess.CompletedProcess[str]]:
    """``run`` of every unit, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda path: run(path, times), units.values())
        return dict(zip(units, done, strict=True))


def names_of(unit: ctypes.CDLL) -> list[str]:
    """The kernels in a unit, as its own table tells."""
    unit.name_of.restype = ctypes.c_char_p
    return [unit.name_of(index).decode() for index in range(unit.kernels())]


def main(so: str, times: str) -> int:
    unit = ctypes.CDLL(so)
    guarded = [Guarded(REGION, "start") for _ in range(OPERANDS)]
    starts = [region.raw.ctypes.data for region in guarded]
    bounds = [at for start in starts for at in (start, start + REGION)]
    regions = (ctypes.c_void_p * len(bounds))(*bounds)
    message = ctypes.create_string_buffer(500)
    room = ctypes.c_size_t(500)
    for index, name in enumerate(names_of(unit)):
        print(name, flush=True)
        if unit.check(index, int(times), regions, message, room):
            print(message.value.decode())
            return 1
    for check, name in (("check_packing", "ps_pack_row"), ("check_sliding", "ps_slide")):
        if hasattr(unit, check):
            print(name, flush=True)
            if getattr(unit, check)(CASES, regions, message, room):
                print(message.value.decode())
                return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
