"""Loading: declarations, faults, and an OpenMP runtime that stays."""

import gc
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from polysci.errors import BuildError
from polysci.runtime.build import cache, library
from polysci.runtime.build.compiler import default_flags, find_compiler, lacks_openmp
from polysci.runtime.build.library import load, openmp_runtimes

PLAIN = default_flags(openmp=False)


@pytest.fixture(scope="module", autouse=True)
def root(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("cache")
        patch.setenv("POLYSCI_CACHE_DIR", str(path))
        yield path
        shutil.rmtree(path)


def test_functions_and_memory():
    text = "void twice(float *x, int n);\nvoid twice(float *x, int n) { while (n--) *x++ *= 2; }\n"
    found = load(cache.build(text, flags=PLAIN), "void twice(float *x, int n);")
    x = found.ffi.new("float[3]", [1, 2, 3])
    found.lib.twice(x, 3)
    assert list(x) == [2, 4, 6]


def test_declarations_must_be_c():
    path = cache.build("int a;\n", flags=PLAIN)
    with pytest.raises(BuildError, match="declarations for /"):
        load(path, "int f(")


def test_a_file_that_is_absent(tmp_path):
    with pytest.raises(BuildError, match=r"absent\.so: not a usable shared object: No such file"):
        load(tmp_path / "absent.so", "int f(void);")


def test_a_dependency_that_is_absent(tmp_path):
    flags = [flag for flag in PLAIN if "defs" not in flag]
    path = cache.build("int g(void);\nint f(void) { return g(); }\n", flags=flags)
    with pytest.raises(BuildError, match=r"cannot load .*undefined symbol: g"):
        load(path, "int f(void);")


PINNED = """
import gc, sys
from pathlib import Path
from polysci.runtime.build.library import load, openmp_runtimes
print(len(openmp_runtimes()))
found = load(Path(sys.argv[1]), "int count(void);")
assert found.lib.count() == 2
del found
gc.collect()
print(sys.argv[1] in Path("/proc/self/maps").read_text(), len(openmp_runtimes()))
"""


@pytest.mark.exhaustive
def test_the_openmp_runtime_stays_when_its_last_user_goes():
    if lacks_openmp(find_compiler()):
        pytest.skip("this compiler has no OpenMP")
    text = (
        "int count(void);\nint count(void) { int n = 0;\n"
        "#pragma omp parallel num_threads(2) reduction(+:n)\nn += 1;\nreturn n; }\n"
    )
    path = cache.build(text)
    done = subprocess.run(
        [sys.executable, "-c", PINNED, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "False", "1"]
    for _ in range(5):
        assert load(path, "int count(void);").lib.count() == 2
        gc.collect()
    assert len(openmp_runtimes()) >= 1


def test_runtimes_are_recognised_by_name():
    for name in ("libgomp.so.1.0.0", "libgomp-24e2ab19.so.1", "libomp.so.5", "libiomp5.so"):
        assert library._RUNTIME.search(f"/somewhere/{name}")
    for name in ("libcomp.so", "libompi.so", "gomp.py"):
        assert not library._RUNTIME.search(f"/somewhere/{name}")


@pytest.mark.exhaustive
def test_many_loads_leak_no_descriptor():
    path = cache.build("int a;\n", flags=PLAIN)
    before = descriptors()
    for _ in range(20):
        load(path, "extern int a;")
    gc.collect()
    assert descriptors() == before


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_bound_of_spinning_stays_in_this_library(monkeypatch):
    """Another library, or a peer's process, keeps its own."""
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    text = "#include <stdlib.h>\nint seen(void);\nint at;\n__attribute__((constructor)) static void"
    text += ' look(void) { const char *s = getenv("GOMP_SPINCOUNT"); at = s ? atoi(s) : 0; }\n'
    text += "int seen(void) { return at; }\n"
    assert load(cache.build(text, flags=PLAIN), "int seen(void);").lib.seen() >= 1000
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    other = text.replace("seen", "seen_too")
    assert load(cache.build(other, flags=PLAIN), "int seen_too(void);").lib.seen_too() == 7


def test_threads_load_at_the_same_time(monkeypatch):
    """The variable is there for each load, and nobody removes it twice."""
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(library, "_others_run", lambda: bool(time.sleep(0.05)))

    def seen(at):
        with library._bounded_spinning():
            time.sleep(0.01 * at)
            return os.environ.get("GOMP_SPINCOUNT")

    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(seen, range(3))] == [library._SPIN_LOOPS] * 3
    assert "GOMP_SPINCOUNT" not in os.environ


FORK = """
import os, sys
from pathlib import Path
from polysci.runtime.build.library import load
library = load(Path(sys.argv[1]), "int threads(void);")
assert library.lib.threads() == 2
child = os.fork()
if not child:
    os._exit(library.lib.threads())
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
assert library.lib.threads() == 2
"""


@pytest.mark.exhaustive
def test_a_child_of_fork_has_one_thread():
    if lacks_openmp(find_compiler()):
        pytest.skip("this compiler has no OpenMP")
    text = (
        "int threads(void);\nint threads(void) {\nint n = 0;\n"
        "#pragma omp parallel num_threads(2) reduction(+ : n)\nn += 1;\nreturn n; }\n"
    )
    path = cache.build(text)
    ran = subprocess.run(
        [sys.executable, "-c", FORK, str(path)], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
