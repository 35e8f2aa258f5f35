"""Nest: what of a C file becomes a problem, its text, its reference, what is refused and why."""

import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.errors import SpecError, UnsupportedError
from polysci.ops import Nest, convolution, parse_problem
from polysci.ops.convolutions import Conv2d
from polysci.ops.layer_lists import load
from polysci.ops.problem import Problem
from tests.support.nests import MATMUL, TEXTS, c_text, nest, textbook_c

DATA = Path(__file__).parents[1] / "data"
LINE = "nest C[37][50]+=A[37][23]*B[23][50] for i:37 j:50 k:23 : C[i][j] A[i][k] B[k][j]"


def test_a_nest_in_one_line() -> None:
    problem = nest("matmul")
    assert str(problem) == f'{LINE} n"matmul"'
    assert problem.key == f"{LINE} f32"
    assert (problem.x_shape, problem.w_shape, problem.y_shape) == ((37, 23), (23, 50), (37, 50))
    assert (problem.flops, problem.terms, problem.bias_axis) == (2 * 37 * 50 * 23, 23, 1)
    assert problem.axes == {"x": "A[i][k]", "w": "B[k][j]", "y": "C[i][j]", "bias": "j"}
    assert problem.arrays()["A"] == ((37, 23), (23, 1))
    assert (problem.layout, problem.dtype, problem.batched) == ("", "f32", False)


def test_both_operators_are_problems() -> None:
    convolved = Conv2d(N=1, C=8, H=5, W=5, K=8, R=1, S=1)
    assert isinstance(convolved, Problem) and isinstance(nest("matmul"), Problem)
    assert convolution(convolved) is convolved
    with pytest.raises(UnsupportedError, match=r"matmul.*expected a convolution"):
        convolution(nest("matmul"))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", TEXTS)
def test_the_text_says_it_all(name: str) -> None:
    problem = nest(name).with_(multiplicity=3)
    assert parse_problem(str(problem)) == problem
    assert pickle.loads(pickle.dumps(problem)) == problem
    spaced = str(problem.with_(name="", multiplicity=1))
    for sign in ("+=", "*", "[", "]", ":"):
        spaced = spaced.replace(sign, f"  {sign} ")
    assert parse_problem(spaced) == problem.with_(name="", multiplicity=1)
    again = Nest(textbook_c(problem), name=name, multiplicity=3)
    assert again == problem and hash(again) == hash(problem)


def test_taps_that_the_padding_cuts_are_no_depth() -> None:
    assert str(nest("one channel").contraction) == "m=(p,q) n=k br=(r,s)"
    assert str(nest("depthwise").contraction) == "m=(p,q) br=(r,s) batch=g"
    assert str(nest("channels last").contraction) == "m=(n,p,q) n=k k=c br=(r,s)"


def test_guards_stand_where_they_are_needed() -> None:
    assert "if (" not in textbook_c(nest("matmul"))
    assert "if (p + r - 2 >= 0 && p + r - 2 < 30)" in textbook_c(nest("1-D convolution"))
    assert "A[i][k] * B[-k + 22][-j + 49];" in textbook_c(nest("backwards"))


def sums(problem: Nest, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The loop nest by its definition: every point of the box adds a product to its element."""
    it = problem.contraction
    grid = np.indices([dim.extent for dim in it.dims]).reshape(len(it.dims), -1)
    at = dict(zip([dim.name for dim in it.dims], grid, strict=True))
    zero = np.zeros(grid.shape[1], int)
    out, a, b = (
        np.array([zero + i.const + sum(c * at[name] for name, c in i.terms) for i in op.index])
        for op in (it.out, it.a, it.b)
    )
    inside = np.all((a >= 0) & (a < np.array(it.a.shape)[:, None]), axis=0)
    y = np.zeros(it.out.shape, x.dtype)
    np.add.at(y, tuple(out[:, inside]), x[tuple(a[:, inside])] * w[tuple(b[:, inside])])
    return y


def inputs(problem: Problem, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, w = (rng.integers(-4, 5, shape) for shape in (problem.x_shape, problem.w_shape))
    return x.astype(np.float32), w.astype(np.float32)


@st.composite
def contractions(draw: st.DrawFn) -> str:
    """C of a contraction with shuffled axes, loops that start anywhere and run either way."""
    roles = draw(st.lists(st.sampled_from(["OA", "AB", "OAB"]), max_size=3))
    named = zip("ijkl", ["OB", *roles], strict=False)
    dims = {name: (role, draw(st.integers(1, 4))) for name, role in named}
    where, shapes = dict[str, str](), dict[str, str]()
    for array in "OAB":
        axes = [name for name, (role, _) in dims.items() if array in role] or [""]
        random.Random(draw(st.integers(0, 99))).shuffle(axes)
        where[array] = shapes[array] = array
        for name in axes:
            extent = dims[name][1] if name else 1
            spare = draw(st.integers(0, 2)) if array != "O" else 0
            first = draw(st.integers(0, spare))
            up = draw(st.booleans())
            index = f"{name} + {first}" if up else f"{first + extent - 1} - {name}"
            where[array] += f"[{index}]" if name else "[0]"
            shapes[array] += f"[{extent + spare}]"
    loops = " ".join(f"{name}:{extent}" for name, (_, extent) in dims.items())
    statement = "{O} += {A} * {B};".format(**where)
    return c_text("{O}, {A}, {B}".format(**shapes), loops, statement)


@pytest.mark.exhaustive
@given(contractions())
def test_the_reference_of_any_contraction(text: str) -> None:
    problem = Nest(text)
    x, w = inputs(problem)
    np.testing.assert_array_equal(problem.reference(x, w), sums(problem, x, w))
    assert parse_problem(str(problem)) == problem


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", TEXTS)
def test_the_reference_is_the_nest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polysci.polyhedral.contraction.BAND", 1000)
    problem = nest(name)
    x, w = inputs(problem)
    y = problem.reference(x, w)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, sums(problem, x, w))


def test_bias_residual_and_clamp() -> None:
    problem = nest("transposed result")
    (x, w), rng = inputs(problem), np.random.default_rng(1)
    bias, residual = (rng.standard_normal(size).astype("f") for size in ((50,), (50, 37)))
    y = problem.reference(x, w, bias, residual, (-9, 12))
    expected = np.clip((x @ w).T + bias[:, None] + residual, -9, 12)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    with pytest.raises(ValueError, match=r"bias: expected shape \(50,\), got \(37,\)"):
        problem.reference(x, w, residual[0])


CONVOLUTIONS = [
    Conv2d(N=2, C=6, H=7, W=9, K=5, R=3, S=2, stride=(2, 1), pad=(1, 0), layout="nchw"),
    Conv2d(N=1, C=4, H=9, W=8, K=6, R=3, S=3, pad=2, dilation=2, groups=2, layout="nchw"),
    Conv2d(N=1, C=3, H=6, W=6, K=4, R=1, S=1, stride=2, layout="nchw"),
]


@pytest.mark.parametrize("problem", CONVOLUTIONS, ids=str)
def test_a_convolution_is_a_nest_too(problem: Conv2d) -> None:
    same = Nest(textbook_c(problem))
    x, w = inputs(problem)
    assert (same.x_shape, same.w_shape, same.y_shape) == (x.shape, w.shape, problem.y_shape)
    assert (same.flops, same.terms, same.bias_axis) == (problem.flops, problem.terms, 1)
    np.testing.assert_array_equal(same.reference(x, w), problem.reference(x, w))


def test_files() -> None:
    (problem,) = load(DATA / "conv2d.c")
    assert problem == Nest(DATA / "conv2d.c") == Nest(str(DATA / "conv2d.c"), name="conv2d")
    assert problem.name == "conv2d" and problem.terms == 4 * 7 * 7
    with pytest.raises(SpecError, match=r"nowhere.c: cannot be read: No such file"):
        load("nowhere.c")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "latin.c"
    path.write_bytes(b"// \xe9\n")
    with pytest.raises(SpecError, match=r"latin.c: not UTF-8 text: byte 3"):
        Nest(path)


def test_two_statements_are_refused() -> None:
    with pytest.raises(
        UnsupportedError, match=r"matmul.c: a contraction is one statement, found 2"
    ):
        Nest(DATA / "matmul.c")


def test_what_is_not_affine_is_refused_with_a_caret(tmp_path: Path) -> None:
    path = tmp_path / "square.c"
    path.write_text(c_text(*MATMUL, "C[i][j] += A[i][k * k] * B[k][j];"))
    with pytest.raises(SpecError) as error:
        Nest(path)
    first, line, caret, *_ = str(error.value).splitlines()
    assert first.startswith(f"{path}:6:") and "a product of two values that both vary" in first
    assert line[caret.index("^") :].startswith("k * k")


REFUSED = {
    ("C[i][j] += A[i][k] + B[k][j];",): "not a product of two array elements",
    ("C[i][j] += A[i][k] * A[k][j];", "A[50][50]"): "A is both factors: the second",
    ("if (k < i) C[i][j] += A[i][k] * B[k][j];",): "its guards drop more",
    ("C[i][j + 1] += A[i][k] * B[k][j];", "C[37][51]"): "axis 1 of .* does not start at 0",
    ("C[2 * i][j] += A[i][k] * B[k][j];", "C[80][50]"): "axis 0 of .* has gaps or overlaps",
    ("C[i + j][j] += A[i][k] * B[k][j];", "C[99][50]"): "a loop indexes two axes",
    ("C[i + j] += A[i][k] * B[k][j];", "C[99]"): "has gaps or overlaps: every element of C",
    ("C[i][j] += A[i][k] * B[k][j];", "C[37][60]"): "axis 1 of .* reaches 50 of 60",
    ("C[i * 50 + j] += A[i][k] * B[k][j];", "C[1850]"): "rows i and columns j share axis 0",
    ("C[j * 37 + i] += A[i][k] * B[k][j];", "C[1850]"): "the columns j lie apart on axis 0",
    ("C[i] += A[i][k] * B[k];", "C[37]", "B[23]", "i:37 k:23"): r"exchange the factors: B\[k\]",
    ("B[i] += A[i + k] * C[k];", "B[9]", "A[11]", "C[3]", "i:9 k:3"): "along the vectors$",
    (
        "C[a][b][c][d][e][f][j] = A[a][b][c][d][e][f] * B[j];", "C[2][2][2][2][2][2][9]",
        "A[2][2][2][2][2][2]", "B[9]", "a:2 b:2 c:2 d:2 e:2 f:2 j:9",
    ): "6 of them over C and A alone: at most 12 and 5",
    (
        "if (p + r >= 1 && p + r < 8) C[p + r - 1][j] += A[p][k] * B[r][k][j];", "C[7][50]",
        "A[9][23]", "B[3][23][50]", "p:9 j:50 r:3 k:23",
    ): "its guards cut C",
}  # fmt: skip


@pytest.mark.parametrize("parts", REFUSED, ids=lambda parts: parts[0])
def test_what_cannot_be_computed_is_refused(parts: tuple[str, ...]) -> None:
    statement, *others = parts
    loops = next((part for part in others if ":" in part), MATMUL[1])
    shapes = {part[0]: part for part in [*MATMUL[0].split(", "), *others] if ":" not in part}
    text = c_text(", ".join(shapes.values()), loops, statement)
    with pytest.raises(UnsupportedError, match=REFUSED[parts]):
        Nest(text)


def test_doubles_are_refused() -> None:
    text = TEXTS["matmul"].replace("float C", "double C")
    with pytest.raises(UnsupportedError, match=r"double C\[37\]\[50\] is not of float: only f32"):
        Nest(text)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("nest", "", "expected an array and its extents"),
        ("nest C[3] A[3]*B[3] for i:3 : C[i] A[i] B[i]", "A[3]*", "expected +="),
        ("nest C[3]+=A[3]*B[3] for i:3 C[i] A[i] B[i]", "C[i]", "expected a loop and its extent"),
        (LINE.replace("A[i][k]", "A[i]"), "A[i]", "expected an element of A[37][23]"),
        (LINE.replace("A[i][k]", "D[i][k]"), "D[i]", "expected an element of A[37][23]"),
        (LINE.replace("A[i][k]", "A[i][(k)]"), "A[i][(", "expected an element of A[37][23]"),
        (f"{LINE} m", "m", "text after the last element"),
        (f'{LINE} n"a', '"a', "the name's quote is not closed"),
        (LINE.replace("A[i][k]", "A[i][k*j]"), "[i][k*j]", "'k*j' is no sum of loops times"),
        (LINE.replace("A[i][k]", "A[i][010]"), "[i][010]", "'010' is no sum of loops times"),
        (LINE.replace("B[k][j]", "B[k+1][j]"), "B[k+1]", "subscript 0 of B reaches 23"),
        (LINE.replace("k:23", "k:0"), "0 :", "extent 0: expected 1 to 2^63 - 1"),
        (LINE.replace("k:23", "i:23"), "i:23", "the loop i is repeated"),
        (LINE.replace("A[37]", "A[99999999999999999999]"), "[99", "extent 99999999999999999999"),
        (LINE.replace("C[", "min["), "min[", "min is a word of C or isl; rename it"),
    ],
)
def test_errors_in_the_line_have_a_caret(text: str, place: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_problem(text, where="net.txt:7")
    first, shown, caret, *_ = str(error.value).splitlines()
    assert first.startswith("net.txt:7:") and message in first
    assert shown[caret.index("^") :].startswith(place)


def test_what_a_nest_fixes() -> None:
    problem = nest("matmul")
    assert problem.with_(name="x", multiplicity=2).with_(name="matmul", multiplicity=1) == problem
    with pytest.raises(SpecError, match="N=16: only name and multiplicity can be changed"):
        problem.with_(N=16)
    for wrong in ({"name": "a\nb"}, {"multiplicity": 0}, {"multiplicity": True}):
        with pytest.raises(SpecError, match="Nest: "):
            Nest(TEXTS["matmul"], **wrong)
    with pytest.raises(SpecError, match="use shorter names"):
        Nest(TEXTS["matmul"], name="m" * 3000)
    with pytest.raises(SpecError, match="beyond the 9 bytes of memory"):
        problem.check_memory(9)
