"""Other libraries beside ours: what they are given, how they are checked, and PyTorch itself."""

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polysci.cli import bench as bench_command
from polysci.cli import main
from polysci.errors import CheckError, SpecError, UnsupportedError
from polysci.numerics.dtypes import PRECISIONS, from_bf16
from polysci.ops.convolutions import Conv2d
from polysci.peers import PEERS
from polysci.peers.contest import PEAK_UNITS, LayerComparison, PeerTimes
from polysci.peers.example_inputs import example_inputs, fault
from polysci.peers.process import peer_named
from polysci.peers.pytorch import service
from polysci.peers.pytorch.operands import Operands, Path, chain
from polysci.peers.pytorch.service import PyTorch
from polysci.runtime.measurement import RECORDED, Measurement
from polysci.space import schedule
from polysci.tune import Result, emit

FLOATS = ("f32", "bf16", "bf16:bf16:f32", "f16", "f16:f16:f32")
WHOLE = ("u8:s8:u8", "u8:s8:s8", "u8:s8:s32", "s8:s8:u8", "s8:s8:s8", "s8:s8:s32")
SHAPES = {
    "dense": Conv2d(N=2, C=24, H=9, W=8, K=40, R=3, S=3, pad=1),
    "pointwise": Conv2d(N=1, C=32, H=7, W=7, K=64, R=1, S=1, stride=2),
    "depthwise": Conv2d(N=1, C=32, H=10, W=10, K=32, R=3, S=3, pad=1, groups=32),
    "lopsided": Conv2d(N=1, C=8, H=10, W=10, K=16, R=3, S=3, stride=2, P=5, Q=5),
    "dilated": Conv2d(N=1, C=16, H=12, W=12, K=16, R=3, S=3, pad=2, dilation=2, groups=2),
}


# What a peer is given


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_the_expected_result_is_that_of_plain_loops(dtype: str, layout: str) -> None:
    problem = Conv2d(N=1, C=4, H=5, W=4, K=6, R=3, S=2, pad=1, groups=2, layout=layout)
    found = example_inputs(problem, dtype, 1)
    scale = np.ones(problem.K) if found.scale is None else found.scale.astype(float)
    exact = _loops(problem, _real(found.x), _real(found.w)) * scale[:, None, None]
    got = found.expected if layout == "nchw" else found.expected.transpose(0, 3, 1, 2)
    wide = {"u8": (0, 255), "s8": (-128, 127)}.get(found.elements[2])
    if wide:
        np.testing.assert_array_equal(got, np.clip(np.rint(exact), *wide))
        inside = np.mean((got > wide[0]) & (got < wide[1]))
        assert inside > 0.3  # else hardly anything would be compared
    else:
        np.testing.assert_allclose(got, exact, rtol=2**-8 if dtype == "bf16" else 2**-11)


def _real(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (from_bf16(array) if array.dtype == np.uint16 else array).astype(np.float64)


def _loops(problem: Conv2d, x: Any, w: Any) -> np.ndarray[Any, Any]:
    """Sums as (N, K, P, Q); every tap inside the image, one at a time."""
    x = x.transpose(0, 3, 1, 2) if problem.layout == "nhwc" else x
    y = np.zeros((problem.N, problem.K, problem.P, problem.Q))
    depth, out = problem.C // problem.groups, problem.K // problem.groups
    for n, k, p, q in np.ndindex(*y.shape):
        for c, r, s in np.ndindex(depth, problem.R, problem.S):
            row, col = p + r - problem.pad[0], q + s - problem.pad[1]
            if 0 <= row < problem.H and 0 <= col < problem.W:
                y[n, k, p, q] += x[n, k // out * depth + c, row, col] * w[k, c, r, s]
    return y


# How results are judged


@pytest.mark.parametrize(
    ("element", "error", "wrong"),
    [
        ("f32", 0.005, False), ("f32", 0.02, True), ("bf16", 0.3, False), ("bf16", 0.5, True),
        ("f16", 0.05, False), ("f16", 0.2, True), ("s32", 0, False), ("s32", 1, True),
        ("u8", 1, False), ("u8", 2, True), ("s8", -1, False), ("s8", -2, True),
        ("f32", np.nan, True), ("u8", np.nan, True),
    ],
)  # fmt: skip
def test_how_far_results_may_be(element: str, error: float, wrong: bool) -> None:
    expected = np.array([100, -3, 0], np.float32)
    found = fault(expected + np.array([0, error, 0], np.float32), expected, element)
    assert (found is not None) is wrong
    assert found is None or "differs from the reference" in found


class Tensor:
    """As much of a tensor as is asked when a result is checked."""

    is_quantized = False

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values

    shape = property(lambda self: self.values.shape)

    def movedim(self, source: int, to: int) -> "Tensor":
        return Tensor(np.moveaxis(self.values, source, to))

    def is_contiguous(self) -> bool:
        return bool(self.values.flags.c_contiguous)

    def stride(self) -> tuple[int, ...]:
        return self.values.strides

    def float(self) -> "Tensor":
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.values


class Stand:
    """Paths of a made-up library in place of PyTorch's, by name: a result, or an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **paths: Any) -> None:
        self.copies: list[Any] = []  # of w
        fake = SimpleNamespace(__version__="0", inference_mode=contextlib.nullcontext)
        monkeypatch.setattr(service, "_torch", lambda threads: fake)
        w = SimpleNamespace(clone=lambda: self.copies.append(w) or w)
        of = lambda torch, conv, given: Operands(torch, conv, given, None, w, [0, 0], "")  # noqa: E731
        monkeypatch.setattr(Operands, "of", of)
        ways = dict.fromkeys(service.WAYS, lambda operands: self._paths(operands, paths))
        monkeypatch.setattr(service, "WAYS", ways)

    def _paths(self, operands: Operands, paths: dict[str, Any]) -> Iterator[Path]:
        for name, change in paths.items():
            yield Path(name, lambda change=change: lambda: self._run(operands, change), "f32")

    @staticmethod
    def _run(operands: Operands, change: Any) -> Tensor:
        if isinstance(change, Exception):
            raise change
        y = operands.inputs.expected
        y = y if operands.conv.layout == "nchw" else y.transpose(0, 3, 1, 2)
        return Tensor(change(y))


def prepared(layout: str = "nhwc", dtype: str = "f32") -> tuple[PyTorch, dict[str, Any]]:
    peer = PyTorch()
    return peer, peer.prepare(str(SHAPES["dense"]), layout, dtype, 1, 0)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_paths_that_are_refused_are_named(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    Stand(monkeypatch, good=lambda y: y, bad=RuntimeError("no such instruction\nstack"))
    peer, answer = prepared(layout)
    assert answer["paths"] == ["good"] and answer["refused"] == {"bad": "no such instruction"}
    assert peer.load(1e-5)["path"] == "good" and peer.sample(0.0)["seconds"] > 0


def test_where_every_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Stand(monkeypatch, one=RuntimeError("no f16"), two=RuntimeError("nor this"))
    with pytest.raises(CheckError, match="PyTorch 0 has no f16 here: one: no f16; two: nor this"):
        prepared(dtype="f16")


def test_a_wrong_result_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    Stand(monkeypatch, good=lambda y: y, bad=lambda y: y + 1)
    with pytest.raises(CheckError, match="bad: differs from the reference by 1"):
        prepared()


@pytest.mark.parametrize("change", [lambda y: y[:, :-1], lambda y: y.transpose(0, 1, 3, 2)])
def test_a_result_of_another_form_is_a_fault(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    Stand(monkeypatch, bad=change)
    with pytest.raises(CheckError, match="bad: result of shape"):
        prepared()


def test_the_fastest_path_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(y: Any) -> Any:
        for _ in range(200):
            y = y + 0
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(y, 1, -1)), -1, 1)

    Stand(monkeypatch, a_slow=slow, b_fast=lambda y: y, c_slow=slow)
    peer, _ = prepared()
    chosen = peer.load(1e-5)
    assert chosen["path"] == "b_fast" and set(chosen["seconds"]) == {"a_slow", "b_fast", "c_slow"}


def test_cold_calls_of_pytorch_have_weights_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(monkeypatch, good=lambda y: y)
    peer, _ = prepared()
    size = 4 * SHAPES["dense"].K * SHAPES["dense"].C * 9
    assert peer.load(1e-5, 7 * size)["path"] == "good" and len(stand.copies) == 7
    assert peer.sample(0.0, cold=True)["seconds"] > 0
    peer.load(1e-5)
    assert len(stand.copies) == 7


def test_without_pytorch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CheckError, match="PyTorch cannot be imported"):
        prepared()


@pytest.mark.exhaustive
def test_pytorch_is_imported_late() -> None:
    code = "import polysci.peers.pytorch.service, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_element_has_its_ways() -> None:
    assert set(service.WAYS) == {precision.x.name for precision in PRECISIONS.values()}
    assert chain(1, [lambda x: x + 1])() == 2
    assert chain(1, [lambda x: x + 1, lambda x: x * 5])() == 10


def test_a_peer_that_is_none() -> None:
    with pytest.raises(SpecError, match="'nobody'"):
        peer_named("nobody")
    if importlib.util.find_spec("torch") is None:
        with pytest.raises(UnsupportedError, match=r"polysci\[peers\]"):
            peer_named("torch")


# What bench says


def compared(measurement: Measurement | None = None) -> bench_command.ComparedLayer:
    """A layer and its peer, and the measurement by which our schedule was chosen."""
    torch = PeerTimes("torch", "a call", "9", {"a call": 3e-6, "another": 4e-6}, (3e-6,) * 9)
    times = LayerComparison(SHAPES["dense"], (2e-6,) * 9, (torch,), 500.0, PEAK_UNITS["i8"])
    plan = schedule.parse("n p q k:4 > brgemm_portable_f32_1x4")
    source = emit(SHAPES["dense"], plan)
    result = Result(SHAPES["dense"], plan, source, 1e-6, measurement, (), 0.0, "measure", 1)
    return bench_command.ComparedLayer(times, result)


def test_bench_says_where_schedules_come_from() -> None:
    quiet = Measurement((2e-6,), 1, "schedule", "made up", 1, "here")
    layers = [
        compared(quiet),
        compared(replace(quiet, protocol=RECORDED)),
        compared(replace(quiet, protocol=RECORDED, dropped=0.9)),
    ]
    table = bench_command.write_table(layers, [], 80)
    assert "2 of 3 schedules from records of earlier searches" in table
    assert "1 of 3 schedules chosen by disturbed measurements" in table
    assert "record" not in bench_command.write_table(layers[:1], [], 80)
    rows = [json.loads(line) for line in bench_command.write_json(layers, []).splitlines()[:-1]]
    assert [row["schedule_recorded"] for row in rows] == [False, True, True]
    assert [row["schedule_disturbed"] for row in rows] == [False, False, True]


def test_bench_names_precision_and_peak() -> None:
    layer = compared()
    table = bench_command.write_table([layer], [], None)
    assert "f32, ratio to torch 9: geomean 1.500" in table and "8-bit dot product peak" in table
    row, summary = map(json.loads, bench_command.write_json([layer], []).splitlines())
    assert row["peer_paths"] == {"a call": 3e-6, "another": 4e-6}
    assert (row["dtype"], row["peak_unit"], row["path"]) == ("f32", "8-bit dot product", "a call")
    assert summary["summary"]["dtype"] == "f32"
    assert summary["summary"]["peak_unit"] == "8-bit dot product"
    needed = SHAPES["dense"].multiplied_flops
    assert row["peak_fraction"] == pytest.approx(needed / 2e-6 * 1e-9 / 500)
    lines = bench_command.write_json([], [("layer", "fault")]).splitlines()
    nothing = json.loads(lines[-1])["summary"]
    assert nothing["peak_unit"] is None and nothing["failed"] == 1


@pytest.mark.exhaustive
def test_bench_times_ours_where_the_peer_lacks_the_operator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "nest C[24][32]+=A[24][16]*B[16][32] for i:24 j:32 k:16 : C[i][j] A[i][k] B[k][j]"
    monkeypatch.setattr("polysci.peers.process.peer_named", lambda name: PEERS[name])
    command = ["bench", text, "--against", "torch", "--level", "estimate", "--rounds", "9"]
    assert main([*command, "--threads", "1"]) == 0
    table = capsys.readouterr().out
    assert "torch: no such operator here" in table and "ratio to" not in table
    assert main([*command, "--threads", "1", "--json"]) == 0
    row, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert row["gflops"] > 0 and row["rounds"] == 9 and row["ratio"] is row["peer_seconds"] is None
    assert summary["summary"]["peer"] is summary["summary"]["min_ratio"] is None
    assert summary["summary"]["failed"] == 0
