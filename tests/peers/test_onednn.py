"""oneDNN by its C API: what it computes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polysci.errors import CheckError, UnsupportedError
from polysci.numerics.dtypes import PRECISIONS
from polysci.numerics.scalar_functions import ACTIVATIONS
from polysci.ops.convolutions import Conv2d
from polysci.peers import PEERS
from polysci.peers.example_inputs import example_inputs
from polysci.peers.onednn import service
from polysci.peers.onednn.discovery import find_libraries
from polysci.peers.onednn.service import DnnlPath, OneDNN
from polysci.peers.process import LayerRival
from polysci.target.host import detect
from tests.support.command import done

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


@pytest.mark.sampled
@onednn_only
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_onednn_computes_it(dtype: str, layout: str) -> None:
    for shape in SHAPES:
        _, answer = prepare(dtype, layout, shape)
        assert "3." in answer["version"] and "libdnnl" in answer["version"], shape
        assert answer["paths"] and len(set(answer["paths"])) == len(answer["paths"]), shape
        assert not any(path.startswith("ref") for path in answer["paths"]), shape


@pytest.mark.sampled(every=16)
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
    of = lambda timed, least: service.TimedPaths(  # noqa: E731
        calls=dict.fromkeys(timed, 1), seconds=dict.fromkeys(timed, 1.0) | short
    )
    monkeypatch.setattr(service.TimedPaths, "of", of)
    assert peer._paths[peer.load(1e-5)["path"]].plain


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


@pytest.mark.sampled
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


@pytest.mark.exhaustive
@onednn_only
def test_a_rival() -> None:
    with LayerRival(PEERS["onednn"]) as rival:
        rival.open()
        path, version, paths = rival.prepare(SHAPES["dense"], 1 << 20)
        assert path in paths and version.startswith("3.") and "libgomp" in version
        assert rival.sample().seconds > 0 and rival.sample(cold=True).seconds > 0


@pytest.mark.exhaustive
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
