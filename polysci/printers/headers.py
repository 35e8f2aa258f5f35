"""The headers ahead of generated code, and the small files that ask a compiler what it can do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from polysci.errors import UnsupportedError
from polysci.numerics.dtypes import COMPUTES, DTYPES
from polysci.printers import openmp
from polysci.printers.dialect import dialect_of
from polysci.target.isa import Isa
from polysci.target.isas import isa_of
from polysci.target.microkernels import HeaderSet, header

# The header of intrinsics by the machine that a compiler compiles for; no other machine has one.
INTRINSICS: Mapping[str, str] = MappingProxyType(
    {
        "x86_64": "#include <immintrin.h>\n",
        "aarch64": "#include <arm_neon.h>\n",
        "wasm32": "#include <wasm_simd128.h>\n",
        "riscv64": "#include <riscv_vector.h>\n",
    }
)
# Before such a header that comes first: it includes headers of the C library, in which texts that
# follow look for what this asks them for.
PRECEDING: Final = "#define _DEFAULT_SOURCE\n"
LEAST: Final = "int least;\n"  # a file that every compiler takes
REGION: Final = f"int f(void);\nint f(void) {{\n{openmp.parallel(1)}\n{{ }}\nreturn 0; }}\n"
COUNT_OF_TWO: Final = (  # ``count`` returns the threads of a region that asks for two
    "int count(void);\nint count(void) { int n = 0;\n"
    f"{openmp.parallel(2)} reduction(+:n)\nn += 1;\nreturn n; }}\n"
)
FUNCTION_HEADERS: Final = (  # what the texts of scalar functions call
    *("functions", "functions_exponential", "functions_trigonometric", "functions_exact"),
    "functions_whole",
)
ROUTINES: Final = "routines"  # the header of what a stage of a network calls for each of its items
LAST_HEADERS: Final = (
    *("winograd_in", "winograd_items", "winograd_out", "winograd_back_items"),
    *("probe_items", "probe_shared", "probe_words", "probe_matrices"),
)
_FLAGS: Final = re.compile(r"^/\* compile with: ([-\w=+. ]+) \*/\n#define PS_TARGET", re.MULTILINE)


@cache
def headers(unit: HeaderSet) -> str:
    """Return the text of headers: vector operations, element types, the microkernel, packing."""
    isa, compute = isa_of(unit.isa), COMPUTES[unit.compute]
    if isa.language != "c":
        return "\n".join(device_headers(unit))
    kind = "f32" if compute.converts or compute.bytes_of_x else compute.name
    narrow = {unit.compute, unit.x, unit.y, unit.w} != {"f32"}
    way = "boxed" if unit.packed_copy else "direct"
    names = ["prelude", *(["scalar"] if narrow else []), *vector_headers(isa)]
    names += _narrow_headers(isa) if narrow else []
    names += [f"x_{unit.x}", f"y_{unit.y}", f"sum_{compute.sum}"]
    blocks = unit.w not in ("f32", "bf16", "f16")
    if compute.bytes_of_x:
        for kind_of in ("lanes", "bytes"):
            names.append(_first([f"{kind_of}_{name}" for name in (*isa.endings, "portable")]))
        w = unit.w.removesuffix("a8")
        names += [f"w_{w}a8", "dot_rounded", f"rounded_{way}", f"rounding_{compute.name}"]
    elif blocks:
        fours = [f"nibbles_{name}" for name in (*isa.endings, "portable")]
        names += [*[_first(fours)] * unit.w.endswith("4"), f"w_{unit.w}", "dot_blocks"]
    elif unit.w != "f32":
        names.append(f"dot_f32_{unit.w}")
    else:
        names.append(_first([*(f"dot_{kind}_{name}" for name in isa.endings), f"dot_{kind}"]))
    own = (f"a_{kind}_{way}_{name}" for name in isa.endings)
    names.append(_first([*own, f"a_{kind}", f"a_{kind}_{way}"]))
    sums = ["blocks", "rounded_blocks" if compute.bytes_of_x else "decoded_blocks"]
    diagonal = [f"diagonal_{compute.name}_{name}" for name in isa.endings]
    names += ["brgemm", *(sums if blocks else []), *filter(_exists, diagonal)]
    names += ["sliding", "grouped", _end(unit)]
    stacked = [f"stacked_{name}" for name in isa.endings if compute.name == "i8"]
    runs = [f"brgemm_{compute.name}_{name}" for name in isa.endings if not blocks]
    names += [name for name in (*stacked, *runs) if _exists(name)]
    if isa.outer_products and not blocks:
        factors = kind if unit.w == "f32" else f"{kind}_{unit.w}"
        names += ["parts", f"outer_{factors}_{isa}", f"outer_{isa}"]
    names += [*(isa.tile_registers.headers if isa.tile_registers else ()), "pack", "panels"]
    names += ["pairs"] * (compute.name == "bf16") + ["pack_blocks"] * bool(compute.bytes_of_x)
    if not narrow:
        names += [_first([*(f"gaps_{name}" for name in isa.endings), "gaps"]), "swapped", "stencil"]
    return "\n".join([target_lines(isa), *(header_for(name, isa) for name in names)])


def header_for(name: str, isa: Isa) -> str:
    """Return a header of an instruction set; of one that few compilers know with what others take.

    That is the portable header of the same kind, if there is one.
    """
    own = header(name)
    if not isa.condition or not name.endswith(f"_{isa}"):
        return own
    other = f"{name.removesuffix(f'_{isa}')}_portable"
    rest = f"#else\n{header(other)}" if _exists(other) else ""
    return f"#if {isa.condition}\n{own}{rest}#endif\n"


def _narrow_headers(isa: Isa) -> list[str]:
    """Return the headers of narrow types; where none takes several vectors, one does so singly."""
    names = [f"narrow_{name}" for name in reversed(isa.endings) if _exists(f"narrow_{name}")]
    together = any("PS_BF16_PAIRS" in header(name) for name in names)
    return names if together or not names else [*names, "narrow_singly"]


def vector_headers(isa: Isa) -> list[str]:
    """Return the names of an instruction set's vector headers; those that others use come first.

    A set's own one precedes those that it shares: it says how long vectors are.
    """
    cpu = f"cpu_{isa.machine}"
    names = vector_headers(isa.extends) if isa.extends else [cpu] * _exists(cpu)
    shared = (f"isa_{name}" for name in reversed(isa.shares))
    return [*names, f"isa_{isa}", *filter(_exists, shared)]


def device_headers(unit: HeaderSet, beside: Iterable[str] = ()) -> list[str]:
    """Return the headers of numbers in a device's language: its own ones, those of C translated.

    ``beside`` are more headers: of functions, ahead of those that end sums, and of transforms and
    probes, behind all. Raises UnsupportedError for others.
    """
    isa = isa_of(unit.isa)
    beside = tuple(dict.fromkeys(beside))
    last = [name for name in beside if name in LAST_HEADERS]
    first = [name for name in beside if name not in LAST_HEADERS]
    known = (*FUNCTION_HEADERS, ROUTINES, "activations")
    if other := next((name for name in first if name not in known), None):
        raise UnsupportedError(f"{isa}: no kernels with {other}.h, which the schedule needs")
    narrow = {unit.compute, unit.x, unit.y} != {"f32"}
    whole = DTYPES[unit.x].integer or DTYPES[unit.y].integer
    if narrow and not whole and not _exists(f"narrow_{isa.language}"):
        raise UnsupportedError(f"{isa}: no kernels of {unit.x} to {unit.y}; f32 has some")
    way = "boxed" if unit.packed_copy else "direct"
    sizes = f"#define PS_LANES {isa.lanes_f32}\nenum {{ PS_REGISTERS = {isa.registers} }};\n"
    own = [f"{name}_{isa.language}" for name in ("prelude", "isa", "own")]
    numbers = "whole" if whole else "narrow"
    names = ["scalar", *[numbers] * narrow, f"x_{unit.x}", f"y_{unit.y}"]
    names += [f"own_{unit.y}"] * _exists(f"own_{unit.y}_{isa.language}")
    matrices = unit.compute in isa.matrices
    names.append(f"sum_{COMPUTES[unit.compute].sum}")
    kind, words = unit.compute if whole else "f32", unit.compute == "i8"
    names.append("dot_narrow" if matrices and not whole else f"dot_{kind}")
    names += ["words"] if words else [f"a_{kind}_{way}"]
    products = [f"dot_words_{name}" for name in (*isa.chain, isa.language)]
    names += [name for name in products if words and _exists(name)][:1]
    names += ["brgemm", "sliding", "grouped", *first, _end(unit), "pack", "panels"]
    names += ["group_i8", "held_i8", "lines", "keep"] * words
    floats = ["gaps", "swapped", "stencil", "group", "reading", "held", "lines", "keep"]
    names += floats * (not whole)
    texts = [header(name) for name in own if _exists(name)]
    of_warps = _of_warps(isa, "i8_" if words else "") if matrices else []
    before, behind = ([_translated(it, isa.language) for it in part] for part in (names, last))
    return [sizes, *texts, *before, *of_warps, *behind]


def _of_warps(isa: Isa, kind: str) -> list[str]:
    """Return the headers of products of matrices by warps."""
    names = (f"copies_{isa}", "matrices_cuda", f"mma_{kind}{isa}", f"warp_{kind}cuda")
    return [header(name) for name in names if _exists(name)]


def _translated(name: str, language: str) -> str:
    """Return a header in a device's language: one written for devices, or C translated."""
    own = next((it for it in (f"{name}_{language}", f"{name}_device") if _exists(it)), "")
    return header(own) if own else dialect_of(language).translate(header(name))


def target_lines(isa: Isa) -> str:
    """Return the first lines of a file: the compiler flags of an instruction set, its attribute.

    The flags stand in the text, so that whatever compiles it reads them there (``flags_in``).
    """
    define = f"#define PS_TARGET {attribute(isa)}".rstrip()
    return f"/* compile with: {' '.join(isa.flags)} */\n{define}" if isa.flags else define


def attribute(isa: Isa) -> str:
    """Return the GNU C attribute that enables a set for one function; empty if it needs none."""
    names = ",".join(isa.targets)
    return f'__attribute__((target("{names}")))' if names else ""


def flags_in(text: str) -> tuple[str, ...]:
    """Return the compiler flags that a C text asks for, those of all its instruction sets."""
    return tuple(dict.fromkeys(flag for line in _FLAGS.findall(text) for flag in line.split()))


def _end(unit: HeaderSet) -> str:
    """Return the epilogue: of f32 sums, of whole ones, of whole ones scaled to 8 bits."""
    if not COMPUTES[unit.compute].sum.integer:
        return "end_f32"
    return "end_s32" if unit.y == "s32" else "end_scaled"


def _exists(name: str) -> bool:
    try:
        return bool(header(name))
    except UnsupportedError:
        return False


def _first(names: list[str]) -> str:
    """Return the first header that exists; the last one names the error."""
    return next((name for name in names if _exists(name)), names[-1])


def fused_product(isa: Isa) -> str:
    """Return ``f_ISA``, which takes the widest vectors and the fused operation of a set."""
    head = f"{attribute(isa)} float f_{isa}(float a, float b, float c)"
    vector = f"typedef float vector __attribute__((vector_size({4 * isa.lanes_f32})));"
    total = f"__builtin_fmaf(a, b, c) + square[{isa.lanes_f32 - 1}]"
    return (
        f"{head};\n{head} {{\n{vector}\nvolatile vector zero = {{0}};\n"
        f"vector square = zero * zero;\nreturn {total};\n}}\n"
    )
