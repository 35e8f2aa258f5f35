"""Exported C compiles by clang-cl, with declarations of MSVC's C library, which is not here."""

import shutil
from pathlib import Path

import pytest

from polysci.export import export_c
from polysci.export.network_project import write_project
from polysci.network.compiled import compile_network
from tests.support.compiling import saved, tiny
from tests.support.exported import layers, run

HEADERS = Path(__file__).parents[1] / "data" / "msvc"
STRICT = ("/W4", "/WX", "-Wpedantic", "-Wconversion", "-Wsign-conversion")
CALL = ("clang", "--driver-mode=cl", "--target=x86_64-pc-windows-msvc", "-imsvc", HEADERS)
pytestmark = pytest.mark.skipif(not shutil.which("clang"), reason="no clang")


def check_compiles(folder: Path, scratch: Path, *flags: str) -> None:
    sources = sorted(folder.glob("*.c"))
    assert len(sources) > 1
    for path in sources:
        words = ("/std:c11", "/O1", *STRICT, *flags, "/c", path, f"/Fo{scratch / 'object.obj'}")
        done = run(*CALL, *words, cwd=folder)
        assert (done.returncode, done.stdout) == (0, ""), path.name


@pytest.mark.exhaustive
@pytest.mark.usefixtures("uncapped")
@pytest.mark.parametrize(
    ("isa", "flags"), [("portable", ()), ("avx2", ("/arch:AVX2",)), ("avx512", ("/arch:AVX512",))]
)
def test_layers(isa: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    export_c(layers(isa), tmp_path / "net")
    check_compiles(tmp_path / "net", tmp_path, *flags)


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_networks(threads: int, tmp_path: Path) -> None:
    model = saved(tiny(), tmp_path / "tiny.onnx")
    write_project(compile_network(model, "estimate", threads, isa="portable"), tmp_path / "net")
    check_compiles(tmp_path / "net", tmp_path)
