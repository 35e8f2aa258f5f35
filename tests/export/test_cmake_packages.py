"""Exported projects as CMake packages: installed and moved, inside a project, by pkg-config."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from polysci.export import export_c
from polysci.export.network_project import write_project
from polysci.network.compiled import compile_network, use_pool
from tests.support.compiling import saved, tiny
from tests.support.exported import cmake_built, cmake_installed, files_in, layers, run

pytestmark = pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
# In C and C++: the sum of a layer's results for x and w of ones, a network's for x of halves.
PROGRAM = """\
#include "net.h"
#include "tiny.h"
#include <stdio.h>
#define LINE __attribute__((aligned(64)))
static LINE float x[net_res2a_1_X_SIZE / 4], w[net_res2a_1_W_SIZE / 4], y[net_res2a_1_Y_SIZE / 4];
static LINE float packed[net_res2a_1_PACKED_SIZE / 4], space[net_res2a_1_WORKSPACE_SIZE / 4 + 1];
static float image[TINY_X0_COUNT], result[TINY_Y0_COUNT];

int main(void)
{
    double sum = 0.0;
    for (size_t i = 0; i < sizeof x / 4; ++i)
        x[i] = 1.0f;
    for (size_t i = 0; i < sizeof w / 4; ++i)
        w[i] = 1.0f;
    net_res2a_1_pack_weights(w, packed);
    if (net_res2a_1(x, packed, y, 0, 0, 0, space) != NET_OK)
        return 2;
    for (size_t i = 0; i < sizeof y / 4; ++i)
        sum += y[i];
    printf("%.0f\\n", sum);
    const char *why = "no memory";
    tiny_model *model = tiny_load(WEIGHTS, &why);
    tiny_context *context = model ? tiny_new(model) : 0;
    if (!context)
        return puts(why), 3;
    for (int i = 0; i < TINY_X0_COUNT; ++i)
        image[i] = 0.5f;
    tiny_run(context, image, result);
    for (int i = 0; i < TINY_Y0_COUNT; ++i)
        printf("%.9g\\n", (double)result[i]);
    tiny_free(context);
    tiny_unload(model);
    return 0;
}
"""
LINKED = """
get_target_property(weights tiny::tiny POLYSCI_WEIGHTS)
add_executable(app main.{suffix})
target_compile_definitions(app PRIVATE WEIGHTS="${{weights}}")
target_link_libraries(app PRIVATE net::net tiny::{tiny})
"""
FOUND = """\
cmake_minimum_required(VERSION 3.13)
project(app {language})
find_package(net 2.0 CONFIG QUIET)
if(net_FOUND)
  message(FATAL_ERROR "another major version")
endif()
find_package(net 1.0 CONFIG REQUIRED)
find_package(tiny CONFIG REQUIRED)
find_package(tiny CONFIG REQUIRED)
"""
INSIDE = """\
cmake_minimum_required(VERSION 3.14)
project(app C)
set(CMAKE_C_STANDARD 99)
enable_testing()
include(FetchContent)
FetchContent_Declare(net SOURCE_DIR "{net}")
FetchContent_MakeAvailable(net)
add_subdirectory("{tiny}" tiny)
foreach(variable CMAKE_BUILD_TYPE CMAKE_POSITION_INDEPENDENT_CODE OPTIONS NEEDED)
  if(${{variable}})
    message(FATAL_ERROR "${{variable}} is ${{${{variable}}}}")
  endif()
endforeach()
if(NOT CMAKE_C_STANDARD EQUAL 99)
  message(FATAL_ERROR "the standard is ${{CMAKE_C_STANDARD}}")
endif()
install(TARGETS app)
"""


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer of two threads by OpenMP, a network of two of its own, what the program prints."""
    root = tmp_path_factory.mktemp("projects")
    layer = layers("portable")[1]
    export_c([layer], root / "net")
    model = saved(tiny(), root / "tiny.onnx")
    network = compile_network(model, "estimate", 2, isa="portable")
    write_project(use_pool(network, "pthread"), root / "tiny")
    x, w = (np.ones(shape, np.float32) for shape in (layer.problem.x_shape, layer.problem.w_shape))
    numbers = network(np.full((1, 4, 8, 8), 0.5, np.float32))
    assert isinstance(numbers, np.ndarray)
    np.save(root / "wanted.npy", [layer.problem.reference(x, w).sum(), *numbers.ravel()])
    return root


@pytest.fixture(scope="module")
def installed(projects: Path) -> Path:
    """A directory into which both were installed, and which was moved then."""
    for name in ("net", "tiny"):
        build = projects / f"build_{name}"
        options = ("-DCMAKE_BUILD_TYPE=Debug", f"-D{name.upper()}_TESTS=OFF")
        cmake_built(projects / name, build, *options)
        cmake_installed(build, projects / "first")
    shutil.rmtree(projects / "build_net")
    return (projects / "first").rename(projects / "second")


def check_program(program: Path, projects: Path) -> None:
    done = run(program, cwd=program.parent)
    assert done.returncode == 0, done.stdout
    wanted = np.load(projects / "wanted.npy")
    np.testing.assert_allclose([float(line) for line in done.stdout.split()], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("language", "suffix", "library"),
    [
        ("CXX", "cpp", "tiny"),
        pytest.param("C", "c", "tiny_shared", marks=pytest.mark.exhaustive),
    ],
)
def test_programs_find_what_is_installed(
    installed: Path, projects: Path, language: str, suffix: str, library: str, tmp_path: Path
) -> None:
    """In another place than that of the installation, without a word about threads."""
    if language == "CXX" and not shutil.which("g++"):
        pytest.skip("no g++")
    (tmp_path / f"main.{suffix}").write_text(PROGRAM)
    text = FOUND.format(language=language) + LINKED.format(suffix=suffix, tiny=library)
    (tmp_path / "CMakeLists.txt").write_text(text)
    cmake_built(tmp_path, tmp_path / "build", f"-DCMAKE_PREFIX_PATH={installed}")
    check_program(tmp_path / "build" / "app", projects)


@pytest.mark.exhaustive
def test_what_is_installed(installed: Path) -> None:
    names = files_in(installed)
    library = {"lib/libnet.a", "lib/libtiny.a", "lib/libtiny.so", "share/tiny/tiny.weights"}
    described = {f"lib/cmake/{name}/{name}{end}.cmake" for name in ("net", "tiny")
                 for end in ("Config", "ConfigVersion", "Targets", "Targets-debug")}  # fmt: skip
    each = {f"{place}{name}{end}" for name in ("net", "tiny")
            for place, end in (("include/", ".h"), ("lib/pkgconfig/", ".pc"))}  # fmt: skip
    assert names == library | described | each
    texts = [path.read_text() for path in installed.rglob("*.cmake")]
    assert not [text for text in texts if str(installed.parent) in text]


@pytest.mark.exhaustive
def test_projects_hold_them(projects: Path, tmp_path: Path) -> None:
    """The project around keeps its own settings, builds no test and installs only its own."""
    (tmp_path / "main.c").write_text(PROGRAM)
    text = INSIDE.format(net=projects / "net", tiny=projects / "tiny")
    linked = LINKED.format(suffix="c", tiny="tiny")
    (tmp_path / "CMakeLists.txt").write_text(text.replace("install(", f"{linked}install("))
    build = tmp_path / "build"
    cmake_built(tmp_path, build, "-DCMAKE_C_FLAGS=-O1")
    check_program(build / "app", projects)
    assert not [*build.rglob("*selftest*")]
    assert "Total Tests: 0" in run("ctest", "--test-dir", build, "-N", cwd=tmp_path).stdout
    assert cmake_installed(build, tmp_path / "own") == {"bin/app"}


@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("pkg-config"), reason="no pkg-config")
def test_pkg_config_knows_them(installed: Path, projects: Path, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(PROGRAM)

    def ask(*words: str) -> str:
        path = str(installed / "lib" / "pkgconfig")
        done = run("pkg-config", *words, cwd=tmp_path, PKG_CONFIG_PATH=path)
        assert done.returncode == 0, done.stdout
        return done.stdout.strip()

    assert ask("--modversion", "net") == "1.0.0"
    weights = f'-DWEIGHTS="{ask("--variable=weights", "tiny")}"'
    flags = ask("--cflags", "--libs", "--static", "net", "tiny").split()
    assert {"-pthread", "-lm"} < {*flags}
    words = ["-std=c11", weights, "main.c", *flags, f"-Wl,-rpath,{installed / 'lib'}"]
    done = run("gcc", *words, "-o", "app", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    check_program(tmp_path / "app", projects)


def test_a_name_of_capitals_is_found_too(tmp_path: Path) -> None:
    """CMake looks for NAMEConfig.cmake, or for a name in small letters with a hyphen."""
    export_c(layers("portable")[1:2], tmp_path, name="MyNet")
    text = (tmp_path / "CMakeLists.txt").read_text()
    assert "/MyNetConfig.cmake" in text and not re.search(r"@[A-Z_?!/]+@", text)
