"""Networks whose threads OpenMP does not start: pthreads of their own, a pool of the caller's."""

import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from polysci.export.network_project import write_project
from polysci.network.compiled import compile_network, use_pool
from tests.export.test_freestanding import ALLOWED
from tests.printers.test_sanitized import every_form
from tests.support.command import done, polysci
from tests.support.compiling import FAST, ISA, saved, tiny
from tests.support.exported import all_passed, run
from tests.support.onnxmodels import model, node, reals

QUICK = "CFLAGS=-O1 -Werror"
COMPILERS = [cc for cc in ("gcc", "clang") if shutil.which(cc)]
KINDS = ("openmp", "pthread", "callback")
# Three host threads with a context each; SET_POOL(context) may give it a pool.
HOSTS = """\
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "net.h"
#ifdef CALLBACK
static void parallel(void *pool, int parts, net_part *part, void *data)
{
    (void)pool;
#pragma omp parallel for num_threads(parts)
    for (int i = 0; i < parts; ++i)
        part(data, i);
}
#define SET_POOL(context) net_use_pool(context, parallel, 0)
#else
#define SET_POOL(context) (void)0
#endif
static float x[NET_X0_COUNT];
static struct { float y0[NET_Y0_COUNT], y1[NET_Y1_COUNT], y2[NET_Y2_COUNT]; } y[3];
static const net_model *model;
static void *host(void *at)
{
    const size_t t = (size_t)at;
    net_context *context = net_new(model);
    SET_POOL(context);
    for (int i = 0; i < 20; ++i)
        net_run(context, x, y[t].y0, y[t].y1, y[t].y2);
    net_free(context);
    return 0;
}
int main(int argc, char **argv)
{
    pthread_t threads[3];
    net_model *loaded = net_load(argv[argc - 1], 0);
    model = loaded;
    for (size_t i = 0; i < NET_X0_COUNT; ++i)
        x[i] = (float)(i % 17) / 8 - 1;
    for (size_t t = 0; t < 3; ++t)
        if (pthread_create(&threads[t], 0, host, (void *)t))
            return 1;
    for (size_t t = 0; t < 3; ++t)
        pthread_join(threads[t], 0);
    net_unload(loaded);
    return memcmp(&y[0], &y[1], sizeof y[0]) || memcmp(&y[0], &y[2], sizeof y[0]) ||
           fwrite(&y[0], sizeof y[0], 1, stdout) != 1;
}
"""


# Both threads on one CPU: the seconds of the processor that 50 runs take.
ONE_CPU = """\
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include "net.h"
static float x[NET_X0_COUNT], y[NET_Y0_COUNT];
int main(int argc, char **argv)
{
    cpu_set_t cpu;
    CPU_ZERO(&cpu);
    CPU_SET(sched_getcpu(), &cpu);
    sched_setaffinity(0, sizeof cpu, &cpu);
    net_model *model = net_load(argv[argc - 1], 0);
    net_context *context = net_new(model);
    net_run(context, x, y);
    const clock_t start = clock();
    for (int i = 0; i < 50; ++i)
        net_run(context, x, y);
    printf("%f\\n", (double)(clock() - start) / CLOCKS_PER_SEC);
    net_free(context);
    net_unload(model);
    return 0;
}
"""


def steps_and_updates() -> onnx.ModelProto:
    """A loop over steps, elements that change in place, weights that are computed, a routine."""
    nodes = [
        node("LSTM", "x w r", "h", hidden_size=6), node("Squeeze", "h one", "f"),
        node("MatMul", "f t", "y0"), node("Transpose", "f", "t", perm=[0, 2, 1]),
        node("ScatterND", "f at v", "y1", reduction="add"), node("TopK", "f k", "y2 places"),
    ]  # fmt: skip
    nodes[2], nodes[3] = nodes[3], nodes[2]
    weights = {"w": reals(1, 24, 5), "r": 0.3 * reals(1, 24, 6, seed=1), "one": np.array([1]),
               "at": np.array([[0], [2], [0]]), "v": reals(3, 2, 6),
               "k": np.array([2])}  # fmt: skip
    return model(nodes, {"x": [7, 2, 5]}, dict.fromkeys(("y0", "y1", "y2")), weights)


def convolutions() -> onnx.ModelProto:
    """Layers for Winograd's algorithm."""
    same = {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    nodes = [node("Conv", "x w", "y0", **same), node("Conv", "y0 v", "y1", **same),
             node("Conv", "y1 v", "c", **same), node("Add", "c y0", "y2")]  # fmt: skip
    weights = {"w": reals(16, 8, 3, 3), "v": 0.1 * reals(16, 16, 3, 3)}
    return model(nodes, {"x": [1, 8, 14, 14]}, dict.fromkeys(("y0", "y1", "y2")), weights)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("made", "algorithm"),
    [(every_form, "direct"), (steps_and_updates, "direct"), (convolutions, "winograd")],
)
def test_results_do_not_depend_on_who_starts_the_threads(
    made: object, algorithm: str, tmp_path: Path
) -> None:
    """Bit for bit, in several contexts at the same time."""
    assert callable(made)
    path = saved(made(), tmp_path / "net.onnx")
    network = compile_network(path, "estimate", 2, isa=ISA, algorithm=algorithm)
    (tmp_path / "hosts.c").write_text(HOSTS)
    results = set()
    for kind in KINDS:
        out = tmp_path / kind
        write_project(use_pool(network, kind), out)
        sources = [str(path) for path in out.glob("net*.c")]
        flags = ["-fopenmp" if kind != "pthread" else "-fopenmp-simd", "-pthread", f"-I{out}"]
        flags += ["-DCALLBACK"] * (kind == "callback")
        words = [
            "-std=c11",
            "-O1",
            "-ffp-contract=off",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
        ]
        program = str(tmp_path / f"run_{kind}")
        built = run("gcc", *words, *flags, "hosts.c", *sources, "-lm", "-o", program, cwd=tmp_path)
        assert built.returncode == 0, built.stdout
        ran = run("sh", "-c", f"{program} {out}/net.weights | cksum", cwd=tmp_path)
        results.add(ran.stdout)
        symbols = run("nm", "-u", program, cwd=tmp_path).stdout
        assert kind != "pthread" or "GOMP" not in symbols
    assert len(results) == 1 and not results & {"4294967295 0\n"}


@pytest.mark.skipif(sys.platform != "linux", reason="others do not tell on which CPU a thread is")
def test_threads_that_share_a_cpu_do_not_spin(tmp_path: Path) -> None:
    """Each of the barriers would take a slice of the scheduler's, a millisecond or more."""
    network = compile_network("mlp:4x32x32x32x32x32x32", "estimate", 2, isa="portable", name="net")
    write_project(use_pool(network, "pthread"), tmp_path)
    (tmp_path / "one_cpu.c").write_text(ONE_CPU)
    sources = ["one_cpu.c", *(path.name for path in tmp_path.glob("net*.c"))]
    words = ["-O1", "-pthread", "-DPS_SPINS=1000000000", *sources, "-lm", "-o", "one_cpu"]
    built = run("gcc", *words, cwd=tmp_path)
    assert built.returncode == 0, built.stdout
    ran = run("./one_cpu", "net.weights", cwd=tmp_path)
    assert ran.returncode == 0 and float(ran.stdout) < 0.1, ran.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["pthread", "callback"])
@pytest.mark.parametrize("cc", COMPILERS)
def test_projects(kind: str, cc: str, tmp_path: Path) -> None:
    path = saved(tiny(), tmp_path / "tiny.onnx")
    out = tmp_path / "net"
    assert "tiny.c" in done("compile", path, *FAST, "--threads", f"{kind}:2", "-o", out)
    built = run("make", "all", "check", "example", f"CC={cc}", QUICK, cwd=out)
    passed = 11 + (kind == "callback")
    assert built.returncode == 0 and all_passed(built.stdout, passed), built.stdout
    assert "-fopenmp " not in built.stdout and run("./example", cwd=out).returncode == 0
    texts = "".join(
        path.read_text() for path in [*out.glob("*.c"), *out.glob("*.h"), out / "README.md"]
    )
    assert "OMP_" not in texts and "omp parallel num" not in texts and "omp barrier" not in texts


@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_cmake_links_threads(tmp_path: Path) -> None:
    path = saved(tiny(), tmp_path / "tiny.onnx")
    done("compile", path, *FAST, "--threads", "pthread:2", "-o", tmp_path / "net")
    net = tmp_path / "net"
    assert run("cmake", "-B", "build", "-DCMAKE_BUILD_TYPE=Debug", cwd=net).returncode == 0
    assert run("cmake", "--build", "build", cwd=net).returncode == 0
    assert run("ctest", "--test-dir", "build", cwd=net).returncode == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["pthread", "callback"])
def test_several_instruction_sets(kind: str, tmp_path: Path) -> None:
    path = saved(tiny(), tmp_path / "tiny.onnx")
    words = ["--level", "estimate", "--isas", f"{ISA},portable", "--threads", f"{kind}:2"]
    done("compile", path, *words, "-o", tmp_path / "net")
    built = run("make", "check", QUICK, cwd=tmp_path / "net")
    assert built.returncode == 0 and " 0 failed" in built.stdout, built.stdout


@pytest.mark.exhaustive
def test_a_pool_without_an_operating_system(tmp_path: Path) -> None:
    path = saved(tiny(), tmp_path / "tiny.onnx")
    words = ["--threads", "callback:2", "--freestanding", "-o", tmp_path / "net"]
    done("compile", path, *FAST, *words)
    built = run("make", "all", "check", QUICK, cwd=tmp_path / "net")
    assert built.returncode == 0 and " 0 failed" in built.stdout, built.stdout
    rows = run("nm", "-A", "libtiny.a", cwd=tmp_path / "net").stdout.split("\n")
    kinds = [row.split()[-2:] for row in rows if row]
    outside = {name for kind, name in kinds if kind == "U" and "tiny" not in name}
    assert {name for name in outside if not name.startswith(("__cpu_", "_GLOBAL_"))} <= ALLOWED


@pytest.mark.exhaustive
def test_none_is_one_thread(tmp_path: Path) -> None:
    path = saved(tiny(), tmp_path / "tiny.onnx")
    done(
        "compile", path, *FAST, "--threads", "none", "-o", tmp_path / "net", POLYSCI_NUM_THREADS="2"
    )
    header = (tmp_path / "net" / "tiny.h").read_text()
    code = (tmp_path / "net" / "tiny.c").read_text()
    assert "It uses 1 thread. */" in header and "omp parallel" not in code
    assert "pthread" not in code


@pytest.mark.sampled(every=1)
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--threads", "tbb"], "expected a number, openmp, pthread, callback or none"),
        (["--threads", "pthread:0"], "expected 1 to 1024 threads, got '0'"),
        (["--threads", "pthread:"], "expected 1 to 1024 threads, got ''"),
        (["--threads", "callback:1"], "callback:1: needs 2 threads at least"),
        (["--threads", "none:2"], "expected a number, openmp"),
        (["--threads", "pthread"], "--threads pthread: says what to write; it needs -o DIR"),
        (["--threads", "pthread", "--python", "-o", "p"], "a Python package has threads of OpenMP"),
        (["--threads", "pthread:2", "--freestanding", "-o", "p"], "freestanding code has one"),
    ],
)
def test_what_is_refused(words: list[str], reason: str, tmp_path: Path) -> None:
    told = polysci("compile", str(saved(tiny(), tmp_path / "m.onnx")), *FAST, *words)
    assert told.returncode == 2 and reason in told.stderr, told.stderr
