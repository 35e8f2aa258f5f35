"""The page and the trace of a whole model: whole, true to the account, and errors that say why."""

from __future__ import annotations

import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from polysci import compile_network
from polysci.cli import main
from polysci.network import account
from polysci.network.account import NetworkAccount, account_of
from polysci.report.network_page import NetworkPage, network_page, trace_text
from tests.report.test_report import sound
from tests.support.flags import QUICK
from tests.support.onnxmodels import model, node, reals

RATES = {"L2": 90.0, "L3": 40.0, "memory": 10.0}
SCRIPT = "<script>alert(1)</script>"


def small() -> onnx.ModelProto:
    """Two convolutions, one of which is read twice, and a loop that no layer takes."""
    nodes = [
        node("Conv", "x w", SCRIPT, pads=[1, 1, 1, 1]), node("Relu", SCRIPT, "r"),
        node("Conv", "r v", "c", pads=[1, 1, 1, 1]), node("Add", "c r", "a"),
        node("Softmax", "a", "y", axis=1),
    ]  # fmt: skip
    weights = {"w": reals(8, 3, 3, 3), "v": reals(8, 8, 3, 3, seed=1)}
    return model(nodes, {"x": [1, 3, 10, 12]}, {"y": None}, weights)


@pytest.fixture(scope="module")
def told() -> NetworkAccount:
    return account_of(compile_network(small(), "estimate", 2, isa="portable", flags=QUICK))


def page_of(told: NetworkAccount) -> str:
    machine = told.network.options.rates
    return network_page(NetworkPage(told, machine, RATES, "2025-01-31 12:00", "0"))


def test_stages_are_counted(told: NetworkAccount) -> None:
    layers = [stage for stage in told.stages if stage.kind == "layer"]
    pixels = 10 * 12
    assert [stage.flops for stage in layers] == [2 * 9 * 3 * 8 * pixels, 2 * 9 * 8 * 8 * pixels]
    rows, columns = 3 * 10 - 2, 3 * 12 - 2  # pairs of an output and a tap inside the image
    inside = 2 * 8 * rows * columns
    assert [stage.multiplied for stage in layers] == [3 * inside, 8 * inside]
    first, second = layers
    assert (first.read, first.written, first.weights) == (
        4 * 3 * pixels, 4 * 8 * pixels, 4 * 8 * 27,
    )  # fmt: skip
    assert second.read == 2 * 4 * 8 * pixels  # what it multiplies, and what it adds, lie apart
    assert all(stage.seconds >= 0 and stage.threads in (1, 2) for stage in told.stages)


def test_flops_of_loops() -> None:
    nodes = [node("Mul", "x x", "s"), node("ReduceSum", "s", "y", keepdims=0)]
    network = compile_network(
        model(nodes, {"x": [4, 5]}, {"y": []}), "estimate", isa="portable", flags=QUICK
    )
    program = network.prepared.program
    counts = [account.flops_of(program, stage) for stage in program.stages]
    assert sum(count or 0 for count in counts) >= 2 * 20  # a product and a sum an element


def test_buffers_that_live_together_lie_apart(told: NetworkAccount) -> None:
    assert told.buffers
    for buffer in told.buffers:
        assert buffer.offset >= 0 and buffer.offset + buffer.size <= told.report.arena
    for one, other in combinations(told.buffers, 2):
        if one.first <= other.last and other.first <= one.last:
            apart = one.offset + one.size <= other.offset or other.offset + other.size <= one.offset
            assert apart, (one, other)
    assert max(told.live(at) for at in range(len(told.stages))) <= told.report.arena


def test_reasons_are_those_of_the_passes(told: NetworkAccount) -> None:
    refusals = {(fusion.tensor, fusion.refusal) for fusion in told.fusions if not fusion.done}
    reasons = {(pair.tensor, reason) for pair in told.apart for reason in pair.reasons}
    assert {row for row in reasons if row[1] != account.UNCONSIDERED} <= refusals
    assert any("another stage reads it, too: " in reason for _, reason in reasons)
    assert any("a layer ends with a residual" in reason for _, reason in reasons)


def test_the_page(told: NetworkAccount) -> None:
    text = page_of(told)
    page = sound(text)
    assert SCRIPT not in text and "script" not in page.tags
    for at in range(1, 1 + len(told.stages)):
        assert f"stage-{at}" in page.ids
    assert {target.removeprefix("#") for target in page.targets} <= {*page.ids}
    words = " ".join(page.text)
    for title in ("Look at first", "Roofline of all stages", "Memory over time", "Not fused, and",
                  "another stage reads it, too", "Layouts, conversions and threads"):  # fmt: skip
        assert title in words
    rows = [stage.name for stage in sorted(told.stages, key=lambda stage: -stage.seconds)]
    assert words.count(rows[-1]) >= 1


def check_trace(trace: dict[str, Any]) -> None:
    """What the trace-event format demands of an object of complete events and counters."""
    names, spans = dict[int, str](), list[tuple[int, float, float]]()
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str) and event["pid"] == 1
        match event["ph"]:
            case "M":
                assert event["name"] in ("process_name", "thread_name")
                if event["name"] == "thread_name":
                    names[event["tid"]] = event["args"]["name"]
            case "X":
                assert event["dur"] >= 0 and event["ts"] >= 0 and event["cat"]
                spans.append((event["tid"], event["ts"], event["ts"] + event["dur"]))
            case "C":
                assert event["args"].keys() == {"bytes"} and event["args"]["bytes"] >= 0
            case other:
                raise AssertionError(f"an event of phase {other}")
    assert {thread for thread, *_ in spans} == {*names}
    for thread in names:
        own = sorted((start, end) for number, start, end in spans if number == thread)
        for (_, end), (start, _) in pairwise(own):
            assert start >= end - 1e-3, f"two events of {names[thread]} overlap"


def test_the_trace(told: NetworkAccount) -> None:
    trace = json.loads(trace_text(told))
    check_trace(trace)
    events = trace["traceEvents"]
    stages = [event for event in events if event["ph"] == "X" and "stage" in event["args"]]
    first = [event for event in stages if event["args"]["run"] == 0]
    assert len(first) == sum(stage.threads for stage in told.stages)
    for event in first:
        stage = told.stages[event["args"]["stage"]]
        assert event["args"]["flops"] == stage.flops and event["args"]["bytes"] == stage.bytes
        assert event["args"]["schedule"] == (stage.schedule or "none")
        marks = told.runs[0].marks
        assert event["ts"] == pytest.approx(1e6 * marks[stage.position], abs=1e-3)
    runs = [event for event in events if event["ph"] == "X" and event["cat"] == "run"]
    assert len(runs) == account.RUNS
    assert max(e["args"]["bytes"] for e in events if e["ph"] == "C") <= told.report.arena


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    words = ["--level", "estimate", "-o", str(page), "--trace", str(trace)]
    assert main(["report", "mlp:4x16x24x8 act=relu", *words]) == 0
    told = capsys.readouterr().err
    assert "timing stages" in told and "ui.perfetto.dev" in told
    sound(page.read_text())
    check_trace(json.loads(trace.read_text()))
    program = tmp_path / "sums.tc"
    program.write_text("def sums(float(N,K) A) -> (S) { S(i) +=! A(i,k) }")
    dims = ["--dim", "N=4", "--dim", "K=6"]
    assert main(["report", str(program), *dims, "--level", "estimate", "-o", str(page)]) == 0
    assert "sums" in page.read_text()
    assert np.all([path.exists() for path in (page, trace)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mm:8x8x8", "--dim", "n=4"], "--dim: an option for a whole model"),
        (["mm:8x8x8", "--trace", "t.json"], "--trace: an option for a whole model"),
        (["mlp:4x8x8", "--layout", "nchw"], "--layout: an option for layers"),
        (["mlp:4x8x8", "--dir", "bwd_d"], "--dir: an option for layers"),
        (["mlp:4x8x8", "mm:8x8x8"], "a page is of one model, or of layers"),
        (["mlp:4x8x8", "--dtype", "int8"], "a model is computed in f32 or bf16"),
        (["mlp:4x8x8", "--trace", "/nowhere/t.json"], "--trace /nowhere/t.json: cannot be written"),
        (["mlp:4x8x8", "--trace", "{out}"], "the page itself; give another file"),
        (["absent.onnx"], "absent.onnx"),
    ],
)
def test_bad_input(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    given = [word.format(out=out) for word in words]
    assert main(["report", *given, "--level", "estimate", "-o", str(out)]) in (1, 2)
    assert message in capsys.readouterr().err and not out.exists()
