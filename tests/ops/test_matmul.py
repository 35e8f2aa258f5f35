"""Matmul: its text, its references, and its code, with either factor constant or none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.algorithms.choice import candidates
from polysci.algorithms.lowering import model_of
from polysci.errors import SpecError, UnsupportedError
from polysci.measure.check import check
from polysci.ops import OPS, Matmul, parse_key, parse_problem
from polysci.ops.problem import operands
from polysci.rank import Context
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.tune import optimize
from polysci.tune.wisdom import Wisdom

SIZES = st.integers(1, 1 << 15)


@given(
    st.builds(
        Matmul,
        SIZES,
        SIZES,
        SIZES,
        batch=st.none() | SIZES,
        constant=st.sampled_from(["", "a", "b"]),
        name=st.text(st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(' "*3n_\\')),
        multiplicity=st.integers(1, 99),
    )
)
def test_round_trip(problem: Matmul) -> None:
    assert parse_problem(str(problem)) == problem
    assert parse_key(problem.key) == problem.with_(name="", multiplicity=1)


@given(st.text(st.sampled_from('mm:x0123456789 ab=constn"*é')))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        problem = parse_problem("mm" + text)
    except (SpecError, UnsupportedError):
        return
    assert parse_problem(str(problem)) == problem


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("mm", "expected ':' and an extent", 2),
        ("mm:8x8", "expected 'x' and an extent", 6),
        ("mm:8xx8", "expected an extent", 5),
        ("mm:8x0x8", "extent 0: expected 1 to 2", 5),
        ("mm:8x8x8 b=packed", "unknown word 'b=packed'", 9),
        ("mm:8x8x8x8", "unknown word 'x8'", 8),
        ("mm:99999999999x99999999999x9", "count of operations is beyond", 0),
    ],
)
def test_a_caret_points_at_what_is_wrong(text: str, message: str, column: int) -> None:
    with pytest.raises(SpecError, match=message) as refused:
        parse_problem(text, where="net.txt:7")
    lines = str(refused.value).splitlines()
    assert lines[0].startswith(f"net.txt:7:{column + 1}: ")
    assert lines[2] == f"    {' ' * column}^"


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError, match="constant='c': expected 'a', 'b' or ''"):
        Matmul(2, 3, 4, constant="c")
    with pytest.raises(UnsupportedError, match="integers need a constant factor"):
        Matmul(2, 3, 4, dtype="int8")
    with pytest.raises(TypeError, match="M must be an int"):
        Matmul(2.0, 3, 4)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="no field 'P' among M, K, N"):
        Matmul(2, 3, 4).with_(P=1)


def test_operands_say_what_is_packed_when() -> None:
    assert OPS["matmul"].problem is Matmul
    kinds = {
        constant: [(one.kind, one.shape) for one in operands(Matmul(2, 3, 4, 5, constant))]
        for constant in ("", "a", "b")
    }
    a, b, o = (5, 2, 3), (5, 3, 4), (5, 2, 4)
    result = ("result", o)
    assert kinds[""] == [("activation", a), ("activation", b), result]
    assert kinds["b"] == [("activation", a), ("constant", b), result]
    assert kinds["a"] == [("activation", b), ("constant", a), result]


@pytest.mark.parametrize("constant", ["", "a", "b"])
def test_the_nest_says_what_the_reference_computes(constant: str) -> None:
    from polysci.ops.nest.reference import contract

    problem, random = Matmul(5, 7, 6, 3, constant), np.random.default_rng(0)
    x, w = (random.integers(-9, 10, shape) for shape in (problem.x_shape, problem.w_shape))
    a, b = (w, x) if constant == "a" else (x, w)
    expected = np.einsum("tik,tkj->tij", a, b)
    _, roles, _ = model_of(problem)
    assert (problem.reference(x, w) == expected).all()
    assert (contract(roles, x, w) == expected).all()
    bias = random.integers(-9, 10, problem.y_shape[problem.bias_axis])
    added = bias[:, None] if constant == "a" else bias
    assert (problem.reference(x, w, bias, clamp=(0, 50)) == np.clip(expected + added, 0, 50)).all()
    assert roles.packs_b == (constant == "")


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize(
    ("text", "dtype", "threads"),
    [
        ("mm:2:19x23x50", "f32", 2),
        ("mm:19x23x50 a=constant", "f32", 1),
        ("mm:2:9x130x33 b=constant", "f32", 1),
        ("mm:2:17x40x35", "bf16", 1),
        ("mm:9x40x35 b=constant", "int8", 1),
    ],
)
def test_code_is_right(text: str, dtype: str, threads: int, isa: str) -> None:
    target = detect()
    if isa not in {own.name for own in target.runnable}:
        pytest.skip(f"this CPU lacks {isa}")
    problem, target = parse_problem(text, dtype=dtype), detect(isa)
    _, roles, strides = model_of(problem)
    context = Context(roles, strides, target, assume_rates(target), threads)
    (choice,) = candidates(problem, context, 1)
    for verdict in check(problem, [choice.schedule], threads):
        assert verdict.passed, verdict.fault


def test_packing_an_activation_is_predicted_and_needs_room(tmp_path: str) -> None:
    target = detect("portable")
    machine = assume_rates(target)

    def estimate(constant: str) -> tuple[float, str]:
        problem = Matmul(64, 64, 64, constant=constant)
        found = optimize(
            problem, "estimate", target=target, machine=machine, wisdom=Wisdom(f"{tmp_path}/w")
        )
        return found.predicted, found.source.text

    (plain, packs), (ahead, reads) = estimate(""), estimate("b")
    assert plain > ahead
    assert "primitive_pack_b(packed" in packs and "primitive_pack_b" not in reads


def test_a_primitive_takes_an_activation_as_it_lies(tmp_path: str) -> None:
    random, wisdom = np.random.default_rng(1), Wisdom(f"{tmp_path}/w")
    problem = Matmul(6, 11, 19)
    primitive = optimize(problem, "estimate", isa="portable", wisdom=wisdom).primitive()
    a, b = (random.integers(-4, 5, s).astype(np.float32) for s in ((6, 11), (11, 19)))
    for factor in (b, -b):
        assert (primitive(a, factor) == a @ factor).all()
    with pytest.raises(UnsupportedError, match="w changes from call to call"):
        primitive.pack_weights(b)
    with pytest.raises(ValueError, match=r"w: expected shape \(11, 19\)"):
        primitive(a, a)
    with pytest.raises(ValueError, match="out: expected memory apart from wp"):
        primitive(np.ones((6, 11), np.float32), b, out=b[:6])
