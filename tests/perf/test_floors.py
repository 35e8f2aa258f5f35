"""Opt-in floors, ``pytest -m perf -s``, for an idle machine: each prints its figure."""

import importlib.util
import json
import subprocess
import sys
import time
import timeit

import numpy as np
import pytest

import polysci
from polysci.cost import traffic
from polysci.cost.rankers import space_of
from polysci.cost.shortlist import choices
from polysci.ops.layer_lists import load
from polysci.target.machine import Machine
from polysci.tune import context_of

pytestmark = pytest.mark.perf


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(("layout", "floor"), [("nhwc", 1.05), ("nchw", 1.15)])
def test_resnet50_beside_onednn(machine: Machine, layout: str, floor: float) -> None:
    command = [sys.executable, "-m", "polysci", "bench", "resnet50", "--against", "torch"]
    done = subprocess.run(
        [*command, "--threads", "1", "--layout", layout, "--json"],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    print(f"resnet50 {layout}, 1 thread, peer's time over ours: {summary}")
    assert summary["geomean_ratio"] >= floor


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_call_costs_less_than_5_us(machine: Machine, fused: bool) -> None:
    problem = polysci.Conv2d(N=1, C=1, H=1, W=1, K=1, R=1, S=1)
    prim = polysci.compile(problem, "estimate")
    x, w, bias, residual = (np.ones(s, np.float32) for s in [(1,) * 4, (1,) * 4, (1,), (1,) * 4])
    wp, out = prim.pack_weights(w), np.empty_like(residual)
    rest = {"bias": bias, "residual": residual, "activation": "relu"} if fused else {}
    seconds = min(timeit.repeat(lambda: prim(x, wp, out=out, **rest), number=20_000, repeat=5))
    print(f"a call costs {seconds / 20_000 * 1e6:.2f} us")
    assert seconds / 20_000 < 5e-6


def test_100_000_schedules_a_second(machine: Machine) -> None:
    """The ranker over the whole space of ResNet-50's layers, and the choice with all around it."""
    count, ranking, choosing = 0, 0.0, 0.0
    for problem in load("resnet50"):
        context = context_of(problem)
        families = list(space_of(context, 8, 2))
        start = time.perf_counter()
        count += sum(len(traffic(context, family).seconds) for family in families)
        ranking += time.perf_counter() - start
        start = time.perf_counter()
        choices(context, 10)
        choosing += time.perf_counter() - start
    print(f"{count / ranking:,.0f} schedules/s ranked, {count / choosing:,.0f} with enumeration")
    assert count / ranking >= 100_000
