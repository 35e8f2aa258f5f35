"""Every microkernel against plain loops: tails, runs, masks, epilogues, between guard pages."""

import ctypes
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from polysci import microkernel
from polysci.build import cache
from polysci.build.compiler import default_flags
from polysci.codegen.emit import headers
from polysci.errors import SpecError, UnsupportedError
from polysci.models import resource
from polysci.target import ISAS, detect
from tests import kernelunit
from tests.kernelunit import Group, groups

STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
# Half of the compile time of -O3, which primitives get in the tests of operators.
FLAGS = (*(flag for flag in default_flags() if flag != "-O3"), "-O1", *STRICT)
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]

Units = dict[Group, Path]


def by_isa(isa: str) -> list[Group]:
    return [group for group in groups() if group.isa == isa]


@pytest.fixture(scope="module")
def units() -> Units:
    """The compiled units of every group whose ISA runs here, the largest first to the compilers."""
    runnable = {isa.name for isa in detect().runnable}
    chosen = [group for group in groups() if group.isa in runnable]
    chosen.sort(key=lambda group: -sum(kernel.rows * kernel.vecs for kernel in group.kernels))
    paths = cache.build_many([kernelunit.text(group) for group in chosen], flags=FLAGS)
    return dict(zip(chosen, paths, strict=True))


@pytest.mark.parametrize(
    "group", [pytest.param(group, marks=pytest.mark.isa(group.isa)) for group in groups()], ids=str
)
def test_kernels_are_exact_and_stay_inside_their_operands(units: Units, group: Group) -> None:
    done = kernelunit.run(units[group])
    assert done.returncode == 0, f"{done.stdout[-600:]}{done.stderr[-600:]}"
    assert done.stdout.split() == [str(kernel) for kernel in group.kernels]


@pytest.mark.parametrize(
    "isa", [pytest.param(isa, marks=pytest.mark.isa(isa)) for isa in sorted(ISAS)]
)
def test_symbols_of_the_units_are_the_names_of_the_registry(units: Units, isa: str) -> None:
    """The units take kernels.def through the preprocessor, the registry by its own reader."""
    compiled = []
    for group in by_isa(isa):
        unit = ctypes.CDLL(str(units[group]))
        compiled += kernelunit.names_of(unit)
        assert all(hasattr(unit, name) for name in compiled[-len(group.kernels) :])
    registered = [name for name, kernel in microkernel.registry().items() if kernel.isa == isa]
    assert sorted(compiled) == sorted(registered)
    assert compiled, f"no kernel for {isa}"


def test_every_line_of_the_list_is_registered() -> None:
    text = resource("microkernels", "kernels.def").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("KERNEL(")]
    assert len(lines) == len(set(lines)) == len(microkernel.registry())
    for name, kernel in microkernel.registry().items():
        assert name == str(kernel) and microkernel.find(name) == kernel
        assert kernel.isa in ISAS
        assert kernel.cols == kernel.vecs * kernel.lanes == kernel.vecs * ISAS[kernel.isa].lanes_f32
        assert kernel.rows <= 32, f"{name}: a row mask has 32 bits"


def test_register_tiles_fit_the_registers() -> None:
    for kernel in microkernel.registry().values():
        # AVX-512 takes the broadcast of A from memory inside the FMA.
        of_a = 0 if (kernel.isa, kernel.family) == ("avx512", "brgemm") else 1
        needed = kernel.rows * kernel.vecs + kernel.vecs + of_a
        assert needed <= ISAS[kernel.isa].registers, kernel


def test_every_isa_can_compute_any_number_of_rows() -> None:
    """An even split may ask for any count up to the largest."""
    for isa in ISAS:
        for family in ("brgemm", "depthwise"):
            kernels = microkernel.family(family, isa, "f32")
            for cols in {kernel.cols for kernel in kernels}:
                rows = [kernel.rows for kernel in kernels if kernel.cols == cols]
                assert rows == list(range(1, max(rows) + 1)), (family, isa, cols)


def test_unknown_kernels_are_refused() -> None:
    with pytest.raises(SpecError, match="'brgemm_avx512_f32_99x99' is not in microkernels/kernels"):
        microkernel.find("brgemm_avx512_f32_99x99")
    with pytest.raises(UnsupportedError, match=r"isa_vax\.h"):
        microkernel.lanes("vax")


# Faulty vector primitives: each must be noticed, or the tests above prove nothing.
FAULTS = {
    "reads past a tail": "ps_load_first(p, n) ((void)(n), ps_load(p))",
    "writes past a tail": "ps_store_first(p, x, n) ((void)(n), ps_store(p, x))",
    "forgets the sum": "ps_fma(x, y, z) ((void)(z), (x) * (y))",
    "has no lower bound": "ps_max(x, y) ((void)(x), (y))",
    "has no upper bound": "ps_min(x, y) ((void)(x), (y))",
    "adds nothing": "ps_add(x, y) ((void)(y), (x))",
    "streams to the wrong place": "ps_stream(p, x) ps_store((p) + 1, x)",
}


@pytest.fixture(scope="module")
def faulty() -> dict[str, Path]:
    group, line = Group("brgemm", "portable", 8), "portable, f32, 3, 8)"
    texts = [kernelunit.text(group, f"#define {fault}", line) for fault in FAULTS.values()]
    return dict(zip(FAULTS, cache.build_many(texts, flags=FLAGS), strict=True))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_primitive_is_noticed(faulty: dict[str, Path], fault: str) -> None:
    done = kernelunit.run(faulty[fault])
    assert done.returncode != 0
    assert done.stdout.startswith("brgemm_portable_f32_3x8\n")


def test_portable_kernels_under_sanitizers(tmp_path: Path) -> None:
    compiler = COMPILERS[0] if COMPILERS else pytest.skip("neither gcc nor clang")

    def sanitized(group: Group) -> subprocess.CompletedProcess[str]:
        source, program = tmp_path / f"{group}.c", tmp_path / str(group)
        source.write_text(kernelunit.text(group))
        flags = ["-O0", "-g1", "-DSANITIZED", "-fsanitize=address,undefined"]
        words = [compiler, *STRICT, *flags, "-fno-sanitize-recover=all", "-o", program, source]
        subprocess.run(words, check=True, timeout=240)
        return subprocess.run([program], capture_output=True, text=True, timeout=240)

    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(sanitized, by_isa("portable")):
            assert done.returncode == 0, f"{done.stdout[-400:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("isa", sorted(ISAS))
def test_headers_compile_without_a_warning(tmp_path: Path, compiler: str, isa: str) -> None:
    source = tmp_path / "headers.c"
    source.write_text(f"{headers(isa)}\n{microkernel.header('probe')}\nextern int some;\n")
    words = [compiler, *STRICT, "-O2", "-Wno-unused-function", "-c", "-o", tmp_path / "o", source]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif("clang" not in COMPILERS, reason="no clang")
@pytest.mark.parametrize("isa", sorted(ISAS))
def test_clang_accepts_every_kernel(tmp_path: Path, isa: str) -> None:
    for group in by_isa(isa):
        source = tmp_path / f"{group}.c"
        source.write_text(kernelunit.text(group))
        words = ["clang", *STRICT, "-fsyntax-only", source]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif("clang" not in COMPILERS, reason="no clang")
def test_clang_compiles_the_same_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """One group of each family on the best ISA, run as well."""
    monkeypatch.setenv("CC", "clang")
    isa = detect().isa.name
    widest = {group.family: group for group in by_isa(isa)}
    texts = [kernelunit.text(group) for group in widest.values()]
    flags = [flag for flag in FLAGS if flag != "-fopenmp"]
    for path in cache.build_many(texts, flags=flags):
        done = kernelunit.run(path)
        assert done.returncode == 0, f"{done.stdout[-600:]}{done.stderr[-600:]}"
