"""CUDA kernels on this CPU: exact results in three orders of threads, and faults that are found."""

import ctypes
import shutil
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from polysci.network.compiled import CompileOptions, compile_network, rebuild_network
from polysci.network.debug import compare_tensors, first_wrong
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.runtime.primitive import load_primitive
from polysci.runtime.source import emit
from polysci.space.schedule import parse
from tests.lower.mapped.test_parts import CASES as PARTS
from tests.lower.mapped.test_reading import CASES, schedule_of
from tests.lower.mapped.test_winograd import CASES as WINOGRAD
from tests.support.cuda_emulation import (
    ORDERS,
    SANITIZERS,
    EmulatedCuda,
    check_layer,
    check_schedule,
    compile_kernels,
    emulated,
    run_sanitized,
)
from tests.support.device_cases import (
    LAYERS,
    WARPS,
    WARPS_OF_WORDS,
    WHOLE,
    WORDS,
    check_device_layer,
    integers,
    recurrent,
    two_layers,
)
from tests.support.onnxmodels import reals

if shutil.which("g++") is None:
    pytest.skip("the emulation of CUDA: g++ is not installed", allow_module_level=True)

TILES = ("mb1ic6ih9oc20oh9kh3ph1", "nhwc")  # of groups, by the choice of the model


@pytest.mark.sampled
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(
    "text", [pytest.param(text, marks=[pytest.mark.exhaustive] * (at not in (0, 2)))
             for at, text in enumerate(LAYERS)],
)  # fmt: skip
def test_layers_are_exact(text: str, layout: str) -> None:
    with emulated() as backend:
        check_layer(parse_problem(text, layout), backend)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.exhaustive] * (at not in (0, 2)))
             for at, case in enumerate(CASES)],
)  # fmt: skip
def test_items_that_read_are_exact(case: tuple[str, str, str, int, int, int, bool]) -> None:
    text, layout, *sizes, along_rows = case
    problem = parse_problem(text, layout)
    schedule = schedule_of(problem, "cuda4", *sizes, along_rows=along_rows)  # type: ignore[arg-type]
    with emulated() as backend:
        primitive = load_primitive(problem, emit(problem, schedule), 1, backend=backend.name)
        x, w = integers(problem.x_shape, 1), integers(problem.w_shape, 2)
        result = primitive(x, w if model_of(problem)[1].packs_b else primitive.pack_weights(w))
        assert np.allclose(result, problem.reference(x, w), rtol=1e-5, atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.exhaustive] * (at != 1))
             for at, case in enumerate((*WINOGRAD, *PARTS))],
)  # fmt: skip
def test_parts_are_exact(case: tuple[str, str, str]) -> None:
    """Several launches: transforms and products, or a product for each residue class."""
    text, layout, words = case
    with emulated() as backend:
        check_device_layer(
            parse_problem(text, layout), words.replace("opencl4", "cuda4"), backend.name
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "dtype", ["bf16", *(pytest.param(name, marks=pytest.mark.exhaustive)
                        for name in ("bf16:bf16:f32", "f16", "f16:f16:f32"))],
)  # fmt: skip
def test_narrow_layers_are_exact(dtype: str) -> None:
    schedule = parse("npq:16@by k:16@bx c:8 copy(A,B)x2+4 npq:4@ty k:4@tx > fma_cuda4_f32_4x4")
    with emulated() as backend:
        check_schedule(parse_problem("mb1ic8ih7oc20kh3ph1", "nhwc", dtype), schedule, backend)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.exhaustive] * (at != len(WHOLE)))
             for at, case in enumerate((*WHOLE, *WORDS))],
)  # fmt: skip
def test_layers_of_8_bits_are_exact(case: tuple[str, str, str, str]) -> None:
    text, layout, dtype, words = case
    with emulated() as backend:
        check_schedule(parse_problem(text, layout, dtype), parse(words.format("cuda")), backend)


@pytest.mark.sampled
@pytest.mark.parametrize(("text", "layout", "dtype", "run"), (*WARPS, *WARPS_OF_WORDS))
def test_tiles_of_warps_are_exact(text: str, layout: str, dtype: str, run: str) -> None:
    with emulated() as backend:
        check_schedule(parse_problem(text, layout, dtype), parse(run), backend)


@pytest.mark.exhaustive
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("case", (*WARPS, *WARPS_OF_WORDS), ids=str)
def test_tiles_of_warps_are_clean_under_sanitizers(case: tuple[str, ...], sanitizer: str) -> None:
    ran = run_sanitized(sanitizer, *case)
    assert (ran.returncode, ran.stdout) == (0, "exact\n"), ran.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "fault",
    [
        ("PS_BARRIER();", ";"),
        ("ps_await(1);", "ps_await(2);"),
        ("24 * own_row", "24 * own_row + 24"),
    ],
)
def test_faults_in_tiles_of_warps_are_found(fault: tuple[str, str]) -> None:
    text, layout, dtype, run = WARPS[0]
    with emulated(fault=fault) as backend, pytest.raises(AssertionError):
        check_schedule(parse_problem(text, layout, dtype), parse(run), backend)


@pytest.mark.exhaustive
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("text", LAYERS)
def test_layers_are_clean_under_sanitizers(text: str, layout: str, sanitizer: str) -> None:
    ran = run_sanitized(sanitizer, text, layout)
    assert (ran.returncode, ran.stdout) == (0, "exact\n"), ran.stderr


@pytest.mark.exhaustive
def test_a_race_of_warps_is_found() -> None:
    ran = run_sanitized("thread", *WARPS[0], "PS_BARRIER();", ";")
    assert ran.returncode and "ThreadSanitizer: data race" in ran.stderr, ran.stderr


@pytest.mark.parametrize(
    ("sanitizer", "fault", "message"),
    [pytest.param("thread", ("PS_BARRIER();", ";"), "ThreadSanitizer: data race",
                  marks=pytest.mark.exhaustive),
     pytest.param("address,undefined", ("+ own_row,", "+ own_row - 8,"),
                  "AddressSanitizer: global-buffer-overflow", marks=pytest.mark.exhaustive)],
)  # fmt: skip
def test_sanitizers_find_faults_in_tiles(
    sanitizer: str, fault: tuple[str, str], message: str
) -> None:
    """Whatever order threads have, a race is one: no wrong result is needed."""
    ran = run_sanitized(sanitizer, *TILES, *fault)
    assert ran.returncode and message in ran.stderr, ran.stderr


@pytest.mark.exhaustive
@pytest.mark.isa("avx2")
@pytest.mark.parametrize(
    ("layer", "run"),
    [("mb1ic8ih7oc24kh3ph1", "k:8 c:4 p q:4 > brgemm_{}_f32_4x8"),
     ("g16mb1ic16ih7oc16oh7kh3ph1", "g:8 p q:4 > depthwise_{}_f32_4x8")],
)  # fmt: skip
def test_bits_are_those_of_c(layer: str, run: str) -> None:
    """Real numbers: sums are fused and added in the same order, epilogues alike."""
    problem = parse_problem(layer)
    words = {"bias": reals(problem.K, seed=3), "residual": reals(*problem.y_shape, seed=4)}
    x, w = reals(*problem.x_shape, seed=1), reals(*problem.w_shape, seed=2)
    results = []
    with emulated() as backend:
        for isa, name in (("cuda4", backend.name), ("avx2", "host")):
            source = emit(problem, parse(run.format(isa)))
            primitive = load_primitive(problem, source, 1, backend=name)
            results.append(primitive(x, primitive.pack_weights(w), **words))
    assert np.array_equal(*results)


@pytest.mark.sampled
@pytest.mark.parametrize("make", [two_layers, recurrent])
def test_networks_compute_what_they_do_here(make: Callable[[], onnx.ModelProto]) -> None:
    with emulated() as backend:
        (target,) = backend.targets()
        device, host = (
            compile_network(make(), CompileOptions("estimate", 2, target=where))
            for where in (target, None)
        )
        inputs = {port.name: reals(*port.shape, seed=3) for port in host.inputs}
        results, expected = device(inputs), host(inputs)
        for name, array in expected.items():
            assert np.allclose(results[name], array, rtol=1e-5, atol=1e-6)
        assert device.runner.packed_weights().nbytes == device.runner.model_bytes


@pytest.mark.exhaustive
def test_tensors_of_a_network_are_read() -> None:
    with emulated() as backend:
        (target,) = backend.targets()
        network = compile_network(two_layers(), CompileOptions("estimate", target=target))
        apart = rebuild_network(network, apart=True)
        steps = compare_tensors(apart, {"x": reals(1, 3, 6, 6, seed=3)}, strict=True)
        assert first_wrong(steps) is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", [("PS_BARRIER();", ";"), ("+ own_row,", "+ own_row + 1,")])
def test_faults_in_tiles_are_found(fault: tuple[str, str]) -> None:
    with emulated(fault=fault) as backend, pytest.raises(AssertionError):
        check_layer(parse_problem(*TILES), backend)


# A small kernel: blocks turn 64 numbers around, by way of their memory.
TURN = """
extern "C" __global__ void turn(const float *x, float *y)
{
    __shared__ float held[64];
    const int at = threadIdx.x;
    held[at] = x[blockIdx.x * 64 + at];
    __syncthreads();
    y[blockIdx.x * 64 + at] = held[63 - at];
}
"""


def turned(text: str, order: str) -> bool:
    """Whether a kernel turns around what it should."""
    x = np.arange(192, dtype=np.float32)
    kernel = ctypes.CDLL(str(compile_kernels(text, ["turn"])))["emu_turn"]
    stream = EmulatedCuda().emulated
    source, result, y = stream.copy_in(x), stream.buffer(x.nbytes), np.empty_like(x)
    arguments = (ctypes.c_int64 * 2)(source.address, result.address)
    kernel(ctypes.c_int64(3), ctypes.c_int64(64), ORDERS.index(order), arguments)
    stream.copy_out(result, y)
    return np.array_equal(y, x.reshape(3, 64)[:, ::-1].ravel())


@pytest.mark.exhaustive
def test_a_kernel_whose_threads_wait_is_right_in_all_orders() -> None:
    assert all(turned(TURN, order) for order in ORDERS)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("old", "new"), [("__syncthreads();", ";"), ("held[63 - at]", "held[62 - at]")]
)
def test_faults_in_a_kernel_are_found(old: str, new: str) -> None:
    assert not any(turned(TURN.replace(old, new), order) for order in ORDERS)


def test_a_part_of_memory_is_a_place_in_it() -> None:
    stream = EmulatedCuda().emulated
    whole, out = stream.copy_in(np.arange(2048, dtype=np.float32)), np.empty(3, np.float32)
    stream.copy_out(stream.part(whole, 4096, 12), out)
    assert out.tolist() == [1024, 1025, 1026]
