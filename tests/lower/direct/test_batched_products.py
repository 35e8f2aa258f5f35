"""Batches of matrix products: what belongs to one of them, in 8 bits too, under any schedule."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.numerics.dtypes import PRECISIONS
from polysci.ops import parse_problem
from polysci.ops.matmul import Matmul
from polysci.polyhedral.contraction import columns_of
from polysci.runtime.source import Source
from polysci.target.host import detect
from polysci.tune import EmitOptions, emit, model_of
from tests.support import samples
from tests.support.judge import Judge, build

# Ragged columns, a split reduction, one column, one step, one row; vectors along the batch where
# one bias serves all of it would read beyond that.
PRODUCTS = [
    "mm:3:9x70x35 b=constant",
    "mm:2:19x23x50 a=constant",
    "mm:5:7x9x1 tb b=constant",
    "mm:4:1x13x20 ta to a=constant",
    "mm:6:5x1x1 b=constant",
    "mm:6:1x1x5 a=constant",
    "mm:1:8x8x8 b=constant",
]
INTEGERS = [name for name, row in PRECISIONS.items() if row.integer]
ISAS = [isa.name for isa in detect().allowed]
SETTINGS = [(isa, dtype) for isa, dtype in product(ISAS, INTEGERS)]


@pytest.mark.sampled(every=30)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_batches_of_integers_are_exact(judge: Judge, dtype: str, isa: str) -> None:
    """Zero points of x differ from 0, and so does what they add to the sums of each product."""
    seed, target = SETTINGS.index((isa, dtype)), detect(isa)
    chosen = list[tuple[Matmul, Source]]()
    for index in range(2):
        text = PRODUCTS[(2 * seed + index) % len(PRODUCTS)]
        problem = parse_problem(text, dtype=dtype)
        threads = 1 + (seed + index) % 2
        context = samples.fixed_context(problem, threads, target)
        for plan in samples.members(context, 2, seed):
            options = EmitOptions(f"product_{len(chosen)}")
            chosen.append((problem, emit(problem, plan, threads, options)))
    units = dict.fromkeys(source.header_set for _, source in chosen)
    paths = {of: build([s for _, s in chosen if s.header_set == of]) for of in units}
    for problem, source in chosen:
        judge.judge(problem, paths[source.header_set], source.symbol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("words", ["", " b=constant", " a=constant", " to"])
def test_one_bias_serves_every_batch(judge: Judge, words: str, dtype: str) -> None:
    """Between guard pages: products of one step and one column have nothing else to vectorise."""
    for sizes in ("6:5x1x1", "6:1x1x5", "6:1x1x1"):
        problem = parse_problem(f"mm:{sizes}{words}", dtype=dtype)
        context = samples.fixed_context(problem, 1, detect())
        for plan in samples.members(context, 3):
            source = emit(problem, plan, 1, EmitOptions("small"))
            judge.judge(problem, build([source]), source.symbol)


@pytest.mark.exhaustive
@given(
    sizes=st.tuples(*[st.integers(1, 3)] * 4),
    constant=st.sampled_from(["", "a", "b"]),
    transposed=st.sets(st.sampled_from("abo")),
)
def test_vectors_run_along_the_bias(
    sizes: tuple[int, ...], constant: str, transposed: set[str]
) -> None:
    *matrix, batch = sizes
    problem = Matmul(*matrix, batch, constant, transposed="".join(sorted(transposed)))
    _, roles, _ = model_of(problem)
    column = columns_of(roles)
    assert column.extent == 1 or roles.out.index[roles.bias_axis].coef(column.name)
