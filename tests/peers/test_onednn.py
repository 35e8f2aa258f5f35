"""oneDNN by its C API: where its library is found, what is refused, and what it computes."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polysci.errors import CheckError, SpecError, UnsupportedError
from polysci.numerics.activations import ACTIVATIONS
from polysci.numerics.dtypes import PRECISIONS
from polysci.ops.conv2d import Conv2d
from polysci.peers import PEERS
from polysci.peers.example_inputs import example_inputs
from polysci.peers.onednn import discovery, library, service
from polysci.peers.onednn.discovery import find_libraries
from polysci.peers.onednn.library import Dnnl
from polysci.peers.onednn.operators import operator_of
from polysci.peers.onednn.paths import DnnlPath, DnnlProblem
from polysci.peers.onednn.service import OneDNN
from polysci.peers.rival import LayerRival
from polysci.runtime.build import cache
from polysci.target.host import detect
from tests.support.command import done

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
SHAPES = {
    "dense": Conv2d(N=2, C=24, H=9, W=8, K=40, R=3, S=3, pad=1),
    "pointwise": Conv2d(N=1, C=32, H=7, W=7, K=64, R=1, S=1, stride=2),
    "depthwise": Conv2d(N=1, C=32, H=10, W=10, K=32, R=3, S=3, pad=1, groups=32),
    "lopsided": Conv2d(N=1, C=8, H=10, W=10, K=16, R=3, S=3, stride=2, P=5, Q=5),
    "dilated": Conv2d(N=1, C=16, H=12, W=12, K=16, R=3, S=3, pad=2, dilation=2, groups=2),
    "grouped": Conv2d(N=1, C=16, H=6, W=9, K=32, R=1, S=5, pad=(0, 2), groups=4),
}


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
    assert dnnl.version == f"3.2.0 of 2023 ({path}, libgomp.so.1.0.0)"
    layer = operator_of(SHAPES["dense"])
    problem = DnnlProblem(dnnl, layer, example_inputs(SHAPES["dense"], "f32", 0))
    for found in problem.paths():
        problem.verify(found)


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


def test_the_worker_refuses_before_any_layer(fake: Callable[..., Path]) -> None:
    with (
        LayerRival(PEERS["onednn"], library=str(fake(2))) as rival,
        pytest.raises(UnsupportedError, match="is version 2"),
    ):
        rival.open()
    with pytest.raises(SpecError, match="the peer torch takes none"):
        LayerRival(PEERS["torch"], library="libdnnl.so")


# What it computes


def need_wide_sums(dtype: str) -> None:
    """Without VNNI oneDNN adds pairs of products of signed bytes in 16 bits, which saturate."""
    if dtype.startswith("s8") and not {"avx512_vnni", "avx_vnni"} & set(detect().features):
        pytest.skip("this CPU has no VNNI")


def prepare(dtype: str, layout: str, layer: str) -> tuple[OneDNN, dict[str, Any]]:
    """The peer, ready for a layer: a name among SHAPES, or a text."""
    need_wide_sums(dtype)
    peer = OneDNN()
    try:
        return peer, peer.prepare(str(SHAPES.get(layer, layer)), layout, dtype, 1, 3)
    except UnsupportedError as error:
        if "16" not in dtype:
            raise
        pytest.skip(str(error))  # older CPUs lack the instructions of 16-bit types


@onednn_only
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_onednn_computes_it(dtype: str, layout: str) -> None:
    for shape in SHAPES:
        _, answer = prepare(dtype, layout, shape)
        assert "3." in answer["version"] and "libdnnl" in answer["version"], shape
        assert answer["paths"] and len(set(answer["paths"])) == len(answer["paths"]), shape
        assert not any(path.startswith("ref") for path in answer["paths"]), shape


@onednn_only
@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        *(("mm:24x47x65", dtype) for dtype in ("f32", "bf16", "f16")),
        *(("mm:3:24x17x33 b=constant", dtype) for dtype in PRECISIONS),
        *(("mm:9x48x36 a=constant", dtype) for dtype in ("f32", "bf16", "s8:s8:s32")),
        *((f"bwd_d {shape}", dtype) for shape in SHAPES.values() for dtype in ("f32", "bf16")),
        *(("conv3d mb1ic16id5ih6iw7oc32kd3kh3kw3pd1ph1pw1", dtype) for dtype in PRECISIONS),
        *((f"{word}conv1d mb1ic16iw40oc32kw3pw1", "f32") for word in ("", "bwd_d ", "bwd_w ")),
        ("deconv mb1ic16ih6oc32kh3sh2ph1", "f32"),
        *((f"{word}conv3d g4mb1ic16id7oc32kd3sd2pd1", "f32") for word in ("", "bwd_d ", "bwd_w ")),
        *(
            (f"mb1ic16ih6oc32kh3ph1 act={name}", dtype)
            for name in ACTIVATIONS
            for dtype in ("f32", "bf16")
        ),
        *(("mm:9x48x36 tb b=constant act=gelu", dtype) for dtype in ("f32", "bf16")),
        *((f"mm:9x48x36 {words}", "f32") for words in ("ta", "tb", "ta tb", "to b=constant")),
        *((f"bwd_w {shape}", dtype) for shape in SHAPES.values() for dtype in ("f32", "bf16")),
    ],
)
def test_onednn_has_other_operators(text: str, dtype: str) -> None:
    peer, answer = prepare(dtype, "" if text.startswith("mm") else "nchw", text)
    assert peer.load(1e-5, 1 << 16)["path"] in answer["paths"]
    assert peer.sample(0.0, cold=True)["seconds"] > 0


@onednn_only
def test_factors_that_change_are_converted_in_the_call() -> None:
    """Of two activations none is reordered ahead; a constant one is."""
    for text, steps in (("mm:24x47x65", 4), ("mm:24x47x65 b=constant", 3)):
        peer, _ = prepare("bf16", "", text)
        converted = [path for path in peer._paths.values() if "computed in f32" in path.name]
        in_call = [path for path in converted if path.plain]
        assert in_call and {len(path.steps) for path in in_call} == {steps}
        for path in in_call:
            copy = path.with_weights(peer._problem.copy_weights(path))
            peer._problem.verify(copy)


@onednn_only
def test_gradients_of_filters_come_back_in_the_call() -> None:
    """The library's own format of dW is not what the problem asks for."""
    peer, _ = prepare("f32", "nhwc", "bwd_w mb1ic64ih9oc64kh3ph1")
    in_call = [path for path in peer._paths.values() if "y as any: reordered in" in path.name]
    assert in_call and all(path.plain for path in in_call)
    assert all(len(path.steps) == 1 + path.name.count(" as any") for path in in_call)


@onednn_only
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_the_chosen_path_has_the_layout(layout: str) -> None:
    peer, answer = prepare("f32", layout, "dense")
    chosen = peer.load(1e-5)
    assert set(chosen["seconds"]) == set(answer["paths"]) and peer.sample(0.0)["seconds"] > 0
    plain = {name: chosen["seconds"][name] for name, path in peer._paths.items() if path.plain}
    assert chosen["path"] == min(plain, key=plain.__getitem__)
    assert any(name.endswith("reordered ahead and after") for name in answer["paths"]) is (
        layout == "nchw"
    )


@onednn_only
def test_what_is_reordered_in_the_call_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time without reordering is listed, and not chosen however short."""
    peer, _ = prepare("f32", "nchw", "dense")
    in_call = [path for path in peer._paths.values() if "in the call" in path.name]
    assert in_call and all(len(path.steps) > 1 and path.plain for path in in_call)
    outside = [path for path in peer._paths.values() if path.after]
    assert outside and all(len(path.steps) == 1 for path in outside)
    short = {path.name: 1e-9 for path in outside}
    of = lambda timed, least: SimpleNamespace(  # noqa: E731
        calls=dict.fromkeys(timed, 1), seconds=dict.fromkeys(timed, 1.0) | short
    )
    monkeypatch.setattr(service.TimedPaths, "of", of)
    assert peer._paths[peer.load(1e-5)["path"]].plain


@onednn_only
@pytest.mark.parametrize("dtype", ["u8:s8:u8", "u8:s8:s8", "s8:s8:u8", "s8:s8:s8"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_zero_points(monkeypatch: pytest.MonkeyPatch, dtype: str, layout: str) -> None:
    given = lambda conv, dtype, seed: example_inputs(conv, dtype, seed, 9, 11)  # noqa: E731
    monkeypatch.setattr(service, "example_inputs", given)
    for shape in ("dense", "lopsided", "grouped"):
        assert prepare(dtype, layout, shape)[1]["paths"]


@onednn_only
@pytest.mark.parametrize(("dtype", "change"), [("f32", 9), ("bf16", 9), ("u8:s8:u8", 2)])
def test_a_wrong_result_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, dtype: str, change: int
) -> None:
    def falsified(*words: Any) -> Any:
        inputs = example_inputs(*words)
        inputs.expected[0, 0, 0, np.argmax(inputs.expected[0, 0, 0] > 1)] += change
        return inputs

    monkeypatch.setattr(service, "example_inputs", falsified)
    with pytest.raises(CheckError, match="differs from the reference"):
        prepare(dtype, "nhwc", "dense")


@onednn_only
def test_cold_calls_have_weights_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, _ = prepare("f32", "nhwc", "dense")
    ready: list[list[DnnlPath]] = []
    timed = peer._ready
    monkeypatch.setattr(peer, "_ready", lambda copies: ready.append(copies) or timed(copies))
    size = next(iter(peer._paths.values())).weights.data.nbytes
    chosen = peer.load(1e-5, 5 * size)["path"]
    assert peer.sample(0.0, cold=True)["seconds"] > 0
    copies = ready[-1]
    places = {path.weights.data.ctypes.data for path in copies}
    assert [path.name for path in copies] == [chosen] * 6 and len(places) == 6
    for path in copies:
        used = [memory for step in path.steps for memory in step.arguments.values()]
        assert any(memory is path.weights for memory in used)
        peer._problem.verify(path)


@onednn_only
def test_what_the_library_lacks_is_said() -> None:
    """Padding that cuts more than a stride from the input."""
    cropped = Conv2d(N=1, C=8, H=12, W=12, K=8, R=1, S=1, P=6, Q=6)
    with pytest.raises(UnsupportedError, match=r"has no f32 here: dnnl_convolution.*invalid"):
        OneDNN().prepare(str(cropped), "nhwc", "f32", 1, 0)


@pytest.mark.parametrize(("own", "passed"), [(None, "300000"), ("7", "7")])
def test_threads_of_peers_wait_as_long_as_gnus(
    monkeypatch: pytest.MonkeyPatch, own: str | None, passed: str
) -> None:
    """Our loader would have them sleep sooner."""
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if own:
        monkeypatch.setenv("GOMP_SPINCOUNT", own)
    with LayerRival(PEERS["onednn"], 2, library="/nowhere") as rival:
        with pytest.raises(UnsupportedError, match="no library /nowhere"):
            rival.open()  # it has begun: its environment is there
        environment = Path(f"/proc/{rival.pid}/environ").read_bytes().split(b"\0")
    assert f"GOMP_SPINCOUNT={passed}".encode() in environment
    assert b"OMP_NUM_THREADS=2" in environment


@onednn_only
def test_a_rival() -> None:
    with LayerRival(PEERS["onednn"]) as rival:
        rival.open()
        path, version, paths = rival.prepare(SHAPES["dense"], 1 << 20)
        assert path in paths and version.startswith("3.") and "libgomp" in version
        assert rival.sample().seconds > 0 and rival.sample(cold=True).seconds > 0


@onednn_only
def test_bench_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polysci.peers.contest.cold_size", lambda: 1 << 18)
    layers = ("mb1ic16ih8oc16oh8kh3ph1", "mm:24x16x32 b=constant")
    command = ("bench", *layers, "--against", "onednn", "--level", "estimate", "--rounds", "9")
    *rows, last = map(json.loads, done(*command, "--cold", "--threads", "1", "--json").splitlines())
    summary = last["summary"]
    assert [row["layer"] for row in rows] == ["mb1ic16ih8oc16oh8kh3ph1", layers[1]]
    assert all(row["ratio"] > 0 and row["cold_ratio"] > 0 for row in rows)
    assert all(row["path"] in row["peer_paths"] for row in rows)
    assert summary["peer"].startswith("onednn 3.") and "libdnnl" in summary["peer"]
    assert summary["min_ratio"] == min(row["ratio"] for row in rows)
