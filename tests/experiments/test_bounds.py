"""The proof that bounds of group tiles prune no best one, and counts against the interpreter's."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from polysci.lower.mapped.warp_counts import counts_of
from polysci.lower.registry import MAPPED, algorithm_named
from polysci.ops import parse_problem
from polysci.space.schedule import Schedule
from tests.support.scripts import run_script

FOLDER = Path(__file__).parents[2] / "experiments"


def load(patch: pytest.MonkeyPatch) -> ModuleType:
    spec = spec_from_file_location("bounds_of_tests", FOLDER / "bounds.py")
    assert spec and spec.loader
    patch.syspath_prepend(FOLDER)
    patch.setitem(sys.modules, "bounds_of_tests", module := module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


with pytest.MonkeyPatch.context() as patch:
    PROBLEMS = load(patch).PROBLEMS


@pytest.mark.exhaustive
def test_a_sample_of_a_space_is_bounded(tmp_path: Path) -> None:
    ran = run_script(FOLDER / "bounds.py", "--output", tmp_path, "--step", "15", "mm:16x4x16")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("mm:16x4x16") == 4 and "True" not in ran.stdout
    assert (tmp_path / "bounds.csv").read_text().count("\n") == 5


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(PROBLEMS)), ids=PROBLEMS)
def test_nothing_that_is_pruned_wins(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = load(monkeypatch)
    problem = bounds.parsed(PROBLEMS[at], at)
    counted = [(schedule, bounds.count(problem, schedule)) for schedule in bounds.every(problem)]
    pruned = 0
    for rates in bounds.DEVICES.values():
        proof = bounds.prove(problem, rates.context(problem), counted)
        assert proof.holds, proof
        pruned += proof.pruned
    assert pruned  # the bounds are worth something


@pytest.mark.exhaustive
def test_a_bound_that_is_too_high_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = load(monkeypatch)
    problem = parse_problem("mm:16x4x16")
    counted = [(it, bounds.count(problem, it)) for it in bounds.every(problem, 30)]
    context = bounds.DEVICES["products"].context(problem)
    assert bounds.prove(problem, context, counted).holds
    for _, counts in counted:
        counts.products //= 2
    assert not bounds.prove(problem, context, counted).holds


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("text", "layout", "schedule"),
    [("mm:32x32x32", "nhwc",
      "i:16@by j:32@bx k:16 copy(A,B)x2+4 i:2@ty j:4@tx > fma_cuda4_f32_2x4"),
     ("mm:32x32x32 ta", "nhwc",
      "i:32@by j:16@bx k:8 copy(A,B)x2+4 i:4@ty j:4@tx > fma_cuda4_f32_4x4"),
     ("mb1ic16ih4oc32oh4kh1", "nchw",
      "npq:16@by k:32@bx c:16 copy(A,B)x2 npq@ty k:4@tx > fma_cuda4_f32_1x4"),
     ("mb1ic32ih4oc32oh4kh1", "nhwc",
      "npq:16@by k:32@bx c:32 copy(A,B)x1+4 npq:2@ty k:8@tx > fma_cuda4_f32_2x8")],
)  # fmt: skip
def test_counts_are_those_of_the_interpreter(
    text: str, layout: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where tiles fit exactly, every step of every group takes the same turns of memory."""
    bounds, problem = load(monkeypatch), parse_problem(text, layout)
    parsed = Schedule.parse(schedule)
    plan = algorithm_named(MAPPED).resolve(problem, parsed, 1)
    counts, counted = counts_of(plan), bounds.count(problem, parsed)
    steps = plan.groups * plan.steps
    assert (counted.reads, counted.writes) == (steps * counts.reads, steps * counts.writes)
