"""Several peers in one run, warm and cold: who takes turns, what counts, what is printed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from polysci.cli import bench as bench_command
from polysci.errors import CheckError, UnsupportedError
from polysci.measure.bench import Bench
from polysci.measure.samples import MOST_TURNS, Sample, Samples
from polysci.ops.convolutions import Conv2d
from polysci.ops.problem import Problem
from polysci.peers import PEERS, Peer
from polysci.peers.contest import LayerComparison, PeerTimes
from polysci.space import schedule
from polysci.tune import Result, emit
from tests.support.command import done, polysci
from tests.support.load import busy

LAYER = "mb1ic16ih8oc16oh8kh3ph1"
PROBLEM = Conv2d(N=1, C=16, H=8, W=8, K=16, R=3, S=3, pad=1)


class StandIn:
    """A peer that takes made-up times: ``SECONDS`` by name, cold ones a hundred times as long."""

    SECONDS: ClassVar[dict[str, float]] = {"torch": 1e-3, "onednn": 2e-3}
    WAITED: ClassVar[dict[str, float]] = {}  # of a sample's time
    calls: ClassVar[list[tuple[str, str]]] = []  # of all of them

    def __init__(self, peer: Peer, threads: int = 1, *, library: str | None = None) -> None:
        self.peer, self.threads, self.library = peer, threads, library

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.calls.append((self.peer.name, "close"))

    def open(self) -> None:
        self.calls.append((self.peer.name, f"open {self.library}"))

    def accepts(self, problem: Problem) -> bool:
        return isinstance(problem, Conv2d)

    def prepare(self, problem: Problem, cold_bytes: int) -> tuple[str, str, dict[str, float]]:
        self.calls.append((self.peer.name, "prepare cold" if cold_bytes else "prepare"))
        if self.SECONDS[self.peer.name] < 0:
            raise UnsupportedError("has no f32 here")
        return f"way of {self.peer.name}", "7.1", {f"way of {self.peer.name}": 1.0}

    def sample(self, cold: bool = False) -> Sample:
        self.calls.append((self.peer.name, "cold" if cold else "warm"))
        waited = self.WAITED.get(self.peer.name, 0.0)
        return Sample(self.SECONDS[self.peer.name] * (100 if cold else 1), waited)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[StandIn]]:
    monkeypatch.setattr("polysci.peers.process.LayerRival", StandIn)
    monkeypatch.setattr("polysci.peers.process.peer_named", lambda name: PEERS[name])
    monkeypatch.setattr(StandIn, "calls", [])
    monkeypatch.setattr("polysci.peers.contest.cold_size", lambda: 1 << 18)
    yield StandIn


def bench(*words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    command = ("bench", LAYER, *words, "--level", "estimate", "--rounds", "9", "--threads", "1")
    row, summary = map(json.loads, done(*command, "--json").splitlines())
    return row, summary["summary"]


@pytest.mark.exhaustive
def test_all_peers_take_turns(stand_in: type[StandIn]) -> None:
    row, summary = bench("--against", "torch,onednn", "--cold", "--library", "somewhere")
    assert row["peer"] == "torch" and row["path"] == "way of torch" and row["rounds"] == 9
    assert row["ratio"] == pytest.approx(1e-3 / row["seconds"])
    assert row["cold_ratio"] == pytest.approx(1e-1 / row["cold_seconds"])
    assert row["peers"]["onednn"]["ratio"] == pytest.approx(2 * row["ratio"])
    assert row["peers"]["onednn"]["cold_seconds"] == pytest.approx(0.2)
    assert summary["min_ratio"] == row["ratio"] and summary["cold_min_ratio"] == row["cold_ratio"]
    assert summary["peers"]["onednn 7.1"]["geomean_ratio"] == pytest.approx(2 * row["ratio"])
    opened, ended = stand_in.calls[:4], stand_in.calls[-2:]
    assert opened[:2] == [("torch", "open None"), ("onednn", "open somewhere")]
    assert opened[2:] == [("torch", "prepare cold"), ("onednn", "prepare cold")]
    assert sorted(ended) == [("onednn", "close"), ("torch", "close")]
    a_round = [("torch", "warm"), ("onednn", "warm"), ("torch", "cold"), ("onednn", "cold")]
    assert stand_in.calls[4:12] == [*a_round, *reversed(a_round)]
    assert len(stand_in.calls[4:-2]) == 9 * len(a_round)


@pytest.mark.exhaustive
def test_of_several_runs_the_least_median_of_each_side_counts(
    monkeypatch: pytest.MonkeyPatch, stand_in: type[StandIn]
) -> None:
    seconds = {"torch": iter([3e-3] * 9 + [1e-3] * 9 + [2e-3] * 9), "onednn": iter([2e-3] * 27)}
    monkeypatch.setattr(
        StandIn, "sample", lambda it, cold=False: Sample(next(seconds[it.peer.name]))
    )
    row, summary = bench("--against", "torch,onednn", "--repeats", "3")
    assert row["repeats"] == 3 and row["rounds"] == 9 and summary["layers"] == 1
    peers = row["peers"]
    assert (peers["torch"]["seconds"], peers["onednn"]["seconds"]) == (1e-3, 2e-3)
    assert row["peer"] == "torch" and row["ratio"] == pytest.approx(1e-3 / row["seconds"])


@pytest.mark.exhaustive
def test_a_peer_may_fail_in_a_later_run(
    monkeypatch: pytest.MonkeyPatch, stand_in: type[StandIn]
) -> None:
    calls = iter([False] * 9 + [True])

    def sample(it: StandIn, cold: bool = False) -> Sample:
        if next(calls):
            raise CheckError("torch ended")
        return Sample(1e-3)

    monkeypatch.setattr(StandIn, "sample", sample)
    words = ("--level", "estimate", "--rounds", "9", "--threads", "1", "--repeats", "2")
    ran = polysci("bench", LAYER, "--against", "torch", *words)
    assert ran.returncode == 0, ran.stdout
    assert "ratio to torch 7.1: geomean" in ran.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("when", ["prepare", "sample"])
def test_a_peer_that_fails_leaves_the_others_to_be_timed(
    when: str, monkeypatch: pytest.MonkeyPatch, stand_in: type[StandIn]
) -> None:
    right = getattr(StandIn, when)

    def fail(it: StandIn, *arguments: Any) -> Any:
        if it.peer.name == "torch":
            raise CheckError("crashed with SIGABRT")
        return right(it, *arguments)

    monkeypatch.setattr(StandIn, when, fail)
    row, summary = bench("--against", "torch,onednn")
    assert row["peer"] == "onednn" and summary["failed"] == 0 and summary["layers"] == 1
    assert row["peers"]["torch"]["path"] == "torch: crashed with SIGABRT"
    assert row["peers"]["torch"]["ratio"] is None and row["seconds"] > 0


@pytest.mark.exhaustive
def test_peers_named_one_by_one(stand_in: type[StandIn]) -> None:
    row, summary = bench("--against", "onednn", "--against", "torch")
    assert list(row["peers"]) == ["onednn", "torch"] and row["peer"] == "torch"
    assert "cold_ratio" not in row and "cold_min_ratio" not in summary
    assert {call for _, call in stand_in.calls} == {"open None", "prepare", "warm", "close"}


@pytest.mark.exhaustive
def test_a_peer_that_lacks_the_precision(
    monkeypatch: pytest.MonkeyPatch, stand_in: type[StandIn]
) -> None:
    monkeypatch.setitem(StandIn.SECONDS, "torch", -1.0)
    row, summary = bench("--against", "torch,onednn")
    assert row["peer"] == "onednn" and row["ratio"] == row["peers"]["onednn"]["ratio"]
    lacking = row["peers"]["torch"]
    assert lacking["path"] == "torch: has no f32 here" and lacking["ratio"] is None
    assert list(summary) and summary["peer"] == "onednn 7.1" and "peers" not in summary
    assert ("torch", "warm") not in stand_in.calls
    row, summary = bench("--against", "torch")
    assert row["ratio"] is summary["peer"] is None and row["path"] == "torch: has no f32 here"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("torch,torch",), "--against: torch is there twice"),
        (("torch", "--against", "onednn, torch"), "torch is there twice"),
        (("torch,nobody",), "'nobody'"),
        (("torch", "--library", "x.so"), "--library x.so: no peer among torch takes one"),
    ],
)
def test_wrong_peers(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    ran = polysci("bench", LAYER, "--against", *words)
    assert ran.returncode == 2 and message in ran.stderr


@pytest.mark.exhaustive
def test_a_library_that_is_not_there_ends_the_run() -> None:
    ran = polysci("bench", LAYER, "--against", "onednn", "--library", "/nowhere/libdnnl.so")
    assert ran.returncode == 1 and "oneDNN: no library /nowhere/libdnnl.so" in ran.stderr
    assert "pip install onednn-cpu-gomp" in ran.stderr and "GFLOP" not in ran.stderr


# What is printed


def layer(*peers: PeerTimes, cold: tuple[float, ...] = ()) -> bench_command.ComparedLayer:
    times = LayerComparison(PROBLEM, (2e-6,) * 9, peers, 500.0, "FMA", cold)
    plan = schedule.parse("n p q k:4 > brgemm_portable_f32_1x4")
    source = emit(PROBLEM, plan)
    return bench_command.ComparedLayer(
        times, Result(PROBLEM, plan, source, 1e-6, None, (), 0.0, "estimate", 1)
    )


def test_the_ratio_is_to_the_fastest_of_each_layer() -> None:
    torch = PeerTimes("torch", "a call", "9", {}, (3e-6,) * 9, (9e-6,) * 9)
    onednn = PeerTimes("onednn", "brgconv", "3.2", {}, (1e-6,) * 9, (8e-6,) * 9)
    slower = PeerTimes("onednn", "brgconv", "3.2", {}, (4e-6,) * 9, (5e-6,) * 9)
    lacking = PeerTimes("onednn", "onednn: has no f16 here")
    layers = [layer(torch, other, cold=(4e-6,) * 9) for other in (onednn, slower, lacking)]
    lines = bench_command.write_table(layers, [], None).splitlines()
    assert lines[0].split("  ")[-1].strip() == "fastest peer's path"
    assert "to torch 9" in lines[0] and "to onednn 3.2" in lines[0] and "cold ratio" in lines[0]
    cells = [[cell for cell in line.split("  ") if cell.strip()] for line in lines[1:4]]
    assert [[cell.strip() for cell in row[4:7]] for row in cells] == [
        ["1.500", "0.500", "0.500"], ["1.500", "2.000", "1.500"], ["1.500", "-", "1.500"],
    ]  # fmt: skip
    assert [row[8].strip() for row in cells] == ["2.000", "1.250", "2.250"]
    assert [row[-1].strip() for row in cells] == [
        "onednn: brgconv", "torch: a call", "torch: a call",
    ]  # fmt: skip
    text = "\n".join(lines)
    assert "onednn: has no f16 here" in text
    assert "ratio to the fastest peer of each layer: geomean 1.040, least 0.500" in text
    assert "ratio to torch 9: geomean 1.500, least 1.500" in text
    assert "ratio to onednn 3.2: geomean 1.000, least 0.500" in text
    assert "with weights from memory: geomean 1.778, least 1.250" in text


def test_shares_of_the_peak_leave_out_taps_in_the_padding() -> None:
    compared = layer(PeerTimes("torch", "a call", "9", {}, (3e-6,) * 9))
    share = PROBLEM.multiplied_flops / 2e-6 * 1e-9 / 500
    assert compared.row()["peak_fraction"] == pytest.approx(share)
    assert share * (24 / 22) ** 2 == pytest.approx(compared.row()["gflops"] / 500)
    table = bench_command.write_table([compared], [], None)
    assert f"{100 * share:.1f} % of the FMA peak measured in this run" in table
    assert "taps in the padding do not count" in table


def test_a_single_peer_has_its_time() -> None:
    table = bench_command.write_table([layer(PeerTimes("torch", "a call", "9", {}, (3e-6,) * 9))],
                                    [], None)  # fmt: skip
    assert table.splitlines()[0].split() == [
        *("layer", "GFLOP/s", "%", "of", "peak", "ours", "torch", "9", "ratio", "peer's", "path")
    ]
    assert "3.0 us  1.500  a call" in table and "cold" not in table


@pytest.mark.exhaustive
def test_a_disturbed_peer_is_repeated_and_marked(
    stand_in: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "WAITED", {"onednn": 0.5})
    row, summary = bench("--against", "torch,onednn")
    assert row["peers"]["onednn"]["disturbed"] and row["peers"]["onednn"]["dropped"] == 1
    assert not row["peer_disturbed"] and summary["disturbed"] == 1
    turns = [name for name, word in stand_in.calls if word == "warm"]
    assert turns.count("onednn") == 3 * 9 and turns.count("torch") == 9
    table = done("bench", LAYER, "--against", "onednn", "--level", "estimate", "--rounds", "9")
    assert "2000.0 us (!)" in table and "(!): other work disturbed most samples of 1 of 1" in table


@pytest.mark.exhaustive
def test_a_disturbed_peak_is_repeated_and_marked(
    stand_in: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, probed = list[str](), Samples([Sample(1e-12, waited=0.5)])

    def probe(bench: Bench, so: Path, symbol: str, *_: Any, **__: Any) -> Samples:
        runs.append(symbol)
        return probed

    monkeypatch.setattr(Bench, "probe", probe)
    row, summary = bench("--against", "torch")
    assert row["peak_disturbed"] and summary["disturbed"] == 1
    assert runs == ["peak"] * 2 * MOST_TURNS  # before and after
    table = done("bench", LAYER, "--against", "torch", "--level", "estimate", "--rounds", "9")
    assert "(!): other work disturbed most samples of 1 of 1" in table
    assert summary["peak_disturbed"] and "% (!) of the FMA peak measured in this run" in table
    probed.taken.append(Sample(2e-12))
    row, _ = bench("--against", "torch")
    assert not row["peak_disturbed"] and row["peak_gflops"] == pytest.approx(500)


@pytest.mark.exhaustive
def test_what_load_on_the_core_slows_down_is_marked(
    stand_in: type[StandIn], users_policy: None
) -> None:
    alone, _ = bench("--against", "torch")
    allowed = os.sched_getaffinity(0)
    if 0 not in allowed:
        pytest.skip("the first processor is not ours")
    os.sched_setaffinity(0, {0})
    try:
        with busy(0, 0, 0):
            row, summary = bench("--against", "torch")
    finally:
        os.sched_setaffinity(0, allowed)
    # Samples that the scheduler left alone are right, and those alone count where there are some.
    slower = row["seconds"] > 1.5 * alone["seconds"]
    assert row["disturbed"] or not slower
    assert summary["disturbed"] or not (row["disturbed"] or row["peer_disturbed"])
