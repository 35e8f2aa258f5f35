"""Words of 8-bit numbers by ``cl_khr_integer_dot_product``.

No driver here has it: PoCL runs the code with functions of the extension's names, and clang, which
knows the extension, compiles it for a device that has it.
"""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import polysci
from polysci.lower.registry import algorithm_of
from polysci.measure.integer_reference import Arrays
from polysci.ops import parse_problem
from polysci.runtime import backends
from polysci.runtime.backends.opencl import OpenCL, devices, options_of, target_of
from polysci.runtime.primitive import Primitive, load_primitive
from polysci.runtime.source import emit
from polysci.space.schedule import parse
from polysci.target.isas import DEVICE_ISAS, DOT_PRODUCT
from polysci.target.target import Memory, Target
from tests.support.device_problems import TYPES

pytest.importorskip("pyopencl", reason="OpenCL: pyopencl is not installed")
if not devices():
    pytest.skip("OpenCL: there is no device", allow_module_level=True)

# OpenCL C Specification, integer dot products: both packed words, the first component lowest.
FUNCTIONS = """
int dot_4x8packed_ss_int(uint a, uint b)
{
    const int4 x = convert_int4(as_char4(a)), y = convert_int4(as_char4(b)), z = x * y;
    return z.s0 + z.s1 + z.s2 + z.s3;
}
int dot_4x8packed_us_int(uint a, uint b)
{
    const int4 x = convert_int4(as_uchar4(a)), y = convert_int4(as_char4(b)), z = x * y;
    return z.s0 + z.s1 + z.s2 + z.s3;
}
"""
LAYERS = ("mb2ic8ih6oc16kh3ph1", "mb1ic6ih5oc20kh1", "mm:24x20x36 b=constant")
TEXT = "npq:16@by k:16@bx c:8 copy(A,B)x2+4 npq:4@ty k:4@tx > fma_opencl4dot_i8_4x4"
CLANGS = ("clang-18", "clang-17", "clang-16", "clang-15")
CLANG = next((name for name in CLANGS if shutil.which(name)), "")


@dataclass(frozen=True, slots=True)
class WithFunctions(OpenCL):
    """The device as one that has the extension's functions; ``old`` stands as ``new`` in code."""

    old: str = ""
    new: str = ""

    def targets(self) -> tuple[Target, ...]:
        return (grouped(),)

    def build(self, text: str | Sequence[str], **options: object) -> Path:
        source = text if isinstance(text, str) else "\n".join(text)
        head, end, rest = source.partition("\n")
        assert self.old in rest
        changed = rest.replace(self.old, self.new) if self.old else rest
        return OpenCL.build(self, f"{head}{end}{FUNCTIONS}{changed}", **options)  # type: ignore[arg-type]


def grouped() -> Target:
    """The device as one with groups and the extension."""
    (target,) = OpenCL().targets()
    local = Memory("local", 48 << 10, kind="local")
    return replace(
        target, isa=DEVICE_ISAS["opencl4dot"], features=(*target.features, "opencl4", DOT_PRODUCT),
        memories=(*target.memories, local), backend="dot",
    )  # fmt: skip


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    monkeypatch.setattr(backends, "BACKENDS", {**backends.BACKENDS, "dot": WithFunctions()})
    yield grouped()


def primitive_of(text: str, dtype: str) -> Primitive:
    problem = parse_problem(text, "nhwc", dtype)
    plain = text.startswith("mm:")
    schedule = TEXT.replace("npq", "i").replace("k:", "j:").replace("c:8", "k:8") if plain else TEXT
    source = emit(problem, parse(schedule), 1)
    return load_primitive(problem, source, 1, backend="dot")


def fault_of(primitive: Primitive) -> str | None:
    """What differs from the reference, which multiplies whole numbers."""
    problem, algorithm = primitive.problem, algorithm_of(primitive.schedule)
    arrays = Arrays.of(problem, 0, algorithm.exact_inputs(problem))
    zero = {} if arrays.x_zero is None else {"x_zero": arrays.x_zero}
    packed = primitive.pack_weights(arrays.inputs["w"], **zero)
    return arrays.fault("plain", primitive(arrays.inputs["x"], packed, scales=arrays.scales))


@pytest.mark.parametrize(("text", "dtype"), [
    pytest.param(text, dtype, marks=[pytest.mark.exhaustive] * (text != LAYERS[1]))
    for text in LAYERS for dtype in TYPES[:2]
])  # fmt: skip
def test_layers_are_exact(device: Target, text: str, dtype: str) -> None:
    assert fault_of(primitive_of(text, dtype)) is None


@pytest.mark.exhaustive
def test_the_model_takes_the_extension_where_it_is(device: Target) -> None:
    problem = parse_problem(LAYERS[0], "nhwc", "u8:s8:s32")
    primitive = polysci.compile(problem, "estimate", target=device)
    assert primitive.schedule.kernel.startswith("fma_opencl4dot_i8_")
    assert fault_of(primitive) is None


@pytest.mark.exhaustive
def test_a_fault_of_the_products_is_found(device: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = WithFunctions(old="dot_4x8packed_us_int(a, as_uint(b[i]))",
                           new="dot_4x8packed_ss_int(a, as_uint(b[i]))")  # fmt: skip
    monkeypatch.setattr(backends, "BACKENDS", {**backends.BACKENDS, "dot": faulty})
    assert fault_of(primitive_of(LAYERS[0], "u8:s8:s32")) is not None


def test_code_asks_for_the_language_of_the_extension(device: Target) -> None:
    code = emit(parse_problem(LAYERS[0], "nhwc", "u8:s8:s32"), parse(TEXT), 1).file
    assert "-cl-std=CL3.0" in options_of(code, flush=True)
    plain = emit(parse_problem(LAYERS[1]), parse("p k:4 q:4 > brgemm_opencl4_f32_4x4"), 1).file
    assert "-cl-std=CL1.2" in options_of(plain, flush=True)


@pytest.mark.skipif(not CLANG, reason="no clang from 15 on, which knows the extension")
@pytest.mark.parametrize("dtype", TYPES[:2])
def test_clang_knows_what_is_called(device: Target, dtype: str, tmp_path: Path) -> None:
    code = emit(parse_problem(LAYERS[0], "nhwc", dtype), parse(TEXT), 1).file
    source, made = tmp_path / "code.cl", tmp_path / "code.ll"
    source.write_text(code)
    words = ["-cl-std=CL3.0", "-target", "spir64", "-Xclang", "-finclude-default-header", "-w",
             "-O1", "-S", "-emit-llvm", "-o", str(made), str(source)]  # fmt: skip
    ran = subprocess.run([CLANG, *words], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[:2000]
    signs = "ss" if dtype.startswith("s8") else "us"
    assert f"dot_4x8packed_{signs}_int" in made.read_text()


@pytest.mark.parametrize(("extensions", "isa"), [
    ("cl_khr_fp64 cl_khr_integer_dot_product", "opencl4dot"), ("cl_khr_fp64", "opencl4"),
])  # fmt: skip
def test_a_device_tells_of_the_extension(extensions: str, isa: str) -> None:
    import pyopencl as cl

    class Gpu:
        """What a driver tells of a GPU."""

        type, local_mem_type = cl.device_type.GPU, cl.device_local_mem_type.LOCAL
        global_mem_cache_size, local_mem_size, global_mem_size = 1 << 20, 1 << 15, 1 << 30
        double_fp_config, max_compute_units, name = 0, 8, "a GPU"

    device = Gpu()
    device.extensions = extensions  # type: ignore[attr-defined]
    device.platform = SimpleNamespace(name="a driver")  # type: ignore[attr-defined]
    target = target_of(device, 0)
    assert str(target.isa) == isa and (DOT_PRODUCT in target.features) == (isa == "opencl4dot")
