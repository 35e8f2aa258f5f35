"""Activations that end sums: in every kind of code, on every instruction set, within bounds."""

from collections.abc import Iterator
from itertools import cycle

import numpy as np
import pytest

from polysci.errors import PolysciError, SpecError, UnsupportedError
from polysci.measure.error_bound import Reals
from polysci.measure.integer_reference import Arrays
from polysci.numerics.dtypes import precision_named
from polysci.numerics.scalar_functions import ACTIVATIONS, apply_numpy
from polysci.ops import parse_problem
from polysci.ops.convolution_gradients import Conv2dBackwardWeights
from polysci.ops.convolutions import Conv2d
from polysci.ops.matmul import Matmul
from polysci.ops.problem import Problem
from polysci.space.schedule import parse
from polysci.target.host import detect
from polysci.tune import EmitOptions, emit
from tests.lower.direct.test_codegen import SCHEDULES
from tests.support import samples
from tests.support.judge import Judge, build

ISAS = [isa.name for isa in detect().allowed]
LAYERS = (
    Conv2d(N=1, C=16, H=7, W=8, K=24, R=3, S=3, pad=1),
    Conv2d(N=1, C=37, H=5, W=5, K=33, R=3, S=3, pad=1),
    Conv2d(N=2, C=20, H=7, W=8, K=20, R=3, S=3, pad=1, groups=20),
)


def rotated(names: Iterator[str]) -> Iterator[tuple[Problem, str]]:
    """The schedules of real numbers, each with the next activation."""
    for words, layout, schedule, _, *dtype in SCHEDULES.values():
        problem = parse_problem(words, layout, *dtype)
        if isinstance(problem, Conv2d) and not precision_named(problem.dtype).integer:
            yield problem.with_(activation=next(names)), schedule


@pytest.mark.sampled(every=20)
@pytest.mark.parametrize(("problem", "schedule"), [*rotated(cycle(ACTIVATIONS))], ids=str)
def test_every_kind_of_code(judge: Judge, problem: Conv2d, schedule: str) -> None:
    plan = parse(schedule)
    source = emit(problem, plan, 2, EmitOptions("activated"))
    if source.isa not in ISAS:
        pytest.skip(f"this CPU has no {source.isa}")
    assert f"ps_each_{problem.activation}(" in source.file
    judge.judge(problem, build([source]), "activated", plan)


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_instruction_set(judge: Judge, activation: str, isa: str) -> None:
    """Two random schedules of each layer, in f32 and in one narrow type, in one file."""
    seed = [*ACTIVATIONS].index(activation)
    for layer, dtype in zip(LAYERS, ("f32", ("bf16", "f16")[seed % 2], "f32"), strict=True):
        layout = ("nhwc", "nchw")[(seed + layer.groups) % 2]
        problem = layer.with_(layout=layout, dtype=dtype, activation=activation)
        context = samples.fixed_context(problem, 1, detect(isa))
        schedules = samples.members(context, 2, seed)
        sources = [
            emit(problem, schedule, 1, EmitOptions(f"s{at}"))
            for at, schedule in enumerate(schedules)
        ]
        for source in sources:
            judge.judge(problem, build([source]), source.symbol)


PRODUCTS = {
    "mm:9x33x21 tb b=constant alpha=0.5 beta=2 act=gelu": "f32",
    "mm:3:5x17x9 to act=silu": "f32",
    "mm:7x19x40 ta a=constant act=tanh": "f32",
    "linear:12x24x40 act=gelu_tanh": "bf16",
    "mm:1x50x37 b=constant act=sigmoid": "f16",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", PRODUCTS)
def test_products_of_matrices(judge: Judge, words: str) -> None:
    """Random schedules on the best instruction set."""
    problem = parse_problem(words, dtype=PRODUCTS[words])
    context = samples.fixed_context(problem, 2, detect(ISAS[-1]))
    sources = [
        emit(problem, schedule, 2, EmitOptions(f"s{at}"))
        for at, schedule in enumerate(samples.members(context, 3, 1))
    ]
    for source in sources:
        judge.judge(problem, build([source]), source.symbol)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_wrong_result_is_noticed(activation: str) -> None:
    """What one rounding of f32 too many could not explain, in either mode."""
    problem = LAYERS[0].with_(activation=activation)
    for reference in (
        Reals.of(problem, 0), Reals.of_integers(problem, Arrays.of(problem, 0))
    ):  # fmt: skip
        right = apply_numpy(activation, reference.sums)
        assert reference.fault("plain", right.astype(np.float32)) is None
        wrong = right.copy()
        wrong[0, 0, 0, 0] += 0.01
        assert "1 of" in str(reference.fault("plain", wrong.astype(np.float32)))
        if right.min() < -1e-3:
            assert reference.fault("plain", np.maximum(right, 0).astype(np.float32))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_slopes_bound_derivatives(activation: str) -> None:
    x = np.linspace(-30, 30, 600_001)
    y = apply_numpy(activation, x)
    steepest = np.max(abs(np.diff(y) / np.diff(x)))
    assert 0.97 * ACTIVATIONS[activation].slope <= steepest <= ACTIVATIONS[activation].slope + 1e-9


def test_words() -> None:
    problem = parse_problem('mb1ic64ih56oc64kh3ph1 act=gelu n"ffn*2"')
    assert (problem.activation, problem.name, problem.multiplicity) == ("gelu", "ffn", 2)
    assert parse_problem(str(problem)) == problem
    assert problem.key != problem.with_(activation="").key
    assert parse_problem("ic8ih8oc8kh1 act=tanh").activation == "tanh"
    linear = parse_problem('linear:16x64x32 act=silu n"up"', dtype="bf16")
    assert linear == Matmul(
        16, 64, 32, transposed="b", constant="b", activation="silu", dtype="bf16", name="up"
    )
    assert parse_problem(str(linear), dtype="bf16") == linear


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("ic8ih8oc8kh1 act=gellu", "activation 'gellu' is none of relu, gelu"),
        ("ic8ih8oc8kh1 act=gellu", "did you mean 'gelu'"),
        ("ic8ih8oc8kh1 act=", "activation '' is none of"),
        ("mm:4x4x4 act=gelo", "did you mean 'gelu'"),
        ("mm:4x4x4 act=gelu tb", "unknown word 'tb'"),
        ("linear:2:4x4x4", "expected ROWSxINxOUT and an activation"),
        ("linear:4x4x4 alpha=2", "expected ROWSxINxOUT and an activation"),
        ("ic8ih8oc8kh1 act=gelu act=gelu", "'act=gelu' behind the activation"),
    ],
)
def test_wrong_words(words: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_problem(words)


@pytest.mark.exhaustive
def test_refusals() -> None:
    layer = LAYERS[0]
    with pytest.raises(SpecError, match="activation='gelo' is none of relu"):
        layer.with_(activation="gelo")
    with pytest.raises(TypeError, match="activation"):
        layer.with_(activation=1)
    with pytest.raises(UnsupportedError, match="activation='gelu' beside dtype='u8:s8:u8'"):
        layer.with_(activation="gelu", dtype="int8")
    with pytest.raises(PolysciError, match="activation"):
        Conv2dBackwardWeights(layer.with_(activation="gelu"))
