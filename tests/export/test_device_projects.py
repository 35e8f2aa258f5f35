"""Layers and networks of an OpenCL device as C projects, which build without OpenCL's headers."""

import ctypes
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polysci
from polysci.errors import SpecError, UnsupportedError
from polysci.export import ExportedLayer, export_c, export_python
from polysci.export.candidates import with_isas
from polysci.export.device_host import network_files
from polysci.export.network_project import check_project, write_project
from polysci.loop_ir.kernels import Launch, LaunchedFunction, LaunchLoop, Mark
from polysci.network.compiled import CompileOptions, Network, compile_network
from polysci.network.sizes import only_size
from polysci.ops import parse_problem
from polysci.printers.launch_code import launching, string_lines
from polysci.runtime.backends.opencl import OpenCL, devices
from polysci.target.isas import DEVICE_ISAS
from polysci.target.target import Target
from tests.program.passes.test_in_place import STEP
from tests.support.command import done
from tests.support.device_cases import quantised_convolutions
from tests.support.exported import (
    WARNINGS,
    all_passed,
    cmake_built,
    cmake_installed,
    run,
    run_usage,
)
from tests.support.networks import read
from tests.support.onnxmodels import reals

pytest.importorskip("pyopencl", reason="OpenCL: pyopencl is not installed")
if not devices():
    pytest.skip("OpenCL: there is no device", allow_module_level=True)

from tests.runtime.test_opencl import long_steps, two_layers  # where it does not skip

COMPILERS = [cc for cc in ("gcc", "clang") if shutil.which(cc)]
STRICT = ("-std=c11", *WARNINGS)
SKIPPED = 77, "skipped: there is no OpenCL device\n"
HERE = re.compile(r"/(home|work|tmp|usr|root)/")


@pytest.fixture(scope="module")
def target() -> Target:
    (device,) = OpenCL().targets()
    return device


@pytest.fixture(scope="module")
def layers(target: Target) -> list[ExportedLayer]:
    """A layer in NHWC, the same again, one with an activation, one in NCHW with a workspace."""
    problems = [
        parse_problem("mb1ic6ih9oc20oh9kh3ph1", "nhwc"),
        parse_problem("mb1ic6ih9oc20oh9kh3ph1", "nhwc"),
        polysci.Conv2d(N=1, C=4, H=5, W=5, K=24, R=1, S=1, activation="gelu"),
        parse_problem("g8mb1ic8ih10oc8oh8kh3", "nchw"),
    ]
    results = [polysci.optimize(it, "estimate", 2, target=target) for it in problems]
    return [ExportedLayer(it.problem, it.schedule, it.threads) for it in results]


@pytest.fixture(scope="module")
def network(target: Target) -> Network:
    options = CompileOptions("estimate", 2, target=target, name="net")
    return compile_network(two_layers(), options)


@pytest.fixture(scope="module")
def project(layers: list[ExportedLayer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("device") / "net"
    export_c(layers, out)
    return out


def selftest(folder: Path, *flags: str, cc: str = COMPILERS[0]) -> Path:
    """Build the self-test without one warning, apart from the folder; return the program."""
    out = folder.with_name(f"selftest_{cc}{len(flags)}")
    sources = [folder / "net.c", folder / "selftest.c"]
    done = run(cc, *STRICT, *flags, *sources, "-o", out, "-lm", "-ldl", "-pthread", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "")
    return out


def run_with(program: Path, **variables: str) -> tuple[int, str]:
    """Run a program with these variables; return its status and what it prints."""
    done = run(program, cwd=program.parent, **variables)
    return done.returncode, done.stdout


@pytest.mark.parametrize("cc", COMPILERS)
def test_layers_pass_their_own_test(project: Path, cc: str) -> None:
    done = run(selftest(project, cc=cc), cwd=project)
    assert (done.returncode, done.stdout) == (0, "8 passed, 0 failed\n")


def test_tiles_of_groups_pass_it_too(target: Target, tmp_path: Path) -> None:
    grouped = replace(target, isa=DEVICE_ISAS["opencl4"])
    problem = parse_problem("mb1ic16ih9oc20oh9kh3ph1", "nhwc")
    result = polysci.optimize(problem, "estimate", target=grouped)
    assert "@bx" in str(result.schedule)
    export_c([ExportedLayer(problem, result.schedule)], tmp_path / "net")
    done = run(selftest(tmp_path / "net"), cwd=tmp_path / "net")
    assert (done.returncode, done.stdout) == (0, "2 passed, 0 failed\n")


def test_without_a_device_the_test_says_so(project: Path, tmp_path: Path) -> None:
    assert run_with(selftest(project), OCL_ICD_VENDORS=str(tmp_path)) == SKIPPED
    assert run_with(selftest(project, '-DNET_LOADER="libnowhere.so.1"')) == SKIPPED


def test_a_fault_in_the_kernels_is_found(project: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(project, tmp_path / "net"))
    text = (copy / "net.cl").read_text()
    assert string_lines(text) == (copy / "net_kernels.h").read_text()
    wrong = text.replace(" 0x7fbfdfeu, A", " 0x7fbfdffu, A").replace(
        ".c_inner = 20", ".c_inner = 19"
    )
    assert wrong != text
    (copy / "net.cl").write_text(wrong)
    done = run("make", "CFLAGS=-O1 -Werror", "check", cwd=copy)
    assert done.returncode and "FAILED layer_1 (bare): y[" in done.stdout
    assert string_lines(wrong) == (copy / "net_kernels.h").read_text()
    assert run("./selftest", cwd=copy).returncode == 1
    name = re.search(r"__kernel .*?void (\w+)\(.*\n{\n", text)
    assert name
    large = "    volatile __local float own[1 << 26];\n    own[get_local_id(0)] = 1;\n"
    (copy / "net.cl").write_text(text.replace(name[0], name[0] + large, 1))
    done = run("make", "CFLAGS=-O1 -Werror", "check", cwd=copy)
    said = f"FAILED: {name[1]}: 268435456 bytes of local memory; the device has "
    assert done.returncode and said in done.stdout
    (copy / "net.cl").write_text(f"{text}__kernel void f( {{ }}\n")
    done = run("make", "CFLAGS=-O1 -Werror", "check", cwd=copy)
    assert done.returncode and "FAILED: the driver refuses the code: " in done.stdout


def test_the_same_layers_give_the_same_bytes(
    layers: list[ExportedLayer], project: Path, tmp_path: Path
) -> None:
    names = {"net.h", "net.c", "net.cl", "net_kernels.h", "selftest.c"}
    paths = export_c(layers, tmp_path / "again", name="net")
    assert {path.name for path in paths} == names | {"Makefile", "CMakeLists.txt", "README.md"}
    for path in paths:
        text = path.read_text()
        assert text == (project / path.name).read_text() and "Generated by polysci" in text[:300]
        assert not HERE.search(text) and "launches: [" not in text
    export_c(layers, project)  # what make leaves is no obstacle


@pytest.fixture(scope="module")
def whole(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of a network, built and found right; with its weights inside."""
    out = tmp_path_factory.mktemp("networks") / "net"
    write_project(network, out, embed=True)
    done = run("make", "CC=gcc", "CFLAGS=-O1 -Werror", "all", "check", "example", cwd=out)
    assert done.returncode == 0 and all_passed(done.stdout, 17), done.stdout
    return out


@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_cmake_packages(project: Path, network: Network, tmp_path: Path) -> None:
    write_project(network, tmp_path / "whole")
    for source, own in ((project, set()), (tmp_path / "whole", {"share/net/net.weights"})):
        build = tmp_path / f"build_{source.name}"
        cmake_built(source, build, "-DCMAKE_BUILD_TYPE=Debug")
        tested = run("ctest", "--test-dir", build, cwd=tmp_path)
        assert tested.returncode == 0, tested.stdout
        files = cmake_installed(build, tmp_path / f"own_{source.name}")
        assert {"include/net.h", "lib/libnet.a", "lib/cmake/net/netConfig.cmake", *own} < files


@pytest.mark.parametrize("cc", COMPILERS)
def test_networks_compile_without_warnings(whole: Path, tmp_path: Path, cc: str) -> None:
    objects = [part for name in ("net", "selftest", "main")
               for part in ("-c", whole / f"{name}.c")]  # fmt: skip
    done = run(cc, *STRICT, f"-I{whole}", *objects, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_network_without_a_device(whole: Path, tmp_path: Path) -> None:
    assert run("./example", cwd=whole).stdout.count("y0[") == 5
    assert run_usage(whole, "net", tmp_path, "-ldl") == ""
    assert run_with(whole / "selftest", OCL_ICD_VENDORS=str(tmp_path)) == SKIPPED
    done = run_with(whole / "example", OCL_ICD_VENDORS=str(tmp_path))
    assert done == (1, "no OpenCL device 0: there are 0\n")


def test_the_same_network_gives_the_same_bytes(
    network: Network, whole: Path, tmp_path: Path
) -> None:
    for path in write_project(network, tmp_path / "net", embed=True):
        assert path.read_bytes() == (whole / path.name).read_bytes()
        if path.suffix not in (".weights", ".data"):
            text = path.read_text()
            assert not HERE.search(text) and '"packed_by"' not in text
    with pytest.raises(SpecError, match="net: a device packs its weights itself"):
        write_project(network, tmp_path / "packed", packed=True)
    check_project(whole, "net")  # what make leaves is no obstacle


@pytest.mark.exhaustive
def test_entries_for_several_sizes_pass_their_own_test(tmp_path: Path) -> None:
    """Each is checked, by itself and in two threads; so is what has no entry."""
    out, words = tmp_path / "net", ("--level", "estimate", "--name", "net", "--embed")
    done("compile", "mlp:1x24x40x16 act=relu", "--dim", "rows=3,8", "--device", "opencl:0", *words,
         "-o", str(out))  # fmt: skip
    assert "NET_NO_SIZE" in (out / "net.h").read_text()
    for cc in COMPILERS:
        checked = run(selftest(out, *[f"-I{out}", out / "net_weights.c"], cc=cc), cwd=out)
        assert checked.returncode == 0 and all_passed(checked.stdout, 20), checked.stdout
    built = run("make", "CC=gcc", "CFLAGS=-O1 -Werror", "all", "example", cwd=out)
    assert built.returncode == 0 and run("./example", cwd=out).stdout.count("y0[") == 5
    assert run_usage(out, "net", tmp_path, "-ldl") == ""


@pytest.mark.exhaustive
def test_a_wrong_constant_is_found(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "net"))
    text = (copy / "net.cl").read_text()
    wrong = text.replace(".c_outer = ", ".c_outer = 1 + ")
    assert wrong != text
    (copy / "net.cl").write_text(wrong)
    assert run("make", "CFLAGS=-O1 -Werror", "selftest", cwd=copy).returncode == 0
    done = run("./selftest", cwd=copy)
    assert done.returncode == 1 and "FAILED results differ from the reference" in done.stdout


@pytest.mark.exhaustive
def test_loops_of_launches(target: Target, tmp_path: Path) -> None:
    options = CompileOptions("estimate", 2, target=target, name="net", flush_denormals=False)
    write_project(compile_network(long_steps(), options), tmp_path / "net")
    text = (tmp_path / "net" / "net.c").read_text()
    assert "    for (int64_t step = 0; step < 4; step += 1) {\n        launch(device, " in text
    assert "denorms" not in text
    done = run("make", "CFLAGS=-O1 -Werror", "check", cwd=tmp_path / "net")
    assert done.returncode == 0 and all_passed(done.stdout, 12), done.stdout


def test_marks_and_empty_launches_are_left_out() -> None:
    inner = Launch("f_k0", 3, ("x", "i"))
    steps = (Mark(0), LaunchLoop("i", range(2, 8, 3), (inner, Mark(1))), Launch("f_k1", 0, ("y",)))
    function = LaunchedFunction("f", ("x", "y", "z"), steps)
    assert (
        launching(function, "net_device")
        == """\
static void launch_f(net_device *device, buffer x, buffer y, buffer z)
{
    (void)z;
    for (int64_t i = 2; i < 8; i += 3) {
        launch(device, f_k0, 3, 1, 2, (const argument[]){OF(x), OF(i)});
    }
}
"""
    )


USER = """
#include "net.h"
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    net_device *device = 0;
    net_memory *memory = 0;
    printf("%d: %s\\n", net_open(97, &device), net_why());
    if (device || net_open(0, &device))
        return 1;
    printf("%d: %s\\n", net_reserve(device, (size_t)1 << 60, &memory), net_why());
    printf("%d", memory != 0);
    net_release(device, memory);
    net_close(device);
    return 0;
}
"""


def test_errors_have_codes_and_texts(project: Path, tmp_path: Path) -> None:
    (tmp_path / "user.c").write_text(USER)
    sources = [tmp_path / "user.c", project / "net.c"]
    done = run(COMPILERS[0], *STRICT, f"-I{project}", *sources, "-o", "user", "-ldl", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    done = run(tmp_path / "user", cwd=tmp_path)
    missing, memory, null = done.stdout.splitlines()
    assert missing == f"1: no OpenCL device 97: there are {len(devices())}"
    assert re.match(rf"3: {1 << 60} bytes of memory on .+, which has \d+ in all", memory)
    assert (done.returncode, null) == (0, "0")


def test_what_is_no_project_of_a_device(layers: list[ExportedLayer], tmp_path: Path) -> None:
    host = polysci.optimize(layers[0].problem, "estimate")
    with pytest.raises(UnsupportedError, match=r"one device a project, got .*, brgemm_"):
        export_c([*layers, host], tmp_path / "both")
    with pytest.raises(UnsupportedError, match="is of a device; C is exported"):
        export_python(layers, tmp_path / "python")
    with pytest.raises(UnsupportedError, match="isas: mb1ic6ih9oc20oh9kh3ph1 has a schedule of"):
        with_isas(layers, ["portable"], "estimate")
    assert not any(tmp_path.iterdir())


def test_a_queue_and_memory_of_the_caller(
    layers: list[ExportedLayer], project: Path, tmp_path: Path
) -> None:
    cl, problem = pytest.importorskip("pyopencl"), layers[0].problem
    done = run(COMPILERS[0], "-std=c11", "-shared", "-fPIC", project / "net.c", "-o", "net.so",
               "-ldl", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0
    library = ctypes.CDLL(str(tmp_path / "net.so"))
    library.net_why.restype = ctypes.c_char_p
    context, opened = cl.Context([devices()[0]]), ctypes.c_void_p()

    def open_queue(queue: Any) -> int:
        at = ctypes.c_void_p(queue.int_ptr)
        return int(library.net_open_queue(at, ctypes.byref(opened)))

    out_of_order = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    assert open_queue(cl.CommandQueue(context, properties=out_of_order)) == 4
    assert library.net_why() == b"the queue of the caller runs commands out of order"
    queue = cl.CommandQueue(context)
    assert open_queue(queue) == 0 and opened.value
    x, w = (np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)
            for seed, shape in enumerate((problem.x_shape, problem.w_shape)))  # fmt: skip
    y = np.empty(problem.y_shape, np.float32)
    flags = cl.mem_flags.READ_WRITE
    own_x = cl.Buffer(context, flags | cl.mem_flags.COPY_HOST_PTR, hostbuf=x)
    packed = cl.Buffer(context, flags, library.net_layer_1_packed_size())
    own_y = cl.Buffer(context, flags, y.nbytes)
    places = [ctypes.c_void_p(it.int_ptr) for it in (own_x, packed, own_y)]
    weights = w.ctypes.data_as(ctypes.c_void_p)
    assert library.net_layer_1_pack_weights(opened, weights, places[1]) == 0
    assert library.net_layer_1_launch(opened, *places, None, None, None, None) == 0
    library.net_close(opened)
    cl.enqueue_copy(queue, y, own_y)
    assert np.array_equal(y, problem.reference(x, w))


@pytest.mark.exhaustive
def test_outputs_that_a_run_also_reads(target: Target, tmp_path: Path) -> None:
    graph = replace(read(STEP), in_place={"m1": "m", "w1": "w"})
    network = compile_network(graph, CompileOptions("estimate", target=target, name="net"))
    (program,) = only_size(network).programs
    for path, text in network_files(network.code, [program.entry("net")], flush=True).items():
        (tmp_path / path).write_text(text)
    weights = b"".join(network.code.weights_file.pieces())
    done = run(COMPILERS[0], *STRICT, "-shared", "-fPIC", "net.c", "-o", "net.so", "-ldl",
               cwd=tmp_path)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    library = ctypes.CDLL(str(tmp_path / "net.so"))
    library.net_load_memory.restype = library.net_new.restype = ctypes.c_void_p
    device = ctypes.c_void_p()
    assert library.net_open(0, ctypes.byref(device)) == 0
    size = ctypes.c_size_t(len(weights))
    model = ctypes.c_void_p(library.net_load_memory(device, weights, size, None))
    context = ctypes.c_void_p(library.net_new(model))
    ports = (*network.inputs, *network.outputs)
    arrays = [reals(*port.shape, seed=at) for at, port in enumerate(ports)]
    expected = [array.copy() for array in arrays]
    network.runner.into(expected[:2], expected[2:])
    places = [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
    assert library.net_run(context, *places) == 0
    assert all(map(np.array_equal, arrays, expected))
    library.net_free(context)
    library.net_unload(model)
    library.net_close(device)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ["opencl4", ""])
def test_layers_of_several_types_share_a_text(target: Target, tmp_path: Path, isa: str) -> None:
    """Zero points go into packed weights, scales lie behind the other numbers of results."""
    own = replace(target, isa=DEVICE_ISAS[isa]) if isa else target
    cases = (("nhwc", "u8:s8:s8"), ("nhwc", "f32"), ("nchw", "s8:s8:s32"), ("nhwc", "bf16"))
    problems = [parse_problem("mb1ic8ih5oc20oh5kh3ph1", *case) for case in cases]
    results = [polysci.optimize(problem, "estimate", target=own) for problem in problems]
    export_c(results, tmp_path / "net")
    done = run(selftest(tmp_path / "net"), cwd=tmp_path / "net")
    assert (done.returncode, done.stdout) == (0, "8 passed, 0 failed\n")
    wrong = (tmp_path / "net" / "net.c").read_text().replace(", x_zero);", ", x_zero + 1);")
    (tmp_path / "net" / "net.c").write_text(wrong)
    done = run(selftest(tmp_path / "net", "-O1"), cwd=tmp_path / "net")
    assert done.returncode == 1 and "FAILED layer_1 (bias, residual, clamp): y[" in done.stdout


@pytest.mark.exhaustive
def test_networks_of_8_bits_pass_their_own_test(target: Target, tmp_path: Path) -> None:
    """Scales of results lie in the memory of literals, beside the bounds of floats."""
    options = CompileOptions("estimate", target=target, name="net")
    write_project(compile_network(quantised_convolutions(), options), tmp_path / "net")
    text = (tmp_path / "net" / "net.c").read_text()
    assert "{.whole = 117}" in text
    done = run("make", "CFLAGS=-O1 -Werror", "check", cwd=tmp_path / "net")
    assert done.returncode == 0 and all_passed(done.stdout, 12), done.stdout
    (tmp_path / "net" / "net.c").write_text(text.replace("{.whole = 117}", "{.whole = 17}"))
    done = run("make", "CFLAGS=-O1 -Werror", "check", cwd=tmp_path / "net")
    assert done.returncode and "FAILED results differ from the reference" in done.stdout
