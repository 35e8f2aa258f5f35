"""The library of the peer oneDNN: where it is found, which one is taken, what is refused."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest

from polysci.errors import SpecError, UnsupportedError
from polysci.ops.convolutions import Conv2d
from polysci.peers import PEERS
from polysci.peers.example_inputs import example_inputs
from polysci.peers.onednn import discovery, library
from polysci.peers.onednn.discovery import find_libraries
from polysci.peers.onednn.library import Dnnl
from polysci.peers.onednn.operators import operator_of
from polysci.peers.onednn.service import DnnlProblem
from polysci.peers.process import LayerRival
from polysci.runtime.build import cache

VERSION = """
#include <stddef.h>
typedef struct {{
    int major, minor, patch; const char *hash; unsigned cpu_runtime, gpu_runtime;
}} dnnl_version_t;
const dnnl_version_t *dnnl_version(void) {{
    static const dnnl_version_t version = {{{version}, 7, 1, "made up", {runtime}, 0}};
    return &version;
}}
"""
DENSE = Conv2d(N=2, C=24, H=9, W=8, K=40, R=3, S=3, pad=1)


def missing() -> bool:
    try:
        find_libraries()
    except UnsupportedError:
        return True
    return False


onednn_only = pytest.mark.skipif(missing(), reason="no libdnnl: pip install onednn-cpu-gomp")


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., Path]:
    """A library with no more than a version."""

    def make(version: int = 3, runtime: int = 2, text: str = VERSION) -> Path:
        built = cache.build(text.format(version=version, runtime=runtime))
        path = tmp_path / "libdnnl.so.3"
        path.write_bytes(built.read_bytes())
        return path

    return make


# Where it is found


def test_a_file_and_a_folder(fake: Callable[..., Path], tmp_path: Path) -> None:
    path = fake()
    assert find_libraries(str(path)) == find_libraries(str(tmp_path)) == [path]
    for name in ("absent.so", "."):
        with pytest.raises(UnsupportedError, match=r"no library .*pip install onednn-cpu-gomp"):
            find_libraries(str(tmp_path / "none" / name))


def test_the_library_of_a_wheel_comes_before_the_loaders(
    monkeypatch: pytest.MonkeyPatch, fake: Callable[..., Path]
) -> None:
    path = fake()
    files = [
        SimpleNamespace(name=name, locate=lambda name=name: PurePosixPath(path.parent / name))
        for name in ("README", "libdnnl.so", path.name)  # the second is not there
    ]

    monkeypatch.setattr(discovery.importlib.metadata, "files", {discovery.WHEEL: files}.get)
    monkeypatch.setattr(discovery, "_of_loader", lambda: pytest.fail("not asked"))
    assert find_libraries() == [path]


def test_the_loader_comes_last(fake: Callable[..., Path]) -> None:
    code = (
        "from polysci.peers.onednn import discovery\n"
        "discovery.WHEEL = 'not-installed'\n"
        "print(*discovery.find_libraries())"
    )
    path = fake()
    env = os.environ | {"LD_LIBRARY_PATH": str(path.parent)}
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, env=env, capture_output=True, text=True)
    assert ran.stdout.strip() == str(path), ran.stderr


def test_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError(f"{name}: no such file")

    monkeypatch.setattr(discovery, "WHEEL", "not-installed")
    monkeypatch.setattr(ctypes, "CDLL", load)
    with pytest.raises(
        UnsupportedError,
        match=r"PyTorch or the wheel not-installed, no libdnnl.so.3 of the loader: .*--library",
    ):
        find_libraries()


STUBS = "".join(f"int {name}(void) {{{{ return 3; }}}}" for name in library._NAMES[1:])


@pytest.fixture
def torch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``lib`` of a made-up PyTorch."""
    folder = tmp_path / "torch" / "lib"
    folder.mkdir(parents=True)
    spec = SimpleNamespace(submodule_search_locations=[str(folder.parent)])
    monkeypatch.setattr(discovery.importlib.util, "find_spec", {"torch": spec}.get)
    return folder


@onednn_only
def test_a_library_beside_pytorchs_is_found_and_computes(
    torch_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the wheel's, where PyTorch would put its own."""
    (wheels,) = find_libraries()
    monkeypatch.setattr(discovery, "WHEEL", "not-installed")
    path = torch_folder / "libdnnl.so.3"
    path.write_bytes(wheels.read_bytes())
    assert find_libraries() == [path]
    dnnl = Dnnl()
    assert dnnl.version.startswith(f"3.2.0 of 2023 ({path}, libgomp.so.1")
    layer = operator_of(DENSE)
    problem = DnnlProblem(dnnl, layer, example_inputs(DENSE, "f32", 0))
    for found in problem.paths():
        problem.verify(found)


@pytest.mark.exhaustive
def test_the_newest_that_is_found_counts(
    torch_folder: Path, tmp_path: Path, fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older ones, and those without the functions, leave the wheel's."""
    monkeypatch.setattr(library, "openmp_runtimes", lambda: ("/lib/libgomp.so.1",))
    versions = {
        name: fake(text=VERSION.replace(", 7, 1", f", {minor}, 0") + stubs).read_bytes()
        for name, minor, stubs in (
            ("older", 1, STUBS), ("newer", 10, STUBS), ("bare", 11, ""), ("wheel", 9, STUBS),
        )
    }  # fmt: skip
    versions["text"] = b"not a library"
    wheel = tmp_path / "wheel.so"
    wheel.write_bytes(versions.pop("wheel"))
    monkeypatch.setattr(discovery, "_of_wheel", lambda: wheel)
    for name, content in versions.items():
        beside = torch_folder / f"libdnnl-{name}.so.3"
        beside.write_bytes(content)
        assert find_libraries() == [beside, wheel]
        chosen = library._open(find_libraries(), named=False).loaded.path
        assert chosen == (beside if name == "newer" else wheel), name
        beside.unlink()


def test_a_named_library_must_have_every_function(fake: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedError, match=r"has no dnnl_engine_create: pip install"):
        Dnnl(str(fake()))


# What is refused


@pytest.mark.parametrize(
    ("version", "runtime", "message"),
    [
        (2, 2, r"libdnnl.so.3 is version 2\.7\.1: expected 3\.x: pip install onednn-cpu-gomp"),
        (4, 2, r"is version 4\.7\.1: expected 3\.x"),
        (3, 4, "runs on TBB: expected OpenMP: pip install"),
        (3, 1, "runs on one thread: expected OpenMP"),
        (3, 77, "runs on 77: expected OpenMP"),
    ],
)
def test_versions_and_runtimes(
    fake: Callable[..., Path], version: int, runtime: int, message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Dnnl(str(fake(version, runtime)))


def test_what_is_no_onednn(fake: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="has no dnnl_version: pip install"):
        Dnnl(str(fake(text="int dnnl_something;")))
    text = tmp_path / "libdnnl.so"
    text.write_text("not a library at all, whatever its name says")
    with pytest.raises(UnsupportedError, match=r"not a usable shared object.*--library PATH"):
        Dnnl(str(text))


def test_another_openmp_must_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "openmp_runtimes", lambda: ("/lib/libiomp5.so",))
    with pytest.raises(UnsupportedError, match=r"runs on libiomp5.so: .* --library /a/libdnnl.so"):
        library._runtime(Path("/a/libdnnl.so"), named=False)
    assert library._runtime(Path("/a/libdnnl.so"), named=True) == "libiomp5.so"
    gnu = ("/lib/libgomp.so.1", "/lib/libiomp5.so")
    monkeypatch.setattr(library, "openmp_runtimes", lambda: gnu)
    assert library._runtime(Path("/a/libdnnl.so"), named=False) == "libgomp.so.1"


@pytest.mark.exhaustive
def test_the_worker_refuses_before_any_layer(fake: Callable[..., Path]) -> None:
    with (
        LayerRival(PEERS["onednn"], library=str(fake(2))) as rival,
        pytest.raises(UnsupportedError, match="is version 2"),
    ):
        rival.open()
    with pytest.raises(SpecError, match="the peer torch takes none"):
        LayerRival(PEERS["torch"], library="libdnnl.so")
