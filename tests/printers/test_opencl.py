"""OpenCL C from loop IR: address spaces, the line of launches, what has no kernels."""

import pytest

from polysci.errors import BuildError
from polysci.loop_ir.kernels import Launch, LaunchedFunction, LaunchLoop, Mark
from polysci.ops import parse_problem
from polysci.printers.dialect import OPENCL
from polysci.printers.launches import print_launches, read_launches
from polysci.runtime.source import emit
from polysci.space.schedule import parse

LAUNCHED = LaunchedFunction(
    "f", ("x", "y"),
    (Mark(0), Launch("f_k0", 4, ("x",)), Mark(1),
     LaunchLoop("c", range(2, 8, 3), (Launch("f_k1", 1, ("y", "c")), Launch("f_k2", 9, (), 32)))),
    result=7,
)  # fmt: skip


def test_pointers_to_numbers_are_to_the_memory_of_the_device() -> None:
    text = "static void f(const ps_a *restrict a, ps_y *y, ps_vec *sums, const ps_tile *t)"
    assert OPENCL.translate(text) == (
        "static void f(const __global ps_a *restrict a, __global ps_y *y, ps_vec *sums, "
        "const ps_tile *t)"
    )
    assert OPENCL.translate("(const ps_a *)g->a + a") == "(const __global ps_a *)g->a + a"
    assert OPENCL.translate("(char *)x + n * 4") == "(__global char *)x + n * 4"


def test_tables_behind_an_empty_line_are_constants() -> None:
    text = "}\n\nstatic const int t[1] = {0};"
    assert OPENCL.translate(text) == "}\n\n__constant int t[1] = {0};"


def test_names_that_the_language_reserves_get_others() -> None:
    assert (
        OPENCL.translate("ps_args local = args; f(&local)") == "ps_args local_ = args; f(&local_)"
    )
    for words in ('__asm__ volatile("" : : : "memory")', "PS_RELOAD()"):
        assert OPENCL.translate(f"a; {words}; b;") == "a; ; b;"
    assert OPENCL.translate("    static const ps_tile t = {0};") == "    const ps_tile t = {0};"


def test_launches_stand_in_the_first_line() -> None:
    text = f"{print_launches([LAUNCHED])}\n__kernel void f_k0() {{}}\n"
    assert read_launches(text) == {"f": LAUNCHED}
    with pytest.raises(BuildError, match="no launches in its first line"):
        read_launches("/* a kernel */")


def test_a_layer_is_kernels_behind_its_launches() -> None:
    problem = parse_problem("mb1ic4ih6oc8kh3ph1")
    source = emit(problem, parse("p* > brgemm_opencl8_f32_6x8"), threads=3)
    first, second, *_ = source.file.splitlines()
    assert first.startswith("// launches: [")
    assert second == "/* p* > brgemm_opencl8_f32_6x8 */"
    assert "typedef PS_PASTE(float, PS_LANES) ps_vec;" in source.file
    assert "#define PS_LANES 8" in source.file and "<stdint.h>" not in source.file
    launched = read_launches(source.file)
    assert launched["primitive"].steps == (
        Launch("primitive_k0", 3, ("x", "packed", "y", "bias", "residual", "clamp")),
    )
    assert launched["primitive_packed_size"].result == 4 * 9 * 8 * 4
    assert [step.items for step, _ in launched["primitive_pack_weights"].launches("ab")] == [1]


def test_halves_are_converted_without_an_extension() -> None:
    problem = parse_problem("mb1ic4ih6oc8kh3ph1", "nhwc", "f16")
    text = emit(problem, parse("p > brgemm_opencl8_f32_6x8")).file
    assert "vload_half" in text and "vstore_half" in text and "cl_khr_fp16" not in text
