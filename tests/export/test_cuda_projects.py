"""Layers and networks of CUDA as C projects, run by a driver whose device is this CPU."""

import ctypes
import re
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import polysci
from polysci.errors import SpecError, UnsupportedError
from polysci.export import ExportedLayer, export_c, export_python
from polysci.ops import parse_problem
from polysci.runtime.backends import backend_named
from polysci.runtime.backends.cuda import stream_of
from tests.support.command import polysci as command
from tests.support.cuda_driver import calls, note_project, variables, with_driver
from tests.support.device_cases import (
    integers,
    long_steps,
    quantised_convolutions,
    two_layers,
)
from tests.support.exported import WARNINGS, all_passed, run

pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA: cuda-bindings is not installed")
if shutil.which("g++") is None:
    pytest.skip("the emulation of CUDA: g++ is not installed", allow_module_level=True)

COMPILERS = [cc for cc in ("gcc", "clang") if shutil.which(cc)]
STRICT = ("-std=c11", *WARNINGS)
SKIPPED = 77, "skipped: there is no CUDA device\n"


@pytest.fixture(scope="module")
def layers() -> list[ExportedLayer]:
    """A layer of tiles of groups, twice, one of a work-item a tile, and one of 8 bits."""
    (target,) = backend_named("cuda:sm_80").targets()
    texts = ("mb1ic6ih9oc20oh9kh3ph1", "mb1ic6ih9oc20oh9kh3ph1", "g8mb1ic8ih10oc8oh8kh3")
    problems = [parse_problem(text, "nhwc") for text in texts]
    problems.append(parse_problem("mb1ic16ih5oc20oh5kh3ph1", "nhwc", "u8:s8:s8"))
    results = [polysci.optimize(it, "estimate", target=target) for it in problems]
    assert "@bx" in str(results[0].schedule)
    return [ExportedLayer(it.problem, it.schedule, backend=it.backend) for it in results]


@pytest.fixture(scope="module")
def project(layers: list[ExportedLayer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cuda") / "net"
    export_c(layers, out)
    note_project(out / "net")
    return out


def selftest(folder: Path, cc: str = COMPILERS[0]) -> Path:
    """Build the self-test without one warning, apart from the folder; return the program."""
    out = folder.with_name(f"selftest_{cc}")
    sources = [folder / "net.c", folder / "selftest.c"]
    done = run(cc, *STRICT, *sources, "-o", out, "-lm", "-ldl", "-pthread", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "")
    return out


def run_with(program: Path, **more: str) -> tuple[int, str]:
    """Run a program where the driver is; return its status and what it prints."""
    done = run(program, cwd=program.parent, **variables(**more))
    return done.returncode, done.stdout


@pytest.mark.parametrize("cc", COMPILERS)
def test_layers_pass_their_own_test(project: Path, cc: str) -> None:
    assert run_with(selftest(project, cc)) == (0, "8 passed, 0 failed\n")


def test_without_a_device_the_test_says_so(project: Path) -> None:
    program = selftest(project)
    done = run(program, cwd=program.parent)
    assert (done.returncode, done.stdout) == SKIPPED
    assert run_with(program, CUDA_CAPABILITY="none") == SKIPPED


@pytest.mark.parametrize("capability", ["86", "90"])
def test_newer_devices_take_machine_code_or_ptx(project: Path, capability: str) -> None:
    """Code of sm_80 runs on sm_86; for sm_90 the driver compiles the text."""
    program = selftest(project)
    assert run_with(program, CUDA_CAPABILITY=capability) == (0, "8 passed, 0 failed\n")


def test_code_that_the_driver_refuses_is_told(project: Path) -> None:
    status, said = run_with(selftest(project), CUDA_CODE="/nowhere")
    assert status == 1 and re.match("FAILED: the driver refuses the code: CUDA's error 218 ", said)


@pytest.mark.parametrize(
    ("fault", "said"),
    [("cuMemAlloc 1 2", r"FAILED.*\n?"), ("kernel 2 719", r"FAILED.*\n?"),
     ("cuLaunchKernel 3 1", r"FAILED.*\n?"), ("cuStreamSynchronize 3 700", r"FAILED.*\n?")],
)  # fmt: skip
def test_errors_of_the_driver_fail_the_test(project: Path, fault: str, said: str) -> None:
    status, text = run_with(selftest(project), CUDA_FAULT=fault)
    assert status == 1 and re.match(said, text), text


def test_a_fault_in_the_kernels_is_found(project: Path, tmp_path: Path) -> None:
    text = (project / "net.cu").read_text()
    wrong = text.replace("PS_BARRIER();", ";")
    assert wrong != text
    note_project(project / "net", wrong, tmp_path)
    status, said = run_with(selftest(project), CUDA_CODE=str(tmp_path))
    assert status == 1 and "FAILED layer_1 (bare): y[" in said


USER = """
#include "net.h"
#include <stdio.h>

int main(void)
{
    net_device *device = 0;
    net_memory *memory = 0;
    printf("%d: %s\\n", net_open(7, &device), net_why());
    if (device || net_open(0, &device))
        return 1;
    printf("%d: %s\\n", net_reserve(device, (size_t)1 << 50, &memory), net_why());
    printf("%d", memory != 0);
    net_close(device);
    return 0;
}
"""


def test_errors_have_codes_and_texts(project: Path, tmp_path: Path) -> None:
    (tmp_path / "user.c").write_text(USER)
    sources = [tmp_path / "user.c", project / "net.c"]
    done = run(COMPILERS[0], *STRICT, f"-I{project}", *sources, "-o", "user", "-ldl", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert run_with(tmp_path / "user") == (0, (
        "1: no CUDA device 7: there are 1\n"
        f"3: {1 << 50} bytes of memory on a CPU in place of a GPU, which has {1 << 32} in all: "
        "CUDA's error 2\n0"
    ))  # fmt: skip


@pytest.mark.exhaustive
def test_the_same_layers_give_the_same_bytes(
    layers: list[ExportedLayer], project: Path, tmp_path: Path
) -> None:
    paths = export_c(layers, tmp_path / "again", name="net")
    names = {"net.h", "net.c", "net.cu", "net_kernels.h", "net_binary.h", "selftest.c"}
    assert {path.name for path in paths} == names | {"Makefile", "CMakeLists.txt", "README.md"}
    for path in paths:
        text = path.read_text()
        assert text == (project / path.name).read_text() and "Generated by polysci" in text[:300]


def test_what_is_no_project_of_a_device(layers: list[ExportedLayer], tmp_path: Path) -> None:
    nameless = ExportedLayer(layers[0].problem, layers[0].schedule)
    with pytest.raises(SpecError, match="layers of CUDA need backend='cuda:sm_80'"):
        export_c([nameless], tmp_path / "nameless")
    other = replace(layers[1], backend="cuda:sm_90")
    with pytest.raises(UnsupportedError, match="one device a project, got cuda:sm_80, cuda:sm_90"):
        export_c([layers[0], other], tmp_path / "two")
    with pytest.raises(UnsupportedError, match="is of a device; C is exported"):
        export_python(layers, tmp_path / "python")
    assert not any(tmp_path.iterdir())


@pytest.mark.exhaustive
@with_driver
def test_a_stream_and_memory_of_the_caller() -> None:
    """Launches go into the stream of the program, which waits for them itself."""
    (target,) = backend_named("cuda:0").targets()
    problem = parse_problem("mb1ic6ih9oc20oh9kh3ph1", "nhwc")
    result = polysci.optimize(problem, "estimate", target=target)
    layer = ExportedLayer(problem, result.schedule, backend="cuda:sm_80")
    with TemporaryDirectory() as place:
        folder = Path(place)
        export_c([layer], folder / "net")
        note_project(folder / "net" / "net")
        done = run(COMPILERS[0], "-std=c11", "-shared", "-fPIC", folder / "net" / "net.c", "-o",
                   "net.so", "-ldl", cwd=folder)  # fmt: skip
        assert done.returncode == 0
        library = ctypes.CDLL(str(folder / "net.so"))
    stream, opened = stream_of(0), ctypes.c_void_p()
    own = ctypes.c_void_p(int(stream.stream))
    assert library.net_open_queue(own, ctypes.byref(opened)) == 0 and opened.value
    x, w = integers(problem.x_shape, 1), integers(problem.w_shape, 2)
    y = np.empty(problem.y_shape, np.float32)
    buffers = (stream.copy_in(x), stream.buffer(library.net_layer_1_packed_size()),
               stream.buffer(y.nbytes))  # fmt: skip
    places = [ctypes.c_void_p(it.address) for it in buffers]
    weights = w.ctypes.data_as(ctypes.c_void_p)
    assert library.net_layer_1_pack_weights(opened, weights, places[1]) == 0
    before = calls("cuStreamSynchronize")
    assert library.net_layer_1_launch(opened, *places, None, None, None, None) == 0
    assert calls("cuStreamSynchronize") == before
    stream.copy_out(buffers[2], y)
    library.net_close(opened)
    assert np.array_equal(y, problem.reference(x, w))
    again = stream.copy_in(x)  # the stream and its context are the caller's still
    assert again.address


def test_networks_pass_their_own_test(tmp_path: Path) -> None:
    """The command writes it without a device; runs are one graph."""
    (tmp_path / "two.onnx").write_bytes(two_layers().SerializeToString())
    out = tmp_path / "net"
    ran = command("compile", tmp_path / "two.onnx", "--device", "cuda:sm_80", "--embed",
                  "--name", "net", "-o", out)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    note_project(out / "net")
    make = run("make", "CC=gcc", "CFLAGS=-O1 -Werror", "all", "selftest", "example", cwd=out)
    assert make.returncode == 0, make.stderr
    status, said = run_with(out / "selftest")
    assert status == 0 and all_passed(said, 17), said
    assert run("./selftest", cwd=out).returncode == 77
    status, said = run_with(out / "example")
    assert status == 0 and said.count("y0[") == 5
    status, said = run_with(out / "selftest", CUDA_FAULT="kernel 30 719")
    assert status == 1 and "FAILED" in said


@pytest.mark.exhaustive
def test_entries_for_several_sizes_are_graphs_of_their_own(tmp_path: Path) -> None:
    out, words = tmp_path / "net", ("--device", "cuda:sm_80", "--name", "net", "-o")
    ran = command("compile", "mlp:1x24x40x16 act=relu", "--dim", "rows=3,8", *words, out)
    assert ran.returncode == 0, ran.stderr
    note_project(out / "net")
    make = run("make", "CC=gcc", "CFLAGS=-O1 -Werror", "selftest", cwd=out)
    assert make.returncode == 0, make.stderr
    status, said = run_with(out / "selftest")
    assert status == 0 and all_passed(said, 17), said


@pytest.mark.exhaustive
def test_loops_of_launches_are_one_graph(tmp_path: Path) -> None:
    (tmp_path / "steps.onnx").write_bytes(long_steps().SerializeToString())
    out, words = tmp_path / "net", ("--device", "cuda:sm_80", "--name", "net", "-o")
    ran = command("compile", tmp_path / "steps.onnx", *words, out)
    assert ran.returncode == 0, ran.stderr
    note_project(out / "net")
    assert "for (int64_t step = 0; step < 4; step += 1) {" in (out / "net.c").read_text()
    make = run("make", "CC=gcc", "CFLAGS=-O1 -Werror", "selftest", cwd=out)
    assert make.returncode == 0, make.stderr
    status, said = run_with(out / "selftest")
    assert status == 0 and all_passed(said, 12), said


@pytest.mark.exhaustive
def test_networks_of_8_bits_pass_their_own_test(tmp_path: Path) -> None:
    (tmp_path / "bytes.onnx").write_bytes(quantised_convolutions().SerializeToString())
    out, words = tmp_path / "net", ("--device", "cuda:sm_80", "--name", "net", "-o")
    ran = command("compile", tmp_path / "bytes.onnx", *words, out)
    assert ran.returncode == 0, ran.stderr
    note_project(out / "net")
    make = run("make", "CC=gcc", "CFLAGS=-O1 -Werror", "selftest", cwd=out)
    assert make.returncode == 0, make.stderr
    status, said = run_with(out / "selftest")
    assert status == 0 and all_passed(said, 12), said
