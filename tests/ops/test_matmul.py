"""Matmul: its text, its references, and its code, with either factor constant or none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.cost import Context
from polysci.errors import SpecError, UnsupportedError
from polysci.lower.choice import candidates
from polysci.measure.check import check
from polysci.ops import OPS, Matmul, parse_key, parse_problem
from polysci.ops.model import model_of
from polysci.ops.problem import operands
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.tune import optimize
from polysci.tune.wisdom import Wisdom

SIZES = st.integers(1, 1 << 15)
FACTORS = st.floats(-99, 99, allow_nan=False).filter(lambda factor: abs(factor) > 1e-30)


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
        transposed=st.sampled_from(["", "a", "bo", "abo"]),
        alpha=FACTORS,
        beta=FACTORS,
    )
)
def test_round_trip(problem: Matmul) -> None:
    assert parse_problem(str(problem)) == problem
    assert parse_key(problem.key) == problem.with_(name="", multiplicity=1)


@given(st.text(st.sampled_from('mm:x0123456789 abt=constnlphe,->."*é')))
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
        ("mm:8x8x8 ta tb ta", "transposed is repeated", 15),
        ("mm:8x8x8 alpha=1e", "'1e' is no number", 9),
        ("mm:8x8x8 alpha=0.0", "alpha=0.0: expected a number", 0),
        ("mm:8x8x8 beta=1e99", "beta=1e.99: expected a number", 0),
        ("mm:mk,kn m=8", "expected subscripts of two factors", 3),
        ("mm:mk,kn->mnk m=8 n=8 k=8", "expected km: the batch", 3),
        ("mm:mkx,kn->mn m=8 n=8 k=8", "x is in one operand alone", 5),
        ("mm:mk,kkn->mn m=8 n=8 k=8", "k is repeated", 7),
        ("mm:mk,kn->mn m=8 n=8", "expected the extent of k: k=64", 20),
        ("mm:mk,kn->mn m=8 n=8 k=8 ta", "the subscripts say which", 27),
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
    with pytest.raises(SpecError, match="transposed='ba': expected letters of 'abo'"):
        Matmul(2, 3, 4, transposed="ba")
    with pytest.raises(TypeError, match="alpha must be a number, got str"):
        Matmul(2, 3, 4, alpha="1")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="alpha and beta are of real numbers"):
        Matmul(2, 3, 4, constant="b", dtype="int8", beta=2)
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


@pytest.mark.parametrize(
    ("subscripts", "text"),
    [
        ("mk,kn->mn m=8 n=9 k=5", "mm:8x5x9"),
        ("bmk,bnk->bmn b=3 m=8 n=9 k=5 a=constant", "mm:3:8x5x9 tb a=constant"),
        ("km,nk->nm m=8 n=9 k=5 alpha=0.5", "mm:8x5x9 ta tb to alpha=0.5"),
        ("bsh,oh->bso b=2 s=8 h=5 o=9 b=constant", "mm:16x5x9 tb b=constant"),
        ("mk,k->m m=8 k=5 n", "mm:8x5x1"),
        ("m,n->mn m=8 n=9", "mm:8x1x9"),
    ],
)
def test_subscripts_are_short_for_extents(subscripts: str, text: str) -> None:
    assert str(parse_problem(f"mm:{subscripts.removesuffix(' n')}")) == text


@pytest.mark.parametrize("constant", ["", "a", "b"])
def test_the_nest_says_what_the_reference_computes(constant: str) -> None:
    problem, random = Matmul(5, 7, 6, 3, constant), np.random.default_rng(0)
    x, w = (random.integers(-9, 10, shape) for shape in (problem.x_shape, problem.w_shape))
    a, b = (w, x) if constant == "a" else (x, w)
    expected = np.einsum("tik,tkj->tij", a, b)
    assert (problem.reference(x, w) == expected).all()
    bias = random.integers(-9, 10, problem.y_shape[problem.bias_axis])
    added = bias[:, None] if constant == "a" else bias
    assert (problem.reference(x, w, bias, clamp=(0, 50)) == np.clip(expected + added, 0, 50)).all()


@pytest.mark.parametrize("transposed", ["", "a", "b", "abo"])
def test_transposed_operands_and_factors(transposed: str) -> None:
    problem = Matmul(5, 7, 6, 3, "b", transposed=transposed, alpha=0.5, beta=-3)
    random = np.random.default_rng(0)
    turn = {name: (0, 2, 1) if name in transposed else (0, 1, 2) for name in "abo"}
    x, w, residual = (
        random.integers(-9, 10, shape).astype(np.float64)
        for shape in (problem.x_shape, problem.w_shape, problem.y_shape)
    )
    product = np.einsum("tik,tkj->tij", x.transpose(turn["a"]), w.transpose(turn["b"]))
    expected = (0.5 * product).transpose(turn["o"]) - 3 * residual
    assert (problem.reference(x, w, residual=residual) == expected).all()
    bias = random.integers(-9, 10, 6)
    along = bias[:, None] if "o" in transposed else bias
    assert (problem.reference(x, w, bias, residual) == expected + along).all()


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize(
    ("text", "dtype", "threads"),
    [
        ("mm:2:19x23x50", "f32", 2),
        ("mm:19x23x50 a=constant", "f32", 1),
        ("mm:2:9x130x33 b=constant", "f32", 1),
        ("mm:2:17x40x35", "bf16", 1),
        ("mm:9x40x35 b=constant", "int8", 1),
        ("mm:19x23x50 ta tb alpha=-0.3 beta=2.5", "f32", 1),
        ("mm:9x130x33 ta to b=constant alpha=3", "f32", 2),
        ("mm:19x23x50 tb a=constant alpha=0.5 beta=0.1", "f32", 1),
        ("mm:2:17x40x35 ta tb to b=constant beta=0.7", "bf16", 1),
        ("mm:9x40x35 ta tb b=constant", "int8", 1),
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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
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
