"""Whole networks beside ours: who is timed when, and peers that are missing, wrong or hang."""

import importlib.util
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polysci.errors import CheckError, SpecError, UnsupportedError
from polysci.measure.network_samples import mean_seconds
from polysci.peers import PEERS
from polysci.peers.contest import LEAST_ROUNDS
from polysci.peers.networks import compare as side
from polysci.peers.networks.compare import NetworkComparison, NetworkRival, compare
from polysci.peers.networks.onnxruntime import OnnxRuntime
from polysci.peers.networks.service import TimingRequest
from polysci.peers.process import peer_named
from tests.support.command import polysci

NETWORKS = ("onnxruntime", "openvino")
X = {"a/x": np.arange(6, dtype=np.float32).reshape(2, 3), "file": np.ones(2, np.float32)}


# In turns


@dataclass
class Stand:
    """A side whose samples are made up; it notes in ``log`` when each was taken."""

    name: str
    log: list[str]
    times: Iterator[float]
    outputs: list[Any] = field(default_factory=lambda: [np.zeros(3, np.float32)])
    version: str = "1"
    choice: str = "as it is"
    peak_bytes: int = 7

    def sample(self) -> float:
        self.log.append(self.name)
        return next(self.times)


def stood(**times: list[float]) -> tuple[list[str], dict[str, Stand]]:
    log: list[str] = []
    return log, {name: Stand(name, log, iter(each)) for name, each in times.items()}


def compared(**times: list[float]) -> NetworkComparison:
    _, sides = stood(**times)
    return compare(sides.pop("ours"), sides, len(times["ours"]), pause_s=0)


def test_each_round_begins_with_the_next_side(monkeypatch: pytest.MonkeyPatch) -> None:
    log, sides = stood(ours=[1.0] * 9, one=[1.0] * 9, two=[1.0] * 9)
    monkeypatch.setattr(side.time, "sleep", lambda seconds: log.append(f"{seconds:g} s"))
    compare(sides.pop("ours"), sides, 9, pause_s=0.25)
    assert log[::2] == ["0.25 s"] * 27
    once = ["ours", "one", "two", "one", "two", "ours", "two", "ours", "one"]
    assert log[1::2] == once * 3


def test_medians_and_the_fastest_peer() -> None:
    ours = [2e-3] * 5 + [9.0] * 4
    found = compared(ours=ours, slow=[5e-3] * 9, fast=[9.0] * 4 + [3e-3] * 5)
    assert found.latency_ms == 2.0 and found.peers == {"slow": 5.0, "fast": 3.0}
    assert found.fastest == "fast" and found.ratio == pytest.approx(1.5)
    assert list(found.ours.seconds) == ours and found.ours.version == "1"
    assert found.rivals["fast"].peak_bytes == 7


def test_equal_peers_are_told_apart_by_name() -> None:
    assert compared(ours=[1.0] * 9, b=[2.0] * 9, a=[2.0] * 9).fastest == "a"


def test_errors_are_those_of_each_peer() -> None:
    _, sides = stood(ours=[1.0] * 9, near=[1.0] * 9, far=[1.0] * 9)
    sides["near"].outputs = [np.float32([0, 0, 0.5])]
    sides["far"].outputs = [np.float32([4, 0, -8])]
    found = compare(sides.pop("ours"), sides, 9, pause_s=0)
    errors = {name: one.difference.number for name, one in found.rivals.items()}
    assert errors == {"near": 0.5, "far": 1.0}
    assert found.max_error == 1.0


def test_what_cannot_be_compared() -> None:
    _, sides = stood(ours=[1.0] * 9, one=[1.0] * 9)
    ours = sides.pop("ours")
    with pytest.raises(SpecError, match="no peer"):
        compare(ours, {})
    with pytest.raises(SpecError, match=f"at least {LEAST_ROUNDS}"):
        compare(ours, sides, LEAST_ROUNDS - 1)
    sides["one"].outputs = []
    found = compare(ours, sides, 9, pause_s=0)
    assert found.failures == {"one": "one has 0 outputs, ours are 1"} and found.ratio is None
    ours.times = iter([1.0] * 9)
    sides["one"].outputs = [np.zeros((1, 3), np.float32)]
    found = compare(ours, sides, 9, pause_s=0)
    assert found.failures == {"one": "output 0 of one has shape [1, 3], ours [3]"}
    assert found.latency_ms == 1e3 and not found.rivals and found.fastest is None


def test_a_peer_that_fails_leaves_the_others_to_be_timed() -> None:
    log, sides = stood(ours=[1.0] * 9, one=[1.0] * 9, two=[3.0] * 9)
    samples = iter([1.0, 1.0])

    def sample() -> float:
        log.append("one")
        if (seconds := next(samples, None)) is None:
            raise CheckError("one crashed with SIGABRT")
        return seconds

    sides["one"].sample = sample  # type: ignore[method-assign]
    found = compare(sides.pop("ours"), sides, 9, failures={"three": "has no bf16"}, pause_s=0)
    assert found.failures == {"three": "has no bf16", "one": "one crashed with SIGABRT"}
    assert found.peers == {"two": 3e3} and found.ratio == 3.0 and len(found.ours.seconds) == 9
    assert log.count("one") == 3 and log.count("two") == 9


def test_our_own_failure_ends_the_comparison() -> None:
    _, sides = stood(ours=[1.0] * 3, one=[1.0] * 9)
    sides["ours"].times = iter(())
    with pytest.raises(StopIteration):
        compare(sides.pop("ours"), sides, 9, pause_s=0)


def test_a_sample_fills_its_time() -> None:
    runs: list[int] = []
    assert mean_seconds(lambda: runs.append(0), 0.0) > 0 and len(runs) == 1
    mean_seconds(lambda: runs.append(0), 2e-3)
    assert len(runs) > 10


# Peers that are missing, or asked for what they do not have


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_and_networks_have_their_own_peers(name: str) -> None:
    with pytest.raises(
        SpecError, match=f"{name}.*networks, not layers: expected one of torch, onednn$"
    ):
        peer_named(name)
    with pytest.raises(SpecError, match="layers, not networks: expected one of onnxruntime, open"):
        peer_named("torch", "networks")
    with pytest.raises(SpecError, match="'nobody': expected one of onnxruntime, openvino"):
        peer_named("nobody", "networks")


def test_bench_refuses_a_peer_for_networks() -> None:
    ran = polysci("bench", "mb1ic16ih8oc16oh8kh3ph1", "--against", "openvino")
    assert ran.returncode == 2 and "networks, not layers" in ran.stderr, ran.stderr


@pytest.mark.parametrize("name", NETWORKS)
def test_a_peer_that_is_not_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(UnsupportedError, match=rf"{name} is not installed: .*polysci\[peers\]"):
        peer_named(name, "networks")


@pytest.mark.parametrize("name", NETWORKS)
def test_a_package_that_cannot_be_imported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text("raise ImportError('its library is for another CPU')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        NetworkRival(PEERS[name]) as rival,
        pytest.raises(UnsupportedError, match=r"imported: its library.*polysci\[peers\]"),
    ):
        rival.load("model.onnx", X)


@pytest.mark.parametrize("name", NETWORKS)
def test_packages_are_imported_late(name: str) -> None:
    module = PEERS[name].service.partition(":")[0]
    code = f"import {module}, sys; sys.exit({name!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_element_type_that_is_none() -> None:
    with NetworkRival(PEERS["onnxruntime"]) as rival, pytest.raises(SpecError, match="'f64'"):
        rival.load("model.onnx", X, dtype="f64")


def test_bf16_of_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = TimingRequest("model", {}, {}, 1, "bf16")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with pytest.raises(UnsupportedError, match="in bf16 on x86"):
        OnnxRuntime().ways(None, asked)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert list(OnnxRuntime().ways(None, asked))[-1] == "ORT_ENABLE_ALL"


# Ours


def test_our_process_ends_where_the_network_cannot_be_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[bool] = []

    class Side(side.CompiledContestant):
        def close(self) -> None:
            super().close()
            closed.append(not self.alive)

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(side, "store", full)
    options = SimpleNamespace(algorithm="direct", target=SimpleNamespace(isa="portable"))
    network: Any = SimpleNamespace(threads=1, dtype="f32", options=options, inputs=())
    network.code, network.runner = None, SimpleNamespace(library=SimpleNamespace(path=None))
    with pytest.raises(OSError, match="no space left"):
        Side(network, {})
    assert closed == [True]


# A made-up library


@pytest.fixture
def rival(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NetworkRival]:
    """A process that finds the made-up library."""
    folder = tmp_path / "packages" / "onnxruntime"
    folder.mkdir(parents=True)
    shutil.copy(Path(__file__).parents[1] / "support/madeupruntime.py", folder / "__init__.py")
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    with NetworkRival(PEERS["onnxruntime"], 3, timeout=30) as one:
        yield one


def told(tmp_path: Path, **words: Any) -> Path:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(words))
    return path


@pytest.mark.exhaustive
def test_the_fastest_setting_is_kept(rival: NetworkRival, tmp_path: Path) -> None:
    rival.load(told(tmp_path, slow={"99": 2e-2, "2": 1e-3}), X)
    assert (rival.choice, rival.version) == ("ORT_ENABLE_EXTENDED", "9.9")
    assert rival.settings["ORT_ENABLE_ALL"] > 10 * rival.settings["ORT_ENABLE_EXTENDED"] > 0
    total, settings = rival.outputs
    assert total.tolist() == [17.0] and settings.tolist() == [2, 3, 2]  # the free n from a/x
    assert rival.peak_bytes >= 0 and 1e-3 < rival.sample() < 2e-2
    rival.load(told(tmp_path, slow={"99": 1e-3, "2": 2e-2}), X)
    assert rival.choice == "ORT_ENABLE_ALL" and rival.outputs[1].tolist() == [99, 3, 2]


@pytest.mark.exhaustive
def test_dimensions_are_bound_by_name(rival: NetworkRival, tmp_path: Path) -> None:
    rival.load(told(tmp_path, shape=[2, 3]), X, dims={"n": 5})
    assert rival.outputs[1].tolist()[1:] == [3, 5]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("crash", "crashed with SIGABRT"),
        (
            "refuse",
            r"onnxruntime failed: onnxruntime 9\.9: .*model.json: RuntimeError: no kernel f",
        ),
        ("lost", "zip.. argument 2 is shorter"),
    ],
)
def test_faults_while_loading(
    rival: NetworkRival, tmp_path: Path, fault: str, message: str
) -> None:
    with pytest.raises(CheckError, match=message):
        rival.load(told(tmp_path, fault=fault), X)
    rival.load(told(tmp_path), X)  # what comes after is not spoiled
    assert rival.sample() > 0


@pytest.mark.exhaustive
def test_a_peer_that_hangs(rival: NetworkRival, tmp_path: Path) -> None:
    rival.timeout = 2
    with pytest.raises(CheckError, match="ran longer than 2 s and was killed"):
        rival.load(told(tmp_path, fault="hang"), X)
    with pytest.raises(CheckError, match="not running"):
        rival.sample()


def test_a_file_that_is_no_model(rival: NetworkRival, tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"missing\.onnx: FileNotFoundError"):
        rival.load(tmp_path / "missing.onnx", X)


def test_an_input_that_was_not_given(rival: NetworkRival, tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="input 'file' was not given"):
        rival.load(told(tmp_path), {"a/x": X["a/x"]})


def test_outputs_that_are_no_numbers(rival: NetworkRival, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="output 1 has elements of <U4"):
        rival.load(told(tmp_path, fault="text"), X)


# The libraries themselves


@pytest.mark.parametrize("name", NETWORKS)
def test_dimensions_of_one_name_may_have_several_sizes(name: str, tmp_path: Path) -> None:
    """As Paddle writes them: all are called ``?``. Weights lie beside the model."""
    pytest.importorskip(name)
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Add", ["c", "z"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(n, kind, s) for n, s in
             (("x", ["?", 1, "?", "?"]), ("z", ["?", "?"]), ("y", ["?", 4, "?", "?"]))]  # fmt: skip
    graph = helper.make_graph(
        nodes, "free", ports[:2], ports[2:], [onnx.numpy_helper.from_array(weights, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="weights")
    inputs = {"x": np.ones((2, 1, 3, 5), np.float32), "z": np.ones((3, 1), np.float32)}
    with NetworkRival(peer_named(name, "networks")) as rival:
        rival.load(path, inputs)
        wanted = np.broadcast_to(weights.reshape(1, 4, 1, 1) + 1, (2, 4, 3, 5))
        np.testing.assert_array_equal(rival.outputs[0], wanted)
        assert rival.sample() > 0


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bound", ["n", "x.0"])
def test_a_model_with_a_free_dimension(name: str, bound: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = np.arange(6, dtype=np.float32).reshape(3, 2)
    w = onnx.numpy_helper.from_array(weights, "w")
    x, y = (
        helper.make_tensor_value_info(name, kind, ["n", size])
        for name, size in (("x", 3), ("y", 2))
    )
    graph = helper.make_graph([node], "product", [x], [y], [w])
    opset = [helper.make_opsetid("", 17)]
    model, path = helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="weights")
    given = np.ones((4, 3), np.float32)
    with NetworkRival(peer_named(name, "networks")) as rival:
        rival.load(path, {"x": given}, dims={bound: 4})
        np.testing.assert_allclose(rival.outputs[0], given @ weights)
        assert rival.sample() > 0 and rival.version[0].isdigit() and len(rival.settings) == 2
