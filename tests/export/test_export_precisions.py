"""Exports in every precision: typed self-tests that notice faults, headers, Python packages."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from platform import machine

import numpy as np
import pytest

from polysci.errors import SpecError
from polysci.export import ExportedLayer, check_c, export_c, export_python
from polysci.measure.integer_reference import Arrays
from polysci.numerics.dtypes import PRECISIONS
from polysci.ops import parse_problem
from polysci.space.schedule import parse
from polysci.target import microkernels
from polysci.target.host import detect
from polysci.target.isas import ISAS
from polysci.text import names
from tests.support.exported import IDENTIFIERS, WARNINGS, layers, run

STRICT = ("-std=c11", *WARNINGS)
COMPILERS = [cc for cc in ("gcc", "clang") if shutil.which(cc)]
RUNS = [isa.name for isa in detect().runnable]  # programs ask the CPU
DATA = Path(__file__).parents[1] / "data"
NARROW = [name for name in PRECISIONS if name != "f32"]
USUAL = ("bf16", "f16", "u8:s8:u8")
# Of clang the precision with the most kinds of code; the others' kernels it compiles elsewhere.
BUILDS = [*(("gcc", dtype) for dtype in NARROW)]
BUILDS += [(cc, "u8:s8:u8") for cc in COMPILERS if cc != "gcc"]


def kinds(dtype: str) -> list[str]:
    """This machine's vectors that have matrix kernels of their own for a precision, best first."""
    x = PRECISIONS[dtype].x.name
    return [
        name for name, isa in reversed(list(ISAS.items()))
        if isa.machine in ("", machine()) and isa.lanes_f32 > 1
        and microkernels.ways("brgemm", name, x)[0][0].isa == name
    ]  # fmt: skip


def mixed(isa: str) -> list[ExportedLayer]:
    """Layers of three precisions, of which two are the same but for that."""
    return [
        layers(isa)[0],
        layers(isa, dtype="bf16")[4],
        layers(isa, dtype="u8:s8:u8")[4],
        layers(isa, dtype="u8:s8:u8")[2],
        layers(isa, dtype="s8:s8:s32")[3],
    ]


def outcome(folder: Path, cc: str, *flags: str, warnings: Sequence[str] = STRICT[1:]) -> str:
    """Exit status and words of the self-test, compiled without one warning."""
    cmd = [cc, STRICT[0], *warnings, "-O1", *flags]
    made = run(*cmd, *sorted(folder.glob("*.c")), "-o", "selftest", "-lm", cwd=folder)
    assert (made.returncode, made.stdout) == (0, "")
    done = run(folder / "selftest", cwd=folder)
    return f"{done.returncode}\n{done.stdout}"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("cc", "dtype"), BUILDS)
def test_every_instruction_set_passes(tmp_path: Path, cc: str, dtype: str) -> None:
    isas = kinds(dtype)
    made = layers(*isas, dtype=dtype)
    export_c(made[:5] if dtype in USUAL else made[:4:2], tmp_path, name="net")
    status, *said = outcome(tmp_path, cc).splitlines()
    assert status == "0" and said[-1].endswith(" passed, 0 failed")
    units = {line.partition(": ")[0]: line for line in said[:-1] if not line.startswith("choice")}
    assert {unit.partition("_")[0] for unit in units} >= {*isas}
    for unit, line in units.items():
        runs = unit.partition("_")[0] in RUNS
        assert re.search(r"[1-9]\d* passed, 0 failed$" if runs else "skipped: this CPU lacks", line)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("cc", "flags"),
    [*((cc, "-O3") for cc in COMPILERS),
     ("gcc", "-fsanitize=address,undefined"), ("gcc", "-march=native -O3")],
)  # fmt: skip
def test_several_precisions_in_a_project(tmp_path: Path, cc: str, flags: str) -> None:
    isa = "avx2" if "avx2" in RUNS else "portable"
    export_c(mixed(isa), tmp_path, name="net")
    said = outcome(tmp_path, cc, *flags.split())
    assert said.startswith("0\n") and said.endswith("\n10 passed, 0 failed\n")
    header = (tmp_path / "net.h").read_text()
    assert "5 layers, f32, bf16, u8:s8:u8, s8:s8:s32, for CPUs with these features: " in header
    assert header.count("} polysci_scales;") == 1 and "There is code for" not in header
    assert header.count("const polysci_scales *to, void *workspace);") == 2
    assert "(w, packed[, x_zero])" in header and "clamp,[ to,] workspace)" in header
    made = run("make", "check", "CFLAGS=-O1 -Werror", cwd=tmp_path)
    assert made.returncode == 0 and made.stdout.endswith("10 passed, 0 failed\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["f32", "u8:s8:u8"])
def test_what_strides_scatter_is_tested_too(tmp_path: Path, dtype: str) -> None:
    """The self-test's plain loops leave out what padding cuts off the result."""
    problem = parse_problem("deconv g2mb2ic6ih4oc4oh7kh3sh2ph1", dtype=dtype)
    compute = "f32" if dtype == "f32" else "i16"
    plan = parse(f"n residues(2,2) g pack(A) h > brgemm_portable_{compute}_4x8")
    export_c([ExportedLayer(problem, plan)], tmp_path, name="net")
    assert outcome(tmp_path, "gcc", "-fsanitize=address,undefined") == "0\n2 passed, 0 failed\n"


def test_what_the_header_says_of_types(tmp_path: Path) -> None:
    export_c(layers("portable", dtype="u8:s8:s8")[3:4], tmp_path / "a", name="net")
    text = (tmp_path / "a" / "net.h").read_text()
    for line in (
        "/* net: 1 layer, u8:s8:s8, for CPUs with these features: none.",
        " * below: u8 is uint8_t; s8 is int8_t; s32 is int32_t.",
        " *   other = (residual - to->residual_zero) * to->residual_scale, or 0 without residual",
        " * NHWC, u8:s8:s8, 1 thread",
        " *   x            u8   1 x 8 x 6 x 12 (N H W C), strides 576 72 12 1",
        " *   w            s8   4 x 12 x 2 x 3 (K C/groups R S), strides 72 6 3 1",
        " *   y, residual  s8   1 x 4 x 6 x 4 (N P Q K), strides 96 24 4 1",
        " *   bias         s32  4 (K), strides 1 */",
        "void net_layer_class_pack_weights(const int8_t *w, void *packed, int32_t x_zero);",
    ):
        assert f"{line}\n" in text
    readme = (tmp_path / "a" / "README.md").read_text()
    assert "pack_weights(w, packed, x_zero)`" in readme and "0, 0, 0, &to, workspace)`" in readme
    export_c(layers("portable", dtype="f16")[3:4], tmp_path / "b", name="net")
    text = (tmp_path / "b" / "net.h").read_text()
    assert "binary16" in text and "ties to even" in text
    assert "polysci_scales" not in text and "x_zero" not in text


@pytest.mark.exhaustive
@pytest.mark.parametrize("cxx", [cxx for cxx in ("g++", "clang++") if shutil.which(cxx)])
def test_headers_of_two_projects_are_cpp(tmp_path: Path, cxx: str) -> None:
    for name in ("net", "other"):
        export_c(mixed("portable"), tmp_path, name=name, force=True)
    (tmp_path / "use.cpp").write_text(
        '#include "net_units.h"\n#include "other.h"\n'
        "int main() { polysci_scales to = {0, 1, 0, 0};\n"
        "return to.y_zero + (net_layer_class_packed_size() > 0 && other_supported() ? 0 : 9); }\n"
    )
    flags = ("-std=c++98", *STRICT[1:], "-Wno-long-long")
    done = run(cxx, *flags, "-c", "use.cpp", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


WHOLE = ("u8:s8:u8", "s8:s8:s8", "u8:s8:s32")
FAULTS = [
    *((dtype, "ps_b_of(w[", "ps_b_of(w[1 - 1 * ", "y[") for dtype in (*USUAL, *WHOLE[1:])),
    ("bf16", "(bits + 0x7fffu + (bits >> 16 & 1u)) >> 16", "bits >> 16", "(bare): y["),
    ("bf16", "0x7fffu + (bits >> 16 & 1u)", "0x8000u", "y["),  # ties
    ("f16", "0xfffu + (size >> 13 & 1u)", "0", "(bare): y["),
    ("f16", "if (!e->bias)", "if (e)", "(bias, residual, clamp): y["),
    *((dtype, "(x_zero + PS_FLIP)) * sum", "(PS_FLIP)) * sum", "clamp): y[") for dtype in WHOLE),
    ("s8:s8:s8", "(ps_a)(args.x_zero)", "(ps_a)0", "clamp): y["),  # padding
    (
        "u8:s8:u8",
        "ps_to_real(whole), scale)",
        "ps_to_real(whole), ps_add(scale, scale))",
        "(bare): y[",
    ),
    ("u8:s8:u8", "e->scale + v * PS_LANES", "e->to->scale", "y["),
    (
        "s8:s8:s8",
        "ps_int_splat(-e->to->residual_zero)",
        "ps_int_splat(e->to->residual_zero)",
        "clamp): y[",
    ),
    ("u8:s8:u8", "ps_splat(e->to->residual_scale)", "ps_splat(1)", "clamp): y["),
    (
        "s8:s8:s8",
        "ps_int_add(acc[i], y_zero)",
        "ps_int_add(acc[i], ps_int_splat(0 * (int)sizeof y_zero))",
        "(bare): y[",
    ),
    ("s8:s8:s8", "clamp && clamp[0] > -most", "0", "clamp): y["),
    ("u8:s8:s32", "if (e && e->residual)", "if (0)", "clamp): y["),
    ("u8:s8:u8", ".packed = packed, .y = y,", ".packed = packed, .y = y + 1,", "wrote outside y"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("dtype", "old", "new", "said"), FAULTS)
def test_the_self_test_finds_faults(
    tmp_path: Path, dtype: str, old: str, new: str, said: str
) -> None:
    export_c(layers("portable", dtype=dtype)[:4], tmp_path, name="net")
    changed = 0
    for path in tmp_path.glob("net*.c"):
        text = path.read_text()
        changed += text.count(old)
        path.write_text(text.replace(old, new))
    assert changed
    found = outcome(tmp_path, "gcc", warnings=["-w"])
    assert found.startswith("1\nFAILED ") and said in found


@pytest.mark.exhaustive
def test_the_same_layers_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        export_c(mixed("avx2"), tmp_path / name, name="net")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert "net_avx2_i16_u8_u8_x.c" in files and "net_avx2.c" in files
    for file in files:
        text = (tmp_path / "a" / file).read_text(encoding="ascii")
        assert text == (tmp_path / "b" / file).read_text() and str(tmp_path) not in text


@pytest.mark.exhaustive
def test_what_may_be_replaced_before_units_are_known(tmp_path: Path) -> None:
    some = layers("avx512", dtype="u8:s8:u8")
    for _ in range(2):
        export_c(some, tmp_path, name="net")
    assert (tmp_path / "net_avx512_i16_u8_u8_x.c").exists()
    check_c(tmp_path, name="net")
    check_c(tmp_path, name="net", isas=("avx512bf16", "portable"))
    with pytest.raises(SpecError, match=r"holds other files \('net_avx512_i16_u8_u8.c'"):
        check_c(tmp_path, name="net", isas=("avx2", "portable"))
    (tmp_path / "net_avx512_mine.c").write_text("mine")
    with pytest.raises(SpecError, match=r"holds other files \('net_avx512_mine.c'\)"):
        check_c(tmp_path, name="net")


def test_names_leave_room_for_units_that_begin_with_others() -> None:
    units = ("avx2", "avx2_i16_u8_u8", "portable")
    found = names.layers(["conv", "i16_u8_u8_conv", "i16_conv"], "net", units)
    assert found == ["conv", "layer_i16_u8_u8_conv", "i16_conv"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of packages that holds NumPy and nothing else."""
    site = tmp_path_factory.mktemp("site")
    home = Path(np.__file__).parent
    for path in (home, home.with_name("numpy.libs")):
        if path.exists():
            (site / path.name).symlink_to(path)
    return site


def python(site: Path, package: Path, script: str, *arguments: str) -> str:
    """What a script of tests/data says where only NumPy and the package are, without compiler."""
    head = f"import sys; sys.path += [{str(site)!r}, {str(package)!r}]\n"
    code = head + (DATA / script).read_text()
    done = run(
        sys.executable, "-ISW", "error", "-c", code, *arguments, cwd=package, PATH="/nonexistent"
    )
    return f"{done.returncode}{done.stdout}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [*USUAL, "bf16:bf16:f32", "s8:s8:s32", "s8:s8:s8"])
def test_a_python_package_computes_the_same(tmp_path: Path, site: Path, dtype: str) -> None:
    isa = next(isa for isa in kinds(dtype) if isa in RUNS)
    some, package = layers(isa, dtype=dtype), tmp_path / "net"
    export_python(some, package)
    inputs, expected = {}, {}
    for name, layer in zip(IDENTIFIERS, some, strict=True):
        arrays = Arrays.of(layer.problem, 3)
        given = dict(arrays.inputs)
        if arrays.x_zero is not None:
            given["x_zero"] = np.array(arrays.x_zero)
        if arrays.scales:
            given["scale"] = arrays.scales.values
            for field in ("y_zero", "residual_scale", "residual_zero"):
                given[field] = np.array(getattr(arrays.scales, field))
        inputs |= {f"{name}/{which}": array for which, array in given.items()}
        expected |= {f"{name}/plain": arrays.plain, f"{name}/fused": arrays.fused}
    files = tmp_path / "inputs.npz", tmp_path / "found.npz"
    np.savez(files[0], **inputs)
    assert python(site, package, "exported_results.py", *map(str, files)) == "0"
    found = np.load(files[1])
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name


@pytest.mark.exhaustive
def test_a_python_package_of_whole_numbers_checks_arguments(tmp_path: Path, site: Path) -> None:
    export_python(layers("portable", dtype="u8:s8:u8")[3:4], tmp_path / "net")
    assert python(site, tmp_path / "net", "exported_whole.py") == "0"


@pytest.mark.exhaustive
def test_a_python_package_of_several_precisions(tmp_path: Path) -> None:
    for name in ("a", "b"):
        paths = export_python(mixed("portable"), tmp_path / name / "net")
    files = sorted(str(path.relative_to(tmp_path / "b" / "net")) for path in paths)
    assert "net/_native_portable.so" in files and "net/_native_portable_i16_u8_u8_x.c" in files
    for file in files:
        first = (tmp_path / "a" / "net" / file).read_bytes()
        assert first == (tmp_path / "b" / "net" / file).read_bytes()
    text = (tmp_path / "a" / "net" / "net" / "__init__.py").read_text()
    assert "from ._values import Scales as Scales" in text and '    "to_bf16",\n]' in text
    code = (
        "import numpy as np, net\n"
        "x = np.array([1, 1.00390625, 1.01171875, -3e38, np.inf], np.float32)\n"
        "print(net.from_bf16(net.to_bf16(x)), net.res2a_1, net.__all__[-3:])"
    )
    done = run(
        sys.executable, "-W", "error", "-c", code, cwd=tmp_path / "a" / "net",
        PYTHONPATH=os.pathsep.join(sys.path),
    )  # fmt: skip
    assert done.returncode == 0 and "[ 1.0000000e+00  1.0000000e+00  1.0156250e+00" in done.stdout
    assert "x f32 (1, 9, 11, 3)" in done.stdout
