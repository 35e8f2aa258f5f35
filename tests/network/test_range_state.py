"""Ranges of sizes with state: runs of any number of tokens on one cache."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import polysci
from polysci.export.network_project import write_project
from polysci.graph.graph import Graph
from polysci.graph.passes.table import simplify
from polysci.graph.state import keep_state
from polysci.network.size_choices import plan_choices, plan_sizes, size_choices
from polysci.network.sizes import SizedNetwork, compile_graphs, join_sizes
from tests.export.test_language_models import COUNT, MAIN, PROMPT
from tests.support.exported import numbers_of
from tests.support.token_graphs import CAPACITY, VOCABULARY, TokenModel

OPTIONS = polysci.CompileOptions("estimate", positions="positions", name="lm", verify=False)
MODEL = TokenModel()


def read(sizes: Mapping[str, int]) -> Graph:
    return simplify(keep_state(MODEL.graph(sizes["T"]), OPTIONS.kept), any_size=True)


def check(network: SizedNetwork, lengths: range) -> None:
    """Rows of a cache are those of all runs so far, whatever their lengths."""
    rng = np.random.default_rng(0)
    for _ in range(4):
        network.reset()
        tokens = list[int]()
        while len(tokens) + lengths[-1] <= CAPACITY:
            length = int(rng.integers(lengths[0], lengths[-1] + 1))
            before, tokens = len(tokens), tokens + rng.integers(0, VOCABULARY, length).tolist()
            expected = [MODEL.scores(tokens[: at + 1]) for at in range(before, len(tokens))]
            assert np.allclose(network(np.int64([tokens[before:]])), expected, atol=1e-4)


def test_runs_of_any_length_share_a_cache() -> None:
    lengths = range(5, 7)
    check(compile_graphs(read, {"T": lengths}, OPTIONS, "lm"), lengths)


@pytest.mark.exhaustive
def test_a_prompt_of_any_length() -> None:
    lengths = range(1, 14)
    network = compile_graphs(read, {"T": lengths}, OPTIONS, "lm")
    check(network, lengths)
    generation = network.generation()
    generation.reset()
    assert [*generation.generate(PROMPT, COUNT)] == MODEL.greedy(PROMPT, COUNT)


@pytest.mark.exhaustive
def test_a_c_program_generates(tmp_path: Path) -> None:
    plan = partial(plan_sizes, options=OPTIONS, title="lm")
    write_project(join_sizes(plan_choices(size_choices({"T": range(1, 7)}), read, plan), "lm"),
                  tmp_path / "lm")  # fmt: skip
    rows = numbers_of(tmp_path / "lm", MAIN)
    expected = MODEL.greedy(PROMPT, COUNT)
    assert [row[0] for row in rows] == [*expected, *expected]  # by decode, and by next
