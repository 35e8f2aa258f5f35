"""Layers on an OpenCL device, where pyopencl and a driver are installed."""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest

import polysci
from polysci.errors import BuildError, PolysciError, SpecError, UnsupportedError
from polysci.export.freestanding import write_freestanding
from polysci.export.network_project import write_package
from polysci.measure.check import check
from polysci.network.compiled import CompileOptions, compile_network, rebuild_network
from polysci.network.debug import compare_tensors, first_wrong, tensors
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.runtime.backends import backend_named
from polysci.runtime.backends.opencl import OpenCL, devices, queue_of
from polysci.space.directives.copy import Copy
from polysci.space.schedule import parse
from polysci.target.isas import DEVICE_ISAS
from polysci.target.target import Memory, Target
from tests.lower.mapped.test_parts import CASES as PARTS
from tests.lower.mapped.test_winograd import CASES as WINOGRAD
from tests.network.test_whole_models import MODELS, arrays_for
from tests.support.device_cases import (
    LAYERS,
    WHOLE,
    WORDS,
    check_device_layer,
    integers,
    long_steps,
    recurrent,
    two_layers,
)
from tests.support.onnxmodels import reals

pytest.importorskip("pyopencl", reason="OpenCL: pyopencl is not installed")
if not devices():
    pytest.skip("OpenCL: there is no device", allow_module_level=True)


@pytest.fixture(scope="module")
def backend() -> OpenCL:
    return OpenCL()


@pytest.fixture(scope="module")
def target(backend: OpenCL) -> Iterator[Target]:
    (device,) = backend.targets()
    yield device


@pytest.fixture(scope="module")
def grouped(target: Target) -> Target:
    """The device as one that is no CPU: its schedules have tiles for groups of work-items."""
    memories = (*target.memories, Memory("local", 48 << 10, kind="local"))
    return replace(target, isa=DEVICE_ISAS["opencl4"], memories=memories)


@pytest.fixture(scope="module")
def mobile(target: Target) -> Target:
    """The same as one whose groups have no memory of their own."""
    return replace(target, isa=DEVICE_ISAS["opencl4"])


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(
    ("text", "threads"),
    [pytest.param(text, threads, marks=[pytest.mark.exhaustive] * (at + threads > 2))
     for at, text in enumerate(LAYERS) for threads in (1, 3)],
)  # fmt: skip
def test_layers_are_exact(text: str, layout: str, threads: int, target: Target) -> None:
    problem = parse_problem(text, layout)
    primitive = polysci.compile(problem, "estimate", threads, target=target)
    assert primitive.backend == "opencl:0" and "opencl" in str(primitive.schedule)
    x, w = integers(problem.x_shape, 1), integers(problem.w_shape, 2)
    bias = integers((problem.y_shape[problem.bias_axis],), 3)
    words = {"bias": bias, "residual": integers(problem.y_shape, 4), "clamp": (-50.0, 60.0)}
    packed = primitive.pack_weights(w)
    assert np.array_equal(primitive(x, packed, **words), problem.reference(x, w, **words))
    out = np.full(problem.y_shape, np.nan, np.float32)
    assert primitive(x, packed, out=out) is out
    assert np.array_equal(out, problem.reference(x, w))


PRODUCTS = (*LAYERS, "mb2ic40ih8oc72kh1", "conv1d mb2ic5iw11oc6kw3pw1",
            "g10mb2ic10ih9oc10oh5kh3ph1sh2", "g3mb1ic6ih5oc12oh5kh3ph1",
            "bwd_d mb2ic20ih9oc24oh5kh3ph1sh2", "bwd_d g6mb2ic6ih7oc6oh4kh3ph1sh2",
            "bwd_w mb2ic6ih7oc8oh4kh3ph1sh2")  # fmt: skip


@pytest.mark.parametrize("where", ["grouped", "mobile"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(
    "text", [pytest.param(text, marks=[pytest.mark.exhaustive] * (at > 2))
             for at, text in enumerate(PRODUCTS)],
)  # fmt: skip
def test_groups_are_exact(
    text: str, layout: str, where: str, request: pytest.FixtureRequest
) -> None:
    problem = parse_problem(text, layout)
    primitive = polysci.compile(problem, "estimate", target=request.getfixturevalue(where))
    assert primitive.schedule.mapped
    assert where == "grouped" or not primitive.schedule.has(Copy)
    x, w = integers(problem.x_shape, 1), integers(problem.w_shape, 2)
    bias = integers((problem.y_shape[problem.bias_axis],), 3)
    words = {"bias": bias, "residual": integers(problem.y_shape, 4), "clamp": (-50.0, 60.0)}
    packed = w if model_of(problem)[1].packs_b else primitive.pack_weights(w)
    assert np.array_equal(primitive(x, packed, **words), problem.reference(x, w, **words))
    assert np.array_equal(primitive(x, packed), problem.reference(x, w))


@pytest.mark.exhaustive
def test_groups_of_two_items_are_compiled(backend: OpenCL) -> None:
    """PoCL copies such items side by side; a step's first loop has two turns and a branch."""
    words = "i:2@by j:8@bx k:2 copy(A,B)+4 i:2@ty j:4@tx > fma_opencl4_f32_2x4"
    problem = parse_problem("mm:2:2x5x6 to b=constant alpha=-2 act=relu")
    verdicts = check(problem, [parse(words)], 1, backend=backend)
    assert [it.fault for it in verdicts if not it.passed] == []


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.exhaustive] * (at != 1))
             for at, case in enumerate((*WINOGRAD, *PARTS))],
)  # fmt: skip
def test_parts_are_exact(case: tuple[str, str, str], target: Target) -> None:
    """Several launches: transforms and products, or a product for each residue class."""
    text, layout, words = case
    check_device_layer(parse_problem(text, layout), words, target.backend)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.exhaustive] * (at > 0))
             for at, case in enumerate((*WHOLE, *WORDS))],
)  # fmt: skip
def test_layers_of_8_bits_are_exact(case: tuple[str, str, str, str], target: Target) -> None:
    text, layout, dtype, words = case
    problem = parse_problem(text, layout, dtype)
    check_device_layer(problem, words.format("opencl"), target.backend)


def test_groups_that_are_refused_are_named(target: Target) -> None:
    with pytest.raises(UnsupportedError, match="algorithm winograd: no tiles of groups for opencl"):
        polysci.compile(WINOGRAD[1][0], "estimate", target=target, algorithm="winograd")


@pytest.mark.parametrize("activation", ["gelu", pytest.param("mish", marks=pytest.mark.exhaustive)])
def test_functions_end_sums(activation: str, target: Target) -> None:
    problem = polysci.Conv2d(N=1, C=4, H=5, W=5, K=24, R=1, S=1, activation=activation)
    device, host = (polysci.compile(problem, "estimate", target=it) for it in (target, None))
    x, w = reals(*problem.x_shape, seed=1), reals(*problem.w_shape, seed=2)
    results = [it(x, it.pack_weights(w)) for it in (device, host)]
    assert np.allclose(*results, rtol=1e-6, atol=1e-6)


def test_pickles_come_back_to_the_device(target: Target) -> None:
    problem = polysci.Conv2d(N=1, C=4, H=5, W=5, K=8, R=1, S=1)
    primitive = polysci.compile(problem, "estimate", target=target)
    x, w = integers(problem.x_shape, 1), integers(problem.w_shape, 2)
    again, packed = pickle.loads(pickle.dumps((primitive, primitive.pack_weights(w))))
    assert again.backend == packed.backend == "opencl:0"
    assert np.array_equal(again(x, packed), problem.reference(x, w))


def test_kernels_are_timed_by_the_device(backend: OpenCL, target: Target) -> None:
    problem = polysci.Conv2d(N=1, C=4, H=5, W=5, K=8, R=1, S=1)
    source = polysci.compile(problem, "estimate", target=target).source
    path = backend.build(source.file, symbols=source.symbols)
    assert backend.build(source.file, symbols=source.symbols) == path
    library = backend.load(path, source.declarations)
    run, queue = library.function(source.symbol), queue_of(0)
    places = [queue.copy_in(np.zeros(size, np.float32)) for size in (100, 32, 200)]
    assert backend.time(run, [(*places, None, None, None, None)] * 2) > 0


def test_faults_have_names(backend: OpenCL, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"no device opencl:97; there are: opencl:0 "):
        backend_named("opencl:97").targets()
    with pytest.raises(BuildError, match="the driver refuses the code"):
        backend.build("// launches: []\n__kernel void f( { }\n")
    with pytest.raises(BuildError, match="no function g"):
        backend.build("// launches: []\n__kernel void f() { }\n", symbols=("g",))
    with pytest.raises(BuildError, match="No such file"):
        backend.load(tmp_path / "nothing.cl", "")
    with pytest.raises(UnsupportedError, match="no assembly"):
        backend.assemble([""])
    with pytest.raises(MemoryError, match="which has"):
        queue_of(0).buffer(1 << 60)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "make", [two_layers, recurrent, pytest.param(long_steps, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("where", ["target", "grouped"])
def test_networks_compute_on_the_device_what_they_do_here(
    make: Callable[[], onnx.ModelProto], threads: int, where: str, request: pytest.FixtureRequest
) -> None:
    device, host = (
        compile_network(make(), CompileOptions("estimate", threads, target=target))
        for target in (request.getfixturevalue(where), None)
    )
    for seed in (3, 4):
        inputs = {port.name: reals(*port.shape, seed=seed) for port in host.inputs}
        results, expected = device(inputs), host(inputs)
        assert results.keys() == expected.keys()
        for name, array in expected.items():
            assert np.allclose(results[name], array, rtol=1e-5, atol=1e-6)
    assert device.runner.packed_weights().nbytes == device.runner.model_bytes


def test_tensors_are_read_where_they_share_no_memory(target: Target) -> None:
    network = compile_network(two_layers(), CompileOptions("estimate", target=target))
    inputs = {"x": reals(1, 3, 6, 6, seed=3)}
    with pytest.raises(SpecError, match="its tensors share memory"):
        tensors(network, inputs)
    apart = rebuild_network(network, apart=True)
    assert {"r1", "s", "g", "y"} <= tensors(apart, inputs).keys()
    assert first_wrong(compare_tensors(apart, inputs, strict=True)) is None


DEFAULT_MODELS = {("text recogniser", "grouped"), ("tagger", "target")}


@pytest.mark.parametrize(
    ("name", "where"),
    [pytest.param(*case, marks=[pytest.mark.exhaustive] * (case not in DEFAULT_MODELS))
     for case in product(MODELS, ("target", "grouped"))],
)  # fmt: skip
def test_whole_models_compute_on_the_device_what_they_do_here(
    name: str, where: str, request: pytest.FixtureRequest
) -> None:
    make, _ = MODELS[name]
    model, target = make(), request.getfixturevalue(where)
    inputs = arrays_for(model)
    device, host = (
        compile_network(model, CompileOptions("estimate", target=it))(inputs)
        for it in (target, None)
    )
    assert device.keys() == host.keys()
    for title, array in host.items():
        assert np.allclose(device[title], array, rtol=1e-5, atol=1e-6 * abs(array).max())


def test_stages_are_timed_by_marks(target: Target) -> None:
    network = compile_network(two_layers(), CompileOptions("estimate", target=target))
    report = network.report()
    assert len(report.rows) > 1 and all(row.seconds > 0 for row in report.rows)


def test_a_package_holds_no_code_of_a_device(target: Target, tmp_path: Path) -> None:
    network = compile_network(two_layers(), CompileOptions("estimate", target=target))
    for write in (write_package, write_freestanding):
        with pytest.raises(UnsupportedError, match="is code of opencl"):
            write(network, tmp_path / "out")
    assert not any(tmp_path.iterdir())


# A kernel whose work-items share memory: groups, elements of that memory.
SHARED = """\
// launches: [["f",["x"],[["f_k0",1,["x"],{}]],0]]
__kernel void f_k0(__global float *x)
{{
    __local float own[{}];
    own[get_local_id(0)] = 1;
    barrier(CLK_LOCAL_MEM_FENCE);
    x[0] = own[3 - get_local_id(0)];
}}
"""


@pytest.mark.parametrize(
    ("items", "elements", "said"),
    [(1 << 20, 4, r"^kernel f_k0, groups of 1048576 work-items: .*INVALID_WORK_GROUP_SIZE$"),
     (4, 1 << 26, r"^kernel f_k0: 268435456 bytes of local memory; .+ has \d+ for a group$")],
)  # fmt: skip
def test_groups_over_a_limit_cost_one_line(items: int, elements: int, said: str) -> None:
    """Drivers may end the process where local memory is short, so that it is asked ahead."""
    backend, x = OpenCL(), np.zeros(4, np.float32)
    with pytest.raises(PolysciError, match=said) as raised:
        library = backend.load(backend.build(SHARED.format(items, elements), symbols=["f"]), "")
        library.function("f")(library.copy_in("float32")(x))
    assert len(str(raised.value).splitlines()) == 1


def test_code_that_a_device_refuses_costs_one_line() -> None:
    """As code of f16 where there is none: the compiler's errors, and no more of its log."""
    text = "// launches: []\n__kernel void f(__global float *x) { x[0] = no_such_thing; }\n"
    with pytest.raises(BuildError, match=r"refuses the code: .*error: .*no_such_thing"):
        OpenCL().build(text)
    with pytest.raises(BuildError) as raised:
        OpenCL().build(text)
    assert len(str(raised.value).splitlines()) == 1
