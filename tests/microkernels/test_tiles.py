"""Kernels on tile registers against plain loops: emulated, and real where the CPU has them."""

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from polysci.runtime.build import cache
from polysci.runtime.build.compiler import default_flags
from polysci.target.host import detect
from tests.support import kernelunit, tileunit
from tests.support.tileunit import SUMS, WORDS

STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unused-function")
FLAGS = (*(flag for flag in default_flags() if flag != "-O3"), "-O2", *STRICT)
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
HAS_TILES = {"amx_tile", "amx_bf16", "amx_int8"} <= set(detect().features)
real = pytest.mark.skipif(not HAS_TILES, reason="this CPU has no AMX")
TILES = [pytest.param(False, id="emulated"), pytest.param(True, id="real", marks=real)]

pytestmark = [
    pytest.mark.skipif(
        not {"avx512_vnni", "avx512_bf16"} <= set(detect().features), reason="needs AVX512-BF16"
    ),
    pytest.mark.sampled,
]


def built(x: str, driver: str, **options: object) -> Path:
    return cache.build(tileunit.text(x, driver, **options), flags=FLAGS)  # type: ignore[arg-type]


@pytest.mark.exhaustive
@pytest.mark.parametrize("real", TILES)
@pytest.mark.parametrize("x", SUMS)
def test_every_register_tile_is_exact_and_stays_inside_its_operands(x: str, real: bool) -> None:
    done = kernelunit.run(built(x, "tiles.c", real=real))
    assert done.returncode == 0, f"{done.stdout[-600:]}{done.stderr[-600:]}"
    assert done.stdout.split() == [str(kernel) for kernel in tileunit.kernels(x)]


@pytest.mark.exhaustive
def test_emulated_tiles_under_sanitizers(tmp_path: Path) -> None:
    compiler = COMPILERS[0] if COMPILERS else pytest.skip("neither gcc nor clang")
    source, program = tmp_path / "tiles.c", tmp_path / "tiles"
    source.write_text(tileunit.text("u8", "tiles.c"))
    flags = ["-O1", "-g1", "-DSANITIZED", "-fsanitize=address,undefined"]
    words = [compiler, *STRICT, *flags, "-fno-sanitize-recover=all", "-o", program, source]
    subprocess.run(words, check=True, timeout=240)
    done = subprocess.run([program], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{done.stdout[-400:]}{done.stderr[-2000:]}"


FAULTS = {
    "loads rows of the padding": "(k.rows & here) == here -> (k.rows & here) != 0",
    "loads a gap before the first row": "(k.rows & all) == all -> (k.rows & all) != 0",
    "keeps what is behind a run's end": "i < k.words ? _mm512 -> i <= k.words ? _mm512",
    "takes the wrong tile of A": "m & 1 : m >= g.taller -> m & 1 : m > g.taller",
    "splits rows anew": "m > g.taller ? m - g.taller : 0 -> 0",
    "reads one element too many": "(unsigned)k.width * sizeof(ps_a) -> 2 * sizeof(ps_a)",
    "counts lines wrongly": "line * pitch + i) -> line * pitch + line + i)",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_step_is_noticed(fault: str) -> None:
    done = kernelunit.run(built("bf16", "tiles.c", fault=FAULTS[fault]))
    assert done.returncode != 0


def test_an_operand_of_the_wrong_shape_ends_the_process() -> None:
    path = built("bf16", "tiles_rules.c")

    def ended(call: str) -> str:
        words = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(path)!r}).{call}"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        return done.stderr if done.returncode else ""

    assert ended("dot_with(16, 16, 64, 16)") == ""
    assert ended("dot_with(9, 9, 32, 8)") == ""
    assert "rows of C are rows of A" in ended("dot_with(16, 15, 64, 16)")
    assert "words of A are rows of B" in ended("dot_with(16, 16, 32, 16)")
    assert "at most 16 rows" in ended("dot_with(17, 17, 64, 16)")
    assert "rows without bytes" in ended("dot_with(16, 16, 0, 16)")
    assert "not configured" in ended("zero_unconfigured()")


def test_tiles_are_configured_again_only_for_other_shapes() -> None:
    unit = ctypes.CDLL(str(built("bf16", "tiles_rules.c")))
    unit.configurations.restype = ctypes.c_int64
    assert unit.configurations() == 4


@pytest.mark.parametrize("x", SUMS)
def test_the_cpu_and_the_kernel_are_asked_before_tiles_are_used(x: str) -> None:
    unit = ctypes.CDLL(str(built(x, "tiles_values.c", real=True)))
    answer = unit.allowed()
    assert answer == 2 or (answer == 3 and HAS_TILES)


def product(x: str, real: bool, a: NDArray, b: NDArray, c: NDArray) -> NDArray:
    """C + A x B; a is [16][16 * word], b [16 * word][16]."""
    word = WORDS[x]
    unit = ctypes.CDLL(str(built(x, "tiles_values.c", real=real)))
    panel = np.ascontiguousarray(b.reshape(16, word, 16).transpose(0, 2, 1))
    a, out = np.ascontiguousarray(a), c.copy()
    unit.product(*(ctypes.c_void_p(array.ctypes.data) for array in (a, panel, out)))
    return out


def bf16(values: NDArray) -> NDArray[np.uint16]:
    bits = np.asarray(values, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any(), "not a bf16"
    return (bits >> 16).astype(np.uint16)


def real_product(pairs: dict[int, tuple[float, float]], before: float, real: bool) -> float:
    """One element of C: ``before`` + the products of A and B at these places of k."""
    a, b = np.zeros((16, 32), np.float32), np.zeros((32, 16), np.float32)
    for k, (left, right) in pairs.items():
        a[3, k], b[k, 5] = left, right
    c = np.zeros((16, 16), np.float32)
    c[3, 5] = before
    with np.errstate(all="ignore"):
        return float(product("bf16", real, bf16(a), bf16(b), c)[3, 5])


TINY, HALF_ULP, HUGE = 2.0**-130, 2.0**-24, 2.0**127
ROUNDED = {  # pairs of A and B by k, C before, C after
    "a tie goes to even": ({0: (1, 1), 2: (HALF_ULP, 1)}, 0, 1.0),
    "even and odd have sums of their own": (
        {0: (1, 1), 1: (HALF_ULP, 1), 3: (HALF_ULP, 1)},
        0,
        1 + 2 * HALF_ULP,
    ),
    "C comes last": ({0: (HALF_ULP, 1), 1: (HALF_ULP, 1)}, 1, 1 + 2 * HALF_ULP),
    "a product is not rounded": (
        {0: (1 + 2.0**-7, 1 + 2.0**-7), 2: (-1, 1)},
        0,
        2.0**-6 + 2.0**-14,
    ),
    "denormal operands are zero": ({0: (TINY, 2.0**10)}, 0, 0.0),
    "denormal results are zero": ({0: (2.0**-70, 2.0**-70)}, 0, 0.0),
    "a denormal C is zero": ({}, TINY, 0.0),
    "infinity": ({0: (np.inf, 2)}, 1, np.inf),
    "overflow": ({0: (HUGE, 2)}, 0, np.inf),
    "opposite infinities": ({0: (np.inf, 1), 7: (-np.inf, 1)}, 0, np.nan),
    "a NaN stays one": ({4: (np.nan, 0)}, 1, np.nan),
}


@pytest.mark.parametrize("real", TILES)
@pytest.mark.parametrize("what", ROUNDED)
def test_bf16_rounds_as_documented(what: str, real: bool) -> None:
    pairs, before, after = ROUNDED[what]
    np.testing.assert_equal(real_product(pairs, before, real), after)


@pytest.mark.parametrize("real", TILES)
@pytest.mark.parametrize("x", ["u8", "s8"])
def test_extreme_bytes_are_exact_and_sums_wrap(x: str, real: bool) -> None:
    left = np.uint8 if x == "u8" else np.int8
    low, high = np.iinfo(left).min, np.iinfo(left).max
    rng = np.random.default_rng(1)
    a = rng.choice(np.array([low, high, 1], left), (16, 64))
    b = rng.choice(np.array([-128, 127, -1], np.int8), (64, 16))
    c = rng.choice(np.array([-(2**31), 2**31 - 1, 0], np.int32), (16, 16))
    exact = c.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64)
    assert (product(x, real, a, b, c) == exact.astype(np.int32)).all()


FIXED = {  # name: rows, tiles of columns, columns, wrap, pixels of A between image rows, words of k
    "two_by_two": (28, 2, 32, 28, 28, 128),
    "by_line": (28, 2, 32, 14, 16, 128),
    "four_by_one": (49, 1, 16, 7, 9, 128),
    "one_by_four": (14, 4, 64, 14, 14, 128),
    "gathered": (28, 2, 32, 7, 40, 128),
    "tail": (28, 2, 21, 28, 28, 24),
    "shallow": (28, 2, 21, 28, 28, 24),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("real", TILES)
@pytest.mark.parametrize("name", FIXED)
def test_constant_sizes_compute_the_same(name: str, real: bool) -> None:
    rows, vecs, columns, wrap, pitch, words = FIXED[name]
    rng = np.random.default_rng(2)
    a = rng.integers(-4, 5, (rows // wrap * pitch + 3, 256)).astype(np.float32)
    b = rng.integers(-4, 5, (3, words, 16 * vecs, 2)).astype(np.float32)
    y = np.full((rows, 64), 7, np.float32)
    places = [i // wrap * pitch + i % wrap for i in range(rows)]
    taps = [
        a.ravel()[[p * 256 + np.arange(2 * words) for p in np.add(places, tap)]] for tap in range(3)
    ]
    flat = b.transpose(0, 1, 3, 2).reshape(3, 2 * words, 16 * vecs)
    want = sum(tap @ each for tap, each in zip(taps, flat, strict=True))
    unit = ctypes.CDLL(str(built("bf16", "tiles_fixed.c", real=real, unrolled=True)))
    left, right, configured = bf16(a), bf16(b), ctypes.c_int(0)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (left, right, y)]
    getattr(unit, name)(*pointers, None, ctypes.byref(configured))
    assert (y[:, :columns] == want[:, :columns]).all()
    assert (y[:, columns:] == 7).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("level", ["-O2", "-O3"])
def test_compilers_make_nothing_but_tile_instructions_of_a_step(
    tmp_path: Path, compiler: str, level: str
) -> None:
    source, assembly = tmp_path / "fixed.c", tmp_path / "fixed.s"
    source.write_text(tileunit.text("bf16", "tiles_fixed.c", real=True, unrolled=True))
    words = [compiler, *STRICT, level, "-S", "-o", assembly, source]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    text = assembly.read_text()
    assert not re.search(r"jmp\s+\*", text), "a tile number became a jump table"
    for name, (rows, vecs, *_) in FIXED.items():
        body = text.split(f"\n{name}:")[1].split("\n\t.size")[0]
        sums = set(re.findall(r"tdpbf16ps\s+%tmm\d, %tmm\d, %tmm(\d)", body))
        assert sums == {str(tile) for tile in range(-(-rows // 16) * vecs)}
        assert body.count("ldtilecfg") == 1
        assert body.count("tilezero") == len(sums) == body.count("tilestored")


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("x", SUMS)
def test_real_tiles_compile_without_a_warning(tmp_path: Path, compiler: str, x: str) -> None:
    source = tmp_path / "fixed.c"
    source.write_text(tileunit.text(x, "tiles_fixed.c", real=True, unrolled=True))
    words = [compiler, *STRICT, "-O1", "-c", "-o", tmp_path / "o", source]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
