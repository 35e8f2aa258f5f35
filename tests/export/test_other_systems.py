"""Exported networks compile for other systems, by the compilers of the package ziglang."""

import platform
import sys
from pathlib import Path

import pytest

from polysci.target.host import detect
from polysci.target.isas import ISAS
from tests.support.exported import WARNINGS, run

pytest.importorskip("ziglang", reason="its compilers have the headers of other systems")
FLAGS = ("-std=c11", "-O1", "-fopenmp-simd", "-ffp-contract=off", *WARNINGS)


@pytest.mark.usefixtures("uncapped")
@pytest.mark.parametrize(
    ("system", "isa", "options"),
    [
        ("x86_64-windows-gnu", "avx2", ()),
        ("x86_64-linux-musl", "avx512", ("--packed-weights", "--threads", "pthread:2")),
        ("aarch64-macos", "neon", ("--threads", "pthread:2")),
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


@pytest.mark.usefixtures("uncapped")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="what is built runs on x86")
@pytest.mark.parametrize("isa", ["avx2", "avx512bf16"])
def test_a_static_program_finds_what_the_cpu_has(isa: str, tmp_path: Path) -> None:
    """The self-test passes where the CPU has the instructions, and says so where it has not."""
    words = ("mlp:4x64x10", "--isa", isa, "--level", "estimate", "-o", "net")
    assert run(sys.executable, "-m", "polysci", "compile", *words, cwd=tmp_path).returncode == 0
    sources = [path for path in (tmp_path / "net").glob("*.c") if path.name != "main.c"]
    call = ("-m", "ziglang", "cc", "--target=x86_64-linux-musl", *FLAGS, *sources, "-o", "test")
    built = run(sys.executable, *call, cwd=tmp_path)
    assert built.returncode == 0, built.stdout
    done = run(str(tmp_path / "test"), cwd=tmp_path / "net")
    assert (done.returncode == 0) == ISAS[isa].runs_on(detect().features), done.stdout
