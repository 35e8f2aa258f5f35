"""The Python callable: right results, every bad argument named, threads, overhead."""

import sys
import threading
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from polysci.errors import BuildError, PolysciError, UnsupportedError
from polysci.measure.integer_reference import Arrays
from polysci.ops.convolutions import Conv2d
from polysci.printers import interface
from polysci.runtime.build.library import load
from polysci.runtime.primitive import PackedWeights, Primitive
from tests.support import naive

PROBLEM = Conv2d(N=2, C=4, H=6, W=7, K=6, R=3, S=2, pad=1, stride=(1, 2), groups=2)
ARRAYS = Arrays.of(PROBLEM, 0)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYSCI_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def made(
    problem: Conv2d = PROBLEM, schedule: str = "p q > naive", fault: str | None = None
) -> Primitive:
    library = load(naive.compiled(problem, fault=fault), interface.declarations("naive"))
    return Primitive(problem, schedule, naive.text(problem), library, "naive")


@pytest.fixture(scope="module")
def primitive() -> Primitive:
    return made()


@pytest.fixture(scope="module")
def wp(primitive: Primitive) -> PackedWeights:
    return primitive.pack_weights(ARRAYS.inputs["w"])


def x() -> np.ndarray:
    return ARRAYS.inputs["x"].copy()


def misaligned(array: np.ndarray) -> np.ndarray:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    result = memory[1:].view(np.float32).reshape(array.shape)
    result[...] = array
    assert not result.flags.aligned
    return result


@pytest.mark.sampled
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_results_are_the_references(layout: str) -> None:
    problem = PROBLEM.with_(layout=layout)
    primitive, arrays = made(problem), Arrays.of(problem, 1)
    x, w, bias, residual, clamp = arrays.inputs.values()
    wp = primitive.pack_weights(w)
    assert np.array_equal(primitive(x, wp), arrays.plain)
    rest = {"bias": bias, "residual": residual}
    assert np.array_equal(primitive(x, wp, **rest, clamp=tuple(clamp)), arrays.fused)
    relu = problem.reference(x, w, bias, residual, (0, inf))
    assert np.array_equal(primitive(x, wp, **rest, activation="relu"), relu)
    assert np.array_equal(primitive(x, wp, bias=bias), problem.reference(x, w, bias))


def test_what_is_new_is_aligned(primitive: Primitive, wp: PackedWeights) -> None:
    for _ in range(20):
        assert primitive(x(), wp).ctypes.data % 64 == 0
        assert primitive.pack_weights(ARRAYS.inputs["w"]).array.ctypes.data % 64 == 0
    assert primitive(x(), wp).flags.writeable and not wp.array.flags.writeable


def test_out_is_filled_and_returned(primitive: Primitive, wp: PackedWeights) -> None:
    out = np.full(PROBLEM.y_shape, nan, np.float32)
    assert primitive(x(), wp, out=out) is out
    assert np.array_equal(out, ARRAYS.plain)


def test_misaligned_arrays_work(primitive: Primitive, wp: PackedWeights) -> None:
    inputs = {name: misaligned(array) for name, array in ARRAYS.inputs.items()}
    out = misaligned(np.zeros(PROBLEM.y_shape, np.float32))
    packed = primitive.pack_weights(inputs["w"])
    rest = {name: inputs[name] for name in ("bias", "residual")}
    clamp = tuple(map(float, inputs["clamp"]))
    assert primitive(inputs["x"], packed, **rest, clamp=clamp, out=out) is out
    assert np.array_equal(out, ARRAYS.fused)


def test_read_only_inputs_and_memory_maps_work(
    primitive: Primitive, wp: PackedWeights, tmp_path: Any
) -> None:
    fixed = x()
    fixed.flags.writeable = False
    assert np.array_equal(primitive(fixed, wp), ARRAYS.plain)
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=fixed.shape)
    mapped[...] = fixed
    result = primitive(mapped, wp)
    assert type(result) is np.ndarray and np.array_equal(result, ARRAYS.plain)


def test_in_place_residual(primitive: Primitive, wp: PackedWeights) -> None:
    expected = ARRAYS.plain + ARRAYS.inputs["residual"]
    for place in (np.copy, misaligned):
        y = place(ARRAYS.inputs["residual"])
        assert primitive(x(), wp, residual=y, out=y) is y
        assert np.array_equal(y, expected)


def test_limits_change_from_call_to_call(primitive: Primitive, wp: PackedWeights) -> None:
    plain = ARRAYS.plain
    for clamp in ((-1.0, 2.0), (0, 3), (-1.0, 2.0), (2, 2), (-inf, 0.5)):
        for _ in range(2):
            assert np.array_equal(primitive(x(), wp, clamp=clamp), plain.clip(*clamp))
    changing = [0.0, 1.0]
    assert primitive(x(), wp, clamp=changing).max() == 1
    changing[1] = 3.0
    assert primitive(x(), wp, clamp=changing).max() == 3
    assert np.array_equal(primitive(x(), wp, activation="relu"), plain.clip(0, None))
    assert np.array_equal(primitive(x(), wp), plain)


def test_no_images_give_no_results(primitive: Primitive, wp: PackedWeights) -> None:
    none = np.empty((0, *PROBLEM.x_shape[1:]), np.float32)
    result = primitive(none, wp, bias=ARRAYS.inputs["bias"], clamp=(0, 1))
    assert result.shape == (0, *PROBLEM.y_shape[1:]) and result.dtype == np.float32
    assert primitive(none, wp, residual=result, out=result) is result
    with pytest.raises(ValueError, match=r"residual: expected shape \(0, "):
        primitive(none, wp, residual=ARRAYS.inputs["residual"])
    with pytest.raises(ValueError, match=r"out: expected shape \(0, "):
        primitive(none, wp, out=np.empty(PROBLEM.y_shape, np.float32))
    with pytest.raises(ValueError, match="bias: expected shape"):
        primitive(none, wp, bias=np.zeros(3, np.float32))
    empty = made(PROBLEM.with_(N=0))
    assert empty(none, empty.pack_weights(ARRAYS.inputs["w"])).shape == result.shape


BAD: dict[str, tuple[Callable[[np.ndarray], Any], type[Exception], str]] = {
    "list": (lambda a: a.tolist(), TypeError, "float32, got builtins.list"),
    "none": (lambda a: np.float32(1), TypeError, "got numpy.float32"),
    "masked": (np.ma.masked_array, TypeError, "MaskedArray"),
    "float64": (lambda a: a.astype(np.float64), TypeError, "native byte .* got float64 .*astype"),
    "int": (lambda a: a.astype(np.int32), TypeError, "got int32"),
    "byte order": (lambda a: a.astype(">f4"), TypeError, r"got >f4 \(>f4\)"),
    "object": (lambda a: a.astype(object), TypeError, "got object"),
    "axes": (lambda a: a[None], ValueError, r"expected shape \(.*\) \(.+\), got \(1, "),
    "short": (lambda a: a[:-1], ValueError, "expected shape"),
    "strides": (lambda a: np.repeat(a, 2, -1)[..., ::2], ValueError, "C-contiguous.*numpy.asc"),
    "reversed": (lambda a: a[..., ::-1], ValueError, "C-contiguous"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", ["x", "w", "bias", "residual", "out"])
def test_bad_arrays_are_named(
    primitive: Primitive, wp: PackedWeights, name: str, kind: str
) -> None:
    change, error, message = BAD[kind]
    good = ARRAYS.inputs.get(name, ARRAYS.plain).copy()
    bad = change(good)
    with pytest.raises(error, match=f"^{name}: .*{message}"):
        if name == "w":
            primitive.pack_weights(bad)
        elif name == "x":
            primitive(bad, wp)
        else:
            primitive(x(), wp, **{name: bad})


def test_other_layouts_are_shape_errors(primitive: Primitive, wp: PackedWeights) -> None:
    with pytest.raises(ValueError, match=r"x: expected shape \(2, 6, 7, 4\) \(N H W C\), got "):
        primitive(np.ascontiguousarray(x().transpose(0, 3, 1, 2)), wp)


def test_a_read_only_out_is_refused(primitive: Primitive, wp: PackedWeights) -> None:
    out = np.zeros(PROBLEM.y_shape, np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out: expected a writable array"):
        primitive(x(), wp, out=out)


def test_overlaps_are_refused(primitive: Primitive, wp: PackedWeights) -> None:
    size = ARRAYS.plain.size
    memory = np.zeros(4 * size, np.float32)
    out = memory[size : 2 * size].reshape(PROBLEM.y_shape)
    shifted = memory[size - 4 : 2 * size - 4].reshape(PROBLEM.y_shape)
    inputs = x()
    overlapping = memory[size - 1 : size - 1 + inputs.size].reshape(inputs.shape)
    with pytest.raises(ValueError, match="out: expected memory apart from x, got an overlap"):
        primitive(overlapping, wp, out=out)
    with pytest.raises(ValueError, match="apart from residual"):
        primitive(inputs, wp, residual=shifted, out=out)
    with pytest.raises(ValueError, match="apart from bias"):
        primitive(inputs, wp, bias=memory[2 * size - 1 : 2 * size - 1 + PROBLEM.K], out=out)
    packed = PackedWeights(wp.identity, memory[: wp.array.size], wp.pointer)
    with pytest.raises(ValueError, match="apart from wp"):
        primitive(inputs, packed, out=memory[:size].reshape(PROBLEM.y_shape))
    beside = memory[2 * size :][: inputs.size].reshape(inputs.shape)
    beside[...] = inputs
    assert np.array_equal(primitive(beside, wp, out=out), ARRAYS.plain)


def test_weights_must_be_packed_by_this_schedule(primitive: Primitive) -> None:
    w = ARRAYS.inputs["w"]
    with pytest.raises(TypeError, match=r"wp: expected the result of pack_weights\(w\), got numpy"):
        primitive(x(), w)  # type: ignore[arg-type]
    other = made(schedule="q p > naive").pack_weights(w)
    with pytest.raises(
        ValueError, match=r"wp: expected weights packed for '.*p q > naive'.*q p > n"
    ):
        primitive(x(), other)
    assert np.array_equal(primitive(x(), made().pack_weights(w)), ARRAYS.plain)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"clamp": 1.0}, TypeError, "clamp: expected two numbers"),
        ({"clamp": (1.0,)}, TypeError, "clamp: expected two numbers"),
        ({"clamp": ("a", "b")}, TypeError, "clamp: expected two numbers"),
        ({"clamp": (0, 10**400)}, ValueError, "clamp: expected numbers that fit in a float"),
        ({"clamp": (1.0, 0.0)}, ValueError, "clamp: expected lo <= hi"),
        ({"clamp": (nan, 0.0)}, ValueError, "clamp: expected lo <= hi"),
        ({"activation": "gelu"}, ValueError, "activation: expected 'relu'"),
        ({"activation": "relu", "clamp": (0, 1)}, ValueError, "either clamp or activation"),
    ],
)
def test_bad_limits_are_named(
    primitive: Primitive,
    wp: PackedWeights,
    arguments: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    for _ in range(2):
        with pytest.raises(error, match=message):
            primitive(x(), wp, **arguments)


def test_status_codes_become_errors() -> None:
    w = ARRAYS.inputs["w"]
    lacking, odd = made(fault="no_isa"), made(fault="bad_status")
    with pytest.raises(UnsupportedError, match="lacks the instruction set"):
        lacking(x(), lacking.pack_weights(w))
    with pytest.raises(PolysciError, match="naive returned 7"):
        odd(x(), odd.pack_weights(w))


def test_a_library_without_the_symbol_is_a_build_error(primitive: Primitive) -> None:
    with pytest.raises(BuildError, match="absent"):
        Primitive(PROBLEM, "", "", primitive.library, "absent")


def test_many_threads_at_once(primitive: Primitive, wp: PackedWeights) -> None:
    def work(number: int) -> bool:
        scaled = x() * np.float32(number % 3)
        expected = ARRAYS.plain * np.float32(number % 3)
        return all(np.array_equal(primitive(scaled, wp), expected) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(24)))
    assert 1 <= len(primitive._workspaces) <= 8


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no lock to release"
)
def test_the_interpreter_runs_on_during_a_call() -> None:
    slow = made(fault="slow")
    wp = slow.pack_weights(ARRAYS.inputs["w"])
    caller = threading.Thread(target=slow, args=(x(), wp))
    ticks = 0
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)  # no thread takes the lock from another one
    try:
        caller.start()
        while caller.is_alive() and ticks <= 1000:
            ticks += 1
        caller.join()
    finally:
        sys.setswitchinterval(before)
    # Without the lock released this thread would come to its first turn after the call's end.
    assert ticks > 1000


@pytest.mark.perf
def test_a_call_costs_less_than_five_microseconds() -> None:
    problem = Conv2d(N=1, C=1, H=1, W=1, K=1, R=1, S=1)
    primitive = made(problem)
    x, w, bias, residual, _ = Arrays.of(problem, 0).inputs.values()
    wp, out = primitive.pack_weights(w), np.empty_like(residual)
    rest = {"bias": bias, "residual": residual, "activation": "relu"}
    calls: dict[str, Callable[[], object]] = {
        "plain": lambda: primitive(x, wp),
        "out": lambda: primitive(x, wp, out=out),
        "fused": lambda: primitive(x, wp, **rest),
        "fused out": lambda: primitive(x, wp, **rest, out=out),
    }
    for name, call in calls.items():
        cost = min(timeit.repeat(call, number=20_000, repeat=5)) / 20_000 * 1e6
        print(f"{name}: {cost:.2f} us")
        assert cost < 5


class Liar(np.ndarray):
    """An array that reports the shape that is asked for."""

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return LIES[len(LIES) - 1]


LIES: list[tuple[int, ...]] = [()]


@pytest.mark.parametrize("name", ["x", "w", "bias", "residual", "out"])
def test_a_subclass_that_reports_another_shape(
    primitive: Primitive, wp: PackedWeights, name: str
) -> None:
    """Its memory is smaller than what it reports: never read or written."""
    shapes = {
        "x": primitive.problem.x_shape, "w": primitive.problem.w_shape,
        "bias": ARRAYS.inputs["bias"].shape,
    }  # fmt: skip
    LIES.append(shapes.get(name, primitive.problem.y_shape))
    liar = np.zeros(1, np.float32).view(Liar)
    with pytest.raises(TypeError, match=f"{name}: expected an array of .* Liar reports"):
        if name == "w":
            primitive.pack_weights(liar)
        elif name == "x":
            primitive(liar, wp)
        else:
            primitive(ARRAYS.inputs["x"], wp, **{name: liar})


class Tagged(np.ndarray):
    """An honest subclass."""


def test_an_honest_subclass_is_an_array(primitive: Primitive, wp: PackedWeights) -> None:
    x = ARRAYS.inputs["x"]
    out = np.zeros(primitive.problem.y_shape, np.float32).view(Tagged)
    assert primitive(x.view(Tagged), wp, out=out) is out
    assert np.array_equal(np.asarray(out), primitive(x, wp))
