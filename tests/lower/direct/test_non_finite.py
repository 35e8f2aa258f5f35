"""Infinities and NaN: which results they reach, as docs/howto/precisions.md says."""

import numpy as np
import pytest

from polysci.numerics.arrays import Doubles
from polysci.numerics.dtypes import PRECISIONS, precision_named, to_stored, values
from polysci.numerics.scalar_functions import ACTIVATIONS
from polysci.ops import parse_problem
from polysci.ops.problem import Problem
from polysci.runtime.build.library import load
from polysci.runtime.primitive import Primitive
from polysci.space.schedule import Schedule, parse
from polysci.target.host import detect
from polysci.tune import EmitOptions, emit
from tests.support import samples
from tests.support.judge import build

pytestmark = pytest.mark.sampled(every=11)

# Windows over padding, words that end inside a run, groups of every width, all taps of an image in
# a row, products in batches, gradients.
PROBLEMS = [
    "mb1ic5ih6iw7oc17kh3kw3ph1pw1",
    "mb1ic3ih9oc20kh5sh2ph2",
    "mb1ic16ih7oc32kh3ph1",
    "g4mb1ic8ih16iw8oc4oh4ow7kh7kw2sh3sw1ph1pw2dh0dw2",
    "g5mb1ic10ih6oc15kh3ph1",
    "g8mb1ic32ih6oc32kh3ph1",
    "g20mb1ic20ih7oc20kh3ph1",
    "g20mb1ic20ih7oc40kh3ph1",
    "mm:2:5x7x9 tb b=constant",
    "mm:5x13x3 a=constant",
    "mm:3:9x21x5 ta",
    "bwd_d g4mb2ic8ih7oc12kh3ph1",
    "bwd_w g4mb2ic8ih7oc12kh3ph1",
]
REALS = [name for name, row in PRECISIONS.items() if not row.integer]
ISAS = [isa.name for isa in detect().allowed]
SPECIAL = [np.inf, -np.inf, np.nan]


def primitive(problem: Problem, schedule: Schedule) -> Primitive:
    source = emit(problem, schedule, 1, EmitOptions("special"))
    library = load(build([source]), source.declarations)
    return Primitive(problem, schedule, source, library, "special")


def results(
    problem: Problem, schedule: Schedule, where: str, special: float, seed: int
) -> tuple[Doubles, Doubles, Doubles]:
    """Computed ones with one ``special`` number in x or w, those of the nest, and which it reaches.

    All other numbers are small integers but 0; a result has at most one product with the number.
    """
    random, it = np.random.default_rng(seed), precision_named(problem.dtype)
    shapes = {"x": problem.x_shape, "w": problem.w_shape}
    inputs = {
        name: random.integers(1, 5, shape) * random.choice([-1.0, 1.0], shape)
        for name, shape in shapes.items()
    }
    at = tuple(random.integers(0, size) for size in shapes[where])
    alone = np.zeros(shapes[where])
    alone[at] = 1
    factor = np.asarray(problem.reference(**(inputs | {where: alone})))
    inputs[where][at] = 0
    finite = np.asarray(problem.reference(**inputs))
    with np.errstate(invalid="ignore"):
        expected = np.where(factor != 0, factor * special, finite)
    inputs[where][at] = special
    x, w = (to_stored(np.float32(inputs[name]), kind) for name, kind in (("x", it.x), ("w", it.w)))
    run = primitive(problem, schedule)
    y = run(x, run.pack_weights(w) if problem.w_kind == "constant" else w)
    return np.asarray(values(y, it.y), np.float64), expected, factor


def same(y: Doubles, expected: Doubles) -> np.ndarray:
    """Where results are as they must be, but for rounding to 8 bits."""
    with np.errstate(invalid="ignore"):
        near = abs(y - expected) <= 2.0**-8 * np.maximum(abs(expected), 1)
    return near | (y == expected) | (np.isnan(y) & np.isnan(expected))


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("text", PROBLEMS)
def test_one_input_reaches_only_results_that_read_it(text: str, isa: str) -> None:
    seed = PROBLEMS.index(text) + len(REALS) * ISAS.index(isa)
    dtype = REALS[(PROBLEMS.index(text) + ISAS.index(isa)) % len(REALS)]
    problem = parse_problem(text, ("nhwc", "nchw")[seed % 2] * (":" not in text), dtype=dtype)
    for plan in samples.members(samples.fixed_context(problem, 1, detect(isa)), 2, seed):
        y, expected, _ = results(problem, plan, "x", SPECIAL[seed % 3], seed)
        assert same(y, expected).all(), f"{problem} {plan}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", PROBLEMS)
def test_one_weight_reaches_only_results_of_its_filter(text: str) -> None:
    """Where copies hold the zeros of the padding, it multiplies these too, which makes NaN."""
    seed = PROBLEMS.index(text)
    dtype = REALS[seed % len(REALS)]
    problem = parse_problem(text, ("nhwc", "nchw")[seed % 2] * (":" not in text), dtype=dtype)
    for plan in samples.members(samples.fixed_context(problem, 1, detect()), 2, seed):
        y, expected, factor = results(problem, plan, "w", SPECIAL[seed % 3], seed)
        wrong = ~same(y, expected)
        assert plan.pack or not wrong.any(), f"{problem} {plan}"
        assert np.isnan(y[wrong]).all() and not factor[wrong].any()
        if wrong.any():
            axis = problem.bias_axis
            (channels,) = {tuple(np.unique(np.nonzero(it)[axis])) for it in (factor, wrong)}
            assert len(channels) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("m", [2, 4])
def test_winograd_hands_it_to_whole_tiles(m: int) -> None:
    problem = parse_problem("mb1ic5ih11oc7kh3ph1")
    plan = parse(f"winograd({m}) > brgemm_portable_f32_4x8")
    y, expected, factor = results(problem, plan, "x", np.inf, m)
    reads = np.nonzero(factor)
    tiles = {(n, p // m, q // m) for n, p, q, _ in zip(*reads, strict=True)}
    wrong = np.nonzero(~same(y, expected))
    assert {(n, p // m, q // m) for n, p, q, _ in zip(*wrong, strict=True)} <= tiles


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_functions_have_their_limits(name: str) -> None:
    """Also where a factor 0 meets an infinity."""
    problem = parse_problem(f"mm:4x1x16 b=constant act={name}")
    plan = samples.members(samples.fixed_context(problem, 1, detect()), 1)[0]
    run = primitive(problem, plan)
    x = np.float32([[np.inf], [-np.inf], [np.nan], [-200]])
    up, down, none, far = run(x, run.pack_weights(np.ones((1, 16), np.float32)))[:, 0]
    assert up == (1 if name in ("sigmoid", "tanh") else np.inf) and np.isnan(none)
    assert down == (-1 if name == "tanh" else 0) == np.rint(far)


def test_a_nan_passes_the_clamp() -> None:
    problem = parse_problem("mm:3x1x16 b=constant")
    plan = samples.members(samples.fixed_context(problem, 1, detect()), 1)[0]
    run = primitive(problem, plan)
    x = np.float32([[np.inf], [-np.inf], [np.nan]])
    y = run(x, run.pack_weights(np.ones((1, 16), np.float32)), clamp=(0, 6))[:, 0]
    assert y[:2].tolist() == [6, 0] and np.isnan(y[2])
