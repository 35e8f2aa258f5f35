"""C units of the kernels on tile registers, emulated or real."""

from pathlib import Path

from polysci.printers.definitions import arrange
from polysci.printers.headers import attribute, headers
from polysci.runtime.source import Source
from polysci.target import microkernels
from polysci.target.isas import isa_named
from polysci.target.microkernels import HeaderSet
from tests.support.kernelunit import kernel_lines

DATA = Path(__file__).parents[1] / "data"
VECTORS = "avx512bf16"  # what the rest of a kernel needs where tiles are emulated
SUMS = {"bf16": "f32", "u8": "s32", "s8": "s32"}  # of each type of A
WORDS = {"bf16": 2, "u8": 4, "s8": 4}


def unit_of(x: str) -> HeaderSet:
    """Sums as results."""
    return HeaderSet("amx", "bf16" if x == "bf16" else "i8", x, SUMS[x])


def kernels(x: str) -> list[microkernels.Microkernel]:
    return list(microkernels.family("brgemm", "amx", unit_of(x).compute))


def emulated(text: str) -> str:
    """C text with the tile instructions emulated, for a CPU that has only VECTORS."""
    for old, new in (
        (attribute(isa_named("amx")), attribute(isa_named(VECTORS))),
        (microkernels.header("tiles_amx"), (DATA / "tiles_emulated.h").read_text()),
        (microkernels.header("narrow_avx512fp16"), ""),
        ("#define PS_CPU_OK ps_has_amx", "#define PS_CPU_OK ps_has_avx512bf16"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def emulated_file(source: Source, more: str = "") -> str:
    """A complete C file of a primitive, and ``more`` functions, with emulated instructions."""
    return arrange([emulated(headers(source.header_set))], source.text + more)


def text(
    x: str, driver: str, *, real: bool = False, unrolled: bool = False, fault: str = ""
) -> str:
    """A unit's C text; ``fault`` is ``old -> new`` in the text of the steps.

    Without ``unrolled`` sizes are no constants, and one instance serves all register tiles.
    """
    whole = headers(unit_of(x))
    if fault:
        old, new = fault.split(" -> ")
        assert whole.count(old) == 1, f"{old} is there {whole.count(old)} times"
        whole = whole.replace(old, new)
    if not unrolled:
        prelude = microkernels.header("prelude")
        whole = whole.replace(prelude, f"{prelude}\n#undef PS_UNROLL\n#define PS_UNROLL\n")
    own = f"KERNEL(brgemm, amx, {unit_of(x).compute}, "
    parts = [
        whole if real else emulated(whole),
        "#define KERNEL(f, i, d, r, c) CASES(f##_##i##_##d##_##r##x##c, r, c / PS_LANES)",
        "#define KERNELS " + " ".join(line for line in kernel_lines() if line.startswith(own)),
        (DATA / driver).read_text(),
    ]
    return "\n".join(parts)
