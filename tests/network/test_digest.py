"""Digests: other devices agree, faults are named where they arise, other texts are refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from polysci.errors import SpecError
from polysci.network.compiled import (
    CompileOptions,
    Network,
    compile_network,
    rebuild_network,
)
from polysci.network.digest import (
    INPUT,
    LEAST,
    Digest,
    TensorDigest,
    compare,
    digest_network,
    digest_of,
    hash_graph,
    offsets,
    parse,
    strides,
)
from polysci.network.prepare import read_graph
from polysci.network.runner import inputs_of
from polysci.numerics.arrays import Array
from polysci.runtime.backends import backend_named
from polysci.runtime.backends.opencl import devices
from polysci.target.host import detect
from polysci.target.target import HOST, Target
from tests.support.compiling import ISA, tiny
from tests.support.onnxmodels import model, node, reals

FOLDER = Path(__file__).parents[1] / "golden" / "digests"
NETWORKS = {"tiny": tiny, "mlp": "mlp:4x16x40x10 act=relu", "lstm": "lstm:T4xN2xC8xK12"}


def target_named(name: str) -> Target:
    """Return a device; the test is skipped where there is none."""
    if name == HOST:
        return detect(ISA)
    pytest.importorskip("pyopencl", reason="OpenCL: pyopencl is not installed")
    if not devices():
        pytest.skip("OpenCL: there is no device")
    return backend_named(name).targets()[0]


def model_named(name: str) -> onnx.ModelProto | str:
    model = NETWORKS[name]
    return model if isinstance(model, str) else model()


def apart(name: str, target: Target) -> Network:
    """Return a network whose tensors share no memory."""
    options = CompileOptions("estimate", target=target, verify=False)
    return rebuild_network(compile_network(model_named(name), options), apart=True)


def digest(name: str, network: Network) -> Digest:
    graph = hash_graph(read_graph(model_named(name)))
    return digest_network(network, name, graph, inputs_of(network.inputs))


@pytest.mark.sampled
@pytest.mark.parametrize("device", [HOST, "opencl:0"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_the_digests_of_other_machines(
    name: str, device: str, request: pytest.FixtureRequest
) -> None:
    network, path = apart(name, target_named(device)), FOLDER / f"{name}.txt"
    actual = digest(name, network)
    if device == HOST and request.config.getoption("--update-golden"):
        path.write_text(f"{actual}\n", encoding="utf-8")
    expected = parse(path.read_text(encoding="utf-8"), str(path))
    assert [str(wrong) for wrong in compare(actual, expected)] == []
    assert actual.graph == expected.graph and actual.tensors[0].maker == INPUT
    both = {row.tensor for row in actual.tensors} & {row.tensor for row in expected.tensors}
    assert {port.name for port in network.outputs} < both  # fusions depend on rates


@pytest.fixture(scope="module")
def network() -> Network:
    return apart("tiny", detect(ISA))


def with_weights(network: Network, name: str, change: Callable[[Array], Array]) -> Network:
    """Return the network with a constant changed, as a device that reads it wrongly has it."""
    placed = network.prepared.placed
    constants = dict(placed.program.constants)
    constants[name] = change(constants[name].copy())
    placed = replace(placed, program=replace(placed.program, constants=constants))
    prepared = replace(network.prepared, placed=placed)
    return rebuild_network(replace(network, prepared=prepared), apart=True)


def channel_off(w: Array) -> Array:
    w[3] *= np.float32(1.25)
    return w


def rows_exchanged(w: Array) -> Array:
    w[:, :, [0, 2]] = w[:, :, [2, 0]]
    return w


def element_off(w: Array) -> Array:
    w[5, 2, 1, 1] += np.float32(30)
    return w


def transposed(w: Array) -> Array:
    return np.ascontiguousarray(w.transpose(0, 1, 3, 2))


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", [channel_off, rows_exchanged, element_off, transposed])
def test_the_first_wrong_tensor_is_that_of_the_wrong_layer(
    network: Network, fault: Callable[[Array], Array]
) -> None:
    right, faulty = digest("tiny", network), with_weights(network, "w2", fault)
    wrong = compare(digest("tiny", faulty), right)
    assert [it.tensor for it in wrong] == ["t", "p", "g", "y"]
    assert wrong[0].maker == "conv Conv of c + add Add of s + relu Relu of t"
    assert "made by conv Conv of c" in str(wrong[0]) and " entries differ" in str(wrong[0])


def test_a_digest_has_the_same_bytes_and_comes_back(network: Network) -> None:
    made = digest("tiny", network)
    text = str(made)
    assert text == str(digest("tiny", apart("tiny", detect(ISA))))
    again = parse(text, "text")
    assert str(again) == text and compare(made, again) == []
    assert [row.tensor for row in again.tensors] == ["x", "r", "t", "p", "g", "y"]


def rows_of(shape: tuple[int, ...], fault: Callable[[Array], None]) -> list[str]:
    """Return the entries that a fault of a tensor changes; roundings of all elements are there."""
    random = np.random.default_rng(1)
    right = random.standard_normal(shape).astype(np.float32)
    wrong = (right * (1 + 2e-7 * random.uniform(-1, 1, shape))).astype(np.float32)

    def numbers(array: Array) -> Digest:
        return Digest("m", "f32", "0" * 16, (digest_of("v", "stage", array, LEAST),))

    assert compare(numbers(wrong), numbers(right)) == []
    fault(wrong)
    return [it.entry for it in compare(numbers(wrong), numbers(right))]


def exchange_rows(array: Array) -> None:
    array[..., [1, 3], :] = array[..., [3, 1], :]


def exchange_channels(array: Array) -> None:
    array[:, [0, 2]] = array[:, [2, 0]]


def transpose(array: Array) -> None:
    last = array.shape[-2:]
    array[:] = array.swapaxes(-1, -2).reshape(*array.shape[:-2], *last)


def move_one_channel(array: Array) -> None:
    array[0, 2] += np.float32(0.01)


def shift_one_row(array: Array) -> None:
    array[0, 1, 2] = np.roll(array[0, 1, 2], 1)


def change_one(array: Array) -> None:
    array.reshape(-1)[array.size // 2] += np.float32(9)


FAULTS = (exchange_rows, exchange_channels, transpose, move_one_channel, shift_one_row, change_one)
# Whose rows and channels lie as far apart as some of the primes, or the product of several.
SHAPES = ((1, 8, 16, 16), (2, 3, 5, 7), (1, 6, 12, 210), (1, 4, 30, 420), (1, 16, 56, 56))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fault", FAULTS)
def test_sums_at_strides_show_what_trades_places(
    shape: tuple[int, ...], fault: Callable[[Array], None]
) -> None:
    assert len(rows_of(shape, fault)) == 1


def test_some_tensors_are_whole_and_some_are_empty() -> None:
    scalar = digest_of("a", "s", np.float32([[7.5]]).reshape(()), LEAST)
    assert "shape scalar" in str(scalar) and scalar.rows["elements"] == (7.5,)
    empty = digest_of("a", "s", np.zeros((0, 3), np.float32), LEAST)
    text = str(Digest("m", "f32", "0" * 16, (scalar, replace(empty, tensor='b "x"\n'))))
    assert str(parse(text, "here")) == text
    holes = digest_of("a", "s", np.float32([np.nan, np.inf, 1, -2]), LEAST)
    assert holes.rows["not finite"] == (2,) and holes.rows["elements"] == (0, 0, 1, -2)
    other = digest_of("a", "s", np.float32([np.nan, 0, 1, -2]), LEAST)
    (wrong,) = compare(*(Digest("m", "f32", "", (it,)) for it in (holes, other)))
    assert wrong.entry == "the number of elements not finite"
    (wrong,) = compare(*(Digest("m", "f32", "", (it,)) for it in (scalar, replace(empty))))
    assert wrong.entry == "its number of elements"


def test_tolerances_are_those_of_what_errors_become() -> None:
    """Of a step of 8 bits, and of a function that makes errors 40 times larger."""
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("Mul", "a forty", "m"),
        node("Exp", "m", "y"),
    ]
    weights = {"s": np.float32(0.05), "z": np.uint8(100), "forty": np.float32(40)}
    made = model(nodes, {"x": (8, 16), "a": (8, 16)}, {"q": None, "y": None}, weights)
    ready = rebuild_network(
        compile_network(made, CompileOptions("estimate", isa=ISA, verify=False)), apart=True
    )
    inputs = {"x": reals(8, 16), "a": np.linspace(0.5, 1, 128, dtype=np.float32).reshape(8, 16)}
    rows = {row.tensor: row for row in digest_network(ready, "m", "0" * 16, inputs).tensors}
    assert rows["x"].tolerance == float(f"{LEAST:.3g}")
    assert 1 / 255 < rows["q"].tolerance < 0.1 and rows["y"].tolerance > 20 * 0.03


def test_strides_and_where_sums_begin() -> None:
    assert strides((2, 3, 4, 5)) == [1, 2, 3, 5, 7, 11, 13, 20, 60]
    assert strides((4, 4)) == [] and strides((17,)) == [1, 2, 3, 5, 7, 11, 13]
    assert offsets(1) == [0] and offsets(3) == [0, 1, 2] and offsets(20) == [0, 5, 10, 15]


HEAD = f'polysci-digest 1 model "m" dtype f32 graph {"0" * 16}'
ROW = 'tensor "a" shape 2 tolerance 1e-06 made by "s"'
NUMBERS = "  minimum: 1\n  maximum: 2\n  not finite: 0\n  elements: 1 2"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1: expected 'polysci-digest 1 model NAME dtype TYPE graph HASH'"),
        (HEAD.replace(" 1 ", " 2 "), "line 1: format version 2, and this polysci reads 1"),
        (HEAD.replace('"m"', "m"), "line 1: expected a name in quotes, got m"),
        (f"{HEAD}\n  minimum: 1", "line 2: expected a tensor"),
        (f"{HEAD}\ntensor", "line 2: expected 'tensor NAME shape NxN"),
        (f"{HEAD}\n{ROW}", 'line 2: tensor "a": expected minimum, maximum, not finite, elements'),
        (f"{HEAD}\n{ROW}\n{NUMBERS} 3", 'tensor "a": expected minimum'),
        (f"{HEAD}\n{ROW}\n{NUMBERS[:-1]}nan", 'tensor "a": nan is no number of a digest'),
        (f"{HEAD}\n{ROW.replace('2', 'q')}", "line 2: tensor"),
        (f"{HEAD}\n{ROW.replace('2', '99999999x99999999')}\n{NUMBERS}", "expected minimum"),
    ],
)
def test_damaged_texts_are_refused(text: str, told: str) -> None:
    assert isinstance(parse(f"{HEAD}\n{ROW}\n{NUMBERS}", "f").tensors[0], TensorDigest)
    with pytest.raises(SpecError) as error:
        parse(text, "f")
    assert told in str(error.value) and str(error.value).startswith("digest f: line ")
