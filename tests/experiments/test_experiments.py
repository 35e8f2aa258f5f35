"""The experiments' scripts, as people start them, on samples whose times are made up."""

import csv
import importlib.util
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import plots, records
from experiments.records import Sample
from polysci import tune
from polysci.cost import RANKERS
from polysci.cost.shortlist import cost_of, estimate_of
from polysci.ops import parse_problem
from polysci.ops.problem import Problem
from polysci.polyhedral.footprint import load_bound_bytes
from polysci.runtime.measurement import Measurement, host_of, protocol
from polysci.space import schedule
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.target.target import Target
from polysci.tune.calibrate import machine_path
from polysci.tune.wisdom import Wisdom
from tests.support import samples
from tests.support.scripts import run_script

FOLDER = Path(__file__).parents[2] / "experiments"
SCRIPTS = ("rank_quality", "order_or_knobs", "time_or_quality", "roofline")
# A network each, so that one of them can be held out.
LAYERS = {
    "one": parse_problem('mb1ic64ih14oc64kh3ph1n"first"'),
    "two": parse_problem('mb1ic96ih10oc48kh1n"second"'),
}
COUNT = 9
# The assumed rates of tests/conftest.py: nothing is calibrated, and nothing depends on this CPU.
ISA = "portable"

Times = Callable[[Problem, Sequence[Schedule]], Sequence[float]]


def run(name: str, *words: str | Path) -> Any:
    """The finished run of one script."""
    return run_script(FOLDER / f"{name}.py", *words, env={"POLYSCI_ISA": ISA})


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def plans(problem: Problem) -> list[Schedule]:
    """Schedules whose predicted times differ, so that a right order is the only one."""
    context = tune.context_of(problem, 1, target())
    found: dict[float, Schedule] = {}
    for plan in samples.members(samples.fixed_context(problem), 40):
        found.setdefault(round(cost_of(context, plan, "traffic") * 1e9), plan)
    costs = sorted(found)  # from the best to the worst
    return [found[costs[at * (len(costs) - 1) // (COUNT - 1)]] for at in range(COUNT)]


def target() -> Target:
    return detect(ISA)


def write(path: Path, times: Times, *, cold: bool = False, mode: str = "w") -> Path:
    """A sample file with both layers."""
    with path.open(mode, encoding="utf-8") as file:
        for network, problem in LAYERS.items():
            chosen = plans(problem)
            for plan, seconds in zip(chosen, times(problem, chosen), strict=True):
                its = Measurement(
                    (seconds,) * 3, problem.flops, str(plan), protocol(5, 1e-3, cold), 1, "here"
                )
                print(Sample(network, problem, its), file=file)
    return path


def as_predicted(problem: Problem, chosen: Sequence[Schedule], cold: bool = False) -> list[float]:
    context = replace(tune.context_of(problem, 1, target()), cold=cold)
    return [cost_of(context, plan, "traffic") for plan in chosen]


def the_other_way(problem: Problem, chosen: Sequence[Schedule]) -> list[float]:
    return [1e-9 / seconds for seconds in as_predicted(problem, chosen, cold=True)]


def packing_costs(problem: Problem, chosen: Sequence[Schedule]) -> list[float]:
    """Twice the time for schedules that pack, and nothing else matters."""
    return [2e-4 if plan.pack else 1e-4 for plan in chosen]


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return write(tmp_path / "sample.jsonl", as_predicted)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory with assumed rates and nothing else."""
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(path))
    machine_path(target()).write_text(assume_rates(target()).to_json(), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_says_what_a_script_shows_and_writes(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0, done.stderr
    for word in ("--quick", "--output", "Writes", f"{name}", ".csv", ".png"):
        assert word in done.stdout


@pytest.mark.exhaustive
def test_a_perfect_ranker_scores_one_and_a_reversed_one_the_least(tmp_path: Path) -> None:
    path = write(tmp_path / "sample.jsonl", as_predicted)
    write(path, the_other_way, cold=True, mode="a")
    before = write(tmp_path / "before.jsonl", lambda *layer: as_predicted(*layer)[::-1])
    done = run(
        "rank_quality", "--sample", path, "--output", tmp_path, "--ranker", "traffic",
        "--before", before,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    scored = rows_of(tmp_path / "rank_quality.csv")
    remeasured = [row for row in scored if row["ranker"] == "measured"]
    assert [(row["layer"], float(row["tau"])) for row in remeasured] == [
        ("first", -1), ("second", -1),
    ]  # fmt: skip
    rows = [row for row in scored if row["ranker"] == "traffic"]
    assert [(row["setting"], row["layer"]) for row in rows] == [
        ("1 warm", "first"), ("1 warm", "second"), ("1 cold", "first"), ("1 cold", "second"),
    ]  # fmt: skip
    for row, problem in zip(rows, [*LAYERS.values()] * 2, strict=True):
        cold = row["setting"] == "1 cold"
        costs = as_predicted(problem, plans(problem), cold)
        assert int(row["schedules"]) == COUNT
        assert float(row["tau"]) == (-1 if cold else 1)
        assert float(row["top1"]) == pytest.approx(min(costs) / max(costs) if cold else 1, rel=1e-4)
        fifth = sorted(costs)[4]
        assert float(row["top5"]) == pytest.approx(fifth / max(costs) if cold else 1, rel=1e-4)
        pairs = [(a, b) for a, b in combinations(sorted(costs), 2) if b > 1.02 * a]
        assert pairs and float(row["pairs"]) == (0 if cold else 1)
    overall = [
        row for row in rows_of(tmp_path / "rank_quality_summary.csv") if row["ranker"] == "traffic"
    ]
    assert [row["network"] for row in overall] == ["all", "all", "one", "one", "two", "two"]
    warm, cold = (row for row in overall if row["network"] == "all")
    reached = [float(row["top1"]) for row in rows[2:]]
    assert float(warm["top1"]) == 1
    assert float(cold["top1"]) == pytest.approx(exp(sum(map(log, reached)) / 2), rel=1e-4)
    assert float(cold["top1_worst"]) == pytest.approx(min(reached), rel=1e-4)
    assert (tmp_path / "rank_quality.png").stat().st_size > 1000


@pytest.mark.exhaustive
def test_every_ranker_is_scored_or_its_reason_told(sample: Path, tmp_path: Path) -> None:
    done = run("rank_quality", "--quick", "--sample", sample, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "rank_quality-quick.csv")
    for ranker in RANKERS:
        its = [row for row in rows if row["ranker"] == ranker]
        assert len(its) == len(LAYERS) or f"{ranker} left out" in done.stderr, done.stderr
        assert all(0 < float(row["top1"]) <= float(row["top5"]) <= 1 for row in its)
        assert all(-1 <= float(row["tau"]) <= 1 and 0 <= float(row["pairs"]) <= 1 for row in its)
        assert ranker in done.stdout or not its
    baseline = {row["problem"]: float(row["top1"]) for row in rows if row["ranker"] == "constant"}
    for row in rows:
        if baseline:
            expected = float(row["top1"]) / baseline[row["problem"]]
            assert float(row["against_constant"]) == pytest.approx(expected, rel=1e-4)
        else:
            assert row["against_constant"] == ""


@pytest.mark.exhaustive
def test_what_one_knob_decides_is_its_share(tmp_path: Path) -> None:
    path = write(tmp_path / "sample.jsonl", packing_costs)
    done = run("order_or_knobs", "--quick", "--sample", path, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "order_or_knobs-quick.csv")
    knobs = {row["knob"] for row in rows}
    assert knobs == {"loop order", "register tile", "cache blocks", "row merging", "packing",
                     "parallel loops", "streaming"}  # fmt: skip
    for problem in LAYERS.values():
        packed = [plan.pack is not None for plan in plans(problem)]
        assert 0 < sum(packed) < COUNT
        its = {row["knob"]: row for row in rows if row["problem"] == problem.key}
        row = its["packing"]
        assert row["held_at"] == "none"
        assert [float(row[name]) for name in ("held", "worst", "variance")] == [1, 0.5, 1]
        assert float(row["best_over_median"]) == (2 if sum(packed) > COUNT / 2 else 1)
        drawn = list(combinations(packed, COUNT - sum(packed)))  # as many as do not pack
        all_packed = sum(map(all, drawn)) / len(drawn)
        assert float(row["chance"]) == pytest.approx(exp(all_packed * log(0.5)), rel=1e-4)
        alone = its["parallel loops"]  # one thread: no choice, nothing lost, nothing explained
        assert [float(alone[n]) for n in ("choices", "held", "chance", "worst", "variance")] == [
            1, 1, 1, 1, 0,
        ]  # fmt: skip
    assert "packing" in done.stdout and "best over median" in done.stdout
    assert (tmp_path / "order_or_knobs-quick.png").exists()


@pytest.mark.exhaustive
def test_a_line_that_a_crash_cut_off_is_left_out(sample: Path, tmp_path: Path) -> None:
    text = sample.read_text(encoding="utf-8")
    sample.write_text(text[:-100], encoding="utf-8")
    done = run("order_or_knobs", "--sample", sample, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "order_or_knobs.csv")
    counts = {row["layer"]: int(row["schedules"]) for row in rows}
    assert counts == {"first": COUNT, "second": COUNT - 1}


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("rank_quality", None, "no such file"),
        ("order_or_knobs", b"", "no layer with 2"),
        ("rank_quality", b'[1, 2]\n{"network": "n"}\n', "not a sample"),
        ("order_or_knobs", b"\xff\xfe\x00garbage", "not a sample"),
        ("rank_quality", b"garbage\nand more\n", "no layer with 2"),
    ],
)
def test_a_file_that_is_no_sample_gets_one_line(
    name: str, content: bytes | None, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "sample.jsonl"
    if content is not None:
        path.write_bytes(content)
    done = run(name, "--sample", path, "--output", tmp_path / "out")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert told in line and str(path) in line and "'python experiments/sample.py'" in line
    assert not list((tmp_path / "out").iterdir())


def test_the_archive_of_the_project_holds_a_sample_and_the_tables() -> None:
    archive = FOLDER / "results.tar.xz"
    assert archive.stat().st_size < 1_000_000
    with tarfile.open(archive) as members:
        names = set(members.getnames())
    assert {"sample.jsonl", "rank_quality.csv", "scaling.csv"} < names
    first = next(records.read(archive))
    assert first.network == "resnet18" and first.setting == "1 warm"


def test_an_archive_that_is_damaged_gets_one_line(tmp_path: Path) -> None:
    path = tmp_path / "results.tar.xz"
    path.write_bytes((FOLDER / "results.tar.xz").read_bytes()[:1000])
    done = run("rank_quality", "--sample", path, "--output", tmp_path / "out")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


@pytest.mark.exhaustive
def test_searches_are_timed_and_their_winners_compared(tmp_path: Path) -> None:
    words = ("mb1ic16ih6oc16kh1", "--quick", "--samples", "3", "--limit", "0.1")
    methods = ("estimate", "top-3")
    done = run("time_or_quality", *words, "--methods", *methods, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "time_or_quality-quick.csv")
    assert [row["method"] for row in rows] == list(methods)
    assert [row["tried"] for row in rows] == ["0", "3"]
    times = [float(row["seconds"]) for row in rows]
    for row, seconds in zip(rows, times, strict=True):
        assert float(row["search"]) > 0
        assert float(row["of_best"]) == pytest.approx(min(times) / seconds, rel=1e-4)
        flops = 2 * 16 * 16 * 36
        assert float(row["gflops"]) == pytest.approx(flops / seconds * 1e-9, rel=1e-4)
    assert "AutoTVM" in done.stdout and "geomean" in done.stdout


@pytest.mark.exhaustive
def test_a_roofline_follows_from_the_records(tmp_path: Path, own_cache: Path) -> None:
    problem, where, network = LAYERS["one"], target(), tmp_path / "net.txt"
    plan = str(samples.members(samples.fixed_context(problem, target=where), 1)[0])
    network.write_text("\n".join(map(str, LAYERS.values())), encoding="utf-8")
    Wisdom().record(problem.key, 1, where.isa.features, "measure", plan, 2e-3, host=host_of(where))
    done = run("roofline", network, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no measurement of 1 of 2 layers" in done.stderr and "polysci optimize" in done.stderr
    (row,) = rows_of(tmp_path / "roofline_net.csv")
    context, machine = tune.context_of(problem, 1, where), assume_rates(where)
    assert float(row["measured"]) == pytest.approx(problem.multiplied_flops / 2e-3 * 1e-9, rel=1e-4)
    estimate = estimate_of(context, schedule.parse(plan))
    assert float(row["predicted"]) == pytest.approx(
        problem.multiplied_flops / float(estimate.seconds[0]) * 1e-9, rel=1e-4
    )
    roofs = [machine.peak]
    rates = (machine.l2, min(machine.l3, machine.l3_all), min(machine.memory, machine.memory_all))
    for name, moved, size, rate in zip(
        ("L1", "L2", "L3"),
        estimate.levels,
        [cache.size for cache in where.caches],
        rates,
        strict=True,
    ):
        total = float(np.ravel(moved.total)[0])
        bound = load_bound_bytes(context.contraction, size)
        assert float(row[f"{name}_over_bound"]) == pytest.approx(total / bound, rel=1e-4)
        roofs.append(problem.multiplied_flops / total * rate)
    assert float(row["roof"]) == pytest.approx(min(roofs), rel=1e-4)
    assert (tmp_path / "roofline_net.png").stat().st_size > 1000


@pytest.mark.exhaustive
def test_residue_classes_are_predicted_to_be_faster_than_inserted_zeros(tmp_path: Path) -> None:
    words = ("mb1ic16ih14oc16kh3ph1", 'mb1ic16ih14oc16kh3sh2ph1n"strided"')
    done = run("backward_data", *words, "--level", "estimate", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = rows_of(tmp_path / "backward_data.csv")
    assert row["layer"] == "strided" and row["classes_schedule"].count("residues(2,2)") == 1
    assert float(row["work"]) == pytest.approx(13**2 / 7**2, rel=1e-5)
    ratio = float(row["zeros_predicted"]) / float(row["classes_predicted"])
    assert float(row["predicted_ratio"]) == pytest.approx(ratio, rel=1e-4) and ratio > 1.5
    assert f"geomean: predicted {ratio:.2f}" in done.stdout
    assert (tmp_path / "backward_data.png").stat().st_size > 1000


@pytest.mark.exhaustive
def test_kinds_of_weight_gradients_are_told_apart(tmp_path: Path) -> None:
    words = ("mb8ic8ih28oc8kh3ph1", "--level", "estimate", "--count", "50", "--threads", "1", "8")
    done = run("update_strategies", *words, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    alone, shared = rows_of(tmp_path / "update_strategies.csv")
    assert not alone["private_schedule"] and not alone["hybrid_schedule"]
    assert "private(C)" in shared["private_schedule"] + shared["hybrid_schedule"]
    for row in (alone, shared):
        kind = row["predicted_winner"]
        times = [float(value) for name, value in row.items() if name.endswith("_predicted")]
        assert float(row[f"{kind}_predicted"]) == min(time for time in times if time)
        assert row["measured_winner"] == ""
    assert (tmp_path / "update_strategies.png").stat().st_size > 1000


def test_a_network_without_records_is_an_error_that_says_what_makes_them(
    tmp_path: Path, own_cache: Path
) -> None:
    done = run("roofline", str(LAYERS["two"]), "--output", tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "no measurement" in line and "'polysci optimize" in line


@pytest.mark.exhaustive
def test_ctrl_c_keeps_what_was_done() -> None:
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import script
def steps():
    yield 1
    yield 2
    raise KeyboardInterrupt
print(script.kept(steps(), "trying", 9))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, FOLDER], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "([1, 2], False)"
    assert "the 2 that were done" in done.stderr


def test_without_matplotlib_there_is_a_line_and_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    plots.draw(tmp_path / "a.png", lambda axes: pytest.fail("drawn without matplotlib"))
    assert "polysci[plot]" in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()


def test_a_network_needs_the_exporter(tmp_path: Path) -> None:
    for name in ("onnx", "torch"):
        (tmp_path / f"{name}.py").touch()
    if importlib.util.find_spec("onnxscript"):
        pytest.skip("the exporter is there")
    ran = subprocess.run(
        [sys.executable, FOLDER / "mobilenet_v2.py", "--output", tmp_path / "m.onnx"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 1 and "pip install onnxscript" in ran.stderr, ran.stderr
