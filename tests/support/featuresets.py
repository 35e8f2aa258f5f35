"""CPUs with fewer or more features than this one, as file trees of the kernel's."""

from itertools import combinations
from pathlib import Path

from polysci.target.host import detect
from polysci.target.target import Target

AVX2 = "sse2 avx avx2 f16c fma"
AVX512 = f"{AVX2} avx512f avx512bw avx512dq avx512vl"
VNNI, BF16 = "avx512_vnni", "avx512_vnni avx512_bf16"
TILES = "amx_tile amx_bf16 amx_int8"
CPUS = {
    "Nehalem": "sse2",
    "Haswell": AVX2,
    "Gracemont": f"{AVX2} avx_vnni",
    "Skylake-SP": AVX512,
    "Cascade Lake": f"{AVX512} {VNNI}",
    "Cooper Lake": f"{AVX512} {BF16}",
    "Zen 5": f"{AVX512} {BF16} avx_vnni",
    "Sapphire Rapids without AMX": f"{AVX512} {BF16} avx_vnni avx512_fp16",
    "Sapphire Rapids": f"{AVX512} {BF16} avx_vnni avx512_fp16 {TILES}",
}
OPTIONS = ("avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", TILES)
# Whatever a hypervisor leaves out.
MASKED = [
    f"{AVX512} {' '.join(chosen)}"
    for count in range(len(OPTIONS) + 1)
    for chosen in combinations(OPTIONS, count)
]


def target_with(root: Path, flags: str) -> Target:
    """What is detected on a CPU with these flags, in a folder that it may fill."""
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n\n" * 2)
    return detect(root=root)
