"""Exported networks compile for other systems, by the compilers of the package ziglang."""

import sys
from pathlib import Path

import pytest

from tests.support.exported import WARNINGS, run

pytest.importorskip("ziglang", reason="its compilers have the headers of other systems")
FLAGS = ("-std=c11", "-O1", "-fopenmp-simd", "-ffp-contract=off", *WARNINGS)


@pytest.mark.parametrize(
    ("system", "isa", "options"),
    [
        ("x86_64-windows-gnu", "avx2", ()),
        ("x86_64-linux-musl", "avx512", ("--packed-weights",)),
        ("aarch64-macos", "neon", ()),
    ],
)
def test_a_network_compiles(
    system: str, isa: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    words = ("mlp:4x64x10", "--isa", isa, "--level", "estimate", "-o", "net", *options)
    made = run(sys.executable, "-m", "polysci", "compile", *words, cwd=tmp_path)
    assert made.returncode == 0, made.stdout
    sources = sorted((tmp_path / "net").glob("*.c"))
    assert {"main.c", "selftest.c"} < {path.name for path in sources}
    for path in sources:
        call = ("-m", "ziglang", "cc", f"--target={system}", *FLAGS, "-c", path, "-o", "object")
        built = run(sys.executable, *call, cwd=tmp_path)
        assert (built.returncode, built.stdout) == (0, ""), path.name
