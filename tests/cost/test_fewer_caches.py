"""Targets with one, two and four caches: what a target lacks is memory's, all rankers rank."""

from pathlib import Path

import numpy as np
import pytest

from polysci.cli import main
from polysci.cost import RANKERS
from polysci.cost.learned import features
from polysci.cost.shortlist import rank_all
from polysci.explain import explain, render
from polysci.explain.roofline import bandwidths
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.target.machine_file import parse
from polysci.target.target import KIB, MIB
from polysci.tune import optimize
from tests.support.samples import fixed_context

SIZES = {"L1": 32 * KIB, "L2": MIB, "L3": 16 * MIB, "L4": 64 * MIB}
LAYER = "mb1ic64ih28oc64oh28kh3ph1"
PRODUCT = "mm:512x2048x2048"
SOURCES = {1: ["memory"], 2: ["L2", "memory"], 4: ["L2", "L3", "memory"]}


def text_of(count: int) -> str:
    """A machine file whose target has the nearest caches, the last shared by all cores."""
    tables = [
        f'[[target.memories]]\nname = "{name}"\nsize = {size}\ncores = {int(at < count)}\n'
        for at, (name, size) in enumerate(list(SIZES.items())[:count], 1)
    ]
    return f'[target]\nisa = "avx2"\ncores = 4\n{"".join(tables)}'


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
@pytest.mark.parametrize("count", SOURCES)
def test_layers_have_schedules(count: int, algorithm: str, threads: int) -> None:
    machine = parse(text_of(count))
    result = optimize(
        parse_problem(LAYER, "nhwc"), "estimate", threads,
        target=machine.target, machine=machine.machine, algorithm=algorithm,
    )  # fmt: skip
    assert 0 < result.predicted < 1


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("ranker", [name for name in RANKERS if name != "learned"])
@pytest.mark.parametrize("count", SOURCES)
def test_every_ranker_ranks(count: int, ranker: str) -> None:
    machine = parse(text_of(count))
    context = fixed_context(parse_problem(LAYER, "nhwc"), 4, machine.target)
    first, *others = rank_all(context, 3, ranker=ranker)
    assert others and all(0 < first.cost <= other.cost for other in others)
    assert np.isfinite(features(context, first.family)[1]).all()  # the ranker ``learned`` has them


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", SOURCES)
def test_explanations_name_what_there_is(count: int) -> None:
    machine = parse(text_of(count))
    problem = parse_problem(LAYER, "nhwc")
    context = fixed_context(problem, 2, machine.target)
    told = explain("layer", model_of(problem)[0], context)
    assert list(bandwidths(machine.machine, machine.target, 2)) == SOURCES[count]
    assert [roof.name for roof in told.roofs][-len(SOURCES[count]) :] == SOURCES[count]
    assert len(told.caches) == len(told.flows) == len(told.terms.levels) == min(count, 3)
    assert ("L3" in render(told)) == (count > 2)


def test_without_a_third_cache_data_come_from_memory() -> None:
    """They come no faster than out of a large L3."""
    problem = parse_problem(PRODUCT, "nhwc")
    two, three = (fixed_context(problem, 1, parse(text_of(n)).target) for n in (2, 3))
    slow, fast = (next(rank_all(context, 1)).cost for context in (two, three))
    assert slow > fast


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", SOURCES)
def test_commands_take_the_machine_file(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(text_of(count))
    for command in ("rank", "explain"):
        assert main([command, LAYER, "--machine", str(path)]) == 0, capsys.readouterr()
    assert "brgemm_avx2" in capsys.readouterr().out
