"""Random layers and gradients by random schedules of GPUs, in the interpreter: exact, no races."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from polysci.cost import Context
from polysci.errors import SpecError
from polysci.lower.choice import candidates
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.space.schedule import Schedule
from polysci.target.machine_file import read
from tests.support.interpreted_layers import InterpretedLayer, check

MACHINES = Path(__file__).parents[3] / "experiments" / "machines"
FILES = [read(MACHINES / f"{name}.toml") for name in ("a100-108", "mali-g78-14")]
ITEMS = 64  # of a group: the interpreter takes its time for each


def random_problem(rng: random.Random) -> Problem:
    """A convolution, depthwise or grouped or neither, or a gradient of one."""
    while True:
        groups = rng.choice((1, 1, 2, rng.randint(3, 9)))
        per, filters = (1, 1) if groups > 2 else (rng.randint(1, 9), rng.randint(1, 9))
        taps, image = rng.randint(1, 3), rng.randint(3, 7)
        words = f"g{groups}" * (groups > 1) + f"mb{rng.randint(1, 2)}ic{groups * per}ih{image}"
        words += f"oc{groups * filters}kh{taps}ph{rng.randint(0, taps - 1)}"
        words += f"sh{rng.randint(1, 3)}" * (rng.random() < 0.4)
        words += f"dh{rng.randint(0, 1)}" * (rng.random() < 0.3)
        way = rng.choice(("", "", "bwd_d ", "bwd_w "))
        try:
            return parse_problem(way + words, rng.choice(("nhwc", "nchw")))
        except SpecError:  # a filter larger than the image
            continue


def random_schedule(rng: random.Random, problem: Problem) -> Schedule:
    """One of all schedules of a GPU, of any algorithm, whose groups are small."""
    file = rng.choice(FILES)
    _, roles, strides = model_of(problem)
    context = Context(roles, strides, file.target, file.machine)
    every = [it.schedule for it in candidates(problem, context, None, "auto")]
    return rng.choice([it for it in every if items(it) <= ITEMS] or every)


def items(schedule: Schedule) -> int:
    """Work-items of a group."""
    rows, columns, *_, own_rows, own_columns = schedule.loops
    return rows.step // own_rows.step * (columns.step // own_columns.step)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.exhaustive] * (seed not in (0, 2)))
        for seed in range(60)
    ],
)
def test_integers_are_exact(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng)
    check(InterpretedLayer.of(problem, random_schedule(rng, problem)), seed)
