"""Functions of one float in generated loops: against float64, every special value, as vectors."""

import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from polysci.printers.headers import FUNCTION_HEADERS, headers
from polysci.runtime.build import cache
from polysci.runtime.build.compiler import default_flags
from polysci.runtime.build.library import Library, load
from polysci.target.isas import ISAS
from polysci.target.microkernels import HeaderSet, header
from tests.support.kernelunit import STRICT, native

Array = NDArray[np.generic]
Function = Callable[..., Array]

CHECKED = (  # the others add nothing to f32
    "portable", "wasm128", "helium", "rvv128", "rvv256", "neon", "sve128", "sve256", "sve512",
    "avx2", "avx512",
)  # fmt: skip
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
SMALLEST = float(np.finfo(np.float32).tiny)  # what is smaller may become 0
INFINITY, NAN = float("inf"), float("nan")
SPECIALS = np.array(
    [0, 1, 2, 3, 0.5, 1.5, 2.5, 7, 127.5, 254.5, 255.5, 300, 2**22 + 0.5, 2**23 - 0.5, 2**23 + 1,
     2**24, 2**31, 3e9, 88.722839, 88.72284, 87.33654, 87.33655, 104, 9.01, 4, 13.29, 1e-20, 1e20,
     1e30, 3.4028235e38, SMALLEST, 1e-40, 1e-45, INFINITY, NAN],
    np.float32,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Near:
    """A function against float64: an error of ``ulp``, or ``absolute`` times max(abs(x), 1)."""

    exact: Function
    ulp: float
    absolute: float = 0.0


def gelu(x: Array) -> Array:
    return 0.5 * x * special.erfc(-x * np.sqrt(0.5))


def gelu_tanh(x: Array) -> Array:
    return x * special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


NEAR = {
    "exp": Near(np.exp, 1.1),
    "log": Near(np.log, 1),
    "sigmoid": Near(special.expit, 2.5),
    "tanh": Near(np.tanh, 2),
    "erf": Near(special.erf, 2),
    "silu": Near(lambda x: x * special.expit(x), 4, 1e-7),
    "gelu": Near(gelu, 4, 1e-7),
    "gelu_tanh": Near(gelu_tanh, 4, 1e-7),
    "hard_sigmoid": Near(lambda x: np.clip(np.float32(0.2) * x + 0.5, 0, 1), 1, 1e-7),
    "hard_swish": Near(lambda x: x * np.clip((x + 3) / 6, 0, 1), 2.5),
    "sin": Near(np.sin, 1.6),
    "cos": Near(np.cos, 1.6),
    "tan": Near(np.tan, 3),
    "asin": Near(np.arcsin, 2.5),
    "acos": Near(np.arccos, 2.5),
    "atan": Near(np.arctan, 2),
    "sinh": Near(np.sinh, 4),
    "cosh": Near(np.cosh, 4),
    "asinh": Near(np.arcsinh, 3.5),
    "acosh": Near(np.arccosh, 3.5),
    "atanh": Near(np.arctanh, 2),
    "expm1": Near(np.expm1, 3),
    "softplus": Near(lambda x: np.logaddexp(x, 0), 3),
    "mish": Near(lambda x: x * np.tanh(np.logaddexp(x, 0)), 5, 1e-7),
    "elu": Near(lambda x: np.where(x < 0, 0.5 * np.expm1(x), x), 3.5),
    "celu": Near(lambda x: np.where(x < 0, 0.5 * np.expm1(x / 0.5), x), 3.5),
    "swish": Near(lambda x: x * special.expit(-0.5 * x), 4, 1e-7),
}
# Where a definition multiplies infinity by 0.
LIMITS = {
    **dict.fromkeys(("silu", "gelu", "gelu_tanh", "hard_swish", "mish"), (-INFINITY, 0.0)),
    "swish": (INFINITY, 0.0),
}


def saturated(low: int, high: int) -> Function:
    return lambda x: np.clip(np.rint(np.nan_to_num(x, nan=0, posinf=high, neginf=low)), low, high)


def truncated(kind: type[np.signedinteger[Any]]) -> Function:
    """Towards zero, then saturated; a NaN becomes 0."""
    limits = np.iinfo(kind)

    def exact(x: Array) -> Array:
        finite = np.nan_to_num(x.astype(np.float64), nan=0, posinf=1e30, neginf=-1e30)
        return np.array([min(max(int(n), limits.min), limits.max) for n in finite], kind)

    return exact


EXACT: dict[str, Function] = {
    "relu": lambda x: np.maximum(x, 0),
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rint": np.rint,
    "leaky": lambda x: np.where(x < 0, np.float32(0.01) * x, x),
    "clip": lambda x: np.clip(x, -1, 6),
    "to_u8": saturated(0, 255),
    "to_s8": saturated(-128, 127),
    "floor": np.floor,
    "ceil": np.ceil,
    "sign": np.sign,
    "square": np.square,
    "cube": lambda x: x * x * x,
    "reciprocal": lambda x: np.float32(1) / x,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "isnan": np.isnan,
    "isinf": np.isinf,
    "to_whole": truncated(np.int32),
    "to_long": truncated(np.int64),
}
OF_TWO = {"max": np.maximum, "min": np.minimum, "pow": np.power, "mod": np.mod}
MORE = {
    **{"hard_sigmoid": ", 0.2f, 0.5f", "leaky": ", 0.01f", "clip": ", -1.0f, 6.0f"},
    **dict.fromkeys(("elu", "celu"), ", 0.5f"),
    "swish": ", -0.5f",
}
RESULTS = {
    **{"to_u8": "uint8_t", "to_s8": "int8_t", "to_whole": "int32_t", "to_long": "int64_t"},
    **dict.fromkeys(("isnan", "isinf"), "int32_t"),
}
SCALAR = ("mod", "to_long")  # a call of the C library; a conversion that few CPUs have
NAMES = (*NEAR, *EXACT, *OF_TWO)


def declared(name: str) -> str:
    result, second = RESULTS.get(name, "float"), "const float *z, " if name in OF_TWO else ""
    return f"void f_{name}(const float *x, {second}{result} *y, int64_t n)"


def text(isa: str, names: tuple[str, ...] = NAMES, functions: str = "") -> str:
    """A loop over each function."""
    parts = [
        headers(HeaderSet(isa)),
        header("scalar"),
        functions or "\n".join(map(header, FUNCTION_HEADERS)),
    ]
    for name in names:
        more = ", z[i]" if name in OF_TWO else MORE.get(name, "")
        declaration = declared(name).replace("*", "*restrict ")
        parts += [
            f"PS_TARGET {declaration};",
            f"PS_TARGET {declaration}",
            '{\n    _Pragma("omp simd")\n    for (int64_t i = 0; i < n; ++i)',
            f"        y[i] = ps_f_{name}(x[i]{more});\n}}",
        ]
    return "\n".join([*parts, ""])


def loaded(path: Path, names: tuple[str, ...] = NAMES) -> Library:
    return load(path, "".join(f"{declared(name)};\n" for name in names))


@pytest.fixture(scope="module")
def units() -> dict[str, Library]:
    chosen = [isa for isa in CHECKED if native(isa)]
    built = cache.build_many([text(isa) for isa in chosen])
    return {isa: loaded(path) for isa, path in zip(chosen, built, strict=True)}


@pytest.fixture(params=CHECKED)
def unit(request: pytest.FixtureRequest, units: dict[str, Library]) -> Library:
    if request.param not in units:
        pytest.skip(f"this CPU lacks {request.param}")
    return units[request.param]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """References may overflow, and make NaN of what has no value."""
    with np.errstate(all="ignore"):
        yield


def call(unit: Library, name: str, *inputs: Array) -> Array:
    result = np.empty(len(inputs[0]), np.dtype(RESULTS.get(name, "float32").removesuffix("_t")))
    arrays = [unit.ffi.cast("void *", array.ctypes.data) for array in (*inputs, result)]
    getattr(unit.lib, f"f_{name}")(*arrays, result.size)
    return result


def samples() -> Array:
    """Floats of every exponent and sign, more around 0, special ones; a ragged number of them."""
    patterns = np.arange(0, 1 << 32, 32749, dtype=np.uint32).view(np.float32)
    dense = np.linspace(-20, 20, 1 << 16, dtype=np.float32)
    halves = np.arange(-300, 300, 0.25, dtype=np.float32)
    return np.concatenate([patterns, dense, halves, SPECIALS, -SPECIALS])


def ulp(exact: Array) -> Array:
    """The distance of floats around a number."""
    return np.exp2(np.floor(np.log2(np.maximum(np.abs(exact), SMALLEST))) - 23)


def worst(x: Array, got: Array, exact: Array, bound: Array) -> str:
    """The first input of the largest excess of an error; empty where there is none."""
    flushed = (got == 0) & (np.abs(exact) <= SMALLEST)
    beyond = np.isinf(got) & (np.abs(exact) > np.finfo(np.float32).max) & (got * exact > 0)
    same = (np.isnan(got) & np.isnan(exact)) | (got == exact) | flushed | beyond
    excess = np.where(same, 0, np.abs(got.astype(np.float64) - exact) / bound)
    at = int(np.nan_to_num(excess, nan=INFINITY).argmax())
    fine = bool(excess[at] <= 1)
    return "" if fine else f"{x[at]!r}: {got[at]!r}, not {exact[at]!r}: {excess[at]} bounds"


def excess(unit: Library, name: str) -> str:
    x, near = samples(), NEAR[name]
    wide = x.astype(np.float64)
    exact = near.exact(wide)
    if name in LIMITS:
        exact[x == LIMITS[name][0]] = LIMITS[name][1]
    bound = near.ulp * ulp(exact)
    if near.absolute:
        bound = np.maximum(bound, near.absolute * np.maximum(np.abs(wide), 1))
    return worst(x, call(unit, name, x), exact, bound)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", NEAR)
def test_functions_stay_within_their_errors(unit: Library, name: str) -> None:
    assert not excess(unit, name)


@pytest.mark.parametrize("name", EXACT)
def test_exact_functions_equal_those_of_numpy(unit: Library, name: str) -> None:
    x = samples()
    got, exact = call(unit, name, x), EXACT[name](x)
    np.testing.assert_array_equal(got, exact)
    if name in ("rint", "floor", "ceil"):
        np.testing.assert_array_equal(np.signbit(got), np.signbit(exact))


def pairs() -> tuple[Array, Array]:
    """Every two special numbers."""
    ends = np.concatenate([SPECIALS, -SPECIALS])
    x, y = np.array(list(product(ends, ends)), np.float32).T
    return x.copy(), y.copy()


@pytest.mark.parametrize("name", ["max", "min", "mod"])
def test_a_nan_on_either_side_is_the_result(unit: Library, name: str) -> None:
    x, y = pairs()
    np.testing.assert_array_equal(call(unit, name, x, y), OF_TWO[name](x, y))


def test_powers(unit: Library) -> None:
    """Of every two special numbers, zeros with their signs, and of many others."""
    draw = np.random.default_rng(1)
    x = np.exp(draw.uniform(-20, 20, 1 << 16)).astype(np.float32)
    y = (draw.uniform(-40, 40, x.size) / np.log(x)).astype(np.float32)
    x, y = (np.concatenate(both) for both in zip(pairs(), (x, y), strict=True))
    exact = np.power(x.astype(np.float64), y.astype(np.float64))
    got = call(unit, "pow", x, y)
    assert not worst(x, got, exact, 2 * ulp(exact))
    signed = (exact != 0) | (x == 0)
    np.testing.assert_array_equal(np.signbit(got)[signed & ~np.isnan(exact)],
                                  np.signbit(exact)[signed & ~np.isnan(exact)])  # fmt: skip


# Wrong constants and conditions: each must be noticed.
FAULTS = {
    "exp": ("0x1.62e42ep6f", "0x1.62e430p6f"),
    "log": ("1.42860677e-6f", "1.42e-6f"),
    "tanh": ("0.0210716780f", "0.0210f"),
    "erf": ("size > 0.9f", "size > 1.2f"),
    "gelu": ("13.29f : size", "5.0f : size"),
    "silu": ("z < -PS_HIGHEST", "z < -8.0f"),
    "sin": ("0x1.3770368p-110", "0x1.3770360p-110"),
    "cos": ("0x1.c9c8828p-29", "0x1.c9c8820p-29"),
    "acos": ("size > 0.5f ? far", "size > 0.6f ? far"),
    "atan": ("size > 2.41421356f", "size > 3.0f"),
    "asinh": ("x > 0x1p20f", "x > 0x1p70f"),
    "softplus": ("x > 0.414213562f", "x > 0.7f"),
}


@pytest.fixture(scope="module")
def faulty() -> dict[str, Library]:
    whole = "\n".join(map(header, FUNCTION_HEADERS))
    assert all(old in whole for old, _ in FAULTS.values())
    texts = [text("portable", (name,), whole.replace(*fault)) for name, fault in FAULTS.items()]
    flags = [flag for flag in default_flags() if flag != "-O3"]
    built = zip(FAULTS, cache.build_many(texts, flags=[*flags, "-O1"]), strict=True)
    return {name: loaded(path, (name,)) for name, path in built}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_function_is_noticed(faulty: dict[str, Library], name: str) -> None:
    assert excess(faulty[name], name)


REGISTERS = {"portable": "xmm", "avx2": "ymm", "avx512": "zmm"}


@pytest.mark.exhaustive
@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the assembly of x86-64")
@pytest.mark.parametrize("isa", REGISTERS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_loops_are_of_whole_vectors(compiler: str, isa: str, tmp_path: Path) -> None:
    source = tmp_path / "loops.c"
    source.write_text(text(isa), encoding="utf-8")
    flags = [flag for flag in default_flags() if not flag.startswith(("-fopenmp", "-Wl"))]
    words = [compiler, *flags, *STRICT, "-fopenmp-simd", "-S", "-o", "-", source]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:2000]
    packed = re.compile(rf"\sv?(?!mov)[a-z]+[0-9x]*p[sd]\s.*%{REGISTERS[isa]}")
    for name in set(NAMES) - set(SCALAR):
        body = done.stdout.split(f"\nf_{name}:")[1].split(f".size\tf_{name}")[0]
        assert not re.search(r"\scallq?\s|@PLT", body), name
        assert packed.search(body), name


def test_every_instruction_set_has_a_checked_one() -> None:
    others = [isa for isa in ISAS.values() if isa.name != "scalar"]  # which has portable's text
    assert all(set(isa.chain) & set(CHECKED) for isa in others)
