"""C units that drive every microkernel of kernels.def, and the process that runs one of them.

``python -m tests.kernelunit UNIT.so [NAME]`` checks its kernels, operands between guard pages; it
prints a kernel's name before it runs it, so that a crash is attributed.
"""

import ctypes
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from polysci import microkernel
from polysci.guard import Guarded
from polysci.models import resource

ROOT = Path(__file__).resolve().parents[1]
DRIVER = ROOT / "tests/data/microkernels.c"
REGION = 1 << 20  # bytes: room for the largest operand of a case
OPERANDS = 5


@dataclass(frozen=True, slots=True)
class Group:
    """Kernels that share family, ISA and columns of the register tile: one unit."""

    family: str
    isa: str
    cols: int

    def __str__(self) -> str:
        return f"{self.family}_{self.isa}_{self.cols}"

    @property
    def kernels(self) -> list[microkernel.Microkernel]:
        found = microkernel.family(self.family, self.isa, "f32")
        return [kernel for kernel in found if kernel.cols == self.cols]


def groups() -> list[Group]:
    """Every group of the registry, in its order."""
    kernels = microkernel.registry().values()
    return list(dict.fromkeys(Group(k.family, k.isa, k.cols) for k in kernels))


def text(group: Group, instead: str = "", only: str = "KERNEL") -> str:
    """A unit's C text. The preprocessor, not the registry, reads kernels.def.

    ``instead`` replaces vector primitives by faulty ones; ``only`` lines that hold it are read.
    """
    picks = [
        f"#define PICK_{other}(name, r) "
        + ("CASES(name, r, {cols} / PS_LANES, {diagonal})" if other == group else "")
        for other in groups()
    ]
    chosen = "\n".join(picks).format(cols=group.cols, diagonal=int(group.family == "depthwise"))
    definitions = resource("microkernels", "kernels.def").read_text(encoding="utf-8")
    lines = [line for line in definitions.splitlines() if line.startswith("KERNEL")]
    lines = [line for line in lines if only in line]
    parts = [
        microkernel.header("prelude"),
        microkernel.header(f"isa_{group.isa}"),
        instead,
        microkernel.header("brgemm"),
        chosen,
        "#define KERNEL(f, i, d, r, c) PICK_##f##_##i##_##c(f##_##i##_##d##_##r##x##c, r)",
        "#define KERNELS " + " \\\n".join(lines),
        DRIVER.read_text(encoding="utf-8"),
    ]
    return "\n".join(parts)


def run(so: Path, *names: str) -> subprocess.CompletedProcess[str]:
    """Check the kernels of a unit, or some of them, in a process of their own."""
    words = [sys.executable, "-m", "tests.kernelunit", str(so), *names]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT)


def names_of(unit: ctypes.CDLL) -> list[str]:
    """The kernels in a unit, as its own table tells."""
    unit.name_of.restype = ctypes.c_char_p
    return [unit.name_of(index).decode() for index in range(unit.kernels())]


def main(so: str, *names: str) -> int:
    unit = ctypes.CDLL(so)
    guarded = [Guarded(REGION, "start") for _ in range(OPERANDS)]
    starts = [region.raw.ctypes.data for region in guarded]
    bounds = [at for start in starts for at in (start, start + REGION)]
    regions = (ctypes.c_void_p * len(bounds))(*bounds)
    message = ctypes.create_string_buffer(500)
    for index, name in enumerate(names_of(unit)):
        if names and name not in names:
            continue
        print(name, flush=True)
        if unit.check(index, regions, message, ctypes.c_size_t(500)):
            print(message.value.decode())
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
