"""Microkernels and an instruction set from an installed package, and packages that do not fit."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from polysci.printers.headers import flags_in
from polysci.target.isa import Isa
from polysci.target.isas import ISAS
from polysci.target.microkernels import header
from polysci.target.packages import MicrokernelPackage, collect
from tests.support.installed import install, run_with

# Portable vectors under another name, in headers that need a flag of the row.
HEADER = "#if MADE_UP != 7\n#error the flag of the row is missing\n#endif\n"
KERNELS = """
KERNELS(brgemm, dummy, f32, rows 1..6, vectors 1)
KERNELS(brgemm, portable, f32, rows 1..3, vectors 3)
"""
MODULE = """
from pathlib import Path
from types import SimpleNamespace
from polysci.target.isa import Isa
from polysci.target.isas import ISAS
from polysci.target.packages import MicrokernelPackage

assert "portable" in ISAS
PACKAGE = MicrokernelPackage(
    Path(__file__).parent, (Isa("dummy", (), 4, 16, own_flags=("-DMADE_UP=7",)),)
)
"""
LAYER = "mb1ic8ih5oc14oh5kh3ph1"
SCHEDULE = "n p k:4 > brgemm_dummy_f32_5x4"
MACHINE = """
[target]
isa = "dummy"
cores = 1
l1 = 32768
l2 = 262144
l3 = 2097152
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site")
    points = "[polysci.microkernels]\ndummy = dummy_kernels:PACKAGE\n"
    files = {
        "__init__.py": MODULE,
        "kernels.def": KERNELS,
        "isa_dummy.h": HEADER + header("isa_portable"),
    }
    install(path, "dummy_kernels", points, {f"dummy_kernels/{n}": t for n, t in files.items()})
    (path / "machine.toml").write_text(MACHINE)
    return path


def polysci(site: Path, *words: str) -> str:
    # Without the session's cap, which the package's instruction set may stand above.
    done = run_with(site, "-m", "polysci", *words, POLYSCI_ISA="")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_rows_stand_in_the_tables(site: Path) -> None:
    code = (
        "from polysci.target.microkernels import registry; from polysci.target.isas import ISAS\n"
        "print(*ISAS); print(*list(registry())[-9:])"
    )
    done = run_with(site, "-W", "error", "-c", code)
    isas, kernels = done.stdout.splitlines()
    assert isas == " ".join(ISAS).replace("portable", "portable dummy")
    names = [f"brgemm_dummy_f32_{rows}x4" for rows in range(1, 7)]
    assert kernels.split() == [*names, *(f"brgemm_portable_f32_{r}x12" for r in (1, 2, 3))]


@pytest.mark.exhaustive
def test_its_kernels_compute_with_the_flag_of_its_row(site: Path) -> None:
    told = polysci(site, "check", LAYER, "--schedule", SCHEDULE)
    assert SCHEDULE in told
    assert polysci(site, "check", LAYER, "--schedule", "n p k:12 q:3 > brgemm_portable_f32_3x12")


@pytest.mark.exhaustive
def test_exported_projects_know_the_flag(site: Path, tmp_path: Path) -> None:
    words = ["--machine", "machine.toml", "--level", "estimate", "--name", "lib"]
    polysci(site, "export", LAYER, *words, "-o", str(tmp_path / "c"))
    text = (tmp_path / "c/lib.c").read_text()
    assert "brgemm_dummy_f32_" in text and flags_in(text) == ("-DMADE_UP=7",)
    assert "\nlib.o: FLAGS += -DMADE_UP=7\n" in (tmp_path / "c/Makefile").read_text()
    subprocess.run(["make", "check"], cwd=tmp_path / "c", check=True, capture_output=True)
    cmake = (tmp_path / "c/CMakeLists.txt").read_text()
    assert 'set_source_files_properties(lib.c PROPERTIES COMPILE_OPTIONS "-DMADE_UP=7")' in cmake


@pytest.mark.exhaustive
def test_an_exported_package_builds_with_the_flag(site: Path, tmp_path: Path) -> None:
    words = ["--machine", "machine.toml", "--level", "estimate", "--name", "lib", "--python"]
    polysci(site, "export", LAYER, *words, "-o", str(tmp_path))
    (tmp_path / "lib/_native.so").unlink()
    done = run_with(tmp_path, "-c", "import lib", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "cache").rglob("*.so"))


DUMMY = Isa("dummy", (), 4, 16)


@pytest.mark.parametrize(
    ("package", "files", "reason"),
    [
        ("no package", {}, "expected a MicrokernelPackage, got 'no package'"),
        ((), {"kernels.txt": ""}, r"kernels\.def: cannot be read: "),
        ((), {"kernels.def": "KERNEL(brgemm)"}, r"kernels\.def, line 1: expected KERNELS\("),
        ((), {"kernels.def": "KERNELS(brgemm, dummy, f32, rows 1..6, vectors 1)"},
         "no instruction set 'dummy'; known: scalar, portable"),
        ((), {"kernels.def": "KERNELS(brgemm, avx2, f32, rows 3..6, vectors 2)"},
         r"rows 3\.\.6, vectors 2\) overlaps KERNELS\(brgemm, avx2, f32, rows 1\.\.6, vectors 2"),
        ((), {"kernels.def": "", "dot_f32_avx2.h": ""},
         r"header dot_f32_avx2\.h: no instruction set is new"),
        ((DUMMY,), {"kernels.def": "", "dot_f32.h": ""}, r"dot_f32\.h: expected \*_dummy\.h"),
        ((Isa("avx2", (), 4, 16),), {}, "isa 'avx2': expected a new name"),
        ((Isa("a b", (), 4, 16),), {}, "isa 'a b': expected a new name"),
        ((Isa("sub", (), 4, 16, extends=DUMMY),), {}, "isa sub: extends dummy, which is no row"),
        ((Isa("dummy", (), 4, 16, own_flags=("-O3 -x",)),), {}, "own_flags: .* got '-O3 -x'"),
    ],
)  # fmt: skip
def test_a_package_that_does_not_fit_is_left_out(
    package: object, files: dict[str, str], reason: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    isas = package if isinstance(package, tuple) else ()
    value = MicrokernelPackage(tmp_path, isas) if isinstance(package, tuple) else package
    install(tmp_path, "wrong", "[polysci.microkernels]\nit = wrong_module:VALUE\n", files)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "wrong_module", SimpleNamespace(VALUE=value))
    sources = collect(ISAS)
    assert list(sources.isas) == list(ISAS) and not sources.folders
    (record,) = caplog.records
    head = "package wrong 1.0, entry point 'it' of polysci.microkernels: left out: "
    assert re.match(f"{head}.*{reason}", record.getMessage())


def test_a_package_that_cannot_be_loaded_is_a_warning(tmp_path: Path) -> None:
    install(tmp_path, "broken", "[polysci.microkernels]\nit = broken:PACKAGE\n", {
        "broken.py": "raise SystemExit('no such library')",
    })  # fmt: skip
    done = run_with(tmp_path, "-c", "from polysci.target.isas import ISAS; print(*ISAS)")
    assert done.stdout.split() == list(ISAS)
    assert done.stderr == (
        "package broken 1.0, entry point 'it' of polysci.microkernels: left out: "
        "cannot be loaded: SystemExit: no such library\n"
    )
