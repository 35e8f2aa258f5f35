"""Calls of CUDA's driver, each of them checked by one whose device is this CPU."""

import gc
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import polysci
from polysci.errors import PolysciError, UnsupportedError
from polysci.lower.algorithm import SYMBOL
from polysci.measure.bench import Bench, CandidateError
from polysci.network.compiled import CompileOptions, Network, compile_network, rebuild_network
from polysci.network.debug import compare_tensors, first_wrong
from polysci.ops import parse_problem
from polysci.runtime.backends import backend_named
from polysci.runtime.backends.cuda import Cuda, stream_of
from polysci.runtime.primitive import Primitive, load_primitive
from polysci.runtime.source import emit
from polysci.space.schedule import parse
from polysci.target.target import Target
from tests.support.cuda_driver import alive, calls, environment, with_driver
from tests.support.device_cases import integers, two_layers
from tests.support.onnxmodels import reals

pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA: cuda-bindings is not installed")
if shutil.which("g++") is None:
    pytest.skip("the emulation of CUDA: g++ is not installed", allow_module_level=True)

PROBLEM = parse_problem("mb1ic6ih5oc9oh5kh3ph1")
SCHEDULE = parse("p k:4 q:4 > brgemm_cuda4_f32_4x4")
HANG = "for (volatile int turn = 1; turn;) ;"


def device() -> Target:
    (target,) = backend_named("cuda:0").targets()
    return target


def layer() -> Primitive:
    return load_primitive(PROBLEM, emit(PROBLEM, SCHEDULE), 1, backend="cuda:0")


def network() -> Network:
    return compile_network(two_layers(), CompileOptions("estimate", 2, target=device()))


def faulty(statement: str, kernel: str = f"{SYMBOL}_k0") -> Path:
    """The file of the layer with a statement at the end of a kernel."""
    head, name, tail = emit(PROBLEM, SCHEDULE).file.partition(f"void {kernel}(")
    body, end, rest = tail.partition("\n}\n")
    assert name and end
    return Cuda("0").build(f"{head}{name}{body}\n    {statement}{end}{rest}")


def fault_of(bench: Bench, path: Path) -> str:
    """What a check says of a candidate, in one line."""
    with pytest.raises(CandidateError) as raised:
        bench.check(path, SYMBOL, SCHEDULE)
    (line,) = str(raised.value).splitlines()
    return line


@with_driver
def test_the_device_is_described() -> None:
    target = device()
    assert target.model_name == "a CPU in place of a GPU (sm_80)" and target.cores == 2
    assert target.memory("local").size == 48 * 1024 and target.memory("memory").size == 1 << 32
    with pytest.raises(UnsupportedError, match=r"^no device cuda:1; there are 1$"):
        backend_named("cuda:1").targets()


@with_driver
def test_layers_are_exact_and_leave_nothing() -> None:
    primitive = layer()
    x, w = integers(PROBLEM.x_shape, 1), integers(PROBLEM.w_shape, 2)
    words = {"bias": integers((9,), 3), "residual": integers(PROBLEM.y_shape, 4)}
    packed = primitive.pack_weights(w)
    expected = PROBLEM.reference(x, w, **words)
    assert np.array_equal(primitive(x, packed, **words), expected)
    before = alive()
    for _ in range(3):
        assert np.array_equal(primitive(x, packed, **words), expected)
    assert alive() == before


@pytest.mark.exhaustive
@with_driver
def test_searches_measure_on_the_device() -> None:
    with Bench(PROBLEM, timeout=60, backend=Cuda("0")) as bench:
        path = Cuda("0").build(emit(PROBLEM, SCHEDULE).file)
        bench.check(path, SYMBOL, SCHEDULE)
        slow = faulty("for (volatile int turn = 0; turn < 1000000; ++turn) ;")
        quick, other = bench.time([(path, SYMBOL), (slow, SYMBOL)], samples=1, min_sample_s=1e-4)
        assert 0 < 3 * quick.median < other.median < 10


@with_driver
def test_runs_of_a_network_are_one_graph() -> None:
    host, its = compile_network(two_layers(), "estimate"), network()
    runs = {name: calls(name) for name in ("cuGraphLaunch", "cuGraphInstantiate")}
    for seed in range(3):
        x = reals(1, 3, 6, 6, seed=seed)
        assert np.allclose(its(x), host(x), rtol=1e-5, atol=1e-6)
    assert calls("cuGraphLaunch") == runs["cuGraphLaunch"] + 3
    assert calls("cuGraphInstantiate") == runs["cuGraphInstantiate"] + 1


@pytest.mark.exhaustive
@with_driver
def test_a_graph_is_kept_by_its_addresses() -> None:
    """Each run in other memory gets its own arguments; runs in the same memory launch alone."""
    its = network()
    runner, stream = its.runner, stream_of(0)
    context = runner.context()
    arrays = [reals(1, 3, 6, 6, seed=seed) for seed in range(2)]
    expected = [its(array) for array in arrays]
    places = [stream.copy_in(array) for array in arrays]
    results = [stream.buffer(32) for _ in arrays]
    launches, captures = calls("cuLaunchKernel"), calls("cuStreamBeginCapture")
    for at in (0, 1, 1, 1):
        runner.network.run(context, places[at], results[at])
        y = np.empty((1, 8), np.float32)
        stream.copy_out(results[at], y)
        assert np.array_equal(y, expected[at])
    assert calls("cuStreamBeginCapture") == captures + 2
    kernels = calls("cuLaunchKernel") - launches
    assert kernels % 2 == 0 and kernels > 0
    before = alive()
    context.recordings.clear()
    gc.collect()
    assert alive()[0] == before[0] - 1


@pytest.mark.exhaustive
@with_driver
def test_stages_are_timed_and_tensors_read() -> None:
    its = network()
    assert sum(row.seconds or 0 for row in its.report().rows) > 0
    apart = rebuild_network(its, apart=True)
    steps = compare_tensors(apart, {"x": reals(1, 3, 6, 6, seed=3)}, strict=True)
    assert first_wrong(steps) is None
    assert its.runner.packed_weights().nbytes == its.runner.model_bytes


@with_driver
def test_short_memory_is_told_with_what_was_asked() -> None:
    with pytest.raises(MemoryError) as raised:
        stream_of(0).buffer(1 << 40)
    assert str(raised.value) == (
        f"{1 << 40} bytes on a CPU in place of a GPU (sm_80), which has {1 << 32} in all: "
        "CUDA: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"
    )


@with_driver
def test_a_group_that_is_too_large_is_told() -> None:
    library = layer().library
    stream, step = stream_of(0), library.functions[SYMBOL].steps[0]
    large = type(step)(step.kernel, step.items, step.arguments, 2048)
    with pytest.raises(PolysciError) as raised:
        stream.run(library.kernels, [(large, [None] * len(step.arguments))])
    assert str(raised.value) == (
        f"kernel {SYMBOL}_k0, groups of 2048 work-items: CUDA: cuLaunchKernel: "
        "CUDA_ERROR_INVALID_VALUE"
    )


@pytest.mark.exhaustive
@with_driver
def test_a_kernel_that_hangs_costs_its_process_alone() -> None:
    sound = Cuda("0").build(emit(PROBLEM, SCHEDULE).file)
    with Bench(PROBLEM, timeout=60, backend=Cuda("0")) as bench:
        bench.check(sound, SYMBOL, SCHEDULE)
        bench.timeout, pid = 2.0, bench.pid
        assert re.search("ran longer than 2 s and was killed$", fault_of(bench, faulty(HANG)))
        assert not Path(f"/proc/{pid}").exists()
        bench.timeout = 60
        bench.check(sound, SYMBOL, SCHEDULE)


@with_driver
def test_a_lost_device_costs_one_line() -> None:
    """A kernel fails in the worker process; another one works on."""
    path = Cuda("0").build(emit(PROBLEM, SCHEDULE).file)
    fault = environment({"CUDA_FAULT": "kernel 1 719"})
    with fault, Bench(PROBLEM, timeout=60, backend=Cuda("0")) as bench:
        said = fault_of(bench, path)
        assert re.search(
            "CUDA: cuStreamSynchronize: CUDA_ERROR_LAUNCH_FAILED; this process has lost the device",
            said,
        ), said
    with Bench(PROBLEM, timeout=60, backend=Cuda("0")) as bench:
        bench.check(path, SYMBOL, SCHEDULE)


@pytest.mark.exhaustive
@with_driver
def test_writing_outside_of_memory_is_found() -> None:
    with Bench(PROBLEM, timeout=60, backend=Cuda("0")) as bench:
        said = fault_of(bench, faulty("y[225] = 0;"))
        assert "wrote outside y: as far as 4 bytes after the end" in said


@pytest.mark.exhaustive
@with_driver
def test_a_search_ends_with_a_record() -> None:
    result = polysci.optimize(PROBLEM, "measure", target=device(), time_limit=1)
    assert result.measurement and result.backend == "cuda:0"
